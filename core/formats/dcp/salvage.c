/* See tessera/sys/salvage.h. */
#include "tessera/sys/salvage.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "formats/torch/torch_file.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/host.h"
#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/options.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct tsr_salvaged_item {
    uint64_t byte_offset, byte_length;
    bool tensor;
    bool requires_grad;
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *sizes; /* in the arena */
} tsr_salvaged_item;

/* The input of a search. The shapes of the items are allocated in the arena. */
typedef struct tsr_salvage_job {
    tsr_store *store;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_findings *findings;
    bool (*step)(void *ctx, uint64_t byte_at); /* called with the current position in a file; cancels the search by
                                                * returning false; may be NULL */
    void *ctx;
} tsr_salvage_job;

/* An item of the checkpoint that serves as a model. */
typedef struct model_item {
    tsr_str file;
    uint64_t byte_offset;
    uint64_t entry; /* index in its catalog */
    const tsr_chunk *chunk;
    bool replica; /* a further copy of a box: it is skipped in the file, but not written to the new metadata */
} model_item;

typedef struct salvager {
    tsr_store *store;
    const tsr_host *host;
    const tsr_catalog *like;
    tsr_arena *arena;
    tsr_findings *findings;
    const tsr_salvage_progress *progress;
    uint64_t byte_done, byte_total;
    tsr_salvage *out;
    tsr_error *err;
    tsr_vec model;   /* model_item, sorted by file and offset */
    tsr_vec entries; /* tsr_dcp_new_entry: first those of `like`, in its order */
} salvager;

static bool step(void *ctx, uint64_t byte_at)
{
    const salvager *s = ctx;
    const tsr_salvage_progress *p = s->progress;
    return !p || p->step(p->ctx, s->byte_done + byte_at, s->byte_total);
}

/* ---- the model checkpoint ---- */

static int by_place(const void *left, const void *right)
{
    const model_item *a = left, *b = right;
    const int order = tsr_str_compare(a->file, b->file);
    return order ? order : (a->byte_offset > b->byte_offset) - (a->byte_offset < b->byte_offset);
}

static tsr_status add_chunks(salvager *s, const tsr_chunk *chunks, uint64_t count, uint64_t entry, bool replicas)
{
    for (uint64_t c = 0; c < count; c++) {
        if (chunks[c].file >= s->like->store->file_count) continue;
        model_item *item = tsr_vec_push(&s->model, s->err);
        if (!item) return TSR_E_NOMEM;
        *item = (model_item){s->like->store->files[chunks[c].file].name, chunks[c].byte_offset, entry, &chunks[c], replicas};
    }
    return TSR_OK;
}

static tsr_status add_entry(salvager *s, const tsr_entry *entry, uint64_t number)
{
    tsr_dcp_new_entry *added = tsr_vec_push(&s->entries, s->err);
    tsr_path_item *path = TSR_ARENA_NEW(s->arena, tsr_path_item, s->err);
    tsr_dcp_new_item *items = tsr_arena_array(s->arena, (size_t)entry->chunk_count, sizeof *items, s->err);
    if (!added || !path || !items) return TSR_E_NOMEM;
    *path = (tsr_path_item){.kind = TSR_PATH_KEY, .key = entry->fqn};
    *added = (tsr_dcp_new_entry){.fqn = entry->fqn,
                                 .path = entry->path_length ? entry->path : path,
                                 .path_length = entry->path_length ? entry->path_length : 1,
                                 .tensor = entry->kind == TSR_ENTRY_TENSOR,
                                 .requires_grad = entry->requires_grad,
                                 .dtype = entry->dtype,
                                 .ndim = entry->ndim,
                                 .shape = entry->shape,
                                 .items = items};
    TSR_TRY(add_chunks(s, entry->chunks, entry->chunk_count, number, false));
    return add_chunks(s, entry->replicas, entry->replica_count, number, true);
}

