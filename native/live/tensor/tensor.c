/* Tensors: which boxes a rank holds and where they are in its memory, memory that processes share, and copies between tensors. */
#include "tessera/tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

static tsr_status check_box(const tsr_tensor *tensor, const tsr_tensor_part *part, uint64_t *elements, tsr_error *err)
{
    const uint32_t ndim = tensor->entry.ndim;
    const tsr_box box = {ndim, part->offsets, part->sizes};
    TSR_FAIL_IF(!tsr_box_contains((tsr_box){ndim, NULL, tensor->entry.shape}, box) || !tsr_box_volume(box, elements), err,
                TSR_E_USAGE, "a box of '%.*s' reaches beyond the tensor", TSR_STR_ARG(tensor->entry.fqn));
    return TSR_OK;
}

static tsr_status check_tensor(const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    uint64_t elements, bytes;
    TSR_FAIL_IF(tensor->nested, err, TSR_E_UNSUPPORTED, "'%.*s' is a distributed tensor inside another one",
                TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' has %" PRIu32 " dimensions; at most %u are allowed",
                TSR_STR_ARG(entry->fqn), entry->ndim, TSR_MAX_NDIM);
    TSR_FAIL_IF(tsr_dtype_size(entry->dtype) == 0, err, TSR_E_USAGE, "'%.*s': %s elements are not byte-aligned",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    TSR_FAIL_IF(!tsr_box_volume((tsr_box){entry->ndim, NULL, entry->shape}, &elements) ||
                    !tsr_dtype_bytes(entry->dtype, elements, &bytes) || bytes > SIZE_MAX / 2,
                err, TSR_E_LIMIT, "'%.*s' is too large", TSR_STR_ARG(entry->fqn));
    if (tensor->spread != TSR_OVER_MESH) return TSR_OK;
    for (uint32_t i = 0; i < tensor->mesh->dim_count; i++)
        TSR_FAIL_IF(tensor->placements[i].kind == TSR_PARTIAL, err, TSR_E_UNSUPPORTED,
                    "'%.*s' is partial: its values are parts of sums that only the running job can add up",
                    TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(tensor->mesh_rank >= tsr_mesh_ranks(tensor->mesh), err, TSR_E_USAGE,
                "'%.*s': rank %" PRIu64 " is outside its mesh of %" PRIu64, TSR_STR_ARG(entry->fqn), tensor->mesh_rank,
                tsr_mesh_ranks(tensor->mesh));
    return TSR_OK;
}

typedef struct piece_list {
    tsr_piece *items;
    uint64_t count;
} piece_list;

static tsr_status mesh_pieces(const tsr_tensor *tensor, tsr_arena *arena, piece_list *out, tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    tsr_shard shard;
    TSR_TRY(tsr_mesh_shard(&(tsr_sharding){tensor->mesh, tensor->placements, tensor->strided},
                           (tsr_shape){entry->ndim, entry->shape}, tensor->mesh_rank, arena, &shard, err));
    *out = (piece_list){tsr_arena_array(arena, (size_t)shard.box_count, sizeof *out->items, err), shard.box_count};
    if (!out->items) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < shard.box_count; i++)
        out->items[i] = (tsr_piece){shard.boxes[i].offsets, shard.boxes[i].sizes, shard.boxes[i].local_offsets,
                                    shard.local_shape, tensor->data};
    return TSR_OK;
}

/* Lists one piece for each part. A part fills its own buffer. */
static tsr_status box_pieces(const tsr_tensor *tensor, const tsr_tensor_part *parts, uint32_t part_count, tsr_arena *arena,
                             piece_list *out, tsr_error *err)
{
    uint64_t *zeros = tsr_arena_array(arena, tensor->entry.ndim, sizeof *zeros, err);
    *out = (piece_list){tsr_arena_array(arena, part_count, sizeof *out->items, err), 0};
    if (!out->items || !zeros) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < part_count; i++) {
        uint64_t elements;
        TSR_TRY(check_box(tensor, &parts[i], &elements, err));
        if (elements)
            out->items[out->count++] = (tsr_piece){parts[i].offsets, parts[i].sizes, zeros, parts[i].sizes, parts[i].data};
    }
    return TSR_OK;
}

