/* Host pages, and the arithmetic of checksums by segments, which both back ends share. */
#include <sys/mman.h>

#include "live/cuda/backend.h"
#include "live/cuda/kernel_body.h"

void *tsr_pages_new(size_t size, bool shared)
{
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void tsr_pages_free(void *pages, size_t size)
{
    if (pages) munmap(pages, size);
}

tsr_segments tsr_segments_of(uint64_t size)
{
    const uint64_t full = size / TSR_KERNEL_CRC_SEGMENT;
    return (tsr_segments){full + (size % TSR_KERNEL_CRC_SEGMENT != 0), full,
                          (full + TSR_KERNEL_CRC_JOIN - 1) / TSR_KERNEL_CRC_JOIN};
}

uint32_t tsr_segments_power(uint64_t bytes)
{
    uint32_t power = 0x80000000u, square = 1u << 23; /* 1 and x^8 */
    for (; bytes; bytes >>= 1, square = tsr_body_crc_times(square, square)) {
        if (bytes & 1) power = tsr_body_crc_times(square, power);
    }
    return power;
}

void tsr_segments_tables(uint32_t *tables)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        tables[b] = crc;
    }
    for (uint32_t i = 256; i < 8 * 256; i++) tables[i] = tables[tables[i - 256] & 0xff] ^ tables[i - 256] >> 8;
}

uint32_t tsr_segments_crc(const uint32_t *groups, uint32_t last, uint64_t size)
{
    const tsr_segments segments = tsr_segments_of(size);
    const uint64_t in_last = segments.full % TSR_KERNEL_CRC_JOIN ? segments.full % TSR_KERNEL_CRC_JOIN : TSR_KERNEL_CRC_JOIN;
    const uint32_t whole = tsr_segments_power((uint64_t)TSR_KERNEL_CRC_SEGMENT * TSR_KERNEL_CRC_JOIN);
    uint32_t crc = 0;
    for (uint64_t i = 0; i < segments.groups; i++) {
        const bool is_last = i + 1 == segments.groups;
        const uint32_t power = is_last ? tsr_segments_power(in_last * TSR_KERNEL_CRC_SEGMENT) : whole;
        crc = tsr_body_crc_times(power, crc) ^ groups[i];
    }
    if (segments.count == segments.full) return crc;
    return tsr_body_crc_times(tsr_segments_power(size % TSR_KERNEL_CRC_SEGMENT), crc) ^ last;
}
