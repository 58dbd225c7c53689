#include "write/columns.h"

#define MOST_COLUMNS 64u

static bool is_as_stored(const tsr_blit *blit, const tsr_gather *gather)
{
    return !blit->literal && blit->offsets && blit->sizes && blit->byte_length && blit->entry == gather->entry &&
           (blit->dtype == gather->dtype || blit->dtype == gather->entry->dtype);
}

/* The only dim in which the offsets differ, if `b` begins where `a` ends; otherwise ndim. */
static uint32_t neighbor_dim(const tsr_blit *a, const tsr_blit *b, uint32_t ndim)
{
    uint32_t dim = ndim;
    for (uint32_t d = 0; d < ndim; d++) {
        if (a->offsets[d] == b->offsets[d]) continue;
        if (dim < ndim || b->offsets[d] != a->offsets[d] + a->sizes[d]) return ndim;
        dim = d;
    }
    for (uint32_t d = 0; d < ndim; d++)
        if (d != dim && a->sizes[d] != b->sizes[d]) return ndim;
    return dim;
}

void tsr_columns_find(const tsr_blit *blits, size_t count, const tsr_gather *gather, uint64_t most, tsr_column_set *out)
{
    const uint32_t ndim = gather->ndim;
    *out = (tsr_column_set){.count = 1, .itemsize = gather->itemsize, .inner = 1};
    if (gather->serial || count < 2 || !is_as_stored(blits, gather) || !is_as_stored(blits + 1, gather)) return;
    const uint32_t dim = out->dim = neighbor_dim(blits, blits + 1, ndim);
    if (dim == 0 || dim == ndim) return;
    for (uint32_t d = 0; d < ndim; d++) out->offsets[d] = blits->offsets[d];
    for (uint32_t d = 0; d < ndim; d++) out->sizes[d] = blits->sizes[d];
    for (uint32_t d = dim + 1; d < ndim; d++) out->inner *= blits->sizes[d];
    size_t n = 1;
    uint64_t size = blits->sizes[dim];
    while (n < count && n < MOST_COLUMNS && is_as_stored(&blits[n], gather) &&
           neighbor_dim(&blits[n - 1], &blits[n], ndim) == dim && (size + blits[n].sizes[dim]) * out->inner <= most)
        size += blits[n++].sizes[dim];
    out->sizes[dim] = size;
    out->row = size * out->inner;
    out->count = n;
}

size_t tsr_columns_size(const tsr_column_set *set)
{
    return set->count * sizeof(tsr_column);
}

size_t tsr_columns_memory(const tsr_column_set *set, size_t bytes)
{
    return bytes + set->count * TSR_COPY_SLACK;
}

static size_t width_of(const tsr_column_set *set, const tsr_blit *blit)
{
    return (size_t)(blit->sizes[set->dim] * set->inner * set->itemsize);
}

tsr_column *tsr_columns_start(const tsr_column_set *set, const tsr_blit *blits, const tsr_tiles *at, uint8_t *memory)
{
    tsr_column *columns = (tsr_column *)(void *)memory;
    const uint64_t before = at->first / set->row, rows = at->elements / set->row;
    for (size_t i = 0; i < set->count; i++) {
        const size_t width = width_of(set, &blits[i]);
        columns[i] = (tsr_column){.at = before * width, .bytes = (size_t)(rows * width)};
    }
    return columns;
}

void tsr_columns_place(const tsr_column_set *set, const tsr_blit *blits, uint8_t *memory, tsr_column *columns)
{
    for (size_t i = 0; i < set->count; i++) {
        columns[i].out = tsr_place_for_copy(memory, TSR_NO_POSITION, blits[i].byte_offset + columns[i].at);
        memory += columns[i].bytes + TSR_COPY_SLACK;
    }
}

void tsr_columns_cut(const tsr_column_set *set, const tsr_blit *blits, const uint8_t *band, size_t bytes,
                     const tsr_column *columns)
{
    const size_t row = (size_t)(set->row * set->itemsize);
    for (size_t i = 0; i < set->count; band += width_of(set, &blits[i++])) {
        const size_t width = width_of(set, &blits[i]);
        for (size_t r = 0; r < bytes / row; r++) memcpy(columns[i].out + r * width, band + r * row, width);
    }
}
