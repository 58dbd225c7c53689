/* The pairs of texts that the files of one checkpoint have in common (tsr_catalog.metadata). */
#ifndef TSR_FORMATS_COMMON_METADATA_H
#define TSR_FORMATS_COMMON_METADATA_H

#include "formats/common/reader.h"

/* The pairs of one file; each key occurs once. */
typedef struct tsr_text_pairs {
    const tsr_text_pair *pairs;
    size_t count;
} tsr_text_pairs;

/* Keeps the pairs that are equal in all lists, in the order of the first one, as the catalog's metadata, and reports each of
 * the other keys as safetensors/metadata-differs. `what` names where the lists are from, such as "files". */
tsr_status tsr_metadata_join(tsr_checkpoint *checkpoint, const tsr_text_pairs *lists, uint32_t count, const char *what,
                             tsr_error *err);

/* Index files ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
 *
 *   {"metadata": {"total_size": bytes}, "weight_map": {"name": "file in the same directory", …}}
 *
 * Source: what transformers' save_pretrained, DCP's consolidation and huggingface_hub's save_torch_model write. The last one
 * also puts texts into `metadata`, such as the second names of tied weights. */

typedef struct tsr_weight {
    tsr_str key;       /* unique in the map */
    tsr_str file_name; /* a bare name */
    uint32_t file;     /* number in the store, or TSR_NO_FILE when the store does not have it */
} tsr_weight;

typedef struct tsr_weight_map {
    const tsr_weight *weights; /* in the order of the document */
    uint64_t count;
    const uint32_t *files; /* the distinct files that exist, in order of first appearance */
    uint32_t file_count;
    bool has_total_size;
    uint64_t total_size;  /* bytes */
    tsr_text_pairs texts; /* the members of `metadata` that are texts */
} tsr_weight_map;

/* The file that a value of `weight_map` names. Transformers joins it to the directory's path, so "./FILE" is FILE. */
tsr_str tsr_weight_file_name(tsr_str value);
/* Reads the index file checkpoint->files[0] into the checkpoint's arena. Fails with TSR_E_FORMAT if a file name contains a
 * path separator, "..", or a drive. Missing files and an invalid total_size become findings. */
tsr_status tsr_weight_map_read(tsr_checkpoint *checkpoint, tsr_weight_map *out, tsr_error *err);
/* Adds a finding if total_size is not `bytes`, the size of the mapped tensors. */
tsr_status tsr_weight_map_check_total(tsr_checkpoint *checkpoint, const tsr_weight_map *map, uint64_t bytes, tsr_error *err);
/* Reports files in the root with this ending that the index does not name. */
tsr_status tsr_weight_map_check_stray(tsr_checkpoint *checkpoint, const tsr_weight_map *map, tsr_str ending, tsr_error *err);

#endif
