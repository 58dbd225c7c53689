/* Compares redistribution with MPI_Alltoallw using subarray types, which packs and sends the data itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <mpi.h>
#include <stdlib.h>

#include "support/ranks.h"
#include "tessera/redistribute.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

enum { MOST_RANKS = 64 };

/* A tensor with up to three dims, and the dims along which it is sharded before and after. */
typedef struct change {
    uint32_t ndim;
    uint64_t shape[3];
    int32_t from, to;
    tsr_dtype dtype;
    size_t round_bytes;
} change;

static tsr_tensor cut(const change *c, const tsr_mesh *mesh, const tsr_placement *placement, uint64_t rank, void *data)
{
    return tsr_tensor_over_mesh(tsr_tensor_whole(c->dtype, c->ndim, c->shape, data), mesh, placement, rank);
}

/* The elements of `mine`, a local tensor, that are also in `theirs`, as a type for Alltoallw. An empty one has the count
 * 0. */
static int common_type(const tsr_shard *mine, const tsr_shard *theirs, MPI_Datatype element, MPI_Datatype *type)
{
    uint64_t offsets[3], sizes[3];
    int whole[3], part[3], at[3];
    *type = MPI_BYTE;
    if (!mine->box_count || !theirs->box_count) return 0;
    if (!tsr_box_intersect((tsr_box){mine->ndim, mine->boxes[0].offsets, mine->boxes[0].sizes},
                           (tsr_box){mine->ndim, theirs->boxes[0].offsets, theirs->boxes[0].sizes}, offsets, sizes))
        return 0;
    for (uint32_t d = 0; d < mine->ndim; d++) {
        whole[d] = (int)mine->local_shape[d];
        part[d] = (int)sizes[d];
        at[d] = (int)(offsets[d] - mine->boxes[0].offsets[d]);
    }
    MPI_Type_create_subarray((int)mine->ndim, whole, part, at, MPI_ORDER_C, element, type);
    MPI_Type_commit(type);
    return 1;
}

static tsr_status by_alltoallw(const change *c, const tsr_mesh *mesh, const tsr_placement *placements, const tsr_comm *comm,
                               const void *from, void *to, tsr_arena *arena, tsr_error *err)
{
    int send_counts[MOST_RANKS], receive_counts[MOST_RANKS], zeros[MOST_RANKS] = {0};
    MPI_Datatype sends[MOST_RANKS], receives[MOST_RANKS], element;
    tsr_shard own[2], other[2];
    MPI_Type_contiguous((int)tsr_dtype_size(c->dtype), MPI_BYTE, &element);
    for (int s = 0; s < 2; s++)
        TSR_TRY(tsr_mesh_shard(&(tsr_sharding){mesh, &placements[s], TSR_STRIDED_FSDP}, (tsr_shape){c->ndim, c->shape},
                               comm->rank, arena, &own[s], err));
    for (uint32_t r = 0; r < comm->size; r++) {
        for (int s = 0; s < 2; s++)
            TSR_TRY(tsr_mesh_shard(&(tsr_sharding){mesh, &placements[s], TSR_STRIDED_FSDP}, (tsr_shape){c->ndim, c->shape},
                                   r, arena, &other[s], err));
        send_counts[r] = common_type(&own[0], &other[1], element, &sends[r]);
        receive_counts[r] = common_type(&own[1], &other[0], element, &receives[r]);
    }
    MPI_Alltoallw(from, send_counts, zeros, sends, to, receive_counts, zeros, receives, MPI_COMM_WORLD);
    for (uint32_t r = 0; r < comm->size; r++) {
        if (send_counts[r]) MPI_Type_free(&sends[r]);
        if (receive_counts[r]) MPI_Type_free(&receives[r]);
    }
    MPI_Type_free(&element);
    return TSR_OK;
}

static tsr_status compare(void *arg, tsr_comm *comm, tsr_error *err)
{
    const change *c = arg;
    const uint64_t ranks[] = {comm->size};
    const tsr_str name[] = {TSR_STR("x")};
    const tsr_mesh mesh = {.dim_count = 1, .shape = ranks, .names = name};
    const tsr_placement placements[] = {{TSR_SHARD, c->from, 0}, {TSR_SHARD, c->to, 0}};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    uint64_t from_bytes, to_bytes;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    RANKS_NEED(arena && comm->size <= MOST_RANKS);
    tsr_tensor from = cut(c, &mesh, &placements[0], comm->rank, NULL), to = cut(c, &mesh, &placements[1], comm->rank, NULL);
    TSR_TRY(tsr_tensor_held(&from, arena, &from_bytes, err));
    TSR_TRY(tsr_tensor_held(&to, arena, &to_bytes, err));
    uint8_t *source = malloc((size_t)from_bytes + 1), *mine = calloc((size_t)to_bytes + 1, 1),
            *theirs = calloc((size_t)to_bytes + 1, 1);
    for (uint64_t i = 0; i < from_bytes; i++) source[i] = (uint8_t)(rand() >> 7);
    from.data = source;
    to.data = mine;
    const tsr_move move = {&from, &to};
    TSR_TRY(tsr_redistribute(comm, &move, 1, c->round_bytes, &host, err));
    TSR_TRY(by_alltoallw(c, &mesh, placements, comm, source, theirs, arena, err));
    const bool same = memcmp(mine, theirs, (size_t)to_bytes) == 0;
    free(source);
    free(mine);
    free(theirs);
    tsr_arena_free(arena);
    RANKS_NEED(same);
    return TSR_OK;
}

static void test_statedict_oracle__alltoallw_moves_the_same(void **state)
{
    (void)state;
    static const change table[] = {
        {2, {64, 48, 0}, 0, 1, TSR_FLOAT32, 0},         {2, {7, 5, 0}, 0, 1, TSR_INT64, 0},
        {2, {5, 301, 0}, 1, 0, TSR_BFLOAT16, 500},      {3, {6, 10, 9}, 0, 2, TSR_FLOAT64, 1000},
        {3, {40, 3, 17}, 1, 0, TSR_BOOL, 64},           {3, {9, 33, 20}, 2, 1, TSR_COMPLEX128, 0},
        {2, {1000, 700, 0}, 0, 1, TSR_FLOAT32, 0},      {2, {1, 1, 0}, 0, 1, TSR_FLOAT32, 0},
        {2, {1024, 1024, 0}, 1, 0, TSR_FLOAT64, 70000},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) ranks_run(compare, (void *)&table[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_statedict_oracle__alltoallw_moves_the_same)};
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
