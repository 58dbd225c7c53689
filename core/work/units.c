/* Divides a work into units, and runs them. Units are groups of small write items, or tiles of large ones. Both are determined by the write items
 * alone.
 *
 *   write items   [a][b][ c ······························ ][d]
 *   units   [a  b][ c tile 0 ][ c tile 1 ][ c tile 2 ][d] */
#include "work/work_parts.h"

#include "base/cursor.h"
#include "layout/chunk_index.h"
#include "stream/tile_job.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

#ifndef TSR_UNIT_BYTES /* tests use small ones */
#define TSR_UNIT_BYTES ((uint64_t)16 << 20)
#endif

#define WRITE_ITEM_WEIGHT ((uint64_t)4 << 10) /* the cost of a write item in addition to its bytes */

/* The weight of a unit when work is divided: small write items are not free. */
static uint64_t unit_weight(const tsr_unit *unit)
{
    return unit->bytes + unit->count * WRITE_ITEM_WEIGHT + unit->delay;
}

static bool is_cut(const tsr_write_item *write_item, uint64_t unit_bytes)
{
    return !write_item->literal && write_item->byte_length > unit_bytes;
}

/* Starts the tiles of a large write item, which use *packed. */
static tsr_status start_tiles(const tsr_write_item *write_item, uint64_t unit_bytes, tsr_packed *packed, tsr_tiles *tiles,
                              uint64_t *itemsize, tsr_error *err)
{
    uint64_t elements;
    TSR_TRY(tsr_gather_pack(write_item->entry, packed, err));
    const tsr_box box = {packed->ndim, write_item->offsets, write_item->sizes ? write_item->sizes : packed->shape};
    tsr_box_volume(box, &elements); /* cannot overflow, since the write item's bytes do not */
    *itemsize = write_item->byte_length / elements;
    tsr_tiles_start(tiles, box, unit_bytes / *itemsize ? unit_bytes / *itemsize : 1);
    return TSR_OK;
}

static tsr_unit *add_unit(tsr_vec *units, const tsr_unit *unit, tsr_error *err)
{
    tsr_unit *own = tsr_vec_push(units, err);
    if (own) *own = *unit;
    return own;
}

static tsr_status cut_write_item(const tsr_stage *stage, size_t i, tsr_unit unit, uint64_t unit_bytes, tsr_vec *units,
                                 tsr_error *err)
{
    tsr_tiles tiles;
    tsr_packed packed;
    uint64_t itemsize;
    TSR_TRY(start_tiles(tsr_stage_item(stage, i), unit_bytes, &packed, &tiles, &itemsize, err));
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
    tsr_unit *open = NULL; /* the group that write items are being added to */
    for (size_t i = 0; i < stage->count; i++) {
        const tsr_write_item *write_item = tsr_stage_item(stage, i);
        if (is_cut(write_item, unit_bytes)) {
            TSR_TRY(cut_write_item(stage, i, (tsr_unit){.stage = number, .file = write_item->file}, unit_bytes, units, err));
            open = NULL;
            continue;
        }
        const bool is_other = open && unit_bytes == UINT64_MAX && open->file != write_item->file;
        if (!open || is_other || unit_weight(open) + write_item->byte_length + WRITE_ITEM_WEIGHT > unit_bytes) {
            open = add_unit(units, &(tsr_unit){.stage = number, .first = (uint32_t)i, .file = write_item->file}, err);
            if (!open) return TSR_E_NOMEM;
        }
        open->bytes += write_item->byte_length;
        open->count++;
    }
    return TSR_OK;
}

/* Makes a write item from the current tile of a write item. */
static tsr_status tile_write_item(const tsr_write_item *write_item, const tsr_tiles *tiles, uint64_t itemsize,
                                  tsr_arena *arena, tsr_write_item *out, tsr_error *err)
{
    uint64_t *box = tsr_arena_array(arena, 2 * (size_t)tiles->ndim, sizeof *box, err);
    if (!box) return TSR_E_NOMEM;
    if (tiles->ndim) memcpy(box, tiles->offsets, tiles->ndim * sizeof *box);
    if (tiles->ndim) memcpy(box + tiles->ndim, tiles->sizes, tiles->ndim * sizeof *box);
    *out = *write_item;
    out->offsets = box;
    out->sizes = box + tiles->ndim;
    out->byte_offset = write_item->byte_offset + tiles->first * itemsize;
    out->byte_length = tiles->elements * itemsize;
    return TSR_OK;
}

