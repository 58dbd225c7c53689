/* tessera.convert/1: what a conversion wrote, and its warnings. */
#include <inttypes.h>
#include <string.h>

#include "base/line.h"
#include "convert/convert_to.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/store.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

#define FINDINGS_SHOWN 5u
#define NAMES_SHOWN    5u
#define NAMES_BYTES    1024u
#define METADATA_BYTES 2048u
#define RANKS_SHOWN    8u

void tsr_conversion_count(const tsr_conversion *conversion, tsr_conversion_counts *out)
{
    tsr_conversion_counts c = {0};
    for (uint64_t i = 0; i < conversion->row_count; i++) {
        const tsr_converted *row = &conversion->rows[i];
        const bool tensor = row->entry->kind == TSR_ENTRY_TENSOR;
        c.tensors += row->written && tensor;
        c.objects += row->written && !tensor;
        c.left_out += !row->written;
        c.set_aside += row->left_out == tsr_put_aside;
        c.cast += row->cast;
        c.kept += row->kept;
        c.copied += row->copied;
        c.replicated += row->written && row->replicated;
        c.not_weights_only += row->written && !tensor && !row->weights_only;
    }
    *out = c;
}

/* ---- warnings ---- */

static tsr_status add(tsr_vec *warnings, tsr_str text, tsr_error *err)
{
    tsr_str *own = text.data ? tsr_vec_push(warnings, err) : NULL;
    if (!own) return TSR_E_NOMEM;
    *own = text;
    return TSR_OK;
}

static tsr_str plural(uint64_t n, const char *one, tsr_arena *arena, tsr_error *err)
{
    char number[TSR_NUMBER_TEXT];
    return tsr_arena_format(arena, err, "%s %s%s", tsr_number_text(n, number), one, n == 1 ? "" : "s");
}

/* "a, b, c and 12 more" for the rows that `picks` selects. */
static tsr_str name_some(const tsr_conversion *conversion, bool (*picks)(const tsr_converted *row), tsr_arena *arena,
                         tsr_error *err)
{
    char names[NAMES_BYTES];
    tsr_line line = tsr_line_on(names, sizeof names);
    uint64_t more = 0;
    size_t named = 0;
    for (uint64_t i = 0; i < conversion->row_count; i++) {
        const tsr_converted *row = &conversion->rows[i];
        if (!picks(row)) continue;
        if (named == NAMES_SHOWN || line.used + row->entry->fqn.size + 40 >= sizeof names) {
            more++;
            continue;
        }
        const tsr_str fqn = row->entry->fqn.size ? row->entry->fqn : TSR_STR("(root)");
        if (named++) tsr_line_put(&line, ", ", 2);
        tsr_line_put(&line, fqn.data, fqn.size);
    }
    if (more) tsr_line_format(&line, " and %" PRIu64 " more", more);
    return tsr_arena_str(arena, (tsr_str){names, line.used}, err);
}

static bool is_copied(const tsr_converted *row)
{
    return row->copied;
}

static bool needs_full_pickle(const tsr_converted *row)
{
    return row->written && row->entry->kind != TSR_ENTRY_TENSOR && !row->weights_only;
}

/* Whether an object has lists or dicts inside whose class is not written. */
static bool loses_classes(const tsr_converted *row)
{
    return row->written && row->entry->value && row->entry->value->loses_class;
}

static tsr_status add_finding(const tsr_finding *f, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    const tsr_str text = tsr_arena_format(arena, err, "%.*s%s%.*s (%s)", TSR_STR_ARG(f->file), f->file.size ? ": " : "",
                                          TSR_STR_ARG(f->message), f->rule->id);
    return add(warnings, text, err);
}

/* ---- copies of several ranks ---- */

typedef struct rank_list {
    tsr_line text;
    uint64_t shown[RANKS_SHOWN];
    size_t count;
} rank_list;

static size_t directory_size(tsr_str path)
{
    size_t size = path.size;
    while (size && path.data[size - 1] != '/') size--;
    return size;
}

