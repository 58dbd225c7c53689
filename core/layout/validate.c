/* Finds errors in a catalog without reading bytes: checks the tiling of each tensor and the byte ranges of all chunks. */
#include <stdlib.h>

#include "base/cursor.h"
#include "layout/shard.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

typedef struct check {
    const tsr_catalog *catalog;
    const tsr_allocator *allocator;
    tsr_findings *findings;
} check;

static tsr_place place_of(const check *c, const tsr_entry *entry, uint64_t chunk)
{
    tsr_place place = TSR_NOWHERE;
    place.fqn = entry->fqn;
    if (chunk == TSR_NO_CHUNK || entry->chunks[chunk].file == TSR_NO_FILE) return place;
    if (c->catalog->file_names) place.file = c->catalog->file_names[entry->chunks[chunk].file];
    place.byte_offset = entry->chunks[chunk].byte_offset;
    return place;
}

static tsr_status report_outside(const check *c, const tsr_entry *entry, uint64_t chunk, tsr_error *err)
{
    tsr_dims_buffer offsets, sizes, shape;
    return tsr_finding_add(c->findings, "layout/out-of-range", place_of(c, entry, chunk), err,
                           "the chunk of %s at %s of '%.*s' reaches beyond the tensor's %s",
                           tsr_dims_text(&sizes, entry->chunks[chunk].sizes, entry->ndim),
                           tsr_dims_text(&offsets, entry->chunks[chunk].offsets, entry->ndim), TSR_STR_ARG(entry->fqn),
                           tsr_dims_text(&shape, entry->shape, entry->ndim));
}

static tsr_status report_overlap(const check *c, const tsr_entry *entry, const tsr_tiling *tiling, tsr_error *err)
{
    const tsr_chunk *a = &entry->chunks[tiling->overlap[0]], *b = &entry->chunks[tiling->overlap[1]];
    tsr_dims_buffer a_at, a_size, b_at, b_size, element;
    return tsr_finding_add(c->findings, "layout/overlap", place_of(c, entry, tiling->overlap[1]), err,
                           "two chunks of '%.*s' contain the element %s: %s at %s and %s at %s", TSR_STR_ARG(entry->fqn),
                           tsr_dims_text(&element, tiling->overlap_offsets, entry->ndim),
                           tsr_dims_text(&a_size, a->sizes, entry->ndim), tsr_dims_text(&a_at, a->offsets, entry->ndim),
                           tsr_dims_text(&b_size, b->sizes, entry->ndim), tsr_dims_text(&b_at, b->offsets, entry->ndim));
}

static tsr_status report_hole(const check *c, const tsr_entry *entry, const tsr_tiling *tiling, tsr_error *err)
{
    tsr_dims_buffer at, size, shape;
    return tsr_finding_add(
        c->findings, "layout/hole", place_of(c, entry, TSR_NO_CHUNK), err,
        "%s%llu element%s of '%.*s' %s %s not covered by any chunk, such as %s at %s",
        tiling->missing_at_least ? "at least " : "", (unsigned long long)tiling->missing, TSR_PLURAL(tiling->missing),
        TSR_STR_ARG(entry->fqn), tsr_dims_text(&shape, entry->shape, entry->ndim), tiling->missing == 1 ? "is" : "are",
        tsr_dims_text(&size, tiling->hole_sizes, entry->ndim), tsr_dims_text(&at, tiling->hole_offsets, entry->ndim));
}

/* A chunk without elements belongs to a rank that got nothing. PyTorch puts its offset at the end of the sharded
 * dimension. */
static tsr_status check_empty_chunks(const check *c, const tsr_entry *entry, tsr_error *err)
{
    tsr_dims_buffer at, size, shape;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        bool odd = false;
        for (uint32_t d = 0; d < entry->ndim; d++) {
            odd = odd || (chunk->sizes[d] == 0 && entry->shape[d] > 0 && chunk->offsets[d] != entry->shape[d]);
        }
        if (!odd) continue;
        TSR_TRY(tsr_finding_add(c->findings, "layout/empty-chunk", place_of(c, entry, i), err,
                                "the chunk of %s at %s of '%.*s' %s is empty but not at an end of the tensor",
                                tsr_dims_text(&size, chunk->sizes, entry->ndim),
                                tsr_dims_text(&at, chunk->offsets, entry->ndim), TSR_STR_ARG(entry->fqn),
                                tsr_dims_text(&shape, entry->shape, entry->ndim)));
    }
    return TSR_OK;
}

