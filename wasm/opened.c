/* The host's files as stores, and the checkpoints that are opened over them. */
#include "shim.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

tsr_host tessera_lent;
tsr_status (*volatile tessera_read_shards)(tsr_str given, const tsr_host *host, tsr_arena *arena,
                                           const struct tsr_shards **out, tsr_error *err);

bool tessera_is_prepared;
static bool was_asked; /* whether the second file was needed since a checkpoint was opened */

/* Fails because the second file is needed. JavaScript must load it, which it cannot do synchronously. */
static tsr_status refuse_to_load(tsr_error *err)
{
    was_asked = true;
    return tsr_fail(err, TSR_E_USAGE, "the second file of the module is not loaded; await prepare() first");
}

static void lend(tsr_host *host)
{
    host->load = tessera_is_prepared ? NULL : refuse_to_load;
    host->crc32 = tessera_lent.crc32;
    host->sha256 = tessera_lent.sha256;
    host->xxh3 = tessera_lent.xxh3;
    host->zstd = tessera_lent.zstd;
}

tsr_host tessera_host(void)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    lend(&host);
    return host;
}

/* ---- stores ---- */

static tsr_status read_unguarded(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const host_store *store = ctx;
    for (size_t done = 0; done < size;) {
        const size_t part = size - done < TESSERA_READ_BYTES ? size - done : TESSERA_READ_BYTES;
        uint32_t result;
        while ((result = tsr_read(store->number, file, offset + done, (char *)buffer + done, (uint32_t)part)) ==
               TESSERA_WAIT)
            tsr_wait();
        if (result) {
            return tsr_raise(err, TSR_E_IO, offset + done, "%zu bytes of %.*s cannot be read", part,
                             TSR_STR_ARG(store->store.files[file].name));
        }
        done += part;
    }
    return TSR_OK;
}

static tsr_status read_at(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    host_store *s = (host_store *)store;
    return s->guards ? tsr_guards_read(s->guards, file, offset, buffer, size, err)
                     : read_unguarded(s, file, offset, buffer, size, err);
}

static void prefetch(tsr_store *store, const tsr_store_place *places, size_t count)
{
    if (tsr_prefetch(((host_store *)store)->number, places, (uint32_t)count) == TESSERA_WAIT) tsr_wait();
}

static tsr_status add_guard(tsr_store *store, const tsr_store_guard *guard, tsr_error *err)
{
    return tsr_guards_add(((host_store *)store)->guards, guard, err);
}

static tsr_status list_files(host_store *s, const tessera_file *files, uint32_t count, tsr_error *err)
{
    tsr_store_file *listing = tsr_arena_array(s->names, count, sizeof *listing, err);
    if (!listing) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        tsr_str name = {(const char *)(uintptr_t)files[i].name, files[i].name_size};
        listing[i] = (tsr_store_file){tsr_arena_str(s->names, name, err), files[i].size};
        if (!listing[i].name.data) return TSR_E_NOMEM;
        if (i && tsr_str_compare(listing[i - 1].name, listing[i].name) >= 0) {
            return tsr_fail(err, TSR_E_USAGE, "two files have the name '%.*s'", TSR_STR_ARG(name));
        }
    }
    s->store.files = listing;
    return TSR_OK;
}

/* Opens a store over files that JavaScript listed, sorted by name; the names are copied. host_store_close also accepts a zeroed
 * store, and one that could not be opened. */
static tsr_status host_store_open(host_store *out, uint32_t number, const tessera_file *files, uint32_t count,
                                  uint32_t primary, tsr_error *err)
{
    *out = (host_store){.store = {.file_count = count,
                                  .primary = primary < count ? primary : TSR_NO_FILE,
                                  .read_at = read_at,
                                  .prefetch = prefetch},
                        .number = number,
                        .names = tsr_arena_new(&tsr_allocator_libc, 0, err)};
    return out->names ? list_files(out, files, count, err) : TSR_E_NOMEM;
}

/* For files of which each read is a request: reads guarded bytes together with the first bytes after them. The second file
 * contains the code; without it nothing changes. */
