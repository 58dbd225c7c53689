/* The parsed form of a `tessera.map/1` document. */
#ifndef TSR_MAPPING_MAPPING_RULES_H
#define TSR_MAPPING_MAPPING_RULES_H

#include "tessera/mesh.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"

#define TSR_NO_CAPTURE UINT32_MAX

enum { TSR_MOST_CAPTURES = 16 }; /* per rule */

/* A number in a step: a literal, or the name of a number in config.json. -1 stands for the remaining size; a list of sizes
 * may have it once. */
typedef struct tsr_map_number {
    uint64_t value;
    bool rest;      /* the number is -1 */
    tsr_str config; /* if empty, `value` is the number */
} tsr_map_number;

/* A pattern for names. Its dotted components are literal text or captures. */
typedef struct tsr_name_pattern {
    tsr_str text;
    struct tsr_name_component {
        tsr_str literal;     /* if capture is TSR_NO_CAPTURE */
        uint32_t capture;    /* index in the rule's captures */
        bool rest;           /* {name...}: one or more components */
        tsr_map_number plus; /* {name+N}: the name has the capture's number plus N here; 0 if not stated */
    } * components;
    uint32_t count;
} tsr_name_pattern;

typedef enum tsr_step_kind {
    TSR_STEP_CONCAT,
    TSR_STEP_SPLIT,
    TSR_STEP_INTERLEAVE,
    TSR_STEP_STACK,
    TSR_STEP_UNSTACK,
    TSR_STEP_TRANSPOSE,
    TSR_STEP_RESHAPE,
    TSR_STEP_PERMUTE_ROPE,
    TSR_STEP_TRIM,
    TSR_STEP_PAD,
    TSR_STEP_CAST,
    TSR_STEP_DEQUANTIZE
} tsr_step_kind;

enum { TSR_STEP_KINDS = TSR_STEP_DEQUANTIZE + 1 };
/* mapping_pattern.c: returns the name of a step in maps, such as "concat". */
const char *tsr_step_name(tsr_step_kind kind);

/* Which numbers share a scale. */
typedef enum tsr_scale_scheme {
    TSR_SCALES_FITTING,
    TSR_SCALES_BLOCK,
    TSR_SCALES_ROW,
    TSR_SCALES_TENSOR,
    TSR_SCALES_MXFP4,
    TSR_SCALES_NVFP4
} tsr_scale_scheme;

/* Names of scales: one pattern for each pattern of `from`. */
typedef struct tsr_scale_names {
    const tsr_str *names;
    uint32_t count;
} tsr_scale_names;

typedef struct tsr_map_step {
    tsr_step_kind kind;
    bool inverse;            /* interleave, permute_rope: reverse the step */
    bool has_value;          /* pad */
    int64_t dim;             /* counts from the end if negative */
    tsr_map_number *numbers; /* split, concat: sizes; transpose; reshape; dequantize: block */
    uint32_t number_count;
    tsr_map_number parts; /* split, concat, interleave: their number, or 0 if sizes are given; permute_rope: the
                                  * number of heads */
    tsr_map_number to;    /* trim, pad */
    tsr_map_number *from; /* for the inverse: the earlier shape (reshape) or size (trim, pad) */
    uint32_t from_count;
    double value;                  /* pad */
    tsr_dtype dtype;               /* cast; dequantize, where TSR_DTYPE_NONE means the model's */
    tsr_scale_scheme scheme;       /* dequantize */
    tsr_scale_names scales;        /* dequantize */
    tsr_scale_names tensor_scales; /* dequantize to NVFP4: scales of whole tensors, by which `scales` are multiplied */
    bool divides;                  /* dequantize: `scales` are divided by tensor_scales instead */
} tsr_map_step;

/* The size of a dim, as a map states it. */
typedef struct tsr_map_size {
    tsr_str name; /* all dims with the same name have the same size; if empty, `number` is the size */
    tsr_map_number number;
} tsr_map_size;

typedef struct tsr_map_shape {
    const tsr_map_size *sizes;
    uint32_t count;
} tsr_map_shape;

enum { TSR_MOST_TERMS = 8 }; /* per dim */

