/* Whether a candidate's rule, applied to A, gives B's values. */
#include "suggest/map_suggest_parts.h"
#include "tessera/mapping.h"
#include "tessera/sys/compare_pair.h"
#include "tessera/sys/try.h"

static tsr_status compare_all(tsr_checkpoint *mapped, tsr_checkpoint *b, tsr_ring *ring, bool *equal, tsr_error *err)
{
    static const tsr_tolerance bitwise = {.exact = true};
    const tsr_catalog *catalog = tsr_checkpoint_catalog(mapped);
    const tsr_value_comparison how = {.tolerance = &bitwise, .ring = ring};
    *equal = catalog->entry_count > 0;
    for (uint64_t i = 0; i < catalog->entry_count && *equal; i++) {
        const tsr_entry *made = &catalog->entries[i], *wanted = tsr_checkpoint_entry(b, made->fqn);
        tsr_diff_pair pair = {.a = made, .b = wanted};
        tsr_difference difference = {0};
        *equal = wanted && wanted->kind == TSR_ENTRY_TENSOR && made->dtype == wanted->dtype && made->ndim == wanted->ndim &&
                 (!made->ndim || !memcmp(made->shape, wanted->shape, made->ndim * sizeof *made->shape)) &&
                 tsr_pair_is_comparable(&pair);
        if (!*equal) continue;
        TSR_TRY(tsr_compare_pair(mapped, b, &pair, &how, &difference, err));
        *equal = !difference.differing;
    }
    return TSR_OK;
}

static tsr_status open_rule(tsr_checkpoint *a, tsr_str rule, tsr_arena *arena, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    const tsr_str text = tsr_arena_format(
        arena, err, "{\"schema\":\"tessera.map/1\",\"unmatched\":\"drop\",\"rules\":[%.*s]}", TSR_STR_ARG(rule));
    if (!text.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_mapping_parse(text, tsr_checkpoint_host(a), arena, &rules, err));
    return tsr_mapping_open(a, rules, out, err);
}

tsr_status tsr_candidate_holds(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_map_candidate *candidate, tsr_ring *ring,
                               bool *holds, tsr_error *err)
{
    tsr_checkpoint *mapped = NULL;
    tsr_str rule;
    tsr_error unfit = {0};
    *holds = false;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(a)->allocator, 0, err);
    tsr_status status = arena ? tsr_candidate_rule(candidate, NULL, arena, &rule, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_rule(a, rule, arena, &mapped, &unfit);
    const bool unfits = status == TSR_E_FORMAT || status == TSR_E_UNSUPPORTED;
    if (status == TSR_OK) status = compare_all(mapped, b, ring, holds, err);
    else if (unfit.status != TSR_OK && !unfits) *err = unfit;
    tsr_checkpoint_close(mapped);
    tsr_arena_free(arena);
    return unfits ? TSR_OK : status;
}
