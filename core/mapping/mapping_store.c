/* The store of a mapped checkpoint: the source's files, and behind them those that are computed while they are read. */
#include "base/try.h"
#include "mapping/mapped.h"
#include "tessera/read.h"
#include "tessera/sys/cast.h"

enum { STEP_BYTES = 1 << 18 }; /* of a cast's input at a time */

typedef struct mapped_store {
    tsr_store base; /* first */
    tsr_mapped *mapped;
    tsr_store *inner;
} mapped_store;

static tsr_status read_cast(tsr_mapped *m, const tsr_computed *file, uint64_t offset, uint8_t *buffer, size_t size, tsr_error *err)
{
    const uint32_t from_size = tsr_dtype_size(file->input->dtype), to_size = tsr_dtype_size(file->dtype);
    const size_t room = STEP_BYTES / from_size, bytes = room * (from_size + (size_t)to_size);
    const tsr_allocator *allocator = m->own->host->allocator;
    uint8_t *input = tsr_alloc(allocator, bytes, 1, err), *output = input + room * from_size;
    tsr_status status = input ? TSR_OK : TSR_E_NOMEM;
    while (status == TSR_OK && size) {
        const uint64_t first = offset / to_size, skip = offset % to_size;
        uint64_t count = (skip + size + to_size - 1) / to_size;
        if (count > room) count = room;
        const tsr_run run = {.first = first, .count = count};
        status = tsr_read_run(m->own, file->input, &run, input, (size_t)count * from_size, err);
        if (status != TSR_OK) break;
        tsr_cast(file->input->dtype, file->dtype, input, (size_t)count, output);
        const size_t made = (size_t)(count * to_size - skip), taken = made < size ? made : size;
        memcpy(buffer, output + skip, taken);
        buffer += taken, offset += taken, size -= taken;
    }
    tsr_free(allocator, input, bytes, 1);
    return status;
}

static tsr_status read_at(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const mapped_store *s = (const mapped_store *)store;
    if (file < s->inner->file_count) return s->inner->read_at(s->inner, file, offset, buffer, size, err);
    const tsr_computed *computed = (const tsr_computed *)s->mapped->computed.items + (file - s->inner->file_count);
    if (computed->kind == TSR_COMPUTED_CAST) return read_cast(s->mapped, computed, offset, buffer, size, err);
    memcpy(buffer, computed->constant + offset, size); /* tsr_store_read has compared the range with the file's size */
    return TSR_OK;
}

static tsr_status map_file(tsr_store *store, uint32_t file, tsr_str *out, tsr_error *err)
{
    const mapped_store *s = (const mapped_store *)store;
    if (file < s->inner->file_count) return s->inner->map(s->inner, file, out, err);
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "a computed file cannot be mapped");
}

static void unmap_file(tsr_store *store, uint32_t file, tsr_str mapped)
{
    const mapped_store *s = (const mapped_store *)store;
    s->inner->unmap(s->inner, file, mapped);
}

static void close_nothing(tsr_store *store)
{
    (void)store; /* it lives in the mapped checkpoint's arena */
}

static tsr_status computed_size(const tsr_computed *computed, uint64_t *size, tsr_error *err)
{
    uint64_t elements = 1;
    TSR_FAIL_IF((computed->input && !tsr_entry_elements(computed->input, &elements)) ||
                    !tsr_dtype_bytes(computed->dtype, elements, size),
                err, TSR_E_LIMIT, TSR_NO_POSITION, "'%.*s' has more bytes than a file can have",
                TSR_STR_ARG(computed->input ? computed->input->fqn : TSR_STR("")));
    return TSR_OK;
}

