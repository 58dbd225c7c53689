/* What the four readers of torch.save files share: one file of either form, opened; and the runs of bytes that a full check
 * reads. */
#ifndef TSR_FORMATS_TORCH_TORCH_FILE_H
#define TSR_FORMATS_TORCH_TORCH_FILE_H

#include "formats/common/reader.h"
#include "formats/torch/torch_build.h"

typedef struct tsr_torch_file {
    uint32_t file;
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
} tsr_torch_run;

/* Opens a file of the zip or legacy form into the checkpoint's arena; `rank` is what its name tells. Appends to `runs`
 * (tsr_torch_run). Errors name the file. */
tsr_status tsr_torch_file_open(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                               tsr_vec *runs, tsr_error *err);

/* Keeps a copy of the runs for tsr_torch_extents. */
tsr_status tsr_torch_keep_runs(tsr_checkpoint *checkpoint, const tsr_vec *runs, tsr_error *err);
/* Notes runs of which the tensors of the catalog use only a small part. Only after tsr_torch_keep_runs. */
tsr_status tsr_torch_note_slices(tsr_checkpoint *checkpoint, tsr_error *err);
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

#endif
