/* Filters, renames, casts and rejects entries, before anything is written. */
#include <inttypes.h>

#include "base/line.h"
#include "convert/convert_to.h"
#include "tessera/convert.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/read.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

#define NAMED 5u /* entries named in an error message; the rest is counted */

const char tsr_put_aside[] = "written to the sidecar";

/* Tensors that are not dense are an OBJECT with one part, a DICT of the data that was kept. */
bool tsr_is_object(const tsr_entry *entry)
{
    const tsr_value *value = entry->value;
    if (entry->kind != TSR_ENTRY_OPAQUE || !value) return entry->kind == TSR_ENTRY_OBJECT;
    const bool parts = value->kind == TSR_VALUE_OBJECT && value->count && value->items[0]->kind == TSR_VALUE_DICT;
    return !parts && entry->dtype == TSR_DTYPE_NONE;
}

const char *tsr_opaque_refusal(const tsr_entry *entry)
{
    return tsr_str_equal(entry->type, TSR_STR("missing")) ? "is not in any of the files" : "is not a dense tensor";
}

/* `scalar`: of an optimizer's state. */
static tsr_status choose(const tsr_chosen *s, tsr_converted *row, bool scalar, tsr_error *err)
{
    const tsr_convert_options *options = s->options;
    const tsr_entry *entry = row->entry;
    const bool drops = options->objects == TSR_OBJECTS_DROP || options->objects == TSR_OBJECTS_SIDECAR;
    if (options->want && !options->want(options->want_ctx, entry->fqn)) {
        row->left_out = "not selected";
        return TSR_OK;
    }
    if (drops && tsr_is_object(entry)) {
        row->left_out = options->objects == TSR_OBJECTS_DROP ? "objects are dropped" : tsr_put_aside;
        return TSR_OK;
    }
    row->written = true;
    row->name = entry->fqn;
    if (options->rename) TSR_TRY(options->rename(options->rename_ctx, entry->fqn, s->arena, &row->name, err));
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    const bool casts = options->dtype != TSR_DTYPE_NONE && options->dtype != entry->dtype &&
                       tsr_cast_possible(entry->dtype, options->dtype);
    row->kept = casts && scalar;
    row->cast = casts && !scalar;
    row->dtype = row->cast ? options->dtype : entry->dtype;
    return TSR_OK;
}

static tsr_status check_names(const tsr_chosen *s, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(s->checkpoint)->allocator;
    tsr_map *map = tsr_map_new(allocator, (size_t)s->count, err);
    if (!map) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < s->count && status == TSR_OK; i++) {
        uint32_t *first;
        bool inserted;
        if (!s->rows[i].written) continue;
        status = tsr_map_put(map, s->rows[i].name, (uint32_t)i, &first, &inserted, err);
        if (status != TSR_OK || inserted) continue;
        status = tsr_fail(err, TSR_E_USAGE, "'%.*s' and '%.*s' would both be named '%.*s'",
                          TSR_STR_ARG(s->rows[*first].entry->fqn), TSR_STR_ARG(s->rows[i].entry->fqn),
                          TSR_STR_ARG(s->rows[i].name));
    }
    tsr_map_free(map);
    return status;
}

static const char *reason(const tsr_chosen *s, const tsr_converted *row, const char *(*refusal)(const tsr_converted *row))
{
    const bool object = tsr_is_object(row->entry);
    if (row->entry->kind == TSR_ENTRY_TENSOR && !tsr_torch_version_has(s->options->for_torch, row->dtype))
        return "has a dtype that this version of PyTorch does not have";
    const char *why = refusal(row);
    return !why && object && s->options->objects == TSR_OBJECTS_REFUSE ? "is an object, and objects are refused" : why;
}

/* Fails for a tensor with elements that no chunk has, or whose data file is missing, and for an object that was not read because a data file
 * is missing. */
static tsr_status check_elements(const tsr_chosen *s, tsr_error *err)
{
    size_t missing;
    tsr_checkpoint_missing(s->checkpoint, &missing);
    for (uint64_t i = 0; i < s->count; i++) {
        const tsr_entry *entry = s->rows[i].entry;
        if (!s->rows[i].written) continue;
        if (entry->kind != TSR_ENTRY_TENSOR && missing && tsr_is_object(entry) && !entry->value)
            return tsr_checkpoint_raise_missing(s->checkpoint, entry->fqn, err);
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        TSR_TRY(tsr_checkpoint_check_present(s->checkpoint, entry, err));
        TSR_TRY(tsr_entry_must_tile(entry, tsr_checkpoint_host(s->checkpoint)->allocator, err));
    }
    return TSR_OK;
}

