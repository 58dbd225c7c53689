/* Functions shared by the readers of safetensors files. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_READER_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_READER_H

#include "formats/common/reader.h"
#include "formats/safetensors/safetensors.h"

#include <cjson/cJSON.h>

/* Opens `count` files into an array, allocated by the host's allocator. Free it with tsr_safetensors_close_all. */
tsr_status tsr_safetensors_open_all(tsr_checkpoint *checkpoint, const uint32_t *files, uint32_t count, tsr_safetensors **out,
                                    tsr_error *err);
void tsr_safetensors_close_all(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count);
/* At least as many zeros as any tensor has dimensions, in the checkpoint's arena. They serve as the offsets of chunks that are whole
 * tensors. */
tsr_status tsr_safetensors_zeros(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                 const uint64_t **zeros, tsr_error *err);
/* The chunk of a tensor. If the file was cut short before the tensor's end, the chunk has no file; opening the file added a
 * finding. */
tsr_chunk tsr_safetensors_chunk(const tsr_safetensors *opened, const tsr_safetensors_tensor *tensor,
                                const uint64_t *offsets);
/* The entry of a second name of the tensor `first`, which gets a storage id from the counter if it has none. */
tsr_entry tsr_safetensors_second_entry(tsr_entry *first, tsr_str name, uint32_t *storages);
/* Sets the catalog's metadata, and that of its parts if it has one per file, and the checkpoint's state, for the extents. Reports
 * files without any tensor. */
tsr_status tsr_safetensors_keep_metadata(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                         tsr_error *err);
/* The extents of a catalog whose chunks are all raw bytes, with the checksums that files state of themselves. */
tsr_status tsr_safetensors_extents(tsr_checkpoint *checkpoint,
                                   tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                   tsr_error *err);

#define TSR_DFLOAT11 \
    "a model that DFloat11 compressed, which is not supported: DFloat11Model.from_pretrained of the package dfloat11 loads it"

/* What an index is if its files do not hold the tensors that it names, or NULL. */
const char *tsr_safetensors_foreign_index(const cJSON *index);
#endif
