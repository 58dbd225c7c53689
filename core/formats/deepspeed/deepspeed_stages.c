/* See deepspeed_stages.h. */
#include "formats/deepspeed/deepspeed_stages.h"

#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

#include <string.h>

enum { RUNS = 4, RUN = 256 }; /* RUNS are compared per weight; RUN is the number of elements in each */

/* Finds the position in the file of element `at` of a tensor, if it is in this chunk. *left is the number of elements from
 * there to the end of the chunk's row. */
static bool place_in(const tsr_entry *tensor, const tsr_chunk *chunk, uint64_t at, uint64_t *offset, uint64_t *left)
{
    uint64_t within = 0, stride = 1;
    *left = 1;
    for (uint32_t d = tensor->ndim; d-- > 0; at /= tensor->shape[d]) {
        const uint64_t coordinate = at % tensor->shape[d];
        if (coordinate < chunk->offsets[d] || coordinate - chunk->offsets[d] >= chunk->sizes[d]) return false;
        if (d + 1 == tensor->ndim) *left = chunk->offsets[d] + chunk->sizes[d] - coordinate;
        within += (coordinate - chunk->offsets[d]) * stride;
        stride *= chunk->sizes[d];
    }
    *offset = chunk->byte_offset + within * sizeof(float);
    return true;
}

static bool is_readable(const tsr_chunk *chunk)
{
    return chunk->file != TSR_NO_FILE && chunk->byte_length && (!chunk->view || tsr_view_is_plain(chunk->view));
}

/* Compares the beginning of a chunk with the same elements of another tensor. */
static tsr_status compare_run(tsr_store *store, const tsr_entry *a, const tsr_chunk *chunk, const tsr_entry *b, bool *same,
                              tsr_error *err)
{
    uint8_t x[RUN * sizeof(float)], y[sizeof x];
    uint64_t at = 0, offset = 0, left = 0, row, from;
    for (uint32_t d = 0; d < a->ndim; d++) at = at * a->shape[d] + chunk->offsets[d];
    if (!place_in(a, chunk, at, &from, &row)) return TSR_OK;
    uint64_t c = 0;
    while (c < b->chunk_count && !(is_readable(&b->chunks[c]) && place_in(b, &b->chunks[c], at, &offset, &left))) c++;
    if (c == b->chunk_count) return TSR_OK;
    uint64_t count = row < left ? row : left;
    if (count > RUN) count = RUN;
    TSR_TRY(tsr_store_read(store, chunk->file, from, x, (size_t)count * sizeof(float), err));
    TSR_TRY(tsr_store_read(store, b->chunks[c].file, offset, y, (size_t)count * sizeof(float), err));
    *same = memcmp(x, y, (size_t)count * sizeof(float)) == 0;
    return TSR_OK;
}

static tsr_status is_same(tsr_store *store, const tsr_entry *a, const tsr_entry *b, bool *same, tsr_error *err)
{
    uint32_t runs = 0;
    *same = true;
    if (a->dtype != TSR_FLOAT32 || b->dtype != TSR_FLOAT32 || !tsr_entry_same_shape(a, b)) return TSR_OK;
    for (uint64_t c = 0; c < a->chunk_count && *same && runs < RUNS; c++) {
        if (!is_readable(&a->chunks[c])) continue;
        TSR_TRY(compare_run(store, a, &a->chunks[c], b, same, err));
        runs++;
    }
    return TSR_OK;
}

static tsr_status rename_weight(const tsr_ds_weights *weights, tsr_ds_weight *weight, tsr_error *err)
{
    tsr_checkpoint *checkpoint = weights->files->checkpoint;
    const tsr_str name = tsr_arena_format(checkpoint->arena, err, "mp_rank_%02u.%.*s", weights->column->model_rank,
                                          TSR_STR_ARG(weight->name));
    const tsr_str file = tsr_ds_file_name(weights->files, weights->column->model);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_finding_add(
        checkpoint->findings, "parts/stages-differ", (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, err,
        "'%.*s' has other values than in an earlier stage of the pipeline; those of %.*s are listed as '%.*s'",
        TSR_STR_ARG(weight->name), TSR_STR_ARG(file), TSR_STR_ARG(name)));
    weight->name = name;
    return TSR_OK;
}

tsr_status tsr_ds_stages_rename(tsr_ds_weights *weights, const tsr_ds_rows *trained, const tsr_ds_rows *model, bool *renamed,
                                tsr_error *err)
{
    const tsr_ds_files *files = weights->files;
    *renamed = false;
    if (!files->has_layers || files->tensor_ranks > 1) return TSR_OK;
    for (uint32_t i = 0; i < weights->count; i++) {
        tsr_ds_weight *weight = &weights->weights[i];
        const tsr_entry *own = tsr_ds_tensor(tsr_ds_rows_get(trained, weight->name, TSR_STR("")));
        const tsr_entry *first = tsr_ds_tensor(tsr_ds_rows_get(model, weight->name, TSR_STR("")));
        bool same = true;
        if (own && first) TSR_TRY(is_same(files->checkpoint->store, own, first, &same, err));
        if (same) continue;
        TSR_TRY(rename_weight(weights, weight, err));
        *renamed = true;
    }
    return TSR_OK;
}
