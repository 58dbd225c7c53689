/* One torch.save archive that fills a range of a file: a DCP item, or a whole file. Its pickle becomes a value tree in
 * which dense tensors are TSR_VALUE_TENSOR nodes, each with one chunk that says where the bytes lie (chunk.view is set
 * where they are not contiguous raw bytes). A DTensor or ShardedTensor is a tensor of the global size whose chunks are the
 * boxes that its rank holds. Quantized, sparse, nested and other tensors are TSR_VALUE_OBJECT with a DICT of named parts.
 *
 * Source of the behaviour: torch/serialization.py, torch/_utils.py, torch/_tensor.py of PyTorch 2.13. */
#ifndef TSR_FORMATS_TORCH_TORCH_ITEM_H
#define TSR_FORMATS_TORCH_TORCH_ITEM_H

#include "codec/zip.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"

typedef struct tsr_torch_source {
    tsr_range range; /* of the archive */
    /* The file's name says which rank wrote it: meshes without a coordinate take it. */
    bool has_rank;
    uint32_t rank;
    /* The archive is inside the zstd stream that fills this chunk: `range` is of the decompressed bytes, under the stream's
     * file number. Every tensor's chunk is the stream, its view lies in the decompressed bytes. NULL: it is in the file. */
    const tsr_chunk *zstd;
} tsr_torch_source;

typedef struct tsr_torch_item {
    const tsr_value *root;
    tsr_zip zip;
    uint32_t storage_count; /* storage ids of its tensors are 1 … storage_count */
    bool rank_known;        /* some DTensor or ShardedTensor says which rank wrote it */
    uint32_t rank;
    uint32_t world;         /* ranks there are, as far as these tell; else 0 */
    uint64_t pickle_bytes;  /* what the values were read from */
} tsr_torch_item;

/* `findings` (may be NULL) takes what is odd: unlisted classes (warning when built, error when called), CRC 0
 * throughout (note). Dense tensors are checked: storage within its member, strides within the storage. Everything lives
 * in `arena`. Errors: TSR_E_FORMAT, TSR_E_UNSUPPORTED (TorchScript, unknown storages), TSR_E_LIMIT, TSR_E_IO,
 * TSR_E_NOMEM, with positions in the file. Thread-safe for different arenas and findings. */
tsr_status tsr_torch_item_open(const tsr_torch_source *from, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                               tsr_torch_item *out, tsr_error *err);

#endif
