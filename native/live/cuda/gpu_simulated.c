/* A device without a GPU, which is stricter than a real one.
 *
 *   address  [ ······ no access ······ ]      the addresses that programs get: using them traps
 *   memory   [ ······ the bytes  ······ ]      where the bytes are, at the same offset
 *
 * Streams are queues. An operation is checked when it is added, but performed only when somebody waits for it, for an
 * event after it, or for a stream that must come after it. Code that forgets to wait therefore always sees the old bytes. */
#include <pthread.h>
#include <sys/mman.h>

#include "live/cuda/backend.h"
#include "live/cuda/kernel_body.h"
#include "live/cuda/kernel_table.h"
#include "tessera/gpu.h"
#include "tessera/memory.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- twin ---- */

/* What the kernels do, with the same results but by other means: functions of core where there are any. Addresses are those of
 * ordinary memory. */

/* The box must be checked and have at least one element. Moves one element after the other, in row-major order. */
static void move_by_element(const tsr_gpu_box *box)
{
    const size_t to_size = tsr_dtype_size(box->to_dtype), from_size = tsr_dtype_size(box->from_dtype);
    uint64_t at[TSR_GPU_MAX_NDIM] = {0};
    for (;;) {
        uint64_t to = 0, from = 0;
        for (uint32_t i = 0; i < box->ndim; i++) {
            to += at[i] * box->to_strides[i];
            if (box->from) from += at[i] * box->from_strides[i];
        }
        uint8_t *element = (uint8_t *)box->to + to * to_size;
        if (!box->from) memcpy(element, box->fill, to_size);
        else if (box->to_dtype == box->from_dtype) memcpy(element, (const uint8_t *)box->from + from * from_size, to_size);
        else tsr_cast(box->from_dtype, box->to_dtype, (const uint8_t *)box->from + from * from_size, 1, element);
        uint32_t i = box->ndim;
        while (i > 0 && ++at[i - 1] == box->sizes[i - 1]) at[--i] = 0;
        if (i == 0) return;
    }
}

/* ---- grid ---- */

/* Runs the code of the kernels on a grid whose threads are executed one after the other, block by block. */

static void grid_runs(const tsr_kernel_run *runs, uint32_t count, uint32_t units)
{
    for (uint32_t unit = 0; unit < units; unit++) {
        for (uint32_t thread = 0; thread < TSR_KERNEL_THREADS; thread++) tsr_body_runs(runs, count, unit, thread);
    }
}

static void grid_boxes(const tsr_kernel_box *boxes, uint32_t count, uint32_t units)
{
    for (uint32_t unit = 0; unit < units; unit++) {
        for (uint32_t thread = 0; thread < TSR_KERNEL_THREADS; thread++) tsr_body_boxes(boxes, count, unit, thread);
    }
}

/* ---- simulated ---- */

#define ALIGNMENT   ((size_t)256)
#define FRESH       0xdb
#define FREED       0xdd
#define MOST_QUEUED 4096u /* when more are queued, the oldest are performed, as could happen at any time on a GPU */

/* An allocation. */
typedef struct block {
    uintptr_t at;
    size_t size;
} block;

typedef struct simulated {
    tsr_gpu base;
    pthread_mutex_t lock;
    uint8_t *address, *memory;
    size_t size, used;
    tsr_vec blocks; /* allocations of device memory, sorted by address */
    tsr_vec pinned; /* allocations of pinned host memory, in any order */
    struct stream *streams;
    bool has_grid;
} simulated;

typedef struct operation operation;
struct operation {
    operation *next;
    void (*happen)(operation *op);
    size_t bytes; /* size of this struct and of the data that follows it */
};

typedef struct stream {
    tsr_gpu_stream base;
    /* List of all streams of the device, including freed ones, because events may still refer to them. */
    struct stream *next;
    operation *first, **last;
    uint64_t given, done;
} stream;

