/* A deep check in parts, which programs with nothing but messages between them share: each part reads its items and lists what it
 * found, and one program joins the lists. Whoever is alone does both with a single part.
 *
 *   a part   | counts of values, by entry | findings of the walk | findings of the bytes |    each behind its size */
#include "check/check_deep.h"
#include "stream/ring.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/check_shared.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { SECTIONS = 3 };

/* What a part counted in an entry, in the form in which it is sent. */
typedef struct sent_tally {
    uint64_t entry, gather;
    tsr_deep_counts counts;
} sent_tally;

static tsr_status list_tallies(const tsr_deep *c, tsr_vec *out, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++) {
        const tsr_deep_tally *t = &c->tallies[i];
        const sent_tally s = {i, t->gather, t->counts};
        if (t->gather || s.counts.nan || s.counts.inf || s.counts.odd) TSR_TRY(tsr_vec_append(out, &s, sizeof s, err));
    }
    return TSR_OK;
}

static tsr_status list_section(const tsr_deep *c, int number, tsr_vec *out, tsr_error *err)
{
    const size_t at = out->count;
    uint64_t size = 0;
    TSR_TRY(tsr_vec_append(out, &size, sizeof size, err));
    if (number == 0) TSR_TRY(list_tallies(c, out, err));
    else TSR_TRY(tsr_share_pack(number == 1 ? c->walked : &c->share, out, err));
    size = out->count - at - sizeof size;
    memcpy((char *)out->items + at, &size, sizeof size);
    return TSR_OK;
}

static tsr_status run_part(tsr_deep *c, tsr_check_part part, tsr_vec *out, tsr_error *err)
{
    tsr_comm share = {.rank = part.number, .size = part.count}; /* says whose share it is; nothing is sent */
    TSR_TRY(tsr_deep_open(c, &share, err));
    c->most = tsr_deep_piece(tsr_ring_best(c->ring));
    TSR_TRY(tsr_deep_extents(c, err));
    TSR_TRY(tsr_share_order(c->walked, c->extents, err));
    for (int i = 0; i < SECTIONS; i++) TSR_TRY(list_section(c, i, out, err));
    return TSR_OK;
}

static tsr_status take_part(tsr_deep *c, tsr_check_part part, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    tsr_share walked = {.found = tsr_findings_new(allocator, 0, err), .orders = tsr_vec_of(allocator, sizeof(uint64_t))};
    if (!walked.found) return TSR_E_NOMEM;
    tsr_findings *before = tsr_checkpoint_exchange_findings(c->checkpoint, walked.found);
    c->walked = &walked;
    const tsr_status status = run_part(c, part, out, err);
    tsr_deep_close(c);
    tsr_checkpoint_exchange_findings(c->checkpoint, before);
    tsr_findings_free(walked.found);
    tsr_vec_free(&walked.orders);
    return status;
}

tsr_status tsr_check_deep_part(tsr_checkpoint *checkpoint, tsr_check_part part, tsr_ring *ring, tsr_vec *out, tsr_error *err)
{
    return take_part(&(tsr_deep){.checkpoint = checkpoint, .ring = ring}, part, out, err);
}

/* Cuts the next section off `rest`; false where there is none of that size. */
static bool next_section(tsr_str *rest, tsr_str *out)
{
    uint64_t size;
    if (rest->size < sizeof size) return false;
    memcpy(&size, rest->data, sizeof size);
    if (size > rest->size - sizeof size) return false;
    *out = (tsr_str){rest->data + sizeof size, (size_t)size};
    *rest = (tsr_str){out->data + out->size, rest->size - sizeof size - out->size};
    return true;
}

/* The sections of all parts, of one kind after the other: those of part p are at p, count + p and 2 * count + p. */
static tsr_status cut_sections(tsr_str rest, tsr_str *sections, size_t count, tsr_error *err)
{
    for (size_t p = 0; p < count; p++)
        for (size_t i = 0; i < SECTIONS; i++)
            if (!next_section(&rest, &sections[i * count + p]))
                return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "this is not what %zu parts of a check found", count);
    return TSR_OK;
}

static void add_tallies(tsr_deep *c, tsr_str sent)
{
    sent_tally s;
    for (size_t at = 0; sent.size - at >= sizeof s; at += sizeof s) {
        memcpy(&s, sent.data + at, sizeof s);
        tsr_deep_tally *t = &c->tallies[s.entry];
        t->gather = t->gather || s.gather;
        t->counts.nan += s.counts.nan;
        t->counts.inf += s.counts.inf;
        t->counts.odd += s.counts.odd;
    }
}

static tsr_status add_sections(tsr_deep *c, const tsr_str *sections, size_t count, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(c->checkpoint);
    for (size_t p = 0; p < count; p++) add_tallies(c, sections[p]);
    TSR_TRY(tsr_share_add(c->share.allocator, sections + count, count, findings, err));
    return tsr_share_add(c->share.allocator, sections + 2 * count, count, findings, err);
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
    tsr_status status = tsr_deep_open(&c, &alone, err);
    if (status == TSR_OK) status = join_all(&c, parts, count, err);
    tsr_deep_close(&c);
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
