/* What all stores have in common: look-ups by name, bounds checks, and reading whole ranges into contiguous memory. */
#include "tessera/store.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/store_read.h"

#include "tessera/sys/try.h"

uint32_t tsr_store_find_from(const tsr_store *store, tsr_str name)
{
    uint32_t low = 0, high = store->file_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (tsr_str_compare(store->files[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

uint32_t tsr_store_find(const tsr_store *store, tsr_str name)
{
    const uint32_t at = tsr_store_find_from(store, name);
    return at < store->file_count && tsr_str_equal(store->files[at].name, name) ? at : TSR_NO_FILE;
}

static tsr_status check_range(const tsr_store *store, uint32_t file, uint64_t offset, uint64_t size, tsr_error *err)
{
    TSR_FAIL_IF(file >= store->file_count, err, TSR_E_NOT_FOUND, "there is no file number %u", (unsigned)file);
    const tsr_store_file *f = &store->files[file];
    TSR_FAIL_AT(offset > f->size || size > f->size - offset, err, TSR_E_IO, offset,
                "a read of %llu bytes at byte %llu reaches beyond the end (%llu bytes) of %.*s", (unsigned long long)size,
                (unsigned long long)offset, (unsigned long long)f->size, TSR_STR_ARG(f->name));
    return TSR_OK;
}

tsr_status tsr_store_read(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    TSR_TRY(check_range(store, file, offset, size, err));
    return size ? store->read_at(store, file, offset, buffer, size, err) : TSR_OK;
}

tsr_range tsr_whole_file(tsr_store *store, uint32_t file)
{
    return (tsr_range){store, file, 0, store->files[file].size};
}

tsr_status tsr_range_load(tsr_range range, const tsr_host *host, tsr_bytes *out, tsr_error *err)
{
    tsr_store *const store = range.store;
    const uint32_t file = range.file;
    const uint64_t offset = range.byte_offset, size = range.byte_length;
    *out = (tsr_bytes){0};
    TSR_TRY(check_range(store, file, offset, size, err));
    TSR_FAIL_AT(size > host->limits.metadata_bytes || size > SIZE_MAX / 2, err, TSR_E_LIMIT, offset,
                "reading %llu bytes of metadata from %.*s would exceed the limit of %llu", (unsigned long long)size,
                TSR_STR_ARG(store->files[file].name), (unsigned long long)host->limits.metadata_bytes);
    if (store->map && store->map(store, file, &out->mapping, NULL) == TSR_OK) {
        out->mapped_store = store;
        out->file = file;
        out->data = (tsr_str){out->mapping.data + offset, (size_t)size};
        return TSR_OK;
    }
    char *memory = tsr_alloc(host->allocator, (size_t)size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    out->data = (tsr_str){memory, (size_t)size};
    out->allocator = host->allocator;
    tsr_status status = tsr_store_read(store, file, offset, memory, (size_t)size, err);
    if (status != TSR_OK) tsr_bytes_free(out);
    return status;
}

void tsr_bytes_free(tsr_bytes *bytes)
{
    if (bytes->mapped_store) {
        bytes->mapped_store->unmap(bytes->mapped_store, bytes->file, bytes->mapping);
    } else if (bytes->allocator) {
        tsr_free(bytes->allocator, (char *)bytes->data.data, bytes->data.size, 1);
    }
    *bytes = (tsr_bytes){0};
}
