/* The state of a work, shared by the code that makes and runs it (work.c), and that divides it and writes its records (units.c). */
#ifndef TSR_WORK_WORK_PARTS_H
#define TSR_WORK_WORK_PARTS_H

#include "convert/convert_to.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/work.h"
#include "write/blit.h"

/* ---- Divides the blits of a stage into units of work. ---- */

#ifndef TSR_UNIT_BYTES /* tests use small ones */
#define TSR_UNIT_BYTES ((uint64_t)16 << 20)
#endif

/* Either the whole blits [first, first + count) of the order, or one tile of a blit that is larger than a unit. */
typedef struct tsr_unit {
    uint64_t bytes;
    uint64_t tile; /* index of the tile */
    uint32_t stage;
    uint32_t first; /* index in the stage's order */
    uint32_t count;
    uint32_t file; /* file of the first blit, in the conversion's files; if units have no limit on their bytes, they have
                    * only one file */
    bool is_tile;
    bool done;
    uint32_t server; /* with a storage: the server that provides most of what the unit reads */
    uint64_t delay;  /* with a storage: the delay from slow servers and latencies, in bytes of the fastest server */
    uint32_t *crcs;  /* `count` of them, once done */
    /* Once done: what casts lost, and the first blits of the unit, from 0, in which they did. */
    tsr_cast_losses losses;
    uint32_t first_zero, first_overflow;
} tsr_unit;

/* The weight of a unit when work is divided: small blits are not free. */
uint64_t tsr_unit_weight(const tsr_unit *unit);

/* Appends the units of a stage, in the stage's order, to a vec of tsr_unit. */
tsr_status tsr_units_cut(const tsr_stage *stage, uint32_t number, uint64_t unit_bytes, tsr_vec *units, tsr_error *err);

/* Units [first, end) that are processed one after the other. */
typedef struct tsr_lane {
    size_t first, end;
} tsr_lane;

typedef struct tsr_unit_blits {
    tsr_blit *blits;
    uint32_t *owners; /* per blit: the index in the stage of the blit that it is, or is part of */
    size_t count;
    size_t *ends; /* per lane: where its blits end */
} tsr_unit_blits;

/* Lanes of the units of one stage. */
typedef struct tsr_lanes {
    tsr_unit *const *units; /* the units to which the lanes' indexes refer */
    uint64_t unit_bytes;    /* the unit size with which they were divided */
    const tsr_lane *lanes;
    size_t count;
} tsr_lanes;

/* The blits of the lanes, lane after lane. Allocated in `arena`. */
tsr_status tsr_units_blits(const tsr_stage *stage, const tsr_lanes *lanes, tsr_arena *arena, tsr_unit_blits *out,
                           tsr_error *err);

struct tsr_work {
    tsr_conversion_job job; /* its `out` is `conversion`, its options are `options` */
    tsr_convert_options options;
    tsr_conversion conversion;
    tsr_writer writer;
    const tsr_host *host;
    uint64_t unit_bytes;
    tsr_vec units; /* of tsr_unit, all stages in order */
    uint64_t weight;
    bool crc; /* CRCs of blits are needed, either by the writer or to compare them with the source's */
    uint32_t *crcs;
    tsr_ahead *ahead; /* what is already known about the source's chunks, or NULL */
    tsr_output *output;
    uint32_t *numbers; /* file numbers in the output, by index in the conversion's files */
};

static inline tsr_unit *tsr_work_unit(const tsr_work *work, size_t i)
{
    return (tsr_unit *)work->units.items + i;
}

/* Appends the record of a unit. */
tsr_status tsr_work_put_record(const tsr_work *work, size_t unit, tsr_vec *out, tsr_error *err);

/* Finds the servers of a parallel file system that units read from, and the order in which a part accesses the servers. */

/* Sets `server` and `delay` of the units of a stage. TSR_E_NOMEM. */
tsr_status tsr_units_find_servers(const tsr_work *work, const tsr_stage *stage, tsr_unit *units, size_t count,
                                  tsr_error *err);

/* Orders `count` units of one stage so that a part moves from server to server. Units that the stage's order keeps together
 * (blit.h) stay first. TSR_E_NOMEM. */
tsr_status tsr_units_order(const tsr_work *work, const tsr_stage *stage, tsr_storage_reader part, tsr_unit **units,
                           size_t count, tsr_error *err);

/* Divides units into lanes that are processed at the same time, so that threads write into different files. */

/* Divides units [first, end) of one stage into at most `most` lanes that can be processed at the same time, because they
 * share no group of files. The lanes have similar numbers of bytes and follow each other without gaps; units after the last
 * lane must be processed after them. Returns the number of lanes, 0 if there are no units. */
size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes);

/* Removes up to `most` consecutive units that are not done from the front of a lane, and returns them as a lane. */
tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most);

#endif
