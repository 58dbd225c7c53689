/* See destination.h. */
#include "publish/destination.h"

#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BUFFER = 1 << 20, LEVELS = 64 };

/* A range that was written: [first, end). */
typedef struct written {
    uint64_t first, end;
} written;

typedef struct compared_file {
    uint32_t number; /* in the store */
    bool is_sized;   /* its size was known when it was created */
    tsr_vec written; /* of `written`: neighbours are joined where they were written one after the other */
} compared_file;

typedef struct completed {
    tsr_output base; /* must be first */
    const tsr_host *host;
    const char *path;
    tsr_store *store;
    tsr_vec files;     /* of compared_file */
    bool *is_compared; /* by number in the store */
    pthread_mutex_t lock;
} completed;

static compared_file *file_at(const completed *c, uint32_t file)
{
    return (compared_file *)c->files.items + file;
}

static tsr_status differ(const completed *c, tsr_str name, const char *how, tsr_error *err)
{
    if (!name.size)
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                        "the destination '%s' exists, and is not what this job writes: it %s; --overwrite replaces it",
                        c->path, how);
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "the destination '%s' exists, and is not what this job writes: '%.*s' %s; --overwrite replaces it",
                    c->path, TSR_STR_ARG(name), how);
}

static tsr_status create(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    completed *c = (completed *)base;
    const tsr_store *store = c->store;
    const bool is_single = !name.size;
    if (is_single != (store->primary != TSR_NO_FILE))
        return differ(c, TSR_STR(""), is_single ? "is a directory" : "is a single file", err);
    const uint32_t number = is_single ? store->primary : tsr_store_find(store, name);
    if (number == TSR_NO_FILE) return differ(c, name, "is missing", err);
    if (size && store->files[number].size != size) return differ(c, name, "has another size", err);
    compared_file *compared = tsr_vec_push(&c->files, err);
    if (!compared) return TSR_E_NOMEM;
    c->is_compared[number] = true;
    *compared = (compared_file){number, size > 0, tsr_vec_of(c->host->allocator, sizeof(written))};
    *file = (uint32_t)c->files.count - 1;
    return TSR_OK;
}

/* A file that cannot be read belongs to the destination, not to what the caller has opened. It is missing if another process has
 * replaced the destination in the meantime. */
static tsr_status unreadable(const completed *c, tsr_str name, const tsr_error *why, tsr_error *err)
{
    if (why->status == TSR_E_NOT_FOUND) return differ(c, name, "is missing", err);
    tsr_raise_again(err, why->status, why);
    tsr_error_subject(err, "%s", c->path);
    return why->status;
}

static tsr_str name_of(const completed *c, uint32_t file)
{
    const uint32_t number = file_at(c, file)->number;
    return number == c->store->primary ? TSR_STR("") : c->store->files[number].name;
}

