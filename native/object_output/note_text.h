/* The encoding of notes: numbers are little-endian, and texts are preceded by their size (u32). */
#ifndef TSR_OBJECT_OUTPUT_NOTE_TEXT_H
#define TSR_OBJECT_OUTPUT_NOTE_TEXT_H

#include "tessera/sys/little_endian.h"
#include "tessera/sys/vec.h"

static inline tsr_status tsr_note_put_number(tsr_vec *out, uint64_t number, unsigned bytes, tsr_error *err)
{
    uint8_t stored[8];
    tsr_store_le(stored, number, bytes);
    return tsr_vec_append(out, stored, bytes, err);
}

static inline tsr_status tsr_note_put_text(tsr_vec *out, tsr_str text, tsr_error *err)
{
    const tsr_status status = tsr_note_put_number(out, text.size, 4, err);
    return status == TSR_OK ? tsr_vec_append(out, text.data, text.size, err) : status;
}

/* Takes a number of `bytes` bytes off the front of `in`; false if it is shorter. */
static inline bool tsr_note_take_number(tsr_str *in, unsigned bytes, uint64_t *number)
{
    *number = 0;
    if (in->size < bytes) return false;
    *number = tsr_load_le(in->data, bytes);
    *in = (tsr_str){in->data + bytes, in->size - bytes};
    return true;
}

static inline bool tsr_note_take_text(tsr_str *in, tsr_str *text)
{
    uint64_t size;
    if (!tsr_note_take_number(in, 4, &size) || size > in->size) return false;
    *text = (tsr_str){in->data, (size_t)size};
    *in = (tsr_str){in->data + size, in->size - (size_t)size};
    return true;
}

#endif
