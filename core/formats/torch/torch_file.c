/* One torch.save file as a checkpoint, and what all torch readers share. */
#include "formats/torch/torch_file.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/common/incomplete.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_union.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- item ---- */

/* A torch.save archive as values.
 *
 *   <top>/data.pkl        the pickle, with persistent ids for storages
 *   <top>/data/<key>      one member a storage
 *   <top>/byteorder       "little" or "big"; absent before PyTorch 2.1: little */

static tsr_status read_member(const tsr_zip_window *window, const tsr_torch_build *build, const tsr_zip_member *member,
                              tsr_str *out, tsr_error *err)
{
    const tsr_host *host = build->host;
    TSR_FAIL_AT(member->size > host->limits.metadata_bytes, err, TSR_E_LIMIT, member->byte_offset,
                "torch: '%.*s' has %llu bytes, which exceed the limit of %llu (metadata_bytes)", TSR_STR_ARG(member->name),
                (unsigned long long)member->size, (unsigned long long)host->limits.metadata_bytes);
    char *bytes = tsr_arena_array(build->arena, (size_t)member->size, 1, err);
    if (!bytes) return TSR_E_NOMEM;
    TSR_TRY(tsr_zip_window_read(window, member->byte_offset, bytes, (size_t)member->size, err));
    *out = (tsr_str){bytes, (size_t)member->size};
    return TSR_OK;
}

static tsr_status read_byte_order(const tsr_zip_window *window, const tsr_zip *zip, bool *big, tsr_error *err)
{
    const tsr_zip_member *member = tsr_zip_find(zip, TSR_STR("byteorder"));
    char text[6];
    *big = false;
    if (!member) return TSR_OK;
    size_t size = member->size < sizeof text ? (size_t)member->size : sizeof text;
    TSR_TRY(tsr_zip_window_read(window, member->byte_offset, text, size, err));
    *big = member->size == 3 && memcmp(text, "big", 3) == 0;
    TSR_FAIL_AT(!*big && (member->size != 6 || memcmp(text, "little", 6) != 0), err, TSR_E_FORMAT, member->byte_offset,
                "torch: 'byteorder' is neither \"little\" nor \"big\"");
    return TSR_OK;
}