/* Adds the rank in the name of a rank's file, "__RANK_0.distcp". */
static void list_rank(rank_list *ranks, tsr_str name)
{
    uint64_t rank = 0;
    size_t at = 2;
    if (!tsr_str_starts(name, TSR_STR("__"))) return;
    while (at < name.size && tsr_is_digit(name.data[at])) rank = 10 * rank + (uint64_t)(name.data[at++] - '0');
    if (at == 2 || at == name.size || name.data[at] != '_') return;
    for (size_t i = 0; i < ranks->count; i++)
        if (ranks->shown[i] == rank) return;
    if (ranks->count == RANKS_SHOWN) return;
    tsr_line_format(&ranks->text, "%s%" PRIu64, ranks->count ? ", " : "", rank);
    ranks->shown[ranks->count++] = rank;
}

static void list_ranks(rank_list *ranks, const tsr_store *store, const tsr_chunk *chunks, uint64_t count)
{
    for (uint64_t c = 0; c < count; c++) {
        if (chunks[c].file == TSR_NO_FILE) continue;
        const tsr_str path = store->files[chunks[c].file].name;
        const size_t directory = directory_size(path);
        list_rank(ranks, tsr_str_after(path, directory));
    }
}

/* Whether there is metadata of all ranks next to a data file. */
static tsr_status has_common_metadata(tsr_store *store, uint32_t file, tsr_arena *arena, bool *out, tsr_error *err)
{
    const tsr_str path = store->files[file].name;
    const tsr_str marker = tsr_arena_format(arena, err, "%.*s.metadata", (int)directory_size(path), path.data);
    if (!marker.data) return TSR_E_NOMEM;
    *out = tsr_store_find(store, marker) != TSR_NO_FILE;
    return TSR_OK;
}

/* Adds a warning if several ranks, each with its own metadata, saved the same entries: only one copy of each is used, and
 * nothing says that they are equal. */
static tsr_status add_copies(tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_store *store = tsr_checkpoint_store(checkpoint);
    const tsr_entry *first = NULL;
    uint64_t count = 0;
    bool common;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (!entry->replica_count || entry->replicas->file == TSR_NO_FILE) continue;
        if (!first) TSR_TRY(has_common_metadata(store, entry->replicas->file, arena, &common, err));
        if (!first && common) return TSR_OK;
        if (!first) first = entry;
        count++;
    }
    if (!first) return TSR_OK;
    char numbers[NAMES_BYTES];
    rank_list ranks = {.text = tsr_line_on(numbers, sizeof numbers)};
    list_ranks(&ranks, store, first->chunks, first->chunk_count);
    list_ranks(&ranks, store, first->replicas, first->replica_count);
    if (ranks.count < 2) return TSR_OK;
    const tsr_str entries = count > 1 ? tsr_arena_format(arena, err, " and %" PRIu64 " more", count - 1) : TSR_STR("");
    if (!entries.data) return TSR_E_NOMEM;
    return add(
        warnings,
        tsr_arena_format(arena, err,
                         "each rank wrote its own metadata, and ranks %.*s%s saved '%.*s'%.*s; of these the copy of the "
                         "lowest rank is used, and deep validation reports copies that differ",
                         (int)ranks.text.used, numbers, ranks.count == RANKS_SHOWN ? ", …" : "", TSR_STR_ARG(first->fqn),
                         TSR_STR_ARG(entries)),
        err);
}

tsr_status tsr_opening_warnings(tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    static const char *const rules[] = {"parts/left-out",    "parts/one-of-several",    "parts/passed-over",
                                        "index/other-model", "index/unreferenced-file", "dcp/unreferenced-file"};
    const tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    tsr_str latest;
    TSR_TRY(tsr_latest_warning(checkpoint, arena, &latest, err));
    if (latest.size) TSR_TRY(add(warnings, latest, err));
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        for (size_t r = 0; r < sizeof rules / sizeof *rules && f->level == TSR_WARNING; r++)
            if (strcmp(f->rule->id, rules[r]) == 0) TSR_TRY(add_finding(f, arena, warnings, err));
    }
    return add_copies(checkpoint, arena, warnings, err);
}

