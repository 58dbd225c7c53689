/* Checks a catalog against a contract, such as a layout committed to a repository: names, kinds, dtypes, shapes and
 * boxes. */
#include "layout/box_set.h"
#include "layout/dims_text.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/contract_rules.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

typedef struct compare {
    const tsr_contract *contract;
    const tsr_allocator *allocator;
    tsr_findings *findings;
} compare;

uint32_t tsr_leniency_from_word(tsr_str word)
{
    static const char *const words[] = {"missing", "extra", "dtype", "shape", "chunks", "value"};
    for (uint32_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (tsr_str_equal(word, tsr_str_from(words[i]))) return 1u << i;
    }
    return 0;
}

tsr_status tsr_leniency_parse(tsr_str words, uint32_t *out, tsr_error *err)
{
    *out = 0;
    for (size_t at = 0, size; at < words.size; at += size + 1) {
        const char *comma = memchr(words.data + at, ',', words.size - at);
        size = comma ? (size_t)(comma - words.data) - at : words.size - at;
        const uint32_t bit = tsr_leniency_from_word((tsr_str){words.data + at, size});
        if (!bit)
            return tsr_fail(err, TSR_E_USAGE, "--allow expects missing, extra, dtype, shape, chunks or value, not '%.*s'",
                            (int)size, words.data + at);
        *out |= bit;
    }
    return TSR_OK;
}

bool tsr_contract_name(const tsr_contract *contract, tsr_str fqn, tsr_str *out)
{
    const size_t n = contract->prefix.size;
    *out = (tsr_str){fqn.data + n, fqn.size - n};
    return tsr_str_starts(fqn, contract->prefix);
}

const tsr_contract_rule *tsr_contract_rule_of(const tsr_contract *contract, tsr_str fqn)
{
    for (size_t i = 0; i < contract->rule_count; i++) {
        if (contract->match(contract->rules[i].match, fqn)) return &contract->rules[i];
    }
    return NULL;
}

uint32_t tsr_contract_allows(const tsr_contract *contract, tsr_str fqn)
{
    const tsr_contract_rule *rule = tsr_contract_rule_of(contract, fqn);
    return rule ? rule->allow : contract->allow;
}

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

static bool same_dtype(const compare *c, const tsr_entry *entry, const tsr_entry *wanted)
{
    const tsr_contract_rule *rule = tsr_contract_rule_of(c->contract, wanted->fqn);
    /* Compares the names used in documents, because both ways of counting float4 have the same name there. */
    if (strcmp(tsr_dtype_describe(entry->dtype)->name, tsr_dtype_describe(wanted->dtype)->name) == 0) return true;
    for (size_t i = 0; rule && i < rule->dtype_count; i++) {
        if (rule->dtypes[i] == entry->dtype) return true;
    }
    return false;
}

static tsr_status compare_chunks(const compare *c, const tsr_entry *entry, const tsr_entry *wanted, tsr_error *err)
{
    bool equal;
    if (!wanted->chunks) return TSR_OK;
    TSR_TRY(tsr_box_sets_equal(c->allocator, entry, wanted, &equal, err));
    if (equal) return TSR_OK;
    return tsr_finding_add(c->findings, "layout/chunks", name_of(entry), err,
                           "'%.*s' is split into other chunks (%llu) than in %s (%llu)", TSR_STR_ARG(entry->fqn),
                           (unsigned long long)entry->chunk_count, c->contract->called,
                           (unsigned long long)wanted->chunk_count);
}

static tsr_status compare_shapes(const compare *c, const tsr_entry *entry, const tsr_entry *wanted, uint32_t allow,
                                 tsr_error *err)
{
    tsr_dims_buffer shape, wanted_shape;
    if (!wanted->shape && wanted->dtype == TSR_DTYPE_NONE) return TSR_OK; /* only the name is required */
    if (tsr_entry_same_shape(entry, wanted)) return allow & TSR_ANY_CHUNKS ? TSR_OK : compare_chunks(c, entry, wanted, err);
    if (allow & TSR_ANY_SHAPE) return TSR_OK;
    return tsr_finding_add(c->findings, "layout/shape", name_of(entry), err, "'%.*s' has shape %s, but %s has %s",
                           TSR_STR_ARG(entry->fqn), tsr_dims_text(&shape, entry->shape, entry->ndim), c->contract->called,
                           tsr_dims_text(&wanted_shape, wanted->shape, wanted->ndim));
}