static tsr_status check_tiling(const check *c, const tsr_entry *entry, tsr_error *err)
{
    tsr_tiling tiling;
    tsr_dims_buffer shape;
    uint64_t elements;
    if (entry->ndim > TSR_MAX_NDIM || !tsr_entry_elements(entry, &elements)) {
        return tsr_finding_add(c->findings, "layout/too-large", place_of(c, entry, TSR_NO_CHUNK), err,
                               "'%.*s' %s has more than %u dimensions or 2^64 elements", TSR_STR_ARG(entry->fqn),
                               tsr_dims_text(&shape, entry->shape, entry->ndim), TSR_MAX_NDIM);
    }
    TSR_TRY(tsr_tiling_check(c->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count,
                             &tiling, err));
    if (tiling.outside != TSR_NO_CHUNK) TSR_TRY(report_outside(c, entry, tiling.outside, err));
    if (tiling.overlap[0] != TSR_NO_CHUNK) TSR_TRY(report_overlap(c, entry, &tiling, err));
    if (tiling.missing > 0) TSR_TRY(report_hole(c, entry, &tiling, err));
    return tiling.empty_chunks && elements ? check_empty_chunks(c, entry, err) : TSR_OK;
}

/* The bytes of one chunk in its file. */
typedef struct range {
    uint64_t begin, end;
    const tsr_entry *entry;
    uint32_t file;
} range;

static int compare_ranges(const void *left, const void *right)
{
    const range *a = left, *b = right;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

/* Whether a chunk is a further box of the same item as the chunk before it. */
static bool continues_item(const tsr_entry *entry, uint64_t chunk)
{
    const tsr_chunk *c = &entry->chunks[chunk];
    return chunk && !c->view && c[-1].file == c->file && c[-1].byte_offset == c->byte_offset &&
           c[-1].byte_length == c->byte_length;
}

/* `boxes`: whether one item may contain several boxes of a tensor. */
static tsr_status gather_ranges(const tsr_entry *entry, bool boxes, tsr_vec *ranges, bool *sorted, tsr_error *err)
{
    for (uint64_t i = 0; i < entry->chunk_count && !entry->is_second_name; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        uint64_t begin = chunk->view && !chunk->view->zstd ? chunk->view->byte_offset : chunk->byte_offset, end;
        if (chunk->file == TSR_NO_FILE || chunk->byte_length == 0 || (boxes && continues_item(entry, i))) continue;
        if (!tsr_add_u64(begin, chunk->byte_length, &end)) end = UINT64_MAX;
        range *last = tsr_vec_push(ranges, err);
        if (!last) return TSR_E_NOMEM;
        *last = (range){begin, end, entry, chunk->file};
        if (ranges->count > 1 && compare_ranges(last - 1, last) > 0) *sorted = false;
    }
    return TSR_OK;
}

static tsr_status report_shared(const check *c, const range *list, size_t count, tsr_error *err)
{
    const range *widest = list; /* of the ranges so far, the one with the highest end */
    for (size_t i = 1; i < count; i++) {
        const range *r = &list[i];
        if (r->file == widest->file && r->begin < widest->end) {
            tsr_place place = {.byte_offset = r->begin, .fqn = r->entry->fqn};
            if (c->catalog->file_names) place.file = c->catalog->file_names[r->file];
            TSR_TRY(tsr_finding_add(c->findings, "layout/bytes-shared", place, err,
                                    "bytes [%llu, %llu) of '%.*s' and [%llu, %llu) of '%.*s' are the same bytes of one file",
                                    (unsigned long long)r->begin, (unsigned long long)r->end, TSR_STR_ARG(r->entry->fqn),
                                    (unsigned long long)widest->begin, (unsigned long long)widest->end,
                                    TSR_STR_ARG(widest->entry->fqn)));
        }
        if (r->file != widest->file || r->end > widest->end) widest = r;
    }
    return TSR_OK;
}

/* Whether shared bytes are damage, because every item is written separately. In torch.save files, tensors may share
 * storage. A map may take several entries from one item, such as experts from a stack. */
static bool bytes_are_exclusive(const tsr_catalog *catalog)
{
    const tsr_format format = catalog->format;
    if (catalog->mapped) return false;
    return format == TSR_FORMAT_DCP || format == TSR_FORMAT_MEGATRON_DIST || format == TSR_FORMAT_DCP_SAFETENSORS ||
           format == TSR_FORMAT_SAFETENSORS || format == TSR_FORMAT_SAFETENSORS_INDEX;
}

static tsr_status check_shared_bytes(const check *c, tsr_error *err)
{
    tsr_vec ranges = tsr_vec_of(c->allocator, sizeof(range));
    tsr_status status = TSR_OK;
    bool sorted = true, boxes = c->catalog->format == TSR_FORMAT_MEGATRON_DIST;
    for (uint64_t i = 0; i < c->catalog->entry_count && status == TSR_OK; i++) {
        status = gather_ranges(&c->catalog->entries[i], boxes, &ranges, &sorted, err);
    }
    if (!sorted && status == TSR_OK) qsort(ranges.items, ranges.count, sizeof(range), compare_ranges);
    if (status == TSR_OK) status = report_shared(c, ranges.items, ranges.count, err);
    tsr_vec_free(&ranges);
    return status;
}

/* Reports a state dict whose parameters were not gathered. DeepSpeed's ZeRO stage 3 keeps its small parameters whole, so not every
 * tensor of such a state dict is empty; a healthy model has an empty tensor here and there. */
static tsr_status check_placeholders(const check *c, tsr_error *err)
{
    const tsr_entry *first = NULL;
    uint64_t floating = 0, empty = 0;
    for (uint64_t i = 0; i < c->catalog->entry_count; i++) {
        const tsr_entry *entry = &c->catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR || tsr_dtype_describe(entry->dtype)->kind != TSR_CLASS_FLOAT) continue;
        floating++;
        if (entry->ndim != 1 || entry->shape[0]) continue;
        empty++;
        if (!first) first = entry;
    }
    if (empty < 2 || empty < floating / 4) return TSR_OK;
    return tsr_finding_add(c->findings, "layout/placeholders", place_of(c, first, TSR_NO_CHUNK), err,
                           "%llu of %llu floating-point tensors have the shape [0], such as '%.*s'",
                           (unsigned long long)empty, (unsigned long long)floating, TSR_STR_ARG(first->fqn));
}