typedef struct unit_write_items {
    tsr_write_item *write_items;
    uint32_t *owners; /* per write item: the index in the stage of the write item that it is, or is part of */
    size_t count;
    size_t *ends; /* per lane: where its write items end */
} unit_write_items;

/* Lanes of the units of one stage. */
typedef struct unit_lanes {
    tsr_unit *const *units; /* the units to which the lanes' indexes refer */
    uint64_t unit_bytes;    /* the unit size with which they were divided */
    const tsr_lane *lanes;
    size_t count;
} unit_lanes;

/* State for turning units of a stage into write items. */
typedef struct unit_expansion {
    const tsr_stage *stage;
    uint64_t unit_bytes;
    tsr_arena *arena;
    unit_write_items *out;
    tsr_error *err;
} unit_expansion;

/* Adds those tile units at the beginning of `units` that are consecutive tiles of one write item; *used is their number. */
static tsr_status add_tiles(const unit_expansion *e, tsr_unit *const *units, size_t count, size_t *used)
{
    const tsr_unit *head = units[0];
    const tsr_write_item *write_item = tsr_stage_item(e->stage, head->first);
    tsr_write_item *out = e->out->write_items + e->out->count;
    tsr_tiles tiles;
    tsr_packed packed;
    uint64_t itemsize, at = 0;
    TSR_TRY(start_tiles(write_item, e->unit_bytes, &packed, &tiles, &itemsize, e->err));
    for (; at < head->tile; at++) tsr_tiles_next(&tiles);
    for (*used = 0; *used < count; tsr_tiles_next(&tiles), at++, ++*used) {
        const tsr_unit *unit = units[*used];
        if (!unit->is_tile || unit->first != head->first || unit->tile != at) break;
        TSR_TRY(tile_write_item(write_item, &tiles, itemsize, e->arena, &out[*used], e->err));
    }
    for (size_t i = 0; i < *used; i++) e->out->owners[e->out->count++] = e->stage->order.numbers[head->first];
    return TSR_OK;
}

/* Adds the write items of units [units, units + count), which are consecutive. */
static tsr_status add_write_items(const unit_expansion *e, tsr_unit *const *units, size_t count)
{
    unit_write_items *out = e->out;
    for (size_t u = 0, used = 1; u < count; u += used, used = 1) {
        const tsr_unit *unit = units[u];
        if (unit->is_tile) TSR_TRY(add_tiles(e, units + u, count - u, &used));
        for (uint32_t i = 0; !unit->is_tile && i < unit->count; i++, out->count++) {
            out->owners[out->count] = e->stage->order.numbers[unit->first + i];
            out->write_items[out->count] = e->stage->write_items[out->owners[out->count]];
        }
    }
    return TSR_OK;
}

