/* What saving and loading share: the checkpoint entries that a state dict becomes, by the rules of DCP's flatten_state_dict, and
 * a buffer between files and devices. */
#ifndef TSR_LIVE_SAVELOAD_SAVELOAD_H
#define TSR_LIVE_SAVELOAD_SAVELOAD_H

#include "tessera/device.h"
#include "tessera/host.h"
#include "tessera/tensor.h"

typedef struct tsr_flat_entry {
    tsr_str fqn;
    const tsr_path_item *path;
    uint32_t path_length;
    const tsr_value *value;
    const tsr_tensor *tensor; /* NULL: the entry is an object */
} tsr_flat_entry;

typedef struct tsr_flat {
    tsr_flat_entry *entries; /* in the order of the dict */
    size_t count;
    uint32_t *sorted; /* indices of entries by FQN: this order is the same on all ranks */
} tsr_flat;

/* Makes the list in `arena`. Errors: TSR_E_USAGE if the root is not a dict, or if
 * two paths have the same name; TSR_E_UNSUPPORTED for a tensor inside an object; TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_flat_of(const tsr_value *state, const tsr_host *host, tsr_arena *arena, tsr_flat *out, tsr_error *err);
enum { TSR_FLAT_DEPTH = 256 }; /* containers in each other, of a state dict */
/* Whether it is a dict or list whose items become separate entries. */
bool tsr_flat_opens(const tsr_value *value);
/* Whether it is a tensor, or contains one. */
bool tsr_names_tensor(const tsr_value *value);

/* ---- halves ---- */

/* Host memory between files and devices, in two halves: while one is being copied, the other is read or written. With a
 * single buffer, the file would wait for the device, and the device for the file. The memory is pinned for the device if
 * possible; otherwise copies are slower.
 *
 *   half 0   [ tile | tile | … ]  read ── copies in progress ─────────────── read
 *   half 1   [ tile … ]                   read ── wait ── copies in progress */

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

#define TSR_HALVES_ALIGNMENT ((size_t)64)

/* The bytes of a half. */
size_t tsr_halves_room(const tsr_halves *halves);
/* Uses the memory for this device from now on. If it was used for another device, waits for that one's copies. */
tsr_status tsr_halves_use(tsr_halves *halves, tsr_device *device, tsr_error *err);
/* Waits for the copies in progress. The error message says so, because the copy that failed may belong to an earlier tensor than
 * the one that is named. */
tsr_status tsr_halves_wait(const tsr_halves *halves, tsr_error *err);
/* Waits for all copies and releases the device. The memory is then no longer in use, even on failure. */
tsr_status tsr_halves_end(tsr_halves *halves, tsr_error *err);

#endif