static tsr_status take_model(salvager *s)
{
    for (uint64_t i = 0; s->like && i < s->like->entry_count; i++) TSR_TRY(add_entry(s, &s->like->entries[i], i));
    if (s->model.count) qsort(s->model.items, s->model.count, sizeof(model_item), by_place);
    return TSR_OK;
}

/* ---- items ---- */

static void place_item(tsr_dcp_new_entry *entry, const tsr_chunk *box, tsr_str file, const tsr_salvaged_item *item)
{
    ((tsr_dcp_new_item *)(uintptr_t)entry->items)[entry->item_count++] =
        (tsr_dcp_new_item){box->offsets, box->sizes, file, item->byte_offset, item->byte_length};
}

static bool fits(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_salvaged_item *item)
{
    bool same = (entry->kind == TSR_ENTRY_TENSOR) == item->tensor;
    if (!item->tensor || !same) return same;
    same = entry->dtype == item->dtype && entry->ndim == item->ndim;
    for (uint32_t d = 0; same && d < item->ndim; d++) same = chunk->sizes[d] == item->sizes[d];
    return same;
}

/* Adds an item that has no name as an entry named after its file and its number there. */
static tsr_status add_unnamed(salvager *s, tsr_str file, uint64_t number, const tsr_salvaged_item *item)
{
    tsr_dcp_new_entry *entry = tsr_vec_push(&s->entries, s->err);
    tsr_path_item *path = TSR_ARENA_NEW(s->arena, tsr_path_item, s->err);
    tsr_dcp_new_item *place = TSR_ARENA_NEW(s->arena, tsr_dcp_new_item, s->err);
    uint64_t *zeros = tsr_arena_array(s->arena, item->ndim, sizeof *zeros, s->err);
    if (!entry || !path || !place || !zeros) return TSR_E_NOMEM;
    const tsr_str name = tsr_arena_format(s->arena, s->err, "%.*s#%llu", TSR_STR_ARG(file), (unsigned long long)number);
    if (!name.data) return TSR_E_NOMEM;
    *path = (tsr_path_item){.kind = TSR_PATH_KEY, .key = name};
    *place = (tsr_dcp_new_item){zeros, item->sizes, file, item->byte_offset, item->byte_length};
    *entry = (tsr_dcp_new_entry){.fqn = name,
                                 .path = path,
                                 .path_length = 1,
                                 .tensor = item->tensor,
                                 .requires_grad = item->requires_grad,
                                 .dtype = item->dtype,
                                 .ndim = item->ndim,
                                 .shape = item->sizes,
                                 .items = place,
                                 .item_count = 1};
    s->out->unnamed++;
    return TSR_OK;
}

static tsr_status find_lost(salvager *s, const model_item *lost)
{
    const tsr_entry *entry = &s->like->entries[lost->entry];
    const tsr_place place = {lost->file, TSR_NO_POSITION, entry->fqn};
    if (lost->replica) return TSR_OK;
    s->out->lost++;
    return tsr_finding_add(s->findings, "repair/lost", place, s->err, "an item of '%.*s' is missing from '%.*s'",
                           TSR_STR_ARG(entry->fqn), TSR_STR_ARG(lost->file));
}

/* Names the items of one file after those in the model's file of the same name: the n-th item gets the n-th name. If an item
 * does not fit, the files are from different kinds of saves, and the remaining items stay unnamed. */
static tsr_status name_items(salvager *s, tsr_str file, const model_item *model, size_t model_count,
                             const tsr_salvaged_item *items, size_t count)
{
    size_t n = 0;
    for (; n < count && n < model_count; n++) {
        const tsr_entry *entry = &s->like->entries[model[n].entry];
        if (!fits(entry, model[n].chunk, &items[n])) break;
        if (!model[n].replica)
            place_item(&((tsr_dcp_new_entry *)s->entries.items)[model[n].entry], model[n].chunk, file, &items[n]);
    }
    if (n < count && n < model_count) {
        const tsr_str fqn = s->like->entries[model[n].entry].fqn;
        const tsr_place place = {file, items[n].byte_offset, fqn};
        TSR_TRY(
            tsr_finding_add(s->findings, "repair/unlike", place, s->err,
                            "item %zu of '%.*s' does not match '%.*s' of the other checkpoint, which was saved differently",
                            n, TSR_STR_ARG(file), TSR_STR_ARG(fqn)));
    }
    for (size_t lost = n; lost < model_count; lost++) TSR_TRY(find_lost(s, &model[lost]));
    for (; n < count; n++) TSR_TRY(add_unnamed(s, file, n, &items[n]));
    return TSR_OK;
}

