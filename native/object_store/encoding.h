/* Percent-encoding as signatures want it: every byte but letters, digits, '-', '.', '_' and '~'. */
#ifndef TSR_OBJECT_STORE_ENCODING_H
#define TSR_OBJECT_STORE_ENCODING_H

#include "object_store/service.h"

/* `text` encoded; `keeps_slashes`: '/' stays, as in paths. NULL data: TSR_E_NOMEM is in err. */
tsr_str tsr_url_encode(tsr_arena *arena, tsr_str text, bool keeps_slashes, tsr_error *err);
/* "?a=1&b=2" of the parameters in their order, or empty. */
tsr_str tsr_url_query(tsr_arena *arena, const tsr_parameter *parameters, size_t count, tsr_error *err);
/* The reverse of what S3 calls encoding-type=url: "%2B" is '+', and '+' is a space. */
tsr_str tsr_url_decode(tsr_arena *arena, tsr_str text, tsr_error *err);

#endif