/* A number as C++'s stoull reads it, or 0: leading white space, digits, then anything. */
static uint64_t leading_number(const char *text, size_t size)
{
    uint64_t value = 0;
    size_t at = 0;
    while (at < size && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r'))) at++;
    if (at < size && text[at] == '+') at++;
    for (; at < size && tsr_is_digit(text[at]) && value < UINT32_MAX; at++) value = value * 10 + (uint64_t)(text[at] - '0');
    return value;
}

/* PyTorch reads archives of the versions 1 to 10 only (kMinSupportedFileFormatVersion, kMaxSupportedFileFormatVersion). */
static tsr_status judge_version(const tsr_torch_build *build, const tsr_zip_window *window, const tsr_zip *zip,
                                tsr_error *err)
{
    const tsr_zip_member *member = tsr_zip_find(zip, TSR_STR(".data/version"));
    char text[24];
    if (!build->findings) return TSR_OK;
    if (!member) member = tsr_zip_find(zip, TSR_STR("version"));
    tsr_place place = {build->file_name, member ? member->byte_offset : zip->byte_offset, {NULL, 0}};
    if (!member)
        return tsr_finding_add(build->findings, "torch/version", place, err,
                               "the archive has no member 'version'; PyTorch refuses it");
    size_t size = member->size < sizeof text ? (size_t)member->size : sizeof text;
    TSR_TRY(tsr_zip_window_read(window, member->byte_offset, text, size, err));
    uint64_t version = leading_number(text, size);
    if (version >= 1 && version <= 10) return TSR_OK;
    for (size_t i = 0; i < size; i++)
        if (text[i] < ' ' || text[i] > '~') size = i;
    return tsr_finding_add(build->findings, "torch/version", place, err,
                           "the archive's version is '%.*s'; PyTorch reads versions 1 to 10", (int)size, text);
}

/* torch.load takes '.storage_alignment' for an int, whether or not it uses it. */
static tsr_status judge_alignment(const tsr_torch_build *build, const tsr_zip_window *window, const tsr_zip *zip,
                                  tsr_error *err)
{
    const tsr_zip_member *member = tsr_zip_find(zip, TSR_STR(".storage_alignment"));
    char text[24];
    bool digits = false, known = member && member->size <= sizeof text;
    if (!build->findings || !member) return TSR_OK;
    if (known) TSR_TRY(tsr_zip_window_read(window, member->byte_offset, text, (size_t)member->size, err));
    for (size_t i = 0; known && i < member->size; i++) {
        digits |= tsr_is_digit(text[i]);
        known = tsr_is_digit(text[i]) || (text[i] && strchr(" \n_+-", text[i]));
    }
    if (known && digits) return TSR_OK;
    tsr_place place = {build->file_name, member->byte_offset, {NULL, 0}};
    return tsr_finding_add(build->findings, "torch/version", place, err,
                           "the member '.storage_alignment' is not a decimal number; PyTorch refuses the archive");
}

static tsr_status locate_storages(tsr_torch_build *build, const tsr_zip *zip, bool salvage, tsr_error *err)
{
    tsr_torch_storage *storages = build->storages.items;
    for (size_t i = 0; i < build->storages.count; i++) {
        if (storages[i].meta) continue;
        tsr_str name = tsr_arena_format(build->arena, err, "data/%.*s", TSR_STR_ARG(storages[i].key));
        if (!name.data) return TSR_E_NOMEM;
        const tsr_zip_member *member = tsr_zip_find(zip, name);
        storages[i].lost = salvage && (!member || member->size != storages[i].byte_length);
        if (storages[i].lost) continue;
        TSR_FAIL_AT(!member, err, TSR_E_FORMAT, zip->byte_offset,
                    "torch: the archive has no '%.*s' for a storage of %llu bytes", TSR_STR_ARG(name),
                    (unsigned long long)storages[i].byte_length);
        TSR_FAIL_AT(member->size != storages[i].byte_length, err, TSR_E_FORMAT, member->byte_offset,
                    "torch: storage '%.*s' has %llu bytes, but its member '%.*s' has %llu", TSR_STR_ARG(storages[i].key),
                    (unsigned long long)storages[i].byte_length, TSR_STR_ARG(name), (unsigned long long)member->size);
        storages[i].byte_offset = member->byte_offset;
    }
    return TSR_OK;
}

/* Whether a member holds the bytes of a storage. */
static bool torch_is_storage(const tsr_zip *zip, const tsr_zip_member *member)
{
    const size_t top = zip->top.size ? zip->top.size + 1 : 0;
    return tsr_str_starts(tsr_str_after(member->name, top), TSR_STR("data/"));
}

static bool storages_unsummed(const tsr_zip *zip)
{
    bool bytes = false;
    for (uint32_t m = 0; m < zip->count; m++) {
        if (!torch_is_storage(zip, &zip->members[m])) continue;
        if (zip->members[m].crc32 != 0) return false;
        bytes |= zip->members[m].size > 0;
    }
    return bytes && !zip->crc_absent;
}

static tsr_status build_values(tsr_torch_build *build, const tsr_zip *zip, bool big, bool salvage, tsr_torch_item *out,
                               tsr_error *err)
{
    TSR_TRY(tsr_torch_build_open(build, err));
    TSR_TRY(tsr_torch_values(build, tsr_pickle_root(build->pickle), &out->root, err));
    TSR_TRY(locate_storages(build, zip, salvage, err));
    out->storage_count = (uint32_t)build->storages.count;
    out->storages_unsummed = storages_unsummed(zip);
    out->rank_known = build->rank.known;
    out->rank = build->rank.rank;
    out->world = build->rank.world;
    return tsr_torch_place(build, big, err);
}

static tsr_status find_pickle(const tsr_zip *zip, const tsr_zip_member **out, tsr_error *err)
{
    *out = tsr_zip_find(zip, TSR_STR("data.pkl"));
    TSR_FAIL_AT(tsr_zip_find(zip, TSR_STR("constants.pkl")), err, TSR_E_UNSUPPORTED, zip->byte_offset,
                "torch: a TorchScript archive (torch.jit.save), not a checkpoint");
    TSR_FAIL_AT(!*out, err, TSR_E_FORMAT, zip->byte_offset, "torch: a zip archive without a member <directory>/data.pkl");
    return TSR_OK;
}

static tsr_status open_item(tsr_zip_window *window, tsr_torch_build *build, bool salvage, tsr_torch_item *out,
                            tsr_error *err)
{
    const tsr_host *host = build->host;
    const tsr_zip *zip = &out->zip;
    const tsr_zip_member *member;
    tsr_str bytes;
    bool big;
    TSR_TRY((salvage ? tsr_zip_salvage : tsr_zip_open)(window, host, build->arena, &out->zip, err));
    TSR_TRY(find_pickle(zip, &member, err));
    if (!salvage) TSR_TRY(judge_version(build, window, zip, err)); /* it is at the end */
    TSR_TRY(judge_alignment(build, window, zip, err));
    TSR_TRY(read_byte_order(window, zip, &big, err));
    TSR_TRY(read_member(window, build, member, &bytes, err));
    tsr_pickle *pickle;
    size_t consumed;
    build->pickle_offset = member->byte_offset;
    build->pickle_bytes = bytes;
    out->pickle_bytes = bytes.size;
    tsr_status status = tsr_pickle_parse(bytes, host, &tsr_torch_names, &pickle, &consumed, err);
    if (status != TSR_OK) {
        if (err && err->byte_position != TSR_NO_POSITION) err->byte_position += member->byte_offset;
        tsr_error_context(err, "%.*s", TSR_STR_ARG(member->name));
        return status;
    }
    build->pickle = pickle;
    status = build_values(build, zip, big, salvage, out, err);
    if (status == TSR_OK) status = tsr_torch_verdict_on_end(build, consumed, bytes.size, err);
    tsr_torch_build_close(build);
    tsr_pickle_free(pickle);
    return status;
}

tsr_status tsr_torch_item_open(const tsr_torch_source *from, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                               tsr_torch_item *out, tsr_error *err)
{
    tsr_store *store = from->range.store;
    tsr_torch_build build = {.host = host,
                             .arena = arena,
                             .findings = findings,
                             .file_name = store->files[from->range.file].name,
                             .file = from->range.file,
                             .rank = {.hinted = from->has_rank, .hint = from->rank},
                             .zstd = from->zstd};
    *out = (tsr_torch_item){0};
    tsr_zip_window window = tsr_zip_window_of(from->range, host->allocator);
    const tsr_status status = open_item(&window, &build, from->salvage, out, err);
    tsr_zip_window_free(&window);
    TSR_TRY(status);
    const uint64_t more = TSR_IS_SMALL ? 0 : from->range.byte_length - out->zip.size; /* see codec/zip.c */
    if (more && findings)
        TSR_TRY(tsr_finding_add(findings, "pickle/trailing-bytes",
                                (tsr_place){build.file_name, from->range.byte_offset + out->zip.size, {NULL, 0}}, err,
                                "%llu byte%s follow%s the end of the archive", (unsigned long long)more, TSR_PLURAL(more),
                                more == 1 ? "s" : ""));
    const bool absent = out->zip.crc_absent;
    if (!(absent || out->storages_unsummed) || !findings || store->unsummed) return TSR_OK;
    tsr_place place = {build.file_name, from->range.byte_offset, {NULL, 0}};
    return tsr_finding_add(findings, "zip/crc-absent", place, err,
                           absent ? "the archive carries no checksums (every CRC-32 is 0)"
                                  : "the archive carries no checksums of tensors (the CRC-32 of every storage is 0, as "
                                    "torch.serialization.skip_data leaves it)");
}

/* ---- file ---- */

typedef struct run_list {
    const tsr_torch_run *runs; /* in order of (file, byte_offset) */
    size_t count;
} run_list;

/* A chunk of contiguous raw bytes, which may fill a run. */
typedef struct filling {
    const tsr_entry *entry;
    const tsr_chunk *chunk;
    uint64_t order; /* position of the entry in the catalog */
} filling;

static tsr_status push_run(tsr_vec *runs, tsr_torch_run run, tsr_error *err)
{
    tsr_torch_run *added = tsr_vec_push(runs, err);
    if (!added) return TSR_E_NOMEM;
    *added = run;
    return TSR_OK;
}

/* Files whose root is an object that holds the state of one rank for the library that wrote it. */
static const char *foreign_root(const tsr_value *root)
{
    static const char *const classes[] = {
        "nvidia_resiliency_ext.checkpointing.local.basic_state_dict.BasicTensorAwareStateDict",
        "megatron.core.dist_checkpointing.tensor_aware_state_dict.MCoreTensorAwareStateDict"};
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (root->kind == TSR_VALUE_OBJECT && tsr_str_equal(root->text, tsr_str_from(classes[i]))) return classes[i];
    return NULL;
}

static tsr_status open_zip(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                           tsr_vec *runs, tsr_error *err)
{
    tsr_torch_item item;
    const tsr_torch_source from = {.range = tsr_whole_file(checkpoint->store, file),
                                   .has_rank = rank.hinted,
                                   .rank = rank.hint,
                                   .salvage = checkpoint->options.salvage};
    tsr_status status = tsr_torch_item_open(&from, checkpoint->host, checkpoint->arena, checkpoint->findings, &item, err);
    if (status != TSR_OK) return status;
    TSR_FAIL_IF(foreign_root(item.root), err, TSR_E_UNSUPPORTED,
                "%.*s is one rank's local checkpoint of nvidia-resiliency-ext (%s), which is not supported: its "
                "LocalCheckpointManager loads it in the job that wrote it",
                TSR_STR_ARG(checkpoint->store->files[file].name), foreign_root(item.root));
    *out = (tsr_torch_file){
        item.root, item.storage_count, {item.rank_known, item.rank, item.world, rank.hinted, rank.hint}, item.pickle_bytes};
    for (uint32_t i = 0; i < item.zip.count; i++) {
        const tsr_zip_member *m = &item.zip.members[i];
        const bool has_crc = !item.zip.crc_absent && !(item.storages_unsummed && torch_is_storage(&item.zip, m));
        const tsr_torch_run run = {.file = file,
                                   .byte_offset = m->byte_offset,
                                   .byte_length = m->size,
                                   .has_crc = has_crc,
                                   .crc32 = m->crc32,
                                   .member = m->name};
        TSR_TRY(push_run(runs, run, err));
    }
    return TSR_OK;
}

tsr_status tsr_torch_file_open(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                               tsr_vec *runs, tsr_error *err)
{
    char head[4] = {0};
    const tsr_store_file *named = &checkpoint->store->files[file];
    TSR_FAIL_AT(named->size < sizeof head, err, TSR_E_FORMAT, 0,
                "torch: %.*s has %llu bytes, which are too few for a torch.save file", TSR_STR_ARG(named->name),
                (unsigned long long)named->size);
    TSR_TRY(tsr_store_read(checkpoint->store, file, 0, head, sizeof head, err));
    bool zip = tsr_zip_looks_like((tsr_str){head, sizeof head});
    tsr_status status = zip ? open_zip(checkpoint, file, rank, out, runs, err)
                            : tsr_torch_legacy_open(checkpoint, file, rank, out, runs, err);
    if (status != TSR_OK && status != TSR_E_IO) tsr_error_context(err, "%.*s", TSR_STR_ARG(named->name));
    if (status == TSR_OK) tsr_expansion_add(&checkpoint->expansion, out->pickle_bytes);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const tsr_torch_run *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->byte_offset > y->byte_offset) - (x->byte_offset < y->byte_offset);
}