static bool is_in(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_str file)
{
    const tsr_store *store = tsr_checkpoint_store(checkpoint);
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        const uint32_t f = entry->chunks[c].file;
        if (f < store->file_count && tsr_str_equal(store->files[f].name, file)) return true;
    }
    return false;
}

/* The finding that says why an entry could not be read; NULL if there is none. */
static const tsr_finding *finding_of(const tsr_chosen *s, const tsr_entry *entry)
{
    const tsr_findings *findings = tsr_checkpoint_findings(s->checkpoint);
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        if (strcmp(finding->rule->id, "dcp/extension") == 0) return finding;
        if (finding->level != TSR_ERROR) continue;
        if (finding->fqn.data && tsr_str_equal(finding->fqn, entry->fqn)) return finding;
        if (strcmp(finding->rule->id, "file/io") == 0 && is_in(s->checkpoint, entry, finding->file)) return finding;
    }
    return NULL;
}

/* For an object that was not read for another reason, such as expired credentials: fails with a message about that
 * reason. */
static tsr_status check_objects(const tsr_chosen *s, tsr_error *err)
{
    for (uint64_t i = 0; i < s->count && s->options->objects != TSR_OBJECTS_REFUSE; i++) {
        const tsr_entry *entry = s->rows[i].entry;
        if (!s->rows[i].written || !tsr_is_object(entry) || entry->value) continue;
        const tsr_finding *finding = finding_of(s, entry);
        if (!finding) continue;
        return tsr_raise(err, TSR_E_FORMAT, finding->byte_offset, "the object '%.*s' could not be read: %.*s",
                         TSR_STR_ARG(entry->fqn), TSR_STR_ARG(finding->message));
    }
    return TSR_OK;
}

/* The name of an entry for the message, and the class of a tensor that is not dense. */
static tsr_str refused_name(const tsr_chosen *s, const tsr_entry *entry, tsr_error *err)
{
    const bool is_class = entry->kind == TSR_ENTRY_OPAQUE && !tsr_is_object(entry) && entry->dtype != TSR_DTYPE_NONE;
    return is_class ? tsr_arena_format(s->arena, err, "'%.*s' (%.*s)", TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type))
                    : tsr_arena_format(s->arena, err, "'%.*s'", TSR_STR_ARG(entry->fqn));
}

/* Fails with one message for all entries that cannot be written. It names the first few, and states a reason once where it is
 * that of several entries in a row. */
static tsr_status check_refusals(const tsr_chosen *s, const char *(*refusal)(const tsr_converted *row), tsr_error *err)
{
    tsr_str list = {NULL, 0};
    uint64_t refused = 0;
    const char *last = NULL, *next = "";
    for (uint64_t i = 0; i < s->count; i++) {
        const char *why = s->rows[i].written ? reason(s, &s->rows[i], refusal) : NULL;
        if (!why || refused++ >= NAMED) continue;
        const bool again = why == last;
        const tsr_str name = refused_name(s, s->rows[i].entry, err);
        if (!name.data) return TSR_E_NOMEM;
        list = tsr_arena_format(s->arena, err, again ? "%.*s%s%.*s" : "%.*s%s%.*s %s", TSR_STR_ARG(list),
                                again || !last ? next : ", ", TSR_STR_ARG(name), why);
        if (!list.data) return TSR_E_NOMEM;
        next = again ? ", " : ", likewise ";
        last = why;
    }
    if (refused == 0) return TSR_OK;
    if (refused <= NAMED) return tsr_fail(err, TSR_E_UNSUPPORTED, "%.*s", TSR_STR_ARG(list));
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%.*s, and %llu more %s cannot be written", TSR_STR_ARG(list),
                    (unsigned long long)(refused - NAMED), refused - NAMED == 1 ? "entry" : "entries");
}

/* Marks entries on a storage that another written entry also uses. */
static tsr_status mark_copies(const tsr_chosen *s, tsr_error *err)
{
    uint32_t largest = 0;
    for (uint64_t i = 0; i < s->count; i++) {
        if (s->rows[i].written && s->rows[i].entry->storage_id > largest) largest = s->rows[i].entry->storage_id;
    }
    uint32_t *users = tsr_arena_array(s->arena, (size_t)largest + 1, sizeof *users, err);
    if (!users) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < s->count; i++) {
        /* Entries that are not written may have higher storage ids than the largest. */
        if (s->rows[i].written) users[s->rows[i].entry->storage_id]++;
    }
    for (uint64_t i = 0; i < s->count; i++) {
        s->rows[i].copied = s->rows[i].written && s->rows[i].entry->storage_id && users[s->rows[i].entry->storage_id] > 1;
    }
    return TSR_OK;
}

