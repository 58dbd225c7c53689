/* Whether the texts of a map of shards (tessera/shards.h) are well formed, before it is used.
 *
 * Example:
 *
 *     const char *wrong = tsr_shards_ranks_wrong(TSR_STR("mp_rank_{tp}/model.pt"));
 *     if (wrong) printf("ranks: %s\n", wrong); */
#ifndef TESSERA_SYS_SHARD_NAMES_H
#define TESSERA_SYS_SHARD_NAMES_H

#include "tessera/shards.h"

TSR_API_BEGIN

/* Check a text for `ranks` or `stage_pattern` of a map. Return NULL if it is valid, or a clause that describes the error. */
const char *tsr_shards_ranks_wrong(tsr_str ranks);
const char *tsr_shards_stages_wrong(tsr_str stage_pattern);

TSR_API_END

#endif
