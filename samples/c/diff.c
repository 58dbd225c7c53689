/* Compares two checkpoints, whose formats and shardings may differ: diff A B
 *
 * Exits with 0 when names, dtypes, shapes and values are the same, 1 when something differs, and 2 after an error. */
#include <stdio.h>

#include <tessera/compare.h>
#include <tessera/native_host.h>
#include <tessera/path.h>

static tsr_status compare(tsr_checkpoint *a, tsr_checkpoint *b, tsr_arena *arena, tsr_diff *diff, tsr_error *err)
{
    const tsr_tolerance bitwise = {.exact = true};
    const tsr_host *host = tsr_checkpoint_host(a);
    tsr_ring *ring = NULL;
    tsr_status status = tsr_diff_catalogs((tsr_catalog_pair){tsr_checkpoint_catalog(a), tsr_checkpoint_catalog(b)}, NULL,
                                          host, arena, diff, err);
    if (status != TSR_OK) return status;
    tsr_difference *differences = tsr_arena_array(arena, diff->pair_count, sizeof *differences, err);
    status = differences ? tsr_ring_new(host, 0, &ring, err) : TSR_E_NOMEM;
    if (status == TSR_OK)
        status = tsr_diff_values(a, b, diff, &(tsr_value_comparison){.tolerance = &bitwise, .ring = ring}, differences, err);
    tsr_ring_free(ring);
    return status;
}

static void print_diff(const tsr_diff *diff)
{
    for (uint64_t i = 0; i < diff->removed_count; i++) printf("- %.*s\n", TSR_STR_ARG(diff->removed[i]->fqn));
    for (uint64_t i = 0; i < diff->added_count; i++) printf("+ %.*s\n", TSR_STR_ARG(diff->added[i]->fqn));
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        const tsr_diff_pair *pair = &diff->pairs[i];
        if (!pair->what) continue;
        printf("~ %.*s%s%s%s%s\n", TSR_STR_ARG(pair->a->fqn), pair->what & TSR_DIFF_DTYPE ? " dtype" : "",
               pair->what & TSR_DIFF_SHAPE ? " shape" : "", pair->what & TSR_DIFF_VALUE ? " values" : "",
               pair->what & TSR_DIFF_OBJECT ? " object" : "");
    }
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_checkpoint *a = NULL, *b = NULL;
    tsr_error err = {0};
    tsr_diff diff;
    if (argc != 3) {
        fprintf(stderr, "usage: diff A B\n");
        return 2;
    }
    tsr_native_host_open(&native, 0);
    tsr_arena *arena = tsr_arena_new(native.host.allocator, 0, &err);
    tsr_status status = arena ? tsr_path_open(argv[1], &native.host, NULL, &a, &err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_path_open(argv[2], &native.host, NULL, &b, &err);
    if (status == TSR_OK) status = compare(a, b, arena, &diff, &err);
    if (status == TSR_OK) print_diff(&diff);
    else fprintf(stderr, "diff: %s\n", err.message);
    const int result = status != TSR_OK ? 2 : tsr_diff_is_same(&diff) ? 0 : 1;
    tsr_path_close(b);
    tsr_path_close(a);
    tsr_arena_free(arena);
    tsr_native_host_close(&native);
    return result;
}
