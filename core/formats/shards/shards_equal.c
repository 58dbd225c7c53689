/* See shards_equal.h. */
#include "formats/shards/shards_equal.h"

#include "formats/common/rank_bytes.h"
#include "formats/shards/shards_chunks.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"

enum { MAX_READS = 16 };

tsr_shards_equality tsr_shards_equality_of(tsr_checkpoint *checkpoint)
{
    tsr_shards_equality equality = {checkpoint, 0};
    const tsr_store *store = checkpoint->store;
    for (uint32_t f = 0; f < store->file_count && equality.bytes_left < UINT64_MAX / 2; f++)
        equality.bytes_left += store->files[f].size < UINT64_MAX / 64 ? MAX_READS * store->files[f].size : UINT64_MAX / 4;
    return equality;
}

/* What the stated checksums show. */
typedef enum verdict { UNKNOWN, SAME, DIFFERENT } verdict;

static tsr_status by_checksum(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *a, const tsr_chunk *b,
                              verdict *out, tsr_error *err)
{
    tsr_stated_crc first, second = {0};
    TSR_TRY(tsr_checkpoint_crc(checkpoint, entry, a, checkpoint->arena, &first, err));
    if (first.is_stated) TSR_TRY(tsr_checkpoint_crc(checkpoint, entry, b, checkpoint->arena, &second, err));
    const bool known = first.is_stated && second.is_stated;
    *out = !known ? UNKNOWN : first.crc32 == second.crc32 ? SAME : DIFFERENT;
    return TSR_OK;
}

tsr_status tsr_shards_equal_chunks(tsr_shards_equality *equality, const tsr_entry *entry, const tsr_chunk *a,
                                   const tsr_chunk *b, bool *same, tsr_error *err)
{
    verdict shown;
    TSR_TRY(by_checksum(equality->checkpoint, entry, a, b, &shown, err));
    *same = shown == SAME;
    if (shown != UNKNOWN) return TSR_OK;
    const uint64_t bytes = a->byte_length + b->byte_length;
    TSR_FAIL_IF(bytes > equality->bytes_left, err, TSR_E_LIMIT,
                "comparing '%.*s' between ranks would read more than %d times its stored bytes", TSR_STR_ARG(entry->fqn),
                MAX_READS);
    equality->bytes_left -= bytes;
    const tsr_entry first = {
        .fqn = entry->fqn, .dtype = entry->dtype, .ndim = entry->ndim, .shape = a->sizes, .chunks = a, .chunk_count = 1};
    tsr_entry second = first;
    second.chunks = b;
    return tsr_rank_bytes_match(equality->checkpoint, &first, &second, same, err);
}

tsr_status tsr_shards_equal(tsr_shards_equality *equality, const tsr_entry *a, const tsr_entry *b, bool *same,
                            tsr_error *err)
{
    *same = tsr_shards_is_whole(a) && tsr_shards_is_whole(b) && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
    return *same ? tsr_shards_equal_chunks(equality, a, a->chunks, b->chunks, same, err) : TSR_OK;
}
