/* R3: what hostile input costs. Builds every hostile pickle, archive, `.metadata`, header and index of
 * tests/robust/hostile.c at about the requested size, and opens, validates and walks it. Prints the milliseconds of CPU time
 * per megabyte (the least of three runs), worst first. Odd input that is accepted is measured as well.
 *     bench_hostile [MEGABYTES] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "robust/hostile.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"
#include "tessera/validate.h"

enum { RUNS = 3 };

typedef struct result {
    const hostile_group *group;
    const hostile_shape *shape;
    double megabytes, ms_a_megabyte;
    bool refused;
} result;

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static tsr_status pass(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)ctx, (void)extent, (void)err;
    return TSR_OK;
}

/* Whether the content was rejected, or gave a finding of level error. */
static bool open_once(const char *name, const hostile_text *content)
{
    const tsr_memory_file file = {tsr_str_from(name), {content->data, content->size}};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    if (tsr_store_from_memory(host.allocator, &file, 1, &store, &err) != TSR_OK) abort();
    tsr_status status = tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err);
    if (status == TSR_OK) {
        tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
        status = tsr_validate_catalog(tsr_checkpoint_catalog(checkpoint), &host, findings, &err);
        if (status == TSR_OK) status = tsr_checkpoint_extents(checkpoint, pass, NULL, &err);
        if (tsr_findings_total(findings, TSR_ERROR)) status = TSR_E_FORMAT;
        tsr_checkpoint_close(checkpoint);
    }
    store->close(store);
    return status != TSR_OK;
}

static result measure(const hostile_group *group, const hostile_shape *shape, double megabytes)
{
    result out = {.group = group, .shape = shape};
    hostile_text content = hostile_build(group, shape, group->n);
    double best = 1e9, scale = megabytes * 1e6 / (double)content.size;
    free(content.data);
    content = hostile_build(group, shape, (size_t)((double)group->n * scale) + 1);
    out.megabytes = (double)content.size / 1e6;
    for (int run = 0; run < RUNS; run++) {
        double start = cpu_seconds();
        out.refused = open_once(group->file, &content);
        double took = cpu_seconds() - start;
        if (took < best) best = took;
    }
    free(content.data);
    out.ms_a_megabyte = 1e3 * best / out.megabytes;
    return out;
}

static int by_cost(const void *left, const void *right)
{
    const result *a = left, *b = right;
    return (a->ms_a_megabyte < b->ms_a_megabyte) - (a->ms_a_megabyte > b->ms_a_megabyte);
}

int main(int argc, char **argv)
{
    const double megabytes = argc > 1 ? atof(argv[1]) : 1;
    result results[256];
    size_t count = 0;
    struct rusage usage;
    for (size_t g = 0; g < HOSTILE_GROUPS; g++)
        for (size_t i = 0; i < hostile_groups[g].count; i++)
            results[count++] = measure(&hostile_groups[g], &hostile_groups[g].shapes[i], megabytes);
    qsort(results, count, sizeof *results, by_cost);
    for (size_t i = 0; i < count; i++) {
        static const char *const verdicts[] = {"accepted", "refused", "capped"};
        const result *r = &results[i];
        printf("%8.2f ms/MB  %6.2f MB  %-8s  %s: %s\n", r->ms_a_megabyte, r->megabytes,
               r->shape->verdict == CAPPED ? "capped" : verdicts[r->refused], r->group->name, r->shape->name);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("%zu inputs, peak memory %.0f MiB\n", count, (double)usage.ru_maxrss / 1024);
    return 0;
}