/* Adds the errors that the reader found in data that was converted nevertheless. */
static tsr_status add_errors(const tsr_findings *findings, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    uint64_t left = tsr_findings_total(findings, TSR_ERROR);
    size_t shown = 0;
    for (size_t i = 0; i < tsr_findings_count(findings) && shown < FINDINGS_SHOWN; i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        if (f->level != TSR_ERROR) continue;
        TSR_TRY(add_finding(f, arena, warnings, err));
        shown++;
        left--;
    }
    if (!left) return TSR_OK;
    const tsr_str errors = plural(left, "error", arena, err);
    return add(warnings, tsr_arena_format(arena, err, "%.*s more; run tessera validate to list them", TSR_STR_ARG(errors)),
               err);
}

static void name_key(tsr_line *line, tsr_str key, size_t *named, uint64_t *more)
{
    if (line->used + key.size + 40 >= METADATA_BYTES) {
        ++*more;
        return;
    }
    if ((*named)++) tsr_line_put(line, ", ", 2);
    tsr_line_put(line, key.data, key.size);
}

/* Adds the pairs of __metadata__ that the output does not have: in safetensors those on which the files disagree, in other
 * containers all. */
static tsr_status add_dropped(const tsr_catalog *catalog, bool keeps, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    char names[METADATA_BYTES];
    tsr_line line = tsr_line_on(names, sizeof names);
    uint64_t more = 0;
    size_t named = 0;
    for (size_t i = 0; !keeps && i < catalog->metadata_count; i++) {
        const tsr_text_pair *pair = &catalog->metadata[i];
        const bool plain = tsr_str_equal(pair->key, TSR_STR("format")) && tsr_str_equal(pair->value, TSR_STR("pt"));
        if (!plain) name_key(&line, pair->key, &named, &more);
    }
    for (size_t i = 0; i < catalog->differing_count; i++) name_key(&line, catalog->differing_keys[i], &named, &more);
    if (!named && !more) return TSR_OK;
    if (more) tsr_line_format(&line, " and %" PRIu64 " more", more);
    return add(warnings,
               tsr_arena_format(arena, err, "%s dropped: %.*s",
                                keeps ? "keys of safetensors' __metadata__ that are not the same everywhere are"
                                      : "safetensors' __metadata__ has no place in the output and is",
                                (int)line.used, names),
               err);
}

/* "3 values" with what became of them, and the first tensor of them. */
static tsr_status add_lost(const tsr_lost_values *lost, const char *became, tsr_arena *arena, tsr_vec *warnings,
                           tsr_error *err)
{
    if (!lost->count) return TSR_OK;
    const tsr_str values = plural(lost->count, "value", arena, err);
    return add(warnings,
               tsr_arena_format(arena, err, "%.*s %s %s, first in '%.*s'", TSR_STR_ARG(values), became,
                                tsr_dtype_describe(lost->dtype)->name, TSR_STR_ARG(lost->fqn)),
               err);
}

/* What values became that are too large for a dtype. */
static const char *overflow_of(tsr_dtype dtype)
{
    switch (dtype) {
    case TSR_FLOAT8_E4M3FN: return "became the largest number of";
    case TSR_FLOAT8_E4M3FNUZ:
    case TSR_FLOAT8_E5M2FNUZ:
    case TSR_FLOAT8_E8M0FNU: return "became NaN in the cast to";
    default: return "became infinite in the cast to";
    }
}

/* ---- dicts that a container cannot hold as they are ---- */

typedef struct listing {
    tsr_arena *arena;
    tsr_str names;
    tsr_str last; /* of the dict that was listed or counted last */
    uint64_t count;
    tsr_error *err;
} listing;

