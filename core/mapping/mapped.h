/* The state of a mapped checkpoint: one that was opened with a map or another scheme over its source. */
#ifndef TSR_MAPPING_MAPPED_H
#define TSR_MAPPING_MAPPED_H

#include <stdatomic.h>

#include "formats/common/reader.h"
#include "mapping/mapping_rules.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/read.h"

/* A file of the mapped store whose bytes are computed when they are read. */
typedef struct tsr_computed {
    enum {
        TSR_COMPUTED_CONSTANT,
        TSR_COMPUTED_CAST,
        TSR_COMPUTED_SCALED,
        TSR_COMPUTED_MXFP4,
        TSR_COMPUTED_NVFP4,
        TSR_COMPUTED_BY
    } kind;
    tsr_dtype dtype;
    uint64_t elements;
    /* For TSR_COMPUTED_BY: computes elements [first, first + count) in `dtype`, in row-major order. Several threads call it
     * at the same time. Adds to *losses what a cast to `dtype` loses. */
    tsr_status (*compute)(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                          tsr_error *err);
    const void *ctx;
    uint32_t most; /* for BY: how many elements it is best asked for at a time; 0: it does not matter */
    /* Not for constants: an entry of the mapped checkpoint that is not in its catalog. For BY, which may be without one, an
     * entry of the source. */
    const tsr_entry *input;
    const tsr_entry *scale;             /* for SCALED, MXFP4 and NVFP4 */
    const tsr_entry *zero;              /* SCALED: what is subtracted from numbers, in the layout of scales; or NULL */
    tsr_dtype computed_in;              /* SCALED: differences and products are rounded to it first; NONE: to `dtype` */
    bool rounds_scales;                 /* so are scales, of MXFP4 too */
    bool tiled;                         /* scales are stored in tiles of 128 rows and 4 columns, as cuBLAS has them */
    const tsr_entry *tensor_scale;      /* NVFP4: the scale of the scales, or NULL */
    uint64_t tensor_elements;           /* how many elements share one number of tensor_scale */
    bool divides;                       /* scales are divided by tensor_scale, not multiplied */
    uint64_t rows, columns;             /* SCALED: the last two sizes of the input */
    uint64_t scale_rows, scale_columns; /* the last two sizes of the scale; the columns also of tiled ones */
    uint64_t block_rows, block_columns; /* how many rows and columns of the input share one scale */
    uint8_t constant[16];               /* a single element */
} tsr_computed;

struct tsr_band;
enum { TSR_BANDS = 4 };

/* What casts lost while the elements of a computed file were read. */
typedef struct tsr_lossy_file {
    _Atomic uint64_t zeros, overflows;
} tsr_lossy_file;

/* The sources of an entry of the mapped catalog. `rule` is NULL for an entry that no rule matched, or that was made without
 * rules. */
typedef struct tsr_mapped_row {
    tsr_entry entry;
    uint64_t order; /* the number of its first source in the source's catalog */
    const tsr_map_rule *rule;
    const char *step; /* the step that made it without a rule, such as "quantize", or NULL */
    const tsr_entry *const *sources;
    uint64_t source_count;
    uint32_t pattern; /* the number of its pattern in rule->to */
    /* In an inverse: another name that the sources may come from, or their own name if the map may have kept them. Its data
     * is NULL if there is none. */
    tsr_str other;
} tsr_mapped_row;

/* A tensor of the source that the map leaves out or replaces, and the one that is the same in a model that ties them. Both
 * are NULL if there is none. */
typedef struct tsr_tied {
    const tsr_entry *left_out, *kept;
} tsr_tied;

typedef struct tsr_mapped {
    tsr_checkpoint *source, *own;
    tsr_checkpoint *below;          /* the source, if it is closed together with this one, or NULL */
    const tsr_mapping_rules *rules; /* NULL if entries are made without rules */
    struct cJSON *config;           /* the content of config.json or params.json, or NULL */
    const char *config_name;
    bool is_config_beside; /* the source is a single file, and its config.json is next to it */
    tsr_box_maker maker;
    tsr_vec rows;                  /* of tsr_mapped_row */
    tsr_vec computed;              /* of tsr_computed: the files that follow the source's */
    tsr_lossy_file *losses;        /* by computed file */
    atomic_bool lossy;             /* whether any of them has lost something */
    tsr_checkpoint *const *others; /* further checkpoints whose tensors of the same names elements are computed from */
    uint32_t other_count;
    tsr_vec dropped;  /* of const tsr_entry * */
    const char *step; /* what computes elements without a rule, such as "quantize" */
    void *ctx;        /* the context of the scheme that filled the rows, in the arena; or NULL */
    tsr_tied tied;
    _Atomic(struct tsr_band *) bands[TSR_BANDS]; /* what was read of packed weights and is needed again (mapping_stored.c) */
    /* Layers of AutoRound's extra_config, by name (mapping_packed.c); NULL if they are not listed yet. */
    const struct cJSON *const *layers;
    size_t layer_count;
    bool drops_flattened; /* what metadata states of the weights' classes and layers does not hold any more */
    /* For users: what the map leaves out, a name that an inverse guessed, and the like; and what has to change in config.json.
     * Their data is NULL if there is nothing to say. */
    tsr_str note, config_note;
    tsr_config_changes config_changes; /* what `config_note` says */
} tsr_mapped;

