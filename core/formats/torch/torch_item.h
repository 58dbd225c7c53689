/* One torch.save archive that fills a range of a file: a DCP item, or a whole file. Its pickle becomes a value tree in
 * which dense tensors are TSR_VALUE_TENSOR nodes, each with one chunk that says where the bytes lie (chunk.view is set
 * where they are not contiguous raw bytes). A DTensor or ShardedTensor is a tensor of the global size whose chunks are the
 * boxes that its rank holds. Quantized, sparse, nested and other tensors are TSR_VALUE_OBJECT with a DICT of named parts.
 *
 * Source of the behavior: torch/serialization.py, torch/_utils.py, torch/_tensor.py of PyTorch 2.13. */
#ifndef TSR_FORMATS_TORCH_TORCH_ITEM_H
#define TSR_FORMATS_TORCH_TORCH_ITEM_H

#include "codec/zip.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"

typedef struct tsr_torch_source {
    tsr_range range; /* the archive's bytes */
    /* The rank in the file's name, for meshes without a coordinate. */
    bool has_rank;
    uint32_t rank;
    /* The chunk that holds a zstd stream which contains the archive; NULL if the archive is not compressed. `range` then
     * counts the decompressed bytes, with the file number of the stream. The chunk of every tensor is the stream, and its
     * view describes the tensor's place in the decompressed bytes. */
    const tsr_chunk *zstd;
    bool salvage; /* the archive has lost its end: chunks of storages that are not whole get the file TSR_NO_FILE */
} tsr_torch_source;

typedef struct tsr_torch_item {
    const tsr_value *root;
    tsr_zip zip;
    uint32_t storage_count; /* storage ids of its tensors are 1 … storage_count */
    bool rank_known;        /* a DTensor or ShardedTensor states the rank that wrote the file */
    uint32_t rank;
    uint32_t world;        /* the number of ranks according to these; 0: unknown */
    uint64_t pickle_bytes; /* size of the pickle */
    /* Some storage has bytes, and no storage has a CRC other than 0, although other members have: torch.serialization.skip_data
     * leaves room for storages, which are filled in later. */
    bool storages_unsummed;
} tsr_torch_item;

/* Adds to `findings` (may be NULL) unlisted classes (a warning if they are built, an error if they are called) and an
 * archive whose CRCs, or those of whose storages, are all 0 (a note). Checks that each storage lies within its member and each dense tensor within its
 * storage. Everything lives in `arena`. Errors: TSR_E_FORMAT, TSR_E_UNSUPPORTED (TorchScript, unknown storages),
 * TSR_E_LIMIT, TSR_E_IO, TSR_E_NOMEM, with positions in the file. Thread-safe for different arenas and findings. */
tsr_status tsr_torch_item_open(const tsr_torch_source *from, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                               tsr_torch_item *out, tsr_error *err);

#endif