tsr_status tsr_torch_keep_runs(tsr_checkpoint *checkpoint, const tsr_vec *runs, tsr_error *err)
{
    run_list *list = TSR_ARENA_NEW(checkpoint->arena, run_list, err);
    tsr_torch_run *copy = tsr_arena_array(checkpoint->arena, runs->count, sizeof *copy, err);
    if (!list || !copy) return TSR_E_NOMEM;
    if (runs->count) memcpy(copy, runs->items, runs->count * sizeof *copy);
    qsort(copy, runs->count, sizeof *copy, by_place);
    *list = (run_list){copy, runs->count};
    checkpoint->state = list;
    return TSR_OK;
}

/* The run that contains a chunk, or NULL. */
static const tsr_torch_run *run_around(const run_list *list, const tsr_chunk *chunk)
{
    size_t low = 0, high = list->count; /* the first run behind the chunk's beginning */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const tsr_torch_run *run = &list->runs[middle];
        if (run->file < chunk->file || (run->file == chunk->file && run->byte_offset <= chunk->byte_offset))
            low = middle + 1;
        else high = middle;
    }
    const tsr_torch_run *run = low ? &list->runs[low - 1] : NULL;
    return run && run->file == chunk->file && chunk->byte_offset - run->byte_offset < run->byte_length ? run : NULL;
}