/* TSR_E_USAGE for a dtype that tensors are not cast to: integers, bool, complex and quantized ones. */
static tsr_status check_cast_target(tsr_dtype dtype, tsr_error *err)
{
    const bool known = dtype == TSR_DTYPE_NONE || tsr_cast_possible(dtype, dtype);
    TSR_FAIL_IF(!known, err, TSR_E_USAGE, "tensors can only be cast to floating-point types, not to %s",
                tsr_dtype_describe(dtype)->name);
    return TSR_OK;
}

tsr_status tsr_choose(tsr_checkpoint *checkpoint, const tsr_convert_options *options,
                      const char *(*refusal)(const tsr_converted *row), tsr_arena *arena, tsr_chosen *out, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    TSR_TRY(check_cast_target(options->dtype, err));
    TSR_FAIL_IF(catalog->entry_count > UINT32_MAX, err, TSR_E_LIMIT, "too many entries to convert");
    tsr_converted *rows = tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *rows, err);
    bool *scalars = rows ? tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *scalars, err) : NULL;
    if (!scalars) return TSR_E_NOMEM;
    if (options->dtype != TSR_DTYPE_NONE)
        TSR_TRY(tsr_optimizer_scalars(catalog, tsr_checkpoint_host(checkpoint)->allocator, scalars, err));
    *out = (tsr_chosen){checkpoint, options, arena, rows, catalog->entry_count, 0};
    for (uint64_t i = 0; i < out->count; i++) {
        rows[i].entry = &catalog->entries[i];
        TSR_TRY(choose(out, &rows[i], scalars[i], err));
        out->tensor_count += rows[i].written && rows[i].entry->kind == TSR_ENTRY_TENSOR;
    }
    TSR_TRY(tsr_check_casts(checkpoint, options, err));
    TSR_TRY(check_elements(out, err));
    TSR_TRY(check_objects(out, err));
    TSR_TRY(check_refusals(out, refusal, err));
    TSR_TRY(check_names(out, err));
    return mark_copies(out, err);
}

/* ---- cast options ---- */

/* Options about dtypes: --dtype, --raw-cast and --for-torch. */

static bool is_wanted(const void *ctx, tsr_str fqn)
{
    const tsr_convert_options *options = ctx;
    return !options->want || options->want(options->want_ctx, fqn);
}

tsr_status tsr_check_casts(tsr_checkpoint *checkpoint, const tsr_convert_options *options, tsr_error *err)
{
    tsr_convert_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_convert_options, err));
    TSR_TRY(check_cast_target(own.dtype, err));
    const tsr_arithmetic cast = {.selection = {is_wanted, &own}, .dtype = own.dtype};
    return own.dtype == TSR_DTYPE_NONE || own.raw_cast ? TSR_OK : tsr_check_arithmetic(checkpoint, &cast, err);
}

tsr_status tsr_cast_parse(tsr_str dtype, bool raw_cast, tsr_dtype *out, tsr_error *err)
{
    *out = dtype.data ? tsr_dtype_from_text(dtype) : TSR_DTYPE_NONE;
    TSR_FAIL_IF(dtype.data && *out == TSR_DTYPE_NONE, err, TSR_E_USAGE,
                "unknown dtype '%.*s'; choose a floating-point dtype such as float32, bfloat16, float16 or float8_e4m3fn",
                TSR_STR_ARG(dtype));
    TSR_FAIL_IF(raw_cast && !dtype.data, err, TSR_E_USAGE, "--raw-cast needs --dtype");
    return TSR_OK;
}

/* ---- conversion fit ---- */

/* Checks whether what a conversion would write is what is expected (tessera/validate.h). */

enum { MOST_SHOWN = 5, SHOWN_BYTES = 600 };

static tsr_entry entry_at_destination(const tsr_converted *row)
{
    tsr_entry entry = *row->entry;
    entry.fqn = row->name;
    if (entry.kind == TSR_ENTRY_TENSOR) entry.dtype = row->dtype;
    entry.chunks = entry.replicas = NULL;
    entry.chunk_count = entry.replica_count = 0;
    return entry;
}

