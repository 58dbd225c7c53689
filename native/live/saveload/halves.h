/* Host memory between files and devices, in two halves: while one is being copied, the other is read or written. With a
 * single buffer, the file would wait for the device, and the device for the file. The memory is pinned for the device if
 * possible; otherwise copies are slower.
 *
 *   half 0   [ tile | tile | … ]  read ── copies in progress ─────────────── read
 *   half 1   [ tile … ]                   read ── wait ── copies in progress */
#ifndef TSR_STATEDICT_HALVES_H
#define TSR_STATEDICT_HALVES_H

#include "tessera/device.h"

typedef struct tsr_halves {
    uint8_t *memory; /* `bytes` bytes that belong to the caller */
    size_t bytes;
    tsr_device *device; /* the device whose copies may be in progress; NULL: none */
    bool is_pinned;
    unsigned now;
    size_t used; /* bytes of the current half that are in use */
    /* The current half has just been switched to: no copy from it was begun, but copies from the other may be in
     * progress. */
    bool is_changed;
} tsr_halves;

size_t tsr_halves_room(const tsr_halves *halves);
/* Uses the memory for this device from now on. If it was used for another device, waits for that one's copies. */
tsr_status tsr_halves_use(tsr_halves *halves, tsr_device *device, tsr_error *err);
/* Waits for all copies and releases the device. The memory is then no longer in use, even on failure. */
tsr_status tsr_halves_end(tsr_halves *halves, tsr_error *err);

#endif