/* Adds the name of a dict, and of its class unless that is empty. */
static tsr_status list_name(listing *l, tsr_str name, tsr_str class)
{
    if (l->count++ >= NAMES_SHOWN) return TSR_OK;
    l->names = tsr_arena_format(l->arena, l->err, "%.*s%s%.*s%s%.*s%s", TSR_STR_ARG(l->names), l->names.size ? ", " : "",
                                TSR_STR_ARG(name.size ? name : TSR_STR("the outermost one")), class.size ? " (" : "",
                                TSR_STR_ARG(class), class.size ? ")" : "");
    return l->names.data ? TSR_OK : TSR_E_NOMEM;
}

/* Adds a warning, `text` with the names, if there are any. */
static tsr_status warn_of_listed(listing *l, const char *text, tsr_vec *warnings)
{
    if (!l->count) return TSR_OK;
    if (l->count > NAMES_SHOWN)
        l->names =
            tsr_arena_format(l->arena, l->err, "%.*s and %" PRIu64 " more", TSR_STR_ARG(l->names), l->count - NAMES_SHOWN);
    tsr_str *warning = l->names.data ? tsr_vec_push(warnings, l->err) : NULL;
    if (!warning) return TSR_E_NOMEM;
    *warning = tsr_arena_format(l->arena, l->err, "%s: %.*s", text, TSR_STR_ARG(l->names));
    return warning->data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether something in the dict is written. Its entries follow each other. */
static bool is_written(const tsr_conversion *conversion, const tsr_mapping *mapping)
{
    const tsr_str name = mapping->fqn;
    for (uint64_t i = mapping->entries_before; i < conversion->row_count; i++) {
        const tsr_converted *row = &conversion->rows[i];
        const tsr_str fqn = row->entry->fqn;
        const bool inside =
            !mapping->path_length || (tsr_str_starts(fqn, name) && fqn.size > name.size && fqn.data[name.size] == '.');
        if (!inside) return false;
        if (row->written) return true;
    }
    return false;
}

static bool is_changed(const tsr_conversion *conversion, const tsr_mapping *mapping, tsr_value_variant variant,
                       const tsr_selection *selection)
{
    if (mapping->value->variant != variant) return false;
    return mapping->value->count ? is_written(conversion, mapping) : tsr_selection_keeps(selection, mapping->fqn);
}

/* Adds a warning about the modules and TensorDicts of the state dict, of which only the tensors are written. For a conversion to
 * torch.save also about the dicts that were a collections.defaultdict or of another subclass: as containers of entries they are written
 * as dict, so that torch.load can load the rest by its default. */
static tsr_status add_changed_dicts(const tsr_catalog *catalog, const tsr_conversion *conversion, tsr_container to,
                                    const tsr_selection *selection, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
#define REFUSED "written as dict, because torch.load(weights_only=True) refuses "
    static const struct {
        tsr_value_variant variant;
        const char *text;
    } changes[] = {{TSR_VARIANT_STATE_DICT, "written as state dicts instead of the objects that they were"},
                   {TSR_VARIANT_DEFAULTDICT, REFUSED "collections.defaultdict"},
                   {TSR_VARIANT_SUBCLASS, REFUSED "their classes"}};
    const size_t count =
        to == TSR_TO_TORCH || to == TSR_TO_RANKS ? sizeof changes / sizeof *changes : 1; /* others have no dicts */
    for (size_t c = 0; c < count; c++) {
        listing l = {.arena = arena, .names = {"", 0}, .err = err};
        for (uint64_t i = 0; i < catalog->mapping_count; i++) {
            const tsr_mapping *mapping = &catalog->mappings[i];
            if (!is_changed(conversion, mapping, changes[c].variant, selection)) continue;
            const bool has_class = changes[c].variant != TSR_VARIANT_DEFAULTDICT;
            TSR_TRY(list_name(&l, mapping->fqn, has_class ? mapping->value->text : TSR_STR("")));
        }
        TSR_TRY(warn_of_listed(&l, changes[c].text, warnings));
    }
    return TSR_OK;
}

/* ---- keys that are not texts ---- */

static tsr_status list_dict(listing *l, tsr_str name)
{
    if (l->count && tsr_str_equal(l->last, name)) return TSR_OK; /* the entries of a dict follow each other */
    l->last = name;
    return list_name(l, name, TSR_STR(""));
}

/* Lists the dicts on the way to an entry in which the key is not a text. */
static tsr_status list_dicts(listing *l, const tsr_entry *entry, const tsr_path_item *id)
{
    size_t end = 0;
    for (uint32_t i = 0; entry->path && i < entry->path_length; i++) {
        const tsr_path_item *item = &entry->path[i];
        if (item != id && (item->kind == TSR_PATH_INT_KEY || item->value))
            TSR_TRY(list_dict(l, (tsr_str){entry->fqn.data, end}));
        end += tsr_path_item_size(item) + (i ? 1 : 0);
    }
    return TSR_OK;
}

/* The path item that is an id of an optimizer, if the conversion writes the list of ids too: then reading makes ints of them
 * again. */
static const tsr_path_item *kept_id(const tsr_stored_optimizers *all, const tsr_catalog *catalog,
                                    const tsr_conversion *conversion, const tsr_entry *entry)
{
    const uint64_t number = (uint64_t)(entry - catalog->entries);
    const tsr_path_item *item = tsr_stored_optimizers_id_of(all, catalog, number);
    if (!item) return NULL;
    const tsr_entry *list = all->groups[all->params[all->owner_params[number] - 1].group].list;
    return conversion->rows[list - catalog->entries].written ? item : NULL;
}

/* For a DCP, whose keys are texts: adds a warning about the dicts that have other keys, such as ints. The ids of optimizers are not among
 * them, because tsr_convert makes ints of them again. */
static tsr_status add_text_keys(tsr_checkpoint *checkpoint, const tsr_conversion *conversion, tsr_arena *arena,
                                tsr_vec *warnings, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    listing l = {.arena = arena, .names = {"", 0}, .err = err};
    tsr_stored_optimizers all;
    TSR_TRY(tsr_stored_optimizers_find(catalog, tsr_checkpoint_host(checkpoint), arena, &all, err));
    for (uint64_t i = 0; i < conversion->row_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (conversion->rows[i].written) TSR_TRY(list_dicts(&l, entry, kept_id(&all, catalog, conversion, entry)));
    }
    return warn_of_listed(&l, "ints and other keys become texts, the only keys that a DCP has, in", warnings);
}

/* ---- all of them ---- */

tsr_status tsr_conversion_warnings(tsr_checkpoint *checkpoint, const tsr_conversion *conversion, tsr_container to,
                                   const tsr_selection *selection, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    tsr_conversion_counts counts;
    /* The files of ranks may be either. */
    const bool is_safetensors = to == TSR_TO_SAFETENSORS || (to == TSR_TO_RANKS && conversion->file_count &&
                                                             tsr_str_ends(conversion->files[0], TSR_STR(".safetensors")));
    tsr_conversion_count(conversion, &counts);
    TSR_TRY(add_errors(tsr_checkpoint_findings(checkpoint), arena, warnings, err));
    TSR_TRY(add_dropped(tsr_checkpoint_catalog(checkpoint), is_safetensors, arena, warnings, err));
    if (conversion->lacks_objects)
        TSR_TRY(add(warnings, TSR_STR("objects.json is not written, because there are no objects to write to it"), err));
    if (counts.copied) {
        const tsr_str names = name_some(conversion, is_copied, arena, err),
                      tensors = plural(counts.copied, "tensor", arena, err);
        TSR_TRY(add(warnings,
                    tsr_arena_format(arena, err, "%.*s that shared storage %s now: %.*s", TSR_STR_ARG(tensors),
                                     counts.copied == 1 ? "is an independent copy" : "are independent copies",
                                     TSR_STR_ARG(names)),
                    err));
    }
    TSR_TRY(add_lost(&conversion->zeros, "became zero in the cast to", arena, warnings, err));
    TSR_TRY(add_lost(&conversion->overflows, overflow_of(conversion->overflows.dtype), arena, warnings, err));
    tsr_str names = is_safetensors ? TSR_STR("") : name_some(conversion, loses_classes, arena, err);
    if (!names.data) return TSR_E_NOMEM;
    if (names.size)
        TSR_TRY(add(warnings,
                    tsr_arena_format(arena, err, "lists and dicts of other classes are written as list and dict in: %.*s",
                                     TSR_STR_ARG(names)),
                    err));
    if (counts.not_weights_only) {
        names = name_some(conversion, needs_full_pickle, arena, err);
        TSR_TRY(add(warnings,
                    tsr_arena_format(arena, err, "torch.load(weights_only=True) will refuse: %.*s", TSR_STR_ARG(names)),
                    err));
    }
    TSR_TRY(add_changed_dicts(tsr_checkpoint_catalog(checkpoint), conversion, to, selection, arena, warnings, err));
    return to == TSR_TO_DCP ? add_text_keys(checkpoint, conversion, arena, warnings, err) : TSR_OK;
}

/* ---- the document ---- */

static void put_tensor(tsr_json *json, const tsr_conversion *conversion, const tsr_converted *row)
{
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(row->dtype)->name);
    if (row->cast) tsr_json_put_text(json, "cast_from", tsr_dtype_describe(row->entry->dtype)->name);
    if (row->file < conversion->file_count) tsr_json_put_str(json, "file", conversion->files[row->file]);
    tsr_json_put_uint(json, "bytes", row->bytes);
    if (row->second_of) tsr_json_put_str(json, "second_name_of", row->second_of->name);
    if (row->copied) tsr_json_put_bool(json, "copied", true);
    if (row->replicated) tsr_json_put_bool(json, "replicated", true);
}

