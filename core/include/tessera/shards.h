/* How the plain tensors of several ranks form whole ones. Such tensors (Meta's consolidated.NN.pth, Megatron's mp_rank_TT,
 * vLLM's sharded state) do not state where they belong; a map does: a tessera.shards/1 document, or one that is built in.
 *
 * Example:
 *
 *     tsr_open_options options = {.shards = tsr_shards_built_in(TSR_STR("meta-llama"))};
 *     status = tsr_checkpoint_open(store, host, &options, &checkpoint, &err);
 *     if (status == TSR_OK) entry = tsr_checkpoint_entry(checkpoint, TSR_STR("layers.0.attention.wq.weight")); */
#ifndef TESSERA_SHARDS_H
#define TESSERA_SHARDS_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

typedef enum tsr_shards_kind {
    TSR_SHARDS_CONCAT,    /* the ranks' tensors follow each other along `dim` */
    TSR_SHARDS_REPLICATE, /* every rank has the same one */
    TSR_SHARDS_ONLY_RANK, /* the one of `rank` counts */
    TSR_SHARDS_STACK      /* each rank's tensor is one index of a new dim `dim` */
} tsr_shards_kind;

typedef struct tsr_shards_rule {
    tsr_str match; /* a GLOB over the whole FQN */
    tsr_shards_kind kind;
    int32_t dim;   /* CONCAT, STACK; negative: from the end */
    uint32_t rank; /* ONLY_RANK: a tensor-parallel rank */
    /* CONCAT: each rank's tensor is this many blocks along `dim` (gate and up; q, k and v), which are concatenated block by
     * block: all ranks' first blocks, then all second ones. 0 and 1 are the same. */
    uint32_t block_count;
    const uint64_t *block_sizes;  /* along `dim`, in one rank's tensor; NULL: equal blocks */
    const uint64_t *block_copies; /* how many successive ranks have the same block (shared key and value heads); NULL: 1 */
    bool trims;                   /* CONCAT: the result is cut to `trim` along `dim` (a padded vocabulary) */
    uint64_t trim;
} tsr_shards_rule;

typedef struct tsr_shards {
    tsr_str name;     /* for messages: the document's path, or the built-in map's name */
    tsr_str document; /* its text; empty: a built-in map */
    tsr_str ranks; /* the files: "mp_rank_{tp}_{pp}/model_optim_rng.pt", {part} for several per rank; empty: as recognized */
    /* Pipeline stages: each numbers its layers from 0, and has layers[stage] of them. An empty pattern: names are global. */
    tsr_str stage_pattern; /* "**.layers.{layer}.{rest...}" */
    const uint64_t *stage_layers;
    uint32_t stage_count;
    const tsr_shards_rule *rules; /* the first that matches wins; tensors without one must be equal on all ranks */
    uint32_t rule_count;
    const struct tsr_shards_family *family; /* of a built-in map: makes the rules from what is next to the checkpoint */
} tsr_shards;

/* A built-in map: "meta-llama", "megatron-gpt", "vllm"; NULL for any other name. */
const tsr_shards *tsr_shards_built_in(tsr_str name);

TSR_API_END

#endif
