/* Copies tiles from gathers to outputs. A tile is read, cast, checksummed and written in a single job, while its bytes are
 * in the cache; only CRCs and completion are processed in order.
 *
 *   job:  [ tile ······ | scratch | cast ···· ]  ──▶  output file at byte_offset + position of the tile
 *
 * A gather opens with the first tile of its entry, and closes when the last of consecutive write items of that entry is done.
 * Lanes take turns:
 *
 *   lane 0  [ a ···· ][ b ]…   file 0       jobs  a0 c0 a1 c1 a2 c2 b0 d0 …: busy threads are in different files
 *   lane 1  [ c ·· ][ d ··· ]… file 1 */
#include "write/write_item.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "stream/tile_job.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

/* The part of a band that belongs to one of the write items. */
typedef struct tsr_column {
    uint8_t *out; /* the part, contiguous */
    uint64_t at;  /* relative to the write item's first byte */
    size_t bytes;
    uint32_t crc;
} tsr_column;

/* A set of write items, and the box that they form together. Offsets and sizes have TSR_MAX_NDIM elements. */
typedef struct tsr_column_set {
    size_t count; /* 1 if there is no set */
    uint32_t dim; /* in which they are adjacent */
    uint32_t itemsize;
    uint64_t row;   /* elements of the box from `dim` on */
    uint64_t inner; /* elements of the dims after `dim` */
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
} tsr_column_set;

/* ---- columns ---- */

/* Write items that are adjacent columns of one tensor: a band of rows is read once for all of them, because reading each one alone
 * would also read the bytes of its neighbors.
 *
 *   band of rows   [ a a b b c c ][ a a b b c c ][ … ]      one read
 *   columns        [ a a a a … ]  [ b b b b … ]  [ c c c c … ]   a contiguous run in each file */

#define MOST_COLUMNS 64u

static bool is_as_stored(const tsr_write_item *write_item, const tsr_gather *gather)
{
    return !write_item->literal && write_item->offsets && write_item->sizes && write_item->byte_length &&
           write_item->entry == gather->entry &&
           (write_item->dtype == gather->dtype || write_item->dtype == gather->entry->dtype);
}

/* The only dim in which the offsets differ, if `b` begins where `a` ends; otherwise ndim. */
static uint32_t neighbor_dim(const tsr_write_item *a, const tsr_write_item *b, uint32_t ndim)
{
    uint32_t dim = ndim;
    for (uint32_t d = 0; d < ndim; d++) {
        if (a->offsets[d] == b->offsets[d]) continue;
        if (dim < ndim || b->offsets[d] != a->offsets[d] + a->sizes[d]) return ndim;
        dim = d;
    }
    for (uint32_t d = 0; d < ndim; d++)
        if (d != dim && a->sizes[d] != b->sizes[d]) return ndim;
    return dim;
}

/* Finds how many write items at the beginning are such columns, written without a cast. A row of the set must have more than one
 * write item and at most `most` elements. */
static void columns_find(const tsr_write_item *write_items, size_t count, const tsr_gather *gather, uint64_t most,
                         tsr_column_set *out)
{
    const uint32_t ndim = gather->ndim;
    *out = (tsr_column_set){.count = 1, .itemsize = gather->itemsize, .inner = 1};
    if (gather->serial || count < 2 || !is_as_stored(write_items, gather) || !is_as_stored(write_items + 1, gather)) return;
    const uint32_t dim = out->dim = neighbor_dim(write_items, write_items + 1, ndim);
    if (dim == 0 || dim == ndim) return;
    for (uint32_t d = 0; d < ndim; d++) out->offsets[d] = write_items->offsets[d];
    for (uint32_t d = 0; d < ndim; d++) out->sizes[d] = write_items->sizes[d];
    for (uint32_t d = dim + 1; d < ndim; d++) out->inner *= write_items->sizes[d];
    size_t n = 1;
    uint64_t size = write_items->sizes[dim];
    while (n < count && n < MOST_COLUMNS && is_as_stored(&write_items[n], gather) &&
           neighbor_dim(&write_items[n - 1], &write_items[n], ndim) == dim &&
           (size + write_items[n].sizes[dim]) * out->inner <= most)
        size += write_items[n++].sizes[dim];
    out->sizes[dim] = size;
    out->row = size * out->inner;
    out->count = n;
}