static void put_row(tsr_json *json, const tsr_conversion *conversion, const tsr_converted *row)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "fqn", row->entry->fqn);
    if (!row->written) {
        tsr_json_put_text(json, "left_out", row->left_out);
    } else {
        if (!tsr_str_equal(row->name, row->entry->fqn)) tsr_json_put_str(json, "name", row->name);
        if (row->entry->kind == TSR_ENTRY_TENSOR) {
            put_tensor(json, conversion, row);
        } else {
            tsr_json_put_bool(json, "weights_only", row->weights_only);
        }
    }
    tsr_json_object_end(json);
}

static void put_summary(tsr_json *json, const tsr_conversion_document *document)
{
    tsr_conversion_counts c;
    tsr_conversion_count(document->conversion, &c);
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"tensors", c.tensors},
                  {"objects", c.objects},
                  {"left_out", c.left_out},
                  {"cast", c.cast},
                  {"kept", c.kept},
                  {"copied", c.copied},
                  {"bytes", document->conversion->byte_total}};
    tsr_json_put_object(json, "summary");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_put_double(json, "seconds", document->seconds);
    tsr_json_object_end(json);
}

static void put_files(tsr_json *json, const tsr_conversion *conversion)
{
    tsr_json_put_array(json, "files");
    for (uint32_t f = 0; f < conversion->file_count; f++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "name", conversion->files[f]);
        tsr_json_put_uint(json, "bytes", conversion->file_sizes[f]);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

tsr_status tsr_document_conversion(const tsr_conversion_document *document, tsr_json *json)
{
    static const char *const containers[] = {"safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal", "ranks"};
    const tsr_conversion *conversion = document->conversion;
    tsr_json_object(json);
    tsr_json_put_str(json, "schema", document->schema);
    tsr_json_put_str(json, "source", document->source);
    tsr_json_put_str(json, "destination", document->destination);
    tsr_json_put_text(json, "to", containers[document->to]);
    if (document->more) document->more(document->more_ctx, json);
    put_summary(json, document);
    tsr_json_put_strs(json, "warnings", document->warnings, document->warning_count);
    put_files(json, conversion);
    tsr_json_put_array(json, "entries");
    for (uint64_t i = 0; i < conversion->row_count; i++) put_row(json, conversion, &conversion->rows[i]);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    return json->status;
}
