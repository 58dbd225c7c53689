/* What all formats share once a checkpoint is open: access to its catalog, files and parts, and to the bytes of its
 * entries. */
#include "formats/common/file_names.h"

#include "formats/common/reader.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

void tsr_checkpoint_close(tsr_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    if (checkpoint->reader && checkpoint->reader->close) checkpoint->reader->close(checkpoint);
    tsr_name_index_free(checkpoint->index);
    tsr_findings_free(checkpoint->findings);
    tsr_vec_free(&checkpoint->missing);
    tsr_vec_free(&checkpoint->implied);
    tsr_store **entered = checkpoint->entered.items;
    for (size_t i = checkpoint->entered.count; i > 0; i--) entered[i - 1]->close(entered[i - 1]);
    tsr_vec_free(&checkpoint->entered);
    tsr_arena_free(checkpoint->arena);
    tsr_free(checkpoint->host->allocator, checkpoint, 1, sizeof *checkpoint);
}

void tsr_checkpoint_take_host(tsr_checkpoint *checkpoint, const tsr_store *store, const tsr_host *host)
{
    checkpoint->host = checkpoint->given_host = host;
    if (!tsr_store_takes_schedules(store) || store->threads <= tsr_threads(host)) return;
    checkpoint->own_host = *host;
    checkpoint->own_host.parallel_for = store->parallel_for;
    checkpoint->own_host.parallel_ctx = store->parallel_ctx;
    checkpoint->own_host.threads = store->threads;
    checkpoint->host = &checkpoint->own_host;
}

const tsr_catalog *tsr_checkpoint_catalog(const tsr_checkpoint *checkpoint)
{
    return &checkpoint->catalog;
}
tsr_findings *tsr_checkpoint_findings(tsr_checkpoint *checkpoint)
{
    return checkpoint->findings;
}
const tsr_host *tsr_checkpoint_host(const tsr_checkpoint *checkpoint)
{
    return checkpoint->host;
}
tsr_store *tsr_checkpoint_store(tsr_checkpoint *checkpoint)
{
    return checkpoint->store;
}
tsr_store *tsr_checkpoint_given_store(tsr_checkpoint *checkpoint)
{
    return checkpoint->given;
}
tsr_str tsr_checkpoint_step(const tsr_checkpoint *checkpoint, const char **marker)
{
    *marker = checkpoint->step_marker;
    return checkpoint->step;
}
const tsr_str *tsr_checkpoint_missing(const tsr_checkpoint *checkpoint, size_t *count)
{
    *count = checkpoint->missing.count;
    return checkpoint->missing.items;
}

const tsr_str *tsr_checkpoint_implied(const tsr_checkpoint *checkpoint, size_t *count)
{
    *count = checkpoint->implied.count;
    return checkpoint->implied.items;
}

uint32_t tsr_checkpoint_joined_ranks(const tsr_checkpoint *checkpoint)
{
    return checkpoint->joined_ranks;
}

static void use_chunks(const tsr_chunk *chunks, uint64_t count, bool *used)
{
    for (uint64_t i = 0; i < count; i++)
        if (chunks[i].file != TSR_NO_FILE) used[chunks[i].file] = true;
}

void tsr_checkpoint_used_files(const tsr_checkpoint *checkpoint, bool *used)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    for (uint32_t f = 0; f < checkpoint->store->file_count; f++) used[f] = false;
    for (uint32_t i = 0; i < checkpoint->file_count; i++) used[checkpoint->files[i]] = true;
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) used[checkpoint->listed[i]] = true;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        const tsr_entry *entry = &catalog->entries[e];
        use_chunks(entry->chunks, entry->chunk_count, used);
        use_chunks(entry->replicas, entry->replica_count, used);
    }
}