static size_t columns_memory(const tsr_column_set *set, size_t bytes)
{
    return bytes + set->count * TSR_COPY_SLACK;
}

static size_t width_of(const tsr_column_set *set, const tsr_write_item *write_item)
{
    return (size_t)(write_item->sizes[set->dim] * set->inner * set->itemsize);
}

/* The columns of the band `at`, in `memory` of columns_size bytes (aligned for a tsr_column). */
static tsr_column *columns_start(const tsr_column_set *set, const tsr_write_item *write_items, const tsr_tiles *at,
                                 uint8_t *memory)
{
    tsr_column *columns = (tsr_column *)(void *)memory;
    const uint64_t before = at->first / set->row, rows = at->elements / set->row;
    for (size_t i = 0; i < set->count; i++) {
        const size_t width = width_of(set, &write_items[i]);
        columns[i] = (tsr_column){.at = before * width, .bytes = (size_t)(rows * width)};
    }
    return columns;
}

/* Places their elements in `memory` of columns_memory bytes. */
static void columns_place(const tsr_column_set *set, const tsr_write_item *write_items, uint8_t *memory, tsr_column *columns)
{
    for (size_t i = 0; i < set->count; i++) {
        columns[i].out = tsr_place_for_copy(memory, TSR_NO_POSITION, write_items[i].byte_offset + columns[i].at);
        memory += columns[i].bytes + TSR_COPY_SLACK;
    }
}

/* Splits a band, contiguous in row-major order, into its columns. */
static void columns_cut(const tsr_column_set *set, const tsr_write_item *write_items, const uint8_t *band, size_t bytes,
                        const tsr_column *columns)
{
    const size_t row = (size_t)(set->row * set->itemsize);
    for (size_t i = 0; i < set->count; band += width_of(set, &write_items[i++])) {
        const size_t width = width_of(set, &write_items[i]);
        for (size_t r = 0; r < bytes / row; r++) memcpy(columns[i].out + r * width, band + r * row, width);
    }
}

/* ---- write item ---- */

/* A gather that is in use, by write items that still produce tiles or by tiles that are not yet drained. */
typedef struct lease {
    tsr_gather *gather;
    struct lease *next;
} lease;

typedef struct write_item_job {
    tsr_tile tile;
    tsr_write_item *write_item;
    size_t out_bytes;
    uint64_t out_at; /* relative to the write item's first byte */
    uint32_t crc;
    tsr_cast_losses losses;
    bool last;           /* whether it is the last tile of its write item */
    tsr_column_set set;  /* begins with `write_item`; the tile is a band of all write items of the set */
    tsr_column *columns; /* those of the set, if it has more than one */
    tsr_gather *release; /* must be closed when this job is drained */
} write_item_job;

typedef struct state {
    const tsr_write_items_run *run;
    uint64_t byte_done, byte_total;
    lease *leases; /* to close them after a failure */
} state;

