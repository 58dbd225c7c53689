/* Units are groups of small blits, or tiles of large ones. Both are determined by the blits alone.
 *
 *   blits   [a][b][ c ······························ ][d]
 *   units   [a  b][ c tile 0 ][ c tile 1 ][ c tile 2 ][d] */
#include "work/work_parts.h"

#include "base/cursor.h"
#include "layout/chunk_index.h"
#include "stream/tile_job.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
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

/* ---- unit servers ---- */

/* State for finding the servers of a stage's units. */
typedef struct server_finder {
    const tsr_storage *storage;
    tsr_arena *arena;
    double *bytes; /* of the current unit, by server */
    const tsr_entry *entry;
    tsr_chunk_index index; /* of its chunks */
    uint64_t delay;        /* of the current unit */
} server_finder;

static tsr_status know_entry(server_finder *f, const tsr_entry *entry, tsr_error *err)
{
    if (f->entry == entry) return TSR_OK;
    f->entry = entry;
    return tsr_chunk_index_build(entry->ndim, entry->chunks, entry->chunk_count, f->arena, &f->index, err);
}

/* Adds the cost of reading a box of a tensor that is inside one of its chunks. */
static void add_read(server_finder *f, uint64_t number, const uint64_t *offsets, const uint64_t *sizes)
{
    const tsr_entry *entry = f->entry;
    const tsr_chunk *chunk = &entry->chunks[number];
    const uint64_t bits = tsr_dtype_describe(entry->dtype)->bits;
    const bool plain = !chunk->view || (!chunk->view->strides && !chunk->view->zstd);
    uint64_t first = 0, last = 0, elements;
    tsr_byte_range range = {chunk->file, chunk->byte_offset, chunk->byte_length};
    tsr_box_volume((tsr_box){entry->ndim, NULL, sizes}, &elements);
    for (uint32_t d = 0; d < entry->ndim; d++) {
        first = first * chunk->sizes[d] + offsets[d] - chunk->offsets[d];
        last = last * chunk->sizes[d] + offsets[d] - chunk->offsets[d] + sizes[d] - 1;
    }
    if (plain) {
        range.byte_offset = (chunk->view ? chunk->view->byte_offset : chunk->byte_offset) + first * bits / 8;
        range.byte_length = (last - first + 1) * bits / 8;
    }
    const double bytes = (double)elements * (double)bits / 8, spanned = (double)range.byte_length;
    if (range.file >= f->storage->file_count || !range.byte_length) return; /* it is computed by a map, or missing */
    const double cost = (double)tsr_storage_cost(f->storage, range);
    tsr_storage_spread(f->storage, range, bytes, f->bytes);
    if (cost > spanned) f->delay += (uint64_t)((cost - spanned) * (bytes < spanned ? bytes / spanned : 1));
}

static tsr_status add_blit(server_finder *f, const tsr_blit *blit, tsr_error *err)
{
    const tsr_entry *entry = blit->entry;
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM], chunk;
    tsr_packed packed;
    if (blit->literal || !blit->byte_length) return TSR_OK;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    if (packed.ndim != entry->ndim) return TSR_OK;
    TSR_TRY(know_entry(f, entry, err));
    for (uint32_t d = 0; d < packed.ndim; d++) { /* if two elements are packed into one, the entry counts both */
        const uint64_t each = packed.shape[d] && entry->shape[d] > packed.shape[d] ? entry->shape[d] / packed.shape[d] : 1;
        offsets[d] = blit->offsets ? blit->offsets[d] * each : 0;
        sizes[d] = blit->sizes ? blit->sizes[d] * each : entry->shape[d];
    }
    tsr_chunk_query query;
    uint64_t at[TSR_MAX_NDIM], extent[TSR_MAX_NDIM];
    tsr_chunk_query_start(&query, &f->index, (tsr_box){packed.ndim, offsets, sizes});
    while (tsr_chunk_query_next(&query, &chunk, at, extent)) add_read(f, chunk, at, extent);
    return TSR_OK;
}

