/* Reports, as findings, what unpickling a `.metadata` file would do besides creating data, and where it would fail. */
#ifndef TSR_FORMATS_DCP_DCP_VERDICT_H
#define TSR_FORMATS_DCP_DCP_VERDICT_H

#include "formats/dcp/dcp_state.h"

tsr_status tsr_dcp_judge_pickle(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err);

#endif