tsr_status tsr_write_item_measure(const tsr_entry *entry, const uint64_t *sizes, tsr_dtype dtype, uint64_t *bytes,
                                  tsr_error *err)
{
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    uint64_t elements = packed.elements;
    const bool fits = !sizes || tsr_box_volume((tsr_box){packed.ndim, NULL, sizes}, &elements);
    const bool same = dtype == packed.dtype || dtype == entry->dtype;
    TSR_FAIL_IF(!same && !tsr_cast_possible(packed.dtype, dtype), err, TSR_E_UNSUPPORTED, "'%.*s': %s cannot be cast to %s",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name, tsr_dtype_describe(dtype)->name);
    TSR_FAIL_IF(!fits || !tsr_mul_u64(elements, tsr_dtype_size(same ? packed.dtype : dtype), bytes), err, TSR_E_FORMAT,
                "'%.*s' is too large", TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

static bool casts(const tsr_write_item *write_item, const tsr_gather *gather)
{
    return write_item->dtype != gather->dtype && write_item->dtype != gather->entry->dtype;
}

static tsr_status write_columns(const state *s, write_item_job *job, uint8_t *lent, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(s->run->checkpoint);
    columns_place(&job->set, job->write_item, lent, job->columns);
    tsr_tile_place(&job->tile, lent + columns_memory(&job->set, job->tile.bytes), TSR_NO_POSITION);
    TSR_TRY(tsr_tile_fill(&job->tile, err));
    columns_cut(&job->set, job->write_item, job->tile.data, job->tile.bytes, job->columns);
    for (size_t i = 0; i < job->set.count; i++) {
        tsr_column *c = &job->columns[i];
        const tsr_write_item *write_item = &job->write_item[i];
        if (s->run->crc) c->crc = tsr_crc32(host, 0, c->out, c->bytes);
        TSR_TRY(s->run->output->write_at(s->run->output, write_item->file, write_item->byte_offset + c->at, c->out, c->bytes,
                                         err));
    }
    return TSR_OK;
}

/* Reads the bytes of a job's tile unless they are there, casts them to the write item's dtype, and writes them. */
static tsr_status write_job(void *ctx, void *item, uint8_t *lent, tsr_error *err)
{
    const tsr_write_items_run *run = ((const state *)ctx)->run;
    write_item_job *job = item;
    const tsr_write_item *write_item = job->write_item;
    const tsr_gather *gather = job->tile.gather; /* NULL: a literal */
    const uint64_t write_at = write_item->byte_offset + job->out_at;
    const bool cast = gather && casts(write_item, gather);
    const uint8_t *out = write_item->literal;
    if (job->out_bytes == 0) return TSR_OK;
    if (job->columns) return write_columns(ctx, job, lent, err);
    if (gather && !job->tile.filled) {
        tsr_tile_place(&job->tile, lent, cast ? TSR_NO_POSITION : write_at);
        TSR_TRY(tsr_tile_fill(&job->tile, err));
        lent += tsr_tile_memory(job->tile.bytes);
    }
    if (gather) out = job->tile.data;
    if (cast) {
        uint8_t *to = tsr_place_for_copy(lent, TSR_NO_POSITION, write_at);
        tsr_cast_counted(gather->dtype, write_item->dtype, out, job->tile.bytes / gather->itemsize, to, &job->losses);
        out = to;
    }
    if (run->crc) job->crc = tsr_crc32(tsr_checkpoint_host(run->checkpoint), 0, out, job->out_bytes);
    return run->output->write_at(run->output, write_item->file, write_at, out, job->out_bytes, err);
}

static void close_lease(state *s, tsr_gather *gather)
{
    for (lease **at = &s->leases; *at; at = &(*at)->next) {
        if ((*at)->gather != gather) continue;
        *at = (*at)->next; /* the lease itself is allocated in the gather's arena */
        tsr_gather_close(gather);
        return;
    }
}

static tsr_status drain_write_item(void *ctx, void *item, tsr_error *err)
{
    state *s = ctx;
    write_item_job *job = item;
    const tsr_progress *progress = s->run->progress;
    const size_t count = job->columns ? job->set.count : 1;
    for (size_t i = 0; i < count; i++) {
        const tsr_column own = {.at = job->out_at, .bytes = job->out_bytes, .crc = job->crc};
        const tsr_column *c = job->columns ? &job->columns[i] : &own;
        job->write_item[i].crc = c->at ? tsr_crc32_join(job->write_item[i].crc, c->crc, c->bytes) : c->crc;
    }
    tsr_cast_losses_add(&job->write_item->losses, job->losses);
    s->byte_done += job->out_bytes;
    if (job->release) close_lease(s, job->release);
    if (progress && progress->step && !progress->step(progress->ctx, s->byte_done, s->byte_total)) {
        return tsr_fail(err, TSR_E_CANCELLED, "writing was cancelled");
    }
    for (size_t i = 0; i < count && job->last && s->run->done; i++)
        TSR_TRY(s->run->done(s->run->ctx, (size_t)(job->write_item - s->run->write_items) + i, err));
    return TSR_OK;
}

static tsr_status open_lease(state *s, const tsr_entry *entry, const tsr_box *box, tsr_gather **out, tsr_error *err)
{
    TSR_TRY(tsr_gather_open_found(s->run->checkpoint, entry, box, s->run->ahead, out, err));
    lease *own = TSR_ARENA_NEW((*out)->arena, lease, err);
    if (!own) {
        tsr_gather_close(*out);
        return TSR_E_NOMEM;
    }
    *own = (lease){*out, s->leases};
    s->leases = own;
    return TSR_OK;
}

static tsr_status new_job(state *s, tsr_write_item *write_item, const tsr_gather *gather, const tsr_tiles *at,
                          write_item_job **out, tsr_error *err)
{
    const size_t bytes = at ? (size_t)at->elements * gather->itemsize : 0, own = bytes ? tsr_tile_memory(bytes) : 0;
    const size_t cast = casts(write_item, gather) ? bytes / gather->itemsize * tsr_dtype_size(write_item->dtype) : 0;
    const size_t kept = gather->serial ? own : 0; /* it is filled now */
    void *item;
    uint8_t *memory;
    TSR_TRY(tsr_ring_lent_job(s->run->ring, kept, own - kept + (cast ? cast + TSR_COPY_SLACK : 0), &item, &memory, err));
    write_item_job *job = item;
    *out = job;
    job->write_item = write_item;
    if (!at) return TSR_OK;
    job->out_bytes = cast ? cast : bytes;
    job->out_at = at->first * (job->out_bytes / at->elements);
    tsr_tile_set(&job->tile, gather, at);
    if (!kept) return TSR_OK;
    tsr_tile_place(&job->tile, memory, cast ? TSR_NO_POSITION : write_item->byte_offset + job->out_at);
    return tsr_tile_fill(&job->tile, err);
}

/* Write items that are processed one tile after the other: those before `stop` now, the others when all lanes are there. */
typedef struct lane {
    size_t at, stop, end;
    tsr_gather *gather; /* for write_items[at], and the write items before it with the same entry */
    bool inside;        /* write_items[at] has begun, and `tiles` iterates over the rest of it */
    tsr_tiles tiles;
    tsr_column_set set; /* begins with write_items[at] */
} lane;

/* Makes a job for a band of the lane's columns. */
static tsr_status new_band(state *s, const lane *l, write_item_job **out, tsr_error *err)
{
    const size_t bytes = (size_t)l->tiles.elements * l->gather->itemsize;
    const size_t lent = columns_memory(&l->set, bytes) + tsr_tile_memory(bytes);
    void *item;
    uint8_t *memory;
    TSR_TRY(tsr_ring_lent_job(s->run->ring, l->set.count * sizeof(tsr_column), lent, &item, &memory, err));
    write_item_job *job = item;
    *out = job;
    job->write_item = &s->run->write_items[l->at];
    job->set = l->set;
    job->out_bytes = bytes;
    job->columns = columns_start(&l->set, job->write_item, &l->tiles, memory);
    tsr_tile_set(&job->tile, l->gather, &l->tiles);
    return TSR_OK;
}

static bool same_entry(const tsr_write_item *a, const tsr_write_item *b)
{
    return !a->literal && !b->literal && a->entry == b->entry;
}

/* What consecutive write items of one entry need together: a box, or everything. */
typedef struct reach {
    tsr_packed whole;
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    tsr_box box;
    bool is_all, is_packed; /* packed: the box does not count the entry's own elements */
} reach;

/* Finds what the write items of one entry at the beginning of [first, end) need. Sets *next after them. */
static tsr_status find_reach(const tsr_write_item *first, const tsr_write_item *end, reach *out, const tsr_write_item **next,
                             tsr_error *err)
{
    TSR_TRY(tsr_gather_pack(first->entry, &out->whole, err));
    const uint32_t ndim = out->whole.ndim;
    const uint64_t *shape = out->whole.shape;
    const tsr_box whole = {ndim, NULL, shape};
    out->box = (tsr_box){ndim, out->offsets, out->sizes};
    for (uint32_t d = 0; d < ndim; d++) {
        out->offsets[d] = first->offsets ? first->offsets[d] : 0;
        out->sizes[d] = first->sizes ? first->sizes[d] : shape[d];
    }
    const tsr_write_item *write_item = first;
    for (; write_item < end && same_entry(first, write_item); write_item++) {
        const tsr_box box = {ndim, write_item->offsets, write_item->sizes ? write_item->sizes : shape};
        TSR_FAIL_IF(!tsr_box_contains(whole, box), err, TSR_E_USAGE, "'%.*s': the box reaches beyond the tensor",
                    TSR_STR_ARG(first->entry->fqn));
        tsr_box_enclose(ndim, out->offsets, out->sizes, box);
    }
    *next = write_item;
    out->is_all = tsr_box_equal(whole, out->box);
    out->is_packed = out->whole.dtype != first->entry->dtype;
    return TSR_OK;
}

/* Opens a gather of what the lane's next write items of one entry need. */
static tsr_status open_gather(state *s, lane *l, tsr_error *err)
{
    const tsr_write_item *write_items = s->run->write_items, *next;
    reach r;
    TSR_TRY(find_reach(&write_items[l->at], &write_items[l->stop], &r, &next, err));
    return open_lease(s, write_items[l->at].entry, r.is_all ? NULL : &r.box, &l->gather, err);
}

static bool is_row_major(const tsr_entry *entry)
{
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        const tsr_view *view = entry->chunks[c].view;
        if (view && (view->strides || view->zstd)) return false;
    }
    return true;
}

/* Whether all write items of an entry are contiguous runs of its rows, so that processing them separately reads no byte twice. */
static tsr_status are_rows(const tsr_write_item *write_items, size_t count, bool *out, tsr_error *err)
{
    tsr_packed packed;
    *out = is_row_major(write_items->entry);
    if (!*out) return TSR_OK;
    TSR_TRY(tsr_gather_pack(write_items->entry, &packed, err));
    const tsr_box whole = {packed.ndim, NULL, packed.shape};
    for (size_t i = 0; i < count && *out; i++)
        *out = !write_items[i].sizes ||
               tsr_box_is_contiguous(whole, (tsr_box){packed.ndim, write_items[i].offsets, write_items[i].sizes});
    return TSR_OK;
}

/* How many write items at the beginning belong together. Literals are separate. */
static size_t row_of_write_items(const tsr_write_item *write_items, size_t count)
{
    size_t n = 1;
    while (!write_items->literal && n < count && !write_items[n].literal && write_items[n].entry == write_items->entry) n++;
    return n;
}

/* Requests the chunks of the lane's write items of one entry at `stop`, and moves it behind them. Rows that are fetched ahead are taken one
 * by one. */
static tsr_status want_next(const state *s, lane *l, tsr_error *err)
{
    const tsr_write_item *first = &s->run->write_items[l->stop], *next = first + 1;
    bool alone = false;
    reach r;
    if (!first->literal && first->byte_length) {
        const size_t count = row_of_write_items(first, l->end - l->stop);
        if (tsr_ahead_fetches(s->run->ahead)) TSR_TRY(are_rows(first, count, &alone, err));
        TSR_TRY(find_reach(first, first + (alone ? 1 : count), &r, &next, err));
        TSR_TRY(tsr_ahead_want(s->run->ahead, first->entry, r.is_all || r.is_packed ? NULL : &r.box, err));
    }
    l->stop = (size_t)(next - s->run->write_items);
    return TSR_OK;
}

/* Locates the chunks of the lanes' next write items in one batch: of all of them, unless the store would drop what it fetches for the first. */
static tsr_status look_ahead(const state *s, lane *lanes, size_t count, tsr_error *err)
{
    tsr_ahead *ahead = s->run->ahead;
    TSR_TRY(tsr_ahead_make_room(ahead, err));
    for (size_t i = 0; !ahead && i < count; i++) lanes[i].stop = lanes[i].end;
    for (bool more = ahead; more;) {
        more = false;
        for (size_t i = 0; i < count && !tsr_ahead_is_full(ahead); i++) {
            if (lanes[i].stop == lanes[i].end) continue;
            more = true;
            TSR_TRY(want_next(s, &lanes[i], err));
        }
    }
    tsr_ahead_seek(ahead);
    return TSR_OK;
}

/* Whether the lane's next write items are columns that can be read together. */
static bool begin_columns(const state *s, lane *l)
{
    const uint32_t itemsize = l->gather->itemsize;
    const uint64_t most = tsr_tile_most(s->run->ring, l->gather, 2 * itemsize, 1), spare = most / 8;
    columns_find(&s->run->write_items[l->at], l->stop - l->at, l->gather, most - spare, &l->set);
    while (l->set.count > 1 && columns_memory(&l->set, 0) > spare * itemsize)
        columns_find(&s->run->write_items[l->at], l->set.count / 2, l->gather, most - spare, &l->set);
    if (l->set.count < 2) return false;
    tsr_tiles_start(&l->tiles, (tsr_box){l->gather->ndim, l->set.offsets, l->set.sizes}, most - spare);
    return true;
}

static tsr_status begin_write_item(state *s, lane *l, tsr_error *err)
{
    const tsr_write_item *write_item = &s->run->write_items[l->at];
    if (!l->gather) TSR_TRY(open_gather(s, l, err));
    const tsr_gather *gather = l->gather;
    const uint32_t largest = gather->itemsize + (casts(write_item, gather) ? tsr_dtype_size(write_item->dtype) : 0);
    const tsr_box box = {gather->ndim, write_item->offsets, write_item->sizes ? write_item->sizes : gather->shape};
    l->inside = true;
    if (begin_columns(s, l)) return TSR_OK;
    tsr_tiles_start(&l->tiles, box, tsr_tile_most(s->run->ring, gather, largest, 1));
    return TSR_OK;
}

static tsr_status add_literal(state *s, tsr_write_item *write_item, tsr_error *err)
{
    void *item;
    uint8_t *memory;
    TSR_TRY(tsr_ring_job(s->run->ring, 0, &item, &memory, err));
    write_item_job *job = item;
    *job = (write_item_job){.write_item = write_item, .out_bytes = (size_t)write_item->byte_length, .last = true};
    return TSR_OK;
}

/* Adds a job for the lane's next tile. A write item without elements also gets a job, so that it is completed in order. */
static tsr_status add_tile(state *s, lane *l, tsr_error *err)
{
    tsr_write_item *write_item = &s->run->write_items[l->at];
    write_item_job *job;
    if (write_item->literal) {
        l->at++;
        return add_literal(s, write_item, err);
    }
    if (!l->inside) TSR_TRY(begin_write_item(s, l, err));
    if (l->set.count > 1) TSR_TRY(new_band(s, l, &job, err));
    else TSR_TRY(new_job(s, write_item, l->gather, l->tiles.done ? NULL : &l->tiles, &job, err));
    if (!l->tiles.done) tsr_tiles_next(&l->tiles);
    if (!l->tiles.done) return TSR_OK;
    job->last = true;
    l->inside = false;
    l->at += l->set.count;
    if (l->at < l->stop && same_entry(write_item, &s->run->write_items[l->at])) return TSR_OK;
    job->release = l->gather;
    l->gather = NULL;
    return TSR_OK;
}

/* Adds jobs for the tiles of all write items before the lanes' stops. The lanes take turns. */
static tsr_status add_tiles(state *s, lane *lanes, size_t count, tsr_error *err)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < count; i++) {
            if (lanes[i].at == lanes[i].stop) continue;
            more = true;
            TSR_TRY(add_tile(s, &lanes[i], err));
        }
    }
    return TSR_OK;
}

