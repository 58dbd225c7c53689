/* An opened map: the state of a mapped checkpoint. */
#ifndef TSR_MAPPING_MAPPED_H
#define TSR_MAPPING_MAPPED_H

#include "formats/common/reader.h"
#include "mapping/mapping_boxes.h"
#include "tessera/sys/read_run.h"

/* A file of the mapped store whose bytes are made while they are read. */
typedef struct tsr_computed {
    enum { TSR_COMPUTED_CONSTANT, TSR_COMPUTED_CAST, TSR_COMPUTED_SCALED, TSR_COMPUTED_MXFP4, TSR_COMPUTED_NVFP4, TSR_COMPUTED_BY } kind;
    tsr_dtype dtype;
    uint64_t elements;
    /* by: elements [first, first + count) in `dtype`, row-major; called by several threads at once. */
    tsr_status (*compute)(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_error *err);
    const void *ctx;
    const tsr_entry *input;  /* all but constants: of the mapped checkpoint, though not of its catalog */
    const tsr_entry *scale;  /* scaled, mxfp4, nvfp4 */
    const tsr_entry *tensor_scale; /* nvfp4: the scale of the scales, or NULL; */
    uint64_t tensor_elements;      /* how many elements share one of its numbers, */
    bool divides;                  /* and whether scales are divided by it, not multiplied */
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
    const char *step; /* that was taken without a rule: "quantize"; NULL: none */
    const tsr_entry *const *sources;
    uint64_t source_count;
    uint32_t pattern; /* of rule->to: the entry's */
    tsr_str other;    /* in an inverse: another name that the sources may come from (one of their own: they may have been kept); data
                       * NULL: none */
} tsr_mapped_row;

typedef struct tsr_mapped {
    tsr_checkpoint *source, *own;
    const tsr_mapping_rules *rules; /* or NULL */
    struct cJSON *config; /* config.json or params.json, or NULL */
    const char *config_name;
    tsr_box_maker maker;
    tsr_vec rows;         /* of tsr_mapped_row */
    tsr_vec computed;     /* of tsr_computed: the files behind the source's */
    tsr_vec dropped;      /* of const tsr_entry * */
    const char *step;     /* what computes elements, where no rule says it: "quantize" */
    void *ctx;            /* of the scheme that filled the rows, in the arena; or NULL */
    tsr_str note;         /* for users: what the map leaves out, a name that an inverse guessed, …; data NULL: there is none */
} tsr_mapped;

/* Where a chunk's elements come from. It is found by the chunk's offsets, which it holds, because chunks are copied. */
typedef struct tsr_chunk_origin {
    tsr_source_box box;
    uint32_t ndim;
    uint64_t numbers[]; /* offsets, sizes, strides */
} tsr_chunk_origin;

/* What fills the rows of a mapped checkpoint. */
typedef struct tsr_mapped_scheme {
    tsr_status (*fill)(tsr_mapped *m, void *ctx, tsr_error *err);
    void *ctx;
    const char *step; /* what it does to what it computes, in a word of tables; NULL where rules say it */
    bool keeps_names; /* the rows are the source's entries in its order, under their names: its nesting and its parts stay */
} tsr_mapped_scheme;
/* mapping_open.c: as tsr_mapping_open, with rows that `scheme` fills. */
tsr_status tsr_mapped_open(tsr_checkpoint *source, const tsr_mapped_scheme *scheme, tsr_checkpoint **out, tsr_error *err);

/* mapping_origin.c: adds a sentence, made in the arena of m->own, to m->note. TSR_E_NOMEM where its data are NULL. */
tsr_status tsr_mapped_add_note(tsr_mapped *m, tsr_str sentence, tsr_error *err);

/* mapping_entry.c: NULL for a checkpoint that is not a mapped one. */
const tsr_mapped *tsr_mapped_state(const tsr_checkpoint *checkpoint);
/* A tensor as an entry of the mapped checkpoint, with the attributes of `like`. */
tsr_status tsr_mapped_entry(tsr_mapped *m, const tsr_mapped_tensor *tensor, const tsr_entry *like, tsr_str fqn, tsr_entry *out,
                            tsr_error *err);
tsr_status tsr_mapped_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err);
tsr_status tsr_mapped_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_stated_crc *out, tsr_error *err);
tsr_status tsr_mapped_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                           tsr_found *out, tsr_error *err);

/* mapping_store.c: the source's files and the computed ones. */
tsr_status tsr_mapped_store_new(tsr_mapped *m, tsr_store **out, tsr_error *err);
/* A tensor that is converted while it is read, or one number everywhere (name, shape and dtype of `out` are set). */
tsr_status tsr_mapped_cast(tsr_mapped *m, const tsr_mapped_tensor *in, tsr_dtype dtype, tsr_mapped_tensor *out, tsr_error *err);
tsr_status tsr_mapped_fill(tsr_mapped *m, double value, tsr_mapped_tensor *out, tsr_error *err);