/* The index of the first item of `file`, or with `behind`, of the first item after those of `file`. */
static size_t first_of(const salvager *s, tsr_str file, bool behind)
{
    const model_item *items = s->model.items;
    size_t low = 0, high = s->model.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = tsr_str_compare(items[middle].file, file);
        if (order < 0 || (behind && order == 0)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void model_of(const salvager *s, tsr_str file, const model_item **first, size_t *count)
{
    const model_item *items = s->model.items;
    const size_t from = first_of(s, file, false);
    *first = items ? items + from : NULL;
    *count = first_of(s, file, true) - from;
}

static bool is_data_file(tsr_str name)
{
    return tsr_str_ends(name, TSR_STR(".distcp")) && !memchr(name.data, '/', name.size);
}

static tsr_status salvage_file(const tsr_salvage_job *job, uint32_t file, tsr_vec *out, tsr_error *err);

static tsr_status take_file(salvager *s, uint32_t file)
{
    const tsr_str name = s->store->files[file].name;
    const model_item *model;
    size_t model_count;
    tsr_vec items = tsr_vec_of(s->host->allocator, sizeof(tsr_salvaged_item));
    const tsr_salvage_job job = {s->store, s->host, s->arena, s->findings, step, s};
    tsr_status status = salvage_file(&job, file, &items, s->err);
    model_of(s, name, &model, &model_count);
    if (status == TSR_OK) status = name_items(s, name, model, model_count, items.items, items.count);
    s->out->items += items.count;
    s->out->files++;
    s->byte_done += s->store->files[file].size;
    tsr_vec_free(&items);
    return status;
}

/* Reports the items of files that do not exist at all. */
static tsr_status find_lost_files(salvager *s)
{
    const model_item *items = s->model.items;
    for (size_t i = 0; i < s->model.count; i++) {
        if (tsr_store_find(s->store, items[i].file) == TSR_NO_FILE) TSR_TRY(find_lost(s, &items[i]));
    }
    return TSR_OK;
}

/* Keeps the entries of which at least one item was found. */
static tsr_status take_entries(salvager *s)
{
    const tsr_dcp_new_entry *all = s->entries.items;
    tsr_dcp_new_entry *kept = tsr_arena_array(s->arena, s->entries.count, sizeof *kept, s->err);
    if (!kept) return TSR_E_NOMEM;
    s->out->entries = kept;
    for (size_t i = 0; i < s->entries.count; i++) {
        if (all[i].item_count) kept[s->out->entry_count++] = all[i];
    }
    return TSR_OK;
}

static tsr_status run(salvager *s)
{
    for (uint32_t f = 0; f < s->store->file_count; f++) {
        if (is_data_file(s->store->files[f].name)) s->byte_total += s->store->files[f].size;
    }
    TSR_TRY(take_model(s));
    for (uint32_t f = 0; f < s->store->file_count; f++) {
        if (is_data_file(s->store->files[f].name)) TSR_TRY(take_file(s, f));
    }
    TSR_FAIL_IF(s->out->files == 0, s->err, TSR_E_NOT_FOUND,
                "there is no .distcp file, so the contents of this checkpoint cannot be reconstructed");
    TSR_TRY(find_lost_files(s));
    if (s->out->unnamed) {
        TSR_TRY(tsr_finding_add(s->findings, "repair/unnamed", TSR_NOWHERE, s->err,
                                "the name%s of %llu item%s and their offsets in global tensors were only in .metadata%s",
                                TSR_PLURAL(s->out->unnamed), (unsigned long long)s->out->unnamed,
                                TSR_PLURAL(s->out->unnamed),
                                s->like ? "" : "; pass a checkpoint of the same job (another step) with --like"));
    }
    return take_entries(s);
}

tsr_status tsr_salvage_dcp(tsr_store *store, const tsr_host *host, const tsr_salvage_options *options, tsr_arena *arena,
                           tsr_salvage *out, tsr_error *err)
{
    tsr_salvage_options own;
    *out = (tsr_salvage){0};
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_salvage_options, err));
    salvager s = {.store = store,
                  .host = host,
                  .like = own.like,
                  .arena = arena,
                  .findings = own.findings,
                  .progress = own.progress,
                  .out = out,
                  .err = err,
                  .model = tsr_vec_of(host->allocator, sizeof(model_item)),
                  .entries = tsr_vec_of(host->allocator, sizeof(tsr_dcp_new_entry))};
    const tsr_status status = run(&s);
    tsr_vec_free(&s.model);
    tsr_vec_free(&s.entries);
    return status;
}

