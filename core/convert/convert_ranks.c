/* Writes plain tensors to one file per rank, split by a map of shards: the inverse of reading such files. Each torch.save
 * file is a stage, laid out when it is needed; safetensors files are laid out together. A tensor is split into blocks in the same way in
 * which shards_join.c joins them. */
#include <inttypes.h>

#include "base/cursor.h"
#include "convert/convert_to.h"
#include "formats/shards/shards_join.h"
#include "formats/torch/torch_loadable.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"
#include "write/safetensors_write.h"
#include "write/torch_plan.h"

/* ---- what a rank holds ---- */

/* A rank, and the number of ranks, of tensor parallelism. */
typedef struct tensor_rank {
    uint32_t rank, ranks;
} tensor_rank;

typedef struct cutting {
    const tsr_shards_rule *rule;
    const tsr_entry *entry;
    uint32_t ranks, rank, dim;
    tsr_arena *arena;
    tsr_shard_box *boxes;
    uint64_t box_count;
    tsr_error *err;
} cutting;

/* The dimension along which STACK stacks. */
static uint32_t dim_of(const tsr_shards_rule *rule, uint32_t ndim)
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
        c->dim = dim_of(c->rule, ndim);
        TSR_FAIL_IF(c->dim >= ndim, c->err, TSR_E_USAGE, "the rule '%.*s' splits dim %d of '%.*s', which has %u dims",
                    TSR_STR_ARG(c->rule->match), (int)c->rule->dim, TSR_STR_ARG(c->entry->fqn), ndim);
        TSR_TRY(c->rule->kind == TSR_SHARDS_STACK ? cut_index(c, &local) : cut_blocks(c, &local));
        shape[c->dim] = local;
        if (tsr_box_is_empty(whole)) c->box_count = 0;
    }
    *out = (tsr_shard){.ndim = ndim, .local_shape = shape, .boxes = c->boxes, .box_count = c->box_count};
    return TSR_OK;
}

/* Whether the rank holds any part of a tensor according to a rule (or NULL). With ONLY_RANK, only one rank does. Fails with
 * TSR_E_USAGE if that rank does not exist. */
static tsr_status holds_any(const tsr_shards_rule *rule, const tsr_entry *entry, tensor_rank of, bool *holds, tsr_error *err)
{
    *holds = !rule || rule->kind != TSR_SHARDS_ONLY_RANK || rule->rank == of.rank;
    TSR_FAIL_IF(rule && rule->kind == TSR_SHARDS_ONLY_RANK && rule->rank >= of.ranks, err, TSR_E_USAGE,
                "the rule '%.*s' places '%.*s' on rank %u, but there are only %u ranks", TSR_STR_ARG(rule->match),
                TSR_STR_ARG(entry->fqn), rule->rank, of.ranks);
    return TSR_OK;
}

/* The shard of a rank that holds some of the tensor, in `arena`. With STACK, the shard has size 1 along `dim`, a dimension
 * that the rank's tensor does not have. Fails with TSR_E_USAGE and the tensor's name if it cannot be split evenly. */
static tsr_status shard_of(const tsr_shards_rule *rule, const tsr_entry *entry, tensor_rank of, tsr_arena *arena,
                           tsr_shard *out, tsr_error *err)
{
    cutting c = {.rule = rule, .entry = entry, .ranks = of.ranks, .rank = of.rank, .arena = arena, .err = err};
    return cut(&c, out);
}

typedef struct tsr_rank_files {
    const tsr_conversion_job *job;
    tsr_chosen chosen;
    tsr_shards_stages stages;
    uint32_t tensor_ranks, count; /* the files are numbered stage by stage */
    tsr_str *names;
    uint64_t *sizes;
    bool is_safetensors;
} tsr_rank_files;

/* One row in the file of a rank. */
typedef struct tsr_rank_row {
    bool held;
    tsr_entry named; /* the row's entry, with the name that it has in the file */
    tsr_entry local; /* for tensors: what the rank holds */
} tsr_rank_row;

/* ---- rank files ---- */

/* The files of ranks with plain tensors: their names, and what each rank holds of every row. */

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

