/* The first pass of a deep check, which reads every byte once, in file order. An extent (a zip member, a tensor's bytes) is
 * split into pieces, which threads read, checksum and scan. The CRCs of the pieces are combined in order.
 *
 *   file:   … | member data/0 ··················· | …
 *             [piece 0      ][piece 1      ][pc 2]        boundaries at whole elements of the tensor inside */

#include "base/cursor.h"
#include "check/check_share.h"
#include "formats/common/end_sum.h"
#include "formats/common/reader.h"
#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

#define MEMBER_CHARS 96u
#define ITEM_BITS    32 /* of an extent's number: which one of its item it is */
#define PIECE_BYTES  ((size_t)256 << 10)
#define SLICE_BYTES  ((size_t)128 << 10) /* small enough to stay in the cache while it is read, checksummed and scanned */

/* Pieces per thread and round. At the end of a round, threads wait for the slowest one, which takes noticeable time if rounds are short. Where
 * a store fetches ahead, the walk must not be beyond what it fetches when the first piece is read. */
enum { JOBS = 64, SCHEDULED_JOBS = 8 };

typedef tsr_deep_counts counts;
typedef tsr_deep_tally tally;
typedef tsr_deep check;

typedef struct piece {
    uint32_t file;
    uint64_t byte_offset;
    size_t size;
    bool first, last; /* of the pieces of the extent or its sum that this rank reads */
    bool partial;     /* this rank does not read all of these pieces, */
    bool ends;        /* but it reads the end */
    bool has_crc;
    tsr_extent_covers covers;
    bool has_sum;
    uint32_t expected_crc; /* of the whole extent */
    tsr_file_sum sum;      /* with has_sum */
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

/* ---- the state of the check: findings and counts of values, which both passes add to ---- */

/* The counts of an entry in the form in which they are sent. */
typedef struct sent_tally {
    uint64_t entry, gather;
    tsr_deep_counts counts;
} sent_tally;

/* Appends the counts of all entries that have some, in the form in which they are sent. */
static tsr_status deep_list_tallies(const tsr_deep *c, tsr_vec *out, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++) {
        const sent_tally s = {i, c->tallies[i].gather, c->tallies[i].counts};
        if (s.gather || s.counts.nan || s.counts.inf || s.counts.odd) TSR_TRY(tsr_vec_append(out, &s, sizeof s, err));
    }
    return TSR_OK;
}

/* Adds counts that were sent. TSR_E_USAGE if they are not of this checkpoint. */
static tsr_status deep_add_tallies(tsr_deep *c, tsr_str sent, tsr_error *err)
{
    const uint64_t count = tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    sent_tally s;
    for (size_t at = 0; at < sent.size; at += sizeof s) {
        if (sent.size - at >= sizeof s) memcpy(&s, sent.data + at, sizeof s);
        TSR_FAIL_IF(sent.size - at < sizeof s || s.entry >= count, err, TSR_E_USAGE,
                    "these are not the results of a deep check");
        c->tallies[s.entry].gather |= s.gather != 0;
        tsr_deep_counts_add(&c->tallies[s.entry].counts, &s.counts);
    }
    return TSR_OK;
}

/* Marks entries whose elements would take too long to visit: all that repeat stored elements, if together they repeat too
 * many. */
static tsr_status mark_repeats(tsr_deep *c, tsr_error *err)
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
        if (tsr_may_be_finding(status)) status = TSR_OK;
    }
    const bool many = status == TSR_OK && tsr_repeats_too_many(&repeats);
    for (uint64_t i = 0; i < catalog->entry_count; i++) c->tallies[i].repeats = many && c->tallies[i].repeats;
    c->overlapping = many && repeats.repeated <= tsr_checkpoint_host(c->checkpoint)->limits.repetition;
    tsr_repeats_close(&repeats);
    return status == TSR_OK ? TSR_OK : tsr_raise_again(err, status, &failure);
}