static tsr_status whole_pieces(const tsr_tensor *tensor, tsr_arena *arena, piece_list *out, tsr_error *err)
{
    uint64_t *zeros = tsr_arena_array(arena, tensor->entry.ndim, sizeof *zeros, err);
    if (!zeros) return TSR_E_NOMEM;
    const tsr_tensor_part all = {zeros, tensor->entry.shape, tensor->data};
    return box_pieces(tensor, &all, 1, arena, out, err);
}

tsr_status tsr_tensor_pieces(const tsr_tensor *tensor, tsr_arena *arena, const tsr_piece **out, uint64_t *count,
                             tsr_error *err)
{
    piece_list pieces = {0};
    tsr_status status = check_tensor(tensor, err);
    if (status != TSR_OK) return status;
    switch (tensor->spread) {
    case TSR_WHOLE: status = whole_pieces(tensor, arena, &pieces, err); break;
    case TSR_OVER_MESH: status = mesh_pieces(tensor, arena, &pieces, err); break;
    default: status = box_pieces(tensor, tensor->parts, tensor->part_count, arena, &pieces, err); break;
    }
    *out = pieces.items;
    *count = pieces.count;
    return status;
}

tsr_status tsr_tensor_local(const tsr_tensor *tensor, tsr_arena *arena, const uint64_t **shape, uint64_t *bytes,
                            tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    uint64_t elements;
    TSR_TRY(check_tensor(tensor, err));
    TSR_FAIL_IF(tensor->spread == TSR_IN_BOXES, err, TSR_E_USAGE,
                "'%.*s' has several boxes, so there is no single local tensor", TSR_STR_ARG(entry->fqn));
    *shape = entry->shape;
    if (tensor->spread == TSR_OVER_MESH) {
        tsr_shard shard;
        TSR_TRY(tsr_mesh_shard(&(tsr_sharding){tensor->mesh, tensor->placements, tensor->strided},
                               (tsr_shape){entry->ndim, entry->shape}, tensor->mesh_rank, arena, &shard, err));
        *shape = shard.local_shape;
    }
    tsr_box_volume((tsr_box){entry->ndim, NULL, *shape}, &elements);
    *bytes = elements * tsr_dtype_size(entry->dtype);
    return TSR_OK;
}

tsr_status tsr_tensor_held(const tsr_tensor *tensor, tsr_arena *arena, uint64_t *bytes, tsr_error *err)
{
    const uint64_t *shape;
    uint64_t elements;
    if (tensor->spread != TSR_IN_BOXES) return tsr_tensor_local(tensor, arena, &shape, bytes, err);
    TSR_TRY(check_tensor(tensor, err));
    *bytes = 0;
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        TSR_TRY(check_box(tensor, &tensor->parts[i], &elements, err));
        *bytes += elements * tsr_dtype_size(tensor->entry.dtype);
    }
    return TSR_OK;
}

uint32_t tsr_tensor_buffer_count(const tsr_tensor *tensor)
{
    return tensor->spread == TSR_IN_BOXES ? tensor->part_count : 1;
}

tsr_status tsr_tensor_buffer(const tsr_tensor *tensor, uint32_t index, tsr_arena *arena, void **data, uint64_t *bytes,
                             tsr_error *err)
{
    const uint64_t *shape;
    uint64_t elements;
    if (tensor->spread != TSR_IN_BOXES) {
        *data = tensor->data;
        return tsr_tensor_local(tensor, arena, &shape, bytes, err);
    }
    const tsr_tensor_part *part = &tensor->parts[index];
    TSR_FAIL_IF(tensor->nested, err, TSR_E_UNSUPPORTED, "'%.*s' is a distributed tensor inside another one",
                TSR_STR_ARG(tensor->entry.fqn));
    *data = part->data;
    tsr_box_volume((tsr_box){tensor->entry.ndim, NULL, part->sizes}, &elements);
    *bytes = elements * tsr_dtype_size(tensor->entry.dtype);
    return TSR_OK;
}

