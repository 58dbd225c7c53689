/* The state of a deep check: findings and counts of values, which both passes add to (the first is in check_extents.c) and ranks
 * or parts exchange. */
#include "check/check_share.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "formats/common/end_sum.h"
#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/check.h"
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

/* ---- shares: dividing a check among ranks, and sending findings between the ranks of one program ---- */

static tsr_status share_open(const tsr_store *store, tsr_comm *comm, const tsr_allocator *allocator, tsr_share *out,
                             tsr_error *err)
{
    *out = (tsr_share){.comm = comm, .allocator = allocator, .file_count = store->file_count};
    out->orders = tsr_vec_of(allocator, sizeof(uint64_t));
    out->file_starts = tsr_alloc(allocator, store->file_count, sizeof *out->file_starts, err);
    out->found = out->file_starts ? tsr_findings_new(allocator, 0, err) : NULL;
    if (!out->found) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < store->file_count; f++) {
        out->file_starts[f] = out->byte_total;
        out->byte_total += store->files[f].size;
    }
    out->byte_step = out->byte_total / comm->size + 1;
    return TSR_OK;
}

/* Borrows `comm`. `out` must be closed even if this fails. */
static void share_close(tsr_share *share)
{
    if (!share->comm) return;
    tsr_findings_free(share->found);
    tsr_vec_free(&share->orders);
    tsr_free(share->allocator, share->file_starts, share->file_count, sizeof *share->file_starts);
    *share = (tsr_share){.comm = NULL};
}

uint32_t tsr_share_owner(const tsr_share *share, uint32_t file, uint64_t byte_offset)
{
    uint64_t at = file < share->file_count ? share->file_starts[file] : 0;
    at = byte_offset < share->byte_total - at ? at + byte_offset : share->byte_total;
    return (uint32_t)(at / share->byte_step);
}

/* The rank whose share contains `at`, if costs that add up to `total` are divided instead of bytes. */
static uint32_t share_owner_of_cost(const tsr_share *share, uint64_t at, uint64_t total)
{
    return (uint32_t)(at / (total / share->comm->size + 1));
}

tsr_status tsr_share_agree(const tsr_share *share, tsr_status status, tsr_error *err)
{
    return share->comm->size == 1 ? status : tsr_comm_agree(share->comm, status, err);
}

/* ---- sending findings: all ranks run the same program, but parts of a check may come from anywhere ---- */

tsr_status tsr_share_order(tsr_share *share, uint64_t order, tsr_error *err)
{
    while (share->orders.count < tsr_findings_count(share->found)) {
        uint64_t *next = tsr_vec_push(&share->orders, err);
        if (!next) return TSR_E_NOMEM;
        *next = order;
    }
    return TSR_OK;
}

typedef struct totals {
    uint64_t stored, unlisted[TSR_MAX_RULES][TSR_ERROR + 1];
} totals;

typedef struct packed {
    uint64_t order;
    uint64_t byte_offset;
    uint32_t rule; /* index */
    uint32_t level;
    uint32_t message_size, file_size, fqn_size; /* sizes of the texts that follow, in this order */
    uint32_t has_file, has_fqn, unused;
} packed;

static tsr_status append_str(tsr_vec *out, tsr_str s, tsr_error *err)
{
    return tsr_vec_append(out, s.data, s.size, err);
}

static tsr_status pack_one(const tsr_finding *f, uint64_t order, tsr_vec *out, tsr_error *err)
{
    size_t count;
    const packed p = {.order = order,
                      .byte_offset = f->byte_offset,
                      .rule = (uint32_t)(f->rule - tsr_rules(&count)),
                      .level = (uint32_t)f->level,
                      .message_size = (uint32_t)f->message.size,
                      .file_size = (uint32_t)f->file.size,
                      .fqn_size = (uint32_t)f->fqn.size,
                      .has_file = f->file.data != NULL,
                      .has_fqn = f->fqn.data != NULL};
    TSR_TRY(append_str(out, (tsr_str){(const char *)&p, sizeof p}, err));
    TSR_TRY(append_str(out, f->message, err));
    TSR_TRY(append_str(out, f->file, err));
    return append_str(out, f->fqn, err);
}

