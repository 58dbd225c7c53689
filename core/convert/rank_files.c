/* See rank_files.h. */
#include "convert/rank_files.h"

#include "formats/shards/shards_cut.h"
#include "formats/shards/shards_pattern.h"
#include "model/nest.h"
#include "tessera/sys/try.h"
#include "write/localize.h"

/* The digits that Meta and Megatron use for numbers of ranks. */
static const unsigned padded[TSR_CAPTURES] = {[TSR_CAPTURE_TP] = 2, [TSR_CAPTURE_PP] = 3, [TSR_CAPTURE_PART] = 1};
static const unsigned plain[TSR_CAPTURES] = {1, 1, 1};

static tsr_str pattern_of(const tsr_shards *map)
{
    if (map->ranks.size) return map->ranks;
    return map->stage_count ? TSR_STR("mp_rank_{tp}_{pp}/model_optim_rng.pt") : TSR_STR("rank{tp}.pt");
}

static bool is_padded(tsr_str pattern)
{
    return tsr_str_starts(pattern, TSR_STR("mp_rank_")) || tsr_str_starts(pattern, TSR_STR("consolidated."));
}

static tsr_status name_files(tsr_rank_files *f, tsr_error *err)
{
    tsr_arena *arena = f->job->arena;
    const tsr_str pattern = pattern_of(f->job->options->shards);
    f->names = tsr_arena_array(arena, f->count, sizeof *f->names, err);
    f->sizes = tsr_arena_array(arena, f->count, sizeof *f->sizes, err);
    if (!f->names || !f->sizes) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < f->count; i++) {
        const tsr_shards_numbers numbers = {{i % f->tensor_ranks, i / f->tensor_ranks, 0}};
        f->names[i] = tsr_shards_name(pattern, &numbers, is_padded(pattern) ? padded : plain, arena, err);
        if (!f->names[i].data) return TSR_E_NOMEM;
        TSR_FAIL_IF(i && tsr_str_equal(f->names[i], f->names[i - 1]), err, TSR_E_USAGE,
                    "ranks '%.*s' of %.*s names one file for several ranks; it needs {tp}, and also {pp} if there are "
                    "pipeline stages",
                    TSR_STR_ARG(pattern), TSR_STR_ARG(f->job->options->shards->name));
    }
    f->is_safetensors = tsr_str_ends(pattern, TSR_STR(".safetensors"));
    return TSR_OK;
}

tsr_status tsr_rank_files_open(const tsr_conversion_job *job, tsr_rank_files *out, tsr_error *err)
{
    const tsr_shards *map = job->options->shards;
    const uint32_t world = job->options->world_size;
    TSR_FAIL_IF(!map, err, TSR_E_USAGE,
                "writing one file per rank needs a map that describes how tensors are split; pass --shards FILE");
    TSR_FAIL_IF(
        map->family, err, TSR_E_USAGE,
        "the built-in map '%.*s' can only be used for reading; to write one file per rank, pass a tessera.shards/1 file",
        TSR_STR_ARG(map->name));
    out->job = job;
    out->stages = (tsr_shards_stages){.count = map->stage_count ? map->stage_count : 1, .layers = map->stage_layers};
    TSR_FAIL_IF(!world || world % out->stages.count, err, TSR_E_USAGE,
                "%u ranks cannot be divided into the %u pipeline stages of %.*s (--world-size)", world, out->stages.count,
                TSR_STR_ARG(map->name));
    TSR_FAIL_IF(world > UINT16_MAX, err, TSR_E_LIMIT, "%u ranks are too many to write files for", world);
    out->count = world;
    out->tensor_ranks = world / out->stages.count;
    if (map->stage_count) {
        TSR_TRY(tsr_shards_stages_of(map->stage_pattern, job->arena, &out->stages, err));
        TSR_TRY(tsr_shards_stages_number(&out->stages, job->arena, err));
    }
    return name_files(out, err);
}

/* Removes the dim of size 1 that stacking added. */
static tsr_status drop_dim(tsr_entry *local, uint32_t dim, tsr_arena *arena, tsr_error *err)
{
    const uint32_t ndim = local->ndim - 1;
    tsr_chunk *chunks = (tsr_chunk *)(uintptr_t)local->chunks;
    uint64_t *shape = tsr_arena_array(arena, ndim, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < ndim; d++) shape[d] = local->shape[d + (d >= dim)];
    for (uint64_t i = 0; i < local->chunk_count; i++) {
        uint64_t *numbers = tsr_arena_array(arena, ndim, 3 * sizeof *numbers, err);
        tsr_view *view = TSR_ARENA_NEW(arena, tsr_view, err);
        if (!numbers || !view) return TSR_E_NOMEM;
        *view = *chunks[i].view; /* the chunks of a local tensor are located, with strides */
        for (uint32_t d = 0; d < ndim; d++) {
            const uint32_t from = d + (d >= dim);
            numbers[d] = chunks[i].offsets[from];
            numbers[ndim + d] = chunks[i].sizes[from];
            numbers[2 * ndim + d] = view->strides[from];
        }
        view->strides = numbers + 2 * ndim;
        chunks[i].offsets = numbers;
        chunks[i].sizes = numbers + ndim;
        chunks[i].view = view;
    }
    local->shape = shape;
    local->ndim = ndim;
    return TSR_OK;
}

static tsr_status cut_tensor(const tsr_rank_files *f, const tsr_converted *row, uint32_t rank, tsr_arena *arena,
                             tsr_rank_row *out, tsr_error *err)
{
    tsr_shard shard;
    const tsr_entry *entry = row->entry;
    tsr_entry whole = *entry;
    tsr_packed packed;
    const tsr_tensor_rank of = {.rank = rank, .ranks = f->tensor_ranks};
    const tsr_shards_rule *rule = tsr_shards_rule_of(f->job->options->shards, row->name);
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    whole.fqn = row->name;
    whole.dtype = packed.dtype;
    whole.ndim = packed.ndim;
    whole.shape = packed.shape;
    TSR_TRY(tsr_shards_holds(rule, &whole, of, &out->held, err));
    if (!out->held) return TSR_OK;
    TSR_TRY(tsr_shards_cut(rule, &whole, of, arena, &shard, err));
    TSR_TRY(tsr_localize(f->job->checkpoint, entry, &shard, arena, &out->local, err));
    out->local.requires_grad = entry->requires_grad;
    out->local.is_parameter = entry->is_parameter;
    return rule && rule->kind == TSR_SHARDS_STACK ? drop_dim(&out->local, tsr_shards_dim(rule, whole.ndim), arena, err)
                                                  : TSR_OK;
}

tsr_status tsr_rank_row_of(const tsr_rank_files *f, uint64_t row_number, uint32_t file, tsr_arena *arena, tsr_rank_row *out,
                           tsr_error *err)
{
    const tsr_converted *row = &f->chosen.rows[row_number];
    *out = (tsr_rank_row){.named = *row->entry};
    TSR_TRY(tsr_renamed_path(row->entry, row->name, arena, &out->named.path, &out->named.path_length, err));
    out->named.fqn = row->name;
    TSR_TRY(tsr_shards_rename_back(&f->stages, file / f->tensor_ranks, arena, &out->named, &out->held, err));
    if (!out->held || row->entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    return cut_tensor(f, row, file % f->tensor_ranks, arena, out, err);
}
