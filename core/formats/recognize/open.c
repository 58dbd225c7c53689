/* Opens whatever a store contains: recognizes the format, calls its reader, builds the index of names, and does what all
 * formats have in common. */
#include <inttypes.h>

#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/recognize/recognize.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/options.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

static tsr_str file_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    if (entry->chunk_count == 0 || entry->chunks[0].file == TSR_NO_FILE) return TSR_STR("the metadata");
    return checkpoint->store->files[entry->chunks[0].file].name;
}

static tsr_status index_names(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    uint64_t duplicate;
    TSR_FAIL_IF(catalog->entry_count > checkpoint->host->limits.entries, err, TSR_E_LIMIT,
                "%" PRIu64 " entries; the limit is %" PRIu64, catalog->entry_count, checkpoint->host->limits.entries);
    TSR_TRY(tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(catalog->entries, catalog->entry_count),
                               &checkpoint->index, &duplicate, err));
    if (duplicate == TSR_NO_NAME) return TSR_OK;
    const tsr_entry *second = &catalog->entries[duplicate];
    const tsr_entry *first = &catalog->entries[tsr_name_index_find(checkpoint->index, second->fqn)];
    return tsr_fail(err, TSR_E_FORMAT, "two entries have the name '%.*s': one in %.*s, one in %.*s",
                    TSR_STR_ARG(second->fqn), TSR_STR_ARG(file_of(checkpoint, first)),
                    TSR_STR_ARG(file_of(checkpoint, second)));
}

/* Copies the file names into the catalog, for modules that name files without reading the store. */
static tsr_status list_files(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_str *names = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < store->file_count; i++) names[i] = store->files[i].name;
    checkpoint->catalog.file_names = names;
    return TSR_OK;
}

/* ---- one part of a checkpoint that consists of parts ---- */

static tsr_status refuse_part(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    tsr_shown_names names = {.used = 0};
    TSR_FAIL_IF(checkpoint->incomplete.size, err, TSR_E_UNSUPPORTED, "there is no part '%.*s': %.*s",
                TSR_STR_ARG(checkpoint->options.part),
                TSR_STR_ARG(checkpoint->incomplete)); /* the part may be in the missing file */
    for (uint32_t p = 0; p < catalog->part_count; p++) tsr_shown_names_add(&names, catalog->parts[p].name);
    TSR_FAIL_IF(!names.count, err, TSR_E_NOT_FOUND, "there is no part '%.*s': the checkpoint (%s) does not consist of parts",
                TSR_STR_ARG(checkpoint->options.part), tsr_format_name(catalog->format));
    return tsr_fail(err, TSR_E_NOT_FOUND, "there is no part '%.*s'; the checkpoint (%s) has %s%s",
                    TSR_STR_ARG(checkpoint->options.part), tsr_format_name(catalog->format), names.text,
                    tsr_shown_names_rest(&names));
}

/* Removes the part's name from a name that begins with it: "model.a.b" → "a.b", "model" → "". */
static bool strip(tsr_str *fqn, tsr_str part)
{
    if (part.size == 0 || !tsr_str_starts(*fqn, part) || (fqn->size > part.size && fqn->data[part.size] != '.'))
        return false;
    const size_t size = fqn->size > part.size ? part.size + 1 : part.size;
    *fqn = (tsr_str){fqn->data + size, fqn->size - size};
    return true;
}

/* Removes the first item of a path if it is the part's name. If no item is left, the entry has a flat key, unless it is the
 * root itself. */
static void strip_path(const tsr_path_item **path, uint32_t *length, tsr_str part)
{
    if (!*path || *length == 0 || (*path)->kind != TSR_PATH_KEY || !tsr_str_equal((*path)->key, part)) return;
    ++*path;
    --*length;
}

/* Works in place, because readers identify their entries by address. */
static void keep_entries(tsr_catalog *catalog, const tsr_part *part)
{
    tsr_entry *entries = (tsr_entry *)catalog->entries + part->first_entry;
    for (uint64_t i = 0; i < part->entry_count; i++)
        if (strip(&entries[i].fqn, part->name)) strip_path(&entries[i].path, &entries[i].path_length, part->name);
    catalog->entries = entries;
    catalog->entry_count = part->entry_count;
}