/* What a dim is in terms of config.json: a product, of which some factors are sums. */
typedef struct tsr_map_term {
    enum tsr_term_operation { TSR_TERM_TIMES, TSR_TERM_DIVIDE, TSR_TERM_PLUS, TSR_TERM_END_OF_SUM } operation;
    uint64_t value;
    tsr_str config; /* "$name"; if empty, `value` is the number */
} tsr_map_term;

typedef struct tsr_map_dim {
    const char *where; /* "dims." and the name */
    tsr_str name;      /* of a dim in shapes; "$name": of a number that config.json may leave out */
    tsr_map_term terms[TSR_MOST_TERMS];
    uint32_t count;
} tsr_map_dim;

typedef struct tsr_map_rule {
    const tsr_name_pattern *from, *to;
    uint32_t from_count, to_count;
    /* How many patterns of `from` are scales, for a dequantize step. They are the last ones: the scales of the other
     * patterns, then those of whole tensors. */
    uint32_t scale_count;
    const tsr_map_step *steps;
    uint32_t step_count;
    const tsr_str *captures; /* their names */
    uint32_t capture_count;
    const tsr_map_shape *shapes; /* one for all tensors of `to`, or one per pattern */
    uint32_t shape_count;        /* 0 if shapes are not stated */
    /* The layers that the rule applies to: "all", or layers of a kind such as "experts". Empty if not stated. */
    tsr_str layers;
    /* In a model that ties tensors: the tensor of the map's source that is the same as that of `from`. Empty if not
     * stated. */
    tsr_str tied_to;
    /* It is a tensor of the map's target instead, which has both: the map copies it, and the inverse leaves the copy out. */
    bool tied_by_inverse;
    bool required; /* the rule takes something in every model */
    /* The rule takes something wherever another rule with the same word does, or for "untied", where config.json does not tie
     * the output layer. Empty if not stated. */
    tsr_str required_with;
    bool shape_of_from;    /* the shapes are those of `from`, because the rule is an inverse */
    bool one_way;          /* the rule has no inverse, because another rule makes the same names */
    bool alike;            /* the inverse stacks only where all layers have the same names */
    tsr_name_pattern with; /* the inverse takes a name only if the source also has this one; count is 0 if not stated */
    const struct tsr_map_rule *forward; /* the rule that this one inverts, or NULL */
    uint32_t folded, unfolded; /* the capture that only `from` has, and the one that only `to` has, or TSR_NO_CAPTURE */
} tsr_map_rule;

typedef enum tsr_unmatched { TSR_UNMATCHED_REFUSE, TSR_UNMATCHED_KEEP, TSR_UNMATCHED_DROP } tsr_unmatched;

struct tsr_mapping_rules {
    const tsr_map_rule *rules;
    uint32_t count;
    tsr_unmatched unmatched;
    const struct tsr_mapping_rules *forward; /* the map that this one inverts, or NULL */
    const struct tsr_mapping_rules *before;  /* rules that are applied first, to the source, or NULL */
    const tsr_map_dim *dims;                 /* their names are those of shapes in `rules` */
    uint32_t dim_count;
    const void *text; /* of the document: it shows which built-in map this is, and is not read */
    bool normalizes;  /* these rules are a map's "before": the names that they make and those that they keep mean the same */
};

/* The captures of a rule while its patterns are parsed; `names` has room for `room` names. */
typedef struct tsr_captures {
    tsr_str *names;
    uint32_t count, room;
} tsr_captures;

/* mapping_pattern.c: parses a pattern, and adds its captures to `captures` if they are new. Errors: TSR_E_FORMAT,
 * TSR_E_NOMEM. */
tsr_status tsr_pattern_parse(tsr_str text, tsr_arena *arena, tsr_captures *captures, tsr_name_pattern *out, tsr_error *err);
/* Returns N of {name+N}, which is 0 for {name}; NULL if the pattern does not contain the capture. */
const tsr_map_number *tsr_pattern_plus(const tsr_name_pattern *pattern, uint32_t capture);
/* Whether the number is stated, and not 0. */
bool tsr_map_number_given(const tsr_map_number *number);
/* Whether the name matches. If it does, values[c] is set for every capture c of the pattern. */
bool tsr_pattern_match(const tsr_name_pattern *pattern, tsr_str name, tsr_str *values);
/* Makes a name of the first `components` components of the pattern, with these values. Its data is NULL if there is no
 * memory. */
tsr_str tsr_pattern_expand(const tsr_name_pattern *pattern, const tsr_str *values, uint32_t components, tsr_arena *arena,
                           tsr_error *err);
