/* Applies a policy to a diff. Its differences have the rules diff/…, so that every difference belongs to a rule and none is
 * lost. */
#include "documents/policy_parts.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

typedef struct filter {
    const tsr_policy *policy;
    tsr_policy_result *result;
    tsr_vec key; /* memory reused for each key */
    tsr_error *err;
} filter;

/* Decides whether a difference is kept, and counts it. `other` is the second name of a rename. */
static tsr_status keep(filter *f, const char *rule_id, tsr_str name, tsr_str other, bool *out)
{
    bool is_known;
    const tsr_rule *rule = tsr_rule_find(rule_id);
    const int level = tsr_policy_level(f->policy, rule, rule->level);
    const tsr_known known = {tsr_str_from(rule_id), other, name};
    TSR_TRY(tsr_policy_knows(f->policy, &known, &f->key, &is_known, f->err));
    *out = level != TSR_LEVEL_OFF && !is_known;
    if (level == TSR_LEVEL_OFF) f->result->turned_off++;
    else if (is_known) f->result->left_out++;
    else f->result->totals[level]++;
    return TSR_OK;
}

static tsr_status keep_entries(filter *f, const char *rule_id, const tsr_entry **entries, uint64_t *count)
{
    uint64_t kept = 0;
    bool stays;
    for (uint64_t i = 0; i < *count; i++) {
        TSR_TRY(keep(f, rule_id, entries[i]->fqn, (tsr_str){NULL, 0}, &stays));
        if (stays) entries[kept++] = entries[i];
    }
    *count = kept;
    return TSR_OK;
}

static tsr_status keep_pairs(filter *f, tsr_diff *diff)
{
    static const struct {
        uint32_t bit;
        const char *rule;
    } kinds[] = {{TSR_DIFF_DTYPE, "diff/dtype"},   {TSR_DIFF_SHAPE, "diff/shape"},   {TSR_DIFF_VALUE, "diff/value"},
                 {TSR_DIFF_LAYOUT, "diff/layout"}, {TSR_DIFF_OBJECT, "diff/object"}, {TSR_DIFF_KEY, "diff/key"}};
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        tsr_diff_pair *pair = &diff->pairs[i];
        const uint32_t before = pair->what;
        bool stays;
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (!(before & kinds[k].bit)) continue;
            TSR_TRY(keep(f, kinds[k].rule, pair->a->fqn, (tsr_str){NULL, 0}, &stays));
            if (!stays) pair->what &= ~kinds[k].bit;
        }
        f->result->pairs += before && !pair->what;
    }
    return TSR_OK;
}

static tsr_status keep_texts(filter *f, tsr_diff *diff)
{
    uint64_t kept = 0;
    bool stays;
    for (uint64_t i = 0; i < diff->metadata_count; i++) {
        const tsr_diff_text *text = &diff->metadata[i];
        TSR_TRY(keep(f, "diff/metadata", text->a ? text->a->key : text->b->key, (tsr_str){NULL, 0}, &stays));
        if (stays) diff->metadata[kept++] = *text;
    }
    diff->metadata_count = kept;
    return TSR_OK;
}

static tsr_status keep_renames(filter *f, tsr_diff *diff)
{
    uint64_t kept = 0;
    bool stays;
    for (uint64_t i = 0; i < diff->renamed_count; i++) {
        TSR_TRY(keep(f, "diff/renamed", diff->renamed[i].a->fqn, diff->renamed[i].b->fqn, &stays));
        if (stays) diff->renamed[kept++] = diff->renamed[i];
    }
    diff->renamed_count = kept;
    return TSR_OK;
}

static void *copied(tsr_arena *arena, const void *items, uint64_t count, size_t size, tsr_error *err)
{
    void *out = tsr_arena_array(arena, (size_t)count, size, err);
    if (out && count) memcpy(out, items, (size_t)count * size);
    return out;
}

static tsr_status filter_all(filter *f, tsr_diff *diff)
{
    TSR_TRY(keep_entries(f, "diff/removed", diff->removed, &diff->removed_count));
    TSR_TRY(keep_entries(f, "diff/added", diff->added, &diff->added_count));
    TSR_TRY(keep_pairs(f, diff));
    TSR_TRY(keep_texts(f, diff));
    return keep_renames(f, diff);
}

tsr_status tsr_policy_diff(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                           tsr_policy_result *result, tsr_error *err)
{
    filter f = {policy, result, tsr_vec_of(policy->host->allocator, 1), err};
    result->has_baseline = policy->has_baseline;
    result->has_rules_off = policy->has_rules_off;
    *to = *from;
    to->pairs = copied(arena, from->pairs, from->pair_count, sizeof *from->pairs, err);
    to->added = copied(arena, from->added, from->added_count, sizeof *from->added, err);
    to->removed = copied(arena, from->removed, from->removed_count, sizeof *from->removed, err);
    to->renamed = copied(arena, from->renamed, from->renamed_count, sizeof *from->renamed, err);
    to->metadata = copied(arena, from->metadata, from->metadata_count, sizeof *from->metadata, err);
    if (!to->pairs || !to->added || !to->removed || !to->renamed || !to->metadata) return TSR_E_NOMEM;
    const tsr_status status = filter_all(&f, to);
    tsr_vec_free(&f.key);
    return status;
}
