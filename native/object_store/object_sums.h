/* Adds up the checksums of the ranges of objects that arrive, in any order and from any thread, until an object has arrived whole. What a
 * store states of the whole object can then be compared with it, although no request was for the whole object. */
#ifndef TSR_OBJECT_STORE_OBJECT_SUMS_H
#define TSR_OBJECT_STORE_OBJECT_SUMS_H

#include "io/checksums.h"
#include "object_store/service.h"

typedef struct tsr_object_sums tsr_object_sums;

tsr_status tsr_object_sums_new(const tsr_allocator *allocator, tsr_object_sums **out, tsr_error *err);
void tsr_object_sums_free(tsr_object_sums *sums); /* accepts NULL */

/* Bytes of an object that have arrived. */
typedef struct tsr_arrived {
    const tsr_object *object;
    tsr_checksum_kind kind; /* not MD5, and always the same for an object */
    uint64_t offset;
    const void *data;
    size_t size;
} tsr_arrived;

/* Adds bytes; those that were added before are passed over. Borrows the object's key. When they are the last that were missing, *whole is true
 * and `sum` is the checksum of the object. Errors: TSR_E_NOMEM. */
tsr_status tsr_object_sums_add(tsr_object_sums *sums, const tsr_arrived *bytes, bool *whole, char sum[TSR_CHECKSUM_TEXT],
                               tsr_error *err);

#endif
