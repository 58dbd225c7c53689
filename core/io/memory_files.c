/* An output in memory: one growing buffer per file. */
#include "tessera/output.h"

#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

typedef struct memory_output {
    tsr_output base;
    const tsr_allocator *allocator;
    tsr_arena *names;
    tsr_vec files; /* of written_file */
} memory_output;

typedef struct written_file {
    tsr_str name;
    tsr_vec bytes;
} written_file;

static written_file *file_of(const tsr_output *output, uint32_t file)
{
    return (written_file *)((const memory_output *)output)->files.items + file;
}

static tsr_status memory_create(tsr_output *output, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    memory_output *memory = (memory_output *)output;
    TSR_FAIL_IF(tsr_output_memory_file(output, name).data, err, TSR_E_EXISTS, "%.*s already exists", TSR_STR_ARG(name));
    TSR_FAIL_IF(size > SIZE_MAX, err, TSR_E_NOMEM, "a file of %llu bytes does not fit in memory", (unsigned long long)size);
    tsr_str copy = tsr_arena_str(memory->names, name, err);
    written_file *created = copy.data ? tsr_vec_push(&memory->files, err) : NULL;
    if (!created) return TSR_E_NOMEM;
    *created = (written_file){copy, tsr_vec_of(memory->allocator, 1)};
    *file = (uint32_t)(memory->files.count - 1);
    return tsr_vec_reserve(&created->bytes, (size_t)size, err);
}

static tsr_status memory_write_at(tsr_output *output, uint32_t file, uint64_t offset, const void *data, size_t size,
                                  tsr_error *err)
{
    tsr_vec *bytes = &file_of(output, file)->bytes;
    uint64_t end = offset + size;
    TSR_FAIL_AT(end < offset || end > SIZE_MAX, err, TSR_E_NOMEM, offset, "a write at %llu does not fit in memory",
                (unsigned long long)offset);
    if (end > bytes->count) {
        TSR_TRY(tsr_vec_reserve(bytes, (size_t)end - bytes->count, err));
        memset((char *)bytes->items + bytes->count, 0, (size_t)end - bytes->count);
        bytes->count = (size_t)end;
    }
    if (size) memcpy((char *)bytes->items + offset, data, size);
    return TSR_OK;
}

static tsr_status memory_publish(tsr_output *output, uint32_t marker, tsr_error *err)
{
    (void)output;
    (void)marker;
    (void)err;
    return TSR_OK;
}

static void memory_close(tsr_output *output)
{
    memory_output *memory = (memory_output *)output;
    for (uint32_t i = 0; i < memory->files.count; i++) tsr_vec_free(&file_of(output, i)->bytes);
    tsr_vec_free(&memory->files);
    tsr_arena_free(memory->names);
    tsr_free(memory->allocator, memory, 1, sizeof *memory);
}

tsr_status tsr_output_to_memory(const tsr_allocator *allocator, tsr_output **out, tsr_error *err)
{
    memory_output *memory = tsr_alloc(allocator, 1, sizeof *memory, err);
    tsr_arena *names = memory ? tsr_arena_new(allocator, 0, err) : NULL;
    if (!names) {
        tsr_free(allocator, memory, 1, sizeof *memory);
        return TSR_E_NOMEM;
    }
    *memory = (memory_output){{memory_create, memory_write_at, NULL, memory_publish, memory_close, NULL, 0},
                              allocator,
                              names,
                              tsr_vec_of(allocator, sizeof(written_file))};
    *out = &memory->base;
    return TSR_OK;
}

tsr_str tsr_output_memory_file(const tsr_output *output, tsr_str name)
{
    const memory_output *memory = (const memory_output *)output;
    for (uint32_t i = 0; i < memory->files.count; i++) {
        const written_file *f = file_of(output, i);
        if (tsr_str_equal(f->name, name)) return (tsr_str){f->bytes.items ? f->bytes.items : "", f->bytes.count};
    }
    return (tsr_str){NULL, 0};
}

uint32_t tsr_output_memory_count(const tsr_output *output)
{
    return (uint32_t)((const memory_output *)output)->files.count;
}

tsr_str tsr_output_memory_name(const tsr_output *output, uint32_t file)
{
    return file_of(output, file)->name;
}

/* A store over borrowed memory. */

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

static void memory_store_close(tsr_store *store)
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
                                      .close = memory_store_close},
                             .allocator = allocator,
                             .contents = contents,
                             .listing = listing};
    *out = &memory->base;
    return TSR_OK;
}
