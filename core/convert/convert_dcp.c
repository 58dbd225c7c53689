/* Writes a checkpoint as a DCP directory with one data file: first byte items, then whole tensors, in the order of the
 * source. */
#include "convert/convert_to.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"
#include "write/torch_plan.h"

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
        TSR_TRY(source->fragments ? tsr_fragment_boxes(source->entry, source->fragments, whole, add_box, p, err)
                                  : add_piece(p, NULL, err));
    }
    return TSR_OK;
}

tsr_status tsr_convert_to_dcp(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
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
