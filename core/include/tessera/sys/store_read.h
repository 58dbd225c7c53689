/* Reading the files of a store, with bounds checked and the file named in errors.
 *
 * Example:
 *
 *     uint64_t header;
 *     const uint32_t number = tsr_store_find(store, TSR_STR("model.safetensors"));
 *     status = number == TSR_NO_FILE ? TSR_E_NOT_FOUND : tsr_store_read(store, number, 0, &header, sizeof header, &err); */
#ifndef TESSERA_SYS_STORE_READ_H
#define TESSERA_SYS_STORE_READ_H

#include "tessera/store.h"

TSR_API_BEGIN

/* Index of a file by exact name, or TSR_NO_FILE. O(log n). */
uint32_t tsr_store_find(const tsr_store *store, tsr_str name);
/* Index of the first file whose name is not less than `name`, or the number of files. O(log n). */
uint32_t tsr_store_find_from(const tsr_store *store, tsr_str name);
/* Bounds-checked read_at: the range is compared with the file's size first. Errors name the file. */
tsr_status tsr_store_read(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

/* Whether the store takes a schedule. Those of the WebAssembly module do not, which need not carry what is for others. */
static inline bool tsr_store_takes_schedules(const tsr_store *store)
{
#if defined(__wasm__)
    (void)store;
    return false;
#else
    return store->schedule != NULL;
#endif
}
/* Calls `expect`, which stores that take schedules have. `store` may be NULL. */
static inline void tsr_store_expect(tsr_store *store, uint32_t file, uint64_t offset, uint64_t size)
{
#if defined(__wasm__)
    (void)store, (void)file, (void)offset, (void)size;
#else
    if (store) store->expect(store, file, offset, size);
#endif
}

/* Bytes of one file of a store. */
typedef struct tsr_range {
    tsr_store *store;
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
} tsr_range;
tsr_range tsr_whole_file(tsr_store *store, uint32_t file);

/* A range as contiguous memory: mapped where the store can, otherwise read into memory of the host's allocator. Refuses
 * more than `limits.metadata_bytes`. */
typedef struct tsr_bytes {
    tsr_str data;
    tsr_store *mapped_store; /* NULL: owned memory */
    uint32_t file;
    tsr_str mapping;
    const tsr_allocator *allocator;
} tsr_bytes;
tsr_status tsr_range_load(tsr_range range, const tsr_host *host, tsr_bytes *out, tsr_error *err);
void tsr_bytes_free(tsr_bytes *bytes); /* accepts a zeroed one */

TSR_API_END

#endif
