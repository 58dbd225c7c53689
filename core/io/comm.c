/* What every communicator can do, made of its few primitives. */
#include "tessera/comm.h"

#include <inttypes.h>

#include "base/try.h"

/* The same number of bytes from every rank. */
static tsr_status gather_fixed(tsr_comm *comm, const void *mine, size_t size, const tsr_allocator *allocator, void *all,
                               tsr_error *err)
{
    size_t *sizes = tsr_alloc(allocator, comm->size, sizeof *sizes, err);
    if (!sizes) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < comm->size; r++) sizes[r] = size;
    tsr_status status = comm->all_gather(comm, mine, sizes, all, err);
    tsr_free(allocator, sizes, comm->size, sizeof *sizes);
    return status;
}

tsr_status tsr_comm_barrier(tsr_comm *comm, tsr_error *err)
{
    uint64_t nothing = 0;
    return comm->largest(comm, &nothing, err);
}

/* No allocation on the way: this must work on a rank that has run out of everything. */
tsr_status tsr_comm_agree(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    uint64_t failed = mine == TSR_OK ? 0 : (uint64_t)comm->size - comm->rank; /* largest for the lowest rank */
    tsr_error told = {0};
    TSR_TRY(comm->largest(comm, &failed, err));
    if (failed == 0) return TSR_OK;
    uint32_t root = comm->size - (uint32_t)failed;
    if (root == comm->rank) {
        if (err) told = *err;
        told.status = mine;
    }
    TSR_TRY(comm->broadcast(comm, &told, sizeof told, root, err));
    told.message[sizeof told.message - 1] = 0;
    if (err) *err = (tsr_error){0};
    return tsr_raise(err, told.status, told.byte_position, "rank %" PRIu32 ": %s", root,
                     *told.message ? told.message : tsr_status_name(told.status));
}

void tsr_comm_blobs_free(tsr_comm_blobs *b)
{
    if (!b->allocator) return;
    tsr_free(b->allocator, b->blobs, b->count, sizeof *b->blobs);
    tsr_free(b->allocator, b->bytes, b->byte_count, 1);
    tsr_free(b->allocator, b->sizes, b->count, sizeof *b->sizes);
    *b = (tsr_comm_blobs){0};
}

static tsr_status gather_blobs(tsr_comm *comm, tsr_str mine, tsr_comm_blobs *b, tsr_error *err)
{
    b->sizes = tsr_alloc(b->allocator, b->count, sizeof *b->sizes, err);
    b->blobs = tsr_alloc(b->allocator, b->count, sizeof *b->blobs, err);
    if (!b->sizes || !b->blobs) return TSR_E_NOMEM;
    TSR_TRY(gather_fixed(comm, &mine.size, sizeof mine.size, b->allocator, b->sizes, err));
    size_t total = 0;
    for (uint32_t r = 0; r < b->count; r++) {
        TSR_FAIL_IF(b->sizes[r] > SIZE_MAX - total, err, TSR_E_LIMIT, TSR_NO_POSITION,
                    "comm: the ranks' blobs are too large together");
        total += b->sizes[r];
    }
    b->bytes = tsr_alloc(b->allocator, total, 1, err);
    if (!b->bytes) return TSR_E_NOMEM;
    b->byte_count = total;
    TSR_TRY(comm->all_gather(comm, mine.data, b->sizes, b->bytes, err));
    total = 0;
    for (uint32_t r = 0; r < b->count; total += b->sizes[r++]) b->blobs[r] = (tsr_str){b->bytes + total, b->sizes[r]};
    return TSR_OK;
}

tsr_status tsr_comm_gather_blobs(tsr_comm *comm, tsr_str mine, const tsr_allocator *allocator, tsr_comm_blobs *out,
                                 tsr_error *err)
{
    *out = (tsr_comm_blobs){.count = comm->size, .allocator = allocator};
    tsr_status status = gather_blobs(comm, mine, out, err);
    if (status != TSR_OK) tsr_comm_blobs_free(out);
    return status;
}
