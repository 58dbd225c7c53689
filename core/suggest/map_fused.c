/* Finds tensors of one checkpoint that are several tensors of the other joined, one after the other or in turns: q, k and v, for example. */
#include <string.h>

#include "suggest/map_suggest_parts.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* Where a part may be in a whole: `size` elements from `offset` on in each run of `total` elements along dim `dim`, which is
 * counted without the first dim of the whole if folded. */
typedef struct fused_place {
    tsr_checkpoint *of_whole, *of_parts;
    uint64_t runs, total, size, offset;
    uint32_t dim;
    bool folded, turned;
} fused_place;
/* The dim that becomes dim `d` if the last two of `ndim` dims are exchanged, or `d` if they are not. */
static uint32_t turned_dim(bool turned, uint32_t ndim, uint32_t d)
{
    return turned && d + 2 >= ndim ? 2 * ndim - 3 - d : d;
}

/* ---- lines: where they differ, no other values need to be compared ---- */

/* The first elements along one dim of a tensor, whose comparison rules out most places at little cost. */
typedef struct line_of {
    const unsigned char *data;
    uint64_t count;
    uint32_t item;
} line_of;

enum { MOST_ELEMENTS = 4096 };

/* Whether the tensor has elements, of whole bytes each. */
static bool is_dense(const tsr_entry *entry)
{
    uint64_t bytes, elements = tsr_dtype_size(entry->dtype);
    for (uint32_t d = 0; d < entry->ndim; d++) elements *= entry->shape[d]; /* cannot overflow: it is a tensor */
    return elements && tsr_tensor_bytes(entry, &bytes, NULL) == TSR_OK && bytes == elements;
}

/* The line along dim `dim` through the first element; its count is 0 if the tensor is not dense. */
static tsr_status read_line(tsr_checkpoint *checkpoint, const tsr_entry *entry, uint32_t dim, tsr_arena *arena, line_of *out,
                            tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM];
    *out = (line_of){.item = tsr_dtype_size(entry->dtype)};
    if (!is_dense(entry)) return TSR_OK;
    for (uint32_t d = 0; d < entry->ndim; d++) sizes[d] = 1;
    out->count = sizes[dim] = entry->shape[dim] < MOST_ELEMENTS ? entry->shape[dim] : MOST_ELEMENTS;
    void *data = tsr_arena_array(arena, (size_t)out->count, out->item, err);
    if (!data) return TSR_E_NOMEM;
    out->data = data;
    return tsr_read_box(checkpoint, entry, (tsr_box){entry->ndim, offsets, sizes}, data, (size_t)out->count * out->item,
                        err);
}

/* Whether the lines allow the part to be there. */
static bool lines_agree(const line_of *whole, const line_of *part, const fused_place *at)
{
    for (uint64_t run = 0; run < at->runs; run++) {
        const uint64_t from = run * at->size, to = run * at->total + at->offset;
        if (from >= part->count || to >= whole->count) return true;
        uint64_t most = at->size;
        if (most > part->count - from) most = part->count - from;
        if (most > whole->count - to) most = whole->count - to;
        if (memcmp(whole->data + to * whole->item, part->data + from * part->item, (size_t)(most * part->item)))
            return false;
    }
    return true;
}

/* ---- values ---- */

/* Compares a part with its place in the whole, in tiles of bounded size that are halved until they fit. Coordinates are the
 * part's, with its dims in the order of the whole's. */

enum { TILE_BYTES = 4 << 20 };

/* One tensor of the part and the tensor of the whole that should hold it. */
typedef struct placed {
    const fused_place *place;
    const tsr_entry *whole, *part;
    uint64_t index; /* the index of the whole's first dim, if folded */
    uint32_t item;
} placed;

typedef struct tile {
    uint64_t low[TSR_MAX_NDIM], high[TSR_MAX_NDIM];
} tile;

/* Where element `x` along the dim is in the whole. */
static uint64_t in_whole(const fused_place *at, uint64_t x)
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
        const uint32_t own = turned_dim(p->place->turned, ndim, d);
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

static tsr_status compare_all(const fused_place *at, const tsr_name_family *whole, const tsr_name_family *part,
                              unsigned char *space, bool *same, tsr_error *err)
{
    const tsr_pattern_member *x = part->members.items, *y = whole->members.items;
    const uint64_t each = at->folded ? y->entry->shape[0] : 1;
    *same = true;
    for (size_t i = 0; i < part->members.count && *same; i++) {
        const placed p = {at, y[i / each].entry, x[i].entry, i % each, tsr_dtype_size(x[i].entry->dtype)};
        tile t = {{0}, {0}};
        *same = is_dense(p.whole) && is_dense(p.part);
        for (uint32_t d = 0; d < p.part->ndim; d++) t.high[d] = p.part->shape[turned_dim(at->turned, p.part->ndim, d)];
        if (*same) TSR_TRY(compare_halves(&p, &t, space, same, err));
    }
    return TSR_OK;
}

