/* Groups names that differ only in their numbers, pairs such families of two checkpoints, and finds tensors of one checkpoint that are
 * several tensors of the other joined, one after the other or in turns: q, k and v, for example. */
#include <stdlib.h>
#include <string.h>

#include "suggest/map_suggest_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- families ---- */

/* Makes the key of a name, in which its first numbers are replaced by a mark. */
static tsr_status make_key(tsr_str name, tsr_arena *arena, tsr_pattern_member *member, tsr_name_family *like, tsr_error *err)
{
    char *key = tsr_arena_array(arena, name.size + 1, 1, err);
    size_t used = 0;
    if (!key) return TSR_E_NOMEM;
    for (size_t at = 0; at <= name.size;) {
        size_t end = at;
        while (end < name.size && name.data[end] != '.') end++;
        const tsr_str component = {name.data + at, end - at};
        uint64_t number;
        if (at) key[used++] = '.';
        if (like->numbers < TSR_MOST_NUMBERS && tsr_component_number(component, &number)) {
            member->numbers[like->numbers++] = number;
            key[used++] = TSR_NUMBER_MARK;
        } else if (component.size) {
            memcpy(key + used, component.data, component.size);
            used += component.size;
        }
        at = end + 1;
    }
    like->key = (tsr_str){key, used};
    return TSR_OK;
}

static bool same_kind(const tsr_entry *a, const tsr_entry *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
}

static tsr_status add_entry(tsr_map *index, const tsr_allocator *allocator, const tsr_entry *entry, tsr_arena *arena,
                            tsr_vec *out, tsr_error *err)
{
    tsr_pattern_member member = {.entry = entry};
    tsr_name_family like = {.uniform = true, .members = tsr_vec_of(allocator, sizeof(tsr_pattern_member))};
    uint32_t *number;
    bool inserted;
    TSR_TRY(make_key(entry->fqn, arena, &member, &like, err));
    TSR_TRY(tsr_map_put(index, like.key, (uint32_t)out->count, &number, &inserted, err));
    if (inserted) {
        tsr_name_family *added = tsr_vec_push(out, err);
        if (!added) return TSR_E_NOMEM;
        *added = like;
    }
    tsr_name_family *family = (tsr_name_family *)out->items + *number;
    tsr_pattern_member *place = tsr_vec_push(&family->members, err);
    if (!place) return TSR_E_NOMEM;
    *place = member;
    family->uniform = family->uniform && same_kind(((tsr_pattern_member *)family->members.items)->entry, entry);
    return TSR_OK;
}

static int by_numbers(const void *a, const void *b)
{
    const tsr_pattern_member *x = a, *y = b;
    for (unsigned i = 0; i < TSR_MOST_NUMBERS; i++)
        if (x->numbers[i] != y->numbers[i]) return x->numbers[i] < y->numbers[i] ? -1 : 1;
    return 0;
}

tsr_status tsr_families_find(const tsr_catalog *catalog, bool tensors, tsr_arena *arena, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = out->allocator;
    tsr_map *index = tsr_map_new(allocator, 0, err);
    tsr_status status = index ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++)
        if ((catalog->entries[i].kind == TSR_ENTRY_TENSOR) == tensors)
            status = add_entry(index, allocator, &catalog->entries[i], arena, out, err);
    tsr_name_family *families = out->items;
    for (size_t i = 0; i < out->count && status == TSR_OK; i++)
        qsort(families[i].members.items, families[i].members.count, sizeof(tsr_pattern_member), by_numbers);
    tsr_map_free(index);
    return status;
}

void tsr_families_free(tsr_vec *families)
{
    tsr_name_family *items = families->items;
    for (size_t i = 0; i < families->count; i++) tsr_vec_free(&items[i].members);
    tsr_vec_free(families);
}

/* ---- similarity of names ---- */

