/* An opened map: the state of a mapped checkpoint. */
#ifndef TSR_MAPPING_MAPPED_H
#define TSR_MAPPING_MAPPED_H

#include "formats/common/reader.h"
#include "mapping/mapping_boxes.h"

/* A file of the mapped store whose bytes are made while they are read. */
typedef struct tsr_computed {
    enum { TSR_COMPUTED_CONSTANT, TSR_COMPUTED_CAST, TSR_COMPUTED_SCALED, TSR_COMPUTED_MXFP4 } kind;
    tsr_dtype dtype;
    uint64_t elements;
    const tsr_entry *input;  /* all but constants: of the mapped checkpoint, though not of its catalog */
    const tsr_entry *scale;  /* scaled, mxfp4 */
    uint64_t rows, columns;  /* scaled: the last two dims of the input, */
    uint64_t scale_rows, scale_columns;  /* those of the scale, */
    uint64_t block_rows, block_columns;  /* and how many elements share one scale */
    uint8_t constant[16];    /* one element */
} tsr_computed;

/* What an entry of the mapped catalog was made of; `rule` NULL: it was kept as no rule matched it. */
typedef struct tsr_mapped_row {
    tsr_entry entry;
    uint64_t order; /* the first of its sources, as the source's catalog counts */
    const tsr_map_rule *rule;
    const tsr_entry *const *sources;
    uint64_t source_count;
} tsr_mapped_row;

typedef struct tsr_mapped {
    tsr_checkpoint *source, *own;
    const tsr_mapping_rules *rules;
    struct cJSON *config; /* config.json, or NULL */
    tsr_box_maker maker;
    tsr_vec rows;         /* of tsr_mapped_row */
    tsr_vec computed;     /* of tsr_computed: the files behind the source's */
    tsr_vec dropped;      /* of const tsr_entry * */
} tsr_mapped;

/* Where a chunk's elements come from. It is found by the chunk's offsets, which it holds, because chunks are copied. */
typedef struct tsr_chunk_origin {
    tsr_source_box box;
    uint32_t ndim;
    uint64_t numbers[]; /* offsets, sizes, strides */
} tsr_chunk_origin;

/* mapping_entry.c: a tensor as an entry of the mapped checkpoint, with the attributes of `like`. */
tsr_status tsr_mapped_entry(tsr_mapped *m, const tsr_mapped_tensor *tensor, const tsr_entry *like, tsr_str fqn, tsr_entry *out,
                            tsr_error *err);
tsr_status tsr_mapped_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err);
tsr_status tsr_mapped_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          bool *known, uint32_t *crc, tsr_error *err);

/* mapping_store.c: the source's files and the computed ones. */
tsr_status tsr_mapped_store_new(tsr_mapped *m, tsr_store **out, tsr_error *err);
/* A tensor that is converted while it is read, or one number everywhere (name, shape and dtype of `out` are set). */
tsr_status tsr_mapped_cast(tsr_mapped *m, const tsr_mapped_tensor *in, tsr_dtype dtype, tsr_mapped_tensor *out, tsr_error *err);
tsr_status tsr_mapped_fill(tsr_mapped *m, double value, tsr_mapped_tensor *out, tsr_error *err);

/* Elements [first, first + count) of a file that a scale makes, in float32. `input` has room for 4 bytes per element. */
tsr_status tsr_mapped_scaled(tsr_mapped *m, const tsr_computed *file, uint64_t first, size_t count, uint8_t *input, float *out,
                             tsr_error *err);
tsr_computed *tsr_mapped_add_file(tsr_mapped *m, tsr_dtype dtype, uint32_t *file, tsr_error *err);

/* mapping_dequantize.c: the scheme of tsr_mapping_dequantize, in place of rules. */
tsr_status tsr_mapped_dequantize(tsr_mapped *m, tsr_dtype dtype, tsr_error *err);

/* mapping_numbers.c. TSR_E_NOT_FOUND where config.json does not have it. */
tsr_status tsr_mapped_load_config(tsr_mapped *m, tsr_error *err);
/* The dtype that config.json states for the model, or TSR_DTYPE_NONE. */
tsr_dtype tsr_mapped_config_dtype(const tsr_mapped *m);
/* Two numbers, quantization_config.weight_block_size; 128 and 128 where it is not there. */
tsr_status tsr_mapped_block(const tsr_mapped *m, uint64_t block[2], tsr_error *err);
tsr_status tsr_mapped_number(const tsr_mapped *m, const tsr_map_number *number, uint64_t *out, tsr_error *err);

/* mapping_steps.c: `slots` in: one per pattern of `from`; out: one per pattern of `to`. A slot has one tensor, or one per value of
 * the folded or unfolded capture. */
typedef struct tsr_map_slot {
    tsr_mapped_tensor *tensors;
    uint64_t count;
} tsr_map_slot;
tsr_status tsr_mapped_steps(tsr_mapped *m, const tsr_map_rule *rule, tsr_map_slot **slots, uint32_t *slot_count, tsr_error *err);

/* mapping_match.c: fills m->rows and m->dropped. */
tsr_status tsr_mapped_apply(tsr_mapped *m, tsr_error *err);

/* mapping_build.c: the tensors of one binding of a rule. `sources` has the entries by pattern, then by the folded capture
 * (`members` of each); `values` has room for the unfolded capture. */
typedef struct tsr_map_binding {
    const tsr_map_rule *rule;
    const tsr_entry **sources;
    uint64_t members;
    tsr_str *values;
    uint64_t order;
} tsr_map_binding;
tsr_status tsr_mapped_build(tsr_mapped *m, const tsr_map_binding *binding, tsr_error *err);
tsr_status tsr_mapped_keep(tsr_mapped *m, const tsr_entry *entry, uint64_t order, tsr_error *err);

#endif
