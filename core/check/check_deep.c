/* Reads every byte once, in file order. An extent (a zip member, a tensor's bytes) is split into pieces, which threads read,
 * checksum and scan. The CRCs of the pieces are combined in order.
 *
 *   file:   … | member data/0 ··················· | …
 *             [piece 0      ][piece 1      ][pc 2]        boundaries at whole elements of the tensor inside
 *
 * Tensors whose stored bytes are not just their elements (strides with gaps, big-endian, compressed) are scanned for NaN in
 * a second pass, through a gather. */
#include "check/check_deep.h"
#include "base/cursor.h"
#include "check/compare_copy.h"
#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/check.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/box.h"
#include "tessera/sys/check_shared.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

#define MEMBER_CHARS 96u
#define ITEM_BITS    32                  /* of an extent's number: which one of its item it is */
#define SLICE_BYTES  ((size_t)128 << 10) /* small enough to stay in the cache while it is read, checksummed and scanned */

typedef tsr_deep_counts counts;
typedef tsr_deep_tally tally;
typedef tsr_deep check;

typedef struct piece {
    uint32_t file;
    uint64_t byte_offset;
    uint8_t *memory; /* for a single slice */
    size_t size;
    bool first, last; /* of the extent's pieces that this rank reads */
    bool partial;     /* this rank does not read the whole extent, */
    bool ends;        /* but it reads the end */
    bool has_crc;
    uint32_t expected_crc; /* of the whole extent */
    uint64_t extent_offset, extent_number;
    uint32_t crc;              /* of this piece */
    tsr_dtype scan;            /* type of the numbers to scan for NaN, or TSR_DTYPE_NONE */
    size_t scan_from, scan_to; /* range to scan, in bytes of this piece */
    counts counts;
    tally *tally;
    tsr_str fqn;
    tsr_error failure;
    size_t member_size;
    char member[MEMBER_CHARS];
} piece;

static tsr_place place_of(const check *c, uint32_t file, uint64_t offset, tsr_str fqn)
{
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    return (tsr_place){file < store->file_count ? store->files[file].name : (tsr_str){NULL, 0}, offset, fqn};
}

/* Turns an error of one tensor or range into a finding. Errors that stop the whole check are passed on. */
static tsr_status finding_of(check *c, tsr_place place, const tsr_error *failure, tsr_error *err)
{
    if (failure->status == TSR_E_NOMEM || failure->status == TSR_E_CANCELLED) {
        return tsr_raise(err, failure->status, failure->byte_position, "%s", failure->message);
    }
    return tsr_finding_add(c->share.found, "file/unreadable", place, err, "%s", failure->message);
}

static bool is_scanned(tsr_dtype part)
{
    return tsr_float_form_of(part) || part == TSR_BOOL;
}

static void count_values(const tsr_host *host, tsr_dtype part, const uint8_t *data, size_t bytes, counts *out)
{
    if (part != TSR_BOOL) {
        tsr_count_special(host, part, data, bytes / tsr_dtype_size(part), &out->nan, &out->inf);
        return;
    }
    for (size_t i = 0; i < bytes; i++) out->odd += data[i] > 1;
}

static void add_counts(counts *sum, const counts *more)
{
    sum->nan += more->nan;
    sum->inf += more->inf;
    sum->odd += more->odd;
}

/* ---- first pass: extents ---- */

/* Where the slice that begins at `at` ends: after a whole number of elements. */
static size_t slice_end(const piece *p, size_t at)
{
    if (p->size - at <= SLICE_BYTES) return p->size;
    size_t end = at + SLICE_BYTES;
    if (end > p->scan_from && end < p->scan_to) end -= (end - p->scan_from) % 16;
    return end;
}

static tsr_status fill_piece(void *ctx, void *job, tsr_error *err)
{
    (void)err;
    const check *c = ctx;
    const tsr_host *host = tsr_checkpoint_host(c->checkpoint);
    piece *p = job;
    for (size_t at = 0, end; at < p->size; at = end) {
        end = slice_end(p, at);
        uint8_t *data = tsr_place_for_copy(p->memory, p->byte_offset + at, TSR_NO_POSITION);
        tsr_store *store = tsr_checkpoint_store(c->checkpoint);
        if (tsr_store_read(store, p->file, p->byte_offset + at, data, end - at, &p->failure) != TSR_OK) return TSR_OK;
        if (p->has_crc) p->crc = tsr_crc32(host, p->crc, data, end - at);
        const size_t low = p->scan_from > at ? p->scan_from : at, high = p->scan_to < end ? p->scan_to : end;
        if (p->scan != TSR_DTYPE_NONE && low < high) count_values(host, p->scan, data + (low - at), high - low, &p->counts);
    }
    return TSR_OK;
}