tsr_status tsr_checkpoint_lacks(tsr_checkpoint *checkpoint, tsr_str name, tsr_error *err)
{
    tsr_str *missing = tsr_vec_push(&checkpoint->missing, err);
    if (!missing) return TSR_E_NOMEM;
    *missing = tsr_arena_str(checkpoint->arena, name, err);
    return missing->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_arena *tsr_checkpoint_arena(tsr_checkpoint *checkpoint)
{
    return checkpoint->arena;
}

const tsr_entry *tsr_checkpoint_entry(const tsr_checkpoint *checkpoint, tsr_str fqn)
{
    uint64_t at = tsr_name_index_find(checkpoint->index, fqn);
    return at == TSR_NO_NAME ? NULL : &checkpoint->catalog.entries[at];
}

tsr_status tsr_checkpoint_raise_missing(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err)
{
    tsr_shown_names list = {.used = 0};
    size_t count;
    const tsr_str *names = tsr_checkpoint_missing(checkpoint, &count);
    for (size_t i = 0; i < count; i++) tsr_shown_names_add(&list, names[i]);
    if (count == 0)
        return tsr_fail(err, TSR_E_NOT_FOUND,
                        "the bytes of '%.*s' are missing: their file was truncated, or nothing says where they are",
                        TSR_STR_ARG(fqn));
    return tsr_fail(err, TSR_E_NOT_FOUND,
                    "the bytes of '%.*s' are missing: the data file%s %s%s %s missing; copy %s next to the others",
                    TSR_STR_ARG(fqn), count == 1 ? "" : "s", list.text, tsr_shown_names_rest(&list),
                    count == 1 ? "is" : "are", count == 1 ? "it" : "them");
}

tsr_status tsr_checkpoint_check_present(const tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err)
{
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    for (uint64_t c = 0; c < entry->chunk_count; c++)
        if (entry->chunks[c].file == TSR_NO_FILE) return tsr_checkpoint_raise_missing(checkpoint, entry->fqn, err);
    return TSR_OK;
}

/* ---- other names ---- */

/* Readers identify their entries by address, so these stay where they are, and the catalog has copies of them. */
typedef struct tsr_renamed {
    const tsr_entry *stored; /* the reader's */
    uint64_t stored_count;
    const uint64_t *number_of;  /* by entry of the catalog: its number in `stored` */
    const uint64_t *renamed_as; /* by entry of the reader: its number in the catalog, or LEFT_OUT */
} tsr_renamed;

#define NO_PART  UINT32_MAX
#define LEFT_OUT UINT64_MAX

/* The number of an entry in an array, or `count` if it is not in it. */
static uint64_t number_in(const tsr_entry *entries, uint64_t count, const tsr_entry *entry)
{
    const uint64_t at = ((uintptr_t)entry - (uintptr_t)entries) / sizeof *entry;
    return at < count ? at : count;
}

const tsr_entry *tsr_checkpoint_stored_entry(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    const tsr_renamed *r = checkpoint->renamed;
    const tsr_catalog *catalog = &checkpoint->catalog;
    const uint64_t at = r ? number_in(catalog->entries, catalog->entry_count, entry) : catalog->entry_count;
    return at < catalog->entry_count ? &r->stored[r->number_of[at]] : entry;
}

typedef struct renamed_visit {
    const tsr_checkpoint *checkpoint;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
} renamed_visit;

static tsr_status give_renamed(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    const renamed_visit *v = ctx;
    const tsr_renamed *r = v->checkpoint->renamed;
    tsr_extent own = *extent;
    const uint64_t at = own.entry ? number_in(r->stored, r->stored_count, own.entry) : r->stored_count;
    const uint64_t number = at < r->stored_count ? r->renamed_as[at] : LEFT_OUT;
    own.entry = number == LEFT_OUT ? NULL : &v->checkpoint->catalog.entries[number];
    if (!own.entry) own.chunk = NULL;
    return v->each(v->ctx, &own, err);
}

static tsr_status rename_path(tsr_checkpoint *checkpoint, tsr_str from, tsr_str to, const tsr_path_item **path,
                              uint32_t *length, tsr_error *err)
{
    const tsr_entry entry = {.fqn = from, .path = *path, .path_length = *length};
    if (tsr_str_equal(from, to)) return TSR_OK; /* an entry whose key is "" has the same name as the root */
    if (!to.size) *length = 0;                  /* the root */
    return *path && to.size ? tsr_renamed_path(&entry, to, checkpoint->arena, path, length, err) : TSR_OK;
}

/* Keeps the parts if every entry is kept, otherwise what the one part with the kept entries says of them all. */
static void keep_parts(tsr_catalog *catalog, const tsr_renamed *r, uint64_t kept)
{
    uint32_t only = NO_PART;
    bool several = false;
    if (kept == r->stored_count) return;
    for (uint32_t p = 0; p < catalog->part_count; p++) {
        const tsr_part *part = &catalog->parts[p];
        bool any = false;
        for (uint64_t i = 0; i < part->entry_count && !any; i++) any = r->renamed_as[part->first_entry + i] != LEFT_OUT;
        several = several || (any && only != NO_PART);
        if (any) only = p;
    }
    if (only != NO_PART && !several) {
        catalog->format = catalog->parts[only].format;
        catalog->metadata = catalog->parts[only].metadata;
        catalog->metadata_count = catalog->parts[only].metadata_count;
        catalog->differing_count = 0;
    }
    catalog->parts = NULL;
    catalog->part_count = 0;
}

static tsr_status rename_mappings(tsr_checkpoint *checkpoint, const tsr_new_name *names, const tsr_renamed *r,
                                  tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    tsr_mapping *kept = tsr_arena_array(checkpoint->arena, (size_t)catalog->mapping_count, sizeof *kept, err);
    uint64_t used = 0, before = 0, entry = 0;
    if (!kept) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->mapping_count; i++) {
        tsr_mapping mapping = catalog->mappings[i];
        for (; entry < mapping.entries_before && entry < r->stored_count; entry++)
            before += r->renamed_as[entry] != LEFT_OUT;
        if (!names[i].fqn.data) continue;
        TSR_TRY(rename_path(checkpoint, mapping.fqn, names[i].fqn, &mapping.path, &mapping.path_length, err));
        mapping.fqn = names[i].fqn;
        mapping.entries_before = before;
        kept[used++] = mapping;
    }
    catalog->mappings = kept;
    catalog->mapping_count = used;
    return TSR_OK;
}

