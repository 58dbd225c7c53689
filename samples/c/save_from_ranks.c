/* Saves a state dict that the ranks of an MPI job hold together, as a checkpoint that PyTorch loads:
 *
 *   mpirun -n 4 save_from_ranks step-1000 1000
 *
 *   state = {"model": {"weight": torch.empty(10, 3)}, "step": 0, "note": ""}
 *   torch.distributed.checkpoint.load(state, checkpoint_id="step-1000") */
#include <stdio.h>
#include <stdlib.h>

#include <tessera/comm_mpi.h>
#include <tessera/native_host.h>
#include <tessera/save_load.h>

enum { ROWS = 10, COLUMNS = 3 };

/* Element (i, j) is i + j / 10. Fills the rows that this rank holds. */
static tsr_status fill(const tsr_tensor *weight, tsr_arena *arena, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count;
    const tsr_status status = tsr_tensor_pieces(weight, arena, &pieces, &count, err);
    for (uint64_t p = 0; p < count && status == TSR_OK; p++) {
        float *rows = pieces[p].data;
        for (uint64_t i = 0; i < pieces[p].sizes[0]; i++)
            for (uint64_t j = 0; j < COLUMNS; j++) rows[i * COLUMNS + j] = (float)(pieces[p].offsets[0] + i) + (float)j / 10;
    }
    return status;
}

/* {"model": {"weight": the rows of this rank}, "step": step, "note": "of N ranks"} */
static tsr_status build(tsr_state_dict *state, const tsr_comm *comm, long step, tsr_error *err)
{
    const uint64_t shape[] = {ROWS, COLUMNS}, mesh_shape[] = {comm->size};
    const tsr_str mesh_names[] = {TSR_STR("dp")};
    const tsr_mesh mesh = {1, mesh_shape, mesh_names};
    const tsr_placement by_rows = {.kind = TSR_SHARD, .dim = 0};
    const tsr_tensor described =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, &by_rows, comm->rank);
    tsr_arena *arena = tsr_state_dict_arena(state);
    const tsr_value *weight;
    tsr_status status = tsr_state_dict_allocate(state, &described, &weight, err);
    if (status == TSR_OK) status = fill(tsr_tensor_of(weight), arena, err);
    if (status != TSR_OK) return status;
    const tsr_value *model = tsr_value_dict(arena, 1, "weight", weight), *number = tsr_value_int(arena, step, err);
    const tsr_value *note = tsr_value_str(arena, tsr_arena_format(arena, err, "of %u ranks", (unsigned)comm->size), err);
    if (!model || !number || !note) return TSR_E_NOMEM;
    status = tsr_state_dict_put(state, TSR_STR("model"), model, err);
    if (status == TSR_OK) status = tsr_state_dict_put(state, TSR_STR("step"), number, err);
    return status == TSR_OK ? tsr_state_dict_put(state, TSR_STR("note"), note, err) : status;
}

static tsr_status save(const char *path, long step, tsr_comm *comm, tsr_error *err)
{
    tsr_native_host native;
    tsr_state_dict *state = NULL;
    tsr_native_host_open(&native, 1);
    tsr_status status = tsr_state_dict_new(&native.host, &state, err);
    if (status == TSR_OK) status = build(state, comm, step, err);
    status = tsr_comm_agree(comm, status, err); /* all ranks learn of a failure before any of them begins to write */
    if (status == TSR_OK) status = tsr_state_dict_save(tsr_state_dict_root(state), comm, path, NULL, &native.host, err);
    tsr_state_dict_free(state);
    tsr_native_host_close(&native);
    return status;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm = NULL;
    tsr_status status = tsr_mpi_start(&argc, &argv, &err);
    if (status == TSR_OK && argc != 3)
        status = tsr_raise(&err, TSR_E_USAGE, TSR_NO_POSITION, "usage: save_from_ranks DEST STEP");
    if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err);
    if (status == TSR_OK) status = save(argv[1], strtol(argv[2], NULL, 10), comm, &err);
    if (status != TSR_OK && (!comm || comm->rank == 0)) fprintf(stderr, "save_from_ranks: %s\n", err.message);
    if (comm) comm->close(comm);
    tsr_mpi_end();
    return status == TSR_OK ? 0 : 2;
}