/* The result for an extent of which this rank read only a part. */
typedef struct partial {
    piece last; /* the last of its pieces */
    uint32_t crc;
    uint64_t crc_bytes;
    bool damaged;
    tsr_error damage;
} partial;

static tsr_place place_of_piece(const check *c, const piece *p)
{
    return place_of(c, p->file, p->extent_offset, p->fqn);
}

static tsr_status judge(check *c, const piece *p, uint32_t crc, tsr_error *err)
{
    if (!p->has_crc || crc == p->expected_crc) return TSR_OK;
    return tsr_finding_add(c->share.found, "zip/crc", place_of_piece(c, p), err,
                           "the bytes of member '%.*s' have CRC-32 %08x, but the archive states %08x", (int)p->member_size,
                           p->member, (unsigned)crc, (unsigned)p->expected_crc);
}

/* Called when all pieces of an extent that this rank reads have been drained. */
static tsr_status end_extent(check *c, const piece *p, tsr_error *err)
{
    if (p->partial) {
        partial *own = tsr_vec_push(&c->partials, err);
        if (!own) return TSR_E_NOMEM;
        *own = (partial){*p, c->crc, c->crc_bytes, c->damaged, c->damage};
        return TSR_OK;
    }
    if (c->damaged) TSR_TRY(finding_of(c, place_of_piece(c, p), &c->damage, err));
    else TSR_TRY(judge(c, p, c->crc, err));
    return tsr_share_order(&c->share, p->extent_number, err);
}

static tsr_status drain_piece(void *ctx, void *job, tsr_error *err)
{
    check *c = ctx;
    const piece *p = job;
    if (p->first) {
        c->crc = 0;
        c->crc_bytes = 0;
        c->damaged = false;
    }
    c->byte_done += p->size;
    if (c->progress && c->progress->step && !c->progress->step(c->progress->ctx, c->byte_done, c->share.byte_total)) {
        return tsr_fail(err, TSR_E_CANCELLED, "the check was cancelled");
    }
    if (p->failure.status != TSR_OK && !c->damaged) {
        c->damaged = true;
        c->damage = p->failure;
    }
    if (p->tally && p->failure.status == TSR_OK) add_counts(&p->tally->counts, &p->counts);
    c->crc = tsr_crc32_join(c->crc, p->crc, p->size);
    c->crc_bytes += p->size;
    return p->last ? end_extent(c, p, err) : TSR_OK;
}

/* Whether a view's elements are exactly the bytes of one contiguous range, in any order. */
static bool is_dense(const tsr_extent *extent, uint64_t *elements)
{
    const tsr_chunk *chunk = extent->chunk;
    const uint32_t ndim = extent->entry->ndim;
    uint64_t reach = 1, step;
    if (!tsr_box_volume((tsr_box){ndim, NULL, chunk->sizes}, elements)) return false;
    for (uint32_t d = 0; extent->view.strides && d < ndim; d++) {
        if (chunk->sizes[d] > 1 && extent->view.strides[d] == 0) return false;
        if (!tsr_mul_u64(chunk->sizes[d] - (chunk->sizes[d] > 0), extent->view.strides[d], &step)) return false;
        if (!tsr_add_u64(reach, step, &reach)) return false;
    }
    return !extent->view.strides || reach == *elements;
}

static bool is_replica(const tsr_extent *extent)
{
    const tsr_entry *entry = extent->entry;
    return entry->replica_count && extent->chunk >= entry->replicas &&
           extent->chunk < entry->replicas + entry->replica_count;
}

