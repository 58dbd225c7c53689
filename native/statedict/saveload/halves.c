#include "statedict/saveload/halves.h"

#include "statedict/tensor/state_dict.h"

#define ALIGNMENT ((size_t)64)

size_t tsr_halves_room(const tsr_halves *halves)
{
    return halves->bytes / 2 / ALIGNMENT * ALIGNMENT;
}

/* Waits for the copies in progress. The error message says so, because the copy that failed may belong to an earlier tensor
 * than the one that is named. */
static tsr_status wait_for_copies(const tsr_halves *halves, tsr_error *err)
{
    const tsr_status status = tsr_device_wait(halves->device, err);
    if (status != TSR_OK) tsr_error_context(err, "copies so far");
    return status;
}

tsr_status tsr_halves_end(tsr_halves *halves, tsr_error *err)
{
    tsr_device *device = halves->device;
    const tsr_status status = wait_for_copies(halves, err);
    if (halves->is_pinned) device->unpin(device, halves->memory, halves->bytes);
    *halves = (tsr_halves){.memory = halves->memory, .bytes = halves->bytes};
    return status;
}

tsr_status tsr_halves_use(tsr_halves *halves, tsr_device *device, tsr_error *err)
{
    tsr_error ignored = {0};
    if (halves->device == device) return TSR_OK;
    TSR_TRY(tsr_halves_end(halves, err));
    halves->device = device;
    halves->is_pinned = device && device->pin && device->pin(device, halves->memory, halves->bytes, &ignored) == TSR_OK;
    return TSR_OK;
}

uint8_t *tsr_halves_take(tsr_halves *halves, size_t bytes)
{
    const size_t room = tsr_halves_room(halves);
    if (bytes > room - halves->used) {
        halves->now = 1 - halves->now;
        halves->used = 0;
        halves->is_changed = true;
    }
    uint8_t *out = halves->memory + halves->now * room + halves->used;
    const size_t next = halves->used + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    halves->used = next < room ? next : room;
    return out;
}

tsr_status tsr_halves_filled(tsr_halves *halves, tsr_error *err)
{
    if (!halves->is_changed) return TSR_OK;
    halves->is_changed = false;
    return wait_for_copies(halves, err);
}