/* `c` has the checkpoint, the ring and perhaps `progress` and `walked`; the rest is zero. Must be closed even if this fails. */
static tsr_status deep_open(tsr_deep *c, tsr_comm *comm, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    TSR_TRY(tsr_share_open(tsr_checkpoint_store(c->checkpoint), comm, allocator, &c->share, err));
    c->tallies = tsr_alloc(allocator, count, sizeof *c->tallies, err);
    if (!c->tallies) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) c->tallies[i] = (tsr_deep_tally){{0}, false, false};
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    for (uint32_t f = 0; f < store->file_count; f++) { /* tied names are each compared; room for 64 of them is plenty */
        uint64_t bytes;
        if (!tsr_mul_u64(store->files[f].size, 64, &bytes) || !tsr_add_u64(c->replica_room, bytes, &c->replica_room))
            c->replica_room = UINT64_MAX;
    }
    return mark_repeats(c, err);
}

static void deep_close(tsr_deep *c)
{
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    tsr_free(tsr_checkpoint_host(c->checkpoint)->allocator, c->tallies, count, sizeof *c->tallies);
    tsr_vec_free(&c->partials);
    tsr_share_close(&c->share);
}

/* ---- pieces ---- */

/* Where the slice that begins at `at` ends: after a whole number of elements. */
static size_t slice_end(const check *c, const piece *p, size_t at)
{
    if (p->size - at <= c->slice) return p->size;
    size_t end = at + c->slice;
    if (end > p->scan_from && end < p->scan_to) end -= (end - p->scan_from) % 16;
    return end;
}

/* `lent` has room for a slice. All pieces of a thread use the same memory, which stays in its cache. */
static tsr_status fill_piece(void *ctx, void *job, uint8_t *lent, tsr_error *err)
{
    (void)err;
    const check *c = ctx;
    const tsr_host *host = tsr_checkpoint_host(c->checkpoint);
    piece *p = job;
    /* Not when the piece is added: what a reader has passed is not fetched ahead. */
    tsr_store_expect(c->scheduled, p->file, p->byte_offset, p->size);
    for (size_t at = 0, end; at < p->size; at = end) {
        end = slice_end(c, p, at);
        uint8_t *data = tsr_place_for_copy(lent, p->byte_offset + at, TSR_NO_POSITION);
        tsr_store *store = tsr_checkpoint_store(c->checkpoint);
        if (tsr_store_read(store, p->file, p->byte_offset + at, data, end - at, &p->failure) != TSR_OK) return TSR_OK;
        if (p->has_crc || p->has_sum) p->crc = tsr_crc32(host, p->crc, data, end - at);
        const size_t low = p->scan_from > at ? p->scan_from : at, high = p->scan_to < end ? p->scan_to : end;
        if (p->scan != TSR_DTYPE_NONE && low < high)
            tsr_deep_count(host, p->scan, data + (low - at), high - low, &p->counts);
    }
    return TSR_OK;
}

/* The result for an extent, or the extents of a sum, of which this rank read only a part. */
typedef struct partial {
    piece last; /* the last of its pieces */
    tsr_deep_run run;
} partial;

static tsr_place place_of_piece(const check *c, const piece *p)
{
    return tsr_deep_place(c, p->file, p->extent_offset, p->fqn);
}

/* Compares a file's checksum with that of the bytes that its extents cover. */
static tsr_status judge_sum(check *c, const tsr_file_sum *sum, uint32_t crc, tsr_error *err)
{
    const tsr_place place = tsr_deep_place(c, sum->file, sum->position, (tsr_str){NULL, 0});
    const uint32_t all = tsr_crc32_join(sum->before, crc, sum->byte_length);
    if ((all == sum->crc32) != (sum->is_misspelt != 0)) return TSR_OK;
    if (sum->is_misspelt)
        return tsr_finding_add(c->share.found, "safetensors/crc", place, err,
                               "the key of the file's checksum is damaged: it should be tessera.crc32, with which the bytes "
                               "have the CRC-32 %08x that follows it",
                               (unsigned)all);
    return tsr_finding_add(c->share.found, "safetensors/crc", place, err,
                           "the bytes of the file have CRC-32 %08x, but its header states %08x", (unsigned)all,
                           (unsigned)sum->crc32);
}