/* Finds the byte range of the numbers to scan, relative to the extent. TSR_DTYPE_NONE if there are none. */
static tsr_dtype scan_range(check *c, const tsr_extent *extent, uint64_t *from, uint64_t *to)
{
    *from = *to = 0;
    const tsr_entry *entry = extent->entry;
    const tsr_dtype part = entry && extent->chunk ? tsr_dtype_part(entry->dtype) : TSR_DTYPE_NONE;
    uint64_t elements, bytes;
    if (!is_scanned(part) || is_replica(extent)) return TSR_DTYPE_NONE;
    if (entry->per_rank) { /* one rank's tensor, which is the whole extent */
        *to = extent->byte_length;
        return part;
    }
    const bool simple = !extent->view.zstd && !(extent->view.swap && tsr_dtype_describe(part)->swap_bytes > 1);
    if (!simple || !is_dense(extent, &elements)) {
        c->tallies[entry - tsr_checkpoint_catalog(c->checkpoint)->entries].gather = true;
        return TSR_DTYPE_NONE;
    }
    if (!tsr_dtype_bytes(entry->dtype, elements, &bytes) || extent->view.byte_offset < extent->byte_offset)
        return TSR_DTYPE_NONE;
    *from = extent->view.byte_offset - extent->byte_offset;
    if (*from > extent->byte_length || bytes > extent->byte_length - *from) return TSR_DTYPE_NONE;
    *to = *from + bytes;
    return part;
}

/* A part of an extent that becomes a piece of this rank. */
typedef struct part {
    uint64_t at, end; /* bytes of the extent */
    tsr_dtype scan;
    uint64_t scan_from, scan_to;
    bool first, last, partial;
} part;

static tsr_status add_piece(check *c, const tsr_extent *extent, const part *n, tsr_error *err)
{
    void *job;
    uint8_t *memory;
    const size_t slice = n->end - n->at < SLICE_BYTES ? (size_t)(n->end - n->at) : SLICE_BYTES;
    TSR_TRY(tsr_ring_job(c->ring, slice + TSR_COPY_SLACK, &job, &memory, err));
    piece *p = job;
    p->file = extent->file;
    p->byte_offset = extent->byte_offset + n->at;
    p->memory = memory;
    p->size = (size_t)(n->end - n->at);
    p->first = n->first;
    p->last = n->last;
    p->partial = n->partial;
    p->ends = n->end == extent->byte_length;
    p->has_crc = extent->has_crc;
    p->expected_crc = extent->crc32;
    p->extent_offset = extent->byte_offset;
    p->extent_number = c->extents;
    const uint64_t low = n->scan_from > n->at ? n->scan_from : n->at, high = n->scan_to < n->end ? n->scan_to : n->end;
    if (n->scan != TSR_DTYPE_NONE && low < high) {
        p->scan = n->scan;
        p->scan_from = (size_t)(low - n->at);
        p->scan_to = (size_t)(high - n->at);
        p->tally = &c->tallies[extent->entry - tsr_checkpoint_catalog(c->checkpoint)->entries];
    }
    if (extent->entry) p->fqn = extent->entry->fqn;
    p->member_size = extent->member.size < MEMBER_CHARS ? extent->member.size : MEMBER_CHARS;
    if (p->member_size) memcpy(p->member, extent->member.data, p->member_size);
    return TSR_OK;
}

static bool is_mine(const check *c, const tsr_extent *extent, uint64_t at)
{
    const uint64_t from = c->walked ? extent->byte_offset - extent->before : extent->byte_offset + at;
    return tsr_share_owner(&c->share, extent->file, from) == c->share.comm->rank;
}

/* Items of others are skipped where nothing but this rank's own items is walked. Extents are numbered so that those of an item
 * have the same numbers whoever skips other items. */
static tsr_status take_item(check *c, const tsr_extent *item, tsr_error *err)
{
    if (c->walked) TSR_TRY(tsr_share_order(c->walked, c->extents, err));
    c->extents = ((c->extents >> ITEM_BITS) + 1) << ITEM_BITS;
    *item->skips = c->walked && !is_mine(c, item, 0);
    return TSR_OK;
}

/* Splits an extent at the same positions on every rank. Each rank reads the parts that begin in its share. */
static tsr_status take_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    check *c = ctx;
    part n = {.at = 0};
    if (extent->skips) return take_item(c, extent, err);
    n.scan = scan_range(c, extent, &n.scan_from, &n.scan_to);
    const uint64_t most = c->most;
    const uint64_t head = most + (n.scan == TSR_DTYPE_NONE ? 0 : n.scan_from % tsr_dtype_size(n.scan));
    const uint64_t length = extent->byte_length;
    const uint64_t tail = length <= head ? 0 : head + (length - head - 1) / most * most; /* where the last part begins */
    bool before = false;
    n.partial = !is_mine(c, extent, 0) || !is_mine(c, extent, tail);
    c->extents++;
    for (;; n.at = n.end) {
        n.end = n.at == tail ? length : n.at + (n.at == 0 ? head : most);
        const bool mine = is_mine(c, extent, n.at);
        n.first = mine && !before;
        n.last = mine && (n.at == tail || !is_mine(c, extent, n.end));
        if (mine) TSR_TRY(add_piece(c, extent, &n, err));
        before = mine;
        if (n.at == tail) return TSR_OK;
    }
}

