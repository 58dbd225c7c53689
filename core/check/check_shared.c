/* A deep check whose work ranks share: the two passes, and what the ranks exchange after each. */
#include "tessera/sys/check_shared.h"

#include "check/check_deep.h"
#include "stream/ring.h"
#include "tessera/sys/try.h"

/* Adds up the counts of all ranks, including this one. */
static tsr_status sum_tallies(tsr_deep *c, const tsr_comm_blobs *all, tsr_error *err)
{
    for (uint64_t i = 0; i < tsr_checkpoint_catalog(c->checkpoint)->entry_count; i++)
        c->tallies[i].counts = (tsr_deep_counts){0};
    return tsr_deep_add_tallies(c, (tsr_str){all->bytes, all->byte_count}, err);
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
    c->most = tsr_deep_piece(UINT64_MAX - least);
    return TSR_OK;
}

static tsr_status run(tsr_deep *c, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(c->checkpoint);
    const bool alone = c->share.comm->size == 1;
    TSR_TRY(tsr_share_agree(&c->share, tsr_deep_extents(c, err), err));
    if (!alone) TSR_TRY(exchange(c, tsr_deep_list_partials, tsr_deep_judge_partials, err));
    if (!alone) TSR_TRY(exchange(c, tsr_deep_list_tallies, sum_tallies, err));
    TSR_TRY(tsr_share_merge(&c->share, findings, err));
    TSR_TRY(tsr_share_agree(&c->share, tsr_deep_entries(c, err), err));
    return tsr_share_merge(&c->share, findings, err);
}

tsr_status tsr_check_deep_shared(tsr_checkpoint *checkpoint, tsr_comm *comm, tsr_ring *ring, const tsr_progress *progress,
                                 tsr_error *err)
{
    tsr_deep c = {.checkpoint = checkpoint, .ring = ring, .progress = progress, .share = {.comm = comm}};
    tsr_status status = tsr_share_agree(&c.share, tsr_deep_open(&c, comm, err), err);
    if (status == TSR_OK) status = prepare(&c, err);
    if (status == TSR_OK) status = run(&c, err);
    tsr_deep_close(&c);
    return status;
}