static tsr_status compare_entry(const compare *c, const tsr_entry *entry, const tsr_entry *wanted, tsr_error *err)
{
    const uint32_t allow = tsr_contract_allows(c->contract, wanted->fqn);
    if (wanted->kind == TSR_ENTRY_OBJECT && c->contract->object_trees) return TSR_OK;
    if (entry->kind != wanted->kind && !c->contract->any_kind) {
        return tsr_finding_add(c->findings, "layout/kind", name_of(entry), err, "'%.*s' is %s, but %s has %s",
                               TSR_STR_ARG(entry->fqn), kind_name(entry->kind), c->contract->called,
                               kind_name(wanted->kind));
    }
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    if (wanted->dtype != TSR_DTYPE_NONE && !(allow & TSR_ANY_DTYPE) && !same_dtype(c, entry, wanted)) {
        TSR_TRY(tsr_finding_add(c->findings, "layout/dtype", name_of(entry), err, "'%.*s' is %s, but %s has %s",
                                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name, c->contract->called,
                                tsr_dtype_describe(wanted->dtype)->name));
    }
    return compare_shapes(c, entry, wanted, allow, err);
}

static tsr_status compare_all(const compare *c, const tsr_catalog *catalog, const tsr_map *index, tsr_error *err)
{
    const tsr_catalog *expected = &c->contract->expected;
    for (uint64_t i = 0; i < expected->entry_count; i++) {
        const tsr_entry *wanted = &expected->entries[i];
        uint32_t at = tsr_map_get(index, wanted->fqn, UINT32_MAX);
        if (at != UINT32_MAX) {
            TSR_TRY(compare_entry(c, &catalog->entries[at], wanted, err));
        } else if (!(tsr_contract_allows(c->contract, wanted->fqn) & TSR_MAY_MISS)) {
            TSR_TRY(tsr_finding_add(c->findings, "layout/missing-entry", name_of(wanted), err,
                                    "'%.*s' of %s is not in the checkpoint", TSR_STR_ARG(wanted->fqn), c->contract->called));
        }
    }
    return TSR_OK;
}

/* The longest name above `name` that the contract has as an object, if objects stand for what is below them; otherwise
 * empty. */
static tsr_str object_above(const tsr_contract *contract, const tsr_map *wanted, tsr_str name)
{
    for (size_t size = contract->object_trees ? name.size : 0; size > 0; size--) {
        if (name.data[size - 1] != '.') continue;
        const tsr_str above = {name.data, size - 1};
        const uint32_t at = tsr_map_get(wanted, above, UINT32_MAX);
        if (at != UINT32_MAX && contract->expected.entries[at].kind == TSR_ENTRY_OBJECT) return above;
    }
    return (tsr_str){NULL, 0};
}

/* An object that stands for what is below its name is there if something is. */
static tsr_status index_entries(const tsr_contract *contract, const tsr_catalog *catalog, const tsr_map *wanted,
                                tsr_map *map, tsr_error *err)
{
    tsr_str name;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (!tsr_contract_name(contract, catalog->entries[i].fqn, &name)) continue;
        TSR_TRY(tsr_map_put(map, name, (uint32_t)i, NULL, NULL, err));
        const tsr_str above = object_above(contract, wanted, name);
        if (above.data) TSR_TRY(tsr_map_put(map, above, (uint32_t)i, NULL, NULL, err));
    }
    return TSR_OK;
}

static tsr_status index_expected(const tsr_catalog *expected, tsr_map *map, tsr_error *err)
{
    for (uint64_t i = 0; i < expected->entry_count; i++) {
        TSR_TRY(tsr_map_put(map, expected->entries[i].fqn, (uint32_t)i, NULL, NULL, err));
    }
    return TSR_OK;
}

static tsr_status report_unexpected(const compare *c, const tsr_catalog *catalog, const tsr_map *wanted, tsr_error *err)
{
    tsr_str name;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (!tsr_contract_name(c->contract, entry->fqn, &name) || tsr_map_get(wanted, name, UINT32_MAX) != UINT32_MAX)
            continue;
        if (object_above(c->contract, wanted, name).data) continue;
        if (tsr_contract_allows(c->contract, name) & TSR_MAY_EXCEED) continue;
        TSR_TRY(tsr_finding_add(c->findings, "layout/unexpected-entry", name_of(entry), err, "'%.*s' is not in %s",
                                TSR_STR_ARG(entry->fqn), c->contract->called));
    }
    return TSR_OK;
}

/* ---- a prefix that only one side has ---- */

enum { MOST_PREFIX_COMPONENTS = 8 };