/* ---- extents that several ranks read parts of ---- */

/* A `partial` in the form in which it is sent. */
typedef struct sent_partial {
    uint64_t number, crc_bytes;
    uint32_t crc, damaged;
} sent_partial;

/* Combines all ranks' parts of one extent, in order. Returns the CRC of the whole extent. *sound_before is set if all parts
 * of the ranks before `mine` could be read, *sound if all parts could. */
static uint32_t join_parts(const tsr_comm_blobs *all, uint64_t number, uint32_t mine, bool *sound_before, bool *sound)
{
    uint32_t crc = 0;
    *sound_before = *sound = true;
    for (uint32_t r = 0; r < all->count; r++) {
        sent_partial s;
        for (size_t at = 0; at < all->blobs[r].size; at += sizeof s) {
            memcpy(&s, all->blobs[r].data + at, sizeof s);
            if (s.number != number) continue;
            crc = tsr_crc32_join(crc, s.crc, s.crc_bytes);
            if (s.damaged) *sound = false;
            if (s.damaged && r < mine) *sound_before = false;
        }
    }
    return crc;
}

/* An error is reported by the first rank that could not read its part. If there is none, the rank that read the end of the
 * extent checks the CRC. */
static tsr_status judge_partials(check *c, const tsr_comm_blobs *all, tsr_error *err)
{
    for (size_t i = 0; i < c->partials.count; i++) {
        const partial *own = (const partial *)c->partials.items + i;
        bool sound_before, sound;
        const uint32_t crc = join_parts(all, own->last.extent_number, c->share.comm->rank, &sound_before, &sound);
        if (own->damaged && sound_before) TSR_TRY(finding_of(c, place_of_piece(c, &own->last), &own->damage, err));
        if (own->last.ends && sound) TSR_TRY(judge(c, &own->last, crc, err));
        TSR_TRY(tsr_share_order(&c->share, own->last.extent_number, err));
    }
    return TSR_OK;
}

static tsr_status list_partials(const check *c, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; i < c->partials.count; i++) {
        const partial *own = (const partial *)c->partials.items + i;
        const sent_partial s = {own->last.extent_number, own->crc_bytes, own->crc, own->damaged};
        TSR_TRY(tsr_vec_append(out, &s, sizeof s, err));
    }
    return TSR_OK;
}

/* The counts of an entry in the form in which they are sent. */
typedef struct sent_tally {
    uint64_t entry, gather;
    counts counts;
} sent_tally;

tsr_status tsr_deep_list_tallies(const check *c, tsr_vec *out, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++) {
        const sent_tally s = {i, c->tallies[i].gather, c->tallies[i].counts};
        if (s.gather || s.counts.nan || s.counts.inf || s.counts.odd) TSR_TRY(tsr_vec_append(out, &s, sizeof s, err));
    }
    return TSR_OK;
}

tsr_status tsr_deep_add_tallies(check *c, tsr_str sent, tsr_error *err)
{
    const uint64_t count = tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    sent_tally s;
    for (size_t at = 0; at < sent.size; at += sizeof s) {
        if (sent.size - at >= sizeof s) memcpy(&s, sent.data + at, sizeof s);
        TSR_FAIL_IF(sent.size - at < sizeof s || s.entry >= count, err, TSR_E_USAGE,
                    "these are not the results of a deep check");
        c->tallies[s.entry].gather |= s.gather != 0;
        add_counts(&c->tallies[s.entry].counts, &s.counts);
    }
    return TSR_OK;
}

/* Adds up the counts of all ranks, including this one. */
static tsr_status sum_tallies(check *c, const tsr_comm_blobs *all, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++) c->tallies[i].counts = (counts){0};
    return tsr_deep_add_tallies(c, (tsr_str){all->bytes, all->byte_count}, err);
}