static bool same_view(const tsr_entry *entry, const tsr_chunk *a, const tsr_chunk *b)
{
    const tsr_view plain = {0}, *x = a->view ? a->view : &plain, *y = b->view ? b->view : &plain;
    if (x->conj != y->conj || x->neg != y->neg || x->swap != y->swap || !x->strides != !y->strides) return false;
    return !x->strides || memcmp(x->strides, y->strides, entry->ndim * sizeof *x->strides) == 0;
}

bool tsr_torch_decide(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same)
{
    const tsr_chunk *x = a->chunks, *y = b->chunks;
    const tsr_torch_run *first = run_around(checkpoint->state, x), *second = run_around(checkpoint->state, y);
    if (!first || !second || !first->has_crc || !second->has_crc || !same_view(a, x, y)) return false;
    *same = first->byte_length == second->byte_length && first->crc32 == second->crc32 &&
            x->byte_offset - first->byte_offset == y->byte_offset - second->byte_offset;
    if (*same) return true;
    /* The storages differ. The tensors may still be equal, unless each fills its whole storage. */
    const bool plain = !x->view || !x->view->strides;
    return plain && x->byte_length == first->byte_length && y->byte_length == second->byte_length;
}

static int by_bytes(const void *a, const void *b)
{
    const filling *x = a, *y = b;
    if (x->chunk->file != y->chunk->file) return x->chunk->file < y->chunk->file ? -1 : 1;
    if (x->chunk->byte_offset != y->chunk->byte_offset) return x->chunk->byte_offset < y->chunk->byte_offset ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_status add_fillings(tsr_vec *list, const tsr_entry *entry, uint64_t order, const tsr_chunk *chunks,
                               uint64_t count, tsr_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        const tsr_view *view = chunks[i].view;
        if (chunks[i].byte_length == 0 || chunks[i].file == TSR_NO_FILE) continue;
        if (view && (view->strides || view->conj || view->neg)) continue;
        if (entry->per_rank && view) continue; /* such an entry cannot be gathered to look at its values */
        filling *added = tsr_vec_push(list, err);
        if (!added) return TSR_E_NOMEM;
        *added = (filling){entry, &chunks[i], order};
    }
    return TSR_OK;
}

