/* Host memory between files and devices, in two halves: while one is copied, the other is read or written. With a single
 * buffer the file would wait for the device, and the device for the file. The memory is pinned for the device if possible;
 * without that, copies are only slower.
 *
 *   half 0   [ tile | tile | … ]  read ── copies under way ──────────────── read
 *   half 1   [ tile … ]                   read ── wait ── copies under way      */
#ifndef TSR_STATEDICT_HALVES_H
#define TSR_STATEDICT_HALVES_H

#include "tessera/device.h"

typedef struct tsr_halves {
    uint8_t *memory; /* the caller's, of `bytes` */
    size_t bytes;
    tsr_device *device; /* whose copies may be under way; NULL: none */
    bool is_pinned;
    unsigned now;
    size_t used;     /* of the present half */
    bool is_changed; /* no copy left this half yet; those of the other may be under way */
} tsr_halves;

size_t tsr_halves_room(const tsr_halves *halves);
/* From now on for this device; waits for another. */
tsr_status tsr_halves_use(tsr_halves *halves, tsr_device *device, tsr_error *err);
/* Memory for at most tsr_halves_room bytes that no copy reads. */
uint8_t *tsr_halves_take(tsr_halves *halves, size_t bytes);
/* To be called between filling what was taken and copying from it. */
tsr_status tsr_halves_filled(tsr_halves *halves, tsr_error *err);
/* Waits, and lets go of the device; with or without success the memory is the caller's alone again. */
tsr_status tsr_halves_end(tsr_halves *halves, tsr_error *err);

#endif
