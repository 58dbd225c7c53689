/* Merged models: weighted sums of the same tensors in several checkpoints, and LoRA adapters folded into their base. Either
 * is a checkpoint itself, whose tensors are computed tile by tile while they are read. Listing, converting and comparing it
 * therefore need no memory for whole tensors.
 *
 * Example:
 *
 *     const tsr_merge_input inputs[] = {{checkpoint, TSR_STR("a/"), 0.7}, {other, TSR_STR("b/"), 0.3}};
 *     const tsr_merge_options options = {.method = TSR_MERGE_LINEAR};
 *     tsr_checkpoint *merged;
 *     status = tsr_merge_open(inputs, 2, &options, &merged, &err);
 *     if (status == TSR_OK) entry = tsr_checkpoint_entry(merged, TSR_STR("model.embed_tokens.weight"));
 *     tsr_checkpoint_close(merged); */
#ifndef TESSERA_SYS_MERGE_H
#define TESSERA_SYS_MERGE_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* How values x of the inputs make one. Sums are in float64 where a tensor is float64 and in float32 otherwise, and are
 * rounded once. */
typedef enum tsr_merge_method {
    TSR_MERGE_LINEAR, /* Σ weight·x / Σ weight; Σ weight·x with `no_normalize` */
    TSR_MERGE_SLERP,  /* between two inputs along the arc, as mergekit has it: along the line where |cos| > 0.9995 */
    TSR_MERGE_TASK_ARITHMETIC, /* base + Σ weight·(x − base) */
    TSR_MERGE_METHODS
} tsr_merge_method;

typedef struct tsr_merge_input {
    tsr_checkpoint *checkpoint; /* borrowed */
    tsr_str name;               /* for messages: its path */
    double weight;              /* not used by slerp */
} tsr_merge_input;

typedef struct tsr_merge_options {
    size_t size; /* TSR_OPTIONS sets it */
    tsr_merge_method method;
    const tsr_merge_input *base; /* task arithmetic */
    bool no_normalize;           /* linear */
    double t;                    /* slerp: 0 is the first input, 1 the second */
    tsr_dtype dtype;             /* of the merged tensors; TSR_DTYPE_NONE: their own, the same in all inputs */
    tsr_selection selection; /* only these entries are compared and merged; the others stay as the first input has them */
    bool skip_objects; /* objects are not compared: they stay as the first input has them, for callers that drop them */
} tsr_merge_options;

/* The merge of `count` checkpoints (1 or more), with the order and the nesting of the first one. Floating-point tensors are
 * merged; all other entries are read here and must be equal in all inputs. Borrows the checkpoints, which must outlive *out;
 * `inputs` and `options` are not needed any more. Close it with tsr_checkpoint_close before the inputs.
 *
 * Errors: TSR_E_FORMAT naming the entry and both inputs if names, kinds, dtypes, shapes, or entries that cannot be summed
 * differ; TSR_E_USAGE for options that do not fit the method; TSR_E_UNSUPPORTED for quantized, sparse and other opaque
 * tensors; those of reading. */
tsr_status tsr_merge_open(const tsr_merge_input *inputs, uint32_t count, const tsr_merge_options *options,
                          tsr_checkpoint **out, tsr_error *err);

/* slerp needs the angle between whole tensors before the first element. Reads the selected tensors whose number modulo `parts` is
 * `part` and remembers their angles, with the host's threads; tensors that were not measured are read once more for every run of
 * elements. Several processes exchange what they measured (tessera/sys/merge.h). Does nothing for other methods. Errors of reading. */
tsr_status tsr_merge_measure(tsr_checkpoint *merged, uint64_t part, uint64_t parts, tsr_error *err);

/* A LoRA adapter of PEFT (adapter_config.json and adapter_model.safetensors), folded into its base as PEFT's merge_and_unload does:
 * W + B·A·alpha/r, by rank_pattern, alpha_pattern and use_rslora, transposed for embeddings and fan_in_fan_out, and with the tensors
 * of modules_to_save in place of the base's. With use_dora, each output is scaled to the norm that the adapter has for it. Rows of
 * trainable_token_indices replace those of the base. Matrices of target_parameters change each expert, whether the base has
 * experts fused, as transformers does, or one by one. Products are float32 (float64 where a tensor is), rounded once to `dtype`
 * (TSR_DTYPE_NONE: the base's).
 *
 * If the output layer of the base is its input embedding, a change of one changes both, and modules_to_save makes two tensors of
 * them; notes (tsr_mapping_note) say so. If such a base stores both, they must be the same: tsr_mapping_check_tied reads them. A
 * whole module that the base lacks, such as a classifier, is added to the result; a classifier takes the place of the base's output
 * layer, which is then left out. Borrows both checkpoints, which must outlive *out. */
typedef struct tsr_lora_options {
    size_t size; /* TSR_OPTIONS sets it */
    tsr_dtype dtype;
    tsr_str name; /* of the adapter, for messages: its path */
} tsr_lora_options;

/* Errors: TSR_E_NOT_FOUND where adapter_config.json or a tensor of the base or adapter is missing; TSR_E_FORMAT where a size
 * does not fit; TSR_E_UNSUPPORTED for anything but LoRA and DoRA (other methods of PEFT, adapters that change the base
 * when loaded), for a square matrix that may or may not be transposed, for a change that PEFT adds twice because of
 * ensure_weight_tying, and for a base in which several embeddings may be tied to the output layer. */
tsr_status tsr_lora_fold(tsr_checkpoint *base, tsr_checkpoint *adapter, const tsr_lora_options *options,
                         tsr_checkpoint **out, tsr_error *err);

/* The angles that processes exchange when they share the measuring (tsr_merge_measure).
 *
 * Example:
 *
 *     status = tsr_merge_measure(checkpoint, 0, 2, &err);
 *     if (status == TSR_OK) printf("%zu bytes for the other process\n", tsr_merge_angles(checkpoint).size); */

/* tsr_merge_angles returns the angles that this process measured, in the memory of `merged`; the size is the same in every
 * process. tsr_merge_take_angles adds those that another process measured. */
tsr_str tsr_merge_angles(tsr_checkpoint *merged);
void tsr_merge_take_angles(tsr_checkpoint *merged, tsr_str angles);

TSR_API_END

#endif
