/* Maps of names and values. */
#ifndef TESSERA_SYS_MAPPING_H
#define TESSERA_SYS_MAPPING_H

#include "tessera/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/store.h"

TSR_API_BEGIN

/* Arithmetic on stored numbers. A quantized tensor holds numbers that are not the weights themselves:
 *
 *   weight (float8, int8, or packed in uint8 … uint32)  ×  weight_scale  =  the actual weight
 *
 * A cast, a sum or an adapter that used these numbers alone would give other weights without any error, so it is refused.
 * Scales are found by the names that quantization libraries use, and by the dtype of the numbers next to them. float8 weights
 * without such a scale are refused where config.json has a quantization_config.
 *
 * Example:
 *
 *     const tsr_arithmetic cast = {.dtype = TSR_BFLOAT16};
 *     status = tsr_check_arithmetic(checkpoint, &cast, &err); */

typedef struct tsr_arithmetic {
    tsr_selection selection; /* what is changed; a scale that is not selected counts, too */
    tsr_dtype dtype;         /* what it is cast to; TSR_DTYPE_NONE: something is added to it */
    bool by_map;             /* a step of a map, which --raw-cast does not allow */
} tsr_arithmetic;

/* Refuses arithmetic on the numbers and scales of any tensor. Errors: TSR_E_UNSUPPORTED naming the first tensor and its scale;
 * those of reading config.json; TSR_E_NOMEM. */
tsr_status tsr_check_arithmetic(tsr_checkpoint *checkpoint, const tsr_arithmetic *what, tsr_error *err);
/* Refuses arithmetic on the numbers of one tensor. */
tsr_status tsr_check_arithmetic_on(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_arithmetic *what,
                                   tsr_error *err);
/* Finds the packed numbers that stand for a tensor which the checkpoint does not have: NAME.qweight or NAME.weight_packed for
 * NAME.weight. *out is NULL if there are none with a scale. */
tsr_status tsr_find_packed(tsr_checkpoint *checkpoint, tsr_str fqn, const tsr_entry **out, tsr_error *err);

/* The config.json of a model, copied with what a conversion changed. Everything else stays as it is written, byte for byte.
 *
 * Example:
 *
 *     const tsr_config_changes changes = {.unquantized = true, .dtype = TSR_BFLOAT16};
 *     tsr_bytes config;
 *     tsr_vec copy = tsr_vec_of(host->allocator, 1);
 *     status = tsr_config_load(checkpoint, &config, &err);
 *     if (status == TSR_OK && config.data.size) status = tsr_config_rewrite(config.data, &changes, host, &copy, &err); */

typedef struct tsr_config_changes {
    bool unquantized;             /* the weights are not quantized any more: quantization_config goes */
    bool untied;                  /* the output layer is no longer the input embedding */
    uint64_t tokens, more_tokens; /* the vocabulary has grown from `tokens`; more_tokens 0: it has not */
    tsr_dtype dtype;              /* what floating-point tensors were cast to; TSR_DTYPE_NONE: they keep their dtypes */
    tsr_str quantization;         /* the quantization_config that the weights have now; empty: it does not change */
} tsr_config_changes;

/* Loads the config.json among the checkpoint's files, or next to its single file. Without one, out->data is empty. The caller
 * frees the bytes. Errors of reading. */
tsr_status tsr_config_load(const tsr_checkpoint *checkpoint, tsr_bytes *out, tsr_error *err);
/* Appends the changed document to `out`, a vec of char. The configs of a model's parts (text_config, …) are changed, too; a
 * dtype that is not stated stays unstated. Errors: TSR_E_FORMAT if the text is not a JSON object, or does not state the vocabulary
 * that has grown; TSR_E_NOMEM. */
tsr_status tsr_config_rewrite(tsr_str text, const tsr_config_changes *changes, const tsr_host *host, tsr_vec *out,
                              tsr_error *err);

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
 * int8 scaled by tensor, row, group or block, MXFP4, NVFP4 as ModelOpt and compressed-tensors store it, packed numbers
 * (mapping/mapping_packed.h), and torchao's weights. Products are computed as the library does that wrote them, and rounded
 * to `dtype`. TSR_DTYPE_NONE means the dtype that a weight of torchao states, for others that of config.json, or bfloat16 if
 * it states none. `*used` receives the dtype. All other tensors are unchanged, and so are quantized tensors that cannot be
 * multiplied: call tsr_mapping_check_dequantized before reading any data. In all other respects as tsr_mapping_open. */
tsr_status tsr_mapping_dequantize(tsr_checkpoint *source, tsr_dtype dtype, tsr_dtype *used, tsr_checkpoint **out,
                                  tsr_error *err);
