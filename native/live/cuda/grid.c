#include "live/cuda/grid.h"

#include "live/cuda/backend.h"
#include "live/cuda/kernel_body.h"

#include "tessera/sys/alloc.h"

void tsr_grid_runs(const tsr_kernel_run *runs, uint32_t count, uint32_t units)
{
    for (uint32_t unit = 0; unit < units; unit++) {
        for (uint32_t thread = 0; thread < TSR_KERNEL_THREADS; thread++) tsr_body_runs(runs, count, unit, thread);
    }
}

void tsr_grid_boxes(const tsr_kernel_box *boxes, uint32_t count, uint32_t units)
{
    for (uint32_t unit = 0; unit < units; unit++) {
        for (uint32_t thread = 0; thread < TSR_KERNEL_THREADS; thread++) tsr_body_boxes(boxes, count, unit, thread);
    }
}

tsr_status tsr_grid_checksum(const tsr_allocator *allocator, const void *data, uint64_t size, uint32_t *crc, tsr_error *err)
{
    const tsr_segments segments = tsr_segments_of(size);
    const size_t words = 8 * 256 + (size_t)segments.count + (size_t)segments.groups;
    uint32_t *tables = tsr_alloc(allocator, words, sizeof *tables, err);
    if (!tables) return TSR_E_NOMEM;
    uint32_t *crcs = tables + 8 * 256, *groups = crcs + segments.count;
    const uint32_t power = tsr_segments_power(TSR_KERNEL_CRC_SEGMENT);
    tsr_segments_tables(tables);
    for (uint64_t i = 0; i < segments.count; i++) crcs[i] = tsr_body_crc_segment(tables, data, size, i);
    for (uint64_t i = 0; i < segments.groups; i++) groups[i] = tsr_body_crc_join(crcs, segments.full, i, power);
    *crc = tsr_segments_crc(groups, segments.count > segments.full ? crcs[segments.full] : 0, size);
    tsr_free(allocator, tables, words, sizeof *tables);
    return TSR_OK;
}

/* Runs as many threads as the kernel would have, and joins their sums like the kernel's atomic operations. */
void tsr_grid_scan(int dtype, const void *data, uint64_t count, tsr_kernel_scan *out)
{
    const uint64_t wanted = count < TSR_KERNEL_SCAN_THREADS ? count : TSR_KERNEL_SCAN_THREADS;
    const uint64_t threads = (wanted + TSR_KERNEL_THREADS - 1) / TSR_KERNEL_THREADS * TSR_KERNEL_THREADS;
    *out = tsr_body_scan_none();
    for (uint64_t i = 0; i < threads; i++) {
        const tsr_kernel_scan mine = tsr_body_scan(dtype, data, count, i, threads);
        out->nan += mine.nan;
        out->inf += mine.inf;
        out->finite += mine.finite;
        if (mine.least < out->least) out->least = mine.least;
        if (mine.greatest > out->greatest) out->greatest = mine.greatest;
    }
}