/* Compares bytes of a file with `data`, or with zeros if that is NULL. */
static tsr_status compare(const completed *c, uint32_t file, uint64_t offset, const uint8_t *data, uint64_t size,
                          tsr_error *err)
{
    static const uint8_t zeros[4096];
    const uint32_t number = file_at(c, file)->number;
    const uint64_t most = data ? BUFFER : sizeof zeros;
    if (offset > c->store->files[number].size || size > c->store->files[number].size - offset)
        return differ(c, name_of(c, file), "is shorter", err);
    const size_t room = (size_t)(size < most ? size : most);
    uint8_t *buffer = tsr_alloc(c->host->allocator, room ? room : 1, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (uint64_t done = 0; done < size && status == TSR_OK; done += room) {
        const size_t some = (size_t)(size - done < room ? size - done : room);
        tsr_error why = {0};
        status = tsr_store_read(c->store, number, offset + done, buffer, some, &why);
        if (status != TSR_OK) status = unreadable(c, name_of(c, file), &why, err);
        else if (memcmp(buffer, data ? data + done : zeros, some) != 0)
            status = differ(c, name_of(c, file), "has other contents", err);
    }
    tsr_free(c->host->allocator, buffer, room ? room : 1, 1);
    return status;
}

static tsr_status note_written(completed *c, uint32_t file, uint64_t offset, uint64_t size, tsr_error *err)
{
    pthread_mutex_lock(&c->lock);
    tsr_vec *ranges = &file_at(c, file)->written;
    written *last = ranges->count ? (written *)ranges->items + ranges->count - 1 : NULL;
    const bool joins = last && last->end == offset;
    written *range = joins ? last : tsr_vec_push(ranges, err);
    if (range) *range = (written){joins ? last->first : offset, offset + size};
    pthread_mutex_unlock(&c->lock);
    return range ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    completed *c = (completed *)base;
    TSR_TRY(compare(c, file, offset, data, size, err));
    return note_written(c, file, offset, size, err);
}

static int by_offset(const void *a, const void *b)
{
    const uint64_t x = ((const written *)a)->first, y = ((const written *)b)->first;
    return (x > y) - (x < y);
}

/* Bytes between those that were written are zeros in an output, such as what aligns tensors. */
static tsr_status compare_gaps(completed *c, uint32_t file, tsr_error *err)
{
    const compared_file *compared = file_at(c, file);
    const written *ranges = compared->written.items;
    const uint64_t size = c->store->files[compared->number].size;
    uint64_t end = 0;
    if (compared->written.count) qsort(compared->written.items, compared->written.count, sizeof *ranges, by_offset);
    for (size_t i = 0; i < compared->written.count; i++) {
        if (ranges[i].first > end) TSR_TRY(compare(c, file, end, NULL, ranges[i].first - end, err));
        if (ranges[i].end > end) end = ranges[i].end;
    }
    if (!compared->is_sized && end < size) return differ(c, name_of(c, file), "is longer", err);
    return end < size ? compare(c, file, end, NULL, size - end, err) : TSR_OK;
}

static tsr_status refuse_more(const completed *c, tsr_error *err)
{
    for (uint32_t f = 0; f < c->store->file_count; f++) {
        tsr_file_role role;
        tsr_error why = {0};
        if (c->is_compared[f]) continue;
        if (tsr_store_file_role(c->store, f, &role, &why) != TSR_OK)
            return unreadable(c, c->store->files[f].name, &why, err);
        if (role != TSR_ROLE_NONE) return differ(c, c->store->files[f].name, "is not written by it", err);
    }
    return TSR_OK;
}

static tsr_status publish(tsr_output *base, uint32_t marker, tsr_error *err)
{
    completed *c = (completed *)base;
    for (uint32_t f = 0; f < c->files.count; f++) TSR_TRY(compare_gaps(c, f, err));
    return marker == TSR_NO_FILE && c->store->primary == TSR_NO_FILE ? refuse_more(c, err) : TSR_OK;
}

static void close_output(tsr_output *base)
{
    completed *c = (completed *)base;
    for (uint32_t f = 0; f < c->files.count; f++) tsr_vec_free(&file_at(c, f)->written);
    tsr_vec_free(&c->files);
    if (c->is_compared) tsr_free(c->host->allocator, c->is_compared, c->store->file_count + (size_t)1, 1);
    if (c->store) c->store->close(c->store);
    pthread_mutex_destroy(&c->lock);
    tsr_free(c->host->allocator, c, 1, sizeof *c);
}

static tsr_status open_store(completed *c, tsr_error *err)
{
    bool cut, deeper;
    tsr_destination place;
    tsr_error why = {0};
    if (!tsr_is_url(c->path)) TSR_TRY(tsr_destination_of(c->path, &place, err));
    const tsr_status status = tsr_path_store_open(c->host, c->path, &c->store, &why);
    if (status == TSR_E_NOT_FOUND) return differ(c, tsr_str_from(c->path), "is missing", err);
    if (status != TSR_OK) return tsr_raise_again(err, status, &why);
    /* Files that it does not list are missing, so the destination differs. */
    if (c->store->primary == TSR_NO_FILE && c->store->deepen)
        TSR_TRY(c->store->deepen(c->store, LEVELS, &cut, &deeper, err));
    c->is_compared = tsr_alloc(c->host->allocator, c->store->file_count + (size_t)1, 1, err);
    if (!c->is_compared) return TSR_E_NOMEM;
    memset(c->is_compared, 0, c->store->file_count + (size_t)1);
    return TSR_OK;
}

tsr_status tsr_completed_open(const tsr_host *host, const char *path, tsr_output **out, tsr_error *err)
{
    completed *c = tsr_alloc(host->allocator, 1, sizeof *c, err);
    if (!c) return TSR_E_NOMEM;
    *c = (completed){.base = {.create = create, .write_at = write_at, .publish = publish, .close = close_output},
                     .host = host,
                     .path = path,
                     .files = tsr_vec_of(host->allocator, sizeof(compared_file))};
    pthread_mutex_init(&c->lock, NULL);
    const tsr_status status = open_store(c, err);
    if (status == TSR_OK) *out = &c->base;
    else close_output(&c->base);
    return status;
}

uint32_t tsr_completed_count(const tsr_output *output, uint64_t *bytes)
{
    const completed *c = (const completed *)output;
    *bytes = 0;
    for (uint32_t f = 0; f < c->files.count; f++) *bytes += c->store->files[file_at(c, f)->number].size;
    return (uint32_t)c->files.count;
}

static size_t without_slashes(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/') size--;
    return size;
}

static tsr_status split(const char *path, tsr_destination *out, tsr_error *err)
{
    const size_t size = without_slashes(path);
    size_t start = size;
    while (start > 0 && path[start - 1] != '/') start--;
    TSR_FAIL_IF(size - start > NAME_MAX || start >= PATH_MAX, tsr_naming(err), TSR_E_USAGE, "the name '%s' is too long",
                path);
    memcpy(out->name, path + start, size - start);
    out->name[size - start] = '\0';
    memcpy(out->parent, start ? path : ".", start ? start : 1);
    out->parent[start ? start : 1] = '\0';
    TSR_FAIL_IF(!*out->name || strcmp(out->name, ".") == 0 || strcmp(out->name, "..") == 0, tsr_naming(err), TSR_E_USAGE,
                "'%s' cannot be a destination: it does not end with a name", path);
    return TSR_OK;
}

tsr_status tsr_destination_of(const char *path, tsr_destination *out, tsr_error *err)
{
    struct stat link, info;
    char plain[PATH_MAX];
    TSR_TRY(tsr_path_must_be_local(path, err));
    TSR_FAIL_IF(
        strcmp(path, "-") == 0, tsr_naming(err), TSR_E_USAGE,
        "'-' cannot be a destination: a checkpoint cannot be written to standard output; give a path, such as ./- for "
        "a file of this name");
    const size_t size = without_slashes(path);
    TSR_FAIL_IF(size >= sizeof plain, tsr_naming(err), TSR_E_USAGE, "the name '%s' is too long", path);
    memcpy(plain, path, size);
    plain[size] = '\0';
    const bool leads_on =
        lstat(plain, &link) == 0 && S_ISLNK(link.st_mode) && stat(plain, &info) == 0 && S_ISDIR(info.st_mode);
    char *real = leads_on ? realpath(plain, NULL) : NULL;
    const tsr_status status = split(real ? real : plain, out, err);
    free(real);
    return status;
}

tsr_status tsr_destination_within(const char *path, tsr_destination *out, tsr_error *err)
{
    tsr_destination place;
    TSR_TRY(tsr_destination_of(path, &place, err));
    const int size = snprintf(out->parent, sizeof out->parent, "%s/%s", place.parent, place.name);
    TSR_FAIL_IF(size >= (int)sizeof out->parent, tsr_naming(err), TSR_E_USAGE, "the name '%s' is too long", path);
    memcpy(out->name, ".", sizeof ".");
    return TSR_OK;
}
