/* The module's memory, errors, handles and stores; see shim.h. */
#include "shim.h"

#include <stdlib.h>

#include "shim.h"

/* ---- memory and errors ---- */

TSR_EXPORT(tessera_alloc) void *tessera_alloc(uint32_t size)
{
    return calloc(1, size ? size : 1);
}
TSR_EXPORT(tessera_release) void tessera_release(void *pointer)
{
    free(pointer);
}
TSR_EXPORT(tessera_error_size) uint32_t tessera_error_size(void)
{
    return sizeof(tsr_error);
}
TSR_EXPORT(tessera_error_message) const char *tessera_error_message(const tsr_error *err)
{
    return err->message;
}
TSR_EXPORT(tessera_error_status) const char *tessera_error_status(const tsr_error *err)
{
    return tsr_status_name(err->status);
}
TSR_EXPORT(tessera_error_position) uint64_t tessera_error_position(const tsr_error *err)
{
    return err->byte_position;
}
/* ---- handles: slot number + 1 in the low half, the number of earlier uses of the slot in the high half ---- */

enum { MOST_SLOTS = 0xffff };

typedef struct slot {
    handle_kind kind; /* 0: free */
    uint16_t uses;
    void *item;
    void (*release)(void *item);
    uint32_t owners[2];
} slot;

static slot *slots;
static uint32_t slot_count;

static slot *free_slot(tsr_error *err)
{
    for (uint32_t i = 0; i < slot_count; i++) {
        if (!slots[i].kind) return &slots[i];
    }
    slot *grown = slot_count < MOST_SLOTS ? realloc(slots, (slot_count + 1) * sizeof *slots) : NULL;
    if (!grown) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for a handle");
        return NULL;
    }
    slots = grown;
    slots[slot_count] = (slot){0};
    return &slots[slot_count++];
}

/* Returns NULL if the handle is not open. */
static slot *slot_of(uint32_t handle)
{
    const uint32_t number = handle & MOST_SLOTS;
    slot *s = number > 0 && number <= slot_count ? &slots[number - 1] : NULL;
    return s && s->kind && s->uses == handle >> 16 ? s : NULL;
}

static uint32_t handle_of(const slot *s)
{
    return (uint32_t)s->uses << 16 | ((uint32_t)(s - slots) + 1);
}

uint32_t tessera_add_handle(handle_kind kind, void *item, void (*release)(void *item), uint32_t owner, uint32_t other_owner,
                            tsr_error *err)
{
    slot *s = free_slot(err);
    if (!s) {
        release(item);
        return 0;
    }
    *s = (slot){kind, s->uses, item, release, {owner, other_owner}};
    return handle_of(s);
}

void *tessera_item_of(uint32_t handle, handle_kind kind, tsr_error *err)
{
    static const char *const names[] = {"", "checkpoint", "outline", "tally", "diff", "search for twins", "conversion"};
    const slot *s = slot_of(handle);
    if (s && s->kind == kind) return s->item;
    tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "no %s is open", names[kind]);
    return NULL;
}

TSR_EXPORT(tessera_open_count) uint32_t tessera_open_count(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < slot_count; i++) count += slots[i].kind != 0;
    return count;
}

static void release_slot(slot *s)
{
    s->release(s->item);
    *s = (slot){.uses = (uint16_t)(s->uses + 1)};
}

/* Returns something that was made from `handle`, or NULL. */
static slot *made_from(uint32_t handle)
{
    for (uint32_t i = 0; i < slot_count; i++)
        if (slots[i].kind && (slots[i].owners[0] == handle || slots[i].owners[1] == handle)) return &slots[i];
    return NULL;
}

/* Closes anything that is open, after closing everything made from it, recursively. Unknown handles are ignored. */
TSR_EXPORT(tessera_close) void tessera_close(uint32_t handle)
{
    slot *closing = slot_of(handle);
    while (closing) {
        slot *last = closing;
        for (slot *next = made_from(handle_of(last)); next; next = made_from(handle_of(last))) last = next;
        release_slot(last);
        if (last == closing) return;
    }
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
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "two files have the name '%.*s'", TSR_STR_ARG(name));
        }
    }
    s->store.files = listing;
    return TSR_OK;
}

tsr_status tessera_host_store_open(host_store *out, uint32_t number, const tessera_file *files, uint32_t count,
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

tsr_status tessera_host_store_guard(host_store *store, tsr_error *err)
{
    if (!tessera_is_prepared) return TSR_OK;
    store->store.guard = add_guard;
    return tsr_guards_new(&tsr_allocator_libc, read_unguarded, store, NULL, &store->guards, err);
}

void tessera_host_store_close(host_store *store)
{
    if (store->guards) tsr_guards_free(store->guards);
    tsr_arena_free(store->names);
}
