/* What all stores have in common: look-ups by name, bounds checks, and reading whole ranges into contiguous memory. */
#include "tessera/store.h"
#include "io/store_view.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/store.h"
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

uint32_t tsr_store_next_below(const tsr_store *store, tsr_str directory, uint32_t *at)
{
    for (; *at < store->file_count; ++*at) {
        const tsr_str name = store->files[*at].name;
        const unsigned char next = name.size > directory.size ? (unsigned char)name.data[directory.size] : 0;
        if (!tsr_str_starts(name, directory) || next > '/') break;
        if (next == '/') return (*at)++;
    }
    return TSR_NO_FILE;
}

#if !defined(TSR_SMALL)
/* Whether a file of this name, or files in a directory of this name, are listed. */
static bool is_listed(const tsr_store *store, tsr_str path)
{
    uint32_t at = tsr_store_find_from(store, path);
    return tsr_store_find(store, path) != TSR_NO_FILE || tsr_store_next_below(store, path, &at) != TSR_NO_FILE;
}

static const tsr_store_link *find_link(const tsr_store *store, tsr_str name)
{
    uint32_t low = 0, high = store->link_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = tsr_str_compare(store->links[middle].name, name);
        if (!order) return &store->links[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

tsr_status tsr_store_follow(const tsr_store *store, tsr_str path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_store_link *link = NULL; /* of a link in a directory that is one, that of the directory */
    *out = TSR_STR("");
    for (size_t size = 1; size <= path.size && store->link_count && !link; size++)
        if (size == path.size || path.data[size] == '/') link = find_link(store, (tsr_str){path.data, size});
    if (!link) return TSR_OK;
    const tsr_str other = tsr_arena_format(arena, err, "%.*s%.*s", TSR_STR_ARG(link->target),
                                           TSR_STR_ARG(tsr_str_after(path, link->name.size)));
    if (other.data && is_listed(store, other)) *out = other;
    return other.data ? TSR_OK : TSR_E_NOMEM;
}
#endif

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

/* A store's files are sorted by name, so those below one directory follow each other. */

static tsr_status read_shown(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const tsr_store_view *view = (tsr_store_view *)base;
    return view->shown->read_at(view->shown, view->first + file, offset, buffer, size, err);
}

static tsr_status map_shown(tsr_store *base, uint32_t file, tsr_str *out, tsr_error *err)
{
    const tsr_store_view *view = (tsr_store_view *)base;
    return view->shown->map(view->shown, view->first + file, out, err);
}

static void unmap_shown(tsr_store *base, uint32_t file, tsr_str mapped)
{
    const tsr_store_view *view = (tsr_store_view *)base;
    view->shown->unmap(view->shown, view->first + file, mapped);
}

static tsr_store *origin_of_shown(const tsr_store *base, uint32_t *file)
{
    const tsr_store_view *view = (const tsr_store_view *)base;
    *file += view->first;
    return view->shown;
}

static void close_nothing(tsr_store *base)
{
    (void)base;
}

static tsr_store_view *new_view(tsr_store *shown, tsr_arena *arena, tsr_error *err)
{
    tsr_store_view *view = TSR_ARENA_NEW(arena, tsr_store_view, err);
    if (!view) return NULL;
    view->shown = shown;
    view->base = (tsr_store){.file_count = shown->file_count,
                             .files = shown->files,
                             .primary = TSR_NO_FILE,
                             .read_at = read_shown,
                             .map = shown->map ? map_shown : NULL,
                             .unmap = shown->unmap ? unmap_shown : NULL,
                             .close = close_nothing,
                             .origin = origin_of_shown,
                             .unsummed = shown->unsummed};
    return view;
}

/* Shows the files below a directory under their names in it. With `renumbers`, the first of them is file 0; otherwise they keep their
 * numbers, and the files before them have no names. */
static tsr_status view_below(tsr_store *shown, tsr_str name, bool renumbers, tsr_arena *arena, tsr_store_view **out,
                             bool *holds_files, tsr_error *err)
{
    *out = new_view(shown, arena, err);
    if (!*out) return TSR_E_NOMEM;
    *holds_files = shown->file_count > 0;
    if (name.size == 0) return TSR_OK;
    uint32_t at = tsr_store_find_from(shown, name);
    const uint32_t found = tsr_store_next_below(shown, name, &at), from = found == TSR_NO_FILE ? 0 : found;
    uint32_t to = found == TSR_NO_FILE ? 0 : at;
    while (tsr_store_next_below(shown, name, &at) != TSR_NO_FILE) to = at;
    const uint32_t first = renumbers ? from : 0;
    tsr_store_file *files = tsr_arena_array(arena, to - first, sizeof *files, err);
    if (!files) return TSR_E_NOMEM;
    for (uint32_t f = from; f < to; f++) {
        const tsr_str full = shown->files[f].name;
        files[f - first] = (tsr_store_file){{full.data + name.size + 1, full.size - name.size - 1}, shown->files[f].size};
    }
    for (uint32_t f = first; f < from; f++) files[f - first].name = TSR_STR("");
    (*out)->first = first;
    (*out)->base.files = files;
    (*out)->base.file_count = to - first;
    *holds_files = to > from;
    return TSR_OK;
}

tsr_status tsr_store_view_below(tsr_store *shown, tsr_str name, tsr_arena *arena, tsr_store_view **out, bool *holds_files,
                                tsr_error *err)
{
    return view_below(shown, name, false, arena, out, holds_files, err);
}

tsr_status tsr_store_view_of_file(tsr_store *shown, uint32_t file, tsr_arena *arena, tsr_store_view **out, tsr_error *err)
{
    *out = new_view(shown, arena, err);
    if (!*out) return TSR_E_NOMEM;
    (*out)->base.primary = file;
    return TSR_OK;
}

tsr_status tsr_store_open_below(tsr_store *store, tsr_str name, tsr_arena *arena, tsr_store **out, bool *owned,
                                bool *holds_files, tsr_error *err)
{
    tsr_store_view *view;
    *owned = store->below != NULL;
    *holds_files = true;
    if (*owned) return store->below(store, name, out, err);
    TSR_TRY(view_below(store, name, true, arena, &view, holds_files, err));
    *out = &view->base;
    return TSR_OK;
}