typedef struct event {
    tsr_gpu_event base;
    stream *stream;
    uint64_t position; /* number of operations of the stream that precede the event */
} event;

static simulated *of(tsr_gpu *device)
{
    return (simulated *)device;
}

static void lock(tsr_gpu *device)
{
    pthread_mutex_lock(&of(device)->lock);
}

static void unlock(tsr_gpu *device)
{
    pthread_mutex_unlock(&of(device)->lock);
}

/* ---- addresses ---- */

static const block *find_block(const tsr_vec *blocks, uintptr_t at, size_t size)
{
    const block *items = blocks->items;
    for (size_t i = 0; i < blocks->count; i++) {
        if (at >= items[i].at && at - items[i].at <= items[i].size && size <= items[i].size - (at - items[i].at))
            return &items[i];
    }
    return NULL;
}

static bool is_device(const simulated *s, const void *pointer)
{
    return (uintptr_t)pointer - (uintptr_t)s->address < s->size;
}

/* Finds where `size` bytes at `pointer` really are. Kernels cannot access pageable memory. */
static tsr_status resolve(simulated *s, const void *pointer, size_t size, bool by_kernel, void **out, tsr_error *err)
{
    if (is_device(s, pointer)) {
        if (!find_block(&s->blocks, (uintptr_t)pointer, size))
            return tsr_fail(err, TSR_E_USAGE, "simulated device: %zu bytes at offset %zu are not inside one allocation",
                            size, (size_t)((const uint8_t *)pointer - s->address));
        *out = s->memory + ((const uint8_t *)pointer - s->address);
        return TSR_OK;
    }
    if (by_kernel && !find_block(&s->pinned, (uintptr_t)pointer, size))
        return tsr_fail(err, TSR_E_USAGE,
                        "simulated device: kernels can access %zu bytes of host memory only if they are pinned", size);
    *out = (void *)(uintptr_t)pointer;
    return TSR_OK;
}

static tsr_gpu_place place_of(tsr_gpu *device, const void *memory)
{
    simulated *s = of(device);
    lock(device);
    const bool pinned = find_block(&s->pinned, (uintptr_t)memory, 0) != NULL;
    unlock(device);
    return is_device(s, memory) ? TSR_PLACE_DEVICE : pinned ? TSR_PLACE_PINNED : TSR_PLACE_PAGEABLE;
}

static size_t reach(tsr_gpu *device, const void *memory)
{
    simulated *s = of(device);
    lock(device);
    const block *found = find_block(is_device(s, memory) ? &s->blocks : &s->pinned, (uintptr_t)memory, 1);
    const size_t bytes = found ? found->size - ((uintptr_t)memory - found->at) : is_device(s, memory) ? 0 : SIZE_MAX;
    unlock(device);
    return bytes;
}

/* ---- streams ---- */

static void happen_until(stream *st, uint64_t position)
{
    const tsr_allocator *allocator = st->base.device->host->allocator;
    while (st->done < position && st->first) {
        operation *op = st->first;
        st->first = op->next;
        if (!st->first) st->last = &st->first;
        st->done++;
        op->happen(op);
        tsr_free(allocator, op, op->bytes, 1);
    }
}

static void happen_all(simulated *s)
{
    for (stream *st = s->streams; st; st = st->next) happen_until(st, st->given);
}

/* Allocates an operation of `bytes` bytes. It is not in the queue until it is passed to `give`. */
static void *prepare(stream *st, size_t bytes, void (*happen)(operation *op), tsr_error *err)
{
    operation *op = tsr_alloc(st->base.device->host->allocator, bytes, 1, err);
    if (op) *op = (operation){.happen = happen, .bytes = bytes};
    return op;
}

static void give(stream *st, void *prepared)
{
    *st->last = prepared;
    st->last = &((operation *)prepared)->next;
    st->given++;
    if (st->given - st->done > MOST_QUEUED) happen_until(st, st->done + 1);
}

