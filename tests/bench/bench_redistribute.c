/* Redistributes a float32 matrix in memory from rows to columns over N ranks: `mpirun -n N bench_redistribute SIDE[,SIDE…]
 * ROWS COLUMNS [TURNS]`. SIDE is tessera, shared (the same from a state dict in memory that the ranks share), alltoallw
 * (subarray types), alltoallv (packed), or copy (every rank copies its own bytes once). Several sides take turns. Prints one
 * line of JSON per side with medians over TURNS: `wall` is the time from a barrier to the end of the last rank, and `cpu`
 * that of all ranks together, including busy waiting. Every element is checked.
 *
 * Without MPI, `bench_redistribute bounds RANKS[/NODES]…` counts the messages and bytes between simulated ranks, and between
 * their nodes, for pairs of placements, and prints them next to the least possible numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "redistribute_bounds.h"
#include "tessera/comm_mpi.h"
#include "tessera/redistribute.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/statedict.h"

typedef struct matrix {
    uint64_t rows, columns; /* both are multiples of the number of ranks */
    uint64_t own_rows, own_columns;
    uint64_t rank, ranks;
    uint32_t *by_rows, *by_columns, *packed;
    tsr_state_dict *dict;
    const tsr_tensor *shared; /* the tensor of `dict`, with the same rows */
} matrix;

static int failed(const char *what)
{
    fprintf(stderr, "bench_redistribute: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

static void fill(matrix *m)
{
    for (uint64_t i = 0; i < m->own_rows * m->columns; i++)
        m->by_rows[i] = (uint32_t)(m->rank * m->own_rows * m->columns + i);
    if (m->shared) memcpy(m->shared->data, m->by_rows, m->own_rows * m->columns * 4);
    memset(m->by_columns, 0xff, m->rows * m->own_columns * 4);
}

static void check(const matrix *m)
{
    for (uint64_t r = 0; r < m->rows; r++) {
        for (uint64_t c = 0; c < m->own_columns; c++)
            if (m->by_columns[r * m->own_columns + c] != (uint32_t)(r * m->columns + m->rank * m->own_columns + c))
                failed("an element is wrong");
    }
}

/* ---- sides ---- */

static tsr_host host = {.allocator = &tsr_allocator_libc};

static void by_tessera(const matrix *m, tsr_comm *comm, bool share)
{
    const uint64_t ranks[] = {m->ranks}, shape[] = {m->rows, m->columns};
    const tsr_str name = {NULL, 0};
    const tsr_mesh mesh = {1, ranks, &name};
    const tsr_placement rows = {TSR_SHARD, 0, 0}, columns = {TSR_SHARD, 1, 0};
    const tsr_tensor from = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, m->by_rows), &mesh, &rows, m->rank);
    const tsr_tensor to =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, m->by_columns), &mesh, &columns, m->rank);
    const tsr_move move = {share ? m->shared : &from, &to};
    tsr_error err = {0};
    if (tsr_redistribute(comm, &move, 1, 0, &host, &err) != TSR_OK) failed(err.message);
}

/* Copies the rows into memory that the ranks share. */
static void share_rows(matrix *m, tsr_comm *comm)
{
    const uint64_t ranks[] = {m->ranks}, shape[] = {m->rows, m->columns};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement rows = {TSR_SHARD, 0, 0};
    const tsr_tensor like = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, m->by_rows), &mesh, &rows, m->rank);
    const tsr_value leaf = {.kind = TSR_VALUE_TENSOR, .as.tensor = &like.entry};
    const tsr_create_options options = {.share = comm};
    tsr_error err = {0};
    if (tsr_state_dict_new(&host, &m->dict, &err) != TSR_OK ||
        tsr_state_dict_create(&leaf, &options, m->dict, &err) != TSR_OK)
        failed(err.message);
    m->shared = tsr_tensor_of(tsr_state_dict_root(m->dict));
}

static void by_alltoallw(const matrix *m)
{
    int counts[256], offsets[256];
    MPI_Datatype out[256], in[256];
    for (int r = 0; r < (int)m->ranks; r++) {
        const int from_sizes[] = {(int)m->own_rows, (int)m->columns}, to_sizes[] = {(int)m->rows, (int)m->own_columns};
        const int block[] = {(int)m->own_rows, (int)m->own_columns};
        const int from_at[] = {0, r * (int)m->own_columns}, to_at[] = {r * (int)m->own_rows, 0};
        MPI_Type_create_subarray(2, from_sizes, block, from_at, MPI_ORDER_C, MPI_UINT32_T, &out[r]);
        MPI_Type_create_subarray(2, to_sizes, block, to_at, MPI_ORDER_C, MPI_UINT32_T, &in[r]);
        MPI_Type_commit(&out[r]);
        MPI_Type_commit(&in[r]);
        counts[r] = 1;
        offsets[r] = 0;
    }
    MPI_Alltoallw(m->by_rows, counts, offsets, out, m->by_columns, counts, offsets, in, MPI_COMM_WORLD);
    for (int r = 0; r < (int)m->ranks; r++) {
        MPI_Type_free(&out[r]);
        MPI_Type_free(&in[r]);
    }
}