tsr_status tsr_share_pack(const tsr_share *share, tsr_vec *out, tsr_error *err)
{
    const tsr_findings *found = share->found;
    totals t = {.stored = tsr_findings_count(found)};
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    for (size_t r = 0; r < count; r++) {
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            t.unlisted[r][level] = tsr_findings_unlisted(found, &rules[r], (tsr_level)level);
    }
    TSR_TRY(append_str(out, (tsr_str){(const char *)&t, sizeof t}, err));
    for (size_t i = 0; i < t.stored; i++)
        TSR_TRY(pack_one(tsr_findings_at(found, i), ((const uint64_t *)share->orders.items)[i], out, err));
    return TSR_OK;
}

/* A packed finding received from some rank. */
typedef struct arrived {
    packed head;
    const char *text;
    size_t sequence; /* order of arrival, which breaks ties */
} arrived;

static int by_order(const void *a, const void *b)
{
    const arrived *x = a, *y = b;
    if (x->head.order != y->head.order) return x->head.order < y->head.order ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* Reads the next finding. False if it is not complete, or states what does not exist. */
static bool take_finding(tsr_cursor *at, size_t rule_count, arrived *out)
{
    const uint8_t *head = tsr_cursor_take(at, sizeof out->head);
    if (!head) return false;
    memcpy(&out->head, head, sizeof out->head);
    out->text = (const char *)tsr_cursor_take(at, out->head.message_size);
    tsr_cursor_take(at, out->head.file_size);
    tsr_cursor_take(at, out->head.fqn_size);
    return !at->failed && out->head.rule < rule_count && out->head.level <= TSR_ERROR;
}

/* Unpacks one rank's findings and appends them to `list`. */
static tsr_status list_arrived(tsr_str blob, tsr_vec *list, tsr_findings *findings, tsr_error *err)
{
    totals t = {0};
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    tsr_cursor at = tsr_cursor_on(blob);
    const uint8_t *head = tsr_cursor_take(&at, sizeof t);
    bool ok = head != NULL;
    if (ok) memcpy(&t, head, sizeof t);
    for (uint64_t i = 0; i < t.stored && ok; i++) {
        arrived *a = tsr_vec_push(list, err);
        if (!a) return TSR_E_NOMEM;
        a->sequence = list->count;
        ok = take_finding(&at, count, a);
    }
    TSR_FAIL_IF(!ok, err, TSR_E_USAGE, "these are not the results of a deep check");
    for (size_t r = 0; r < count; r++) {
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            tsr_findings_count_more(findings, &rules[r], (tsr_level)level, t.unlisted[r][level]);
    }
    return TSR_OK;
}

static tsr_status add_arrived(const arrived *a, tsr_findings *findings, tsr_error *err)
{
    size_t count;
    const packed *p = &a->head;
    const char *file = a->text + p->message_size, *fqn = file + p->file_size;
    const tsr_place place = {
        {p->has_file ? file : NULL, p->file_size}, p->byte_offset, {p->has_fqn ? fqn : NULL, p->fqn_size}};
    return tsr_finding_add_at(findings, (tsr_rated_rule){tsr_rules(&count)[p->rule].id, (tsr_level)p->level}, place, err,
                              "%.*s", (int)p->message_size, a->text);
}

tsr_status tsr_share_add(const tsr_allocator *allocator, const tsr_str *sent, size_t count, tsr_findings *findings,
                         tsr_error *err)
{
    tsr_vec list = tsr_vec_of(allocator, sizeof(arrived));
    tsr_status status = TSR_OK;
    for (size_t r = 0; r < count && status == TSR_OK; r++) status = list_arrived(sent[r], &list, findings, err);
    if (list.count) qsort(list.items, list.count, sizeof(arrived), by_order);
    for (size_t i = 0; i < list.count && status == TSR_OK; i++)
        status = add_arrived((const arrived *)list.items + i, findings, err);
    tsr_vec_free(&list);
    return status;
}

static tsr_status exchange(tsr_share *share, tsr_vec *own, tsr_findings *findings, tsr_error *err)
{
    tsr_comm_blobs blobs = {0};
    TSR_TRY(tsr_share_agree(share, tsr_share_pack(share, own, err), err));
    TSR_TRY(
        tsr_comm_gather_blobs((tsr_ranks){share->comm, share->allocator}, (tsr_str){own->items, own->count}, &blobs, err));
    tsr_status status =
        tsr_share_agree(share, tsr_share_add(share->allocator, blobs.blobs, blobs.count, findings, err), err);
    tsr_comm_blobs_free(&blobs);
    return status;
}

tsr_status tsr_share_merge(tsr_share *share, tsr_findings *findings, tsr_error *err)
{
    tsr_vec own = tsr_vec_of(share->allocator, 1);
    tsr_status status = exchange(share, &own, findings, err);
    tsr_vec_free(&own);
    TSR_TRY(status);
    tsr_findings *cleared = tsr_findings_new(share->allocator, 0, err);
    status = tsr_share_agree(share, cleared ? TSR_OK : TSR_E_NOMEM, err);
    if (status != TSR_OK) {
        tsr_findings_free(cleared);
        return status;
    }
    tsr_findings_free(share->found);
    share->found = cleared;
    share->orders.count = 0;
    return TSR_OK;
}

/* ---- deep ---- */

tsr_place tsr_deep_place(const tsr_deep *c, uint32_t file, uint64_t offset, tsr_str fqn)
{
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    return (tsr_place){file < store->file_count ? store->files[file].name : (tsr_str){NULL, 0}, offset, fqn};
}

tsr_status tsr_deep_failure(tsr_deep *c, tsr_place place, const tsr_error *failure, tsr_error *err)
{
    return tsr_finding_add_failure(c->share.found, "file/unreadable", place, failure, err);
}

tsr_status tsr_deep_judge_file(tsr_deep *c, tsr_place place, uint32_t crc, uint32_t expected, tsr_error *err)
{
    if (crc == expected) return TSR_OK;
    return tsr_finding_add(c->share.found, "file/crc", place, err,
                           "the bytes of the file have CRC-32 %08x, but the white space at its end states %08x",
                           (unsigned)crc, (unsigned)expected);
}

void tsr_deep_count(const tsr_host *host, tsr_dtype part, const uint8_t *data, size_t bytes, tsr_deep_counts *out)
{
    if (part != TSR_BOOL) {
        tsr_count_special(host, part, data, bytes / tsr_dtype_size(part), &out->nan, &out->inf);
        return;
    }
    for (size_t i = 0; i < bytes; i++) out->odd += data[i] > 1;
}

void tsr_deep_counts_add(tsr_deep_counts *sum, const tsr_deep_counts *more)
{
    sum->nan += more->nan;
    sum->inf += more->inf;
    sum->odd += more->odd;
}

/* The counts of an entry in the form in which they are sent. */
typedef struct sent_tally {
    uint64_t entry, gather;
    tsr_deep_counts counts;
} sent_tally;

tsr_status tsr_deep_list_tallies(const tsr_deep *c, tsr_vec *out, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++) {
        const sent_tally s = {i, c->tallies[i].gather, c->tallies[i].counts};
        if (s.gather || s.counts.nan || s.counts.inf || s.counts.odd) TSR_TRY(tsr_vec_append(out, &s, sizeof s, err));
    }
    return TSR_OK;
}

