/* Stand-ins for the readers of other formats: these tests look at recognition and at safetensors only. */
#include "formats/reader.h"

const tsr_reader tsr_reader_dcp = {.format = TSR_FORMAT_DCP};
const tsr_reader tsr_reader_torch_zip = {.format = TSR_FORMAT_TORCH_ZIP};
const tsr_reader tsr_reader_torch_legacy = {.format = TSR_FORMAT_TORCH_LEGACY};
const tsr_reader tsr_reader_torch_ranks = {.format = TSR_FORMAT_TORCH_RANKS};
const tsr_reader tsr_reader_torch_index = {.format = TSR_FORMAT_TORCH_INDEX};