/* Collective: every rank lists its items, and then looks at those of all ranks. */
static tsr_status exchange(check *c, tsr_status (*list)(const check *c, tsr_vec *out, tsr_error *err),
                           tsr_status (*look)(check *c, const tsr_comm_blobs *all, tsr_error *err), tsr_error *err)
{
    tsr_comm_blobs all = {0};
    tsr_vec out = tsr_vec_of(c->share.allocator, 1);
    tsr_status status = tsr_share_agree(&c->share, list(c, &out, err), err);
    if (status == TSR_OK)
        status = tsr_comm_gather_blobs((tsr_ranks){c->share.comm, c->share.allocator}, (tsr_str){out.items, out.count}, &all,
                                       err);
    if (status == TSR_OK) status = tsr_share_agree(&c->share, look(c, &all, err), err);
    tsr_comm_blobs_free(&all);
    tsr_vec_free(&out);
    return status;
}

/* ---- second pass: values that must be gathered ---- */

typedef struct scan_job {
    tsr_tile tile; /* first */
    counts counts;
} scan_job;

static tsr_status fill_scan(void *ctx, void *job, tsr_error *err)
{
    (void)ctx;
    scan_job *s = job;
    TSR_TRY(tsr_tile_fill(&s->tile, err));
    const tsr_host *host = tsr_checkpoint_host(s->tile.gather->checkpoint);
    count_values(host, tsr_dtype_part(s->tile.gather->dtype), s->tile.data, s->tile.bytes, &s->counts);
    return TSR_OK;
}

static tsr_status drain_scan(void *ctx, void *job, tsr_error *err)
{
    (void)err;
    add_counts(&((tally *)ctx)->counts, &((scan_job *)job)->counts);
    return TSR_OK;
}

static tsr_status scan_gather(check *c, const tsr_entry *entry, tally *t, tsr_error *err)
{
    tsr_gather *gather;
    tsr_error failure = {0};
    *t = (tally){{0}, false, false};
    tsr_status status = tsr_gather_open(c->checkpoint, entry, NULL, &gather, &failure);
    if (status == TSR_OK) {
        const tsr_ring_work work = {.job_size = sizeof(scan_job), .fill = fill_scan, .drain = drain_scan, .ctx = t};
        status = tsr_ring_begin(c->ring, &work, &failure);
        if (status == TSR_OK) status = tsr_tiles_run(gather, c->ring, &failure);
        tsr_gather_close(gather);
    }
    if (status == TSR_OK) return TSR_OK;
    return finding_of(c, (tsr_place){{NULL, 0}, TSR_NO_POSITION, entry->fqn}, &failure, err);
}

/* ---- replicas ---- */

static tsr_status check_replica(check *c, const tsr_gather *chunks, const tsr_chunk *replica, tsr_error *err)
{
    tsr_difference difference = {0};
    tsr_error failure = {0};
    const tsr_place place = place_of(c, replica->file, replica->byte_offset, chunks->entry->fqn);
    if (replica->file == TSR_NO_FILE) return TSR_OK;           /* a finding since the checkpoint was opened */
    if (replica->byte_length > c->replica_room) return TSR_OK; /* overlaps replicas that were compared already */
    c->replica_room -= replica->byte_length;
    if (tsr_compare_copy(chunks, replica, c->ring, &difference, &failure) != TSR_OK)
        return finding_of(c, place, &failure, err);
    if (difference.differing == 0) return TSR_OK;
    return tsr_finding_add(c->share.found, "layout/replica-differs", place, err,
                           "%llu of %llu elements differ from the first copy", (unsigned long long)difference.differing,
                           (unsigned long long)difference.elements);
}

static tsr_status check_replicas(check *c, const tsr_entry *entry, tsr_error *err)
{
    tsr_gather *chunks;
    tsr_error failure = {0};
    if (tsr_gather_open(c->checkpoint, entry, NULL, &chunks, &failure) != TSR_OK) {
        return finding_of(c, (tsr_place){{NULL, 0}, TSR_NO_POSITION, entry->fqn}, &failure, err);
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < entry->replica_count && status == TSR_OK; i++) {
        status = check_replica(c, chunks, &entry->replicas[i], err);
    }
    tsr_gather_close(chunks);
    return status;
}

/* ---- the whole check ---- */

