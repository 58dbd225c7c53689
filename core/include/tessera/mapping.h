/* Maps from one model's names and layouts to another's (`tessera.map/1`).
 *
 * A map is a list of rules. A rule selects tensors by patterns, transforms them in steps (split, concat, stack, transpose,
 * …), and names the results by patterns. A mapped checkpoint is opened over another one and is a checkpoint itself. Its
 * tensors refer to boxes of the source's chunks, so listing, converting, comparing and resharding do not have to hold whole
 * tensors in memory.
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

/* Parses a `tessera.map/1` document. `text` may be freed afterwards. Errors: TSR_E_FORMAT, naming the rule and stating what
 * was expected there; TSR_E_NOMEM. */
tsr_status tsr_mapping_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, const tsr_mapping_rules **out,
                             tsr_error *err);

/* Makes the inverse map, which turns each name that the map produces back into its source's name. Opening the inverse over
 * a checkpoint fails for a name that the map does not produce, and for one that two rules produce if neither is an
 * exception to the other (TSR_E_FORMAT, naming the rules). Errors: TSR_E_UNSUPPORTED naming the rule and the step that has
 * no inverse. */
tsr_status tsr_mapping_invert(const tsr_mapping_rules *rules, tsr_arena *arena, const tsr_mapping_rules **out,
                              tsr_error *err);

/* Opens the mapped checkpoint. It borrows `source` and `rules`, which must outlive it; close it with tsr_checkpoint_close
 * before the source. It has a store of its own, which is closed with it. Numbers such as "$num_attention_heads" come from
 * the config.json in the source's store or, if there is none, from the params.json of Meta's Llamas.
 *
 * Errors: TSR_E_FORMAT, naming the tensors, where sizes do not fit, contradict a rule's "shape", or are not what the map's
 * "dims" compute from config.json, where a target would be written twice, where one of several tensors is missing, where a
 * layer lacks what the "layers" of rules state, and, under `refuse`, for a name that no rule matches; TSR_E_UNSUPPORTED for a
 * step on something that is not a dense tensor; TSR_E_NOT_FOUND for a number that config.json does not have; TSR_E_LIMIT for
 * more boxes than limits.entries allows. */
tsr_status tsr_mapping_open(tsr_checkpoint *source, const tsr_mapping_rules *rules, tsr_checkpoint **out, tsr_error *err);

/* Opens the checkpoint with quantized tensors multiplied by their scales; the scales are left out. Supported are float8 and
 * int8 scaled by tensor, row, group or block, MXFP4, and NVFP4 as ModelOpt and compressed-tensors store it. Products are
 * computed in float32 and rounded once to `dtype`. TSR_DTYPE_NONE means the dtype that config.json states, or bfloat16 if
 * it states none. `*used` receives the dtype. All other tensors are unchanged, and so are quantized tensors that cannot be
 * multiplied: call tsr_mapping_check_dequantized before reading any data. In all other respects as tsr_mapping_open. */
tsr_status tsr_mapping_dequantize(tsr_checkpoint *source, tsr_dtype dtype, tsr_dtype *used, tsr_checkpoint **out,
                                  tsr_error *err);
/* Fails if a quantized tensor that tsr_mapping_dequantize could not multiply is used, that is, if an entry of `top` that
 * `options` select (NULL: any entry) is made from it. `layer` is the dequantized checkpoint; `top` is the same one, or was
 * opened over it by maps, adapters and the like.
 *
 * Errors: TSR_E_FORMAT if a scale's shape does not fit; TSR_E_UNSUPPORTED naming a tensor that has a zero point or whose
 * class is not supported, and if no tensor could be multiplied at all. */
tsr_status tsr_mapping_check_dequantized(tsr_checkpoint *layer, tsr_checkpoint *top, const tsr_open_options *options,
                                         tsr_error *err);
/* Returns whether tsr_mapping_check_dequantized found that this entry of the layer is used. It can serve as `want` in
 * tsr_convert_options, with the layer as its context. */
bool tsr_mapping_uses(void *layer, tsr_str fqn);

typedef struct tsr_quantize_options {
    size_t size;                          /* TSR_OPTIONS sets it */
    tsr_dtype dtype;                      /* cast every floating-point tensor to this first; TSR_DTYPE_NONE: cast none */
    bool (*want)(void *ctx, tsr_str fqn); /* returns true for entries that will be read; NULL: all are */
    void *want_ctx;
    bool (*quantize)(void *ctx, tsr_str fqn); /* returns false to keep a weight; NULL: keep embeddings, norms etc. only */
    void *quantize_ctx;
} tsr_quantize_options;

/* How many weights were quantized, and the names of the two-dimensional weights that were kept as they are. A loader needs
 * this list. It is in the mapped checkpoint's memory. */
typedef struct tsr_quantized {
    uint64_t count;
    const tsr_str *kept;
    uint64_t kept_count;
} tsr_quantized;

/* Opens the checkpoint with its linear weights quantized to float8_e4m3fn in blocks of 128 x 128, with a float32
 * NAME.weight_scale_inv for each NAME.weight. The bytes are those that transformers' Fp8Quantize makes; smaller blocks at
 * the edges are treated as if padded with zeros. Linear weights are the floating-point tensors of two dims whose names end
 * in ".weight", except embeddings, norms, output layers and routers. All other tensors are unchanged. In all other respects
 * as tsr_mapping_open.
 *
 * Errors: TSR_E_UNSUPPORTED naming a weight that already has a scale, and experts stacked in one tensor; TSR_E_USAGE where
 * `want` separates a weight from its scale. Reading a weight that is NaN or infinite somewhere is TSR_E_UNSUPPORTED, naming
 * the weight and the place. Source: transformers/integrations/finegrained_fp8.py. */
tsr_status tsr_mapping_quantize(tsr_checkpoint *source, const tsr_quantize_options *options, tsr_quantized *quantized,
                                tsr_checkpoint **out, tsr_error *err);

/* The document of the built-in map with this name, or an empty text if there is no such map. Static storage. */
tsr_str tsr_mapping_builtin(tsr_str name);

TSR_API_END

#endif