/* Also fails if two entries have one name now. */
static tsr_status index_renamed(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_renamed *r = checkpoint->renamed;
    uint64_t second;
    tsr_name_index_free(checkpoint->index);
    checkpoint->index = NULL;
    TSR_TRY(tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(catalog->entries, catalog->entry_count),
                               &checkpoint->index, &second, err));
    if (second == TSR_NO_NAME) return TSR_OK;
    const tsr_str fqn = catalog->entries[second].fqn;
    const uint64_t first = tsr_name_index_find(checkpoint->index, fqn);
    return tsr_fail(err, TSR_E_USAGE, "'%.*s' and '%.*s' would both be named '%.*s'",
                    TSR_STR_ARG(r->stored[r->number_of[first]].fqn), TSR_STR_ARG(r->stored[r->number_of[second]].fqn),
                    TSR_STR_ARG(fqn));
}

tsr_status tsr_checkpoint_rename(tsr_checkpoint *checkpoint, const tsr_new_name *names, const tsr_new_name *mappings,
                                 tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const size_t count = (size_t)catalog->entry_count;
    tsr_renamed *r = TSR_ARENA_NEW(checkpoint->arena, tsr_renamed, err);
    tsr_entry *entries = r ? tsr_arena_array(checkpoint->arena, count, sizeof *entries, err) : NULL;
    uint64_t *number_of = entries ? tsr_arena_array(checkpoint->arena, count, sizeof *number_of, err) : NULL;
    uint64_t *renamed_as = number_of ? tsr_arena_array(checkpoint->arena, count, sizeof *renamed_as, err) : NULL;
    uint64_t kept = 0;
    if (!renamed_as) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) {
        renamed_as[i] = names[i].fqn.data ? kept : LEFT_OUT;
        if (!names[i].fqn.data) continue;
        tsr_entry *entry = &entries[kept];
        *entry = catalog->entries[i];
        TSR_TRY(rename_path(checkpoint, entry->fqn, names[i].fqn, &entry->path, &entry->path_length, err));
        entry->fqn = names[i].fqn;
        entry->value = names[i].value;
        number_of[kept++] = i;
    }
    *r = (tsr_renamed){catalog->entries, count, number_of, renamed_as};
    TSR_TRY(rename_mappings(checkpoint, mappings, r, err));
    keep_parts(catalog, r, kept);
    catalog->entries = entries;
    catalog->entry_count = kept;
    checkpoint->renamed = r;
    return index_renamed(checkpoint, err);
}

static bool ends_in(tsr_str name, tsr_str end)
{
    return name.size > end.size && name.data[name.size - end.size - 1] == '.' && tsr_str_ends(name, end);
}

