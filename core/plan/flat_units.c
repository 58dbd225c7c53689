/* FSDP1 as a strategy: assigns the catalog's parameters to wrap units, each of which becomes one flat parameter. */
#include "base/cursor.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "tessera/target.h"

#define ALIGNMENT_BYTES 16u /* alignment of FSDP1 with use_orig_params */

/* The unit that a name belongs to; options->unit_count stands for the root. */
static uint32_t claim(const tsr_fsdp1 *options, tsr_str name)
{
    uint32_t u = 0;
    while (u < options->unit_count && !options->match(options->units[u], name)) u++;
    return u;
}

#define NO_UNIT UINT32_MAX

static tsr_status add_entry(tsr_fsdp1_unit *unit, const tsr_entry *entry, const tsr_entry **entries, uint64_t *numels,
                            tsr_error *err)
{
    if (unit->count == 0) unit->dtype = entry->dtype;
    TSR_FAIL_IF(entry->dtype != unit->dtype, err, TSR_E_USAGE,
                "'%.*s' is %s but '%.*s' is %s; a flat parameter has a single dtype (buffers can be listed in the "
                "strategy's \"ignored\")",
                TSR_STR_ARG(entries[0]->fqn), tsr_dtype_describe(unit->dtype)->name, TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    TSR_FAIL_IF(tsr_dtype_size(entry->dtype) == 0, err, TSR_E_USAGE,
                "'%.*s' is %s, whose elements are not byte-aligned, so it cannot be flattened", TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    TSR_FAIL_IF(!tsr_entry_elements(entry, &numels[unit->count]), err, TSR_E_LIMIT, "'%.*s' has more than 2^64 elements",
                TSR_STR_ARG(entry->fqn));
    entries[unit->count++] = entry;
    return TSR_OK;
}

static tsr_status finish(const tsr_fsdp1 *options, tsr_fsdp1_unit *unit, const uint64_t *numels, tsr_arena *arena,
                         tsr_error *err)
{
    uint32_t size = tsr_dtype_size(unit->dtype);
    uint64_t alignment = options->use_orig_params && size ? ALIGNMENT_BYTES / size : 0;
    TSR_TRY(
        tsr_flat_layout_make((tsr_flat_numels){numels, unit->count, alignment}, options->ranks, arena, &unit->flat, err));
    TSR_FAIL_IF(!tsr_mul_u64(unit->flat.slice_numel, size, &unit->slice_bytes), err, TSR_E_LIMIT,
                "a flat parameter has more than 2^64 bytes");
    return TSR_OK;
}

/* Finds the unit of every entry; NO_UNIT if the entry is not a parameter. */
static tsr_status claim_all(const tsr_catalog *catalog, const tsr_fsdp1 *options, tsr_arena *arena, uint32_t **out,
                            tsr_error *err)
{
    uint32_t *unit_of = tsr_arena_array(arena, catalog->entry_count, sizeof *unit_of, err);
    if (!unit_of) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        bool wanted = !options->want || options->want(options->want_ctx, entry->fqn);
        unit_of[i] = entry->kind == TSR_ENTRY_TENSOR && wanted ? claim(options, entry->fqn) : NO_UNIT;
    }
    *out = unit_of;
    return TSR_OK;
}

/* The units that have parameters, with the sizes of those. */
typedef struct unit_list {
    tsr_fsdp1_unit *units;
    uint64_t **numels;
    size_t count;
} unit_list;

/* Distributes the entries to their units. All units' lists share two arrays. */
static tsr_status deal(const tsr_catalog *catalog, const uint32_t *unit_of, const unit_list *list, tsr_arena *arena,
                       tsr_error *err)
{
    const tsr_entry **entries = tsr_arena_array(arena, catalog->entry_count, sizeof *entries, err);
    uint64_t *shared = entries ? tsr_arena_array(arena, catalog->entry_count, sizeof *shared, err) : NULL;
    uint64_t *begins = shared ? tsr_arena_array(arena, list->count + 1, sizeof *begins, err) : NULL;
    if (!begins) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (unit_of[i] != NO_UNIT) begins[unit_of[i] + 1]++;
    }
    for (size_t u = 0; u < list->count; u++) {
        begins[u + 1] += begins[u];
        list->units[u].entries = entries + begins[u];
        list->numels[u] = shared + begins[u];
    }
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        uint32_t u = unit_of[i];
        if (u != NO_UNIT)
            TSR_TRY(add_entry(&list->units[u], &catalog->entries[i], entries + begins[u], list->numels[u], err));
    }
    return TSR_OK;
}

tsr_status tsr_target_fsdp1(const tsr_catalog *catalog, const tsr_fsdp1 *options, tsr_arena *arena,
                            const tsr_fsdp1_unit **units, tsr_error *err)
{
    unit_list list = {.count = (size_t)options->unit_count + 1};
    uint32_t *unit_of;
    list.units = tsr_arena_array(arena, list.count, sizeof *list.units, err);
    list.numels = list.units ? tsr_arena_array(arena, list.count, sizeof *list.numels, err) : NULL;
    if (!list.numels) return TSR_E_NOMEM;
    TSR_TRY(claim_all(catalog, options, arena, &unit_of, err));
    TSR_TRY(deal(catalog, unit_of, &list, arena, err));
    for (size_t u = 0; u < list.count; u++) {
        tsr_fsdp1_unit *unit = &list.units[u];
        unit->use_orig_params = options->use_orig_params;
        unit->match = u < options->unit_count ? options->units[u] : TSR_STR("");
        TSR_TRY(finish(options, unit, list.numels[u], arena, err));
    }
    *units = list.units;
    return TSR_OK;
}