static tsr_status host_store_guard(host_store *store, tsr_error *err)
{
    if (!tessera_is_prepared) return TSR_OK;
    store->store.guard = add_guard;
    return tsr_guards_new(&tsr_allocator_libc, read_unguarded, store, NULL, &store->guards, err);
}

static void host_store_close(host_store *store)
{
    if (store->guards) tsr_guards_free(store->guards);
    tsr_arena_free(store->names);
}

/* ---- checkpoints ---- */

opened *tessera_checkpoint_of(uint32_t handle, tsr_error *err)
{
    opened *item = tessera_item_of(handle, HANDLE_CHECKPOINT, err);
    if (item) lend(&item->host); /* the second file may have been loaded by now */
    if (!item || item->checkpoint) return item;
    tsr_raise_again(err, item->why.status, &item->why);
    return NULL;
}

static void free_opened(void *pointer)
{
    opened *item = pointer;
    tsr_checkpoint_close(item->checkpoint);
    if (item->below) item->release_below(item->below);
    if (item->made) item->release_made(item->made);
    host_store_close(&item->files);
    free(item);
}

/* Whether a directory that is not one checkpoint may contain the optimizer states of several ranks, whose files a
 * tessera.flat-params/1 document names. It does if it has several files of tensors. */
static bool may_be_ranks(opened *item)
{
    tsr_store *store = item->store;
    uint32_t count = 0;
    if (store->primary != TSR_NO_FILE || item->why.status != TSR_E_UNSUPPORTED) return false;
    for (uint32_t f = 0; f < store->file_count && count < 2; f++) {
        tsr_file_role role = TSR_ROLE_NONE;
        if (tsr_store_file_role(store, f, &role, NULL) != TSR_OK) return false;
        count += role == TSR_ROLE_TENSORS;
    }
    return count > 1;
}

tsr_open_options tessera_wanted_of(const opened *item, const tsr_open_options *wanted)
{
    tsr_open_options all = wanted ? *wanted : (tsr_open_options){0};
    all.part = item->chosen.part;
    all.step = item->chosen.step;
    all.shards = item->chosen.shards;
    all.salvage = item->chosen.salvage;
    return all;
}

static tsr_status open_checkpoint(opened *item, tsr_error *err)
{
    /* Calls that list names, or use tensors, require more later. */
    const tsr_open_options judged = tessera_wanted_of(item, &(tsr_open_options){.purpose = TSR_FOR_FINDINGS});
    was_asked = false;
    const tsr_status status = tsr_checkpoint_open(item->store, &item->host, &judged, &item->checkpoint, &item->why);
    if (was_asked) return refuse_to_load(err); /* even if listing skipped what it could not open */
    if (status == TSR_OK || may_be_ranks(item)) return TSR_OK;
    return tsr_raise_again(err, status, &item->why);
}

static opened *new_opened(tsr_error *err)
{
    opened *item = calloc(1, sizeof *item);
    if (!item) tsr_fail(err, TSR_E_NOMEM, "out of memory");
    else item->host = tessera_host();
    return item;
}

static tsr_status copy_text(opened *item, const tessera_text *from, tsr_str *out, tsr_error *err)
{
    if (from->data) *out = tsr_arena_str(item->files.names, (tsr_str){(const char *)(uintptr_t)from->data, from->size}, err);
    return from->data && !out->data ? TSR_E_NOMEM : TSR_OK;
}

static tsr_status choose(opened *item, const tessera_choice *choice, tsr_error *err)
{
    tsr_str shards = {NULL, 0};
    item->chosen.salvage = choice->salvage;
    tsr_status status = copy_text(item, &choice->part, &item->chosen.part, err);
    if (status == TSR_OK) status = copy_text(item, &choice->step, &item->chosen.step, err);
    if (status == TSR_OK) status = copy_text(item, &choice->shards, &shards, err);
    if (status != TSR_OK || !shards.data) return status;
    return tessera_read_shards(shards, &item->host, item->files.names, &item->chosen.shards, err);
}