/* The source of a chunk's elements. It is found through the chunk's `offsets`, which point into `numbers`, because chunks
 * are copied. */
typedef struct tsr_chunk_origin {
    tsr_source_box box;
    uint32_t ndim;
    uint64_t numbers[]; /* offsets, sizes, strides */
} tsr_chunk_origin;

/* How the rows of a mapped checkpoint are made. */
typedef struct tsr_mapped_scheme {
    tsr_status (*fill)(tsr_mapped *m, void *ctx, tsr_error *err);
    void *ctx;
    const char *step; /* the name of the step in tables; NULL if rules state the steps */
    /* The rows are the source's entries, in the same order and with the same names, so its nesting and its parts remain
     * valid. */
    bool keeps_names;
} tsr_mapped_scheme;
/* mapping_open.c: like tsr_mapping_open, but `scheme` fills the rows. */
tsr_status tsr_mapped_open(tsr_checkpoint *source, const tsr_mapped_scheme *scheme, tsr_checkpoint **out, tsr_error *err);

/* mapping_config.c: adds a sentence to m->note. It must be in the arena of m->own. If its data is NULL, the caller ran out
 * of memory while making it, and this returns TSR_E_NOMEM. */
tsr_status tsr_mapped_add_note(tsr_mapped *m, tsr_str sentence, tsr_error *err);
/* The same for a sentence that says what to change in config.json, which m->config_changes states, too. */
tsr_status tsr_mapped_add_config_note(tsr_mapped *m, tsr_str sentence, tsr_error *err);

/* mapping_config.c: returns the state of a mapped checkpoint, or NULL for any other checkpoint. */
const tsr_mapped *tsr_mapped_state(const tsr_checkpoint *checkpoint);
/* Makes an entry of the mapped checkpoint from a tensor, with the name `fqn` and the attributes of `like`. */
tsr_status tsr_mapped_entry(tsr_mapped *m, const tsr_mapped_tensor *tensor, const tsr_entry *like, tsr_str fqn,
                            tsr_entry *out, tsr_error *err);

/* Makes a tensor that is cast when it is read. */
tsr_status tsr_mapped_cast(tsr_mapped *m, const tsr_mapped_tensor *in, tsr_dtype dtype, tsr_mapped_tensor *out,
                           tsr_error *err);

/* mapping_scaled.c: reads bytes of a computed file, by its number among them, that is not a constant. Counts what casts lose. */
tsr_status tsr_computed_read(tsr_mapped *m, size_t number, uint64_t offset, uint8_t *buffer, size_t size, tsr_error *err);
/* Adds a computed file with one element, which the caller completes. *file receives its number. NULL if memory runs out. */
tsr_computed *tsr_mapped_add_file(tsr_mapped *m, tsr_dtype dtype, uint32_t *file, tsr_error *err);
/* Adds a row with the name, shape and nesting of `like`, and a file whose elements `by` computes; its kind and number of
 * elements are set here. *file receives the number of that file. */
tsr_status tsr_mapped_compute(tsr_mapped *m, const tsr_entry *like, uint64_t order, const tsr_computed *by, uint32_t *file,
                              tsr_error *err);
/* Adds such a row over the computed file of another row. */
tsr_status tsr_mapped_share(tsr_mapped *m, const tsr_entry *like, uint64_t order, tsr_dtype dtype, uint32_t file,
                            tsr_error *err);

/* mapping_multiply.c: how numbers are multiplied by their scale. FITTING means that the shape of the scale decides. */
typedef struct tsr_scaling {
    tsr_scale_scheme scheme;
    tsr_dtype dtype; /* of the products */
    uint64_t block[2];
    const tsr_entry *tensor_scale; /* NVFP4: NULL, or a float32 tensor with one number, or one per expert, by which scales
                                    * are multiplied */
    bool divides;                  /* scales are divided by tensor_scale instead */
    /* As in tsr_computed. `affine`: numbers are int8, uint8 or int32. */
    bool affine, rounds_scales, tiled;
    const tsr_entry *zero;
    const tsr_entry *stored_scale; /* is read for the scale, whose entry only has its shape; NULL: the scale itself */
    tsr_dtype computed_in;
} tsr_scaling;
/* Whether numbers of this dtype are multiplied by scales: float8 and int8. */
bool tsr_mapped_is_scalable(tsr_dtype dtype);
/* Whether this is an integer that may be a number or a zero point: int8, uint8, int32 or int64. */
bool tsr_mapped_is_integer(tsr_dtype dtype);
/* Whether the entry has pairs of E2M1 numbers in int8, with one E8M0 exponent per 32 numbers. This is how transformers' FP8
 * checkpoints store experts in FP4. */
