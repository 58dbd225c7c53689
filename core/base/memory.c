/* Allocates with the C library; and growable arrays. */
#include "tessera/memory.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/vec.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "tessera/sys/try.h"

static void *libc_resize(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    (void)ctx;
    (void)old_size;
    if (new_size == 0) {
        free(pointer);
        return NULL;
    }
    return realloc(pointer, new_size);
}

const tsr_allocator tsr_allocator_libc = {libc_resize, NULL};

static bool byte_size(size_t count, size_t item_size, size_t *bytes)
{
    *bytes = count * item_size;
    return item_size == 0 || *bytes / item_size == count;
}

void *tsr_alloc(const tsr_allocator *allocator, size_t count, size_t item_size, tsr_error *err)
{
    size_t bytes;
    void *pointer = NULL;
    if (byte_size(count, item_size, &bytes)) pointer = allocator->resize(allocator->ctx, NULL, 0, bytes ? bytes : 1);
    if (!pointer) tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu × %zu bytes", count, item_size);
    return pointer;
}

void tsr_free(const tsr_allocator *allocator, void *pointer, size_t count, size_t item_size)
{
    size_t bytes = count * item_size;
    if (pointer) allocator->resize(allocator->ctx, pointer, bytes ? bytes : 1, 0);
}

tsr_status tsr_vec_reserve(tsr_vec *vec, size_t extra, tsr_error *err)
{
    if (extra <= vec->capacity - vec->count) return TSR_OK;
    size_t wanted = vec->capacity + vec->capacity / 2 + 8, bytes;
    if (wanted < vec->count + extra) wanted = vec->count + extra;
    void *grown = NULL;
    if (vec->count + extra >= extra && byte_size(wanted, vec->item_size, &bytes)) {
        grown = vec->allocator->resize(vec->allocator->ctx, vec->items, vec->capacity * vec->item_size, bytes);
    }
    TSR_FAIL_IF(!grown, err, TSR_E_NOMEM, "out of memory for %zu items of %zu bytes", wanted, vec->item_size);
    vec->items = grown;
    vec->capacity = wanted;
    return TSR_OK;
}

void *tsr_vec_push(tsr_vec *vec, tsr_error *err)
{
    if (tsr_vec_reserve(vec, 1, err) != TSR_OK) return NULL;
    char *item = (char *)vec->items + vec->count * vec->item_size;
    memset(item, 0, vec->item_size);
    vec->count++;
    return item;
}

tsr_status tsr_vec_append(tsr_vec *vec, const void *items, size_t count, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(vec, count, err));
    if (count) memcpy((char *)vec->items + vec->count * vec->item_size, items, count * vec->item_size);
    vec->count += count;
    return TSR_OK;
}

tsr_status tsr_vec_write(void *vec, const char *data, size_t size, tsr_error *err)
{
    return tsr_vec_append((tsr_vec *)vec, data, size, err);
}

void tsr_vec_cut(tsr_vec *vec, size_t count)
{
    if (count == 0) {
        tsr_vec_free(vec);
        return;
    }
    vec->count = count;
    void *rest =
        vec->allocator->resize(vec->allocator->ctx, vec->items, vec->capacity * vec->item_size, count * vec->item_size);
    if (!rest) return;
    vec->items = rest;
    vec->capacity = count;
}

void tsr_vec_free(tsr_vec *vec)
{
    tsr_free(vec->allocator, vec->items, vec->capacity, vec->item_size);
    vec->items = NULL;
    vec->count = vec->capacity = 0;
}
