/* Compares a part with its place in the whole, in tiles of bounded size that are halved until they fit. Coordinates are the
 * part's, with its dims in the order of the whole's. */
#include <string.h>

#include "suggest/map_suggest_parts.h"
#include "tessera/sys/try.h"

enum { TILE_BYTES = 4 << 20 };

/* One tensor of the part and the tensor of the whole that should hold it. */
typedef struct placed {
    const tsr_fused_place *place;
    const tsr_entry *whole, *part;
    uint64_t index; /* the index of the whole's first dim, if folded */
    uint32_t item;
} placed;

typedef struct tile {
    uint64_t low[TSR_MAX_NDIM], high[TSR_MAX_NDIM];
} tile;

/* Where element `x` along the dim is in the whole. */
static uint64_t in_whole(const tsr_fused_place *at, uint64_t x)
{
    return x / at->size * at->total + at->offset + x % at->size;
}

static uint64_t whole_size(const placed *p, const tile *t, uint32_t d)
{
    if (d != p->place->dim) return t->high[d] - t->low[d];
    return in_whole(p->place, t->high[d] - 1) + 1 - in_whole(p->place, t->low[d]);
}

static uint64_t whole_bytes(const placed *p, const tile *t)
{
    uint64_t bytes = p->item;
    for (uint32_t d = 0; d < p->part->ndim; d++) bytes *= whole_size(p, t, d);
    return bytes;
}

/* ---- reading and comparing a tile ---- */

static tsr_status read_whole(const placed *p, const tile *t, void *out, tsr_error *err)
{
    const uint32_t folded = p->place->folded, ndim = p->whole->ndim;
    uint64_t offsets[TSR_MAX_NDIM] = {p->index}, sizes[TSR_MAX_NDIM] = {1};
    for (uint32_t d = 0; d < p->part->ndim; d++) {
        offsets[d + folded] = d == p->place->dim ? in_whole(p->place, t->low[d]) : t->low[d];
        sizes[d + folded] = whole_size(p, t, d);
    }
    return tsr_read_box(p->place->of_whole, p->whole, (tsr_box){ndim, offsets, sizes}, out, (size_t)whole_bytes(p, t), err);
}

static tsr_status read_part(const placed *p, const tile *t, void *out, tsr_error *err)
{
    const uint32_t ndim = p->part->ndim;
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], bytes = p->item;
    for (uint32_t d = 0; d < ndim; d++) {
        const uint32_t own = tsr_turned_dim(p->place->turned, ndim, d);
        offsets[own] = t->low[d];
        sizes[own] = t->high[d] - t->low[d];
        bytes *= sizes[own];
    }
    return tsr_read_box(p->place->of_parts, p->part, (tsr_box){ndim, offsets, sizes}, out, (size_t)bytes, err);
}

/* Exchanges the last two dims of `count` matrices of rows x columns. */
static void turn(const unsigned char *from, unsigned char *to, uint64_t count, const uint64_t *sizes, uint32_t item)
{
    const uint64_t rows = sizes[0], columns = sizes[1];
    for (uint64_t n = 0; n < count; n++, from += rows * columns * item)
        for (uint64_t j = 0; j < columns; j++)
            for (uint64_t i = 0; i < rows; i++, to += item) memcpy(to, from + (i * columns + j) * item, item);
}

/* Compares the packed bytes of the tile, run by run. */
static bool same_runs(const placed *p, const tile *t, const unsigned char *whole, const unsigned char *part)
{
    const uint32_t dim = p->place->dim;
    uint64_t outer = 1, inner = p->item;
    for (uint32_t d = 0; d < dim; d++) outer *= t->high[d] - t->low[d];
    for (uint32_t d = dim + 1; d < p->part->ndim; d++) inner *= t->high[d] - t->low[d];
    const uint64_t size = p->place->size, gap = p->place->total - size, row = whole_size(p, t, dim) * inner;
    for (uint64_t o = 0; o < outer; o++, whole += row) {
        uint64_t run = size - t->low[dim] % size, at = 0;
        for (uint64_t x = t->low[dim]; x < t->high[dim]; x += run, at += run + gap, part += run * inner, run = size) {
            if (run > t->high[dim] - x) run = t->high[dim] - x;
            if (memcmp(whole + at * inner, part, (size_t)(run * inner))) return false;
        }
    }
    return true;
}

