/* Checks that the inputs of a merge agree with each other. */
#include "base/line.h"
#include "merge/merge_parts.h"
#include "tessera/sys/compare_pair.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

enum { VALUE_DEPTH = 256, VALUE_NODES = 10000000 };

static void describe(const tsr_entry *entry, char *text, size_t capacity)
{
    tsr_line line = tsr_line_on(text, capacity);
    if (entry->kind == TSR_ENTRY_OBJECT) tsr_line_format(&line, "an object");
    else tsr_line_format(&line, "%s [", tsr_dtype_describe(entry->dtype)->name);
    if (entry->kind == TSR_ENTRY_OBJECT) return;
    for (uint32_t d = 0; d < entry->ndim; d++)
        tsr_line_format(&line, "%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
    tsr_line_format(&line, "]");
}

/* Whether both are the same kind of entry and, if they are tensors, have the same shape and dtype. `casts` allows two
 * different floating-point dtypes. */
static bool same_tensor(const tsr_entry *a, const tsr_entry *b, bool casts)
{
    if (a->kind != b->kind) return false;
    if (a->kind != TSR_ENTRY_TENSOR) return true;
    return (a->dtype == b->dtype || (casts && tsr_merge_sums(a) && tsr_merge_sums(b))) && a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
}

static tsr_status differ(const tsr_merge_input *a, const tsr_entry *entry, const tsr_merge_input *b, tsr_error *err)
{
    return tsr_fail(
        err, TSR_E_FORMAT,
        "'%.*s' is not a floating-point tensor, so it cannot be merged, and it differs between '%.*s' and '%.*s'; leave it out "
        "with --exclude",
        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(a->name), TSR_STR_ARG(b->name));
}

static tsr_status compare(const tsr_merge_input *a, const tsr_entry *of_a, const tsr_merge_input *b, const tsr_entry *of_b,
                          tsr_ring *ring, tsr_error *err)
{
    static const tsr_tolerance bitwise = {.exact = true};
    tsr_diff_pair pair = {.a = of_a, .b = of_b};
    tsr_difference difference = {0};
    const tsr_value_comparison how = {.tolerance = &bitwise, .ring = ring};
    const bool objects = of_a->kind == TSR_ENTRY_OBJECT;
    if (objects && tsr_value_match(of_a->value, of_b->value, VALUE_DEPTH, VALUE_NODES) != TSR_SAME)
        return differ(a, of_a, b, err);
    if (!tsr_pair_is_comparable(&pair)) return differ(a, of_a, b, err);
    TSR_TRY(tsr_compare_pair(a->checkpoint, b->checkpoint, &pair, &how, &difference, err));
    return difference.differing ? differ(a, of_a, b, err) : TSR_OK;
}

tsr_status tsr_merge_check(const tsr_merge *merge, uint32_t other, const tsr_entry *of_a, const tsr_entry *of_b,
                           tsr_ring *ring, tsr_error *err)
{
    const tsr_merge_input *a = &merge->inputs[0], *b = &merge->inputs[other];
    char x[160], y[160];
    if (!same_tensor(of_a, of_b, merge->dtype != TSR_DTYPE_NONE)) {
        const bool cast_helps = same_tensor(of_a, of_b, true);
        describe(of_a, x, sizeof x);
        describe(of_b, y, sizeof y);
        return tsr_fail(err, TSR_E_FORMAT, "'%.*s' is %s in '%.*s' and %s in '%.*s'%s", TSR_STR_ARG(of_a->fqn), x,
                        TSR_STR_ARG(a->name), y, TSR_STR_ARG(b->name),
                        cast_helps ? "; pass --dtype to choose the dtype of the result" : "");
    }
    if (tsr_merge_sums(of_a)) return TSR_OK;
    return compare(a, of_a, b, of_b, ring, err);
}
