/* Finds tensors of one checkpoint that are concatenations of several tensors of the other one: q, k and v, or gate and up,
 * with experts stacked or not, transposed or not.
 *
 *   whole  ┌───────┬───┬───┐      each part is looked for where the previous one ended: only the values show
 *          │   q   │ k │ v │      which part follows
 *          └───────┴───┴───┘
 *          ┌───┬─┬─┬───┬─┬─┐      in runs: Megatron's q, k and v of each group of heads, or a row of gate and one of up
 *          │q 0│k│v│q 1│k│v│      in turns
 *          └───┴─┴─┴───┴─┴─┘ */
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/try.h"

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

uint64_t tsr_fused_size(const tsr_fused *f, const tsr_name_family *part)
{
    const tsr_entry *entry = members_of(part)->entry;
    return entry->shape[tsr_turned_dim(f->turned, entry->ndim, f->dim)] / f->runs;
}

uint64_t tsr_fused_total(const tsr_fused *f)
{
    return members_of(f->whole)->entry->shape[f->dim + f->folded] / f->runs;
}

bool tsr_fused_fits(const tsr_fused *f, const tsr_name_family *part, uint64_t left)
{
    const tsr_entry *a = members_of(part)->entry, *b = members_of(f->whole)->entry;
    if (part->decided || !part->uniform || a->dtype != b->dtype || a->ndim + f->folded != b->ndim) return false;
    if (!tsr_fused_size(f, part) || tsr_fused_size(f, part) > left) return false;
    if (a->shape[tsr_turned_dim(f->turned, a->ndim, f->dim)] % f->runs) return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (d != f->dim && a->shape[tsr_turned_dim(f->turned, a->ndim, d)] != b->shape[d + f->folded]) return false;
    for (uint32_t i = 0; i < f->count; i++)
        if (f->parts[i] == part) return false;
    return same_numbers(f, part);
}

bool tsr_fused_way(tsr_name_family *whole, unsigned index, tsr_fused *f)
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
    tsr_line_of whole, *parts; /* one for each family of the search */
} lines;

static tsr_status read_lines(const tsr_fused_search *s, const tsr_fused *f, tsr_arena *arena, lines *out)
{
    const tsr_name_family *families = s->parts->items;
    out->parts = tsr_arena_array(arena, s->parts->count, sizeof *out->parts, s->err);
    if (!out->parts) return TSR_E_NOMEM;
    TSR_TRY(tsr_line_read(s->of_whole, members_of(f->whole)->entry, f->dim + f->folded, arena, &out->whole, s->err));
    for (size_t i = 0; i < s->parts->count; i++) {
        if (!tsr_fused_fits(f, &families[i], tsr_fused_total(f))) continue;
        const tsr_entry *entry = members_of(&families[i])->entry;
        TSR_TRY(tsr_line_read(s->of_parts, entry, tsr_turned_dim(f->turned, entry->ndim, f->dim), arena, &out->parts[i],
                              s->err));
    }
    return TSR_OK;
}

static tsr_status find_next(const tsr_fused_search *s, const lines *l, tsr_fused *f, uint64_t offset, bool *found)
{
    tsr_name_family *families = s->parts->items;
    *found = false;
    for (size_t i = 0; i < s->parts->count && !*found && f->count < TSR_MOST_PARTS; i++) {
        if (!tsr_fused_fits(f, &families[i], tsr_fused_total(f) - offset)) continue;
        const tsr_fused_place at = {.of_whole = s->of_whole,
                                    .of_parts = s->of_parts,
                                    .runs = f->runs,
                                    .total = tsr_fused_total(f),
                                    .size = tsr_fused_size(f, &families[i]),
                                    .offset = offset,
                                    .dim = f->dim,
                                    .folded = f->folded,
                                    .turned = f->turned};
        if (!tsr_lines_agree(&l->whole, &l->parts[i], &at)) continue;
        TSR_TRY(tsr_fused_holds(&at, f->whole, &families[i], found, s->err));
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
    while (more && offset < tsr_fused_total(f)) {
        TSR_TRY(find_next(s, l, f, offset, &more));
        if (more) offset += f->sizes[f->count - 1];
    }
    *found = offset == tsr_fused_total(f) && f->count > 1;
    return TSR_OK;
}

/* Tries all numbers of runs that divide the total, fewest first. A run has at least one element of two parts, so the total
 * itself is left out. Divisors up to the square root are tried directly, and the others as quotients by those. */
static tsr_status find_way(const tsr_fused_search *s, tsr_fused *f, bool *found)
{
    const uint64_t total = tsr_fused_total(f);
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
    for (unsigned way = 0; !*found && tsr_fused_way(whole, way, out); way++) TSR_TRY(find_way(search, out, found));
    return TSR_OK;
}