static tsr_status add_per_rank(tsr_vec *list, const tsr_entry *entry, uint64_t order, tsr_error *err)
{
    for (uint32_t r = 0; r < entry->per_rank->count; r++) {
        const tsr_entry *held = entry->per_rank->tensors[r];
        if (!held || held->kind != TSR_ENTRY_TENSOR || held->dtype != entry->dtype) continue;
        TSR_TRY(add_fillings(list, entry, order, held->chunks, held->chunk_count, err));
    }
    return TSR_OK;
}

static tsr_status collect_fillings(const tsr_catalog *catalog, tsr_vec *list, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->per_rank) TSR_TRY(add_per_rank(list, entry, i, err));
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        TSR_TRY(add_fillings(list, entry, i, entry->chunks, entry->chunk_count, err));
        TSR_TRY(add_fillings(list, entry, i, entry->replicas, entry->replica_count, err));
    }
    if (list->count) qsort(list->items, list->count, sizeof(filling), by_bytes);
    return TSR_OK;
}

static tsr_extent extent_of(const tsr_torch_run *run, const filling *fills)
{
    tsr_extent extent = {.file = run->file,
                         .byte_offset = run->byte_offset,
                         .byte_length = run->byte_length,
                         .has_crc = run->has_crc,
                         .crc32 = run->crc32,
                         .member = run->member};
    if (!fills) return extent;
    extent.entry = fills->entry;
    extent.chunk = fills->chunk;
    if (fills->chunk->view) extent.view = *fills->chunk->view;
    else extent.view = (tsr_view){.file = run->file, .byte_offset = run->byte_offset};
    return extent;
}

