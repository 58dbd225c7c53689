/* The config.json of a model, copied with what a conversion changed. Everything else stays as it is written, byte for byte.
 *
 * Example:
 *
 *     const tsr_config_changes changes = {.unquantized = true, .dtype = TSR_BFLOAT16};
 *     tsr_bytes config;
 *     tsr_vec copy = tsr_vec_of(host->allocator, 1);
 *     status = tsr_config_load(checkpoint, &config, &err);
 *     if (status == TSR_OK && config.data.size) status = tsr_config_rewrite(config.data, &changes, host, &copy, &err); */
#ifndef TESSERA_SYS_CONFIG_TEXT_H
#define TESSERA_SYS_CONFIG_TEXT_H

#include "tessera/checkpoint.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

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

TSR_API_END

#endif
