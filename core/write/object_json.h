/* Writes an entry that is not a tensor as JSON, in listings and in the objects.json next to a file that cannot contain
 * objects. */
#ifndef TSR_WRITE_OBJECT_JSON_H
#define TSR_WRITE_OBJECT_JSON_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/json.h"

/* Writes the members "type" and "value", or "repr" if JSON cannot represent the value exactly. */
void tsr_put_object(tsr_json *json, const tsr_entry *entry, const tsr_host *host);
/* Writes the members "dtype" and "shape". */
void tsr_put_dtype_and_shape(tsr_json *json, const tsr_entry *entry);

#endif