/* ---- salvage items ---- */

/* Finds the archives that follow each other in a data file, without metadata. An archive ends with its end record, the 22 bytes from "PK\5\6" on (torch.save writes no comment).
 * The elements of a tensor may contain the same four bytes, so a candidate counts only if its record says that the central
 * directory ends just before it, and if the bytes up to it can be opened as an archive. */

enum {
    END_RECORD = 22,
    ZIP64_RECORDS = 56 + 20, /* end record and locator, between the directory and the end record */
    WINDOW = 1 << 20,
    FALSE_ENDS = 64 /* candidates tried per item; in real data, false ones fail the checks of is_end */
};

static const char end_signature[4] = {'P', 'K', 5, 6};

typedef struct finder {
    const tsr_salvage_job *job;
    uint32_t file;
    uint64_t size;
    char *window; /* WINDOW bytes; the first `held` are the file's bytes from window_at on */
    uint64_t window_at;
    size_t held;
} finder;

/* Sets *out to the bytes [offset, offset + size) of the file. Moves the window there if it does not contain them. */
static tsr_status look(finder *f, uint64_t offset, size_t size, const char **out, tsr_error *err)
{
    if (offset < f->window_at || offset + size > f->window_at + f->held) {
        const uint64_t left = f->size - offset;
        TSR_FAIL_IF(f->job->step && !f->job->step(f->job->ctx, offset), err, TSR_E_CANCELLED, "interrupted");
        f->window_at = offset;
        f->held = left < WINDOW ? (size_t)left : WINDOW;
        TSR_TRY(tsr_store_read(f->job->store, f->file, offset, f->window, f->held, err));
    }
    *out = f->window + (offset - f->window_at);
    return TSR_OK;
}

/* The position of the first end record at or after `from`, or the file's size if there is none. */
static tsr_status find_end(finder *f, uint64_t from, uint64_t *out, tsr_error *err)
{
    for (*out = f->size; from + END_RECORD <= f->size;) {
        const char *begin;
        TSR_TRY(look(f, from, END_RECORD, &begin, err));
        const size_t n = f->held - (size_t)(from - f->window_at);
        for (const char *at = begin; (at = memchr(at, 'P', n - (size_t)(at - begin))); at++) {
            const size_t i = (size_t)(at - begin);
            if (i + sizeof end_signature > n) break;
            if (memcmp(at, end_signature, sizeof end_signature) != 0) continue;
            *out = from + i;
            return TSR_OK;
        }
        if (from + n == f->size) return TSR_OK;
        from += n - (sizeof end_signature - 1);
    }
    return TSR_OK;
}

