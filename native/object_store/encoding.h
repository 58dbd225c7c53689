/* Percent-encoding as signatures require it: of every byte except letters, digits, '-', '.', '_' and '~'. */
#ifndef TSR_OBJECT_STORE_ENCODING_H
#define TSR_OBJECT_STORE_ENCODING_H

#include "object_store/service.h"

/* Encodes `text`. With `keeps_slashes`, '/' is not encoded, as in paths. NULL data: TSR_E_NOMEM is in err. */
tsr_str tsr_url_encode(tsr_arena *arena, tsr_str text, bool keeps_slashes, tsr_error *err);
/* Makes "?a=1&b=2" from the parameters in their order; empty if there are none. */
tsr_str tsr_url_query(tsr_arena *arena, const tsr_parameter *parameters, size_t count, tsr_error *err);
/* Decodes what S3 calls encoding-type=url: "%2B" is '+', and '+' is a space. */
tsr_str tsr_url_decode(tsr_arena *arena, tsr_str text, tsr_error *err);

#endif