/* Checks the map and the number of ranks, and names the files, after the rows were chosen. TSR_E_USAGE. */
static tsr_status rank_files_open(const tsr_conversion_job *job, tsr_rank_files *out, tsr_error *err)
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
    const tensor_rank of = {.rank = rank, .ranks = f->tensor_ranks};
    const tsr_shards_rule *rule = tsr_shards_rule_of(f->job->options->shards, row->name);
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    whole.fqn = row->name;
    whole.dtype = packed.dtype;
    whole.ndim = packed.ndim;
    whole.shape = packed.shape;
    TSR_TRY(holds_any(rule, &whole, of, &out->held, err));
    if (!out->held) return TSR_OK;
    TSR_TRY(shard_of(rule, &whole, of, arena, &shard, err));
    TSR_TRY(tsr_localize(f->job->checkpoint, entry, &shard, arena, &out->local, err));
    out->local.requires_grad = entry->requires_grad;
    out->local.is_parameter = entry->is_parameter;
    return rule && rule->kind == TSR_SHARDS_STACK ? drop_dim(&out->local, dim_of(rule, whole.ndim), arena, err) : TSR_OK;
}

/* Row `row`, which must be written, in the file `file`. Allocates in `arena`. */
static tsr_status rank_row_of(const tsr_rank_files *f, uint64_t row_number, uint32_t file, tsr_arena *arena,
                              tsr_rank_row *out, tsr_error *err)
{
    const tsr_converted *row = &f->chosen.rows[row_number];
    *out = (tsr_rank_row){.named = *row->entry};
    TSR_TRY(tsr_renamed_path(row->entry, row->name, arena, &out->named.path, &out->named.path_length, err));
    out->named.fqn = row->name;
    TSR_TRY(tsr_shards_rename_back(&f->stages, file / f->tensor_ranks, arena, &out->named, &out->held, err));
    if (!out->held || row->entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    return cut_tensor(f, row, file % f->tensor_ranks, arena, out, err);
}

/* ---- torch.save ---- */

typedef struct rank_file {
    const tsr_rank_files *all;
    uint32_t number;
    tsr_arena *arena;
    tsr_rank_row *rows;
} rank_file;

static tsr_status nest_rank(rank_file *f, const tsr_value **root, tsr_error *err)
{
    tsr_chosen chosen = f->all->chosen;
    const size_t count = (size_t)chosen.count;
    const tsr_value **values = tsr_arena_array(f->arena, count, sizeof *values, err);
    tsr_converted *rows = tsr_arena_array(f->arena, count, sizeof *rows, err);
    f->rows = tsr_arena_array(f->arena, count, sizeof *f->rows, err);
    if (!values || !rows || !f->rows) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        rows[i] = chosen.rows[i];
        if (!rows[i].written) continue;
        TSR_TRY(rank_row_of(f->all, i, f->number, f->arena, &f->rows[i], err));
        rows[i].entry = &f->rows[i].named;
        rows[i].name = f->rows[i].named.fqn;
        if (!f->rows[i].held) continue;
        const bool is_tensor = rows[i].entry->kind == TSR_ENTRY_TENSOR;
        values[i] = is_tensor ? tsr_value_tensor(f->arena, &f->rows[i].local, err) : rows[i].entry->value;
        if (!values[i]) return TSR_E_NOMEM;
    }
    chosen.rows = rows;
    return tsr_nest_rows(&chosen, values, f->arena, root, err);
}

static tsr_status stage_of_torch(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    tsr_rank_files *all = ctx;
    rank_file f = {.all = all, .number = number, .arena = arena};
    tsr_torch_plan *plan = TSR_ARENA_NEW(arena, tsr_torch_plan, err);
    const tsr_value *root;
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(nest_rank(&f, &root, err));
    TSR_TRY(tsr_torch_plan_open(all->job->checkpoint, root, arena, plan, err));
    plan->unsummed = all->job->options->no_checksums;
    for (uint64_t i = 0; i < all->chosen.count; i++) {
        tsr_torch_tensor *source = all->chosen.rows[i].cast ? tsr_torch_plan_source(plan, &f.rows[i].local) : NULL;
        if (source) source->dtype = all->chosen.rows[i].dtype;
    }
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    const bool is_first_time = all->sizes[number] == 0;
    for (uint32_t i = 0; i < plan->storage_count && is_first_time; i++)
        all->job->out->byte_total += plan->write_items[i].byte_length;
    all->sizes[number] = plan->archive.size;
    *out = tsr_torch_plan_stage(plan, number);
    return TSR_OK;
}

/* ---- safetensors ---- */

