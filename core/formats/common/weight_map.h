/* Index files ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
 *
 *   {"metadata": {"total_size": bytes}, "weight_map": {"name": "file in the same folder", …}}
 *
 * Source: what transformers' save_pretrained and DCP's consolidation write. */
#ifndef TSR_FORMATS_COMMON_WEIGHT_MAP_H
#define TSR_FORMATS_COMMON_WEIGHT_MAP_H

#include "formats/common/reader.h"

typedef struct tsr_weight {
    tsr_str key;       /* unique in the map */
    tsr_str file_name; /* a bare name */
    uint32_t file;     /* of the store, or TSR_NO_FILE when it is not there */
} tsr_weight;

typedef struct tsr_weight_map {
    const tsr_weight *weights; /* in the order of the document */
    uint64_t count;
    const uint32_t *files; /* the distinct files that are there, in order of first appearance */
    uint32_t file_count;
    bool has_total_size;
    uint64_t total_size; /* bytes */
} tsr_weight_map;

/* Reads the index file checkpoint->files[0] into the checkpoint's arena. A file name with a path separator, "..", or a
 * drive is refused (TSR_E_FORMAT); missing files and an odd total_size become findings. */
tsr_status tsr_weight_map_read(tsr_checkpoint *checkpoint, tsr_weight_map *out, tsr_error *err);
/* Compares total_size with the bytes that the mapped tensors really have. */
tsr_status tsr_weight_map_check_total(tsr_checkpoint *checkpoint, const tsr_weight_map *map, uint64_t bytes, tsr_error *err);
/* Reports root files with this ending that the index does not name. */
tsr_status tsr_weight_map_check_stray(tsr_checkpoint *checkpoint, const tsr_weight_map *map, tsr_str ending, tsr_error *err);

#endif
