/* A DCP folder for the target's ranks: every distinct shard once, in a file `__R_0.distcp` of a rank that holds it; objects
 * in rank 0's, before its tensors. */
#include <stdlib.h>

#include "base/try.h"
#include "convert/reshard_to.h"
#include "write/blit.h"
#include "write/dcp_write.h"

#include "tessera/sys/plan_items.h"

typedef struct gathering {
    const tsr_conversion_job *job;
    const tsr_plan *plan;
    tsr_chosen chosen;
    tsr_dcp_source *sources;
    size_t source_count;
    size_t *source_of; /* by row */
    tsr_vec pieces;    /* of ordered */
} gathering;

typedef struct ordered {
    tsr_dcp_piece piece;
    size_t order; /* objects, then tensors in the plan's order */
} ordered;

static tsr_dcp_piece *add_piece(gathering *g, tsr_error *err)
{
    ordered *o = tsr_vec_push(&g->pieces, err);
    if (o) o->order = g->pieces.count;
    return o ? &o->piece : NULL;
}

static tsr_status copy_numbers(tsr_arena *arena, const uint64_t *from, uint32_t count, const uint64_t **out, tsr_error *err)
{
    uint64_t *copy = tsr_arena_array(arena, count, sizeof *copy, err);
    if (!copy) return TSR_E_NOMEM;
    if (count) memcpy(copy, from, count * sizeof *copy);
    *out = copy;
    return TSR_OK;
}

static tsr_status add_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    gathering *g = ctx;
    tsr_converted *row = tsr_row_of(&g->chosen, tsr_plan_tensor_at(g->plan, tensor).entry);
    if (!row) return TSR_OK;
    row->file = (uint32_t)owner;
    for (uint64_t i = 0; i < shard->box_count; i++) {
        tsr_dcp_piece *piece = add_piece(g, err);
        if (!piece) return TSR_E_NOMEM;
        piece->source = g->source_of[row - g->chosen.rows];
        piece->file = (uint32_t)owner;
        TSR_TRY(copy_numbers(g->job->arena, shard->boxes[i].offsets, shard->rank, &piece->offsets, err));
        TSR_TRY(copy_numbers(g->job->arena, shard->boxes[i].sizes, shard->rank, &piece->sizes, err));
    }
    return TSR_OK;
}

static tsr_status gather_sources(gathering *g, tsr_error *err)
{
    const tsr_conversion_job *job = g->job;
    g->sources = tsr_arena_array(job->arena, (size_t)g->chosen.count, sizeof *g->sources, err);
    g->source_of = tsr_arena_array(job->arena, (size_t)g->chosen.count, sizeof *g->source_of, err);
    if (!g->sources || !g->source_of) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < g->chosen.count; i++) {
        if (!g->chosen.rows[i].written) continue;
        g->source_of[i] = g->source_count;
        TSR_TRY(tsr_dcp_source_of(job, &g->chosen.rows[i], &g->sources[g->source_count++], err));
        if (g->chosen.rows[i].entry->kind == TSR_ENTRY_TENSOR) continue;
        tsr_dcp_piece *piece = add_piece(g, err);
        if (!piece) return TSR_E_NOMEM;
        piece->source = g->source_of[i];
    }
    return TSR_OK;
}

static int by_file(const void *a, const void *b)
{
    const ordered *x = a, *y = b;
    if (x->piece.file != y->piece.file) return x->piece.file < y->piece.file ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_status sort_pieces(gathering *g, tsr_dcp_piece **out, tsr_error *err)
{
    ordered *pieces = g->pieces.items;
    *out = tsr_arena_array(g->job->arena, g->pieces.count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    if (g->pieces.count) qsort(pieces, g->pieces.count, sizeof *pieces, by_file);
    for (size_t i = 0; i < g->pieces.count; i++) (*out)[i] = pieces[i].piece;
    return TSR_OK;
}

static tsr_status name_files(const gathering *g, tsr_str **out, tsr_error *err)
{
    const uint32_t ranks = (uint32_t)tsr_plan_ranks(g->plan);
    *out = tsr_arena_array(g->job->arena, ranks, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < ranks; r++) {
        (*out)[r] = tsr_arena_format(g->job->arena, err, "__%u_%u.distcp", (unsigned)r, (unsigned)g->job->generation);
        if (!(*out)[r].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status lay_out(gathering *g, tsr_writer *out, tsr_error *err)
{
    const tsr_conversion_job *job = g->job;
    tsr_str *files;
    tsr_dcp_piece *pieces;
    TSR_TRY(gather_sources(g, err));
    TSR_TRY(tsr_plan_each_write(g->plan, add_shard, g, err));
    TSR_TRY(sort_pieces(g, &pieces, err));
    TSR_TRY(name_files(g, &files, err));
    tsr_dcp_job dcp = {.checkpoint = job->checkpoint,
                       .arena = job->arena,
                       .sources = g->sources,
                       .source_count = g->source_count,
                       .pieces = pieces,
                       .piece_count = g->pieces.count,
                       .files = files,
                       .file_count = (uint32_t)tsr_plan_ranks(g->plan)};
    TSR_TRY(tsr_dcp_lay_out(&dcp, out, err));
    *job->out = (tsr_conversion){.rows = g->chosen.rows,
                                 .row_count = g->chosen.count,
                                 .files = dcp.files,
                                 .file_sizes = dcp.file_sizes,
                                 .file_count = dcp.file_count,
                                 .marker = TSR_NO_FILE,
                                 .byte_total = dcp.byte_total};
    return TSR_OK;
}

tsr_status tsr_reshard_to_dcp(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    gathering g = {
        .job = job, .plan = plan, .pieces = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(ordered))};
    tsr_status status = tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &g.chosen, err);
    if (status == TSR_OK) status = tsr_leave_unplanned(&g.chosen, plan, err);
    if (status == TSR_OK) status = lay_out(&g, out, err);
    tsr_vec_free(&g.pieces);
    return status;
}
