/* Targets that are made of other things than texts: checked, or with FSDP1's flat parameters.
 *
 * Example:
 *
 *     const tsr_fsdp1 fsdp1 = {.ranks = 8};
 *     const tsr_fsdp1_unit *units;
 *     status = tsr_target_fsdp1(catalog, &fsdp1, arena, &units, &err);
 *     if (status == TSR_OK) printf("every rank holds %llu bytes\n", (unsigned long long)units[0].slice_bytes); */
#ifndef TESSERA_SYS_TARGET_FSDP1_H
#define TESSERA_SYS_TARGET_FSDP1_H

#include "tessera/sys/layout.h"
#include "tessera/target.h"

TSR_API_BEGIN

/* Every placement list by itself: as many placements as mesh dims, no `partial` (its values are parts of sums that only
 * the running job can add up). TSR_E_USAGE naming the rule. */
tsr_status tsr_target_check(const tsr_target *target, tsr_error *err);

/* fsdp1: which original parameters make up each flat parameter, and how it is cut. */
typedef struct tsr_fsdp1_unit {
    tsr_str match;                   /* the GLOB that claimed its parameters; "" for the root unit */
    const tsr_entry *const *entries; /* in the catalog's order */
    uint64_t count;
    tsr_dtype dtype; /* of all of them */
    bool use_orig_params;
    tsr_flat_layout flat; /* index i is entries[i] */
    uint64_t slice_bytes; /* what every rank holds, padding included */
} tsr_fsdp1_unit;

typedef struct tsr_fsdp1 {
    const tsr_str *units; /* GLOBs of wrapped modules' parameters, innermost first: the first that matches claims */
    uint32_t unit_count;
    bool (*match)(tsr_str glob, tsr_str name);
    bool (*want)(void *ctx, tsr_str fqn); /* NULL: every tensor is a parameter */
    void *want_ctx;
    bool use_orig_params; /* parameters begin at multiples of 16 bytes */
    uint64_t ranks;       /* ≥ 1 */
} tsr_fsdp1;

/* unit_count + 1 units: one for each GLOB, then the root unit with what none claimed. All live in `arena`. TSR_E_USAGE when
 * a unit's dtypes differ (FSDP1 flattens one dtype only) or are not byte-aligned; TSR_E_LIMIT on overflow. */
tsr_status tsr_target_fsdp1(const tsr_catalog *catalog, const tsr_fsdp1 *options, tsr_arena *arena,
                            const tsr_fsdp1_unit **units, tsr_error *err);

TSR_API_END

#endif