tsr_status tsr_deep_add_tallies(tsr_deep *c, tsr_str sent, tsr_error *err)
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
    return status == TSR_OK ? TSR_OK : tsr_raise(err, status, failure.byte_position, "%s", failure.message);
}

tsr_status tsr_deep_open(tsr_deep *c, tsr_comm *comm, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    TSR_TRY(share_open(tsr_checkpoint_store(c->checkpoint), comm, allocator, &c->share, err));
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

void tsr_deep_close(tsr_deep *c)
{
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    tsr_free(tsr_checkpoint_host(c->checkpoint)->allocator, c->tallies, count, sizeof *c->tallies);
    tsr_vec_free(&c->partials);
    share_close(&c->share);
}

/* ---- entries ---- */

/* The second pass of a deep check: the values of each entry. Tensors whose stored bytes are not just their elements (strides
 * with gaps, big-endian, compressed) are scanned for NaN here, through a gather, and replicas are compared. */

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

static tsr_status report_values(check *c, const tsr_entry *entry, const tally *t, tsr_error *err)
{
    const tsr_place place = {{NULL, 0}, TSR_NO_POSITION, entry->fqn};
    const tsr_deep_counts *n = &t->counts;
    if (n->odd)
        TSR_TRY(tsr_finding_add(c->share.found, "values/bool", place, err, "%llu byte%s neither 0 nor 1",
                                (unsigned long long)n->odd, n->odd == 1 ? " is" : "s are"));
    if (n->nan == 0 && n->inf == 0) return TSR_OK;
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

/* Stores of a build for size show no neighbors of a file. */
#ifndef TSR_SMALL
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
#endif

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
        const uint32_t owner = share_owner_of_cost(&c->share, at, total);
        at = cost < total - at ? at + cost : total;
        if (owner != c->share.comm->rank) continue;
        TSR_TRY(check_entry(c, &catalog->entries[i], &c->tallies[i], err));
        TSR_TRY(tsr_share_order(&c->share, i, err));
    }
#ifndef TSR_SMALL
    TSR_TRY(check_sidecar(c, err));
#endif
    return tsr_share_order(&c->share, catalog->entry_count, err);
}