/* Counts for each prefix how many names of `names` are in `known` without it. */
static tsr_status count_prefixes(const tsr_catalog *names, const tsr_map *known, tsr_map *counts, tsr_error *err)
{
    for (uint64_t i = 0; i < names->entry_count; i++) {
        const tsr_str name = names->entries[i].fqn;
        unsigned components = 0;
        for (size_t at = 0; at + 1 < name.size && components < MOST_PREFIX_COMPONENTS; at++) {
            if (name.data[at] != '.') continue;
            components++;
            uint32_t *count;
            if (tsr_map_get(known, (tsr_str){name.data + at + 1, name.size - at - 1}, UINT32_MAX) == UINT32_MAX) continue;
            TSR_TRY(tsr_map_put(counts, (tsr_str){name.data, at + 1}, 0, &count, NULL, err));
            ++*count;
        }
    }
    return TSR_OK;
}

/* The prefix with which most names of `names` are in `known`; *count is 0 if there is none. */
static tsr_status find_prefix(const compare *c, const tsr_catalog *names, const tsr_map *known, tsr_str *prefix,
                              uint32_t *count, tsr_error *err)
{
    *count = 0;
    tsr_map *counts = tsr_map_new(c->allocator, 0, err);
    tsr_status status = counts ? count_prefixes(names, known, counts, err) : TSR_E_NOMEM;
    for (uint64_t i = 0; i < names->entry_count && status == TSR_OK; i++) {
        const tsr_str name = names->entries[i].fqn;
        unsigned components = 0;
        for (size_t at = 0; at + 1 < name.size && components < MOST_PREFIX_COMPONENTS; at++) {
            if (name.data[at] != '.') continue;
            components++;
            const uint32_t fitting = tsr_map_get(counts, (tsr_str){name.data, at + 1}, 0);
            if (fitting <= *count) continue;
            *count = fitting;
            *prefix = (tsr_str){name.data, at + 1};
        }
    }
    tsr_map_free(counts);
    return status;
}

static bool nearly_all(uint64_t count, uint64_t of)
{
    return count && count >= of - of / 10;
}

/* The most common reason for names that do not fit is a prefix that one side lacks. It is noted where it explains nearly all. */
static tsr_status note_prefix(const compare *c, const tsr_catalog *catalog, const tsr_map *here, const tsr_map *wanted,
                              tsr_error *err)
{
    const tsr_contract *contract = c->contract;
    const tsr_catalog *expected = &contract->expected;
    uint64_t fitting = 0;
    uint32_t count;
    tsr_str prefix;
    for (uint64_t i = 0; i < expected->entry_count; i++)
        fitting += tsr_map_get(here, expected->entries[i].fqn, UINT32_MAX) != UINT32_MAX;
    const uint32_t any_names = TSR_MAY_MISS | TSR_MAY_EXCEED;
    if (contract->prefix.size || (contract->allow & any_names) == any_names || fitting * 2 > expected->entry_count)
        return TSR_OK;
    TSR_TRY(find_prefix(c, catalog, wanted, &prefix, &count, err));
    if (count > fitting && nearly_all(count, expected->entry_count)) {
        return tsr_finding_add(c->findings, "layout/prefix", TSR_NOWHERE, err,
                               "%u of the %llu names of %s are in the checkpoint with '%.*s' before them; --prefix %.*s "
                               "compares these, and `tessera convert --rename %.*s=` removes it",
                               count, (unsigned long long)expected->entry_count, contract->called, TSR_STR_ARG(prefix),
                               TSR_STR_ARG(prefix), TSR_STR_ARG(prefix));
    }
    TSR_TRY(find_prefix(c, expected, here, &prefix, &count, err));
    if (count <= fitting || !nearly_all(count, catalog->entry_count)) return TSR_OK;
    return tsr_finding_add(c->findings, "layout/prefix", TSR_NOWHERE, err,
                           "%u of the checkpoint's %llu names are in %s with '%.*s' before them; `tessera convert --rename "
                           "=%.*s` adds it",
                           count, (unsigned long long)catalog->entry_count, contract->called, TSR_STR_ARG(prefix),
                           TSR_STR_ARG(prefix));
}

tsr_status tsr_validate_contract(const tsr_catalog *catalog, const tsr_contract *contract, const tsr_host *host,
                                 tsr_findings *findings, tsr_error *err)
{
    const compare c = {contract, host->allocator, findings};
    tsr_map *here = tsr_map_new(host->allocator, catalog->entry_count, err);
    tsr_map *wanted = here ? tsr_map_new(host->allocator, contract->expected.entry_count, err) : NULL;
    tsr_status status = wanted ? index_expected(&contract->expected, wanted, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = index_entries(contract, catalog, wanted, here, err);
    if (status == TSR_OK) status = note_prefix(&c, catalog, here, wanted, err);
    if (status == TSR_OK) status = compare_all(&c, catalog, here, err);
    if (status == TSR_OK) status = report_unexpected(&c, catalog, wanted, err);
    tsr_map_free(wanted);
    tsr_map_free(here);
    return status;
}
