/* Reading the files of a store, and stores of memory. */
#ifndef TESSERA_SYS_STORE_H
#define TESSERA_SYS_STORE_H

#include "tessera/output.h"
#include "tessera/store.h"

TSR_API_BEGIN

/* Reading the files of a store, with bounds checked and the file named in errors.
 *
 * Example:
 *
 *     uint64_t header;
 *     const uint32_t number = tsr_store_find(store, TSR_STR("model.safetensors"));
 *     status = number == TSR_NO_FILE ? TSR_E_NOT_FOUND : tsr_store_read(store, number, 0, &header, sizeof header, &err); */

/* Index of a file by exact name, or TSR_NO_FILE. O(log n). */
uint32_t tsr_store_find(const tsr_store *store, tsr_str name);
/* Index of the first file whose name is not less than `name`, or the number of files. O(log n). */
uint32_t tsr_store_find_from(const tsr_store *store, tsr_str name);
/* The next file in `directory` or below it. *at is what tsr_store_find_from returned for the directory, and is set after the file.
 * TSR_NO_FILE if there is no other. */
uint32_t tsr_store_next_below(const tsr_store *store, tsr_str directory, uint32_t *at);
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

/* Where else below the root what `path` names is listed, if `path` leads there through a symbolic link. Otherwise empty. In `arena`.
 * Errors: TSR_E_NOMEM. The files of the browser have no links. */
#if defined(TSR_SMALL)
static inline tsr_status tsr_store_follow(const tsr_store *store, tsr_str path, tsr_arena *arena, tsr_str *out,
                                          tsr_error *err)
{
    (void)store, (void)path, (void)arena, (void)err;
    *out = TSR_STR("");
    return TSR_OK;
}
#else
tsr_status tsr_store_follow(const tsr_store *store, tsr_str path, tsr_arena *arena, tsr_str *out, tsr_error *err);
#endif

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

/* Stores and outputs in memory: for tests, the browser, and items that are themselves archives.
 *
 * Example:
 *
 *     const tsr_memory_file files[] = {{TSR_STR("model.safetensors"), text}};
 *     tsr_store *in_memory;
 *     status = tsr_store_from_memory(host->allocator, files, 1, &in_memory, &err);
 *     if (status == TSR_OK) status = tsr_checkpoint_open(in_memory, host, NULL, &checkpoint, &err); */

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

/* The guards of a store whose reads are requests (tsr_store.guard): each is read with the first bytes that it guards.
 *
 * Example:
 *
 *     tsr_guards *guards;
 *     char head[64];
 *     status = tsr_guards_new(host->allocator, read_unguarded, store, NULL, &guards, &err);
 *     if (status == TSR_OK) status = tsr_guards_read(guards, 0, 128, head, sizeof head, &err); // what read_at of the store does
 *     tsr_guards_free(guards); */

typedef struct tsr_guards tsr_guards;

/* Reads the store without checking the guards. Thread-safe if the store is. */
typedef tsr_status tsr_unguarded_read(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

/* A lock for stores that several threads read: core has none of its own. */
typedef struct tsr_guards_lock {
    void *ctx;
    void (*take)(void *ctx);
    void (*release)(void *ctx);
    bool (*is_taken)(void *ctx); /* for assertions */
    void (*free)(void *ctx);
} tsr_guards_lock;

/* Borrows `ctx`. `lock`: copied, and freed with the guards, or here on failure; NULL where one thread reads. */
tsr_status tsr_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, const tsr_guards_lock *lock,
                          tsr_guards **out, tsr_error *err);
void tsr_guards_free(tsr_guards *guards); /* takes NULL */
/* Removes all guards, because the numbers of files have changed. No thread may read meanwhile. */
void tsr_guards_forget(tsr_guards *guards);

/* Takes a copy. Thread-safe with a lock. TSR_E_NOMEM. */
tsr_status tsr_guards_add(tsr_guards *guards, const tsr_store_guard *guard, tsr_error *err);
/* Implements read_at of the store. A guard that holds is read only once; a guard that fails makes every read that it guards
 * fail. Thread-safe with a lock. */
tsr_status tsr_guards_read(tsr_guards *guards, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

TSR_API_END

#endif