/* ---- digests ---- */

/* Compares the digests in a contract with the values in a checkpoint, regardless of its sharding and container. */

typedef struct checker {
    tsr_checkpoint *checkpoint;
    const tsr_contract *contract;
    tsr_ring *ring;
    const tsr_progress *progress;
    tsr_error *err;
    const tsr_entry **own; /* entries that this rank checks; NULL before they are listed */
    size_t own_count;
    tsr_digests *digests; /* digests of the entries in `own` */
    tsr_map *index;       /* FQN in the contract → its number */
    tsr_share share;
    uint64_t byte_done, byte_total;
    uint64_t without; /* number of entries for which the contract has no digest */
    tsr_str first;    /* FQN of the first of them */
} checker;

/* The digest that the contract has for an entry. Empty if there is none, or if the contract allows any value. */
static tsr_str expected_of(const checker *c, const tsr_entry *entry)
{
    tsr_str name;
    const uint32_t at =
        tsr_contract_name(c->contract, entry->fqn, &name) ? tsr_map_get(c->index, name, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || c->contract->expected.entries[at].kind != entry->kind) return TSR_STR("");
    if (tsr_contract_allows(c->contract, name) & TSR_ANY_VALUE) return TSR_STR("");
    return c->contract->digests[at];
}

static tsr_status digest_of(const checker *c, size_t number, bool *there, tsr_digest *out)
{
    const tsr_entry *entry = c->own[number];
    *there = true;
    if (entry->kind != TSR_ENTRY_TENSOR)
        return tsr_object_digest(c->checkpoint, entry, c->contract->algorithm, c->ring, there, out, c->err);
    return tsr_digests_get(c->digests, number, out, c->err);
}

/* Checks entry `number` of `own`. */
static tsr_status digests_check(checker *c, size_t number)
{
    const tsr_entry *entry = c->own[number];
    const tsr_str expected = expected_of(c, entry);
    char text[65];
    bool there;
    tsr_digest digest;
    uint64_t bytes;
    tsr_place place = TSR_NOWHERE;
    TSR_TRY(digest_of(c, number, &there, &digest));
    if (entry->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(entry, &bytes)) c->byte_done += bytes;
    if (there && tsr_str_equal(tsr_str_from(tsr_digest_text(&digest, text)), expected)) return TSR_OK;
    place.fqn = entry->fqn;
    return tsr_finding_add(c->share.found, "layout/digest", place, c->err,
                           "the values of '%.*s' have the digest %s; %s has %.*s", TSR_STR_ARG(entry->fqn),
                           there ? text : "of nothing", c->contract->called, TSR_STR_ARG(expected));
}

/* Counts an object if only its kind and type were compared. */
static void count_without(checker *c, const tsr_entry *entry)
{
    tsr_str name;
    const uint32_t at =
        tsr_contract_name(c->contract, entry->fqn, &name) ? tsr_map_get(c->index, name, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || entry->kind == TSR_ENTRY_TENSOR || c->contract->digests[at].size) return;
    if (tsr_contract_allows(c->contract, name) & TSR_ANY_VALUE) return;
    if (c->without++ == 0) c->first = entry->fqn;
}

/* Reports objects without digests. The result is the same on all ranks. */
static tsr_status tell_without(checker *c, const tsr_catalog *catalog)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) count_without(c, &catalog->entries[i]);
    if (c->without == 0) return TSR_OK;
    tsr_place place = TSR_NOWHERE;
    place.fqn = c->first;
    return tsr_finding_add(tsr_checkpoint_findings(c->checkpoint), "layout/not-hashed", place, c->err,
                           "%s has no digest of %llu entr%s, the first of them '%.*s': their values were not compared",
                           c->contract->called, (unsigned long long)c->without, c->without == 1 ? "y" : "ies",
                           TSR_STR_ARG(c->first));
}

/* The cost of checking an entry; 0 if the contract has no digest for it. */
static uint64_t digests_cost_of(const checker *c, const tsr_entry *entry)
{
    uint64_t bytes = 0;
    if (expected_of(c, entry).size == 0) return 0;
    if (entry->kind == TSR_ENTRY_TENSOR && !tsr_entry_bytes(entry, &bytes)) bytes = 0;
    return bytes + 1 > bytes ? bytes + 1 : bytes;
}

