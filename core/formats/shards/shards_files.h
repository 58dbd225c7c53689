/* The files of each tensor-parallel and pipeline-parallel rank, by a pattern of their names. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_FILES_H
#define TSR_FORMATS_SHARDS_SHARDS_FILES_H

#include "formats/common/reader.h"

/* Chooses the files of a directory that the map of the open options names, or that have the names that a framework gives
 * such files: sets checkpoint->files, ->file_ranks and ->stages. NULL in *reader: there are none, and the map, if it has no
 * `ranks`, is for what is recognized without it. Errors: TSR_E_UNSUPPORTED for a rank without a file and for the file of one
 * rank that was opened alone; those of reading. */
tsr_status tsr_shards_choose(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* Megatron's directories, mp_rank_TT[_PPP]/model_optim_rng.pt. */
extern const tsr_reader tsr_reader_shards;

#endif
