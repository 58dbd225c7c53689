/* Folds the objects in the pickle of a `.metadata` file into records while it is parsed. dcp_metadata.h shows the records. */
#ifndef TSR_FORMATS_DCP_DCP_FOLD_H
#define TSR_FORMATS_DCP_DCP_FOLD_H

#include "formats/dcp/dcp_metadata.h"

/* Ids of the classes whose objects stay in the pickle. */
enum { TSR_DCP_ID_METADATA = 32, TSR_DCP_ID_LISTED /* all others that are accepted */ };

/* Parses `bytes`. Sets the pickle, its end, and the positions of what is odd in it; fills the vectors and names of `out`, which
 * must be empty. On failure, `out` may be partly filled. */
tsr_status tsr_dcp_fold(tsr_str bytes, const tsr_host *host, tsr_dcp_metadata *out, tsr_error *err);

#endif