static tsr_status check_repeats(const checker *c, const tsr_catalog *catalog)
{
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, c->checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && expected_of(c, entry).size)
            status = tsr_repeats_add(&repeats, entry, NULL, NULL, NULL, c->err);
    }
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, c->err);
    tsr_repeats_close(&repeats);
    return status;
}

static tsr_status prepare(checker *c, const tsr_catalog *catalog, tsr_comm *comm)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    const tsr_catalog *expected = &c->contract->expected;
    TSR_TRY(share_open(tsr_checkpoint_store(c->checkpoint), comm, allocator, &c->share, c->err));
    c->index = tsr_map_new(allocator, (size_t)expected->entry_count, c->err);
    if (!c->index) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < expected->entry_count; i++)
        TSR_TRY(tsr_map_put(c->index, expected->entries[i].fqn, (uint32_t)i, NULL, NULL, c->err));
    TSR_TRY(check_repeats(c, catalog));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        TSR_FAIL_IF(!tsr_add_u64(c->byte_total, digests_cost_of(c, &catalog->entries[i]), &c->byte_total), c->err,
                    TSR_E_LIMIT, "the tensors are too large in total");
    }
    return TSR_OK;
}

/* Lists the entries that this rank checks. */
static tsr_status take_own(checker *c, const tsr_catalog *catalog)
{
    uint64_t at = 0, cost;
    c->own = tsr_alloc(tsr_checkpoint_host(c->checkpoint)->allocator, (size_t)catalog->entry_count, sizeof *c->own, c->err);
    if (!c->own) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++, at += cost) {
        cost = digests_cost_of(c, &catalog->entries[i]);
        if (cost && share_owner_of_cost(&c->share, at, c->byte_total) == c->share.comm->rank)
            c->own[c->own_count++] = &catalog->entries[i];
    }
    return TSR_OK;
}

static tsr_status check_own(checker *c, const tsr_catalog *catalog)
{
    TSR_TRY(take_own(c, catalog));
    const tsr_digest_list list = {c->own, c->own_count, c->contract->algorithm};
    TSR_TRY(tsr_digests_open(c->checkpoint, &list, c->ring, &c->digests, c->err));
    for (size_t i = 0; i < c->own_count; i++) {
        TSR_TRY(digests_check(c, i));
        TSR_TRY(tsr_share_order(&c->share, (uint64_t)(c->own[i] - catalog->entries), c->err));
        TSR_FAIL_IF(c->progress && !c->progress->step(c->progress->ctx, c->byte_done, c->byte_total / c->share.comm->size),
                    c->err, TSR_E_CANCELLED, "interrupted");
    }
    return TSR_OK;
}

static void close_own(checker *c, const tsr_catalog *catalog)
{
    tsr_digests_close(c->digests);
    tsr_free(tsr_checkpoint_host(c->checkpoint)->allocator, c->own, (size_t)catalog->entry_count, sizeof *c->own);
}

static tsr_status check_shared(checker *c, tsr_comm *comm)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c->checkpoint);
    c->share.comm = comm;
    TSR_TRY(tsr_share_agree(&c->share, prepare(c, catalog, comm), c->err));
    TSR_TRY(tsr_share_agree(&c->share, check_own(c, catalog), c->err));
    TSR_TRY(tsr_share_merge(&c->share, tsr_checkpoint_findings(c->checkpoint), c->err));
    return tell_without(c, catalog);
}

tsr_status tsr_check_digests_shared(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_comm *comm, tsr_ring *ring,
                                    const tsr_progress *progress, tsr_error *err)
{
    checker c = {.checkpoint = checkpoint, .contract = contract, .ring = ring, .progress = progress, .err = err};
    if (!contract->digests) return TSR_OK;
    const tsr_status status = check_shared(&c, comm);
    close_own(&c, tsr_checkpoint_catalog(checkpoint));
    tsr_map_free(c.index);
    share_close(&c.share);
    return status;
}

tsr_status tsr_check_digests(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_ring *ring,
                             const tsr_progress *progress, tsr_error *err)
{
    tsr_comm *self;
    if (!contract->digests) return TSR_OK;
    TSR_TRY(tsr_comm_self(tsr_checkpoint_host(checkpoint)->allocator, &self, err));
    const tsr_status status = tsr_check_digests_shared(checkpoint, contract, self, ring, progress, err);
    self->close(self);
    return status;
}