/* Fails if a quantized tensor that tsr_mapping_dequantize could not multiply is used, that is, if an entry of `top` that
 * `options` select (NULL: any entry) is made from it. `layer` is the dequantized checkpoint; `top` is the same one, or was
 * opened over it by maps, adapters and the like. `*plain` becomes true if the checkpoint has no quantized tensors and its
 * config.json states none; with NULL, that is an error.
 *
 * Errors: TSR_E_FORMAT if a scale's shape does not fit; TSR_E_UNSUPPORTED naming a tensor that has a zero point or whose
 * class is not supported, and if no tensor could be multiplied at all. */
tsr_status tsr_mapping_check_dequantized(tsr_checkpoint *layer, tsr_checkpoint *top, const tsr_open_options *options,
                                         bool *plain, tsr_error *err);
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

/* Makes the quantization_config that config.json of the quantized checkpoint has to have, as JSON on one line in `arena`.
 * `checkpoint` is what tsr_mapping_quantize has opened. transformers compares the names of modules to leave alone with the ends of
 * module names, so a module is listed by its last two components, and by its whole name if a quantized one ends like it. */
tsr_status tsr_quantized_config(const tsr_checkpoint *checkpoint, const tsr_quantized *quantized, tsr_arena *arena,
                                tsr_str *out, tsr_error *err);

/* The document of the built-in map with this name, or an empty text if there is no such map. Static storage. */
tsr_str tsr_mapping_builtin(tsr_str name);
/* The same; fails with TSR_E_USAGE if there is no such map, with the name that was probably meant. */
tsr_status tsr_mapping_named(const char *name, tsr_str *text, tsr_error *err);

/* Returns note `index` that users should read about a mapped checkpoint and those that it was opened over: a sentence in
 * that checkpoint's memory, or an empty text after the last one. An inverse names the first entry that may also come from
 * another name, because the map makes it by a rule and its exception, or may have kept it (tsr_mapping_write_table lists
 * them all). An adapter names a module that its configuration selects but for which it has no tensors, a setting that PEFT
 * does not have, and an embedding that is also the output layer, with what became of both. `configured` leaves out what has to change
 * in config.json, for callers that write one with tsr_mapping_change_config. */
tsr_str tsr_mapping_note(const tsr_checkpoint *mapped, bool configured, size_t index);
/* Appends all of them to `out`, a vector of tsr_str. */
tsr_status tsr_mapping_add_notes(const tsr_checkpoint *mapped, bool configured, tsr_vec *out, tsr_error *err);
/* Sets in *changes what has to change in config.json: the model is not quantized any more, or an adapter has changed its vocabulary.
 * The rest of *changes stays. */
void tsr_mapping_change_config(const tsr_checkpoint *mapped, tsr_config_changes *changes);

/* Adds a note (tsr_mapping_note) about a layer that has some of the names of another, but not all, where a rule takes the names
 * of layers as they are (`{rest...}`), so that no rule states which of them are required. Call it once after
 * tsr_mapping_open. Errors: TSR_E_NOMEM. */
tsr_status tsr_mapping_compare_layers(tsr_checkpoint *mapped, tsr_error *err);

/* Fails if a tensor that a map left out as the same one as another (its "tied_to", where config.json ties them), or that an
 * adapter changes together with another, has other values. Reads both tensors. `mapped` may have been opened over the mapped checkpoint. Errors: TSR_E_FORMAT naming both
 * tensors and the first row that differs; those of tsr_read_box. */
tsr_status tsr_mapping_check_tied(const tsr_checkpoint *mapped, tsr_error *err);

/* Writes a table of the sources of a mapped checkpoint's entries: "source, source -> steps -> target dtype [shape]" for
 * each entry (more than four sources are wrapped onto indented lines), and then "source -> (dropped)" for each source that
 * was dropped. A name that may also come from another one (tsr_mapping_note) is followed by "(or NAME)". Sources are traced
 * back to the first checkpoint that is not a mapped one. */
tsr_status tsr_mapping_write_table(const tsr_checkpoint *mapped, tsr_write_fn *write, void *ctx, tsr_error *err);
/* Adds the same table to the JSON object that is open: "map": [{fqn, dtype, shape, from: [{fqn, dtype, shape}], steps,
 * or}], "dropped": [{fqn, dtype, shape}]. */
void tsr_mapping_put_table(const tsr_checkpoint *mapped, tsr_json *json);

/* Makes the error for a --map that is neither a document nor the name of a built-in map: TSR_E_USAGE, listing the names. */
tsr_status tsr_mapping_unknown(tsr_str name, tsr_error *err);
/* The name of built-in map `index`, in alphabetical order; empty after the last one. */
tsr_str tsr_mapping_builtin_name(size_t index);

TSR_API_END

#endif
