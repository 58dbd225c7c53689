/* Three ranks have two rows each of a column, which they gather; rank 0 prints it. */
#include <stdio.h>

#include <tessera/live.h>
#include <tessera/native_host.h>

enum { ROWS = 6 };

static tsr_status fill(tsr_state_dict *dict, const tsr_comm *comm, tsr_error *err)
{
    const uint64_t shape[] = {ROWS, 1}, mesh_shape[] = {comm->size};
    const tsr_mesh mesh = {1, mesh_shape, NULL};
    const tsr_placement by_rows = {.kind = TSR_SHARD, .dim = 0};
    const tsr_tensor described =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, &by_rows, comm->rank);
    const tsr_value *column;
    const tsr_piece *pieces;
    uint64_t count;
    tsr_status status = tsr_state_dict_allocate(dict, &described, &column, err);
    if (status == TSR_OK)
        status = tsr_tensor_pieces(tsr_tensor_of(column), tsr_state_dict_arena(dict), &pieces, &count, err);
    if (status != TSR_OK) return status;
    for (uint64_t i = 0; i < pieces[0].sizes[0]; i++) ((float *)pieces[0].data)[i] = (float)(pieces[0].offsets[0] + i);
    return tsr_state_dict_put(dict, TSR_STR("column"), column, err);
}

static tsr_status run(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_state_dict *part = NULL, *full = NULL;
    tsr_status status = tsr_state_dict_new(arg, &part, err);
    if (status == TSR_OK) status = tsr_state_dict_new(arg, &full, err);
    if (status == TSR_OK) status = fill(part, comm, err);
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = tsr_state_dict_gather(tsr_state_dict_root(part), comm, NULL, full, err);
    if (status == TSR_OK && comm->rank == 0) {
        const float *column = tsr_tensor_of(tsr_state_dict_get(full, TSR_STR("column")))->data;
        for (int i = 0; i < ROWS; i++) printf("%g\n", column[i]);
    }
    tsr_state_dict_free(full);
    tsr_state_dict_free(part);
    return status;
}

int main(void)
{
    tsr_native_host native;
    tsr_error err = {0};
    tsr_native_host_open(&native, 1);
    const tsr_status status = tsr_comm_threads_run(native.host.allocator, 3, run, &native.host, &err);
    if (status != TSR_OK) fprintf(stderr, "%s\n", err.message);
    tsr_native_host_close(&native);
    return status != TSR_OK;
}