static tsr_status judge(check *c, const piece *p, uint32_t crc, tsr_error *err)
{
    if (p->has_sum) return judge_sum(c, &p->sum, crc, err);
    if (!p->has_crc || crc == p->expected_crc) return TSR_OK;
    if (p->covers == TSR_COVERS_FILE) return tsr_deep_judge_file(c, place_of_piece(c, p), crc, p->expected_crc, err);
    if (p->covers == TSR_COVERS_AROUND)
        return tsr_finding_add(
            c->share.found, "zip/around-members", place_of_piece(c, p), err,
            "the bytes before '%.*s' are not those that PyTorch and Tessera write between the members of an archive",
            (int)p->member_size, p->member);
    return tsr_finding_add(c->share.found, "zip/crc", place_of_piece(c, p), err,
                           "the bytes of member '%.*s' have CRC-32 %08x, but the archive states %08x", (int)p->member_size,
                           p->member, (unsigned)crc, (unsigned)p->expected_crc);
}

/* Called when all pieces of an extent, or of a sum, that this rank reads have been drained. */
static tsr_status end_run(check *c, const piece *p, const tsr_deep_run *run, tsr_error *err)
{
    if (p->partial) {
        partial *own = tsr_vec_push(&c->partials, err);
        if (!own) return TSR_E_NOMEM;
        *own = (partial){*p, *run};
        return p->has_sum ? tsr_share_order(&c->share, p->extent_number, err) : TSR_OK;
    }
    if (!run->damaged) TSR_TRY(judge(c, p, run->crc, err));
    else if (!p->has_sum) TSR_TRY(tsr_deep_failure(c, place_of_piece(c, p), &run->damage, err));
    return tsr_share_order(&c->share, p->extent_number, err);
}

/* Extents of a sum report themselves that they cannot be read. */
static tsr_status note_failure(check *c, const piece *p, tsr_deep_run *run, tsr_error *err)
{
    const bool is_new = !run->damaged || run->damaged_at != p->extent_offset;
    if (!run->damaged) run->damage = p->failure;
    run->damaged = true;
    run->damaged_at = p->extent_offset;
    return is_new && p->has_sum ? tsr_deep_failure(c, place_of_piece(c, p), &p->failure, err) : TSR_OK;
}

/* Reports that so many bytes of this rank's share of all files were read. Those of headers are not, so the last report is made when all is done. */
static tsr_status report(const check *c, uint64_t byte_done, tsr_error *err)
{
    const tsr_progress *progress = c->progress;
    const uint64_t byte_total = c->share.byte_total / c->share.comm->size;
    if (byte_done > byte_total) byte_done = byte_total;
    const bool goes_on = !progress || !progress->step || progress->step(progress->ctx, byte_done, byte_total);
    return goes_on ? TSR_OK : tsr_fail(err, TSR_E_CANCELLED, "the check was cancelled");
}