static size_t next_word(tsr_str name, size_t at, tsr_str *out)
{
    while (at < name.size && (name.data[at] == '.' || name.data[at] == '_' || name.data[at] == TSR_NUMBER_MARK)) at++;
    size_t end = at;
    while (end < name.size && name.data[end] != '.' && name.data[end] != '_' && name.data[end] != TSR_NUMBER_MARK) end++;
    *out = (tsr_str){name.data + at, end - at};
    return end;
}

static bool has_word(tsr_str name, tsr_str word)
{
    tsr_str other;
    for (size_t at = next_word(name, 0, &other); other.size; at = next_word(name, at, &other))
        if (tsr_str_equal(other, word)) return true;
    return false;
}

/* The component before the last one, such as "wq" of "attention.wq.weight". */
static tsr_str module_of(tsr_str name)
{
    const tsr_str last = tsr_last_component(name);
    const size_t size = name.size - last.size;
    return tsr_last_component((tsr_str){name.data, size ? size - 1 : 0});
}

/* The length of the longest common subsequence of two short texts. */
static int common_letters(tsr_str a, tsr_str b)
{
    int row[33] = {0};
    const size_t width = b.size < 32 ? b.size : 32;
    for (size_t i = 0; i < a.size && i < 32; i++) {
        int diagonal = 0;
        for (size_t j = 0; j < width; j++) {
            const int above = row[j + 1];
            if (a.data[i] == b.data[j]) row[j + 1] = diagonal + 1;
            else if (row[j] > above) row[j + 1] = row[j];
            diagonal = above;
        }
    }
    return row[width];
}

/* Whether the name ends with `ending`, preceded by a dot. */
static bool ends_with(tsr_str name, tsr_str ending)
{
    return name.size > ending.size && tsr_str_ends(name, ending) && name.data[name.size - ending.size - 1] == '.';
}

static int families_likeness(const tsr_name_family *a, const tsr_name_family *b)
{
    int score = 0;
    tsr_str word;
    if (tsr_str_equal(a->key, b->key)) return 2 * TSR_SAME_NAME;
    if (ends_with(a->key, b->key) || ends_with(b->key, a->key)) return TSR_SAME_NAME;
    if (tsr_str_equal(tsr_last_component(a->key), tsr_last_component(b->key))) score += 10;
    for (size_t at = next_word(a->key, 0, &word); word.size; at = next_word(a->key, at, &word))
        score += has_word(b->key, word) ? 4 : 0;
    return score + common_letters(module_of(a->key), module_of(b->key));
}

/* Whether another part has the word. */
static bool is_shared(tsr_name_family *const *parts, uint32_t count, uint32_t index, tsr_str word)
{
    for (uint32_t i = 0; i < count; i++)
        if (i != index && has_word(parts[i]->key, word)) return true;
    return false;
}

/* Finds the first word of parts[index] that no other part has, in the whole's name. Returns where it begins there, or
 * SIZE_MAX if there is no such word. */
static size_t family_place(const tsr_name_family *whole, tsr_name_family *const *parts, uint32_t count, uint32_t index)
{
    const tsr_str key = parts[index]->key, name = tsr_last_component(whole->key);
    const tsr_str words =
        has_word(name, TSR_STR("weight")) || has_word(name, TSR_STR("bias")) ? module_of(whole->key) : name;
    tsr_str own, word;
    size_t at = next_word(key, 0, &own);
    while (own.size && is_shared(parts, count, index, own)) at = next_word(key, at, &own);
    for (at = next_word(words, 0, &word); own.size && word.size; at = next_word(words, at, &word))
        if (tsr_str_equal(word, own)) return at;
    return SIZE_MAX;
}

/* ---- candidates ---- */

/* Finds pairs of families in two checkpoints that could belong together, by their numbers and shapes. */

enum { MOST_HEADS = 256 };

static const tsr_pattern_member *members_of(const tsr_name_family *family)
{
    return family->members.items;
}

