/* Growable arrays of items of one size.
 *
 * Example:
 *
 *     tsr_vec names = tsr_vec_of(host->allocator, sizeof(tsr_str));
 *     tsr_str *name = tsr_vec_push(&names, &err);
 *     if (name) *name = TSR_STR("fc.weight");
 *     tsr_vec_free(&names); */
#ifndef TESSERA_SYS_VEC_H
#define TESSERA_SYS_VEC_H

#include <string.h>

#include "tessera/memory.h"
#include "tessera/str.h"

TSR_API_BEGIN

/* A growable array of items of one size. `{0}` plus allocator and item_size is a valid empty one. */
typedef struct tsr_vec {
    void *items;
    size_t count;
    size_t capacity;
    size_t item_size;
    const tsr_allocator *allocator;
} tsr_vec;

/* An empty vector of items of so many bytes; allocates nothing, borrows `allocator`. */
TSR_INLINE tsr_vec tsr_vec_of(const tsr_allocator *allocator, size_t item_size)
{
    return TSR_LITERAL(tsr_vec){NULL, 0, 0, item_size, allocator};
}
/* Room for `extra` more items; grows by half. */
tsr_status tsr_vec_reserve(tsr_vec *vec, size_t extra, tsr_error *err);
/* Appends one zeroed item and returns it (NULL: TSR_E_NOMEM in err). Valid until the next append. */
void *tsr_vec_push(tsr_vec *vec, tsr_error *err);
/* Appends copies of `count` items; `items` may be NULL where there are none. TSR_E_NOMEM. */
tsr_status tsr_vec_append(tsr_vec *vec, const void *items, size_t count, tsr_error *err);
/* The same as a tsr_write_fn (tessera/sys/json.h): `vec` is a tsr_vec of bytes. */
tsr_status tsr_vec_write(void *vec, const char *data, size_t size, tsr_error *err);
/* Forgets the items from `count` on and gives back the memory behind them, as far as the allocator can. Items may move. */
void tsr_vec_cut(tsr_vec *vec, size_t count);
void tsr_vec_free(tsr_vec *vec); /* accepts a zeroed one */

/* Takes the next piece off bytes that processes of one program exchange: [uint64_t size][bytes]…. False if none is left, or if it is
 * not complete. */
TSR_INLINE bool tsr_take_sized(tsr_str *rest, tsr_str *piece)
{
    uint64_t size;
    if (rest->size < sizeof size) return false;
    memcpy(&size, rest->data, sizeof size);
    if (size > rest->size - sizeof size) return false;
    *piece = TSR_LITERAL(tsr_str){rest->data + sizeof size, (size_t)size};
    *rest = TSR_LITERAL(tsr_str){piece->data + piece->size, rest->size - sizeof size - piece->size};
    return true;
}

TSR_API_END

#endif
