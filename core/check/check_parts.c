/* A deep check in parts, for programs that can only send each other messages: each part reads its items and lists what it found,
 * and one program joins the lists. A program that is alone does both with a single part.
 *
 *   a part   | counts of values, by entry | findings of the walk | findings of the bytes |    each after its size */
#include "check/check_deep.h"
#include "stream/ring.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/check_shared.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { SECTIONS = 3 };

static tsr_status list_section(const tsr_deep *c, int number, tsr_vec *out, tsr_error *err)
{
    const size_t at = out->count;
    uint64_t size = 0;
    TSR_TRY(tsr_vec_append(out, &size, sizeof size, err));
    if (number == 0) TSR_TRY(tsr_deep_list_tallies(c, out, err));
    else TSR_TRY(tsr_share_pack(number == 1 ? c->walked : &c->share, out, err));
    size = out->count - at - sizeof size;
    memcpy((char *)out->items + at, &size, sizeof size);
    return TSR_OK;
}

static tsr_status run_part(tsr_deep *c, tsr_check_part part, tsr_vec *out, tsr_error *err)
{
    tsr_comm share = {.rank = part.number, .size = part.count}; /* only states the share; nothing is sent */
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

/* Finds the sections of all parts, ordered by kind: those of part p are at p, count + p and 2 * count + p. */
static tsr_status cut_sections(tsr_str rest, tsr_str *sections, size_t count, tsr_error *err)
{
    for (size_t p = 0; p < count; p++)
        for (size_t i = 0; i < SECTIONS; i++)
            if (!tsr_take_sized(&rest, &sections[i * count + p]))
                return tsr_fail(err, TSR_E_USAGE, "these are not the results of a deep check");
    return TSR_OK;
}

static tsr_status add_sections(tsr_deep *c, const tsr_str *sections, size_t count, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(c->checkpoint);
    for (size_t p = 0; p < count; p++) TSR_TRY(tsr_deep_add_tallies(c, sections[p], err));
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