static tsr_status report_values(check *c, const tsr_entry *entry, const tally *t, tsr_error *err)
{
    const tsr_place place = {{NULL, 0}, TSR_NO_POSITION, entry->fqn};
    const counts *n = &t->counts;
    if (n->odd)
        TSR_TRY(tsr_finding_add(c->share.found, "values/bool", place, err, "%llu bytes are neither 0 nor 1",
                                (unsigned long long)n->odd));
    if (n->nan == 0 && n->inf == 0) return TSR_OK;
    return tsr_finding_add(c->share.found, "values/nan", place, err, "%llu NaN and %llu infinite values",
                           (unsigned long long)n->nan, (unsigned long long)n->inf);
}

static tsr_status report_repeats(check *c, const tsr_entry *entry, tsr_error *err)
{
    uint64_t bytes = 0;
    if (!tsr_entry_bytes(entry, &bytes)) bytes = UINT64_MAX;
    return tsr_finding_add(c->share.found, "limits/expansion", (tsr_place){{NULL, 0}, TSR_NO_POSITION, entry->fqn}, err,
                           "'%.*s' repeats stored elements more than %u times, as %llu bytes in all; the stored bytes were "
                           "read, but not every value",
                           TSR_STR_ARG(entry->fqn), TSR_REPEATS_MOST, (unsigned long long)bytes);
}

static tsr_status report_overlap(check *c, const tsr_entry *entry, tsr_error *err)
{
    return tsr_finding_add(c->share.found, "limits/expansion", (tsr_place){{NULL, 0}, TSR_NO_POSITION, entry->fqn}, err,
                           "'%.*s' and other tensors overlap and expand to more than %u times their stored bytes; the "
                           "stored bytes were read, but not every value",
                           TSR_STR_ARG(entry->fqn), TSR_REPEATS_MOST);
}

static tsr_status check_entry(check *c, const tsr_entry *entry, tally *t, tsr_error *err)
{
    if (t->gather && c->overlapping && !t->repeats) {
        t->gather = false;
        TSR_TRY(report_overlap(c, entry, err));
    }
    if (t->repeats) {
        TSR_TRY(report_repeats(c, entry, err));
        return report_values(c, entry, t, err); /* for chunks that were scanned in place */
    }
    if (t->gather) TSR_TRY(scan_gather(c, entry, t, err));
    TSR_TRY(report_values(c, entry, t, err));
    return entry->kind == TSR_ENTRY_TENSOR && entry->replica_count ? check_replicas(c, entry, err) : TSR_OK;
}

/* The cost of an entry after the first pass. */
static uint64_t cost_of(const tsr_entry *entry, const tally *t)
{
    uint64_t bytes = 0, cost;
    if (entry->kind != TSR_ENTRY_TENSOR || t->repeats || (!t->gather && !entry->replica_count)) return 1;
    if (tsr_tensor_bytes(entry, &bytes, NULL) != TSR_OK) return 1;
    return tsr_mul_u64(bytes, (uint64_t)t->gather + 2 * entry->replica_count, &cost) && cost < UINT64_MAX / 2 ? cost + 1
                                                                                                              : bytes;
}

/* Marks entries whose elements would take too long to visit: all that repeat stored elements, if together they repeat too
 * many. */
static tsr_status mark_repeats(check *c, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c->checkpoint);
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_error failure = {0};
    tsr_repeats_open(&repeats, c->checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        status = tsr_repeats_add(&repeats, entry, NULL, NULL, &c->tallies[i].repeats, &failure);
        /* Other errors are reported later. */
        if (status != TSR_OK && status != TSR_E_NOMEM && status != TSR_E_CANCELLED) status = TSR_OK;
    }
    const bool many = status == TSR_OK && tsr_repeats_too_many(&repeats);
    for (uint64_t i = 0; i < catalog->entry_count; i++) c->tallies[i].repeats = many && c->tallies[i].repeats;
    c->overlapping = many && repeats.repeated <= tsr_checkpoint_host(c->checkpoint)->limits.repetition;
    tsr_repeats_close(&repeats);
    return status == TSR_OK ? TSR_OK : tsr_raise(err, status, failure.byte_position, "%s", failure.message);
}

tsr_status tsr_deep_entries(check *c, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c->checkpoint);
    uint64_t total = 0, at = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const uint64_t cost = cost_of(&catalog->entries[i], &c->tallies[i]);
        total = cost < UINT64_MAX - total ? total + cost : UINT64_MAX;
    }
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const uint64_t cost = cost_of(&catalog->entries[i], &c->tallies[i]);
        const uint32_t owner = tsr_share_owner_of_cost(&c->share, at, total);
        at = cost < total - at ? at + cost : total;
        if (owner != c->share.comm->rank) continue;
        TSR_TRY(check_entry(c, &catalog->entries[i], &c->tallies[i], err));
        TSR_TRY(tsr_share_order(&c->share, i, err));
    }
    return TSR_OK;
}

