/* Units are groups of small blits, or tiles of large ones. Both are determined by the blits alone.
 *
 *   blits   [a][b][ c ······························ ][d]
 *   units   [a  b][ c tile 0 ][ c tile 1 ][ c tile 2 ][d] */
#include "work/units.h"

#include "stream/tiles.h"
#include "tessera/sys/box.h"
#include "tessera/sys/try.h"

#define BLIT_WEIGHT ((uint64_t)4 << 10) /* the cost of a blit in addition to its bytes */

uint64_t tsr_unit_weight(const tsr_unit *unit)
{
    return unit->bytes + unit->count * BLIT_WEIGHT + unit->delay;
}

static bool is_cut(const tsr_blit *blit, uint64_t unit_bytes)
{
    return !blit->literal && blit->byte_length > unit_bytes;
}

/* Starts the tiles of a large blit, which use *packed. */
static tsr_status start_tiles(const tsr_blit *blit, uint64_t unit_bytes, tsr_packed *packed, tsr_tiles *tiles,
                              uint64_t *itemsize, tsr_error *err)
{
    uint64_t elements;
    TSR_TRY(tsr_gather_pack(blit->entry, packed, err));
    const tsr_box box = {packed->ndim, blit->offsets, blit->sizes ? blit->sizes : packed->shape};
    tsr_box_volume(box, &elements); /* cannot overflow, since the blit's bytes do not */
    *itemsize = blit->byte_length / elements;
    tsr_tiles_start(tiles, box, unit_bytes / *itemsize ? unit_bytes / *itemsize : 1);
    return TSR_OK;
}

static tsr_unit *add_unit(tsr_vec *units, const tsr_unit *unit, tsr_error *err)
{
    tsr_unit *own = tsr_vec_push(units, err);
    if (own) *own = *unit;
    return own;
}

