/* The module's memory, errors and handles; see shim.h. */
#include "shim.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

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
        tsr_fail(err, TSR_E_NOMEM, "out of memory for a handle");
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
    tsr_fail(err, TSR_E_USAGE, "no %s is open", names[kind]);
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