/* Names sort behind all names of UTF-8, so that the list stays sorted. */
static tsr_status list_files(const tsr_mapped *m, tsr_store_file *files, tsr_error *err)
{
    const tsr_store *inner = m->source->store;
    if (inner->file_count) memcpy(files, inner->files, inner->file_count * sizeof *files);
    for (size_t i = 0; i < m->computed.count; i++) {
        tsr_store_file *file = &files[inner->file_count + i];
        file->name = tsr_arena_format(m->own->arena, err, "\xf8" "computed %08zu", i);
        if (!file->name.data) return TSR_E_NOMEM;
        TSR_TRY(computed_size((const tsr_computed *)m->computed.items + i, &file->size, err));
    }
    return TSR_OK;
}

tsr_status tsr_mapped_store_new(tsr_mapped *m, tsr_store **out, tsr_error *err)
{
    tsr_store *inner = m->source->store;
    TSR_FAIL_IF(m->computed.count >= UINT32_MAX - inner->file_count, err, TSR_E_LIMIT, TSR_NO_POSITION, "too many tensors to cast");
    const size_t count = inner->file_count + m->computed.count;
    mapped_store *store = TSR_ARENA_NEW(m->own->arena, mapped_store, err);
    tsr_store_file *files = tsr_arena_array(m->own->arena, count, sizeof *files, err);
    if (!store || !files) return TSR_E_NOMEM;
    TSR_TRY(list_files(m, files, err));
    *store = (mapped_store){.base = {.file_count = (uint32_t)count,
                                     .files = files,
                                     .primary = inner->primary,
                                     .read_at = read_at,
                                     .map = inner->map ? map_file : NULL,
                                     .unmap = inner->unmap ? unmap_file : NULL,
                                     .close = close_nothing,
                                     .unsummed = inner->unsummed},
                            .mapped = m,
                            .inner = inner};
    *out = &store->base;
    return TSR_OK;
}

static tsr_computed *add_file(tsr_mapped *m, tsr_dtype dtype, uint32_t *file, tsr_error *err)
{
    *file = m->source->store->file_count + (uint32_t)m->computed.count;
    tsr_computed *computed = tsr_vec_push(&m->computed, err);
    if (computed) computed->dtype = dtype;
    return computed;
}

tsr_status tsr_mapped_cast(tsr_mapped *m, const tsr_mapped_tensor *in, tsr_dtype dtype, tsr_mapped_tensor *out, tsr_error *err)
{
    uint32_t file;
    TSR_FAIL_IF(!tsr_cast_possible(in->dtype, dtype), err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s' is %s and cannot be cast to %s",
                TSR_STR_ARG(in->name), tsr_dtype_describe(in->dtype)->name, tsr_dtype_describe(dtype)->name);
    tsr_entry *input = TSR_ARENA_NEW(m->own->arena, tsr_entry, err);
    tsr_computed *computed = input ? add_file(m, dtype, &file, err) : NULL;
    if (!computed) return TSR_E_NOMEM;
    const tsr_entry like = {0};
    computed->kind = TSR_COMPUTED_CAST;
    computed->input = input;
    TSR_TRY(tsr_mapped_entry(m, in, &like, in->name, input, err));
    *out = *in;
    out->dtype = dtype;
    return tsr_boxes_of_file(&m->maker, file, false, out);
}

tsr_status tsr_mapped_fill(tsr_mapped *m, double value, tsr_mapped_tensor *out, tsr_error *err)
{
    uint32_t file;
    const bool floats = tsr_cast_possible(TSR_FLOAT64, out->dtype);
    TSR_FAIL_IF(!floats && value != 0, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s' is %s, which can only be padded with 0",
                TSR_STR_ARG(out->name), tsr_dtype_describe(out->dtype)->name);
    tsr_computed *computed = add_file(m, out->dtype, &file, err);
    if (!computed) return TSR_E_NOMEM;
    computed->kind = TSR_COMPUTED_CONSTANT;
    if (floats) tsr_cast(TSR_FLOAT64, out->dtype, (const uint8_t *)&value, 1, computed->constant);
    return tsr_boxes_of_file(&m->maker, file, true, out);
}