/* Opens the checkpoint that `files` make, or the one that `choice` selects. `files` are sorted by the bytes of their names.
 * `store` is the number to pass to tsr_read. Returns a handle. Files that are not one checkpoint, but may be optimizer
 * states of ranks, are opened too; calls that need a checkpoint then fail with the reason. */
TSR_EXPORT(tessera_open)
uint32_t tessera_open(uint32_t store, const tessera_file *files, uint32_t count, const tessera_choice *choice,
                      tsr_error *err)
{
    opened *item = new_opened(err);
    if (!item) return 0;
    item->store = &item->files.store;
    tsr_status status = host_store_open(&item->files, store, files, count, choice->primary, err);
    if (status == TSR_OK && choice->is_remote) status = host_store_guard(&item->files, err);
    if (status == TSR_OK) status = choose(item, choice, err);
    if (status == TSR_OK) status = open_checkpoint(item, err);
    if (status == TSR_OK) return tessera_add_handle(HANDLE_CHECKPOINT, item, free_opened, 0, 0, err);
    free_opened(item);
    return 0;
}

uint32_t tessera_open_made(made *result, tsr_store *store, void (*release)(made *result), uint32_t source, tsr_error *err)
{
    opened *item = new_opened(err);
    if (!item) return 0;
    item->store = store;
    const uint32_t handle = open_checkpoint(item, err) == TSR_OK
                                ? tessera_add_handle(HANDLE_CHECKPOINT, item, free_opened, source, 0, err)
                                : (free_opened(item), 0);
    if (handle) {
        item->made = result;
        item->release_made = release;
    }
    return handle;
}

uint32_t tessera_add_view(const tessera_view *view, uint32_t source, tsr_error *err)
{
    opened *item = new_opened(err);
    if (!item) {
        tsr_checkpoint_close(view->checkpoint);
        view->release_below(view->below);
        return 0;
    }
    item->checkpoint = view->checkpoint;
    item->store = tsr_checkpoint_store(view->checkpoint);
    item->below = view->below;
    item->release_below = view->release_below;
    return tessera_add_handle(HANDLE_CHECKPOINT, item, free_opened, source, 0, err);
}

/* Returns whether the checkpoint can be listed: 1, or 0 with the reason. */
TSR_EXPORT(tessera_check) uint32_t tessera_check(uint32_t handle, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    return item && tsr_checkpoint_require(item->checkpoint, TSR_FOR_NAMES, err) == TSR_OK;
}

const tsr_entry *tessera_entry_of(const opened *item, uint32_t index, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(item->checkpoint);
    if (index < catalog->entry_count) return &catalog->entries[index];
    tsr_fail(err, TSR_E_USAGE, "no entry has the number %u; there are %llu", (unsigned)index,
             (unsigned long long)catalog->entry_count);
    return NULL;
}

/* Returns 1 + the number of the entry, or 0xffffffff if there is no such name. Returns 0 with the reason if no checkpoint is
 * open. */
TSR_EXPORT(tessera_find) uint32_t tessera_find(uint32_t handle, const char *fqn, uint32_t fqn_size, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    const tsr_entry *entry = item ? tsr_checkpoint_entry(item->checkpoint, (tsr_str){fqn, fqn_size}) : NULL;
    if (!item) return 0;
    return entry ? 1 + (uint32_t)(entry - tsr_checkpoint_catalog(item->checkpoint)->entries) : UINT32_MAX;
}

TSR_EXPORT(tessera_dtype_name) const char *tessera_dtype_name(uint32_t dtype)
{
    return tsr_dtype_describe(dtype < TSR_DTYPE_COUNT ? (tsr_dtype)dtype : TSR_DTYPE_NONE)->name;
}

/* Returns the explanation of a rule and how to fix what it finds; empty for unknown ids. */
TSR_EXPORT(tessera_rule_help) const char *tessera_rule_help(const char *id)
{
    const tsr_rule *rule = tsr_rule_find(id);
    return rule ? rule->help : "";
}