/* The received blocks are in place already, so only the sender packs. */
static void by_alltoallv(const matrix *m)
{
    int counts[256], offsets[256];
    const uint64_t block = m->own_rows * m->own_columns;
    for (uint64_t r = 0; r < m->ranks; r++) {
        counts[r] = (int)block;
        offsets[r] = (int)(r * block);
        for (uint64_t i = 0; i < m->own_rows; i++)
            memcpy(m->packed + r * block + i * m->own_columns, m->by_rows + i * m->columns + r * m->own_columns,
                   m->own_columns * 4);
    }
    MPI_Alltoallv(m->packed, counts, offsets, MPI_UINT32_T, m->by_columns, counts, offsets, MPI_UINT32_T, MPI_COMM_WORLD);
}

enum { MOST_TURNS = 64, MOST_SIDES = 8 };

typedef struct side {
    const char *name;
    double wall[MOST_TURNS], cpu[MOST_TURNS];
} side;

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void take_turn(side *s, int number, matrix *m, tsr_comm *comm)
{
    fill(m);
    MPI_Barrier(MPI_COMM_WORLD);
    double wall = -MPI_Wtime(), cpu = -cpu_seconds();
    if (strcmp(s->name, "tessera") == 0) by_tessera(m, comm, false);
    else if (strcmp(s->name, "shared") == 0) by_tessera(m, comm, true);
    else if (strcmp(s->name, "alltoallw") == 0) by_alltoallw(m);
    else if (strcmp(s->name, "alltoallv") == 0) by_alltoallv(m);
    else memcpy(m->by_columns, m->by_rows, m->own_rows * m->columns * 4);
    cpu += cpu_seconds();
    MPI_Barrier(MPI_COMM_WORLD);
    wall += MPI_Wtime();
    MPI_Allreduce(&cpu, &s->cpu[number], 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    s->wall[number] = wall;
    if (strcmp(s->name, "copy") != 0) check(m);
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *numbers, int count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, by_size);
    return numbers[count / 2];
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm;
    side sides[MOST_SIDES];
    int side_count = 0;
    host.limits = tsr_limits_default();
    if (argc > 1 && strcmp(argv[1], "bounds") == 0) return redistribute_bounds(argc - 2, argv + 2);
    if (tsr_mpi_start(&argc, &argv, &err) != TSR_OK ||
        tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err) != TSR_OK)
        return failed(err.message);
    if (argc < 4 || comm->size > 256) return failed("SIDE[,SIDE] ROWS COLUMNS [TURNS], at most 256 ranks");
    matrix m = {
        .rows = (uint64_t)atoll(argv[2]), .columns = (uint64_t)atoll(argv[3]), .rank = comm->rank, .ranks = comm->size};
    int turns = argc > 4 ? atoi(argv[4]) : 5;
    if (turns >= MOST_TURNS) turns = MOST_TURNS - 1;
    for (char *name = strtok(argv[1], ","); name && side_count < MOST_SIDES; name = strtok(NULL, ","))
        sides[side_count++].name = name;
    if (m.rows % m.ranks || m.columns % m.ranks) return failed("rows and columns are not multiples of the ranks");
    m.own_rows = m.rows / m.ranks;
    m.own_columns = m.columns / m.ranks;
    m.by_rows = malloc(m.own_rows * m.columns * 4);
    m.by_columns = malloc(m.rows * m.own_columns * 4);
    m.packed = malloc(m.own_rows * m.columns * 4);
    if (!m.by_rows || !m.by_columns || !m.packed) return failed("no memory");
    for (int k = 0; k < side_count; k++)
        if (strcmp(sides[k].name, "shared") == 0) share_rows(&m, comm);
    memset(m.packed, 1, m.own_rows * m.columns * 4);
    for (int i = 0; i <= turns; i++) { /* the first turn, not counted, sets up pages and connections */
        for (int k = 0; k < side_count; k++) take_turn(&sides[k], i ? i - 1 : 0, &m, comm);
    }
    for (int k = 0; k < side_count && comm->rank == 0; k++) {
        const double wall = median(sides[k].wall, turns), cpu = median(sides[k].cpu, turns);
        printf("{\"side\": \"%s\", \"wall\": %.6f, \"cpu\": %.6f, \"gb_per_s\": %.3f}\n", sides[k].name, wall, cpu,
               (double)(m.rows * m.columns * 4) / wall * 1e-9);
    }
    tsr_state_dict_free(m.dict);
    free(m.by_rows);
    free(m.by_columns);
    free(m.packed);
    comm->close(comm);
    tsr_mpi_end();
    return 0;
}
