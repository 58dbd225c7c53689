/* Maps: from one model's names and layouts to another's (`tessera.map/1`).
 *
 * A map is a list of rules. A rule selects tensors by patterns, transforms them in steps (split, concat, stack, transpose, …),
 * and names the results by patterns. A mapped checkpoint is opened over another one and is a checkpoint itself: its tensors are
 * boxes of the source's chunks, so that listing, converting, comparing and resharding need no memory for tensors.
 *
 * Example:
 *
 *     const tsr_mapping_rules *rules;
 *     tsr_checkpoint *mapped;
 *     status = tsr_mapping_parse(tsr_mapping_builtin(TSR_STR("torchtitan-llama3")), host, arena, &rules, &err);
 *     if (status == TSR_OK) status = tsr_mapping_open(checkpoint, rules, &mapped, &err);
 *     if (status == TSR_OK) entry = tsr_checkpoint_entry(mapped, TSR_STR("model.embed_tokens.weight"));
 *     tsr_checkpoint_close(mapped); */
#ifndef TESSERA_MAPPING_H
#define TESSERA_MAPPING_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* A parsed map. Lives in the arena that it was parsed into, and is read-only. */
typedef struct tsr_mapping_rules tsr_mapping_rules;

/* Parses a `tessera.map/1` document. The result copies what it needs of `text`. Errors: TSR_E_FORMAT, naming the rule and what was
 * expected there; TSR_E_NOMEM. */
tsr_status tsr_mapping_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, const tsr_mapping_rules **out, tsr_error *err);

/* Makes the inverse map, which takes each name back to the one that the map makes it from. Opened over a checkpoint, it refuses a name
 * that the map does not make, or that two rules make of which neither is an exception to the other (TSR_E_FORMAT, naming the rules).
 * Errors: TSR_E_UNSUPPORTED naming the rule and the step that has no inverse. */
tsr_status tsr_mapping_invert(const tsr_mapping_rules *rules, tsr_arena *arena, const tsr_mapping_rules **out, tsr_error *err);

/* The checkpoint as the map makes it. Borrows `source` and `rules`, which must outlive it; close it with tsr_checkpoint_close
 * before the source. Its store is its own and is closed with it. Numbers such as "$num_attention_heads" are taken from the
 * config.json in the source's store, otherwise from the params.json of Meta's Llamas.
 *
 * Errors: TSR_E_FORMAT naming the tensors where sizes do not fit or are not as a rule's "shape" states, a target would be written
 * twice, one tensor of several is missing, or, under `refuse`, a name that no rule matches; TSR_E_UNSUPPORTED for a step on something
 * that is not a dense tensor; TSR_E_NOT_FOUND for a number that config.json does not have; TSR_E_LIMIT for more boxes than limits.entries allow. */
tsr_status tsr_mapping_open(tsr_checkpoint *source, const tsr_mapping_rules *rules, tsr_checkpoint **out, tsr_error *err);

/* The checkpoint with scaled numbers multiplied by their scales, which are gone from it: float8 and int8 by tensor, row, group or
 * block, MXFP4, and NVFP4 as ModelOpt and compressed-tensors store it. Products are computed in float32 and rounded once to `dtype`;
 * TSR_DTYPE_NONE stands for the dtype that config.json states, otherwise bfloat16. *used is the dtype. Everything else stays as it is,
 * and so do scaled numbers that cannot be multiplied: call tsr_mapping_check_dequantized before anything is read. Otherwise as
 * tsr_mapping_open. */
tsr_status tsr_mapping_dequantize(tsr_checkpoint *source, tsr_dtype dtype, tsr_dtype *used, tsr_checkpoint **out, tsr_error *err);
/* Refuses scaled numbers that tsr_mapping_dequantize could not multiply, where they are used: where an entry of `top` that `options`
 * select (NULL: any entry) is made of them. `layer` is the dequantized checkpoint; `top` is the same one, or was opened over it by
 * maps, adapters and the like.
 *
 * Errors: TSR_E_FORMAT where a scale's shape does not fit; TSR_E_UNSUPPORTED naming numbers that have a zero point or are of a class
 * that is not supported, and where no numbers could be multiplied at all. */
tsr_status tsr_mapping_check_dequantized(tsr_checkpoint *layer, tsr_checkpoint *top, const tsr_open_options *options, tsr_error *err);
/* Whether that call found this entry of the layer to be used. It can be `want` of tsr_convert_options, with the layer as its context. */
bool tsr_mapping_uses(void *layer, tsr_str fqn);

typedef struct tsr_quantize_options {
    size_t size;     /* TSR_OPTIONS sets it */
    tsr_dtype dtype; /* to which every floating-point tensor is cast first; TSR_DTYPE_NONE: none is */
    bool (*want)(void *ctx, tsr_str fqn); /* returns true for what is read afterwards; NULL: everything */
    void *want_ctx;
    bool (*quantize)(void *ctx, tsr_str fqn); /* returns false for weights to leave as they are; NULL: leave only those named below */
    void *quantize_ctx;
} tsr_quantize_options;

/* What was quantized, and the other matrices: the names of weights of two dims that stay as they are, in the mapped
 * checkpoint's memory. A loader needs this list. */
typedef struct tsr_quantized {
    uint64_t count;
    const tsr_str *kept;
    uint64_t kept_count;
} tsr_quantized;

/* The checkpoint with its linear weights as float8_e4m3fn in blocks of 128 x 128, and NAME.weight_scale_inv in float32 for each
 * NAME.weight. Bytes are those of transformers' Fp8Quantize; smaller blocks at the edges are treated as if padded with zeros.
 * Weights are the floating-point tensors of two dims whose names end in ".weight", but for embeddings, norms, output layers and
 * routers. Everything else stays as it is. Otherwise as tsr_mapping_open.
 *
 * Errors: TSR_E_UNSUPPORTED naming a weight that already has a scale, and experts stacked in one tensor; TSR_E_USAGE where
 * `want` separates a weight from its scale. TSR_E_UNSUPPORTED while it is read, naming a weight and the place where it is NaN
 * or infinite. Source: transformers/integrations/finegrained_fp8.py. */
tsr_status tsr_mapping_quantize(tsr_checkpoint *source, const tsr_quantize_options *options, tsr_quantized *quantized,
                                tsr_checkpoint **out, tsr_error *err);

/* The document of the built-in map with this name, or an empty text if there is no such map. Static storage. */
tsr_str tsr_mapping_builtin(tsr_str name);

TSR_API_END

#endif