/* The write items of the lanes, lane after lane. Allocated in `arena`. */
static tsr_status write_items_of(const tsr_stage *stage, const unit_lanes *lanes, tsr_arena *arena, unit_write_items *out,
                                 tsr_error *err)
{
    const unit_expansion e = {.stage = stage, .unit_bytes = lanes->unit_bytes, .arena = arena, .out = out, .err = err};
    size_t total = 0;
    for (size_t i = 0; i < lanes->count; i++) {
        for (size_t u = lanes->lanes[i].first; u < lanes->lanes[i].end; u++) total += lanes->units[u]->count;
    }
    *out = (unit_write_items){.write_items = tsr_arena_array(arena, total, sizeof *out->write_items, err),
                              .owners = tsr_arena_array(arena, total, sizeof *out->owners, err),
                              .ends = tsr_arena_array(arena, lanes->count, sizeof *out->ends, err)};
    if (!out->write_items || !out->owners || !out->ends) return TSR_E_NOMEM;
    for (size_t i = 0; i < lanes->count; i++) {
        const tsr_lane *lane = &lanes->lanes[i];
        TSR_TRY(add_write_items(&e, lanes->units + lane->first, lane->end - lane->first));
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

static tsr_status add_write_item(server_finder *f, const tsr_write_item *write_item, tsr_error *err)
{
    const tsr_entry *entry = write_item->entry;
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM], chunk;
    tsr_packed packed;
    if (write_item->literal || !write_item->byte_length) return TSR_OK;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    if (packed.ndim != entry->ndim) return TSR_OK;
    TSR_TRY(know_entry(f, entry, err));
    for (uint32_t d = 0; d < packed.ndim; d++) { /* if two elements are packed into one, the entry counts both */
        const uint64_t each = packed.shape[d] && entry->shape[d] > packed.shape[d] ? entry->shape[d] / packed.shape[d] : 1;
        offsets[d] = write_item->offsets ? write_item->offsets[d] * each : 0;
        sizes[d] = write_item->sizes ? write_item->sizes[d] * each : entry->shape[d];
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

static tsr_status find_servers(server_finder *f, const unit_write_items *of, tsr_unit *units, size_t count, tsr_error *err)
{
    size_t at = 0;
    for (size_t u = 0; u < count; u++) {
        for (uint32_t i = 0; i < units[u].count; i++) TSR_TRY(add_write_item(f, &of->write_items[at++], err));
        conclude_unit(f, &units[u]);
    }
    return TSR_OK;
}

/* Makes the write items of all units of the stage. `all` has no units yet. */
static tsr_status expand(const tsr_stage *stage, const unit_lanes *all, tsr_unit *units, tsr_arena *arena,
                         unit_write_items *out, tsr_error *err)
{
    const size_t count = all->lanes->end;
    tsr_unit **list = tsr_arena_array(arena, count, sizeof *list, err);
    unit_lanes lanes = *all;
    if (!list) return TSR_E_NOMEM;
    for (size_t u = 0; u < count; u++) list[u] = &units[u];
    lanes.units = list;
    return write_items_of(stage, &lanes, arena, out, err);
}

/* Sets `server` and `delay` of the units of a stage. TSR_E_NOMEM. */
static tsr_status units_find_servers(const tsr_work *work, const tsr_stage *stage, tsr_unit *units, size_t count,
                                     tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    server_finder f = {.storage = work->options.storage, .arena = arena};
    unit_write_items of;
    f.bytes = tsr_arena_array(arena, f.storage->server_count, sizeof *f.bytes, err);
    const tsr_lane all = {0, count};
    const unit_lanes lanes = {.unit_bytes = work->unit_bytes, .lanes = &all, .count = 1};
    tsr_status status = f.bytes ? expand(stage, &lanes, units, arena, &of, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = find_servers(&f, &of, units, count, err);
    tsr_arena_free(arena);
    return status;
}

/* Orders `count` units of one stage so that a share moves from server to server. Units that the stage's order keeps together
 * (write_item.h) stay first. TSR_E_NOMEM. */
static tsr_status order_units(const tsr_work *work, const tsr_stage *stage, tsr_storage_reader share, tsr_unit **units,
                              size_t count, tsr_error *err)
{
    size_t grouped = 0;
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    tsr_storage_item *items = arena ? tsr_arena_array(arena, count, sizeof *items, err) : NULL;
    tsr_unit **old = items ? tsr_arena_array(arena, count, sizeof *old, err) : NULL;
    for (size_t u = 0; old && u < count; u++) {
        old[u] = units[u];
        items[u] = (tsr_storage_item){units[u]->server, unit_weight(units[u]), u};
    }
    while (grouped < count && units[grouped]->first < stage->order.grouped) grouped++;
    if (old) tsr_storage_order(work->options.storage, share, items, grouped);
    if (old) tsr_storage_order(work->options.storage, share, items + grouped, count - grouped);
    for (size_t u = 0; old && u < count; u++) units[u] = old[items[u].number];
    tsr_arena_free(arena);
    return old ? TSR_OK : TSR_E_NOMEM;
}

/* The record of a finished unit, little-endian:
 *
 *   unit u64 | CRCs n u32 | n × u32 | CRC-32 of all this u32
 *
 * n is the number of write items of the unit, or 0 if the container needs no CRCs. If casts lost values, the highest bit of n is set,
 * and the CRCs are followed by
 *
 *   zeros u64 | overflows u64 | first write item with zeros u32 | first write item with overflows u32 */

enum { LOSSES = 24 }; /* bytes */
#define HAS_LOSSES UINT32_C(0x80000000)

static void store_losses(const tsr_unit *unit, uint8_t *out)
{
    tsr_store_le(out, unit->losses.zeros, 8);
    tsr_store_le(out + 8, unit->losses.overflows, 8);
    tsr_store_le(out + 16, unit->first_zero, 4);
    tsr_store_le(out + 20, unit->first_overflow, 4);
}

static tsr_status put_record(const tsr_work *work, size_t number, tsr_vec *out, tsr_error *err)
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
        if (tsr_work_unit(work, u)->done) TSR_TRY(put_record(work, u, out, err));
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

/* ---- lanes ---- */

static uint32_t group_of(const tsr_stage *stage, const tsr_unit *unit)
{
    return tsr_stage_item(stage, unit->first)->file / stage->order.group_files;
}

static uint64_t weight_left(tsr_unit *const *units, size_t first, size_t end)
{
    uint64_t weight = 0;
    for (size_t u = first; u < end; u++) weight += units[u]->done ? 0 : unit_weight(units[u]);
    return weight;
}

size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes)
{
    size_t count = 1, grouped = first;
    if (first == end) return 0;
    while (grouped < end && units[grouped]->first < stage->order.grouped) grouped++;
    lanes[0] = (tsr_lane){first, grouped};
    if (grouped > first) return 1;
    const uint64_t each = weight_left(units, first, end) / most;
    uint64_t weight = 0;
    for (size_t u = first; u < end; lanes[count - 1].end = ++u) {
        const bool other = u > first && group_of(stage, units[u]) != group_of(stage, units[u - 1]);
        if (other && count < most && weight >= count * each - each / 8) lanes[count++] = (tsr_lane){u, u};
        weight += units[u]->done ? 0 : unit_weight(units[u]);
    }
    return count;
}

tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most)
{
    while (lane->first < lane->end && units[lane->first]->done) lane->first++;
    tsr_lane taken = {lane->first, lane->first};
    while (taken.end < lane->end && taken.end - taken.first < most && !units[taken.end]->done) taken.end++;
    lane->first = taken.end;
    return taken;
}

/* ---- stages ---- */

tsr_status tsr_work_stage(const tsr_work *work, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(work->job.checkpoint);
    TSR_TRY(work->writer.stage(work->writer.ctx, number, arena, out, err));
    return tsr_order_write_items(catalog, out->write_items, out->count, arena, &out->order, err);
}

static tsr_status cut_stage(tsr_work *work, uint32_t number, tsr_error *err)
{
    tsr_stage stage;
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_work_stage(work, number, arena, &stage, err);
    const size_t before = work->units.count;
    if (status == TSR_OK) status = tsr_units_cut(&stage, number, work->unit_bytes, &work->units, err);
    const size_t count = work->units.count - before;
    if (status == TSR_OK && count && work->options.storage)
        status = units_find_servers(work, &stage, tsr_work_unit(work, before), count, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_work_cut(tsr_work *work, tsr_error *err)
{
    size_t count = 0;
    if (!work->unit_bytes) work->unit_bytes = TSR_UNIT_BYTES;
    for (uint32_t s = 0; s < work->writer.stage_count; s++) TSR_TRY(cut_stage(work, s, err));
    for (size_t u = 0; u < work->units.count; u++) {
        work->weight += unit_weight(tsr_work_unit(work, u));
        count += tsr_work_unit(work, u)->count;
    }
    work->crcs = tsr_arena_array(work->job.arena, count, sizeof *work->crcs, err);
    work->numbers = tsr_arena_array(work->job.arena, work->conversion.file_count, sizeof *work->numbers, err);
    if (!work->crcs || !work->numbers) return TSR_E_NOMEM;
    for (size_t u = 0, at = 0; u < work->units.count; at += tsr_work_unit(work, u++)->count)
        tsr_work_unit(work, u)->crcs = work->crcs + at;
    return TSR_OK;
}

/* ---- shares ---- */

/* The units of a share, [*first, *end). A unit belongs to the share that contains the beginning of the unit's weight, if the shares divide the sum of all weights
 * evenly. */
static void work_share(const tsr_work *work, uint64_t share, uint64_t shares, size_t *first, size_t *end)
{
    const uint64_t each = work->weight / shares, more = work->weight % shares;
    const uint64_t from = share * each + (share < more ? share : more);
    const uint64_t to = share + 1 == shares ? UINT64_MAX : from + each + (share < more);
    uint64_t at = 0;
    size_t u = 0;
    for (; u < work->units.count && at < from; u++) at += unit_weight(tsr_work_unit(work, u));
    *first = u;
    for (; u < work->units.count && at < to; u++) at += unit_weight(tsr_work_unit(work, u));
    *end = u;
}

uint64_t tsr_work_left(const tsr_work *work, uint64_t share, uint64_t shares)
{
    size_t first, end;
    uint64_t left = 0;
    work_share(work, share, shares, &first, &end);
    for (size_t u = first; u < end; u++) left += !tsr_work_unit(work, u)->done;
    return left;
}

/* ---- run ---- */

#ifndef TSR_BATCH_UNITS     /* tests use small ones */
#define TSR_BATCH_UNITS 64u /* between two entries in the journal: a few seconds of work */
#endif

#define LANES_A_THREAD 2u /* so that enough lanes are left when one ends early */

/* A run over a share: the stage that is laid out, its lanes, and the batch of their units that is being processed. */
typedef struct running {
    tsr_work *work;
    tsr_sink sink;
    tsr_storage_reader share;
    tsr_unit **units; /* units of the share, in the order in which they are processed */
    tsr_ring *ring;
    tsr_progress progress;
    uint64_t byte_done, byte_total;
    size_t unit_count, units_left;
    tsr_stage stage;
    tsr_arena *stage_arena;
    size_t at, stage_end; /* the units of the stage that are not in lanes yet */
    size_t most_lanes, lane_count;
    tsr_lane *lanes; /* the lanes' remaining units: lane_count of most_lanes */
    tsr_lane *taken; /* the batch, a few units from each lane: taken_count of most_lanes */
    size_t taken_count;
    tsr_arena *batch_arena;
    unit_write_items batch;
} running;

static bool step(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    const running *r = ctx;
    const tsr_progress *outer = r->work->job.options->progress;
    (void)byte_total;
    return !outer || !outer->step || outer->step(outer->ctx, r->byte_done + byte_done, r->byte_total);
}

static tsr_status write_item_done(void *ctx, size_t i, tsr_error *err)
{
    const running *r = ctx;
    const tsr_write_item *write_item = &r->batch.write_items[i];
    const uint32_t owner = r->batch.owners[i];
    if (write_item->byte_length != r->stage.write_items[owner].byte_length)
        return TSR_OK; /* what follows a divided write item is written at the end */
    r->stage.write_items[owner].crc = write_item->crc;
    return r->stage.behind ? r->stage.behind(&r->stage, owner, &r->sink, err) : TSR_OK;
}

/* Adds what casts lost in write item `i` of the unit: while it was written, and while layers below it computed its elements. */
static void keep_losses(const tsr_work *work, tsr_unit *unit, uint32_t i, const tsr_write_item *write_item)
{
    tsr_checkpoint *checkpoint = work->job.checkpoint;
    const bool listed = !write_item->literal && tsr_catalog_has(tsr_checkpoint_catalog(checkpoint), write_item->entry);
    const tsr_entry *entry = write_item->entry;
    tsr_cast_losses losses = write_item->losses;
    if (!write_item->literal && !listed)
        entry = tsr_checkpoint_entry(checkpoint, entry->fqn); /* a shard stands for its tensor */
    if (!write_item->literal && entry) tsr_checkpoint_take_losses(checkpoint, entry, &losses);
    if (losses.zeros && !unit->losses.zeros) unit->first_zero = i;
    if (losses.overflows && !unit->losses.overflows) unit->first_overflow = i;
    tsr_cast_losses_add(&unit->losses, losses);
}

/* Keeps the CRCs and losses of the batch's units, which are then done. Appends their records to the journal, or NULL. */
static tsr_status conclude_batch(running *r, const tsr_work_journal *journal, tsr_error *err)
{
    tsr_output *output = r->work->output;
    tsr_vec records = tsr_vec_of(r->work->host->allocator, 1);
    size_t at = 0;
    for (size_t l = 0; l < r->taken_count; l++) {
        for (size_t u = r->taken[l].first; u < r->taken[l].end; u++, r->units_left--) {
            tsr_unit *unit = r->units[u];
            for (uint32_t i = 0; i < unit->count; i++, at++) {
                unit->crcs[i] = r->batch.write_items[at].crc;
                keep_losses(r->work, unit, i, &r->batch.write_items[at]);
            }
            unit->done = true;
            r->byte_done += unit->bytes;
        }
    }
    if (!journal || (!r->units_left && journal->finishes)) return TSR_OK;
    tsr_status status = output->sync ? output->sync(output, err) : TSR_OK;
    for (size_t l = 0; l < r->taken_count; l++) {
        for (size_t u = r->taken[l].first; u < r->taken[l].end && status == TSR_OK; u++)
            status = put_record(r->work, (size_t)(r->units[u] - tsr_work_unit(r->work, 0)), &records, err);
    }
    if (status == TSR_OK) status = journal->append(journal->ctx, (tsr_str){records.items, records.count}, err);
    tsr_vec_free(&records);
    return status;
}

/* Replaces an arena, or NULL, by an empty one. */
static tsr_status renew(const running *r, tsr_arena **arena, tsr_error *err)
{
    tsr_arena_free(*arena);
    *arena = tsr_arena_new(r->work->host->allocator, 0, err);
    return *arena ? TSR_OK : TSR_E_NOMEM;
}

/* Whether units are ordered by server. A single process accesses one server after the other in any order. */
static bool goes_by_server(const running *r)
{
    return r->work->options.storage && r->share.readers > 1;
}

/* Lays out the stage of the next unit, unless all of its units are done. */
static tsr_status next_stage(running *r, tsr_error *err)
{
    const uint32_t number = r->units[r->at]->stage;
    bool left = false;
    for (; r->stage_end < r->unit_count && r->units[r->stage_end]->stage == number; r->stage_end++)
        left |= !r->units[r->stage_end]->done;
    if (!left) {
        r->at = r->stage_end;
        return TSR_OK;
    }
    TSR_TRY(renew(r, &r->stage_arena, err));
    TSR_TRY(tsr_work_stage(r->work, number, r->stage_arena, &r->stage, err));
    if (!goes_by_server(r)) return TSR_OK;
    return order_units(r->work, &r->stage, r->share, r->units + r->at, r->stage_end - r->at, err);
}

/* Takes a few units from each lane; from the next lanes of the stage if these have none left, and from the next stage after that. Makes
 * their write items, with the output's numbers of files. taken_count is 0 after the last batch. */
static tsr_status next_batch(running *r, tsr_error *err)
{
    for (;;) {
        r->taken_count = 0;
        for (size_t l = 0; l < r->lane_count; l++) {
            const size_t each = r->lane_count < TSR_BATCH_UNITS ? TSR_BATCH_UNITS / r->lane_count : 1;
            r->taken[r->taken_count] = tsr_lane_take(&r->lanes[l], r->units, each);
            r->taken_count += r->taken[r->taken_count].first < r->taken[r->taken_count].end;
        }
        if (r->taken_count || r->at == r->unit_count) break;
        if (r->at == r->stage_end) TSR_TRY(next_stage(r, err));
        r->lane_count = tsr_lanes_cut(&r->stage, r->units, r->at, r->stage_end, r->most_lanes, r->lanes);
        if (r->lane_count) r->at = r->lanes[r->lane_count - 1].end;
    }
    const unit_lanes lanes = {
        .units = r->units, .unit_bytes = r->work->unit_bytes, .lanes = r->taken, .count = r->taken_count};
    TSR_TRY(renew(r, &r->batch_arena, err));
    TSR_TRY(write_items_of(&r->stage, &lanes, r->batch_arena, &r->batch, err));
    for (size_t i = 0; i < r->batch.count; i++)
        r->batch.write_items[i].file = r->work->numbers[r->batch.write_items[i].file];
    return TSR_OK;
}

/* Allocates what a run needs: the ring, lanes, and its units from `first` on in their original order. */
static tsr_status open_run(running *r, size_t first, tsr_error *err)
{
    const tsr_allocator *allocator = r->work->host->allocator;
    TSR_TRY(tsr_ring_new(r->work->host, r->work->job.options->max_memory, &r->ring, err));
    r->lanes = tsr_alloc(allocator, 2 * r->most_lanes, sizeof *r->lanes, err);
    r->units = r->lanes ? tsr_alloc(allocator, r->unit_count, sizeof *r->units, err) : NULL;
    if (!r->units) return TSR_E_NOMEM;
    r->taken = r->lanes + r->most_lanes;
    for (size_t u = 0; u < r->unit_count; u++) {
        r->units[u] = tsr_work_unit(r->work, first + u);
        r->byte_total += r->units[u]->done ? 0 : r->units[u]->bytes;
        r->units_left += !r->units[u]->done;
    }
    return TSR_OK;
}

tsr_status tsr_work_run(tsr_work *work, uint64_t share, uint64_t shares, const tsr_work_journal *journal, tsr_error *err)
{
    const tsr_allocator *allocator = work->host->allocator;
    const uint32_t threads = tsr_threads(work->host);
    size_t first, end;
    TSR_FAIL_IF(share >= shares, err, TSR_E_USAGE, "there is no share %llu of %llu", (unsigned long long)share,
                (unsigned long long)shares);
    work_share(work, share, shares, &first, &end);
    if (first == end) return TSR_OK;
    running r = {.work = work,
                 .sink = {work->output, work->numbers},
                 .share = {share, shares},
                 .unit_count = end - first,
                 .progress = {step, &r}};
    r.most_lanes = threads > 1 && !goes_by_server(&r) ? LANES_A_THREAD * threads : 1; /* lanes share no file: work_parts.h */
    tsr_status status = open_run(&r, first, err);
    if (status == TSR_OK) status = next_batch(&r, err);
    while (status == TSR_OK && r.taken_count) {
        const tsr_write_items_run write_items = {.checkpoint = work->job.checkpoint,
                                                 .output = work->output,
                                                 .ring = r.ring,
                                                 .ahead = work->ahead,
                                                 .write_items = r.batch.write_items,
                                                 .count = r.batch.count,
                                                 .lane_ends = r.batch.ends,
                                                 .lane_count = r.taken_count,
                                                 .crc = work->crc,
                                                 .progress = &r.progress,
                                                 .done = write_item_done,
                                                 .ctx = &r};
        status = tsr_write_items(&write_items, err);
        if (status == TSR_OK) status = conclude_batch(&r, journal, err);
        if (status == TSR_OK) status = next_batch(&r, err);
    }
    tsr_arena_free(r.batch_arena);
    tsr_arena_free(r.stage_arena);
    tsr_free(allocator, r.units, r.unit_count, sizeof *r.units);
    tsr_free(allocator, r.lanes, 2 * r.most_lanes, sizeof *r.lanes);
    tsr_ring_free(r.ring);
    return status;
}

/* Assigns each file to the share in which its first unit begins, if the shares divide the sum of all weights evenly. */
static void choose_owners(const tsr_work *work, uint64_t shares, uint64_t *owners)
{
    const uint64_t each = work->weight / shares + 1;
    uint64_t at = 0;
    for (uint32_t f = 0; f < work->conversion.file_count; f++) owners[f] = shares;
    for (size_t u = 0; u < work->units.count; u++) {
        const tsr_unit *unit = tsr_work_unit(work, u);
        if (owners[unit->file] == shares) owners[unit->file] = at / each;
        at += unit_weight(unit);
    }
}

tsr_status tsr_work_run_files(tsr_work *work, uint64_t share, uint64_t shares, tsr_error *err)
{
    const size_t count = work->units.count;
    uint64_t *owners = tsr_arena_array(work->job.arena, work->conversion.file_count, sizeof *owners, err);
    bool *were_done = tsr_arena_array(work->job.arena, count, sizeof *were_done, err);
    if (!owners || !were_done) return TSR_E_NOMEM;
    choose_owners(work, shares, owners);
    for (size_t u = 0; u < count; u++) { /* units of other shares are skipped as if they were done */
        tsr_unit *unit = tsr_work_unit(work, u);
        were_done[u] = unit->done;
        unit->done |= owners[unit->file] != share;
    }
    const tsr_status status = tsr_work_run(work, 0, 1, NULL, err);
    for (size_t u = 0; u < count; u++) {
        tsr_unit *unit = tsr_work_unit(work, u);
        if (owners[unit->file] != share) unit->done = were_done[u];
    }
    return status;
}
