/* Compares the values of all pairs of a diff. */
#include "stream/gather.h"
#include "tessera/compare.h"
#include "tessera/sys/compare_pair.h"
#include "tessera/sys/map.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "tessera/value.h"

enum { VALUE_DEPTH = 256 }; /* the same as in tsr_value_match */

bool tsr_pair_is_comparable(const tsr_diff_pair *pair)
{
    if (pair->what & (TSR_DIFF_DTYPE | TSR_DIFF_SHAPE | TSR_DIFF_OBJECT)) return false;
    if (pair->a->kind == TSR_ENTRY_TENSOR || pair->b->kind == TSR_ENTRY_TENSOR) return pair->a->kind == pair->b->kind;
    return pair->a->value && pair->b->value;
}

typedef struct object_pair {
    tsr_checkpoint *a, *b;
    const tsr_tolerance *tolerance;
    tsr_ring *ring;
    tsr_difference *out;
    tsr_map *seen; /* tensors of A that were compared already */
    tsr_status status;
    tsr_error *err;
} object_pair;

static void add_difference(tsr_difference *sum, const tsr_difference *one)
{
    if (sum->differing == 0) sum->first = one->first;
    sum->elements += one->elements;
    sum->differing += one->differing;
    if (one->differing) sum->numeric = sum->differing == one->differing ? one->numeric : sum->numeric && one->numeric;
    if (one->max_abs > sum->max_abs) sum->max_abs = one->max_abs;
    if (one->max_ulp > sum->max_ulp) sum->max_ulp = one->max_ulp;
}

static bool compare_inner(void *ctx, const tsr_entry *a, const tsr_entry *b)
{
    object_pair *o = ctx;
    tsr_difference one;
    bool inserted;
    o->status = tsr_map_put(o->seen, (tsr_str){(const char *)&a, sizeof(const tsr_entry *)}, 1, NULL, &inserted, o->err);
    if (o->status != TSR_OK || !inserted) return o->status == TSR_OK;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(o->a)->allocator, 0, o->err);
    a = arena ? tsr_gather_readable(o->a, arena, a, o->err) : NULL;
    b = a ? tsr_gather_readable(o->b, arena, b, o->err) : NULL;
    o->status = b ? tsr_compare_tensors((tsr_stored_tensor){o->a, a}, (tsr_stored_tensor){o->b, b}, o->tolerance, o->ring,
                                        &one, o->err)
                  : TSR_E_NOMEM;
    tsr_arena_free(arena);
    if (o->status == TSR_OK) add_difference(o->out, &one);
    return o->status == TSR_OK;
}

static tsr_status compare_objects(object_pair *o, const tsr_diff_pair *pair)
{
    const tsr_host *host = tsr_checkpoint_host(o->a);
    *o->out = (tsr_difference){0};
    o->seen = tsr_map_new(host->allocator, 0, o->err);
    if (!o->seen) return TSR_E_NOMEM;
    const tsr_match match =
        tsr_value_match_tensors(pair->a->value, pair->b->value, VALUE_DEPTH, host->limits.expansion, compare_inner, o);
    tsr_map_free(o->seen);
    TSR_FAIL_IF(o->status == TSR_OK && match == TSR_TOO_LARGE, o->err, TSR_E_LIMIT,
                "'%.*s' is too deep or too large to compare", TSR_STR_ARG(pair->a->fqn));
    return o->status;
}

tsr_status tsr_compare_pair(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff_pair *pair, const tsr_value_comparison *how,
                            tsr_difference *out, tsr_error *err)
{
    object_pair objects = {.a = a, .b = b, .tolerance = how->tolerance, .ring = how->ring, .out = out, .err = err};
    if (pair->a->kind == TSR_ENTRY_TENSOR)
        TSR_TRY(tsr_compare_tensors((tsr_stored_tensor){a, pair->a}, (tsr_stored_tensor){b, pair->b}, how->tolerance,
                                    how->ring, out, err));
    else TSR_TRY(compare_objects(&objects, pair));
    if (out->differing) pair->what |= TSR_DIFF_VALUE;
    return TSR_OK;
}

static tsr_status check_repeats(tsr_checkpoint *checkpoint, const tsr_diff *diff, bool second, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, checkpoint);
    for (uint64_t i = 0; i < diff->pair_count && status == TSR_OK; i++) {
        const tsr_diff_pair *pair = &diff->pairs[i];
        if (tsr_pair_is_comparable(pair))
            status = tsr_repeats_add(&repeats, second ? pair->b : pair->a, NULL, NULL, NULL, err);
    }
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

tsr_status tsr_diff_check_repeats(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_diff *diff, tsr_error *err)
{
    TSR_TRY(check_repeats(a, diff, false, err));
    return check_repeats(b, diff, true, err);
}

tsr_status tsr_diff_values(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff *diff, const tsr_value_comparison *how,
                           tsr_difference *differences, tsr_error *err)
{
    uint64_t total = 0, done = 0, bytes;
    TSR_TRY(tsr_diff_check_repeats(a, b, diff, err));
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        const tsr_diff_pair *pair = &diff->pairs[i];
        if (pair->a->kind == TSR_ENTRY_TENSOR && tsr_pair_is_comparable(pair) && tsr_entry_bytes(pair->a, &bytes))
            total += bytes;
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < diff->pair_count && status == TSR_OK; i++) {
        tsr_diff_pair *pair = &diff->pairs[i];
        if (!tsr_pair_is_comparable(pair)) continue;
        status = tsr_compare_pair(a, b, pair, how, &differences[i], err);
        if (pair->a->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(pair->a, &bytes)) done += bytes;
        bool go_on = !how->progress || !how->progress->step || how->progress->step(how->progress->ctx, done, total);
        if (status == TSR_OK && !go_on) status = tsr_fail(err, TSR_E_CANCELLED, "interrupted");
    }
    return status;
}