/* A run of elements of a file that a scale makes, in float32. `input` has room for 4 bytes per element. */
tsr_status tsr_mapped_scaled(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                             tsr_error *err);
/* Elements of 2 bytes out of pairs of 4 bits, without the way through float32: a scale of one byte makes only 16 products, which are
 * computed when it first occurs. Zeroed at first, for one file. At most TSR_UNPACKED_ELEMENTS in a run. */
enum { TSR_UNPACKED_ELEMENTS = 1 << 17, TSR_UNPACKED_INPUT = TSR_UNPACKED_ELEMENTS };
typedef struct tsr_unpacking {
    uint64_t tensor; /* whose scale the products have */
    bool made[256];  /* by the scale as it is stored */
    uint16_t products[256][16];
    uint8_t *input; /* TSR_UNPACKED_INPUT bytes, aligned as for a float */
} tsr_unpacking;
bool tsr_mapped_unpacks(const tsr_computed *file);
tsr_status tsr_mapped_unpack(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, tsr_unpacking *u, uint8_t *out,
                             tsr_error *err);
tsr_computed *tsr_mapped_add_file(tsr_mapped *m, tsr_dtype dtype, uint32_t *file, tsr_error *err);
/* A row with the name, shape and nesting of `like`, whose elements `by` computes (its kind and elements are set here). *file is the
 * computed file. */
tsr_status tsr_mapped_compute(tsr_mapped *m, const tsr_entry *like, uint64_t order, const tsr_computed *by, uint32_t *file,
                              tsr_error *err);
/* The same with the computed file of another row. */
tsr_status tsr_mapped_share(tsr_mapped *m, const tsr_entry *like, uint64_t order, tsr_dtype dtype, uint32_t file,
                            tsr_error *err);

/* mapping_multiply.c: which numbers a scale is for. Fitting: what the shape of the scale says. */
typedef struct tsr_scaling {
    tsr_scale_scheme scheme;
    tsr_dtype dtype; /* of the products */
    uint64_t block[2];
    const tsr_entry *tensor_scale; /* nvfp4: NULL, or float32, one number or one per expert; scales are multiplied by it, */
    bool divides;                  /* or divided */
} tsr_scaling;
/* float8 and int8. */
bool tsr_mapped_is_scalable(tsr_dtype dtype);
/* What can be cast to float32, and uint8: the exponents of E8M0, as MXFP8 checkpoints store them. */
bool tsr_mapped_is_scale(tsr_dtype dtype);
/* Pairs of E2M1 numbers in int8, with one E8M0 exponent per 32 numbers, as transformers' FP8 checkpoints hold experts in FP4. */
bool tsr_mapped_is_packed_mxfp4(const tsr_entry *entry, const tsr_entry *scales);
/* The entry's numbers times their scales, computed while they are read. Errors: TSR_E_FORMAT naming both where the shape or the dtype
 * of the scale does not fit. */
tsr_status tsr_mapped_multiply(tsr_mapped *m, const tsr_scaling *how, const tsr_entry *entry, const tsr_entry *scale,
                               tsr_mapped_tensor *out, tsr_error *err);
/* mapping_dequantize.c: the scheme of tsr_mapping_dequantize, in place of rules. m->ctx becomes a tsr_dequantized. */
typedef struct tsr_dequantize_refusal {
    tsr_str fqn; /* of an entry that was kept as it is */
    tsr_error why;
    struct tsr_dequantize_refusal *next;
} tsr_dequantize_refusal;
typedef struct tsr_dequantized {
    bool found; /* any scaled numbers that can be multiplied */
    tsr_dequantize_refusal *refused, **end;
    bool *used; /* by entry of the catalog; NULL until tsr_mapping_check_dequantized */
} tsr_dequantized;
tsr_status tsr_mapped_dequantize(tsr_mapped *m, tsr_dtype dtype, tsr_error *err);

/* mapping_numbers.c. TSR_E_NOT_FOUND where config.json does not have it. */
tsr_status tsr_mapped_load_config(tsr_mapped *m, tsr_error *err);
/* The member of config.json, or what corresponds to it in params.json; NULL where it is not there. */
const struct cJSON *tsr_mapped_setting(const tsr_mapped *m, const char *name);
/* The dtype of products that no option and no step states: that of config.json, otherwise bfloat16. */
tsr_dtype tsr_mapped_product_dtype(const tsr_mapped *m);
/* Two numbers, quantization_config.weight_block_size; 128 and 128 where it is not there. */
tsr_status tsr_mapped_block(const tsr_mapped *m, uint64_t block[2], tsr_error *err);
/* Whether config.json has this quantization_config.quant_method. */
bool tsr_mapped_quantized_by(const tsr_mapped *m, const char *method);
/* Whether config.json ties the output layer to the embedding. */
bool tsr_mapped_ties(const tsr_mapped *m);
/* The rows of one attention head, where config.json states them. */
bool tsr_mapped_head_dim(const tsr_mapped *m, uint64_t *out);
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
    tsr_str other; /* of its rows */
} tsr_map_binding;
tsr_status tsr_mapped_build(tsr_mapped *m, const tsr_map_binding *binding, tsr_error *err);
tsr_status tsr_mapped_keep(tsr_mapped *m, const tsr_entry *entry, uint64_t order, tsr_error *err);

#endif
