/* The parsed form of a `tessera.map/1` document. */
#ifndef TSR_MAPPING_MAPPING_RULES_H
#define TSR_MAPPING_MAPPING_RULES_H

#include "tessera/mapping.h"

#define TSR_NO_CAPTURE UINT32_MAX

enum { TSR_MOST_CAPTURES = 16 }; /* of a rule */

/* A name whose dotted components are literal text or captures. */
typedef struct tsr_name_pattern {
    tsr_str text;
    struct tsr_name_component {
        tsr_str literal;  /* where capture is TSR_NO_CAPTURE */
        uint32_t capture; /* of the rule's captures */
        bool rest;        /* {name...}: one or more components */
    } *components;
    uint32_t count;
} tsr_name_pattern;

/* A number of a step: written down, or a name in config.json; -1 is the size that is left, once in a list of sizes. */
typedef struct tsr_map_number {
    uint64_t value;
    bool rest;      /* -1 */
    tsr_str config; /* empty: `value` counts */
} tsr_map_number;

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
/* mapping_pattern.c: "concat", as a map states it. */
const char *tsr_step_name(tsr_step_kind kind);

/* What shares a scale. */
typedef enum tsr_scale_scheme {
    TSR_SCALES_FITTING,
    TSR_SCALES_BLOCK,
    TSR_SCALES_ROW,
    TSR_SCALES_TENSOR,
    TSR_SCALES_MXFP4,
    TSR_SCALES_NVFP4
} tsr_scale_scheme;

/* One pattern per pattern of `from`. */
typedef struct tsr_scale_names {
    const tsr_str *names;
    uint32_t count;
} tsr_scale_names;

typedef struct tsr_map_step {
    tsr_step_kind kind;
    bool inverse;                /* interleave, permute_rope: the way back */
    bool has_value;              /* pad */
    int64_t dim;                 /* from the end where negative */
    tsr_map_number *numbers;     /* split, concat: sizes; transpose; reshape; dequantize: block */
    uint32_t number_count;
    tsr_map_number parts;        /* split, concat, interleave; 0: by sizes. permute_rope: heads */
    tsr_map_number to;           /* trim, pad */
    tsr_map_number *from;        /* what it was before, for the inverse: reshape's shape, the size of trim and pad */
    uint32_t from_count;
    double value;                /* pad */
    tsr_dtype dtype;             /* cast; dequantize, where TSR_DTYPE_NONE is the model's */
    tsr_scale_scheme scheme;     /* dequantize */
    tsr_scale_names scales;      /* dequantize, */
    tsr_scale_names tensor_scales; /* and for nvfp4 the scales of whole tensors, by which the others are multiplied */
    bool divides;                /* or divided */
} tsr_map_step;

/* The size of a dim that a map states. */
typedef struct tsr_map_size {
    tsr_str name; /* every dim of this name in the map has one size; empty: `number` is the size */
    tsr_map_number number;
} tsr_map_size;

typedef struct tsr_map_shape {
    const tsr_map_size *sizes;
    uint32_t count;
} tsr_map_shape;

typedef struct tsr_map_rule {
    const tsr_name_pattern *from, *to;
    uint32_t from_count, to_count;
    uint32_t scale_count; /* of `from`: the last ones are the scales of the others, then those of whole tensors, for a dequantize step */
    const tsr_map_step *steps;
    uint32_t step_count;
    const tsr_str *captures; /* names */
    uint32_t capture_count;
    const tsr_map_shape *shapes; /* one for every tensor of `to`, or one per pattern of it; */
    uint32_t shape_count;        /* 0: not stated */
    tsr_str layers;            /* which layers the rule applies to: "all", or those of a kind, such as "experts"; empty: not stated */
    tsr_str tied_to;           /* the tensor of the map's source that `from` is the same as, in a model that ties them; empty: none */
    bool shape_of_from;        /* of `from` instead: the rule is an inverse */
    const struct tsr_map_rule *forward; /* whose inverse the rule is; or NULL */
    uint32_t folded, unfolded; /* the capture that only `from`, only `to` has, or TSR_NO_CAPTURE */
} tsr_map_rule;

typedef enum tsr_unmatched { TSR_UNMATCHED_REFUSE, TSR_UNMATCHED_KEEP, TSR_UNMATCHED_DROP } tsr_unmatched;

struct tsr_mapping_rules {
    const tsr_map_rule *rules;
    uint32_t count;
    tsr_unmatched unmatched;
    const struct tsr_mapping_rules *forward; /* whose inverse they are; or NULL */
};

/* The captures of a rule while its patterns are read: `names` has room for `room`. */
typedef struct tsr_captures {
    tsr_str *names;
    uint32_t count, room;
} tsr_captures;

/* mapping_pattern.c. Adds the captures that are not in `captures` yet. Errors: TSR_E_FORMAT. */
tsr_status tsr_pattern_parse(tsr_str text, tsr_arena *arena, tsr_captures *captures, tsr_name_pattern *out, tsr_error *err);
bool tsr_pattern_has(const tsr_name_pattern *pattern, uint32_t capture);
/* Whether the name matches; then values[c] is set for every capture c of the pattern. */
bool tsr_pattern_match(const tsr_name_pattern *pattern, tsr_str name, tsr_str *values);
/* The name of the pattern with these values; `components` of them from the left. An empty text is out of memory. */
tsr_str tsr_pattern_expand(const tsr_name_pattern *pattern, const tsr_str *values, uint32_t components, tsr_arena *arena,
                           tsr_error *err);
/* mapping_invert.c: finds the folded and the unfolded capture and checks that the steps agree with them. */
tsr_status tsr_map_rule_check(tsr_map_rule *rule, tsr_error *err);

#endif
