/* A bounds-checked reader of little-endian bytes. Reading past the end sets `failed` and returns zeros, so it is enough to
 * check once after a group of reads. Also checked arithmetic. */
#ifndef TSR_BASE_CURSOR_H
#define TSR_BASE_CURSOR_H

#include "tessera/str.h"
#include "tessera/sys/little_endian.h"

typedef struct tsr_cursor {
    const uint8_t *data;
    size_t size;
    size_t at;
    bool failed;
} tsr_cursor;

static inline tsr_cursor tsr_cursor_on(tsr_str bytes)
{
    return (tsr_cursor){(const uint8_t *)bytes.data, bytes.size, 0, false};
}

static inline size_t tsr_cursor_left(const tsr_cursor *cursor)
{
    return cursor->size - cursor->at;
}

static inline const uint8_t *tsr_cursor_take(tsr_cursor *cursor, size_t size)
{
    if (cursor->failed || size > tsr_cursor_left(cursor)) {
        cursor->failed = true;
        return NULL;
    }
    const uint8_t *p = cursor->data + cursor->at;
    cursor->at += size;
    return p;
}

TSR_INLINE uint64_t tsr_cursor_le(tsr_cursor *cursor, unsigned count)
{
    const uint8_t *p = tsr_cursor_take(cursor, count);
    return p ? tsr_load_le(p, count) : 0;
}

static inline uint16_t tsr_cursor_u16(tsr_cursor *cursor)
{
    return (uint16_t)tsr_cursor_le(cursor, 2);
}
static inline uint32_t tsr_cursor_u32(tsr_cursor *cursor)
{
    return (uint32_t)tsr_cursor_le(cursor, 4);
}
static inline uint64_t tsr_cursor_u64(tsr_cursor *cursor)
{
    return tsr_cursor_le(cursor, 8);
}

/* Returns false if the result overflows. */
static inline bool tsr_add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    *sum = a + b;
    return *sum >= a;
}

TSR_INLINE bool tsr_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    *product = a * b;
    return (a | b) >> 32 == 0 || a == 0 || *product / a == b; /* the first test avoids most divisions, which are slow */
}

#endif