static tsr_status cut_blit(const tsr_stage *stage, size_t i, tsr_unit unit, uint64_t unit_bytes, tsr_vec *units,
                           tsr_error *err)
{
    tsr_tiles tiles;
    tsr_packed packed;
    uint64_t itemsize;
    TSR_TRY(start_tiles(tsr_stage_blit(stage, i), unit_bytes, &packed, &tiles, &itemsize, err));
    unit.first = (uint32_t)i;
    unit.count = 1;
    unit.is_tile = true;
    for (; !tiles.done; tsr_tiles_next(&tiles), unit.tile++) {
        unit.bytes = tiles.elements * itemsize;
        if (!add_unit(units, &unit, err)) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

tsr_status tsr_units_cut(const tsr_stage *stage, uint32_t number, uint64_t unit_bytes, tsr_vec *units, tsr_error *err)
{
    tsr_unit *open = NULL; /* the group that blits are being added to */
    for (size_t i = 0; i < stage->count; i++) {
        const tsr_blit *blit = tsr_stage_blit(stage, i);
        if (is_cut(blit, unit_bytes)) {
            TSR_TRY(cut_blit(stage, i, (tsr_unit){.stage = number, .file = blit->file}, unit_bytes, units, err));
            open = NULL;
            continue;
        }
        const bool is_other = open && unit_bytes == UINT64_MAX && open->file != blit->file;
        if (!open || is_other || tsr_unit_weight(open) + blit->byte_length + BLIT_WEIGHT > unit_bytes) {
            open = add_unit(units, &(tsr_unit){.stage = number, .first = (uint32_t)i, .file = blit->file}, err);
            if (!open) return TSR_E_NOMEM;
        }
        open->bytes += blit->byte_length;
        open->count++;
    }
    return TSR_OK;
}

/* Makes a blit from the current tile of a blit. */
static tsr_status tile_blit(const tsr_blit *blit, const tsr_tiles *tiles, uint64_t itemsize, tsr_arena *arena, tsr_blit *out,
                            tsr_error *err)
{
    uint64_t *box = tsr_arena_array(arena, 2 * (size_t)tiles->ndim, sizeof *box, err);
    if (!box) return TSR_E_NOMEM;
    if (tiles->ndim) memcpy(box, tiles->offsets, tiles->ndim * sizeof *box);
    if (tiles->ndim) memcpy(box + tiles->ndim, tiles->sizes, tiles->ndim * sizeof *box);
    *out = *blit;
    out->offsets = box;
    out->sizes = box + tiles->ndim;
    out->byte_offset = blit->byte_offset + tiles->first * itemsize;
    out->byte_length = tiles->elements * itemsize;
    return TSR_OK;
}

/* State for turning units of a stage into blits. */
typedef struct unit_expansion {
    const tsr_stage *stage;
    uint64_t unit_bytes;
    tsr_arena *arena;
    tsr_unit_blits *out;
    tsr_error *err;
} unit_expansion;

/* Adds those tile units at the beginning of `units` that are consecutive tiles of one blit; *used is their number. */
static tsr_status add_tiles(const unit_expansion *e, tsr_unit *const *units, size_t count, size_t *used)
{
    const tsr_unit *head = units[0];
    const tsr_blit *blit = tsr_stage_blit(e->stage, head->first);
    tsr_blit *out = e->out->blits + e->out->count;
    tsr_tiles tiles;
    tsr_packed packed;
    uint64_t itemsize, at = 0;
    TSR_TRY(start_tiles(blit, e->unit_bytes, &packed, &tiles, &itemsize, e->err));
    for (; at < head->tile; at++) tsr_tiles_next(&tiles);
    for (*used = 0; *used < count; tsr_tiles_next(&tiles), at++, ++*used) {
        const tsr_unit *unit = units[*used];
        if (!unit->is_tile || unit->first != head->first || unit->tile != at) break;
        TSR_TRY(tile_blit(blit, &tiles, itemsize, e->arena, &out[*used], e->err));
    }
    for (size_t i = 0; i < *used; i++) e->out->owners[e->out->count++] = e->stage->order.numbers[head->first];
    return TSR_OK;
}

/* Adds the blits of units [units, units + count), which are consecutive. */
static tsr_status add_blits(const unit_expansion *e, tsr_unit *const *units, size_t count)
{
    tsr_unit_blits *out = e->out;
    for (size_t u = 0, used = 1; u < count; u += used, used = 1) {
        const tsr_unit *unit = units[u];
        if (unit->is_tile) TSR_TRY(add_tiles(e, units + u, count - u, &used));
        for (uint32_t i = 0; !unit->is_tile && i < unit->count; i++, out->count++) {
            out->owners[out->count] = e->stage->order.numbers[unit->first + i];
            out->blits[out->count] = e->stage->blits[out->owners[out->count]];
        }
    }
    return TSR_OK;
}

tsr_status tsr_units_blits(const tsr_stage *stage, const tsr_lanes *lanes, tsr_arena *arena, tsr_unit_blits *out,
                           tsr_error *err)
{
    const unit_expansion e = {.stage = stage, .unit_bytes = lanes->unit_bytes, .arena = arena, .out = out, .err = err};
    size_t total = 0;
    for (size_t i = 0; i < lanes->count; i++) {
        for (size_t u = lanes->lanes[i].first; u < lanes->lanes[i].end; u++) total += lanes->units[u]->count;
    }
    *out = (tsr_unit_blits){.blits = tsr_arena_array(arena, total, sizeof *out->blits, err),
                            .owners = tsr_arena_array(arena, total, sizeof *out->owners, err),
                            .ends = tsr_arena_array(arena, lanes->count, sizeof *out->ends, err)};
    if (!out->blits || !out->owners || !out->ends) return TSR_E_NOMEM;
    for (size_t i = 0; i < lanes->count; i++) {
        const tsr_lane *lane = &lanes->lanes[i];
        TSR_TRY(add_blits(&e, lanes->units + lane->first, lane->end - lane->first));
        out->ends[i] = out->count;
    }
    return TSR_OK;
}