/* Adds an operation to the queue if its addresses were found, otherwise frees it. */
static void give_found(stream *st, void *prepared, tsr_status found)
{
    if (found == TSR_OK) give(st, prepared);
    else tsr_free(st->base.device->host->allocator, prepared, ((operation *)prepared)->bytes, 1);
}

static tsr_status stream_new(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err)
{
    stream *st = tsr_alloc(device->host->allocator, 1, sizeof *st, err);
    if (!st) return TSR_E_NOMEM;
    *st = (stream){.base = {device}};
    st->last = &st->first;
    lock(device);
    st->next = of(device)->streams;
    of(device)->streams = st;
    unlock(device);
    *out = &st->base;
    return TSR_OK;
}

static tsr_status stream_wait(tsr_gpu_stream *base, tsr_error *err)
{
    (void)err;
    stream *st = (stream *)base;
    lock(base->device);
    happen_until(st, st->given);
    unlock(base->device);
    return TSR_OK;
}

static void stream_free(tsr_gpu_stream *base)
{
    stream_wait(base, NULL); /* the struct is freed with the device */
}

static tsr_status event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err)
{
    event *e = tsr_alloc(device->host->allocator, 1, sizeof *e, err);
    if (!e) return TSR_E_NOMEM;
    *e = (event){.base = {device}};
    *out = &e->base;
    return TSR_OK;
}

static void event_free(tsr_gpu_event *base)
{
    tsr_free(base->device->host->allocator, base, 1, sizeof(event));
}

static tsr_status event_record(tsr_gpu_event *base, tsr_gpu_stream *on, tsr_error *err)
{
    (void)err;
    event *e = (event *)base;
    lock(base->device);
    e->stream = (stream *)on;
    e->position = e->stream->given;
    unlock(base->device);
    return TSR_OK;
}

static tsr_status event_wait(tsr_gpu_event *base, tsr_error *err)
{
    (void)err;
    event *e = (event *)base;
    lock(base->device);
    if (e->stream) happen_until(e->stream, e->position);
    unlock(base->device);
    return TSR_OK;
}

/* ---- memory ---- */

/* Maps pages, or returns NULL if there is no memory. Pass the same size to `pages_free`. */
static void *pages_new(size_t size)
{
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static void pages_free(void *pages, size_t size)
{
    if (pages) munmap(pages, size);
}

static tsr_status no_room(const simulated *s, size_t size, tsr_error *err)
{
    return tsr_fail(err, TSR_E_NOMEM, "simulated device: out of memory for %zu bytes (%zu of %zu are in use)", size, s->used,
                    s->size);
}

/* Allocates in the first gap between existing blocks that is large enough. */
static tsr_status place_block(simulated *s, size_t size, void **out, tsr_error *err)
{
    if (!tsr_vec_push(&s->blocks, err)) return TSR_E_NOMEM;
    block *items = s->blocks.items;
    size_t at = 0, i = 0;
    const size_t count = --s->blocks.count;
    for (; i < count; i++) {
        const size_t begin = items[i].at - (uintptr_t)s->address;
        if (begin >= at && begin - at >= size) break;
        at = (begin + items[i].size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (at > s->size || size > s->size - at) return no_room(s, size, err);
    s->blocks.count++;
    memmove(items + i + 1, items + i, (count - i) * sizeof *items);
    items[i] = (block){(uintptr_t)s->address + at, size};
    s->used += size;
    memset(s->memory + at, FRESH, size);
    *out = s->address + at;
    return TSR_OK;
}

static tsr_status alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    lock(device);
    tsr_status status = place_block(of(device), size, out, err);
    unlock(device);
    return status;
}

static void remove_block(tsr_vec *blocks, size_t i)
{
    block *items = blocks->items;
    blocks->count--;
    memmove(items + i, items + i + 1, (blocks->count - i) * sizeof *items);
}

static void release(tsr_gpu *device, void *memory)
{
    simulated *s = of(device);
    lock(device);
    happen_all(s);
    const block *items = s->blocks.items;
    for (size_t i = 0; i < s->blocks.count; i++) {
        if (items[i].at != (uintptr_t)memory) continue;
        s->used -= items[i].size;
        memset(s->memory + ((uint8_t *)memory - s->address), FREED, items[i].size);
        remove_block(&s->blocks, i);
        break;
    }
    unlock(device);
}

static tsr_status host_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    simulated *s = of(device);
    lock(device);
    block *pinned = tsr_vec_push(&s->pinned, err);
    void *pages = pinned ? pages_new(size) : NULL;
    if (pages) *pinned = (block){(uintptr_t)pages, size};
    else if (pinned) s->pinned.count--;
    unlock(device);
    *out = pages;
    return pages ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "simulated device: out of host memory for %zu bytes", size);
}

