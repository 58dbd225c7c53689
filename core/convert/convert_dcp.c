/* Writes a checkpoint as a DCP directory with one data file: first byte items, then whole tensors, in the order of the
 * source. */
#include <stddef.h>

#include "convert/convert_to.h"
#include "tessera/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "write/torch_plan.h"

/* Calls `each` for the boxes in which a box of whole fragments is written: one box for all fragments along dim 0, and
 * separate boxes along the other dims. Stops at a status other than TSR_OK. */
static tsr_status fragment_boxes(const tsr_entry *entry, const uint64_t *fragments, tsr_box box,
                                 tsr_status (*each)(void *ctx, tsr_box box, tsr_error *err), void *ctx, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    uint32_t d;
    if (tsr_box_is_empty(box)) return each(ctx, box, err);
    for (uint32_t k = 0; k < box.ndim; k++) {
        offsets[k] = tsr_box_offset(box, k);
        sizes[k] = k ? entry->shape[k] / fragments[k] : box.sizes[k];
    }
    do {
        TSR_TRY(each(ctx, (tsr_box){box.ndim, offsets, sizes}, err));
        for (d = box.ndim; d > 0; d--) { /* moves along dim d - 1 */
            offsets[d - 1] += sizes[d - 1];
            if (offsets[d - 1] < tsr_box_offset(box, d - 1) + box.sizes[d - 1]) break;
            offsets[d - 1] = tsr_box_offset(box, d - 1);
        }
    } while (d > 0);
    return TSR_OK;
}

/* ---- a whole checkpoint ---- */

typedef struct placing {
    const tsr_dcp_rows *rows;
    tsr_vec pieces; /* of tsr_dcp_piece */
    size_t source;
} placing;

/* Adds a box of a tensor; NULL stands for the whole source. */
static tsr_status add_piece(placing *p, const tsr_box *box, tsr_error *err)
{
    tsr_dcp_piece *piece = tsr_vec_push(&p->pieces, err);
    if (!piece) return TSR_E_NOMEM;
    *piece = (tsr_dcp_piece){.source = p->source};
    if (!box) return TSR_OK;
    uint64_t *numbers = tsr_arena_array(p->rows->job->arena, 2 * (size_t)box->ndim, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < box->ndim; d++) {
        numbers[d] = tsr_box_offset(*box, d);
        numbers[box->ndim + d] = box->sizes[d];
    }
    piece->offsets = numbers;
    piece->sizes = numbers + box->ndim;
    return TSR_OK;
}

static tsr_status add_box(void *ctx, tsr_box box, tsr_error *err)
{
    return add_piece(ctx, &box, err);
}

/* The items of a sharded tensor subclass stay as they are. */
static tsr_status add_subclass(placing *p, const tsr_entry *entry, tsr_error *err)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        tsr_dcp_piece *piece = tsr_vec_push(&p->pieces, err);
        if (!piece) return TSR_E_NOMEM;
        *piece = (tsr_dcp_piece){.source = p->source,
                                 .offsets = entry->chunks[i].offsets,
                                 .sizes = entry->chunks[i].sizes,
                                 .value = entry->value->items[i]};
    }
    return TSR_OK;
}

static tsr_status place(placing *p, bool tensors, tsr_error *err)
{
    for (p->source = 0; p->source < p->rows->source_count; p->source++) {
        const tsr_dcp_output_entry *source = &p->rows->sources[p->source];
        const tsr_box whole = {source->entry->ndim, NULL, source->entry->shape};
        if ((source->entry->kind == TSR_ENTRY_TENSOR) != tensors) continue;
        if (!tensors && source->entry->is_sharded) {
            TSR_TRY(add_subclass(p, source->entry, err));
            continue;
        }
        TSR_TRY(source->fragments ? fragment_boxes(source->entry, source->fragments, whole, add_box, p, err)
                                  : add_piece(p, NULL, err));
    }
    return TSR_OK;
}