tsr_status tsr_checkpoint_raise_no_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_entry *meant = NULL;
    bool several = false;
    for (uint64_t i = 0; fqn.size && i < catalog->entry_count && !several; i++) {
        if (!ends_in(catalog->entries[i].fqn, fqn)) continue;
        several = meant != NULL;
        meant = &catalog->entries[i];
    }
    if (meant && !several)
        return tsr_fail(err, TSR_E_NOT_FOUND, "there is no entry '%.*s'; did you mean '%.*s'?", TSR_STR_ARG(fqn),
                        TSR_STR_ARG(meant->fqn));
    return tsr_fail(err, TSR_E_NOT_FOUND, "there is no entry '%.*s'; `tessera inspect` lists them", TSR_STR_ARG(fqn));
}

void tsr_checkpoint_take_losses(tsr_checkpoint *checkpoint, const tsr_entry *entry, struct tsr_cast_losses *losses)
{
    if (checkpoint->reader->take_losses)
        checkpoint->reader->take_losses(checkpoint, tsr_checkpoint_stored_entry(checkpoint, entry), losses);
}

tsr_status tsr_checkpoint_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                 tsr_arena *scratch, tsr_view *out, tsr_error *err)
{
    if (chunk->file == TSR_NO_FILE) return tsr_checkpoint_raise_missing(checkpoint, entry->fqn, err);
    if (chunk->view) {
        *out = *chunk->view;
        return TSR_OK;
    }
    entry = tsr_checkpoint_stored_entry(checkpoint, entry);
    if (checkpoint->reader->locate) return checkpoint->reader->locate(checkpoint, entry, chunk, scratch, out, err);
    *out = (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    return TSR_OK;
}

bool tsr_checkpoint_has_crcs(const tsr_checkpoint *checkpoint)
{
    return checkpoint->reader->crc != NULL;
}

tsr_status tsr_checkpoint_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                              tsr_stated_crc *out, tsr_error *err)
{
    *out = (tsr_stated_crc){0};
    if (!checkpoint->reader->crc || chunk->file == TSR_NO_FILE || (chunk->view && !tsr_view_is_plain(chunk->view)))
        return TSR_OK;
    return checkpoint->reader->crc(checkpoint, tsr_checkpoint_stored_entry(checkpoint, entry), chunk, scratch, out, err);
}

tsr_status tsr_checkpoint_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                               tsr_arena *scratch, tsr_found *out, tsr_error *err)
{
    *out = (tsr_found){0};
    if (checkpoint->reader->find && chunk->file != TSR_NO_FILE && !chunk->view)
        return checkpoint->reader->find(checkpoint, tsr_checkpoint_stored_entry(checkpoint, entry), chunk, scratch, out,
                                        err);
    TSR_TRY(tsr_checkpoint_locate(checkpoint, entry, chunk, scratch, &out->view, err));
    return tsr_checkpoint_crc(checkpoint, entry, chunk, scratch, &out->crc, err);
}

tsr_status tsr_checkpoint_extents(tsr_checkpoint *checkpoint,
                                  tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                  tsr_error *err)
{
    renamed_visit v = {checkpoint, each, ctx};
    if (!checkpoint->reader->extents) return TSR_OK;
    if (!checkpoint->renamed) return checkpoint->reader->extents(checkpoint, each, ctx, err);
    return checkpoint->reader->extents(checkpoint, give_renamed, &v, err);
}

/* Decides what an incomplete checkpoint may still be used for. */