/* Removes a block from the list. Returns its size, or 0 if it is not in the list. */
static size_t forget_pinned(simulated *s, const void *memory)
{
    const block *items = s->pinned.items;
    for (size_t i = 0; i < s->pinned.count; i++) {
        if (items[i].at != (uintptr_t)memory) continue;
        const size_t size = items[i].size;
        remove_block(&s->pinned, i);
        return size;
    }
    return 0;
}

static void unpin(tsr_gpu *device, void *memory)
{
    lock(device);
    happen_all(of(device));
    forget_pinned(of(device), memory);
    unlock(device);
}

static void host_free(tsr_gpu *device, void *memory)
{
    lock(device);
    happen_all(of(device));
    const size_t size = forget_pinned(of(device), memory);
    if (size) pages_free(memory, size);
    unlock(device);
}

static tsr_status pin(tsr_gpu *device, void *memory, size_t size, tsr_error *err)
{
    lock(device);
    block *pinned = tsr_vec_push(&of(device)->pinned, err);
    if (pinned) *pinned = (block){(uintptr_t)memory, size};
    unlock(device);
    return pinned ? TSR_OK : TSR_E_NOMEM;
}

/* ---- copies ---- */

typedef struct copy_operation {
    operation base;
    uint8_t *to;
    const uint8_t *from;
    size_t to_pitch, from_pitch, row_bytes, rows;
} copy_operation;

static void happen_copy(operation *op)
{
    const copy_operation *c = (const copy_operation *)op;
    for (size_t i = 0; i < c->rows; i++) memcpy(c->to + i * c->to_pitch, c->from + i * c->from_pitch, c->row_bytes);
}

static tsr_status copy_2d(tsr_gpu_stream *base, const tsr_gpu_rows *what, tsr_error *err)
{
    stream *st = (stream *)base;
    simulated *s = of(base->device);
    copy_operation *op = prepare(st, sizeof *op, happen_copy, err);
    if (!op) return TSR_E_NOMEM;
    op->to_pitch = what->to_pitch;
    op->from_pitch = what->from_pitch;
    op->row_bytes = what->row_bytes;
    op->rows = what->rows;
    void *real_to = NULL, *real_from = NULL;
    lock(base->device);
    tsr_status status = resolve(s, what->to, (what->rows - 1) * what->to_pitch + what->row_bytes, false, &real_to, err);
    if (status == TSR_OK)
        status = resolve(s, what->from, (what->rows - 1) * what->from_pitch + what->row_bytes, false, &real_from, err);
    op->to = real_to;
    op->from = real_from;
    give_found(st, op, status);
    unlock(base->device);
    return status;
}

/* ---- kernels ---- */

typedef struct runs_operation {
    operation base;
    uint32_t count, units;
    tsr_kernel_run table[];
} runs_operation;

static void happen_runs_grid(operation *op)
{
    const runs_operation *r = (const runs_operation *)op;
    grid_runs(r->table, r->count, r->units);
}