/* mapping_parse.c: reads "dims" of a document whose rules were read. TSR_E_FORMAT also for a name that the rules do not use;
 * TSR_E_NOMEM. */
struct cJSON;

/* Tensors as boxes of a source's chunks, and what steps make of them. No function here reads tensor data.
 *
 *   source chunk, 4 × 6          the box [1:3, 0:6] of a tensor: element (i, j) is element
 *   in row-major order           base + i·strides[0] + j·strides[1] of that order */

/* The source of a box's elements. */
typedef struct tsr_source_box {
    const tsr_entry *entry; /* in the source; NULL if the elements are in a computed file */
    const tsr_chunk *chunk;
    uint32_t file; /* in the mapped store, if `entry` is NULL */
    bool whole;    /* the box is the entire chunk in its own order */
    bool replica;
    uint64_t base;
    uint64_t *offsets, *sizes, *strides; /* of the tensor, in elements; strides and base count elements in the chunk's
                                          * row-major order */
} tsr_source_box;

typedef struct tsr_mapped_tensor {
    tsr_str name; /* the source's name, for messages */
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t *shape;
    const tsr_source_box *boxes;
    size_t box_count;
} tsr_mapped_tensor;

/* Memory for boxes, and how many more may be made. */
typedef struct tsr_box_maker {
    tsr_arena *arena;
    const tsr_allocator *allocator;
    uint64_t left;
    tsr_error *err;
} tsr_box_maker;

/* The functions below do not change `in`, and `out` may be the same as `in`. Dims must be below ndim unless stated
 * otherwise. Errors: TSR_E_NOMEM; TSR_E_LIMIT for too many boxes; TSR_E_FORMAT, naming the tensor, if a size does not
 * fit. */
tsr_status tsr_boxes_of_entry(tsr_box_maker *maker, const tsr_entry *entry, tsr_mapped_tensor *out);
/* Makes one box over a computed file for a tensor whose shape is set. If it `repeats`, all its elements are the file's only
 * element. */
tsr_status tsr_boxes_of_file(tsr_box_maker *maker, uint32_t file, bool repeats, tsr_mapped_tensor *out);
tsr_status tsr_boxes_slice(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_span range,
                           tsr_mapped_tensor *out);
/* Concatenates tensors along a dim. TSR_E_FORMAT if their dtypes or their other sizes differ. */
tsr_status tsr_boxes_concat(tsr_box_maker *maker, const tsr_mapped_tensor *in, size_t count, uint32_t dim,
                            tsr_mapped_tensor *out);
/* Insert a new dim of size 1 before `dim`, which may be ndim, and remove such a dim. */
tsr_status tsr_boxes_add_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out);
tsr_status tsr_boxes_remove_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out);
tsr_status tsr_boxes_transpose(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint32_t *order,
                               tsr_mapped_tensor *out);

/* mapping_boxes.c: split a dim into `count` dims whose sizes have the same product, and merge `count` dims into one. */
tsr_status tsr_boxes_split_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, const uint64_t *factors,
                               uint32_t count, tsr_mapped_tensor *out);
tsr_status tsr_boxes_merge_dims(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, uint32_t count,
                                tsr_mapped_tensor *out);
/* Changes the shape. TSR_E_FORMAT if the number of elements would change. */
tsr_status tsr_boxes_reshape(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint64_t *shape, uint32_t ndim,
                             tsr_mapped_tensor *out);

/* For the functions above: collects boxes, and then moves them into the arena. */
typedef struct tsr_box_list {
    tsr_box_maker *maker;
    tsr_vec boxes; /* of tsr_source_box */
    uint32_t ndim;
} tsr_box_list;
/* A shape as text, such as "[2, 3]", for messages. */
typedef struct tsr_shape_text {
    char text[160];
} tsr_shape_text;
tsr_shape_text tsr_shape_of(const tsr_mapped_tensor *tensor);

/* ---- mapping_pattern.c: components of names. `names` are several, each with its NUL, and an empty one at the end ---- */

bool tsr_is_among(tsr_str component, const char *names);
/* The name without the components among `names`, in `arena`. Its data is NULL if memory runs out. */
tsr_str tsr_name_without(tsr_arena *arena, tsr_str name, const char *names, tsr_error *err);

#endif
