/* Weights that quantization libraries pack into integers or look up in tables: compressed-tensors' pack-quantized, GPTQ, AWQ, and
 * the 4 and 8 bits of bitsandbytes. All of them are
 *
 *   weight = (number - zero) · scale of its group        or        weight = table[number] · scale of its block
 *
 * and differ in how numbers, zeros and scales are stored. */
#ifndef TSR_MAPPING_MAPPING_PACKED_H
#define TSR_MAPPING_MAPPING_PACKED_H

#include "mapping/mapped.h"
#include "mapping/mapping_codes.h"
#include "tessera/sys/containers.h"

/* Scales that are quantized themselves: table[code] · (scale of its block) + offset. */
typedef struct tsr_nested_scale {
    const tsr_entry *table, *scale; /* NULL: scales are stored as they are */
    uint64_t block;
    float offset;
} tsr_nested_scale;

typedef struct tsr_packed_weight {
    tsr_mapped *mapped;
    tsr_checkpoint *source;
    const char *form;                     /* for messages, such as "GPTQ" */
    tsr_codes numbers, zeros;             /* zeros have the layout of scales */
    const tsr_entry *scale, *group_index; /* group_index: the group of each column, or NULL */
    tsr_nested_scale nested;
    const float *table; /* what numbers mean, or NULL */
    float factor;       /* products are multiplied by it, too */
    /* Of the weight. `transposed` means that numbers, zeros and scales are stored with the columns as lines. */
    uint64_t matrices, rows, columns;
    bool transposed, flat;  /* flat: numbers and scales are one run, whatever the shapes of their tensors */
    uint64_t group, groups; /* columns per group; groups per row */
    bool one_scale;         /* for all rows */
    tsr_dtype rounded;      /* the dtype of the library's products, which are then cast to `dtype` */
    tsr_dtype dtype;
    tsr_lossy rounding, casting; /* what either cast loses; the first one is to `dtype` if that is the same */
    const uint64_t *shape;       /* of the weight */
    uint32_t ndim;
    tsr_str name;
    const tsr_entry *parts[8]; /* the numbers and all their companions, which the weight replaces */
    uint32_t part_count;
} tsr_packed_weight;

/* mapping_packed.c: finds out whether the entry holds packed numbers. *out is NULL if it does not. Errors: TSR_E_FORMAT and
 * TSR_E_UNSUPPORTED, naming the entry and the companion that does not fit; those of reading. */
tsr_status tsr_packed_find(tsr_mapped *m, const tsr_entry *entry, tsr_dtype dtype, const tsr_packed_weight **out,
                           tsr_error *err);

/* mapping_unpack.c: computes elements of the weight (tsr_computed.compute); `ctx` is a tsr_packed_weight. */
tsr_status tsr_packed_compute(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                              tsr_error *err);

/* mapping_stored.c: frees m->bands. */
void tsr_packed_close(tsr_mapped *m);

/* mapping_scaled.c: looks up pairs in tables of 16 products, and codes in a table of 256, of 2 bytes each. */
void tsr_look_up_pairs(const tsr_host *host, const tsr_pair_groups *groups, uint8_t *out);
void tsr_look_up_halves(const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out);

/* Weights that torchao quantized: objects that hold several tensors, in torch.save files and DCPs, and the same tensors next to
 * each other in safetensors files, whose metadata states what they are. */

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