bool tsr_mapped_is_packed_mxfp4(const tsr_entry *entry, const tsr_entry *scales);
/* Makes a tensor of the entry's numbers times their scales, which is computed when it is read. Errors: TSR_E_FORMAT, naming
 * both, if the shape or the dtype of the scale does not fit. */
tsr_status tsr_mapped_multiply(tsr_mapped *m, const tsr_scaling *how, const tsr_entry *entry, const tsr_entry *scale,
                               tsr_mapped_tensor *out, tsr_error *err);
/* mapping_dequantize.c: fills the rows of tsr_mapping_dequantize, without rules. m->ctx becomes a tsr_dequantized. */
typedef struct tsr_dequantize_refusal {
    tsr_str fqn; /* of an entry that was kept unchanged */
    tsr_error why;
    struct tsr_dequantize_refusal *next;
} tsr_dequantize_refusal;
/* The key of the metadata of safetensors files in which torchao lists the weights that it flattened. Their names are keys, too. */
#define TSR_FLATTENED_NAMES "tensor_names"
/* The key in which ComfyUI states how the layers of a file are quantized. */
#define TSR_COMFY_LAYERS "_quantization_metadata"
typedef struct tsr_dequantized {
    bool found;       /* whether there are scaled numbers that can be multiplied */
    bool unflattened; /* whether metadata of torchao or ComfyUI states how they are stored, which does not hold any more */
    tsr_dequantize_refusal *refused, **end;
    bool *used; /* by entry of the catalog; NULL until tsr_mapping_check_dequantized was called */
} tsr_dequantized;

/* mapping_config.c: loads config.json, or params.json, into m->config, which stays NULL if there is neither. Errors of
 * reading and parsing. */
tsr_status tsr_mapped_load_config(tsr_mapped *m, tsr_error *err);
/* Returns a member of config.json, or its counterpart in params.json; NULL if it is missing. */
const struct cJSON *tsr_mapped_setting(const tsr_mapped *m, const char *name);
/* Returns it from there or from text_config, which describes the language model inside another model; NULL if it is missing or
 * null. */
const struct cJSON *tsr_mapped_stated(const tsr_mapped *m, const char *name);
/* Returns the dtype of products if neither an option nor a step states it: that of config.json, or bfloat16. */
tsr_dtype tsr_mapped_product_dtype(const tsr_mapped *m);
/* Reads two numbers, quantization_config.weight_block_size, which are 128 and 128 if it is missing. */
tsr_status tsr_mapped_block(const tsr_mapped *m, uint64_t block[2], tsr_error *err);
/* Returns quantization_config of config.json, or what it was called before; NULL if there is none. */
const struct cJSON *tsr_mapped_quantization(const tsr_mapped *m);
/* Returns quantization_config.quant_method of config.json, or "" if it states none. */
const char *tsr_mapped_quant_method(const tsr_mapped *m);
/* Whether the config.json among the checkpoint's files, or next to its single file, has a quantization_config. Errors of
 * reading and parsing. */
tsr_status tsr_config_is_quantized(const tsr_checkpoint *checkpoint, bool *out, tsr_error *err);
/* Sets *out to the number of rows per attention head, and returns whether config.json determines it. */
bool tsr_mapped_head_dim(const tsr_mapped *m, uint64_t *out);
/* Evaluates a number of a map. TSR_E_NOT_FOUND, naming it, if it is one of config.json, and that is missing or lacks it. */
tsr_status tsr_mapped_number(const tsr_mapped *m, const tsr_map_number *number, uint64_t *out, tsr_error *err);
/* For {name+N}: whether a name may have this index there, which is at least N. False if N is not known. */
bool tsr_mapped_reaches(const tsr_mapped *m, const tsr_map_number *plus, tsr_str index);

/* mapping_steps.c: runs the steps of a rule. At first there is one slot per pattern of `from`, in the end one per pattern of
 * `to`. A slot has one tensor, or one for each value of the folded or unfolded capture. */
typedef struct tsr_map_slot {
    tsr_mapped_tensor *tensors;
    uint64_t count;
} tsr_map_slot;

/* mapping_steps.c: makes the tensors of one binding of a rule. `sources` has its entries ordered by pattern, and within a
 * pattern by the folded capture (`members` of them). `values` has a place for the unfolded capture. */
typedef struct tsr_map_binding {
    const tsr_map_rule *rule;
    const tsr_entry **sources;
    uint64_t members;
    tsr_str *values;
    uint64_t order;
    tsr_str other; /* for its rows; see tsr_mapped_row */
} tsr_map_binding;
tsr_status tsr_mapped_build(tsr_mapped *m, const tsr_map_binding *binding, tsr_error *err);
tsr_status tsr_mapped_keep(tsr_mapped *m, const tsr_entry *entry, uint64_t order, tsr_error *err);

#endif
