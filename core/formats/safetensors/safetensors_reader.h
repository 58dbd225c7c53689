/* Functions shared by the readers of safetensors files. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_READER_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_READER_H

#include "formats/common/reader.h"
#include "formats/safetensors/safetensors.h"

/* Opens `count` files into an array, allocated by the host's allocator. Free it with tsr_safetensors_close_all. */
tsr_status tsr_safetensors_open_all(tsr_checkpoint *checkpoint, const uint32_t *files, uint32_t count, tsr_safetensors **out,
                                    tsr_error *err);
void tsr_safetensors_close_all(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count);
/* At least as many zeros as any tensor has dimensions, in the checkpoint's arena. They serve as the offsets of chunks that
 * are whole tensors. */
tsr_status tsr_safetensors_zeros(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                 const uint64_t **zeros, tsr_error *err);
/* The chunk of a tensor. If the file was cut short before the tensor's end, the chunk has no file; opening the file added a
 * finding. */
tsr_chunk tsr_safetensors_chunk(const tsr_safetensors *opened, const tsr_safetensors_tensor *tensor,
                                const uint64_t *offsets);
/* Sets the catalog's metadata, and that of its parts if it has one per file. Reports files without any tensor. */
tsr_status tsr_safetensors_keep_metadata(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                         tsr_error *err);
/* Decides for files whose tensors are listed together which second names no other file has as well. */
tsr_status tsr_safetensors_settle_seconds(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count,
                                          tsr_error *err);
/* The entry of a second name of the tensor `first`, which gets a storage id from the counter if it has none. */
tsr_entry tsr_safetensors_second_entry(tsr_entry *first, tsr_str name, uint32_t *storages);
/* Whether the checkpoint's files are its parts: each states a part, and all are different. */
bool tsr_safetensors_are_parts(const tsr_checkpoint *checkpoint, const tsr_safetensors *opened);
/* If each of the checkpoint's files states which part it is, lists the parts and puts their names in front of the names of
 * the entries. The entries are in the order of the files, counts[f] of them per file. */
tsr_status tsr_safetensors_name_parts(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, const uint64_t *counts,
                                      tsr_error *err);
/* The extents of a catalog whose chunks are all raw bytes. */
tsr_status tsr_safetensors_extents(tsr_checkpoint *checkpoint,
                                   tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                   tsr_error *err);

#endif
