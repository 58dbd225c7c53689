/* Weights that torchao quantized: objects that hold several tensors, in torch.save files and DCPs, and the same tensors next to
 * each other in safetensors files, whose metadata states what they are. */
#ifndef TSR_MAPPING_SUBCLASS_H
#define TSR_MAPPING_SUBCLASS_H

#include "mapping/mapped.h"
#include "tessera/sys/map.h"

/* The tensors of a weight, as entries with its name, in the arena of the mapped checkpoint. */
typedef struct tsr_subclass_parts {
    const tsr_entry *data, *scale; /* NULL if the entry is not such a weight */
    /* Of a weight that is stored as several tensors: these, in the source's catalog, and how many they are. */
    const tsr_entry **members;
    uint32_t member_count;
    bool has_input_scale; /* its layer multiplies inputs by a scale of their own (act_pre_scale) */
} tsr_subclass_parts;

/* Finds the numbers of an object, and sets how->scheme and what else the class of the object determines. `how->dtype`
 * becomes the dtype of the object unless `given`. Errors: TSR_E_UNSUPPORTED, naming the entry and its class, if it is a weight of
 * torchao that cannot be dequantized; TSR_E_FORMAT if its tensors do not fit each other; those of reading. */
tsr_status tsr_subclass_find(tsr_mapped *m, const tsr_entry *object, bool given, tsr_subclass_parts *parts, tsr_scaling *how,
                             tsr_error *err);

/* The same for the numbers of a weight in a safetensors file, "layer._weight_qdata" of "layer.weight". `pairs` maps the keys of
 * the catalog's metadata to their positions, and may be NULL. Also TSR_E_FORMAT for damaged metadata. */
tsr_status tsr_subclass_find_flattened(tsr_mapped *m, const tsr_entry *numbers, const tsr_map *pairs, bool given,
                                       tsr_subclass_parts *parts, tsr_scaling *how, tsr_error *err);

#endif