typedef struct visit {
    tsr_checkpoint *checkpoint;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
    tsr_torch_written written; /* the current file */
    size_t first, end;         /* its runs */
} visit;

static void close_file(visit *v)
{
    tsr_free(v->checkpoint->host->allocator, v->written.members, v->written.count, sizeof *v->written.members);
    tsr_torch_written_close(&v->written);
    v->written.members = NULL;
}

/* Begins the file of runs [first, …). */
static tsr_status open_file(visit *v, const run_list *list, size_t first, tsr_error *err)
{
    const tsr_host *host = v->checkpoint->host;
    const uint32_t file = list->runs[first].file;
    v->first = v->end = first;
    while (v->end < list->count && list->runs[v->end].file == file) v->end++;
    const size_t count = v->end - first;
    tsr_zip_new_member *members = tsr_alloc(host->allocator, count, sizeof *members, err);
    if (!members) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const tsr_torch_run *run = &list->runs[first + i];
        members[i] = (tsr_zip_new_member){
            .name = run->member, .size = run->byte_length, .crc32 = run->crc32, .byte_offset = run->byte_offset};
    }
    const tsr_range range = {v->checkpoint->store, file, 0, v->checkpoint->store->files[file].size};
    const tsr_status status = tsr_torch_written_open(range, host, members, count, &v->written, err);
    if (!v->written.members) tsr_free(host->allocator, members, count, sizeof *members);
    return status;
}

static tsr_status visit_gap(visit *v, size_t i, tsr_error *err)
{
    tsr_extent gap;
    if (!v->written.members) return TSR_OK;
    TSR_TRY(tsr_torch_written_gap(&v->written, v->checkpoint->host, i - v->first, &gap, err));
    gap.before = 0;
    return v->each(v->ctx, &gap, err);
}

/* Runs and fillings are both in file order: one pass over each. */
static tsr_status visit_runs(visit *v, const run_list *list, const tsr_vec *fillings, tsr_error *err)
{
    const filling *items = fillings->items;
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        const tsr_torch_run *run = &list->runs[i];
        const filling *fills = NULL;
        if (i == v->end) TSR_TRY(open_file(v, list, i, err));
        TSR_TRY(visit_gap(v, i, err));
        while (at < fillings->count &&
               (items[at].chunk->file < run->file ||
                (items[at].chunk->file == run->file && items[at].chunk->byte_offset < run->byte_offset)))
            at++;
        for (;
             at < fillings->count && items[at].chunk->file == run->file && items[at].chunk->byte_offset == run->byte_offset;
             at++)
            if (!fills && items[at].chunk->byte_length == run->byte_length) fills = &items[at];
        tsr_extent extent = extent_of(run, fills);
        TSR_TRY(v->each(v->ctx, &extent, err));
        if (i + 1 != v->end) continue;
        TSR_TRY(visit_gap(v, i + 1, err));
        close_file(v);
    }
    return TSR_OK;
}

tsr_status tsr_torch_extents(tsr_checkpoint *checkpoint,
                             tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                             tsr_error *err)
{
    tsr_vec fillings = tsr_vec_of(checkpoint->host->allocator, sizeof(filling));
    tsr_status status = collect_fillings(&checkpoint->catalog, &fillings, err);
    visit v = {.checkpoint = checkpoint, .each = each, .ctx = ctx};
    if (status == TSR_OK) status = visit_runs(&v, checkpoint->state, &fillings, err);
    close_file(&v);
    tsr_vec_free(&fillings);
    return status;
}