static void conclude_unit(server_finder *f, tsr_unit *unit)
{
    double most = 0;
    unit->delay = f->delay;
    f->delay = 0;
    for (uint32_t s = 0; s < f->storage->server_count; s++) {
        if (f->bytes[s] > most) unit->server = s;
        if (f->bytes[s] > most) most = f->bytes[s];
        f->bytes[s] = 0;
    }
}

static tsr_status find_servers(server_finder *f, const tsr_unit_blits *of, tsr_unit *units, size_t count, tsr_error *err)
{
    size_t at = 0;
    for (size_t u = 0; u < count; u++) {
        for (uint32_t i = 0; i < units[u].count; i++) TSR_TRY(add_blit(f, &of->blits[at++], err));
        conclude_unit(f, &units[u]);
    }
    return TSR_OK;
}

/* Makes the blits of all units of the stage. `all` has no units yet. */
static tsr_status expand(const tsr_stage *stage, const tsr_lanes *all, tsr_unit *units, tsr_arena *arena,
                         tsr_unit_blits *out, tsr_error *err)
{
    const size_t count = all->lanes->end;
    tsr_unit **list = tsr_arena_array(arena, count, sizeof *list, err);
    tsr_lanes lanes = *all;
    if (!list) return TSR_E_NOMEM;
    for (size_t u = 0; u < count; u++) list[u] = &units[u];
    lanes.units = list;
    return tsr_units_blits(stage, &lanes, arena, out, err);
}

