/* Splits a tensor into blocks in the same way in which shards_join.c joins them. */
#include "formats/shards/shards_join.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "tessera/glob.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

typedef struct cutting {
    const tsr_shards_rule *rule;
    const tsr_entry *entry;
    uint32_t ranks, rank, dim;
    tsr_arena *arena;
    tsr_shard_box *boxes;
    uint64_t box_count;
    tsr_error *err;
} cutting;

const tsr_shards_rule *tsr_shards_rule_of(const tsr_shards *map, tsr_str fqn)
{
    for (uint32_t i = 0; i < map->rule_count; i++)
        if (tsr_glob_match(map->rules[i].match, fqn)) return &map->rules[i];
    return NULL;
}

uint32_t tsr_shards_dim(const tsr_shards_rule *rule, uint32_t ndim)
{
    return (uint32_t)(rule->dim < 0 ? rule->dim + (int64_t)ndim : rule->dim);
}

static uint32_t blocks_of(const cutting *c)
{
    return c->rule->block_count ? c->rule->block_count : 1;
}

/* The number of distinct shards of a block. */
static uint64_t shards_of(const cutting *c, uint32_t block)
{
    return c->rule->block_copies ? c->ranks / c->rule->block_copies[block] : c->ranks;
}

static tsr_status refuse(const cutting *c, const char *why)
{
    return tsr_fail(c->err, TSR_E_USAGE, "'%.*s' has size %" PRIu64 " along dim %u, %s %u ranks by the rule '%.*s'",
                    TSR_STR_ARG(c->entry->fqn), c->entry->shape[c->dim], c->dim, why, c->ranks, TSR_STR_ARG(c->rule->match));
}

/* The size of a block on each rank, if all blocks have the same size. */
static tsr_status equal_size(const cutting *c, uint64_t *size)
{
    uint64_t shards = 0;
    for (uint32_t b = 0; b < blocks_of(c); b++) shards += shards_of(c, b);
    if (!shards || c->entry->shape[c->dim] % shards) return refuse(c, "which cannot be split evenly over");
    *size = c->entry->shape[c->dim] / shards;
    return TSR_OK;
}

static tsr_status check_blocks(const cutting *c)
{
    uint64_t sum = 0, block;
    for (uint32_t b = 0; b < blocks_of(c); b++) {
        if (c->rule->block_copies && (!c->rule->block_copies[b] || c->ranks % c->rule->block_copies[b]))
            return refuse(c, "and its copies do not divide the");
        if (!c->rule->block_sizes) continue;
        if (!tsr_mul_u64(c->rule->block_sizes[b], shards_of(c, b), &block) || !tsr_add_u64(sum, block, &sum))
            return refuse(c, "too small for");
    }
    return c->rule->block_sizes && sum != c->entry->shape[c->dim] ? refuse(c, "which is not that of the blocks of") : TSR_OK;
}

/* Adds the box of one block. */
static tsr_status add_box(cutting *c, uint64_t from, uint64_t local, uint64_t size)
{
    const uint32_t ndim = c->entry->ndim;
    uint64_t *numbers = tsr_arena_array(c->arena, ndim, 3 * sizeof *numbers, c->err);
    if (!numbers) return TSR_E_NOMEM;
    if (size == 0) return TSR_OK;
    memcpy(numbers + ndim, c->entry->shape, ndim * sizeof *numbers);
    numbers[c->dim] = from;
    numbers[ndim + c->dim] = size;
    numbers[2 * ndim + c->dim] = local;
    c->boxes[c->box_count++] = (tsr_shard_box){numbers, numbers + ndim, numbers + 2 * ndim};
    return TSR_OK;
}

static tsr_status cut_blocks(cutting *c, uint64_t *local)
{
    uint64_t start = 0, equal = 0;
    TSR_TRY(check_blocks(c));
    if (!c->rule->block_sizes) TSR_TRY(equal_size(c, &equal));
    for (uint32_t b = 0; b < blocks_of(c); b++) {
        const uint64_t size = c->rule->block_sizes ? c->rule->block_sizes[b] : equal, shards = shards_of(c, b);
        TSR_TRY(add_box(c, start + c->rank / (c->ranks / shards) * size, *local, size));
        start += size * shards;
        *local += size;
    }
    return TSR_OK;
}

/* Takes the rank's index along the stacked dimension. */
static tsr_status cut_index(cutting *c, uint64_t *local)
{
    if (c->entry->shape[c->dim] != c->ranks) return refuse(c, "and a stacked tensor has one index for each of");
    *local = 1;
    return add_box(c, c->rank, 0, 1);
}

static tsr_status cut(cutting *c, tsr_shard *out)
{
    const bool is_cut = c->rule && (c->rule->kind == TSR_SHARDS_CONCAT || c->rule->kind == TSR_SHARDS_STACK);
    const uint32_t ndim = c->entry->ndim;
    uint64_t *shape = tsr_arena_array(c->arena, ndim, sizeof *shape, c->err), local = 0;
    c->boxes = tsr_arena_array(c->arena, is_cut ? blocks_of(c) : 1, sizeof *c->boxes, c->err);
    if (!shape || !c->boxes) return TSR_E_NOMEM;
    if (ndim) memcpy(shape, c->entry->shape, ndim * sizeof *shape);
    const tsr_box whole = {ndim, NULL, shape};
    if (!is_cut) {
        uint64_t *zeros = tsr_arena_array(c->arena, ndim, sizeof *zeros, c->err);
        if (!zeros) return TSR_E_NOMEM;
        if (!tsr_box_is_empty(whole)) c->boxes[c->box_count++] = (tsr_shard_box){zeros, shape, zeros};
    } else {
        c->dim = tsr_shards_dim(c->rule, ndim);
        TSR_FAIL_IF(c->dim >= ndim, c->err, TSR_E_USAGE, "the rule '%.*s' splits dim %d of '%.*s', which has %u dims",
                    TSR_STR_ARG(c->rule->match), (int)c->rule->dim, TSR_STR_ARG(c->entry->fqn), ndim);
        TSR_TRY(c->rule->kind == TSR_SHARDS_STACK ? cut_index(c, &local) : cut_blocks(c, &local));
        shape[c->dim] = local;
        if (tsr_box_is_empty(whole)) c->box_count = 0;
    }
    *out = (tsr_shard){.ndim = ndim, .local_shape = shape, .boxes = c->boxes, .box_count = c->box_count};
    return TSR_OK;
}

tsr_status tsr_shards_holds(const tsr_shards_rule *rule, const tsr_entry *entry, tsr_tensor_rank of, bool *holds,
                            tsr_error *err)
{
    *holds = !rule || rule->kind != TSR_SHARDS_ONLY_RANK || rule->rank == of.rank;
    TSR_FAIL_IF(rule && rule->kind == TSR_SHARDS_ONLY_RANK && rule->rank >= of.ranks, err, TSR_E_USAGE,
                "the rule '%.*s' places '%.*s' on rank %u, but there are only %u ranks", TSR_STR_ARG(rule->match),
                TSR_STR_ARG(entry->fqn), rule->rank, of.ranks);
    return TSR_OK;
}

tsr_status tsr_shards_cut(const tsr_shards_rule *rule, const tsr_entry *entry, tsr_tensor_rank of, tsr_arena *arena,
                          tsr_shard *out, tsr_error *err)
{
    cutting c = {.rule = rule, .entry = entry, .ranks = of.ranks, .rank = of.rank, .arena = arena, .err = err};
    return cut(&c, out);
}
