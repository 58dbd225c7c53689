/* The state of a deep check: findings and counts of values, which the passes add to (check_extents.c, check_entries.c) and
 * ranks or parts exchange (check_shared.c, check_parts.c). */
#include "check/check_deep.h"

#include "base/cursor.h"
#include "stream/numeric.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"

tsr_place tsr_deep_place(const tsr_deep *c, uint32_t file, uint64_t offset, tsr_str fqn)
{
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    return (tsr_place){file < store->file_count ? store->files[file].name : (tsr_str){NULL, 0}, offset, fqn};
}

tsr_status tsr_deep_failure(tsr_deep *c, tsr_place place, const tsr_error *failure, tsr_error *err)
{
    return tsr_finding_add_failure(c->share.found, "file/unreadable", place, failure, err);
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

void tsr_deep_close(tsr_deep *c)
{
    const size_t count = (size_t)tsr_checkpoint_catalog(c->checkpoint)->entry_count;
    tsr_free(tsr_checkpoint_host(c->checkpoint)->allocator, c->tallies, count, sizeof *c->tallies);
    tsr_vec_free(&c->partials);
    tsr_share_close(&c->share);
}