tsr_status tsr_units_find_servers(const tsr_work *work, const tsr_stage *stage, tsr_unit *units, size_t count,
                                  tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    server_finder f = {.storage = work->options.storage, .arena = arena};
    tsr_unit_blits of;
    f.bytes = tsr_arena_array(arena, f.storage->server_count, sizeof *f.bytes, err);
    const tsr_lane all = {0, count};
    const tsr_lanes lanes = {.unit_bytes = work->unit_bytes, .lanes = &all, .count = 1};
    tsr_status status = f.bytes ? expand(stage, &lanes, units, arena, &of, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = find_servers(&f, &of, units, count, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_units_order(const tsr_work *work, const tsr_stage *stage, tsr_storage_reader part, tsr_unit **units,
                           size_t count, tsr_error *err)
{
    size_t grouped = 0;
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    tsr_storage_item *items = arena ? tsr_arena_array(arena, count, sizeof *items, err) : NULL;
    tsr_unit **old = items ? tsr_arena_array(arena, count, sizeof *old, err) : NULL;
    for (size_t u = 0; old && u < count; u++) {
        old[u] = units[u];
        items[u] = (tsr_storage_item){units[u]->server, tsr_unit_weight(units[u]), u};
    }
    while (grouped < count && units[grouped]->first < stage->order.grouped) grouped++;
    if (old) tsr_storage_order(work->options.storage, part, items, grouped);
    if (old) tsr_storage_order(work->options.storage, part, items + grouped, count - grouped);
    for (size_t u = 0; old && u < count; u++) units[u] = old[items[u].number];
    tsr_arena_free(arena);
    return old ? TSR_OK : TSR_E_NOMEM;
}

/* The record of a finished unit, little-endian:
 *
 *   unit u64 | CRCs n u32 | n × u32 | CRC-32 of all this u32
 *
 * n is the number of blits of the unit, or 0 if the container needs no CRCs. If casts lost values, the highest bit of n is set,
 * and the CRCs are followed by
 *
 *   zeros u64 | overflows u64 | first blit with zeros u32 | first blit with overflows u32 */

enum { LOSSES = 24 }; /* bytes */
#define HAS_LOSSES UINT32_C(0x80000000)

static void store_losses(const tsr_unit *unit, uint8_t *out)
{
    tsr_store_le(out, unit->losses.zeros, 8);
    tsr_store_le(out + 8, unit->losses.overflows, 8);
    tsr_store_le(out + 16, unit->first_zero, 4);
    tsr_store_le(out + 20, unit->first_overflow, 4);
}

tsr_status tsr_work_put_record(const tsr_work *work, size_t number, tsr_vec *out, tsr_error *err)
{
    const tsr_unit *unit = tsr_work_unit(work, number);
    const bool lost = unit->losses.zeros || unit->losses.overflows;
    const uint32_t count = work->crc ? unit->count : 0;
    const size_t crcs = 12 + 4 * (size_t)count, size = crcs + (lost ? LOSSES : 0);
    TSR_TRY(tsr_vec_reserve(out, size + 4, err));
    uint8_t *bytes = (uint8_t *)out->items + out->count;
    tsr_store_le(bytes, number, 8);
    tsr_store_le(bytes + 8, count | (lost ? HAS_LOSSES : 0), 4);
    for (uint32_t i = 0; i < count; i++) tsr_store_le(bytes + 12 + 4 * (size_t)i, unit->crcs[i], 4);
    if (lost) store_losses(unit, bytes + crcs);
    tsr_store_le(bytes + size, tsr_crc32(NULL, 0, bytes, size), 4);
    out->count += size + 4;
    return TSR_OK;
}

tsr_status tsr_work_records(const tsr_work *work, tsr_vec *out, tsr_error *err)
{
    for (size_t u = 0; u < work->units.count; u++) {
        if (tsr_work_unit(work, u)->done) TSR_TRY(tsr_work_put_record(work, u, out, err));
    }
    return TSR_OK;
}

typedef struct record {
    uint64_t number;
    uint32_t count;
    const uint8_t *crcs;
    const uint8_t *losses; /* or NULL */
} record;

/* Reads the next record. Returns false if the rest is not a complete, undamaged record. */
static bool next_record(tsr_cursor *c, record *out)
{
    const uint8_t *start = c->data + c->at;
    const size_t at = c->at;
    out->number = tsr_cursor_u64(c);
    out->count = tsr_cursor_u32(c);
    const bool lost = out->count & HAS_LOSSES;
    out->count &= ~HAS_LOSSES;
    out->crcs = tsr_cursor_left(c) / 4 > out->count ? tsr_cursor_take(c, 4 * (size_t)out->count) : NULL;
    out->losses = lost && out->crcs ? tsr_cursor_take(c, LOSSES) : NULL;
    const size_t size = c->at - at;
    return out->crcs && tsr_cursor_u32(c) == tsr_crc32(NULL, 0, start, size) && !c->failed;
}

static void take_record(tsr_unit *unit, const record *r)
{
    for (uint32_t i = 0; i < r->count; i++) unit->crcs[i] = (uint32_t)tsr_load_le(r->crcs + 4 * (size_t)i, 4);
    unit->losses = (tsr_cast_losses){.zeros = r->losses ? tsr_load_le(r->losses, 8) : 0,
                                     .overflows = r->losses ? tsr_load_le(r->losses + 8, 8) : 0};
    unit->first_zero = r->losses ? (uint32_t)tsr_load_le(r->losses + 16, 4) : 0;
    unit->first_overflow = r->losses ? (uint32_t)tsr_load_le(r->losses + 20, 4) : 0;
    unit->done = true;
}

tsr_status tsr_work_take(tsr_work *work, tsr_str records, size_t *taken, tsr_error *err)
{
    tsr_cursor c = tsr_cursor_on(records);
    record r;
    size_t whole = 0;
    for (; next_record(&c, &r); whole = c.at) {
        tsr_unit *unit = r.number < work->units.count ? tsr_work_unit(work, (size_t)r.number) : NULL;
        const bool fits = unit && r.count == (work->crc ? unit->count : 0);
        const bool known =
            fits &&
            (!r.losses || (tsr_load_le(r.losses + 16, 4) < unit->count && tsr_load_le(r.losses + 20, 4) < unit->count));
        TSR_FAIL_AT(!known, err, TSR_E_FORMAT, whole,
                    "a record of unit %llu with %u checksums does not belong to this work of %zu units",
                    (unsigned long long)r.number, (unsigned)r.count, work->units.count);
        take_record(unit, &r);
    }
    if (taken) *taken = whole;
    return TSR_OK;
}