static void happen_runs_twin(operation *op)
{
    const runs_operation *r = (const runs_operation *)op;
    for (uint32_t i = 0; i < r->count; i++)
        memcpy((void *)(uintptr_t)r->table[i].to, (const void *)(uintptr_t)r->table[i].from, r->table[i].bytes);
}

/* Replaces an address in a table by that of the real bytes. */
static tsr_status resolve_in(simulated *s, uint64_t *address, size_t size, tsr_error *err)
{
    void *real;
    tsr_status status = resolve(s, (const void *)(uintptr_t)*address, size, true, &real, err);
    if (status == TSR_OK) *address = (uint64_t)(uintptr_t)real;
    return status;
}

static tsr_status simulated_runs(tsr_gpu_stream *base, const tsr_kernel_run *table, uint32_t count, uint32_t units,
                                 tsr_error *err)
{
    stream *st = (stream *)base;
    simulated *s = of(base->device);
    runs_operation *op =
        prepare(st, sizeof *op + count * sizeof *table, s->has_grid ? happen_runs_grid : happen_runs_twin, err);
    if (!op) return TSR_E_NOMEM;
    op->count = count;
    op->units = units;
    memcpy(op->table, table, count * sizeof *table);
    tsr_status status = TSR_OK;
    lock(base->device);
    for (uint32_t i = 0; i < count && status == TSR_OK; i++) {
        status = resolve_in(s, &op->table[i].to, table[i].bytes, err);
        if (status == TSR_OK) status = resolve_in(s, &op->table[i].from, table[i].bytes, err);
    }
    give_found(st, op, status);
    unlock(base->device);
    return status;
}

typedef struct boxes_operation {
    operation base;
    uint32_t count, units;
    tsr_kernel_box table[];
} boxes_operation;

static void happen_boxes(operation *op)
{
    const boxes_operation *b = (const boxes_operation *)op;
    grid_boxes(b->table, b->count, b->units);
}

static tsr_status resolve_box(simulated *s, tsr_kernel_box *box, tsr_error *err)
{
    const bool casts = box->from_type != box->to_type;
    size_t to = casts ? tsr_dtype_size(box->to_type) : box->width,
           from = casts ? tsr_dtype_size(box->from_type) : box->width;
    for (uint32_t i = 0; i < box->axes; i++) {
        to += (box->axis[i].size - 1) * box->axis[i].to;
        from += (box->axis[i].size - 1) * box->axis[i].from;
    }
    tsr_status status = resolve_in(s, &box->to, to, err);
    return status == TSR_OK && !box->is_fill ? resolve_in(s, &box->from, from, err) : status;
}

static tsr_status simulated_boxes(tsr_gpu_stream *base, const tsr_kernel_box *table, uint32_t count, uint32_t units,
                                  tsr_error *err)
{
    stream *st = (stream *)base;
    boxes_operation *op = prepare(st, sizeof *op + count * sizeof *table, happen_boxes, err);
    if (!op) return TSR_E_NOMEM;
    op->count = count;
    op->units = units;
    memcpy(op->table, table, count * sizeof *table);
    tsr_status status = TSR_OK;
    lock(base->device);
    for (uint32_t i = 0; i < count && status == TSR_OK; i++) status = resolve_box(of(base->device), &op->table[i], err);
    give_found(st, op, status);
    unlock(base->device);
    return status;
}

typedef struct box_operation {
    operation base;
    tsr_gpu_box box;
    uint64_t sizes[TSR_GPU_MAX_NDIM], to_strides[TSR_GPU_MAX_NDIM], from_strides[TSR_GPU_MAX_NDIM];
} box_operation;

static void happen_box(operation *op)
{
    move_by_element(&((const box_operation *)op)->box);
}

static size_t extent(uint32_t ndim, const uint64_t *sizes, const uint64_t *strides, tsr_dtype dtype)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < ndim; i++) last += (sizes[i] - 1) * strides[i];
    return (size_t)(last + 1) * tsr_dtype_size(dtype);
}