tsr_status tsr_torch_run_extents(tsr_checkpoint *checkpoint, const tsr_torch_run *runs, size_t count,
                                 tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                 tsr_error *err)
{
    const run_list list = {runs, count};
    const tsr_vec none = {.items = NULL};
    visit v = {.checkpoint = checkpoint, .each = each, .ctx = ctx};
    const tsr_status status = visit_runs(&v, &list, &none, err);
    close_file(&v);
    return status;
}

tsr_status tsr_torch_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                         tsr_stated_crc *out, tsr_error *err)
{
    const run_list *list = checkpoint->state;
    const tsr_torch_run place = {.file = chunk->file, .byte_offset = chunk->byte_offset};
    const tsr_torch_run *run = list->count ? bsearch(&place, list->runs, list->count, sizeof place, by_place) : NULL;
    (void)entry, (void)scratch, (void)err;
    if (run && run->has_crc && run->byte_length == chunk->byte_length) *out = (tsr_stated_crc){true, run->crc32};
    return TSR_OK;
}

/* ---- slices ---- */

/* A storage is much larger than its tensors if it has this many times their bytes, and that is at least a page more. */
enum { MUCH_LARGER = 4, PAGE = 4096 };

/* What the tensors of a storage use of it. `bytes` is UINT64_MAX if that is not known. */
typedef struct storage_use {
    const tsr_entry *first;
    uint64_t bytes;
} storage_use;

static void add_use(const run_list *list, storage_use *uses, const tsr_entry *entry, const tsr_chunk *chunk)
{
    const tsr_torch_run *run = run_around(list, chunk);
    uint64_t bytes = tsr_dtype_size(entry->dtype);
    if (!run) return;
    storage_use *use = &uses[run - list->runs];
    bool is_known = entry->kind == TSR_ENTRY_TENSOR && bytes;
    for (uint32_t d = 0; d < entry->ndim && is_known; d++) is_known = tsr_mul_u64(bytes, chunk->sizes[d], &bytes);
    if (!use->first) use->first = entry;
    if (!is_known || !tsr_add_u64(use->bytes, bytes, &use->bytes)) use->bytes = UINT64_MAX;
}

static void add_uses(const run_list *list, storage_use *uses, const tsr_entry *entry)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++) add_use(list, uses, entry, &entry->chunks[i]);
    for (uint64_t i = 0; i < entry->replica_count; i++) add_use(list, uses, entry, &entry->replicas[i]);
}

static tsr_status note_slice(tsr_checkpoint *checkpoint, const tsr_torch_run *run, const storage_use *use, tsr_error *err)
{
    if (!use->bytes || run->byte_length / MUCH_LARGER < use->bytes || run->byte_length - use->bytes < PAGE) return TSR_OK;
    const tsr_place place = {checkpoint->store->files[run->file].name, run->byte_offset, use->first->fqn};
    return tsr_finding_add(checkpoint->findings, "torch/slice-of-storage", place, err,
                           "%" PRIu64 " of %" PRIu64 " bytes are used of the storage of '%.*s'; tessera convert leaves out "
                           "the rest",
                           use->bytes, run->byte_length, TSR_STR_ARG(use->first->fqn));
}

/* Reports an untyped storage, such as that of a float8 tensor. */
static tsr_status report_unloadable(tsr_checkpoint *checkpoint, const tsr_torch_run *run, const storage_use *use,
                                    tsr_error *err)
{
    const tsr_str fqn = use->first ? use->first->fqn : TSR_STR("");
    const tsr_place place = {checkpoint->store->files[run->file].name, run->pickled_at, fqn};
    return tsr_finding_add_at(
        checkpoint->findings, (tsr_rated_rule){"pickle/unloadable", TSR_WARNING}, place, err,
        "%s%.*s%s an untyped storage, which PyTorch writes to files of the legacy form, but cannot read back",
        fqn.size ? "'" : "there is", TSR_STR_ARG(fqn), fqn.size ? "' is in" : "");
}

