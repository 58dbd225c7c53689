/* Reshards a checkpoint for a different device mesh, shared by the ranks of an MPI job:
 *
 *   mpirun -n 8 reshard_mpi step-1000/ step-1000-tp2/ dp=4,tp=2 'shard(0),shard(1)'
 *
 * The number of processes is independent of both meshes, and the output has the same bytes for any number of them. */
#include <stdio.h>

#include <tessera/comm_mpi.h>
#include <tessera/native_host.h>
#include <tessera/path.h>

/* Collective: every rank opens the source and makes the same plan, and then they share the work. */
static tsr_status reshard(char **argv, tsr_comm *comm, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_convert_options convert = TSR_OPTIONS(tsr_convert_options);
    tsr_path_write_options options = {.convert = &convert, .comm = comm};
    tsr_checkpoint *checkpoint = NULL;
    tsr_plan *plan = NULL;
    tsr_target target;
    tsr_status status = tsr_path_open(argv[1], host, NULL, &checkpoint, err);
    if (status == TSR_OK) status = tsr_target_parse(tsr_str_from(argv[3]), tsr_str_from(argv[4]), arena, &target, err);
    if (status == TSR_OK) status = tsr_plan_new(tsr_checkpoint_catalog(checkpoint), &target, NULL, host, &plan, err);
    status = tsr_comm_agree(comm, status, err); /* all ranks learn of a failure before any of them begins to write */
    if (status == TSR_OK) {
        convert.plan = plan;
        convert.to = tsr_container_for(tsr_checkpoint_catalog(checkpoint)->format);
        status = tsr_path_write(checkpoint, argv[2], &options, arena, NULL, err);
    }
    tsr_plan_free(plan);
    tsr_path_close(checkpoint);
    return status;
}

static tsr_status run(char **argv, tsr_comm *comm, tsr_error *err)
{
    tsr_native_host native;
    tsr_native_host_open(&native, 1); /* one thread each, because the processes already share the machine */
    tsr_arena *arena = tsr_arena_new(native.host.allocator, 0, err);
    tsr_status status = tsr_comm_agree(comm, arena ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK) status = reshard(argv, comm, &native.host, arena, err);
    tsr_arena_free(arena);
    tsr_native_host_close(&native);
    return status;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm = NULL;
    tsr_status status = tsr_mpi_start(&argc, &argv, &err);
    if (status == TSR_OK && argc != 5)
        status = tsr_raise(&err, TSR_E_USAGE, TSR_NO_POSITION, "usage: reshard_mpi PATH DEST MESH PLACEMENTS");
    if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err);
    if (status == TSR_OK) status = run(argv, comm, &err);
    if (status != TSR_OK && (!comm || comm->rank == 0)) fprintf(stderr, "reshard_mpi: %s\n", err.message);
    if (comm) comm->close(comm);
    tsr_mpi_end();
    return status == TSR_OK ? 0 : 2;
}