/* Whether all values of the part are there, bit for bit, in bounded memory. */
static tsr_status holds_values(const fused_place *at, const tsr_name_family *whole, const tsr_name_family *part, bool *same,
                               tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(at->of_whole)->allocator;
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    unsigned char *space = arena ? tsr_arena_array(arena, 3, TILE_BYTES, err) : NULL;
    const tsr_status status = space ? compare_all(at, whole, part, space, same, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

/* ---- fused ---- */

/* Finds tensors of one checkpoint that are concatenations of several tensors of the other one: q, k and v, or gate and up,
 * with experts stacked or not, transposed or not.
 *
 *   whole  ┌───────┬───┬───┐      each part is looked for where the previous one ended: only the values show
 *          │   q   │ k │ v │      which part follows
 *          └───────┴───┴───┘
 *          ┌───┬─┬─┬───┬─┬─┐      in runs: Megatron's q, k and v of each group of heads, or a row of gate and one of up
 *          │q 0│k│v│q 1│k│v│      in turns
 *          └───┴─┴─┴───┴─┴─┘ */

static const tsr_pattern_member *members_of(const tsr_name_family *family)
{
    return family->members.items;
}

/* Whether the numbers are the same, except for the last number of the parts, which counts experts. */
static bool same_numbers(const tsr_fused *f, const tsr_name_family *part)
{
    const tsr_pattern_member *x = members_of(part), *y = members_of(f->whole);
    const uint64_t each = f->folded ? y->entry->shape[0] : 1;
    if (part->numbers != f->whole->numbers + f->folded || !each || part->members.count % each) return false;
    if (part->members.count / each != f->whole->members.count) return false;
    for (size_t i = 0; i < part->members.count; i++) {
        if (f->folded && x[i].numbers[part->numbers - 1] != i % each) return false;
        for (uint32_t n = 0; n < f->whole->numbers; n++)
            if (x[i].numbers[n] != y[i / each].numbers[n]) return false;
    }
    return true;
}

/* The size that the part has in the whole, and below it the size that all parts have together. */
static uint64_t fused_size(const tsr_fused *f, const tsr_name_family *part)
{
    const tsr_entry *entry = members_of(part)->entry;
    return entry->shape[turned_dim(f->turned, entry->ndim, f->dim)] / f->runs;
}

static uint64_t fused_total(const tsr_fused *f)
{
    return members_of(f->whole)->entry->shape[f->dim + f->folded] / f->runs;
}

/* Whether the part could be in the whole, where `left` is what the earlier parts leave of its size. */
static bool fused_fits(const tsr_fused *f, const tsr_name_family *part, uint64_t left)
{
    const tsr_entry *a = members_of(part)->entry, *b = members_of(f->whole)->entry;
    if (part->decided || !part->uniform || a->dtype != b->dtype || a->ndim + f->folded != b->ndim) return false;
    if (!fused_size(f, part) || fused_size(f, part) > left) return false;
    if (a->shape[turned_dim(f->turned, a->ndim, f->dim)] % f->runs) return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (d != f->dim && a->shape[turned_dim(f->turned, a->ndim, d)] != b->shape[d + f->folded]) return false;
    for (uint32_t i = 0; i < f->count; i++)
        if (f->parts[i] == part) return false;
    return same_numbers(f, part);
}

/* There are several ways to join parts. Sets *f to the one with this index, with one run. Returns false if there is none. */
static bool fused_way(tsr_name_family *whole, unsigned index, tsr_fused *f)
{
    const uint32_t ndim = members_of(whole)->entry->ndim;
    for (unsigned folded = 0; folded < 2 && folded < ndim && whole->uniform; folded++) {
        for (unsigned turned = 0; turned < 2; turned++) {
            const uint32_t dims = ndim - folded;
            if (turned && dims != 2 && dims != 3) continue;
            *f = (tsr_fused){.whole = whole, .runs = 1, .dim = index, .folded = folded, .turned = turned};
            if (index < dims) return true;
            index -= dims;
        }
    }
    return false;
}

/* ---- the search ---- */

/* The lines of the whole and of the parts that fit a way, for all its runs. */
typedef struct lines {
    line_of whole, *parts; /* one for each family of the search */
} lines;

static tsr_status read_lines(const tsr_fused_search *s, const tsr_fused *f, tsr_arena *arena, lines *out)
{
    const tsr_name_family *families = s->parts->items;
    out->parts = tsr_arena_array(arena, s->parts->count, sizeof *out->parts, s->err);
    if (!out->parts) return TSR_E_NOMEM;
    TSR_TRY(read_line(s->of_whole, members_of(f->whole)->entry, f->dim + f->folded, arena, &out->whole, s->err));
    for (size_t i = 0; i < s->parts->count; i++) {
        if (!fused_fits(f, &families[i], fused_total(f))) continue;
        const tsr_entry *entry = members_of(&families[i])->entry;
        TSR_TRY(read_line(s->of_parts, entry, turned_dim(f->turned, entry->ndim, f->dim), arena, &out->parts[i], s->err));
    }
    return TSR_OK;
}

static tsr_status find_next(const tsr_fused_search *s, const lines *l, tsr_fused *f, uint64_t offset, bool *found)
{
    tsr_name_family *families = s->parts->items;
    *found = false;
    for (size_t i = 0; i < s->parts->count && !*found && f->count < TSR_MOST_PARTS; i++) {
        if (!fused_fits(f, &families[i], fused_total(f) - offset)) continue;
        const fused_place at = {.of_whole = s->of_whole,
                                .of_parts = s->of_parts,
                                .runs = f->runs,
                                .total = fused_total(f),
                                .size = fused_size(f, &families[i]),
                                .offset = offset,
                                .dim = f->dim,
                                .folded = f->folded,
                                .turned = f->turned};
        if (!lines_agree(&l->whole, &l->parts[i], &at)) continue;
        TSR_TRY(holds_values(&at, f->whole, &families[i], found, s->err));
        if (!*found) continue;
        f->sizes[f->count] = at.size;
        f->parts[f->count++] = &families[i];
    }
    return TSR_OK;
}

/* Looks for parts in this number of runs. */
static tsr_status find_runs(const tsr_fused_search *s, const lines *l, uint64_t runs, tsr_fused *f, bool *found)
{
    uint64_t offset = 0;
    bool more = true;
    f->runs = runs;
    f->count = 0;
    while (more && offset < fused_total(f)) {
        TSR_TRY(find_next(s, l, f, offset, &more));
        if (more) offset += f->sizes[f->count - 1];
    }
    *found = offset == fused_total(f) && f->count > 1;
    return TSR_OK;
}

/* Tries all numbers of runs that divide the total, fewest first. A run has at least one element of two parts, so the total
 * itself is left out. Divisors up to the square root are tried directly, and the others as quotients by those. */
static tsr_status find_way(const tsr_fused_search *s, tsr_fused *f, bool *found)
{
    const uint64_t total = fused_total(f);
    uint64_t low = 1;
    lines l;
    if (total < 2) return TSR_OK;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(s->of_whole)->allocator, 0, s->err);
    tsr_status status = arena ? read_lines(s, f, arena, &l) : TSR_E_NOMEM;
    for (; status == TSR_OK && !*found && low <= total / low; low++)
        if (total % low == 0) status = find_runs(s, &l, low, f, found);
    for (low--; status == TSR_OK && !*found && low > 1; low--)
        if (total % low == 0 && total / low != low) status = find_runs(s, &l, total / low, f, found);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_fused_find(const tsr_fused_search *search, tsr_name_family *whole, tsr_fused *out, bool *found)
{
    *found = false;
    for (unsigned way = 0; !*found && fused_way(whole, way, out); way++) TSR_TRY(find_way(search, out, found));
    return TSR_OK;
}

/* ---- joined ---- */

/* Finds, by shapes alone, tensors that may be several tensors of the other checkpoint joined: gate and up, for example. Shapes
 * do not show the order of the parts, but the name of the whole may: "gate_up_proj". */

/* The size of all parts together, which is more than that of the whole if only some of them can be in it. */
static uint64_t joined_size(const tsr_fused *f)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < f->count; i++) total += f->sizes[i];
    return total;
}

