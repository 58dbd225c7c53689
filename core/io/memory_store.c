/* A store over borrowed memory. */
#include <stdlib.h>

#include "tessera/store.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/memory_files.h"
#include "tessera/sys/try.h"

typedef struct memory_store {
    tsr_store base;
    const tsr_allocator *allocator;
    tsr_memory_file *contents; /* sorted like base.files */
    tsr_store_file *listing;
} memory_store;

static tsr_status memory_read_at(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const memory_store *memory = (const memory_store *)store;
    const tsr_str content = memory->contents[file].content;
    TSR_FAIL_AT(offset > content.size || size > content.size - offset, err, TSR_E_IO, offset, "read beyond the end of %.*s",
                TSR_STR_ARG(memory->contents[file].name));
    memcpy(buffer, content.data + offset, size);
    return TSR_OK;
}

static tsr_status memory_map(tsr_store *store, uint32_t file, tsr_str *out, tsr_error *err)
{
    (void)err;
    *out = ((const memory_store *)store)->contents[file].content;
    return TSR_OK;
}

static void memory_unmap(tsr_store *store, uint32_t file, tsr_str mapped)
{
    (void)store;
    (void)file;
    (void)mapped;
}

static void memory_close(tsr_store *store)
{
    memory_store *memory = (memory_store *)store;
    tsr_free(memory->allocator, memory->contents, store->file_count, sizeof *memory->contents);
    tsr_free(memory->allocator, memory->listing, store->file_count, sizeof *memory->listing);
    tsr_free(memory->allocator, memory, 1, sizeof *memory);
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_memory_file *)a)->name, ((const tsr_memory_file *)b)->name);
}

tsr_status tsr_store_from_memory(const tsr_allocator *allocator, const tsr_memory_file *files, uint32_t count,
                                 tsr_store **out, tsr_error *err)
{
    memory_store *memory = tsr_alloc(allocator, 1, sizeof *memory, err);
    tsr_memory_file *contents = memory ? tsr_alloc(allocator, count, sizeof *contents, err) : NULL;
    tsr_store_file *listing = contents ? tsr_alloc(allocator, count, sizeof *listing, err) : NULL;
    if (!listing) {
        tsr_free(allocator, contents, count, sizeof *contents);
        tsr_free(allocator, memory, 1, sizeof *memory);
        return TSR_E_NOMEM;
    }
    if (count) memcpy(contents, files, count * sizeof *contents);
    qsort(contents, count, sizeof *contents, by_name);
    for (uint32_t i = 0; i < count; i++) listing[i] = (tsr_store_file){contents[i].name, contents[i].content.size};
    *memory = (memory_store){.base = {.file_count = count,
                                      .files = listing,
                                      .primary = TSR_NO_FILE,
                                      .read_at = memory_read_at,
                                      .map = memory_map,
                                      .unmap = memory_unmap,
                                      .close = memory_close},
                             .allocator = allocator,
                             .contents = contents,
                             .listing = listing};
    *out = &memory->base;
    return TSR_OK;
}