tsr_status tsr_deep_extents(check *c, tsr_error *err)
{
    const uint32_t threads = tsr_checkpoint_host(c->checkpoint)->threads;
    /* Eight pieces per thread and round: with fewer, waiting for the slowest thread takes noticeable time. */
    const size_t enough = 16 * (threads ? threads : 1) * (SLICE_BYTES + TSR_COPY_SLACK);
    const tsr_ring_work work = {
        .job_size = sizeof(piece), .fill = fill_piece, .drain = drain_piece, .ctx = c, .enough = enough};
    TSR_TRY(tsr_ring_begin(c->ring, &work, err));
    TSR_TRY(tsr_ring_reserve(c->ring, enough / 2, err));
    TSR_TRY(tsr_checkpoint_extents(c->checkpoint, take_extent, c, err));
    return tsr_ring_end(c->ring, err);
}

uint64_t tsr_deep_piece(uint64_t best)
{
    return (best - 2 * TSR_COPY_SLACK) / 16 * 16;
}

/* Checks that all ranks see the same files, and agrees on a piece size, which may depend on threads and memory. */
static tsr_status prepare(check *c, tsr_error *err)
{
    const uint64_t seen[] = {tsr_checkpoint_catalog(c->checkpoint)->entry_count, c->share.file_count, c->share.byte_total};
    uint64_t least = UINT64_MAX - tsr_ring_best(c->ring);
    TSR_TRY(tsr_comm_same(c->share.comm, (tsr_str){(const char *)seen, sizeof seen}, "the checkpoint's files", err));
    TSR_TRY(c->share.comm->largest(c->share.comm, &least, err));
    c->most = tsr_deep_piece(UINT64_MAX - least);
    return TSR_OK;
}

static tsr_status run(check *c, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(c->checkpoint);
    const bool alone = c->share.comm->size == 1;
    TSR_TRY(tsr_share_agree(&c->share, tsr_deep_extents(c, err), err));
    if (!alone) TSR_TRY(exchange(c, list_partials, judge_partials, err));
    if (!alone) TSR_TRY(exchange(c, tsr_deep_list_tallies, sum_tallies, err));
    TSR_TRY(tsr_share_merge(&c->share, findings, err));
    TSR_TRY(tsr_share_agree(&c->share, tsr_deep_entries(c, err), err));
    return tsr_share_merge(&c->share, findings, err);
}

tsr_status tsr_deep_open(check *c, tsr_comm *comm, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    c->partials = tsr_vec_of(allocator, sizeof(partial));
    TSR_TRY(tsr_share_open(tsr_checkpoint_store(c->checkpoint), comm, allocator, &c->share, err));
    c->tallies = tsr_alloc(allocator, count, sizeof *c->tallies, err);
    if (!c->tallies) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) c->tallies[i] = (tally){{0}, false, false};
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    for (uint32_t f = 0; f < store->file_count; f++) { /* tied names are each compared; room for 64 of them is plenty */
        uint64_t bytes;
        if (!tsr_mul_u64(store->files[f].size, 64, &bytes) || !tsr_add_u64(c->replica_room, bytes, &c->replica_room))
            c->replica_room = UINT64_MAX;
    }
    return mark_repeats(c, err);
}

void tsr_deep_close(check *c)
{
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    tsr_free(tsr_checkpoint_host(c->checkpoint)->allocator, c->tallies, count, sizeof *c->tallies);
    tsr_vec_free(&c->partials);
    tsr_share_close(&c->share);
}

tsr_status tsr_check_deep_shared(tsr_checkpoint *checkpoint, tsr_comm *comm, tsr_ring *ring, const tsr_progress *progress,
                                 tsr_error *err)
{
    check c = {.checkpoint = checkpoint, .ring = ring, .progress = progress, .share = {.comm = comm}};
    tsr_status status = tsr_share_agree(&c.share, tsr_deep_open(&c, comm, err), err);
    if (status == TSR_OK) status = prepare(&c, err);
    if (status == TSR_OK) status = run(&c, err);
    tsr_deep_close(&c);
    return status;
}
