/* Tensors that a map leaves out as the same ones as others, as config.json states: whether their values are the same. */
#include "mapping/mapped.h"
#include "tessera/read.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"

enum { PIECE = 1 << 20 };

/* Rows [first, first + rows) of a tensor, or the whole of one that has no dims. */
static tsr_box rows_of(const tsr_entry *entry, uint64_t first, uint64_t rows, uint64_t *numbers)
{
    for (uint32_t d = 0; d < entry->ndim; d++) numbers[d] = 0, numbers[TSR_MAX_NDIM + d] = entry->shape[d];
    if (entry->ndim) numbers[0] = first, numbers[TSR_MAX_NDIM] = rows;
    return (tsr_box){entry->ndim, numbers, numbers + TSR_MAX_NDIM};
}

static tsr_status check_repeats(tsr_checkpoint *source, const tsr_tied *tied, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_repeats_open(&repeats, source);
    tsr_status status = tsr_repeats_add(&repeats, tied->left_out, NULL, NULL, NULL, err);
    if (status == TSR_OK) status = tsr_repeats_add(&repeats, tied->kept, NULL, NULL, NULL, err);
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

static tsr_status refuse(const tsr_mapped *m, const tsr_tied *tied, uint64_t row, tsr_error *err)
{
    return tsr_fail(
        err, TSR_E_FORMAT,
        "tie_word_embeddings of %s is true, but '%.*s' and '%.*s' differ, first in row %llu; set it to false to keep both",
        m->config_name, TSR_STR_ARG(tied->left_out->fqn), TSR_STR_ARG(tied->kept->fqn), (unsigned long long)row);
}

static tsr_status compare(const tsr_mapped *m, const tsr_tied *tied, uint64_t row_bytes, uint8_t *buffer, tsr_error *err)
{
    const uint64_t count = tied->kept->ndim ? tied->kept->shape[0] : 1, most = row_bytes < PIECE ? PIECE / row_bytes : 1;
    uint64_t numbers[2 * TSR_MAX_NDIM];
    for (uint64_t row = 0; row < count; row += most) {
        const uint64_t rows = count - row < most ? count - row : most;
        const size_t size = (size_t)(rows * row_bytes);
        const tsr_box box = rows_of(tied->kept, row, rows, numbers);
        TSR_TRY(tsr_read_box(m->source, tied->kept, box, buffer, size, err));
        TSR_TRY(tsr_read_box(m->source, tied->left_out, box, buffer + size, size, err));
        for (uint64_t i = 0; i < rows; i++)
            if (memcmp(buffer + i * row_bytes, buffer + size + i * row_bytes, (size_t)row_bytes))
                return refuse(m, tied, row + i, err);
    }
    return TSR_OK;
}

static tsr_status check(const tsr_mapped *m, tsr_error *err)
{
    const tsr_tied *tied = &m->tied;
    uint64_t bytes;
    TSR_TRY(tsr_tensor_bytes(tied->kept, &bytes, err));
    const uint64_t count = tied->kept->ndim ? tied->kept->shape[0] : 1, row_bytes = count ? bytes / count : 0;
    if (!row_bytes) return TSR_OK;
    TSR_TRY(check_repeats(m->source, tied, err));
    const size_t capacity = (size_t)(row_bytes < PIECE ? PIECE : row_bytes);
    uint8_t *buffer = tsr_alloc(m->own->host->allocator, 2 * capacity, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    const tsr_status status = compare(m, tied, row_bytes, buffer, err);
    tsr_free(m->own->host->allocator, buffer, 2 * capacity, 1);
    return status;
}

tsr_status tsr_mapping_check_tied(const tsr_checkpoint *mapped, tsr_error *err)
{
    for (const tsr_mapped *m = tsr_mapped_state(mapped); m; m = tsr_mapped_state(m->source))
        if (m->tied.left_out) TSR_TRY(check(m, err));
    return TSR_OK;
}