/* Whether the numbers are equal without number `folded` of `a` (TSR_MOST_NUMBERS: with all of them). */
static bool same_numbers(const tsr_pattern_member *a, const tsr_pattern_member *b, uint32_t numbers, uint32_t folded)
{
    for (uint32_t i = 0, j = 0; i < numbers; i++)
        if (i != folded && a->numbers[i] != b->numbers[j++]) return false;
    return true;
}

/* Whether `ndim` sizes are equal, or equal with the last two exchanged. */
static bool same_shape(const uint64_t *a, const uint64_t *b, uint32_t ndim, bool turned)
{
    for (uint32_t d = 0; d < ndim; d++)
        if (a[d] != b[turned && d + 2 >= ndim ? 2 * ndim - 3 - d : d]) return false;
    return true;
}

static bool same_sizes(const tsr_entry *a, const tsr_entry *b, bool turned)
{
    if (a->ndim != b->ndim || (turned && a->ndim != 2 && a->ndim != 3)) return false;
    return same_shape(a->shape, b->shape, a->ndim, turned);
}

static bool pairs(const tsr_name_family *a, const tsr_name_family *b, bool turned)
{
    const tsr_pattern_member *x = members_of(a), *y = members_of(b);
    if (a->numbers != b->numbers || a->members.count != b->members.count) return false;
    for (size_t i = 0; i < a->members.count; i++)
        if (!same_numbers(&x[i], &y[i], a->numbers, TSR_MOST_NUMBERS) || !same_sizes(x[i].entry, y[i].entry, turned))
            return false;
    return true;
}

/* Whether members of `apart` that differ only in number `folded`, which begins at 0, can be stacked along a new first dim
 * into the members of `whole`; turned: after each of them, a matrix, is transposed. */
static bool folds(const tsr_name_family *apart, const tsr_name_family *whole, uint32_t folded, bool turned)
{
    const tsr_pattern_member *x = members_of(apart), *y = members_of(whole);
    if (!apart->uniform || !whole->uniform || apart->numbers != whole->numbers + 1) return false;
    const tsr_entry *part = x->entry, *all = y->entry;
    if (all->ndim != part->ndim + 1 || (turned && part->ndim != 2) ||
        !same_shape(part->shape, all->shape + 1, part->ndim, turned))
        return false;
    const uint64_t size = all->shape[0], count = whole->members.count;
    if (!size || apart->members.count % size || apart->members.count / size != count || folded + 1 != apart->numbers)
        return false;
    for (size_t i = 0; i < apart->members.count; i++)
        if (x[i].numbers[folded] != i % size || !same_numbers(&x[i], &y[i / size], apart->numbers, folded)) return false;
    return true;
}

static tsr_status add(tsr_vec *out, const tsr_map_candidate *like, tsr_pairing how, uint64_t number, tsr_error *err)
{
    tsr_map_candidate *added = tsr_vec_push(out, err);
    if (!added) return TSR_E_NOMEM;
    *added = *like;
    added->how = how;
    added->number = number;
    return TSR_OK;
}

static tsr_status add_ropes(tsr_vec *out, const tsr_map_candidate *like, tsr_error *err)
{
    const tsr_entry *first = members_of(like->a)->entry;
    const uint64_t rows = first->ndim ? first->shape[0] : 0;
    for (uint64_t heads = 1; like->a->uniform && heads <= MOST_HEADS && heads * 4 <= rows; heads++)
        if (rows % (2 * heads) == 0) TSR_TRY(add(out, like, TSR_PAIR_ROPE, heads, err));
    return TSR_OK;
}