tsr_status tsr_torch_note_storages(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    const tsr_catalog *catalog = &checkpoint->catalog;
    const run_list *list = checkpoint->state;
    storage_use *uses = tsr_alloc(allocator, list->count + 1, sizeof *uses, err);
    if (!uses) return TSR_E_NOMEM;
    memset(uses, 0, (list->count + 1) * sizeof *uses);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_per_rank *ranks = catalog->entries[i].per_rank;
        for (uint32_t r = 0; ranks && r < ranks->count; r++)
            if (ranks->tensors[r]) add_uses(list, uses, ranks->tensors[r]);
        if (!ranks) add_uses(list, uses, &catalog->entries[i]);
    }
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < list->count && status == TSR_OK; i++) {
        if (list->runs[i].unloadable) status = report_unloadable(checkpoint, &list->runs[i], &uses[i], err);
        if (status == TSR_OK) status = note_slice(checkpoint, &list->runs[i], &uses[i], err);
    }
    tsr_free(allocator, uses, list->count + 1, sizeof *uses);
    return status;
}

/* ---- what is lost ---- */

enum { LOST_DEPTH = 64, LOST_NODES = 1 << 20 };

/* Whether a tensor inside the value is lost. What is too large to be walked through counts as lost. */
static bool holds_lost(const tsr_value *value, unsigned depth, unsigned *nodes)
{
    if (depth == LOST_DEPTH || *nodes == 0) return true;
    --*nodes;
    if (value->kind == TSR_VALUE_TENSOR) return tsr_entry_lacks_bytes(value->as.tensor);
    const tsr_value *attributes = tsr_value_attributes(value);
    if (attributes && holds_lost(attributes, depth + 1, nodes)) return true;
    for (size_t i = 0; i < value->count; i++)
        if (holds_lost(value->items[i], depth + 1, nodes)) return true;
    return false;
}

tsr_status tsr_torch_leave_out_lost(tsr_checkpoint *checkpoint, tsr_torch_flat *flat, tsr_error *err)
{
    uint64_t kept = 0, mapping = 0;
    for (uint64_t i = 0; i < flat->entry_count; i++) {
        tsr_entry *entry = &flat->entries[i];
        unsigned nodes = LOST_NODES;
        for (; mapping < flat->mapping_count && flat->mappings[mapping].entries_before <= i; mapping++)
            flat->mappings[mapping].entries_before = kept;
        if (tsr_entry_lacks_bytes(entry) || (entry->value && holds_lost(entry->value, 0, &nodes)))
            TSR_TRY(tsr_entry_report_lost(checkpoint, entry, err));
        else flat->entries[kept++] = *entry;
    }
    for (; mapping < flat->mapping_count; mapping++) flat->mappings[mapping].entries_before = kept;
    flat->entry_count = kept;
    return TSR_OK;
}

static tsr_status open_single(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_torch_file file;
    tsr_torch_flat flat;
    tsr_vec runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run));
    tsr_status status = tsr_torch_file_open(checkpoint, checkpoint->files[0], (tsr_torch_rank){0}, &file, &runs, err);
    if (status == TSR_OK) status = tsr_torch_keep_runs(checkpoint, &runs, err);
    tsr_vec_free(&runs);
    if (status == TSR_OK)
        status = tsr_torch_flatten(file.root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, err);
    if (status == TSR_OK && checkpoint->options.salvage) status = tsr_torch_leave_out_lost(checkpoint, &flat, err);
    if (status != TSR_OK) return status;
    checkpoint->catalog.entries = flat.entries;
    checkpoint->catalog.entry_count = flat.entry_count;
    checkpoint->catalog.mappings = flat.mappings;
    checkpoint->catalog.mapping_count = flat.mapping_count;
    TSR_TRY(tsr_torch_note_storages(checkpoint, err));
    return tsr_torch_keep_shared(checkpoint->host, flat.entries, flat.entry_count, file.storage_count, err);
}

const tsr_reader tsr_reader_torch_zip = {.format = TSR_FORMAT_TORCH_ZIP,
                                         .is_aside = true,
                                         .open = open_single,
                                         .extents = tsr_torch_extents,
                                         .crc = tsr_torch_crc};
const tsr_reader tsr_reader_torch_legacy = {
    .format = TSR_FORMAT_TORCH_LEGACY, .is_aside = true, .open = open_single, .extents = tsr_torch_extents};
