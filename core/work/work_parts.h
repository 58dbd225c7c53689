/* The state of a work, shared by the code that makes and finishes it (work.c), and that divides it into units and runs them (units.c). */
#ifndef TSR_WORK_WORK_PARTS_H
#define TSR_WORK_WORK_PARTS_H

#include "convert/convert_to.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/work.h"
#include "write/write_item.h"

/* ---- Divides the write items of a stage into units of work. ---- */

/* Either the whole write items [first, first + count) of the order, or one tile of a write item that is larger than a unit. */
typedef struct tsr_unit {
    uint64_t bytes;
    uint64_t tile; /* index of the tile */
    uint32_t stage;
    uint32_t first; /* index in the stage's order */
    uint32_t count;
    /* The file of the first write item, in the conversion's files; if units have no limit on their bytes, they have only one. */
    uint32_t file;
    bool is_tile;
    bool done;
    uint32_t server; /* with a storage: the server that provides most of what the unit reads */
    uint64_t delay;  /* with a storage: the delay from slow servers and latencies, in bytes of the fastest server */
    uint32_t *crcs;  /* `count` of them, once done */
    /* Once done: what casts lost, and the first write items of the unit, from 0, in which they did. */
    tsr_cast_losses losses;
    uint32_t first_zero, first_overflow;
} tsr_unit;

/* Appends the units of a stage, in the stage's order, to a vec of tsr_unit. */
tsr_status tsr_units_cut(const tsr_stage *stage, uint32_t number, uint64_t unit_bytes, tsr_vec *units, tsr_error *err);

/* Units [first, end) that are processed one after the other. */
typedef struct tsr_lane {
    size_t first, end;
} tsr_lane;

struct tsr_work {
    tsr_conversion_job job; /* its `out` is `conversion`, its options are `options` */
    tsr_convert_options options;
    tsr_conversion conversion;
    tsr_writer writer;
    const tsr_host *host;
    uint64_t unit_bytes;
    tsr_vec units; /* of tsr_unit, all stages in order */
    uint64_t weight;
    bool crc; /* CRCs of write items are needed, either by the writer or to compare them with the source's */
    uint32_t *crcs;
    tsr_ahead *ahead; /* what is already known about the source's chunks, or NULL */
    tsr_output *output;
    uint32_t *numbers; /* file numbers in the output, by index in the conversion's files */
};

static inline tsr_unit *tsr_work_unit(const tsr_work *work, size_t i)
{
    return (tsr_unit *)work->units.items + i;
}

/* Lays out a stage in `arena`, and orders its write items. */
tsr_status tsr_work_stage(const tsr_work *work, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err);
/* Divides all stages into units, and makes room for what is recorded of them. With a storage, also finds the servers that they read
 * from. */
tsr_status tsr_work_cut(tsr_work *work, tsr_error *err);

/* Divides units into lanes that are processed at the same time, so that threads write into different files. */

/* Divides units [first, end) of one stage into at most `most` lanes that can be processed at the same time, because they
 * share no group of files. The lanes have similar numbers of bytes and follow each other without gaps; units after the last
 * lane must be processed after them. Returns the number of lanes, 0 if there are no units. */
size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes);

/* Removes up to `most` consecutive units that are not done from the front of a lane, and returns them as a lane. */
tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most);

#endif