static tsr_status convert(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_dcp_rows rows;
    tsr_str *file = TSR_ARENA_NEW(job->arena, tsr_str, err);
    if (!file) return TSR_E_NOMEM;
    *file = tsr_arena_format(job->arena, err, "__0_%u.distcp", (unsigned)job->generation);
    if (!file->data) return TSR_E_NOMEM;
    TSR_TRY(tsr_dcp_rows_of(job, NULL, &rows, err));
    placing p = {.rows = &rows,
                 .pieces = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(tsr_dcp_piece))};
    tsr_status status = place(&p, false, err);
    if (status == TSR_OK) status = place(&p, true, err);
    tsr_dcp_piece *pieces = tsr_arena_array(job->arena, p.pieces.count, sizeof *pieces, err);
    if (pieces && p.pieces.count) memcpy(pieces, p.pieces.items, p.pieces.count * sizeof *pieces);
    const size_t count = p.pieces.count;
    tsr_vec_free(&p.pieces);
    TSR_TRY(status);
    const tsr_dcp_contents contents = {.pieces = pieces, .piece_count = count, .files = file, .file_count = 1};
    return pieces ? tsr_dcp_rows_lay_out(&rows, &contents, out, err) : TSR_E_NOMEM;
}

/* ---- for a plan ---- */

/* Writes a DCP directory for the target's ranks: every distinct shard once, in the file `__R_0.distcp` of a rank that holds
 * it, and objects in rank 0's file, before its tensors. */

typedef struct gathering {
    const tsr_plan *plan;
    tsr_dcp_rows rows;
    tsr_vec pieces; /* of tsr_dcp_piece: objects, then tensors in the plan's order */
    size_t source;  /* of the shard that is being split */
    uint32_t owner;
} gathering;

static tsr_status copy_numbers(tsr_arena *arena, const uint64_t *from, uint32_t count, const uint64_t **out, tsr_error *err)
{
    uint64_t *copy = tsr_arena_array(arena, count, sizeof *copy, err);
    if (!copy) return TSR_E_NOMEM;
    if (count) memcpy(copy, from, count * sizeof *copy);
    *out = copy;
    return TSR_OK;
}

static tsr_status add_shard_box(void *ctx, tsr_box box, tsr_error *err)
{
    gathering *g = ctx;
    tsr_dcp_piece *piece = tsr_vec_push(&g->pieces, err);
    if (!piece) return TSR_E_NOMEM;
    piece->source = g->source;
    piece->file = g->owner;
    TSR_TRY(copy_numbers(g->rows.job->arena, box.offsets, box.ndim, &piece->offsets, err));
    return copy_numbers(g->rows.job->arena, box.sizes, box.ndim, &piece->sizes, err);
}

/* The row of a tensor of the plan if it is written to the DCP; otherwise NULL. */
static tsr_converted *row_of(const gathering *g, uint64_t tensor)
{
    tsr_converted *row = tsr_row_of(&g->rows.chosen, tsr_plan_tensor_at(g->plan, tensor).entry);
    return row && !(g->rows.in_common && g->rows.in_common[row - g->rows.chosen.rows]) ? row : NULL;
}

static tsr_status add_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    gathering *g = ctx;
    tsr_converted *row = row_of(g, tensor);
    if (!row) return TSR_OK;
    row->file = (uint32_t)owner;
    g->owner = (uint32_t)owner;
    g->source = g->rows.first_source[row - g->rows.chosen.rows];
    const tsr_dcp_output_entry *source = &g->rows.sources[g->source];
    for (uint64_t i = 0; i < shard->box_count; i++) {
        const tsr_box box = {shard->ndim, shard->boxes[i].offsets, shard->boxes[i].sizes};
        TSR_TRY(source->fragments ? fragment_boxes(source->entry, source->fragments, box, add_shard_box, g, err)
                                  : add_shard_box(g, box, err));
    }
    return TSR_OK;
}

/* ---- fragments that the shards consist of ---- */

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Takes another box into account: reduces `steps`, the size of a fragment on each dim, so that the box's offsets and sizes
 * are multiples of it. */
static void fragment_steps(uint32_t ndim, uint64_t *steps, tsr_box box)
{
    if (tsr_box_is_empty(box)) return;
    for (uint32_t d = 0; d < ndim; d++)
        steps[d] = greatest_divisor(greatest_divisor(steps[d], tsr_box_offset(box, d)), box.sizes[d]);
}

static tsr_status narrow_steps(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    gathering *g = ctx;
    const tsr_converted *row = row_of(g, tensor);
    (void)owner, (void)err;
    if (!row) return TSR_OK;
    const tsr_dcp_output_entry *source = &g->rows.sources[g->rows.first_source[row - g->rows.chosen.rows]];
    for (uint64_t i = 0; source->fragments && i < shard->box_count; i++)
        fragment_steps(shard->ndim, (uint64_t *)source->fragments, /* allocated by open_steps */
                       (tsr_box){shard->ndim, shard->boxes[i].offsets, shard->boxes[i].sizes});
    return TSR_OK;
}

