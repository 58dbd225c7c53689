/* Finds pairs of families in two checkpoints that could belong together, by their numbers and shapes. */
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/try.h"

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
            tsr_map_candidate like = {.a = &of_a[i], .b = &of_b[j], .score = tsr_families_likeness(&of_a[i], &of_b[j])};
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
            const tsr_map_candidate like = {
                .a = &of_a[i], .b = &of_b[j], .score = tsr_families_likeness(&of_a[i], &of_b[j])};
            if (!of_a[i].decided) TSR_TRY(add_rows(out, &like, err));
        }
    }
    return TSR_OK;
}