static tsr_status twin_box(tsr_gpu_stream *base, const tsr_gpu_box *box, tsr_error *err)
{
    stream *st = (stream *)base;
    simulated *s = of(base->device);
    box_operation *op = prepare(st, sizeof *op, happen_box, err);
    if (!op) return TSR_E_NOMEM;
    op->box = *box;
    if (box->ndim) {
        memcpy(op->sizes, box->sizes, box->ndim * sizeof *box->sizes);
        memcpy(op->to_strides, box->to_strides, box->ndim * sizeof *box->sizes);
        if (box->from) memcpy(op->from_strides, box->from_strides, box->ndim * sizeof *box->sizes);
    }
    op->box.sizes = op->sizes;
    op->box.to_strides = op->to_strides;
    op->box.from_strides = op->from_strides;
    void *to = NULL, *from = NULL;
    lock(base->device);
    tsr_status status = resolve(s, box->to, extent(box->ndim, op->sizes, op->to_strides, box->to_dtype), true, &to, err);
    if (status == TSR_OK && box->from)
        status = resolve(s, box->from, extent(box->ndim, op->sizes, op->from_strides, box->from_dtype), true, &from, err);
    op->box.to = to;
    op->box.from = from;
    give_found(st, op, status);
    unlock(base->device);
    return status;
}

/* ---- the device ---- */

static tsr_status about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err)
{
    (void)err;
    simulated *s = of(device);
    lock(device);
    *out =
        (tsr_gpu_info){.name = "simulated", .is_simulated = true, .memory_bytes = s->size, .free_bytes = s->size - s->used};
    unlock(device);
    return TSR_OK;
}

static void close_device(tsr_gpu *device)
{
    simulated *s = of(device);
    const tsr_allocator *allocator = device->host->allocator;
    happen_all(s);
    while (s->streams) {
        stream *st = s->streams;
        s->streams = st->next;
        tsr_free(allocator, st, 1, sizeof *st);
    }
    tsr_vec_free(&s->blocks);
    tsr_vec_free(&s->pinned);
    pages_free(s->address, s->size);
    pages_free(s->memory, s->size);
    pthread_mutex_destroy(&s->lock);
    tsr_free(allocator, s, 1, sizeof *s);
}

#define COMMON \
    .close = close_device, .about = about, .alloc = alloc, .free = release, .host_alloc = host_alloc, \
    .host_free = host_free, .pin = pin, .unpin = unpin, .place_of = place_of, .reach = reach, .stream_new = stream_new, \
    .stream_free = stream_free, .stream_wait = stream_wait, .event_new = event_new, .event_free = event_free, \
    .event_record = event_record, .event_wait = event_wait, .copy_2d = copy_2d, .runs = simulated_runs

static const tsr_backend twin_backend = {COMMON, .twin_box = twin_box};
static const tsr_backend grid_backend = {COMMON, .boxes = simulated_boxes};

tsr_status tsr_gpu_simulate(const tsr_host *host, size_t memory_bytes, tsr_gpu_simulation how, tsr_gpu **out, tsr_error *err)
{
    const bool has_grid = how == TSR_SIMULATE_GRID;
    const size_t size = memory_bytes ? memory_bytes : ALIGNMENT;
    simulated *s = tsr_alloc(host->allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (simulated){.base = {has_grid ? &grid_backend : &twin_backend, host}, .size = size, .has_grid = has_grid};
    s->blocks = tsr_vec_of(host->allocator, sizeof(block));
    s->pinned = tsr_vec_of(host->allocator, sizeof(block));
    pthread_mutex_init(&s->lock, NULL);
    s->address = pages_new(size);
    s->memory = pages_new(size);
    if (!s->address || !s->memory || mprotect(s->address, size, PROT_NONE) != 0) {
        close_device(&s->base);
        return tsr_fail(err, TSR_E_NOMEM, "simulated device: out of host memory for %zu bytes", memory_bytes);
    }
    *out = &s->base;
    return TSR_OK;
}
