/* Reads weights that torchao quantized, in torch.save files and DCPs: objects that hold several tensors. */
#ifndef TSR_MAPPING_SUBCLASS_H
#define TSR_MAPPING_SUBCLASS_H

#include "mapping/mapped.h"

/* The tensors of an object, as entries with its name, in the arena of the mapped checkpoint. */
typedef struct tsr_subclass_parts {
    const tsr_entry *object; /* in the source's catalog; set by the caller */
    const tsr_entry *data, *scale;
} tsr_subclass_parts;

/* Finds the numbers of a Float8Tensor, NVFP4Tensor or MXTensor, and sets how->scheme and how->tensor_scale. parts->data is
 * NULL if the entry is not an object with quantized numbers. Errors: TSR_E_UNSUPPORTED, naming the entry and its class, if
 * it cannot be dequantized; those of reading. */
tsr_status tsr_subclass_find(tsr_mapped *m, tsr_subclass_parts *parts, tsr_scaling *how, tsr_error *err);

#endif
