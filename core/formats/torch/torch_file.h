/* What the four readers of torch.save files share: one file of either form, opened; and the runs of bytes that a full check
 * reads. */
#ifndef TSR_FORMATS_TORCH_TORCH_FILE_H
#define TSR_FORMATS_TORCH_TORCH_FILE_H

#include "codec/zip.h"
#include "formats/common/reader.h"
#include "formats/pickle/pickle_verdict.h"
#include "formats/torch/torch_build.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"

typedef struct tsr_torch_file {
    const tsr_value *root;
    uint32_t storage_count;
    tsr_torch_rank rank;
    uint64_t pickle_bytes; /* what the values were read from */
} tsr_torch_file;

/* A zip member or a legacy storage. */
typedef struct tsr_torch_run {
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
    bool has_crc;
    uint32_t crc32;
    tsr_str member;
    bool unloadable; /* as in tsr_torch_storage */
    uint64_t pickled_at;
} tsr_torch_run;

/* Opens a file of the zip or legacy form into the checkpoint's arena; `rank` is what its name tells. Appends to `runs`
 * (tsr_torch_run). Errors name the file. */
tsr_status tsr_torch_file_open(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                               tsr_vec *runs, tsr_error *err);

/* torch_legacy.c: the same for a file that is not a zip archive. */
tsr_status tsr_torch_legacy_open(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                                 tsr_vec *runs, tsr_error *err);

/* Keeps a copy of the runs for tsr_torch_extents. */
tsr_status tsr_torch_keep_runs(tsr_checkpoint *checkpoint, const tsr_vec *runs, tsr_error *err);
/* Adds findings about storages, with a tensor of each: those that PyTorch cannot load, and those of which the tensors of the catalog
 * use only a small part. Only after tsr_torch_keep_runs. */
tsr_status tsr_torch_note_storages(tsr_checkpoint *checkpoint, tsr_error *err);
/* The extents of runs in the order of files and bytes, with what is between them where Tessera wrote it. They belong to no entry. */
tsr_status tsr_torch_run_extents(tsr_checkpoint *checkpoint, const tsr_torch_run *runs, size_t count,
                                 tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                 tsr_error *err);
/* Whether the CRC-32s of two tensors' storages tell that the tensors, of equal dtype and shape, are equal or different
 * (*same). False: they do not, because an archive has none or because a tensor is only a part of its storage. Only after
 * tsr_torch_keep_runs. */
bool tsr_torch_decide(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same);
/* The `extents` of every torch reader: each run, with the chunk that fills it exactly, if there is one. */
tsr_status tsr_torch_extents(tsr_checkpoint *checkpoint,
                             tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                             tsr_error *err);
/* Their `crc`. */
tsr_status tsr_torch_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                         tsr_stated_crc *out, tsr_error *err);

/* One torch.save archive that fills a range of a file: a DCP item, or a whole file. Its pickle becomes a value tree in
 * which dense tensors are TSR_VALUE_TENSOR nodes, each with one chunk that says where the bytes lie (chunk.view is set
 * where they are not contiguous raw bytes). A DTensor or ShardedTensor is a tensor of the global size whose chunks are the
 * boxes that its rank holds. Quantized, sparse, nested and other tensors are TSR_VALUE_OBJECT with a DICT of named parts.
 *
 * Source of the behavior: torch/serialization.py, torch/_utils.py, torch/_tensor.py of PyTorch 2.13. */

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

/* The name of the first member of a zip archive that begins with these bytes; empty if it is not a zip archive. */
tsr_str tsr_first_member(tsr_str head);

/* What loading a torch.save pickle would do beside making data: pickle_verdict.h, and what the known functions would do with
 * the arguments that they are given here. */

/* Adds the findings on the pickle of `build`, if these are wanted. `resolves`: PyTorch resolves persistent ids
 * in it. */
tsr_status tsr_torch_verdict(const tsr_torch_build *build, bool resolves, tsr_error *err);
/* The same of a pickle that ends at `end` of its `size` bytes. */
tsr_status tsr_torch_verdict_on_end(const tsr_torch_build *build, uint64_t end, uint64_t size, tsr_error *err);

#endif