/* Whether the end record at `at` can be that of an archive that begins at `offset`. */
static tsr_status is_end(finder *f, uint64_t offset, uint64_t at, bool *out, tsr_error *err)
{
    const char *text;
    TSR_TRY(look(f, at, END_RECORD, &text, err));
    const uint8_t *record = (const uint8_t *)text;
    const uint64_t count = tsr_load_le(record + 10, 2), size = tsr_load_le(record + 12, 4),
                   from = tsr_load_le(record + 16, 4);
    const uint64_t room = at - offset;
    const bool wide = size == UINT32_MAX || from == UINT32_MAX || count == UINT16_MAX;
    const bool meets = size + from == room || size + from + ZIP64_RECORDS == room;
    *out = count > 0 && tsr_load_le(record + 20, 2) == 0 && (wide ? room > ZIP64_RECORDS : meets);
    return TSR_OK;
}

static tsr_status keep(tsr_vec *out, const tsr_torch_item *opened, uint64_t offset, uint64_t size, tsr_error *err)
{
    tsr_salvaged_item *item = tsr_vec_push(out, err);
    if (!item) return TSR_E_NOMEM;
    *item = (tsr_salvaged_item){.byte_offset = offset, .byte_length = size};
    if (opened->root->kind != TSR_VALUE_TENSOR) return TSR_OK;
    const tsr_entry *tensor = opened->root->as.tensor;
    item->tensor = true;
    item->requires_grad = tensor->requires_grad;
    item->dtype = tensor->dtype;
    item->ndim = tensor->ndim;
    item->sizes = tensor->shape;
    return TSR_OK;
}

/* Appends the item whose archive begins at `offset`, and sets *end after it. If there is none, *end is `offset`. */
static tsr_status take_archive(finder *f, uint64_t offset, tsr_vec *out, uint64_t *end, tsr_error *err)
{
    tsr_torch_item item;
    unsigned false_ends = 0;
    for (uint64_t at = offset; at < f->size && false_ends < FALSE_ENDS; at++) {
        tsr_error why = {0};
        bool likely;
        TSR_TRY(find_end(f, at, &at, err));
        if (at + END_RECORD > f->size) break;
        TSR_TRY(is_end(f, offset, at, &likely, err));
        if (!likely) continue;
        false_ends++;
        *end = at + END_RECORD;
        const tsr_torch_source from = {.range = {f->job->store, f->file, offset, *end - offset}};
        const tsr_status status = tsr_torch_item_open(&from, f->job->host, f->job->arena, NULL, &item, &why);
        if (status == TSR_OK) return keep(out, &item, offset, *end - offset, err);
        TSR_FAIL_AT(status == TSR_E_NOMEM || status == TSR_E_IO, err, status, why.byte_position, "%s", why.message);
    }
    *end = offset;
    return TSR_OK;
}

static tsr_status take_archives(finder *f, tsr_vec *out, tsr_error *err)
{
    const tsr_str name = f->job->store->files[f->file].name;
    for (uint64_t at = 0, end; at < f->size; at = end) {
        TSR_TRY(take_archive(f, at, out, &end, err));
        if (end > at) continue;
        const tsr_place place = {name, at, {NULL, 0}};
        return tsr_finding_add(f->job->findings, "repair/no-item", place, err,
                               "the last %llu bytes of '%.*s' are an incomplete item, truncated or overwritten",
                               (unsigned long long)(f->size - at), TSR_STR_ARG(name));
    }
    return TSR_OK;
}

/* Appends the items of a file to a vec of tsr_salvaged_item. Bytes that do not begin a complete archive become a finding and
 * end the search of the file, because the items after them cannot be located. */
static tsr_status salvage_file(const tsr_salvage_job *job, uint32_t file, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = job->host->allocator;
    finder f = {
        .job = job, .file = file, .size = job->store->files[file].size, .window = tsr_alloc(allocator, WINDOW, 1, err)};
    if (!f.window) return TSR_E_NOMEM;
    const tsr_status status = take_archives(&f, out, err);
    tsr_free(allocator, f.window, WINDOW, 1);
    return status;
}
