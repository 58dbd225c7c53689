/* Stores and outputs in memory: for tests, the browser, and items that are themselves archives.
 *
 * Example:
 *
 *     const tsr_memory_file files[] = {{TSR_STR("model.safetensors"), text}};
 *     tsr_store *in_memory;
 *     status = tsr_store_from_memory(host->allocator, files, 1, &in_memory, &err);
 *     if (status == TSR_OK) status = tsr_checkpoint_open(in_memory, host, NULL, &checkpoint, &err); */
#ifndef TESSERA_SYS_MEMORY_FILES_H
#define TESSERA_SYS_MEMORY_FILES_H

#include "tessera/output.h"

TSR_API_BEGIN

/* A store over memory, for tests, the browser and items that are themselves archives. Borrows the names and contents until it is
 * closed. Errors: TSR_E_NOMEM. */
typedef struct tsr_memory_file {
    tsr_str name;
    tsr_str content;
} tsr_memory_file;
tsr_status tsr_store_from_memory(const tsr_allocator *allocator, const tsr_memory_file *files, uint32_t count,
                                 tsr_store **out, tsr_error *err);

/* An output into memory, for tests and the browser. Files stay readable until close. */
tsr_status tsr_output_to_memory(const tsr_allocator *allocator, tsr_output **out, tsr_error *err);
/* The bytes of the file with this name, or {NULL, 0} if there is no such file. Borrowed until close or the next write. */
tsr_str tsr_output_memory_file(const tsr_output *output, tsr_str name);
uint32_t tsr_output_memory_count(const tsr_output *output);
tsr_str tsr_output_memory_name(const tsr_output *output, uint32_t file);

TSR_API_END

#endif