/* `space` has room for three tiles. */
static tsr_status compare_tile(const placed *p, const tile *t, unsigned char *space, bool *same, tsr_error *err)
{
    const uint32_t ndim = p->part->ndim;
    unsigned char *part = space + TILE_BYTES;
    TSR_TRY(read_whole(p, t, space, err));
    TSR_TRY(read_part(p, t, part, err));
    if (p->place->turned) {
        const uint64_t sizes[] = {t->high[ndim - 1] - t->low[ndim - 1], t->high[ndim - 2] - t->low[ndim - 2]};
        uint64_t count = 1;
        for (uint32_t d = 0; d + 2 < ndim; d++) count *= t->high[d] - t->low[d];
        turn(part, space + 2 * TILE_BYTES, count, sizes, p->item);
        part = space + 2 * TILE_BYTES;
    }
    *same = same_runs(p, t, space, part);
    return TSR_OK;
}

/* ---- halving ---- */

/* The dim with the most elements in the whole, and where to cut it: between two runs if there are several. */
static uint32_t choose_cut(const placed *p, const tile *t, uint64_t *at)
{
    uint32_t longest = 0;
    for (uint32_t d = 1; d < p->part->ndim; d++)
        if (whole_size(p, t, d) > whole_size(p, t, longest)) longest = d;
    *at = t->low[longest] + (t->high[longest] - t->low[longest]) / 2;
    const uint64_t run = *at / p->place->size * p->place->size;
    if (longest == p->place->dim && run > t->low[longest]) *at = run;
    return longest;
}

static tsr_status compare_halves(const placed *p, const tile *t, unsigned char *space, bool *same, tsr_error *err)
{
    uint64_t at;
    if (whole_bytes(p, t) <= TILE_BYTES) return compare_tile(p, t, space, same, err);
    const uint32_t d = choose_cut(p, t, &at);
    tile half = *t;
    half.high[d] = at;
    TSR_TRY(compare_halves(p, &half, space, same, err));
    if (!*same) return TSR_OK;
    half = *t;
    half.low[d] = at;
    return compare_halves(p, &half, space, same, err);
}

/* ---- the tensors of the part ---- */

static tsr_status compare_all(const tsr_fused_place *at, const tsr_name_family *whole, const tsr_name_family *part,
                              unsigned char *space, bool *same, tsr_error *err)
{
    const tsr_pattern_member *x = part->members.items, *y = whole->members.items;
    const uint64_t each = at->folded ? y->entry->shape[0] : 1;
    *same = true;
    for (size_t i = 0; i < part->members.count && *same; i++) {
        const placed p = {at, y[i / each].entry, x[i].entry, i % each, tsr_dtype_size(x[i].entry->dtype)};
        tile t = {{0}, {0}};
        *same = tsr_entry_is_dense(p.whole) && tsr_entry_is_dense(p.part);
        for (uint32_t d = 0; d < p.part->ndim; d++) t.high[d] = p.part->shape[tsr_turned_dim(at->turned, p.part->ndim, d)];
        if (*same) TSR_TRY(compare_halves(&p, &t, space, same, err));
    }
    return TSR_OK;
}

tsr_status tsr_fused_holds(const tsr_fused_place *at, const tsr_name_family *whole, const tsr_name_family *part, bool *same,
                           tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(at->of_whole)->allocator;
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    unsigned char *space = arena ? tsr_arena_array(arena, 3, TILE_BYTES, err) : NULL;
    const tsr_status status = space ? compare_all(at, whole, part, space, same, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}
