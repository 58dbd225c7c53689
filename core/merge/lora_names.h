/* Names of an adapter's tensors, and of the base's, as PEFT, PyTorch's wrappers and transformers change them. */
#ifndef TSR_MERGE_LORA_NAMES_H
#define TSR_MERGE_LORA_NAMES_H

#include "mapping/mapped.h"
#include "tessera/sys/map.h"

#define TSR_LORA_PREFIX "base_model.model."

/* Names are compared without the modules that others are in, and then as transformers renames modules themselves. */
enum { TSR_LORA_COMPARISONS = 2 };

typedef struct tsr_lora_names {
    const tsr_mapped *m;
    size_t part;     /* how much of the adapter's names is that of the part that has its tensors, with its dot */
    tsr_str adapter; /* the name of the adapter in its tensors' names, such as "default"; or empty */
    tsr_map *stored
        [TSR_LORA_COMPARISONS]; /* names of the base, as tsr_lora_stored compares them → entry; NULL until they are needed */
    bool is_inner;              /* the base is a language model inside another model */
} tsr_lora_names;

/* What a tensor of an adapter is, by the end of its name. */
typedef enum tsr_lora_kind {
    TSR_LORA_WHOLE, /* any tensor that is not one of the others */
    TSR_LORA_A,
    TSR_LORA_B,
    TSR_LORA_BIAS,
    TSR_LORA_EMBEDDING_A,
    TSR_LORA_EMBEDDING_B,
    TSR_LORA_MAGNITUDE,
    TSR_LORA_TOKENS,
    TSR_LORA_COPY, /* of the base's tensor, kept by PEFT next to what replaces it */
    TSR_LORA_OTHER /* of another method */
} tsr_lora_kind;

/* Finds out what a tensor is. Unless it is WHOLE or OTHER, *module receives the part of its name that is the module's, and
 * *adapter the name of the adapter, which is empty in what PEFT's save_pretrained writes. */
tsr_lora_kind tsr_lora_kind_of(tsr_str name, tsr_str *module, tsr_str *adapter);
/* The name of the adapter's tensor of another kind in the same module. Its data is NULL if memory runs out. */
tsr_str tsr_lora_sibling(const tsr_lora_names *names, tsr_str module, tsr_lora_kind kind, tsr_error *err);

/* Notes the name of the adapter that a tensor has. Fails with TSR_E_UNSUPPORTED if another tensor has another one. */
tsr_status tsr_lora_names_note(tsr_lora_names *names, tsr_str name, tsr_error *err);
void tsr_lora_names_close(tsr_lora_names *names); /* accepts a zeroed one */

/* The name of the base's tensor or module in memory: `name` without PEFT's prefix and without the names of wrapper modules. */
tsr_status tsr_lora_base_name(const tsr_lora_names *names, tsr_str name, tsr_str *out, tsr_error *err);
/* The name under which the base stores the tensor that is `target` in memory: `target` itself, or what transformers renames to it
 * when it loads the base, or the name that PyTorch's wrappers gave it. Returns `target` if there is none, or several. */
tsr_status tsr_lora_stored(tsr_lora_names *names, tsr_str target, tsr_str *out, tsr_error *err);

/* Whether a checkpoint is the state dict of a whole PEFT model: with the names of PEFT's wrapper modules. */
bool tsr_lora_is_state(const tsr_checkpoint *checkpoint);
/* Opens such a checkpoint as its base alone, under the base's names. */
tsr_status tsr_lora_open_state(tsr_checkpoint *state, tsr_checkpoint **out, tsr_error *err);

#endif