/* Begins with steps of whole dims. Dims divided into single elements are axes of layers or experts, which Megatron-Core puts
 * before a tensor's own dims; they stay divided. */
static tsr_status open_steps(gathering *g, tsr_error *err)
{
    for (size_t s = 0; s < g->rows.source_count; s++) {
        tsr_dcp_output_entry *source = &g->rows.sources[s];
        const uint32_t ndim = source->entry->ndim;
        uint64_t *steps = source->fragments ? tsr_arena_array(g->rows.job->arena, ndim, sizeof *steps, err) : NULL;
        if (!source->fragments) continue;
        if (!steps) return TSR_E_NOMEM;
        for (uint32_t d = 0; d < ndim; d++)
            steps[d] = source->fragments[d] == source->entry->shape[d] ? 1 : source->entry->shape[d];
        source->fragments = steps;
    }
    return TSR_OK;
}

static tsr_status cut_fragments(gathering *g, tsr_error *err)
{
    TSR_TRY(open_steps(g, err));
    TSR_TRY(tsr_plan_each_write(g->plan, narrow_steps, g, err));
    for (size_t s = 0; s < g->rows.source_count; s++) {
        const tsr_dcp_output_entry *source = &g->rows.sources[s];
        uint64_t *steps = (uint64_t *)source->fragments;
        for (uint32_t d = 0; steps && d < source->entry->ndim; d++)
            steps[d] = steps[d] ? source->entry->shape[d] / steps[d] : 1;
    }
    return TSR_OK;
}

/* ---- layout ---- */

static tsr_status add_objects(gathering *g, tsr_error *err)
{
    for (size_t s = 0; s < g->rows.source_count; s++) {
        if (g->rows.sources[s].entry->kind == TSR_ENTRY_TENSOR) continue;
        tsr_dcp_piece *piece = tsr_vec_push(&g->pieces, err);
        if (!piece) return TSR_E_NOMEM;
        piece->source = s;
    }
    return TSR_OK;
}

static tsr_status sort_pieces(gathering *g, tsr_dcp_piece **out, tsr_error *err)
{
    const tsr_dcp_piece *pieces = g->pieces.items;
    tsr_arena *arena = g->rows.job->arena;
    const size_t *order;
    TSR_TRY(tsr_order_by_file(&g->pieces, offsetof(tsr_dcp_piece, file), tsr_plan_ranks(g->plan), arena, &order, err));
    *out = tsr_arena_array(arena, g->pieces.count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < g->pieces.count; i++) (*out)[i] = pieces[order[i]];
    return TSR_OK;
}

static tsr_status name_files(const gathering *g, tsr_str **out, tsr_error *err)
{
    const uint32_t ranks = (uint32_t)tsr_plan_ranks(g->plan);
    *out = tsr_arena_array(g->rows.job->arena, ranks, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < ranks; r++) {
        (*out)[r] =
            tsr_arena_format(g->rows.job->arena, err, "__%u_%u.distcp", (unsigned)r, (unsigned)g->rows.job->generation);
        if (!(*out)[r].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status lay_out(gathering *g, tsr_writer *out, tsr_error *err)
{
    tsr_str *files;
    tsr_dcp_piece *pieces;
    TSR_TRY(cut_fragments(g, err));
    TSR_TRY(add_objects(g, err));
    TSR_TRY(tsr_plan_each_write(g->plan, add_shard, g, err));
    TSR_TRY(sort_pieces(g, &pieces, err));
    TSR_TRY(name_files(g, &files, err));
    const tsr_dcp_contents contents = {
        .pieces = pieces, .piece_count = g->pieces.count, .files = files, .file_count = (uint32_t)tsr_plan_ranks(g->plan)};
    return tsr_dcp_rows_lay_out(&g->rows, &contents, out, err);
}

static tsr_status reshard(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    gathering g = {.plan = plan,
                   .pieces = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(tsr_dcp_piece))};
    tsr_status status = tsr_dcp_rows_of(job, plan, &g.rows, err);
    if (status == TSR_OK) status = lay_out(&g, out, err);
    tsr_vec_free(&g.pieces);
    return status;
}

const tsr_container_writers tsr_dcp_writers = {convert, reshard};
