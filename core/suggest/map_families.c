/* Groups names that differ only in their numbers. */
#include <stdlib.h>

#include "suggest/map_suggest_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* Parses a component that is a decimal number, as in the names of lists and layers. */
static bool read_number(tsr_str component, uint64_t *out)
{
    *out = 0;
    if (!component.size || component.size > 9 || (component.size > 1 && component.data[0] == '0')) return false;
    for (size_t i = 0; i < component.size; i++) {
        if (component.data[i] < '0' || component.data[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(component.data[i] - '0');
    }
    return true;
}

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
        if (like->numbers < TSR_MOST_NUMBERS && read_number(component, &number)) {
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

size_t tsr_family_place(const tsr_name_family *whole, tsr_name_family *const *parts, uint32_t count, uint32_t index)
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