static tsr_status drain_piece(void *ctx, void *job, tsr_error *err)
{
    check *c = ctx;
    const piece *p = job;
    tsr_deep_run *run = p->has_sum ? &c->sum : &c->extent;
    if (p->first) *run = (tsr_deep_run){.crc = 0};
    c->byte_done += p->size;
    TSR_TRY(report(c, c->byte_done, err));
    if (p->failure.status != TSR_OK) TSR_TRY(note_failure(c, p, run, err));
    else if (p->tally) tsr_deep_counts_add(&p->tally->counts, &p->counts);
    run->crc = tsr_crc32_join(run->crc, p->crc, p->size);
    run->crc_bytes += p->size;
    return p->last ? end_run(c, p, run, err) : TSR_OK;
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
    if (!(tsr_float_form_of(part) || part == TSR_BOOL) || is_replica(extent)) return TSR_DTYPE_NONE;
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
typedef struct stretch {
    uint64_t at, end; /* bytes of the extent */
    tsr_dtype scan;
    uint64_t scan_from, scan_to;
    bool first, last, partial;
} stretch;

static tsr_status add_piece(check *c, const tsr_extent *extent, const stretch *n, tsr_error *err)
{
    void *job;
    uint8_t *unused;
    const size_t slice = n->end - n->at < c->slice ? (size_t)(n->end - n->at) : c->slice;
    TSR_TRY(tsr_ring_lent_job(c->ring, 0, slice + TSR_COPY_SLACK, &job, &unused, err));
    piece *p = job;
    p->file = extent->file;
    p->byte_offset = extent->byte_offset + n->at;
    p->size = (size_t)(n->end - n->at);
    p->first = n->first;
    p->last = n->last;
    p->partial = n->partial;
    p->ends = n->end == extent->byte_length && (!extent->sum || extent->ends);
    p->has_crc = extent->has_crc;
    p->covers = extent->covers;
    p->has_sum = extent->sum != NULL;
    p->expected_crc = extent->crc32;
    if (extent->sum) p->sum = *extent->sum;
    p->extent_offset = extent->byte_offset;
    p->extent_number = extent->sum ? c->sum_number : c->extents;
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

/* The rank whose share contains this byte. */
static uint32_t owner_of(const tsr_share *share, uint32_t file, uint64_t byte_offset)
{
    uint64_t at = file < share->file_count ? share->file_starts[file] : 0;
    at = byte_offset < share->byte_total - at ? at + byte_offset : share->byte_total;
    return (uint32_t)(at / share->byte_step);
}

static bool is_mine(const check *c, const tsr_extent *extent, uint64_t at)
{
    const uint64_t from = c->walked ? extent->byte_offset - extent->before : extent->byte_offset + at;
    return owner_of(&c->share, extent->file, from) == c->share.comm->rank;
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

static bool owns(const check *c, uint32_t file, uint64_t byte_offset)
{
    return owner_of(&c->share, file, byte_offset) == c->share.comm->rank;
}

/* Whether this rank reads something before or after pieces that it reads of a sum. */
static bool shares_sum(const check *c, const tsr_file_sum *sum)
{
    return !owns(c, sum->file, sum->byte_offset) || !owns(c, sum->file, sum->byte_offset + sum->byte_length);
}

/* Splits an extent at the same positions on every rank. Each rank reads the parts that begin in its share. */
static tsr_status take_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    check *c = ctx;
    stretch n = {.at = 0};
    if (extent->skips) return take_item(c, extent, err);
    n.scan = scan_range(c, extent, &n.scan_from, &n.scan_to);
    const uint64_t most = c->most;
    const uint64_t head = most + (n.scan == TSR_DTYPE_NONE ? 0 : n.scan_from % tsr_dtype_size(n.scan));
    const uint64_t length = extent->byte_length;
    const uint64_t tail = length <= head ? 0 : head + (length - head - 1) / most * most; /* where the last part begins */
    const bool begins = !extent->sum || !c->in_sum;
    bool before = begins ? false : c->mine_before;
    n.partial = extent->sum ? shares_sum(c, extent->sum) : !is_mine(c, extent, 0) || !is_mine(c, extent, tail);
    c->extents++;
    if (extent->sum && begins) c->sum_number = c->extents;
    if (extent->sum) c->in_sum = !extent->ends;
    for (;; n.at = n.end) {
        n.end = n.at == tail ? length : n.at + (n.at == 0 ? head : most);
        const bool mine = is_mine(c, extent, n.at);
        const bool last = n.at == tail && (!extent->sum || extent->ends);
        n.first = mine && !before;
        n.last = mine &&
                 (last || !(n.at == tail ? owns(c, extent->file, extent->byte_offset + length) : is_mine(c, extent, n.end)));
        if (mine) TSR_TRY(add_piece(c, extent, &n, err));
        before = mine;
        if (extent->sum) c->mine_before = before;
        if (n.at == tail) return TSR_OK;
    }
}

/* Announces the bytes of this rank's share to a store whose every read is a request: which files are read, and in what order, is known. */
static tsr_status announce(check *c, tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    const tsr_share *s = &c->share;
    const uint64_t from = s->byte_step * s->comm->rank, to = from + s->byte_step;
    const uint32_t files = s->file_count;
    if (!tsr_store_takes_schedules(store) || !files) return TSR_OK;
    tsr_store_place *places = tsr_alloc(s->allocator, files, sizeof *places, err);
    bool *used = tsr_alloc(s->allocator, files, sizeof *used, err);
    size_t count = 0;
    if (places && used) memset(used, 0, files * sizeof *used);
    if (places && used) tsr_checkpoint_used_files(c->checkpoint, used);
    for (uint32_t f = 0; places && used && f < files; f++) {
        const uint64_t begin = s->file_starts[f], end = begin + store->files[f].size;
        const uint64_t low = begin > from ? begin : from, high = end < to ? end : to;
        if (used[f] && low < high) places[count++] = (tsr_store_place){f, low - begin, high - low};
    }
    const tsr_status status = places && used ? store->schedule(store, places, count, err) : TSR_E_NOMEM;
    if (status == TSR_OK) c->scheduled = store;
    tsr_free(s->allocator, places, files, sizeof *places);
    tsr_free(s->allocator, used, files, sizeof *used);
    return status;
}

/* Documents that end with a checksum: an index, Megatron's metadata.json, and objects that a conversion wrote next to the tensors. */
static tsr_status take_documents(check *c, tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    for (uint32_t f = 0; f < store->file_count; f++)
        if (f == store->primary || tsr_str_ends(store->files[f].name, TSR_STR(".json")))
            TSR_TRY(tsr_end_sum_extent(store, f, take_extent, c, err));
    return TSR_OK;
}

static tsr_status read_extents(check *c, const tsr_ring_work *work, tsr_error *err)
{
    TSR_TRY(tsr_ring_begin(c->ring, work, err));
    const size_t most = tsr_ring_largest(c->ring) - TSR_COPY_SLACK;
    c->slice = most < SLICE_BYTES ? most : SLICE_BYTES;
    TSR_TRY(take_documents(c, err));
    TSR_TRY(tsr_checkpoint_extents(c->checkpoint, take_extent, c, err));
    return tsr_ring_end(c->ring, err);
}

/* Reads the extents in this rank's share, and counts their values in `tallies`. */
static tsr_status deep_extents(check *c, tsr_error *err)
{
    tsr_ring_work work = {.job_size = sizeof(piece), .fill_lent = fill_piece, .drain = drain_piece, .ctx = c};
    c->partials = tsr_vec_of(c->share.allocator, sizeof(partial));
    TSR_TRY(announce(c, err));
    work.most_jobs = tsr_threads(c->checkpoint->given_host) * (c->scheduled ? SCHEDULED_JOBS : JOBS);
    tsr_error ending = {0};
    tsr_status status = read_extents(c, &work, err);
    if (c->scheduled && tsr_store_takes_schedules(c->scheduled))
        (void)c->scheduled->schedule(c->scheduled, NULL, 0, &ending); /* which frees memory, and cannot fail */
    c->scheduled = NULL;
    return status == TSR_OK ? report(c, UINT64_MAX, err) : status;
}

/* The largest piece, where a buffer of the ring has `best` bytes. At the end of a round threads wait for the last one. */
static uint64_t deep_piece(uint64_t best)
{
    return ((best < PIECE_BYTES ? best : PIECE_BYTES) - 2 * TSR_COPY_SLACK) / 16 * 16;
}

/* ---- extents that several ranks read parts of ---- */

/* A `partial` in the form in which it is sent. */
typedef struct sent_partial {
    uint64_t number, crc_bytes;
    tsr_file_sum sum; /* with has_sum */
    uint32_t crc;
    uint8_t damaged, ends, has_sum, unused;
} sent_partial;

/* Combines all ranks' parts of one extent or sum, in order. Returns the CRC of all of it. *sound_before is set if all parts of
 * the ranks before `mine` could be read, *sound if all parts could. */
static uint32_t join_parts(const tsr_str *blobs, size_t count, uint64_t number, size_t mine, bool *sound_before, bool *sound)
{
    uint32_t crc = 0;
    *sound_before = *sound = true;
    for (size_t r = 0; r < count; r++) {
        sent_partial s;
        for (size_t at = 0; at < blobs[r].size; at += sizeof s) {
            memcpy(&s, blobs[r].data + at, sizeof s);
            if (s.number != number) continue;
            crc = tsr_crc32_join(crc, s.crc, s.crc_bytes);
            if (s.damaged) *sound = false;
            if (s.damaged && r < mine) *sound_before = false;
        }
    }
    return crc;
}

/* Judges those extents from what all ranks have sent. An error is reported by the first rank that could not read its part. If
 * there is none, the rank that read the end of the extent checks the CRC. */
static tsr_status deep_judge_partials(check *c, const tsr_comm_blobs *all, tsr_error *err)
{
    for (size_t i = 0; i < c->partials.count; i++) {
        const partial *own = (const partial *)c->partials.items + i;
        bool sound_before, sound;
        const uint32_t crc =
            join_parts(all->blobs, all->count, own->last.extent_number, c->share.comm->rank, &sound_before, &sound);
        if (own->run.damaged && sound_before && !own->last.has_sum)
            TSR_TRY(tsr_deep_failure(c, place_of_piece(c, &own->last), &own->run.damage, err));
        if (own->last.ends && sound) TSR_TRY(judge(c, &own->last, crc, err));
        TSR_TRY(tsr_share_order(&c->share, own->last.extent_number, err));
    }
    return TSR_OK;
}

/* Appends what this rank found of extents that several ranks read parts of, in the form in which it is sent. */
static tsr_status deep_list_partials(const check *c, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; i < c->partials.count; i++) {
        const partial *own = (const partial *)c->partials.items + i;
        sent_partial s;
        memset(&s, 0, sizeof s);
        s.number = own->last.extent_number;
        s.crc_bytes = own->run.crc_bytes;
        s.crc = own->run.crc;
        s.damaged = own->run.damaged;
        s.ends = own->last.ends;
        s.has_sum = own->last.has_sum;
        if (s.has_sum) s.sum = own->last.sum;
        TSR_TRY(tsr_vec_append(out, &s, sizeof s, err));
    }
    return TSR_OK;
}

/* ---- parts ---- */

/* A deep check in parts, for programs that can only send each other messages: each part reads its items and lists what it found,
 * and one program joins the lists. A program that is alone does both with a single part.
 *
 *   a part   | counts of values, by entry | findings of the walk | findings of the bytes | parts of sums |    each after its size */

enum { SECTIONS = 4 };

static tsr_status list_section(const tsr_deep *c, int number, tsr_vec *out, tsr_error *err)
{
    const size_t at = out->count;
    uint64_t size = 0;
    TSR_TRY(tsr_vec_append(out, &size, sizeof size, err));
    if (number == 0) TSR_TRY(deep_list_tallies(c, out, err));
    else if (number == 3) TSR_TRY(deep_list_partials(c, out, err));
    else TSR_TRY(tsr_share_pack(number == 1 ? c->walked : &c->share, out, err));
    size = out->count - at - sizeof size;
    memcpy((char *)out->items + at, &size, sizeof size);
    return TSR_OK;
}

static tsr_status run_part(tsr_deep *c, tsr_check_part part, tsr_vec *out, tsr_error *err)
{
    tsr_comm share = {.rank = part.number, .size = part.count}; /* only states the share; nothing is sent */
    TSR_TRY(deep_open(c, &share, err));
    c->most = deep_piece(tsr_ring_best(c->ring));
    TSR_TRY(deep_extents(c, err));
    TSR_TRY(tsr_share_order(c->walked, c->extents, err));
    for (int i = 0; i < SECTIONS; i++) TSR_TRY(list_section(c, i, out, err));
    return TSR_OK;
}

/* Makes `findings` the list that checks add to, and returns the one that was. The caller owns that one, and the checkpoint the other. */
static tsr_findings *exchange_findings(tsr_checkpoint *checkpoint, tsr_findings *findings)
{
    tsr_findings *before = checkpoint->findings;
    checkpoint->findings = findings;
    return before;
}

static tsr_status take_part(tsr_deep *c, tsr_check_part part, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    tsr_share walked = {.found = tsr_findings_new(allocator, 0, err), .orders = tsr_vec_of(allocator, sizeof(uint64_t))};
    if (!walked.found) return TSR_E_NOMEM;
    tsr_findings *before = exchange_findings(c->checkpoint, walked.found);
    c->walked = &walked;
    const tsr_status status = run_part(c, part, out, err);
    deep_close(c);
    exchange_findings(c->checkpoint, before);
    tsr_findings_free(walked.found);
    tsr_vec_free(&walked.orders);
    return status;
}

tsr_status tsr_check_deep_part(tsr_checkpoint *checkpoint, tsr_check_part part, tsr_ring *ring, tsr_vec *out, tsr_error *err)
{
    return take_part(&(tsr_deep){.checkpoint = checkpoint, .ring = ring}, part, out, err);
}

/* Finds the sections of all parts, ordered by kind: those of part p are at p, count + p, 2 * count + p and so on. */
static tsr_status cut_sections(tsr_str rest, tsr_str *sections, size_t count, tsr_error *err)
{
    for (size_t p = 0; p < count; p++)
        for (size_t i = 0; i < SECTIONS; i++)
            if (!tsr_take_sized(&rest, &sections[i * count + p]) ||
                (i == 3 && sections[i * count + p].size % sizeof(sent_partial)))
                return tsr_fail(err, TSR_E_USAGE, "these are not the results of a deep check");
    return TSR_OK;
}

/* Judges sums that no part has read completely. */
static tsr_status judge_sums(tsr_deep *c, const tsr_str *blobs, size_t count, tsr_error *err)
{
    for (size_t p = 0; p < count; p++) {
        sent_partial s;
        for (size_t at = 0; at < blobs[p].size; at += sizeof s) {
            bool sound_before, sound;
            memcpy(&s, blobs[p].data + at, sizeof s);
            if (!s.ends || !s.has_sum) continue;
            const uint32_t crc = join_parts(blobs, count, s.number, p, &sound_before, &sound);
            if (sound) TSR_TRY(judge_sum(c, &s.sum, crc, err));
            TSR_TRY(tsr_share_order(&c->share, s.number, err));
        }
    }
    return TSR_OK;
}

/* Adds what was found in the bytes, by the parts and in sums, in the order of the extents. */
static tsr_status add_found(tsr_deep *c, const tsr_str *sections, size_t count, tsr_error *err)
{
    const tsr_allocator *allocator = c->share.allocator;
    tsr_findings *later = c->share.found;
    tsr_vec sums = tsr_vec_of(allocator, 1);
    tsr_str *all = tsr_alloc(allocator, count + 1, sizeof *all, err);
    c->share.found = tsr_findings_new(allocator, 0, err);
    tsr_status status = all && c->share.found ? judge_sums(c, sections + 3 * count, count, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_share_pack(&c->share, &sums, err);
    if (status == TSR_OK) {
        memcpy(all, sections + 2 * count, count * sizeof *all);
        all[count] = (tsr_str){sums.items, sums.count};
        status = tsr_share_add(allocator, all, count + 1, tsr_checkpoint_findings(c->checkpoint), err);
    }
    tsr_findings_free(c->share.found);
    c->share.found = later;
    c->share.orders.count = 0;
    tsr_free(allocator, all, count + 1, sizeof *all);
    tsr_vec_free(&sums);
    return status;
}

static tsr_status add_sections(tsr_deep *c, const tsr_str *sections, size_t count, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(c->checkpoint);
    for (size_t p = 0; p < count; p++) TSR_TRY(deep_add_tallies(c, sections[p], err));
    TSR_TRY(tsr_share_add(c->share.allocator, sections + count, count, findings, err));
    return add_found(c, sections, count, err);
}

static tsr_status join_all(tsr_deep *c, tsr_str parts, size_t count, tsr_error *err)
{
    tsr_str *sections = tsr_alloc(c->share.allocator, SECTIONS * count, sizeof *sections, err);
    if (!sections) return TSR_E_NOMEM;
    tsr_status status = cut_sections(parts, sections, count, err);
    if (status == TSR_OK) status = add_sections(c, sections, count, err);
    tsr_free(c->share.allocator, sections, SECTIONS * count, sizeof *sections);
    TSR_TRY(status);
    TSR_TRY(tsr_deep_entries(c, err));
    return tsr_findings_take(tsr_checkpoint_findings(c->checkpoint), c->share.found, err);
}

tsr_status tsr_check_deep_join(tsr_checkpoint *checkpoint, tsr_str parts, size_t count, tsr_ring *ring, tsr_error *err)
{
    tsr_comm alone = {.rank = 0, .size = 1};
    tsr_deep c = {.checkpoint = checkpoint, .ring = ring};
    tsr_status status = deep_open(&c, &alone, err);
    if (status == TSR_OK) status = join_all(&c, parts, count, err);
    deep_close(&c);
    return status;
}

tsr_status tsr_check_deep(tsr_checkpoint *checkpoint, tsr_ring *ring, const tsr_progress *progress, tsr_error *err)
{
    tsr_vec found = tsr_vec_of(tsr_checkpoint_host(checkpoint)->allocator, 1);
    tsr_deep c = {.checkpoint = checkpoint, .ring = ring, .progress = progress};
    tsr_status status = take_part(&c, (tsr_check_part){0, 1}, &found, err);
    if (status == TSR_OK) status = tsr_check_deep_join(checkpoint, (tsr_str){found.items, found.count}, 1, ring, err);
    tsr_vec_free(&found);
    return status;
}

/* ---- shared ---- */

/* A deep check whose work ranks share: the two passes, and what the ranks exchange after each. */

/* Adds up the counts of all ranks, including this one. */
static tsr_status sum_tallies(tsr_deep *c, const tsr_comm_blobs *all, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++)
        c->tallies[i].counts = (tsr_deep_counts){0};
    return deep_add_tallies(c, (tsr_str){all->bytes, all->byte_count}, err);
}

/* Collective: every rank lists its items, and then looks at those of all ranks. */
static tsr_status exchange(tsr_deep *c, tsr_status (*list)(const tsr_deep *c, tsr_vec *out, tsr_error *err),
                           tsr_status (*look)(tsr_deep *c, const tsr_comm_blobs *all, tsr_error *err), tsr_error *err)
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

/* Checks that all ranks see the same files, and agrees on a piece size, which may depend on threads and memory. */
static tsr_status prepare(tsr_deep *c, tsr_error *err)
{
    const uint64_t seen[] = {tsr_checkpoint_catalog(c->checkpoint)->entry_count, c->share.file_count, c->share.byte_total};
    uint64_t least = UINT64_MAX - tsr_ring_best(c->ring);
    TSR_TRY(tsr_comm_same(c->share.comm, (tsr_str){(const char *)seen, sizeof seen}, "the checkpoint's files", err));
    TSR_TRY(c->share.comm->largest(c->share.comm, &least, err));
    c->most = deep_piece(UINT64_MAX - least);
    return TSR_OK;
}

static tsr_status run(tsr_deep *c, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(c->checkpoint);
    const bool alone = c->share.comm->size == 1;
    TSR_TRY(tsr_share_agree(&c->share, deep_extents(c, err), err));
    if (!alone) TSR_TRY(exchange(c, deep_list_partials, deep_judge_partials, err));
    if (!alone) TSR_TRY(exchange(c, deep_list_tallies, sum_tallies, err));
    TSR_TRY(tsr_share_merge(&c->share, findings, err));
    TSR_TRY(tsr_share_agree(&c->share, tsr_deep_entries(c, err), err));
    return tsr_share_merge(&c->share, findings, err);
}

tsr_status tsr_check_deep_shared(tsr_checkpoint *checkpoint, tsr_comm *comm, tsr_ring *ring, const tsr_progress *progress,
                                 tsr_error *err)
{
    tsr_deep c = {.checkpoint = checkpoint, .ring = ring, .progress = progress, .share = {.comm = comm}};
    tsr_status status = tsr_share_agree(&c.share, deep_open(&c, comm, err), err);
    if (status == TSR_OK) status = prepare(&c, err);
    if (status == TSR_OK) status = run(&c, err);
    deep_close(&c);
    return status;
}
