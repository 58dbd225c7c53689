/* Finds the files of each tensor-parallel and pipeline-parallel rank, by a pattern for their names. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_FILES_H
#define TSR_FORMATS_SHARDS_SHARDS_FILES_H

#include "formats/common/reader.h"

/* Chooses the files of a directory that match the map in the open options, or that have the names that a framework gives to
 * such files. Sets checkpoint->files, file_ranks and stages. *reader is NULL if there are none; then a map without `ranks`
 * applies to whatever is recognized without it. Fails with TSR_E_UNSUPPORTED if a rank has no file, or if the file of one
 * rank was opened alone, and if reading fails. */
tsr_status tsr_shards_choose(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* For Megatron's directories, mp_rank_TT[_PPP]/model_optim_rng.pt. */
extern const tsr_reader tsr_reader_shards;

#endif
