/* Finds tensors of one checkpoint that are concatenations of several tensors of the other one: q, k and v, or gate and up,
 * with experts stacked or not, transposed or not.
 *
 *   whole  ┌───────┬───┬───┐      each part is looked for where the previous one ended: only the values show
 *          │   q   │ k │ v │      which part follows
 *          └───────┴───┴───┘ */
#include "suggest/map_suggest_parts.h"
#include "tessera/mapping.h"
#include "tessera/sys/compare_pair.h"
#include "tessera/sys/json.h"
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

/* The dim of a part that becomes dim `d` of the whole. */
static uint32_t part_dim(const tsr_fused *f, uint32_t ndim, uint32_t d)
{
    return f->turned && d + 2 >= ndim ? 2 * ndim - 3 - d : d;
}

uint64_t tsr_fused_size(const tsr_fused *f, const tsr_name_family *part)
{
    const tsr_entry *entry = members_of(part)->entry;
    return entry->shape[part_dim(f, entry->ndim, f->dim)];
}

uint64_t tsr_fused_total(const tsr_fused *f)
{
    return members_of(f->whole)->entry->shape[f->dim + f->folded];
}

bool tsr_fused_fits(const tsr_fused *f, const tsr_name_family *part, uint64_t left)
{
    const tsr_entry *a = members_of(part)->entry, *b = members_of(f->whole)->entry;
    if (part->decided || !part->uniform || a->dtype != b->dtype || a->ndim + f->folded != b->ndim) return false;
    if (!tsr_fused_size(f, part) || tsr_fused_size(f, part) > left) return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (d != f->dim && a->shape[part_dim(f, a->ndim, d)] != b->shape[d + f->folded]) return false;
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
            *f = (tsr_fused){.whole = whole, .dim = index, .folded = folded, .turned = turned};
            if (index < dims) return true;
            index -= dims;
        }
    }
    return false;
}

/* ---- comparing a part with a position ---- */

/* Counts the tensors of the mapped whole that are equal to those of the same name in the other checkpoint. */
static tsr_status compare(tsr_checkpoint *mapped, tsr_checkpoint *parts, tsr_ring *ring, uint64_t *equal, tsr_error *err)
{
    static const tsr_tolerance bitwise = {.exact = true};
    const tsr_catalog *catalog = tsr_checkpoint_catalog(mapped);
    const tsr_value_comparison how = {.tolerance = &bitwise, .ring = ring};
    *equal = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *made = &catalog->entries[i], *wanted = tsr_checkpoint_entry(parts, made->fqn);
        tsr_diff_pair pair = {.a = made, .b = wanted};
        tsr_difference difference = {0};
        if (!wanted || !tsr_pair_is_comparable(&pair)) continue;
        TSR_TRY(tsr_compare_pair(mapped, parts, &pair, &how, &difference, err));
        if (difference.differing) return TSR_OK;
        ++*equal;
    }
    return TSR_OK;
}

/* The rule that splits the whole into up to three: what comes before the part, the part, and what comes after it. */
static tsr_status cut(const tsr_fused *f, const tsr_name_family *part, uint64_t offset, tsr_arena *arena, tsr_str *rule,
                      tsr_error *err)
{
    const uint64_t size = tsr_fused_size(f, part), end = offset + size, total = tsr_fused_total(f);
    const tsr_str name = tsr_family_pattern(part, tsr_captures, arena, err);
    const tsr_str before = tsr_arena_format(arena, err, "before %.*s", TSR_STR_ARG(name)),
                  after = tsr_arena_format(arena, err, "after %.*s", TSR_STR_ARG(name));
    if (!name.data || !before.data || !after.data) return TSR_E_NOMEM;
    const tsr_str names[] = {before, name, after};
    const uint64_t sizes[] = {offset, size, total - end};
    const uint32_t first = offset ? 0 : 1;
    const tsr_fused_rule how = {.parts = names + first,
                                .sizes = sizes + first,
                                .count = (end < total ? 3 : 2) - first,
                                .dim = f->dim,
                                .whole = tsr_family_pattern(f->whole, tsr_captures, arena, err),
                                .folded = f->folded,
                                .splits = true,
                                .turned = f->turned ? members_of(part)->entry->ndim : 0};
    return how.whole.data ? tsr_fused_rule_text(&how, arena, rule, err) : TSR_E_NOMEM;
}

static tsr_status is_at(const tsr_fused_search *s, const tsr_fused *f, const tsr_name_family *part, uint64_t offset,
                        bool *is)
{
    const tsr_mapping_rules *rules;
    tsr_checkpoint *mapped = NULL;
    tsr_str rule;
    uint64_t equal = 0;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(s->of_whole)->allocator, 0, s->err);
    tsr_status status = arena ? cut(f, part, offset, arena, &rule, s->err) : TSR_E_NOMEM;
    const tsr_str text =
        status == TSR_OK
            ? tsr_arena_format(arena, s->err, "{\"schema\":\"tessera.map/1\",\"unmatched\":\"drop\",\"rules\":[%.*s]}",
                               TSR_STR_ARG(rule))
            : TSR_STR("");
    if (status == TSR_OK && !text.data) status = TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_mapping_parse(text, tsr_checkpoint_host(s->of_whole), arena, &rules, s->err);
    if (status == TSR_OK) status = tsr_mapping_open(s->of_whole, rules, &mapped, s->err);
    if (status == TSR_OK) status = compare(mapped, s->of_parts, s->ring, &equal, s->err);
    *is = equal == part->members.count;
    tsr_checkpoint_close(mapped);
    tsr_arena_free(arena);
    return status;
}

/* ---- the search ---- */

static tsr_status find_next(const tsr_fused_search *s, tsr_fused *f, uint64_t offset, bool *found)
{
    tsr_name_family *families = s->parts->items;
    *found = false;
    for (size_t i = 0; i < s->parts->count && !*found && f->count < TSR_MOST_PARTS; i++) {
        if (!tsr_fused_fits(f, &families[i], tsr_fused_total(f) - offset)) continue;
        TSR_TRY(is_at(s, f, &families[i], offset, found));
        if (!*found) continue;
        f->sizes[f->count] = tsr_fused_size(f, &families[i]);
        f->parts[f->count++] = &families[i];
    }
    return TSR_OK;
}

tsr_status tsr_fused_find(const tsr_fused_search *s, tsr_name_family *whole, tsr_fused *out, bool *found)
{
    *found = false;
    for (unsigned way = 0; !*found && tsr_fused_way(whole, way, out); way++) {
        uint64_t offset = 0;
        bool more = true;
        while (more && offset < tsr_fused_total(out)) {
            TSR_TRY(find_next(s, out, offset, &more));
            if (more) offset += out->sizes[out->count - 1];
        }
        *found = offset == tsr_fused_total(out) && out->count > 1;
    }
    return TSR_OK;
}