tsr_status tsr_checkpoint_implies(tsr_checkpoint *checkpoint, tsr_str file, tsr_error *err)
{
    if (!checkpoint->implied.allocator || !file.size || tsr_store_find(checkpoint->store, file) != TSR_NO_FILE)
        return TSR_OK;
    tsr_str *implied = tsr_vec_push(&checkpoint->implied, err);
    if (!implied) return TSR_E_NOMEM;
    *implied = tsr_arena_str(checkpoint->arena, file, err);
    return implied->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_checkpoint_is_incomplete(tsr_checkpoint *checkpoint, tsr_str file, tsr_str message, tsr_error *err)
{
    if (!message.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_checkpoint_implies(checkpoint, file, err));
    if (!checkpoint->incomplete.size) checkpoint->incomplete = message;
    return tsr_finding_add(checkpoint->findings, "parts/incomplete-save", (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, err,
                           "%.*s", TSR_STR_ARG(message));
}

static bool is_selected(const tsr_checkpoint *checkpoint, tsr_str fqn)
{
    const tsr_open_options *options = &checkpoint->options;
    return !options->selects || options->selects(options->selects_ctx, fqn);
}

static tsr_status refuse_per_rank(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        if (entry->per_rank && is_selected(checkpoint, entry->fqn)) tsr_shown_names_add(&names, entry->fqn);
    }
    if (names.count == 0) return TSR_OK;
    const bool one = names.count == 1;
    TSR_FAIL_IF(checkpoint->joined_ranks, err, TSR_E_UNSUPPORTED,
                "%llu %s no rule in the --shards map: %s%s; add a rule, or leave %s out with --exclude (convert, reshard, "
                "plan, layout, manifest)",
                (unsigned long long)names.count, one ? "tensor has" : "tensors have", names.text,
                tsr_shown_names_rest(&names), one ? "it" : "them");
    TSR_FAIL_IF(
        checkpoint->catalog.format == TSR_FORMAT_DEEPSPEED, err, TSR_E_UNSUPPORTED,
        "%llu %s between the ranks of DeepSpeed, which cannot be joined (--shards only joins files of plain tensors): %s%s; leave "
        "%s out with --exclude (convert, reshard, plan, layout, manifest)",
        (unsigned long long)names.count, one ? "tensor differs" : "tensors differ", names.text, tsr_shown_names_rest(&names),
        one ? "it" : "them");
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%llu %s between ranks: %s%s; pass --shards MAP to join %s (a tessera.shards/1 file, or meta-llama, "
                    "megatron-gpt or vllm), or leave %s out with --exclude (convert, reshard, plan, layout, manifest)",
                    (unsigned long long)names.count, one ? "tensor differs" : "tensors differ", names.text,
                    tsr_shown_names_rest(&names), one ? "it" : "them", one ? "it" : "them");
}

/* Rejects selected entries that are named in an index but are in no file: nothing but their names is known. */
static tsr_status refuse_missing(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_str first = {NULL, 0};
    tsr_shown_names others = {.used = 0}, files = {.used = 0};
    const tsr_str *missing = checkpoint->missing.items;
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        const bool lost = entry->kind == TSR_ENTRY_OPAQUE && !entry->value && tsr_str_equal(entry->type, TSR_STR("missing"));
        if (!lost || !is_selected(checkpoint, entry->fqn)) continue;
        if (first.data) tsr_shown_names_add(&others, entry->fqn);
        else first = entry->fqn;
    }
    if (!first.data) return TSR_OK;
    for (size_t i = 0; i < checkpoint->missing.count; i++) tsr_shown_names_add(&files, missing[i]);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "'%.*s' is not in any of the files%s%s%s%s%s%s", TSR_STR_ARG(first),
                    others.count ? "; nor are " : "", others.text, tsr_shown_names_rest(&others),
                    files.count ? "; missing: " : "", files.text, tsr_shown_names_rest(&files));
}

tsr_status tsr_checkpoint_require(const tsr_checkpoint *checkpoint, tsr_purpose purpose, tsr_error *err)
{
    const bool listing = purpose == TSR_FOR_NAMES && !checkpoint->names_unknown;
    if (purpose == TSR_FOR_FINDINGS || (listing && checkpoint->incomplete.size)) return TSR_OK;
    TSR_FAIL_IF(checkpoint->incomplete.size, err, TSR_E_UNSUPPORTED, "%.*s", TSR_STR_ARG(checkpoint->incomplete));
    if (purpose == TSR_FOR_NAMES || purpose == TSR_FOR_ALL_NAMES) return TSR_OK;
    TSR_TRY(refuse_missing(checkpoint, err));
    return refuse_per_rank(checkpoint, err);
}

tsr_status tsr_checkpoint_require_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err)
{
    const tsr_entry *entry = tsr_checkpoint_entry(checkpoint, fqn);
    tsr_checkpoint alone = *checkpoint;
    alone.options.selects = NULL;
    alone.catalog.entries = entry;
    alone.catalog.entry_count = entry != NULL;
    return tsr_checkpoint_require(&alone, TSR_FOR_VALUES, err);
}
