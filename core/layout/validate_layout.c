/* A catalog against the layout that a repository committed: names, kinds, dtypes, shapes and boxes. */
#include "base/try.h"
#include "layout/box_set.h"
#include "layout/dims_text.h"
#include "tessera/map.h"
#include "tessera/validate.h"

typedef struct compare {
    const tsr_allocator *allocator;
    tsr_findings *findings;
} compare;

static tsr_place name_of(const tsr_entry *entry)
{
    tsr_place place = TSR_NOWHERE;
    place.fqn = entry->fqn;
    return place;
}

static const char *kind_name(tsr_entry_kind kind)
{
    return kind == TSR_ENTRY_TENSOR ? "a tensor" : kind == TSR_ENTRY_OBJECT ? "an object" : "opaque";
}

static bool same_shape(const tsr_entry *a, const tsr_entry *b)
{
    return tsr_box_equal((tsr_box){a->rank, NULL, a->shape}, (tsr_box){b->rank, NULL, b->shape});
}

static tsr_status compare_chunks(const compare *c, const tsr_entry *entry, const tsr_entry *wanted, tsr_error *err)
{
    bool equal;
    if (!wanted->chunks) return TSR_OK;
    TSR_TRY(tsr_box_sets_equal(c->allocator, entry, wanted, &equal, err));
    if (equal) return TSR_OK;
    return tsr_find(c->findings, "layout/chunks", name_of(entry), err,
                    "the chunks of '%.*s' (%llu) are other boxes than in the layout (%llu)", TSR_STR_ARG(entry->fqn),
                    (unsigned long long)entry->chunk_count, (unsigned long long)wanted->chunk_count);
}

static tsr_status compare_entry(const compare *c, const tsr_entry *entry, const tsr_entry *wanted, tsr_error *err)
{
    tsr_dims_buffer shape, wanted_shape;
    if (entry->kind != wanted->kind) {
        return tsr_find(c->findings, "layout/kind", name_of(entry), err, "'%.*s' is %s, the layout says %s",
                        TSR_STR_ARG(entry->fqn), kind_name(entry->kind), kind_name(wanted->kind));
    }
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    const char *dtype = tsr_dtype_describe(entry->dtype)->name, *wanted_dtype = tsr_dtype_describe(wanted->dtype)->name;
    if (strcmp(dtype, wanted_dtype) != 0) { /* as documents print them: both ways of counting float4 have one name */
        TSR_TRY(tsr_find(c->findings, "layout/dtype", name_of(entry), err, "'%.*s' is %s, the layout says %s",
                         TSR_STR_ARG(entry->fqn), dtype, wanted_dtype));
    }
    if (same_shape(entry, wanted)) return compare_chunks(c, entry, wanted, err);
    return tsr_find(c->findings, "layout/shape", name_of(entry), err, "'%.*s' has shape %s, the layout says %s",
                    TSR_STR_ARG(entry->fqn), tsr_dims_text(&shape, entry->shape, entry->rank),
                    tsr_dims_text(&wanted_shape, wanted->shape, wanted->rank));
}

static tsr_status compare_all(const compare *c, const tsr_catalog *catalog, const tsr_catalog *layout, const tsr_map *index,
                              tsr_error *err)
{
    for (uint64_t i = 0; i < layout->entry_count; i++) {
        const tsr_entry *wanted = &layout->entries[i];
        uint32_t at = tsr_map_get(index, wanted->fqn, UINT32_MAX);
        if (at != UINT32_MAX) {
            TSR_TRY(compare_entry(c, &catalog->entries[at], wanted, err));
        } else {
            TSR_TRY(tsr_find(c->findings, "layout/missing-entry", name_of(wanted), err,
                             "'%.*s' of the layout is not in the checkpoint", TSR_STR_ARG(wanted->fqn)));
        }
    }
    return TSR_OK;
}

static tsr_status index_entries(const tsr_catalog *catalog, tsr_map *map, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        TSR_TRY(tsr_map_put(map, catalog->entries[i].fqn, (uint32_t)i, NULL, NULL, err));
    }
    return TSR_OK;
}

static tsr_status report_unexpected(const compare *c, const tsr_catalog *catalog, const tsr_map *wanted, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (tsr_map_get(wanted, entry->fqn, UINT32_MAX) != UINT32_MAX) continue;
        TSR_TRY(tsr_find(c->findings, "layout/unexpected-entry", name_of(entry), err, "'%.*s' is not in the layout",
                         TSR_STR_ARG(entry->fqn)));
    }
    return TSR_OK;
}

tsr_status tsr_validate_layout(const tsr_catalog *catalog, const tsr_catalog *layout, const tsr_host *host,
                               tsr_findings *findings, tsr_error *err)
{
    const compare c = {host->allocator, findings};
    tsr_map *here = tsr_map_new(host->allocator, catalog->entry_count, err);
    tsr_map *wanted = here ? tsr_map_new(host->allocator, layout->entry_count, err) : NULL;
    tsr_status status = wanted ? index_entries(catalog, here, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = index_entries(layout, wanted, err);
    if (status == TSR_OK) status = compare_all(&c, catalog, layout, here, err);
    if (status == TSR_OK) status = report_unexpected(&c, catalog, wanted, err);
    tsr_map_free(wanted);
    tsr_map_free(here);
    return status;
}