static tsr_status list_written(const tsr_conversion *conversion, tsr_arena *arena, tsr_catalog *out, tsr_error *err)
{
    *out = (tsr_catalog){0};
    tsr_entry *entries = tsr_arena_array(arena, (size_t)conversion->row_count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    out->entries = entries;
    for (uint64_t i = 0; i < conversion->row_count; i++)
        if (conversion->rows[i].written) entries[out->entry_count++] = entry_at_destination(&conversion->rows[i]);
    return TSR_OK;
}

/* Fails with one error that has the first findings and the number of the others. */
static tsr_status refuse(const tsr_findings *findings, tsr_error *err)
{
    char shown[SHOWN_BYTES];
    tsr_line line = tsr_line_on(shown, sizeof shown);
    uint64_t left = tsr_findings_total(findings, TSR_ERROR);
    tsr_str hint = TSR_STR("");
    for (size_t i = 0, count = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        if (strcmp(finding->rule->id, "layout/prefix") == 0) hint = finding->message;
        if (finding->level != TSR_ERROR || count == MOST_SHOWN || line.used + finding->message.size + 4 > sizeof shown)
            continue;
        if (count++) tsr_line_put(&line, "; ", 2);
        tsr_line_put(&line, finding->message.data, finding->message.size);
        left--;
    }
    const char *before_hint = hint.size ? "; " : "";
    if (!left)
        return tsr_fail(err, TSR_E_FORMAT, "the result would not load: %.*s%s%.*s", (int)line.used, shown, before_hint,
                        TSR_STR_ARG(hint));
    return tsr_fail(err, TSR_E_FORMAT, "the result would not load: %.*s%s%" PRIu64 " more%s%.*s", (int)line.used, shown,
                    line.used ? "; and " : "", left, before_hint, TSR_STR_ARG(hint));
}

tsr_status tsr_conversion_check(const tsr_conversion *conversion, const tsr_contract *expected, const tsr_host *host,
                                tsr_error *err)
{
    tsr_catalog written;
    tsr_contract contract = *expected;
    contract.allow |= TSR_ANY_CHUNKS;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_findings *findings = arena ? tsr_findings_new(host->allocator, MOST_SHOWN, err) : NULL;
    tsr_status status = findings ? list_written(conversion, arena, &written, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_validate_contract(&written, &contract, host, findings, err);
    if (status == TSR_OK && tsr_findings_total(findings, TSR_ERROR)) status = refuse(findings, err);
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    return status;
}

/* ---- rows and plans ---- */

tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry)
{
    tsr_converted *row = &chosen->rows[entry - tsr_checkpoint_catalog(chosen->checkpoint)->entries];
    return row->written ? row : NULL;
}

tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err)
{
    bool *is_planned = tsr_arena_array(chosen->arena, (size_t)chosen->count, sizeof *is_planned, err);
    if (!is_planned) return TSR_E_NOMEM;
    const tsr_entry *first = tsr_checkpoint_catalog(chosen->checkpoint)->entries;
    for (uint64_t i = 0; i < tsr_plan_count(plan); i++) {
        const tsr_planned planned = tsr_plan_tensor_at(plan, i);
        is_planned[planned.entry - first] = true;
        chosen->rows[planned.entry - first].replicated = planned.replicated;
    }
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        if (is_planned[i] || !row->written || row->entry->kind != TSR_ENTRY_TENSOR) continue;
        row->written = false;
        row->left_out = "not in the plan";
    }
    return TSR_OK;
}

static uint32_t file_of(const tsr_vec *items, size_t item, size_t file_at)
{
    uint32_t file;
    memcpy(&file, (const char *)items->items + item * items->item_size + file_at, sizeof file);
    return file;
}

tsr_status tsr_order_by_file(const tsr_vec *items, size_t file_at, uint64_t files, tsr_arena *arena, const size_t **order,
                             tsr_error *err)
{
    size_t *next = tsr_arena_array(arena, (size_t)files + 1, sizeof *next, err);
    size_t *sorted = tsr_arena_array(arena, items->count, sizeof *sorted, err);
    if (!next || !sorted) return TSR_E_NOMEM;
    for (size_t i = 0; i < items->count; i++) next[file_of(items, i, file_at) + 1]++;
    for (uint64_t f = 0; f < files; f++) next[f + 1] += next[f];
    for (size_t i = 0; i < items->count; i++) sorted[next[file_of(items, i, file_at)]++] = i;
    *order = sorted;
    return TSR_OK;
}