bool tsr_joined_fits(const tsr_fused *f)
{
    return joined_size(f) == fused_total(f);
}

/* Adds the families that fit. Returns whether these, or some of them, may make up the whole. */
static bool collect(tsr_fused *f, const tsr_vec *parts)
{
    tsr_name_family *families = parts->items;
    for (size_t i = 0; i < parts->count && f->count < TSR_MOST_PARTS; i++) {
        if (!fused_fits(f, &families[i], fused_total(f))) continue;
        f->sizes[f->count] = fused_size(f, &families[i]);
        f->parts[f->count++] = &families[i];
    }
    return f->count > 1 && joined_size(f) >= fused_total(f);
}

static void exchange(tsr_fused *f, size_t *places, uint32_t i)
{
    tsr_name_family *part = f->parts[i];
    const uint64_t size = f->sizes[i];
    const size_t place = places[i];
    f->parts[i] = f->parts[i - 1], f->sizes[i] = f->sizes[i - 1], places[i] = places[i - 1];
    f->parts[i - 1] = part, f->sizes[i - 1] = size, places[i - 1] = place;
}

/* Puts the parts into the order in which the whole's name has their words. Returns whether it has all of them. */
static bool suggest_order(tsr_fused *f)
{
    size_t places[TSR_MOST_PARTS];
    for (uint32_t i = 0; i < f->count; i++) {
        places[i] = tsr_family_place(f->whole, f->parts, f->count, i);
        if (places[i] == SIZE_MAX) return false;
    }
    for (uint32_t n = 1; n < f->count; n++)
        for (uint32_t i = n; i && places[i] < places[i - 1]; i--) exchange(f, places, i);
    return true;
}

void tsr_joined_find(tsr_name_family *whole, const tsr_vec *parts, tsr_fused *out, unsigned *ways, bool *ordered)
{
    tsr_fused f;
    *ways = 0;
    for (unsigned way = 0; fused_way(whole, way, &f); way++) {
        if (!collect(&f, parts)) continue;
        if (!(*ways)++) *out = f;
    }
    *ordered = *ways == 1 && tsr_joined_fits(out) && suggest_order(out);
}