static tsr_status keep_mappings(tsr_checkpoint *checkpoint, const tsr_part *part, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const uint64_t count = catalog->mapping_count, last = part->first_entry + part->entry_count;
    tsr_mapping *kept = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *kept, err);
    if (!kept) return TSR_E_NOMEM;
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        tsr_mapping mapping = catalog->mappings[i];
        const bool inside = mapping.entries_before >= part->first_entry && mapping.entries_before <= last;
        if (!inside || (part->name.size && !strip(&mapping.fqn, part->name))) continue;
        strip_path(&mapping.path, &mapping.path_length, part->name);
        mapping.entries_before -= part->first_entry;
        kept[used++] = mapping;
    }
    catalog->mappings = kept;
    catalog->mapping_count = used;
    return TSR_OK;
}

/* Keeps only the entries of options.part in the catalog, and removes the part's name from theirs. */
static tsr_status keep_part(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_part *part = NULL;
    if (!checkpoint->options.part.data) return TSR_OK;
    for (uint32_t p = 0; p < catalog->part_count && !part; p++)
        if (tsr_str_equal(catalog->parts[p].name, checkpoint->options.part)) part = &catalog->parts[p];
    if (!part) return refuse_part(checkpoint, err);
    keep_entries(catalog, part);
    TSR_TRY(keep_mappings(checkpoint, part, err));
    catalog->format = part->format;
    catalog->metadata = part->metadata;
    catalog->metadata_count = part->metadata_count;
    catalog->differing_count = 0;
    catalog->parts = NULL;
    catalog->part_count = 0;
    return TSR_OK;
}

/* ---- opening ---- */

static tsr_status choose_reader(tsr_checkpoint *checkpoint, const tsr_form *form, const tsr_reader **reader, tsr_error *err)
{
    if (!form) {
        TSR_TRY(tsr_enter_step(checkpoint, err));
        return tsr_recognize(checkpoint, reader, err);
    }
    *reader = form->reader;
    checkpoint->files = form->files;
    checkpoint->file_count = form->count;
    return TSR_OK;
}

/* Without it, a checkpoint of which nothing was read would look like one that was found to be in order. */
static tsr_status report_empty(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    if (checkpoint->catalog.entry_count || checkpoint->catalog.mapping_count || checkpoint->names_unknown ||
        checkpoint->options.part.size)
        return TSR_OK;
    for (size_t i = 0; i < tsr_findings_count(checkpoint->findings); i++)
        if (strcmp(tsr_findings_at(checkpoint->findings, i)->rule->id, "safetensors/no-tensors") == 0) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "container/empty", TSR_NOWHERE, err,
                           "the checkpoint has no entries, so there was nothing to check");
}

static tsr_status read_checkpoint(tsr_checkpoint *checkpoint, const tsr_form *form, tsr_error *err)
{
    const tsr_reader *reader;
    TSR_TRY(choose_reader(checkpoint, form, &reader, err));
    checkpoint->catalog.format = reader->format;
    checkpoint->catalog.store = checkpoint->store;
    TSR_TRY(list_files(checkpoint, err));
    if (reader->is_rare || checkpoint->options.salvage) TSR_TRY(tsr_host_load(checkpoint->host, err));
    TSR_TRY(reader->open(checkpoint, err));
    checkpoint->reader = reader;
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->refines) TSR_TRY(tsr_directories[i]->refines(checkpoint, err));
    TSR_TRY(keep_part(checkpoint, err));
    TSR_TRY(index_names(checkpoint, err));
    TSR_TRY(report_empty(checkpoint, err));
    TSR_TRY(tsr_check_files_complete(checkpoint, err));
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->checks) TSR_TRY(tsr_directories[i]->checks(checkpoint, err));
    return tsr_checkpoint_require(checkpoint, checkpoint->options.purpose, err);
}