/* A single tensor whose rows are those of the other one and some more, such as a padded vocabulary. */
static tsr_status add_rows(tsr_vec *out, const tsr_map_candidate *like, tsr_error *err)
{
    const tsr_entry *a = members_of(like->a)->entry, *b = members_of(like->b)->entry;
    if (like->a->members.count != 1 || like->b->members.count != 1 || like->a->numbers != like->b->numbers ||
        !same_numbers(members_of(like->a), members_of(like->b), like->a->numbers, TSR_MOST_NUMBERS))
        return TSR_OK;
    if (!a->ndim || a->ndim != b->ndim || a->shape[0] == b->shape[0] || !a->shape[0] || !b->shape[0] ||
        !same_shape(a->shape + 1, b->shape + 1, a->ndim - 1, false))
        return TSR_OK;
    return add(out, like, a->shape[0] > b->shape[0] ? TSR_PAIR_TRIM : TSR_PAIR_PAD, b->shape[0], err);
}

static tsr_status add_folds(tsr_vec *out, const tsr_map_candidate *like, bool values, tsr_error *err)
{
    const bool stacks = folds(like->a, like->b, like->folded, false),
               unstacks = folds(like->b, like->a, like->folded, false);
    if (stacks) TSR_TRY(add(out, like, TSR_PAIR_STACK, 0, err));
    if (unstacks) TSR_TRY(add(out, like, TSR_PAIR_UNSTACK, 0, err));
    if ((values || !stacks) && folds(like->a, like->b, like->folded, true))
        TSR_TRY(add(out, like, TSR_PAIR_TURN_AND_STACK, 0, err));
    if ((values || !unstacks) && folds(like->b, like->a, like->folded, true))
        TSR_TRY(add(out, like, TSR_PAIR_UNSTACK_AND_TURN, 0, err));
    return TSR_OK;
}

/* Adds the ways in which a pair may belong together. A square matrix may be transposed, and any matrix may be permuted; only
 * values can show this. */
static tsr_status add_pair(tsr_vec *out, tsr_map_candidate *like, bool values, tsr_error *err)
{
    const bool plain = pairs(like->a, like->b, false), turned = pairs(like->a, like->b, true);
    like->folded = like->a->numbers > like->b->numbers ? like->b->numbers : like->a->numbers;
    if (plain) TSR_TRY(add(out, like, TSR_PAIR_PLAIN, 0, err));
    if (turned && (values || !plain)) TSR_TRY(add(out, like, TSR_PAIR_TRANSPOSE, 0, err));
    if (plain && values) TSR_TRY(add_ropes(out, like, err));
    return add_folds(out, like, values, err);
}

tsr_status tsr_candidates_find(const tsr_vec *a, const tsr_vec *b, bool values, tsr_vec *out, tsr_error *err)
{
    tsr_name_family *of_a = a->items, *of_b = b->items;
    for (size_t j = 0; j < b->count; j++) {
        for (size_t i = 0; i < a->count; i++) {
            tsr_map_candidate like = {.a = &of_a[i], .b = &of_b[j], .score = families_likeness(&of_a[i], &of_b[j])};
            TSR_TRY(add_pair(out, &like, values, err));
        }
    }
    return TSR_OK;
}

tsr_status tsr_candidates_find_rows(const tsr_vec *a, const tsr_vec *b, tsr_vec *out, tsr_error *err)
{
    tsr_name_family *of_a = a->items, *of_b = b->items;
    for (size_t j = 0; j < b->count; j++) {
        for (size_t i = 0; i < a->count && !of_b[j].decided; i++) {
            const tsr_map_candidate like = {.a = &of_a[i], .b = &of_b[j], .score = families_likeness(&of_a[i], &of_b[j])};
            if (!of_a[i].decided) TSR_TRY(add_rows(out, &like, err));
        }
    }
    return TSR_OK;
}

/* ---- joined tensors ---- */

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

/* Whether the numbers are the same, except for the last number of the parts, which counts experts. */
static bool fused_same_numbers(const tsr_fused *f, const tsr_name_family *part)
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
    return fused_same_numbers(f, part);
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
        places[i] = family_place(f->whole, f->parts, f->count, i);
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
