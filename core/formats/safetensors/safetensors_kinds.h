/* Recognizes safetensors files, what several of them in one directory are, and those whose tensors are not those of a model. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_KINDS_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_KINDS_H

#include <cjson/cJSON.h>

#include "formats/common/reader.h"

#define TSR_DFLOAT11 \
    "a model that DFloat11 compressed, which is not supported: DFloat11Model.from_pretrained of the package dfloat11 loads it"

/* The reader for a safetensors file of `size` bytes that begins with these bytes; NULL for any other file. */
const tsr_reader *tsr_safetensors_kind(tsr_str head, uint64_t size);
/* Reads the beginning of a header. *foreign is NULL, or what the file is if its tensors are not those of a model, although the
 * format is right. */
tsr_status tsr_safetensors_foreign(tsr_store *store, uint32_t file, const tsr_host *host, const char **foreign,
                                   tsr_error *err);
/* What an index is if its files do not hold the tensors that it names, or NULL. */
const char *tsr_safetensors_foreign_index(const cJSON *index);
/* Chooses the reader for a directory whose root has these safetensors files. Fails with TSR_E_UNSUPPORTED if the first of them
 * is foreign. */
tsr_status tsr_safetensors_choose(tsr_checkpoint *checkpoint, tsr_numbered_files *files, bool alone,
                                  const tsr_reader **reader, tsr_error *err);

#endif