typedef struct all_files {
    tsr_rank_files *ranks;
    tsr_safetensors_output *pieces;
    size_t count;
    tsr_safetensors_file *files;
    tsr_safetensors_layout layout;
} all_files;

static tsr_status add_pieces(all_files *a, uint32_t file, tsr_error *err)
{
    const tsr_rank_files *r = a->ranks;
    const tsr_catalog *source = tsr_checkpoint_catalog(r->job->checkpoint);
    a->files[file].name = r->names[file];
    TSR_TRY(tsr_safetensors_carry((tsr_text_pairs){source->metadata, source->metadata_count}, (tsr_text_pairs){NULL, 0},
                                  r->job->arena, &a->files[file], err));
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        const tsr_converted *row = &r->chosen.rows[i];
        if (!row->written) continue;
        tsr_rank_row *held = TSR_ARENA_NEW(r->job->arena, tsr_rank_row, err);
        if (!held) return TSR_E_NOMEM;
        TSR_TRY(rank_row_of(r, i, file, r->job->arena, held, err));
        if (!held->held) continue;
        a->pieces[a->count++] = (tsr_safetensors_output){.entry = &held->local,
                                                         .name = held->named.fqn,
                                                         .dtype = row->cast ? row->dtype : held->local.dtype,
                                                         .file = file};
    }
    return TSR_OK;
}

static tsr_status lay_out_safetensors(tsr_rank_files *r, tsr_writer *out, tsr_error *err)
{
    tsr_arena *arena = r->job->arena;
    all_files *a = TSR_ARENA_NEW(arena, all_files, err);
    if (!a) return TSR_E_NOMEM;
    a->ranks = r;
    a->pieces = tsr_arena_array(arena, (size_t)r->chosen.tensor_count * r->count, sizeof *a->pieces, err);
    a->files = tsr_arena_array(arena, r->count, sizeof *a->files, err);
    if (!a->pieces || !a->files) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < r->count; f++) TSR_TRY(add_pieces(a, f, err));
    const bool unsummed = r->job->options->no_checksums;
    a->layout = (tsr_safetensors_layout){
        .pieces = a->pieces, .piece_count = a->count, .files = a->files, .file_count = r->count, .unsummed = unsummed};
    TSR_TRY(tsr_safetensors_lay_out(&a->layout, tsr_checkpoint_host(r->job->checkpoint), arena, err));
    for (uint32_t f = 0; f < r->count; f++) {
        r->sizes[f] = a->files[f].size;
        r->job->out->byte_total += a->files[f].plan.data_size;
    }
    *out = (tsr_writer){
        .stage_count = 1, .crc = !unsummed, .marker = TSR_NO_FILE, .stage = tsr_safetensors_stage, .ctx = &a->layout};
    return TSR_OK;
}

/* ---- both ---- */

static tsr_status report(const tsr_rank_files *r, tsr_error *err)
{
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        tsr_converted *row = &r->chosen.rows[i];
        row->copied = false; /* the tensors in a rank's file do not share storage, even if they did in the source */
        if (!row->written) continue;
        if (row->entry->kind == TSR_ENTRY_TENSOR)
            TSR_TRY(tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err));
        else row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(r->job->checkpoint));
    }
    *r->job->out = (tsr_conversion){.rows = r->chosen.rows,
                                    .row_count = r->chosen.count,
                                    .files = r->names,
                                    .file_sizes = r->sizes,
                                    .file_count = r->count,
                                    .marker = TSR_NO_FILE};
    return TSR_OK;
}

static tsr_status convert(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_rank_files *r = TSR_ARENA_NEW(job->arena, tsr_rank_files, err);
    if (!r) return TSR_E_NOMEM;
    TSR_TRY(rank_files_open(job, r, err));
    TSR_TRY(tsr_choose(job->checkpoint, job->options, r->is_safetensors ? tsr_safetensors_refusal : tsr_torch_refusal,
                       job->arena, &r->chosen, err));
    TSR_TRY(report(r, err));
    if (r->is_safetensors) return lay_out_safetensors(r, out, err);
    *out = (tsr_writer){.stage_count = r->count,
                        .crc = !job->options->no_checksums,
                        .marker = TSR_NO_FILE,
                        .stage = stage_of_torch,
                        .ctx = r};
    return TSR_OK;
}

const tsr_container_writers tsr_ranks_writers = {convert, NULL};
