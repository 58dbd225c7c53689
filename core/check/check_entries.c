/* The second pass of a deep check: the values of each entry. Tensors whose stored bytes are not just their elements (strides
 * with gaps, big-endian, compressed) are scanned for NaN here, through a gather, and replicas are compared. */
#include "base/cursor.h"
#include "check/check_share.h"
#include "formats/common/end_sum.h"
#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

typedef tsr_deep_tally tally;
typedef tsr_deep check;

/* ---- values that must be gathered ---- */

typedef struct scan_job {
    tsr_tile tile; /* first */
    tsr_deep_counts counts;
} scan_job;

static tsr_status fill_scan(void *ctx, void *job, tsr_error *err)
{
    (void)ctx;
    scan_job *s = job;
    TSR_TRY(tsr_tile_fill(&s->tile, err));
    const tsr_host *host = tsr_checkpoint_host(s->tile.gather->checkpoint);
    tsr_deep_count(host, tsr_dtype_part(s->tile.gather->dtype), s->tile.data, s->tile.bytes, &s->counts);
    return TSR_OK;
}

static tsr_status drain_scan(void *ctx, void *job, tsr_error *err)
{
    (void)err;
    tsr_deep_counts_add(&((tally *)ctx)->counts, &((scan_job *)job)->counts);
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
    return tsr_deep_failure(c, (tsr_place){{NULL, 0}, TSR_NO_POSITION, entry->fqn}, &failure, err);
}

/* ---- replicas ---- */

static tsr_status check_replica(check *c, const tsr_gather *chunks, const tsr_chunk *replica, tsr_error *err)
{
    tsr_difference difference = {0};
    tsr_error failure = {0};
    const tsr_place place = tsr_deep_place(c, replica->file, replica->byte_offset, chunks->entry->fqn);
    if (replica->file == TSR_NO_FILE) return TSR_OK;           /* a finding since the checkpoint was opened */
    if (replica->byte_length > c->replica_room) return TSR_OK; /* overlaps replicas that were compared already */
    c->replica_room -= replica->byte_length;
    if (tsr_compare_copy(chunks, replica, c->ring, &difference, &failure) != TSR_OK)
        return tsr_deep_failure(c, place, &failure, err);
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
        return tsr_deep_failure(c, (tsr_place){{NULL, 0}, TSR_NO_POSITION, entry->fqn}, &failure, err);
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < entry->replica_count && status == TSR_OK; i++) {
        status = check_replica(c, chunks, &entry->replicas[i], err);
    }
    tsr_gather_close(chunks);
    return status;
}

/* ---- all of an entry ---- */

/* Whether the tensor holds 4-bit numbers of bitsandbytes, which may be stored under any dtype (quant_storage), so that no element of it is a
 * value. */
static bool is_packed(const check *c, const tsr_entry *entry)
{
    static const char *const states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
    char name[1024];
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        const size_t size = strlen(states[i]);
        if (entry->fqn.size > sizeof name - size) continue;
        memcpy(name, entry->fqn.data, entry->fqn.size);
        memcpy(name + entry->fqn.size, states[i], size);
        if (tsr_checkpoint_entry(c->checkpoint, (tsr_str){name, entry->fqn.size + size})) return true;
    }
    return false;
}

static tsr_status report_values(check *c, const tsr_entry *entry, const tally *t, tsr_error *err)
{
    const tsr_place place = {{NULL, 0}, TSR_NO_POSITION, entry->fqn};
    const tsr_deep_counts *n = &t->counts;
    if (n->odd)
        TSR_TRY(tsr_finding_add(c->share.found, "values/bool", place, err, "%llu byte%s neither 0 nor 1",
                                (unsigned long long)n->odd, n->odd == 1 ? " is" : "s are"));
    if ((n->nan == 0 && n->inf == 0) || is_packed(c, entry)) return TSR_OK;
    return tsr_finding_add(c->share.found, "values/nan", place, err, "%llu NaN and %llu infinite value%s",
                           (unsigned long long)n->nan, (unsigned long long)n->inf, n->inf == 1 ? "" : "s");
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

/* ---- objects next to a single file ---- */

typedef struct sidecar {
    check *check;
    tsr_store *store;
} sidecar;

static tsr_status check_bytes(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    const sidecar *s = ctx;
    const tsr_host *host = tsr_checkpoint_host(s->check->checkpoint);
    const tsr_place place = {s->store->files[extent->file].name, 0, {NULL, 0}};
    char bytes[4096];
    uint32_t crc = 0;
    for (uint64_t at = 0, left; (left = extent->byte_length - at) > 0; at += left) {
        tsr_error failure = {0};
        if (left > sizeof bytes) left = sizeof bytes;
        if (tsr_store_read(s->store, extent->file, at, bytes, (size_t)left, &failure) != TSR_OK)
            return tsr_deep_failure(s->check, place, &failure, err);
        crc = tsr_crc32(host, crc, bytes, (size_t)left);
    }
    return tsr_deep_judge_file(s->check, place, crc, extent->crc32, err);
}

/* Checks the document of objects that a conversion wrote next to a single file (TSR_OBJECTS_SIDECAR), if there is one. In a directory
 * it is among the files of the checkpoint's store. */
static tsr_status check_sidecar(check *c, tsr_error *err)
{
    static const char end[] = ".objects.json";
    tsr_store *store = tsr_checkpoint_store(c->checkpoint), *neighbor;
    char name[256];
    tsr_error failure = {0};
    if (c->share.comm->rank || store->primary == TSR_NO_FILE || !store->neighbor) return TSR_OK;
    const tsr_str file = store->files[store->primary].name;
    if (file.size > sizeof name - sizeof end) return TSR_OK;
    memcpy(name, file.data, file.size);
    memcpy(name + file.size, end, sizeof end);
    tsr_status status = store->neighbor(store, tsr_checkpoint_host(c->checkpoint), tsr_str_from(name), &neighbor, &failure);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status != TSR_OK) return tsr_deep_failure(c, TSR_NOWHERE, &failure, err);
    status = tsr_end_sum_extent(neighbor, neighbor->primary, check_bytes, &(sidecar){c, neighbor}, err);
    neighbor->close(neighbor);
    return status;
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
    if (!TSR_IS_SMALL) TSR_TRY(check_sidecar(c, err)); /* there, a file has no neighbors */
    return tsr_share_order(&c->share, catalog->entry_count, err);
}
