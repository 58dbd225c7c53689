/* Cutting the blits of a stage into units of work. */
#ifndef TSR_WORK_UNITS_H
#define TSR_WORK_UNITS_H

#include "write/stage.h"

#include "tessera/sys/vec.h"

#ifndef TSR_UNIT_BYTES /* tests make them small */
#define TSR_UNIT_BYTES ((uint64_t)16 << 20)
#endif

/* Either whole blits [first, first + count) of the order, or one tile of a blit that is larger than a unit. */
typedef struct tsr_unit {
    uint64_t bytes;
    uint64_t tile; /* number of the tile, from 0 */
    uint32_t stage;
    uint32_t first; /* in the stage's order */
    uint32_t count;
    uint32_t file; /* of the first blit, in the conversion's files; units without a bound on their bytes have one file */
    bool is_tile;
    bool done;
    uint32_t server; /* with a storage: the one that delivers most of what the unit reads */
    uint64_t delay;  /* with a storage: what slow servers and latencies add, in bytes of the fastest server */
    uint32_t *crcs; /* `count` of them, when done */
} tsr_unit;

/* What a unit counts when shares are made: small blits are not free. */
uint64_t tsr_unit_weight(const tsr_unit *unit);

/* Appends the units of a stage, in its order, to a vec of tsr_unit. */
tsr_status tsr_units_cut(const tsr_stage *stage, uint32_t number, uint64_t unit_bytes, tsr_vec *units, tsr_error *err);

/* Units [first, end) that are carried out one after the other. */
typedef struct tsr_lane {
    size_t first, end;
} tsr_lane;

typedef struct tsr_unit_blits {
    tsr_blit *blits;
    uint32_t *owners; /* the index in the stage of the blit that blits[i] is, or is a part of */
    size_t count;
    size_t *ends; /* of each lane's blits */
} tsr_unit_blits;

/* Lanes of the units that one stage was cut into. */
typedef struct tsr_lanes {
    tsr_unit *const *units; /* which the lanes count */
    uint64_t unit_bytes;   /* as they were cut */
    const tsr_lane *lanes;
    size_t count;
} tsr_lanes;

/* The blits of the lanes, lane after lane. Lives in `arena`. */
tsr_status tsr_units_blits(const tsr_stage *stage, const tsr_lanes *lanes, tsr_arena *arena, tsr_unit_blits *out,
                           tsr_error *err);

#endif