static bool are_done(const lane *lanes, size_t count)
{
    size_t i = 0;
    while (i < count && lanes[i].at == lanes[i].end) i++;
    return i == count;
}

tsr_status tsr_write_items(const tsr_write_items_run *run, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(run->checkpoint)->allocator;
    const size_t count = run->lane_count ? run->lane_count : 1;
    state s = {.run = run};
    for (size_t i = 0; i < run->count; i++) s.byte_total += run->write_items[i].byte_length;
    lane *lanes = tsr_alloc(allocator, count, sizeof *lanes, err);
    if (!lanes) return TSR_E_NOMEM;
    memset(lanes, 0, count * sizeof *lanes);
    for (size_t i = 0; i < count; i++) {
        lanes[i].at = lanes[i].stop = i ? lanes[i - 1].end : 0;
        lanes[i].end = run->lane_count ? run->lane_ends[i] : run->count;
    }
    const tsr_ring_work work = {
        .job_size = sizeof(write_item_job), .fill_lent = write_job, .drain = drain_write_item, .ctx = &s};
    tsr_status status = tsr_ring_begin(run->ring, &work, err);
    while (status == TSR_OK && !are_done(lanes, count)) {
        status = look_ahead(&s, lanes, count, err);
        if (status == TSR_OK) status = add_tiles(&s, lanes, count, err);
        if (status == TSR_OK) status = tsr_ring_end(run->ring, err);
    }
    while (s.leases) close_lease(&s, s.leases->gather);
    tsr_free(allocator, lanes, count, sizeof *lanes);
    return status;
}

