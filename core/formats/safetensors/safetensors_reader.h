/* What the three readers of safetensors files share. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_READER_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_READER_H

#include "formats/common/reader.h"
#include "formats/safetensors/safetensors.h"

/* Opens `count` files into an array of the host's allocator, which tsr_safetensors_close_all frees. */
tsr_status tsr_safetensors_open_all(tsr_checkpoint *checkpoint, const uint32_t *files, uint32_t count, tsr_safetensors **out,
                                    tsr_error *err);
void tsr_safetensors_close_all(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count);
/* `count` zeros or more in the checkpoint's arena: the offsets of chunks that are whole tensors. */
tsr_status tsr_safetensors_zeros(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                 const uint64_t **zeros, tsr_error *err);
/* The chunk of a tensor whose file may be cut short: then the chunk has no file, and a finding says so. */
tsr_chunk tsr_safetensors_chunk(const tsr_safetensors *opened, const tsr_safetensors_tensor *tensor,
                                const uint64_t *offsets);
/* Where the checkpoint's files each state the part that they are, lists the parts and puts their names in front of those of the
 * entries, which are in the order of the files: counts[f] of each. */
tsr_status tsr_safetensors_name_parts(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, const uint64_t *counts,
                                      tsr_error *err);
/* The extents of a catalog whose chunks are raw bytes. */
tsr_status tsr_safetensors_extents(tsr_checkpoint *checkpoint,
                                   tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                   tsr_error *err);

#endif
