/* See end_sum.h. */
#include "formats/common/end_sum.h"

#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum {
    BITS = 32,
    BLOCK = 4096,
    SEARCHED = 1 << 16 /* bytes at the end of a file */
};

static const char pairs[2][3] = {" \t", "\t "};

tsr_status tsr_end_sum_append(tsr_vec *text, const tsr_host *host, tsr_error *err)
{
    const uint32_t crc = tsr_crc32(host, 0, text->items, text->count);
    for (int bit = BITS - 1; bit >= 0; bit--) TSR_TRY(tsr_vec_append(text, pairs[crc >> bit & 1], 2, err));
    return tsr_vec_append(text, "\n", 1, err);
}

typedef struct end_sum {
    size_t wrong; /* bytes that cannot be there, or more than one */
    uint32_t crc;
} end_sum;

static end_sum decode(const char *bytes)
{
    end_sum out = {.wrong = bytes[2 * (size_t)BITS] != '\n'};
    for (size_t i = 0; i < BITS; i++) {
        const char *pair = bytes + 2 * i;
        const bool one = pair[0] == '\t' || pair[1] == ' ';
        out.crc = out.crc << 1 | one;
        out.wrong += (size_t)(pair[0] != pairs[one][0]) + (pair[1] != pairs[one][1]);
    }
    return out;
}

/* Finds a checksum that something was appended to: white space, which every reader of JSON accepts, or zeros of a copy that reserved
 * blocks. It counts as damaged. */
static tsr_status search_end(tsr_store *store, uint32_t file, end_sum *out, tsr_error *err)
{
    char block[BLOCK];
    const uint64_t size = store->files[file].size;
    for (uint64_t end = size; end >= TSR_END_SUM_SIZE && size - end < SEARCHED; end -= BLOCK - (TSR_END_SUM_SIZE - 1)) {
        const size_t held = end < sizeof block ? (size_t)end : sizeof block;
        TSR_TRY(tsr_store_read(store, file, end - held, block, held, err));
        for (size_t at = held - TSR_END_SUM_SIZE + 1; at-- > 0;) {
            const end_sum found = decode(block + at);
            if (found.wrong) continue;
            *out = (end_sum){.wrong = 1, .crc = found.crc};
            return TSR_OK;
        }
        if (held == end) return TSR_OK;
    }
    return TSR_OK;
}

static tsr_status read_end(tsr_store *store, uint32_t file, end_sum *out, tsr_error *err)
{
    char bytes[TSR_END_SUM_SIZE];
    const uint64_t size = store->files[file].size;
    *out = (end_sum){.wrong = sizeof bytes};
    if (size < sizeof bytes) return TSR_OK;
    TSR_TRY(tsr_store_read(store, file, size - sizeof bytes, bytes, sizeof bytes, err));
    *out = decode(bytes);
    return out->wrong > 1 && !TSR_IS_SMALL ? search_end(store, file, out, err) : TSR_OK;
}

bool tsr_end_sum_is(tsr_str bytes)
{
    return bytes.size == TSR_END_SUM_SIZE && decode(bytes.data).wrong <= 1;
}

tsr_status tsr_end_sum_extent(tsr_store *store, uint32_t file,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    end_sum end;
    if (file == TSR_NO_FILE) return TSR_OK;
    TSR_TRY(read_end(store, file, &end, err));
    if (end.wrong > 1) return TSR_OK;
    /* The bit of a damaged pair is a guess, so the CRC might be right. With the pairs it cannot be. */
    const uint64_t size = store->files[file].size - (end.wrong ? 0 : TSR_END_SUM_SIZE);
    const tsr_extent extent = {
        .file = file, .byte_length = size, .has_crc = true, .covers = TSR_COVERS_FILE, .crc32 = end.crc};
    return each(ctx, &extent, err);
}