/* ---- write item order ---- */

#define MOST_GROUPS 64u /* a tensor is located once per group that it is in */

typedef struct place {
    uint32_t group; /* from 1; 0 if it is written tensor by tensor */
    uint32_t number;
} place;

static tsr_status find_places(const tsr_catalog *catalog, const tsr_write_item *write_items, size_t count,
                              uint32_t group_files, place *places, tsr_error *err)
{
    for (size_t i = 0, n; i < count; i += n) {
        bool rows = true;
        n = row_of_write_items(write_items + i, count - i);
        if (!write_items[i].literal && catalog->compressed) rows = false;
        else if (!write_items[i].literal) TSR_TRY(are_rows(write_items + i, n, &rows, err));
        for (size_t k = i; k < i + n; k++)
            places[k] = (place){rows ? 1 + write_items[k].file / group_files : 0, (uint32_t)k};
    }
    return TSR_OK;
}

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

tsr_status tsr_order_write_items(const tsr_catalog *catalog, const tsr_write_item *write_items, size_t count,
                                 tsr_arena *arena, tsr_write_order *out, tsr_error *err)
{
    uint32_t last = 0;
    TSR_FAIL_IF(count >= UINT32_MAX, err, TSR_E_LIMIT, "too many boxes to write");
    for (size_t i = 0; i < count; i++) last = write_items[i].file > last ? write_items[i].file : last;
    *out = (tsr_write_order){.numbers = tsr_arena_array(arena, count, sizeof *out->numbers, err),
                             .group_files = last / MOST_GROUPS + 1};
    place *places = tsr_arena_array(arena, count, sizeof *places, err);
    if (!out->numbers || !places) return TSR_E_NOMEM;
    TSR_TRY(find_places(catalog, write_items, count, out->group_files, places, err));
    if (count) qsort(places, count, sizeof *places, by_place);
    for (size_t i = 0; i < count; i++) {
        out->numbers[i] = places[i].number;
        out->grouped += places[i].group == 0;
    }
    return TSR_OK;
}