/* Where every read waits for a server, as many threads read as requests may be under way; the host's own may be few. */
static const tsr_host *reading_host(tsr_checkpoint *checkpoint, const tsr_store *store, const tsr_host *host)
{
    if (!tsr_store_takes_schedules(store) || store->threads <= tsr_threads(host)) return host;
    checkpoint->own_host = *host;
    checkpoint->own_host.parallel_for = store->parallel_for;
    checkpoint->own_host.parallel_ctx = store->parallel_ctx;
    checkpoint->own_host.threads = store->threads;
    return &checkpoint->own_host;
}

static tsr_status open_as(tsr_store *store, const tsr_host *host, const tsr_open_options *options, const tsr_form *form,
                          tsr_checkpoint **out, tsr_error *err)
{
    tsr_open_options own;
    *out = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_open_options, err));
    tsr_checkpoint *checkpoint = tsr_alloc(host->allocator, 1, sizeof *checkpoint, err);
    if (!checkpoint) return TSR_E_NOMEM;
    *checkpoint = (tsr_checkpoint){.store = store,
                                   .given = store,
                                   .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *)),
                                   .host = host,
                                   .opens = open_as,
                                   .missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .implied = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .expansion = host->limits.expansion};
    checkpoint->options = own;
    checkpoint->given_host = host;
    host = checkpoint->host = reading_host(checkpoint, store, host);
    size_t bound = host->limits.memory_bytes < SIZE_MAX ? (size_t)host->limits.memory_bytes : SIZE_MAX;
    checkpoint->arena = tsr_arena_new(host->allocator, bound, err);
    checkpoint->findings = checkpoint->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    tsr_status status = checkpoint->findings ? read_checkpoint(checkpoint, form, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = checkpoint;
    else tsr_checkpoint_close(checkpoint);
    return status;
}

tsr_status tsr_checkpoint_open(tsr_store *store, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                               tsr_error *err)
{
    return open_as(store, host, options, NULL, out, err);
}

/* For commands that read more than checkpoints. */
tsr_status tsr_step_open(tsr_store *store, const tsr_host *host, tsr_str step, tsr_checkpoint **out, tsr_error *err)
{
    tsr_checkpoint *checkpoint = *out = tsr_alloc(host->allocator, 1, sizeof *checkpoint, err);
    if (!checkpoint) return TSR_E_NOMEM;
    *checkpoint = (tsr_checkpoint){.store = store,
                                   .given = store,
                                   .host = host,
                                   .opens = open_as,
                                   .options.step = step,
                                   .missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *))};
    checkpoint->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    checkpoint->findings = checkpoint->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    const tsr_status status = checkpoint->findings ? tsr_enter_step(checkpoint, err) : TSR_E_NOMEM;
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(checkpoint);
    *out = NULL;
    return status;
}

tsr_status tsr_latest_find(tsr_store *store, const tsr_host *host, const tsr_latest_options *options, tsr_arena *arena,
                           tsr_latest *out, tsr_error *err)
{
    return tsr_latest_search(store, host, open_as, options, arena, out, err);
}

tsr_status tsr_run_list(tsr_store *store, const tsr_host *host, const tsr_latest_options *options, tsr_arena *arena,
                        tsr_run_checkpoints *out, tsr_error *err)
{
    return tsr_run_search(store, host, open_as, options, arena, out, err);
}

tsr_status tsr_store_file_role(tsr_store *store, uint32_t file, tsr_file_role *role, tsr_error *err)
{
    const tsr_str name = store->files[file].name;
    tsr_content content;
    *role = TSR_ROLE_NONE;
    if (memchr(name.data, '/', name.size)) return TSR_OK;
    if (tsr_str_ends(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR(".index.json"))) {
        *role = TSR_ROLE_MARKER;
        return TSR_OK;
    }
    if (tsr_str_ends(name, TSR_STR(".distcp"))) {
        if (store->files[file].size) *role = TSR_ROLE_TENSORS; /* an empty file is from a rank that had nothing to write */
        return TSR_OK;
    }
    TSR_TRY(tsr_content_of(store, file, &content, err));
    if (content.kind || (content.unknown && tsr_kind_named(name))) *role = TSR_ROLE_TENSORS;
    return TSR_OK;
}