/* ---- share ---- */

/* Segments of shared memory, one per rank:
 *
 *   | bytes of buffer 0, 1, … (u64 each) | buffer 0 | buffer 1 | …     buffers at multiples of 64
 *
 * The name of a segment is random and exists from its creation until all ranks have mapped it. */

enum { ALIGNMENT = 64 };

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static tsr_status raise_errno(tsr_error *err, const char *what, uint32_t rank, int number)
{
    return tsr_fail(err, TSR_E_IO, "shared memory: cannot %s the segment of rank %" PRIu32 ": %s", what, rank,
                    number == ENOENT ? "there is no such segment; is it on this machine?" : strerror(number));
}

static tsr_status map(tsr_shared *s, int file, uint32_t rank, tsr_error *err)
{
    void *at = mmap(NULL, (size_t)s->segments[rank].size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return raise_errno(err, "map", rank, errno);
    s->mapped[rank] = at;
    return TSR_OK;
}

static tsr_status make_own(tsr_shared *s, tsr_segment *own, uint32_t rank, const uint64_t *sizes, tsr_error *err)
{
    uint64_t random[2] = {0};
    own->size = aligned(s->count * sizeof *sizes);
    for (size_t i = 0; i < s->count; i++) own->size += aligned(sizes[i]);
    if (own->size == 0) own->size = ALIGNMENT;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return raise_errno(err, "name", rank, errno);
    snprintf(own->name, sizeof own->name, "/tessera-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    const int file = shm_open(own->name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0) return raise_errno(err, "make", rank, errno);
    /* Reserved now, so that a full /dev/shm is an error here rather than a signal later. */
    const int failed = posix_fallocate(file, 0, (off_t)own->size);
    s->segments[rank] = *own;
    tsr_status status = failed ? raise_errno(err, "reserve", rank, failed) : map(s, file, rank, err);
    close(file);
    if (status == TSR_OK && s->count) memcpy(s->mapped[rank], sizes, s->count * sizeof *sizes);
    return status;
}

static tsr_status open_other(tsr_shared *s, uint32_t rank, tsr_error *err)
{
    struct stat info;
    const int file = shm_open(s->segments[rank].name, O_RDWR, 0);
    if (file < 0) return raise_errno(err, "open", rank, errno);
    tsr_status status = fstat(file, &info) != 0 || (uint64_t)info.st_size != s->segments[rank].size
                            ? raise_errno(err, "find all of", rank, EIO)
                            : map(s, file, rank, err);
    close(file);
    return status;
}

static tsr_status open_others(tsr_shared *s, uint32_t own, tsr_error *err)
{
    for (uint32_t r = 0; r < s->ranks; r++)
        if (r != own) TSR_TRY(open_other(s, r, err));
    return TSR_OK;
}

static tsr_status allocate_tables(tsr_comm *comm, const tsr_allocator *allocator, size_t count, tsr_shared **out,
                                  size_t **sizes, tsr_error *err)
{
    tsr_shared *s = tsr_alloc(allocator, 1, sizeof *s, err);
    *out = s;
    if (!s) return TSR_E_NOMEM;
    *s = (tsr_shared){.allocator = allocator, .own = comm->rank, .ranks = comm->size, .count = count};
    s->segments = tsr_alloc(allocator, comm->size, sizeof *s->segments, err);
    s->mapped = tsr_alloc(allocator, comm->size, sizeof *s->mapped, err);
    *sizes = tsr_alloc(allocator, comm->size, sizeof **sizes, err);
    if (s->mapped) memset(s->mapped, 0, comm->size * sizeof *s->mapped);
    for (uint32_t r = 0; *sizes && r < comm->size; r++) (*sizes)[r] = sizeof(tsr_segment);
    return s->segments && s->mapped && *sizes ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_shared_new(tsr_comm *comm, const uint64_t *sizes, size_t count, const tsr_allocator *allocator,
                          tsr_shared **out, tsr_error *err)
{
    size_t *table = NULL;
    tsr_segment own = {.size = 0};
    tsr_shared *s = NULL;
    tsr_status status = allocate_tables(comm, allocator, count, &s, &table, err);
    if (status == TSR_OK) status = make_own(s, &own, comm->rank, sizes, err);
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = comm->all_gather(comm, &own, table, s->segments, err);
    if (status == TSR_OK) {
        status = open_others(s, comm->rank, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (own.name[0]) shm_unlink(own.name);
    tsr_free(allocator, table, comm->size, sizeof *table);
    if (status == TSR_OK) *out = s;
    else tsr_shared_free(s);
    return status;
}

void tsr_shared_free(tsr_shared *s)
{
    if (!s) return;
    for (uint32_t r = 0; s->mapped && s->segments && r < s->ranks; r++)
        if (s->mapped[r]) munmap(s->mapped[r], (size_t)s->segments[r].size);
    tsr_free(s->allocator, s->segments, s->ranks, sizeof *s->segments);
    tsr_free(s->allocator, s->mapped, s->ranks, sizeof *s->mapped);
    tsr_free(s->allocator, s, 1, sizeof *s);
}

void *tsr_shared_buffer(const tsr_shared *shared, uint32_t rank, size_t index, uint64_t *bytes)
{
    const uint64_t *sizes = (const uint64_t *)shared->mapped[rank];
    uint64_t at = aligned(shared->count * sizeof *sizes);
    for (size_t i = 0; i < index; i++) at += aligned(sizes[i]);
    *bytes = sizes[index];
    return *bytes ? shared->mapped[rank] + at : NULL;
}

/* ---- compare tensors ---- */

/* Describes tensors in words, compares them, and copies between tensors with the same layout. */

static tsr_str shape_words(const tsr_entry *entry, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = tsr_arena_format(arena, err, "%s [", tsr_dtype_describe(entry->dtype)->name);
    for (uint32_t d = 0; d < entry->ndim && text.data; d++)
        text = tsr_arena_format(arena, err, "%.*s%s%" PRIu64, TSR_STR_ARG(text), d ? ", " : "", entry->shape[d]);
    return text.data ? tsr_arena_format(arena, err, "%.*s]", TSR_STR_ARG(text)) : text;
}

tsr_str tsr_tensor_words(const tsr_tensor *tensor, tsr_arena *arena, tsr_error *err)
{
    const tsr_str shape = shape_words(&tensor->entry, arena, err);
    if (!shape.data || tensor->spread == TSR_WHOLE) return shape;
    if (tensor->spread == TSR_IN_BOXES) return tsr_arena_format(arena, err, "%.*s in boxes", TSR_STR_ARG(shape));
    const tsr_str unnamed[TSR_MESH_MAX_DIMS] = {{NULL, 0}};
    tsr_mesh named = *tensor->mesh;
    if (!named.names) named.names = unnamed;
    const tsr_str mesh = tsr_mesh_text(&named, arena, err);
    const tsr_str how = tsr_placements_text(tensor->placements, tensor->mesh->dim_count, arena, err);
    if (!mesh.data || !how.data) return (tsr_str){NULL, 0};
    return tsr_arena_format(arena, err, "%.*s over %.*s: %.*s%s", TSR_STR_ARG(shape), TSR_STR_ARG(mesh), TSR_STR_ARG(how),
                            tensor->strided == TSR_STRIDED_DTENSOR ? " (left to right)" : "");
}

static bool same_dtype_and_shape(const tsr_entry *a, const tsr_entry *b)
{
    return a->dtype == b->dtype && tsr_entry_same_shape(a, b);
}

static bool same_mesh(const tsr_tensor *a, const tsr_tensor *b)
{
    const uint32_t count = a->mesh->dim_count;
    if (count != b->mesh->dim_count || a->mesh_rank != b->mesh_rank || a->strided != b->strided ||
        (count && memcmp(a->mesh->shape, b->mesh->shape, count * sizeof *a->mesh->shape) != 0))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const tsr_placement *p = &a->placements[i], *q = &b->placements[i];
        uint32_t d = UINT32_MAX, e = UINT32_MAX;
        tsr_placement_dim(p, a->entry.ndim, &d);
        tsr_placement_dim(q, b->entry.ndim, &e);
        if (p->kind != q->kind || d != e || (p->kind == TSR_STRIDED_SHARD && p->split_factor != q->split_factor))
            return false;
    }
    return true;
}

static bool same_parts(const tsr_tensor *a, const tsr_tensor *b)
{
    if (a->part_count != b->part_count) return false;
    for (uint32_t i = 0; i < a->part_count; i++)
        if (!tsr_box_equal((tsr_box){a->entry.ndim, a->parts[i].offsets, a->parts[i].sizes},
                           (tsr_box){b->entry.ndim, b->parts[i].offsets, b->parts[i].sizes}))
            return false;
    return true;
}

static bool same_distribution(const tsr_tensor *a, const tsr_tensor *b)
{
    if (a->spread != b->spread) return false;
    return a->spread == TSR_WHOLE || (a->spread == TSR_OVER_MESH ? same_mesh(a, b) : same_parts(a, b));
}

bool tsr_tensor_is_like(const tsr_tensor *a, const tsr_tensor *b, bool with_distribution)
{
    return same_dtype_and_shape(&a->entry, &b->entry) && (!with_distribution || same_distribution(a, b));
}

tsr_status tsr_tensor_same_place(const tsr_tensor *a, const tsr_tensor *b, const tsr_likeness *how, tsr_arena *arena,
                                 tsr_error *err)
{
    if (tsr_tensor_is_like(a, b, how->with_distribution)) return TSR_OK;
    const tsr_str x = tsr_tensor_words(a, arena, err), y = tsr_tensor_words(b, arena, err);
    if (!x.data || !y.data) return TSR_E_NOMEM;
    return tsr_fail(err, TSR_E_USAGE, "%.*s in %s, %.*s in %s%s", TSR_STR_ARG(x), how->a_name, TSR_STR_ARG(y), how->b_name,
                    tsr_str_equal(x, y) ? " (other boxes)" : "");
}

tsr_status tsr_device_wait(tsr_device *device, tsr_error *err)
{
    return device ? device->synchronize(device, err) : TSR_OK;
}

static tsr_status copy_bytes(tsr_device *from_device, const void *from, tsr_device *to_device, void *to, uint64_t bytes,
                             tsr_error *err)
{
    if (bytes == 0) return TSR_OK;
    if (from_device == to_device) {
        if (from_device) return from_device->within(from_device, to, from, bytes, err);
        memmove(to, from, (size_t)bytes);
        return TSR_OK;
    }
    if (!to_device) return from_device->to_host(from_device, to, from, bytes, err);
    if (!from_device) return to_device->from_host(to_device, to, from, bytes, err);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "there is no copy from one device to another");
}

tsr_status tsr_device_upload(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    TSR_TRY(copy_bytes(NULL, from, device, to, bytes, err));
    return bytes ? tsr_device_wait(device, err) : TSR_OK;
}

tsr_status tsr_device_download(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    TSR_TRY(copy_bytes(device, from, NULL, to, bytes, err));
    return bytes ? tsr_device_wait(device, err) : TSR_OK;
}

tsr_status tsr_tensor_copy(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *arena, tsr_error *err)
{
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(from); i++) {
        void *source = NULL, *target = NULL; /* compilers cannot tell that they are set */
        uint64_t bytes = 0;
        TSR_TRY(tsr_tensor_buffer(from, i, arena, &source, &bytes, err));
        TSR_TRY(tsr_tensor_buffer(to, i, arena, &target, &bytes, err));
        TSR_TRY(copy_bytes(from->device, source, to->device, target, bytes, err));
    }
    return TSR_OK;
}

/* ---- tensors ---- */

#define AT_ONCE 512u /* elements */

/* ---- elements ---- */

static bool is_integer(tsr_dtype dtype)
{
    return dtype == TSR_INT64 || dtype == TSR_INT32 || dtype == TSR_INT16 || dtype == TSR_INT8 || dtype == TSR_UINT8 ||
           dtype == TSR_BOOL;
}

bool tsr_convert_possible(tsr_dtype from, tsr_dtype to)
{
    return from == to || tsr_cast_possible(from, to) ||
           (is_integer(from) && tsr_dtype_describe(to)->kind == TSR_CLASS_FLOAT);
}

static int64_t integer_at(tsr_dtype dtype, const uint8_t *element)
{
    int64_t wide;
    int32_t middle;
    int16_t narrow;
    switch (dtype) {
    case TSR_INT64: memcpy(&wide, element, sizeof wide); return wide;
    case TSR_INT32: memcpy(&middle, element, sizeof middle); return middle;
    case TSR_INT16: memcpy(&narrow, element, sizeof narrow); return narrow;
    case TSR_INT8: return (int8_t)*element;
    default: return *element;
    }
}

/* PyTorch casts to 16- and 8-bit types by way of float32. */
static void cast_elements(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    float floats[AT_ONCE];
    double doubles[AT_ONCE];
    const bool wide = to == TSR_FLOAT64;
    if (!is_integer(from) && (wide || to == TSR_FLOAT32 || from == TSR_FLOAT32)) {
        tsr_cast(from, to, elements, count, out);
        return;
    }
    if (!is_integer(from)) tsr_cast(from, TSR_FLOAT32, elements, count, (uint8_t *)floats);
    for (size_t i = 0; is_integer(from) && i < count; i++) {
        const int64_t number = integer_at(from, elements + i * tsr_dtype_size(from));
        if (wide) doubles[i] = (double)number;
        else floats[i] = (float)number;
    }
    if (wide) memcpy(out, doubles, count * sizeof *doubles);
    else if (to == TSR_FLOAT32) memcpy(out, floats, count * sizeof *floats);
    else tsr_cast(TSR_FLOAT32, to, (const uint8_t *)floats, count, out);
}

/* ---- tensors ---- */

static tsr_status cast_buffer(const tsr_tensor *from, const uint8_t *source, const tsr_tensor *to, uint8_t *target,
                              uint64_t bytes, tsr_error *err)
{
    uint8_t in[AT_ONCE * sizeof(double)], out[AT_ONCE * sizeof(double)];
    const uint32_t in_size = tsr_dtype_size(from->entry.dtype), out_size = tsr_dtype_size(to->entry.dtype);
    for (uint64_t at = 0, count = bytes / in_size; at < count; at += AT_ONCE) {
        const size_t some = count - at < AT_ONCE ? (size_t)(count - at) : AT_ONCE;
        TSR_TRY(tsr_device_download(from->device, in, source + at * in_size, some * in_size, err));
        cast_elements(from->entry.dtype, to->entry.dtype, in, some, out);
        TSR_TRY(tsr_device_upload(to->device, target + at * out_size, out, some * out_size, err));
    }
    return TSR_OK;
}

tsr_status tsr_tensor_convert(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *passing, tsr_error *err)
{
    if (from->entry.dtype == to->entry.dtype) {
        TSR_TRY(tsr_tensor_copy(from, to, passing, err));
        TSR_TRY(tsr_device_wait(from->device, err));
        return tsr_device_wait(to->device, err);
    }
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(from); i++) {
        void *source = NULL, *target = NULL; /* compilers cannot tell that they are set */
        uint64_t bytes = 0;
        TSR_TRY(tsr_tensor_buffer(to, i, passing, &target, &bytes, err));
        TSR_TRY(tsr_tensor_buffer(from, i, passing, &source, &bytes, err));
        TSR_TRY(cast_buffer(from, source, to, target, bytes, err));
    }
    return TSR_OK;
}