tsr_status tsr_validate_catalog(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err)
{
    const check c = {catalog, host->allocator, findings};
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(check_tiling(&c, entry, err));
    }
    TSR_TRY(check_placeholders(&c, err));
    if (bytes_are_exclusive(catalog)) TSR_TRY(check_shared_bytes(&c, err));
    return tsr_validate_optimizers(catalog, host, findings, err);
}

/* ---- validate contract ---- */

/* Checks a catalog against a contract, such as a layout committed to a repository: names, kinds, dtypes, shapes and
 * boxes. */

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

static bool is_left_out(const tsr_contract *contract, tsr_str name)
{
    return contract->names.keeps && !contract->names.keeps(contract->names.ctx, name);
}

bool tsr_contract_name(const tsr_contract *contract, tsr_str fqn, tsr_str *out)
{
    const size_t n = contract->prefix.size;
    if (!tsr_str_starts(fqn, contract->prefix)) return false;
    *out = tsr_str_after(fqn, n);
    return !is_left_out(contract, fqn) && !is_left_out(contract, *out);
}

/* The rule for a name, or NULL; and the differences that are allowed for it, as bits of tsr_leniency. */
static const tsr_contract_rule *rule_of(const tsr_contract *contract, tsr_str fqn)
{
    for (size_t i = 0; i < contract->rule_count; i++) {
        if (contract->match(contract->rules[i].match, fqn)) return &contract->rules[i];
    }
    return NULL;
}

uint32_t tsr_contract_allows(const tsr_contract *contract, tsr_str fqn)
{
    const tsr_contract_rule *rule = rule_of(contract, fqn);
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
    const tsr_contract_rule *rule = rule_of(c->contract, wanted->fqn);
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
        if (is_left_out(c->contract, wanted->fqn)) continue;
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
            if (tsr_map_get(known, tsr_str_after(name, at + 1), UINT32_MAX) == UINT32_MAX) continue;
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
                               "%u of the %llu names of %s are in the checkpoint with '%.*s' before them; --prefix "
                               "strips it",
                               count, (unsigned long long)expected->entry_count, contract->called, TSR_STR_ARG(prefix));
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
