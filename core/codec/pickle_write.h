/* A pickle emitter: the opcodes that Python's own pickler writes for the data that checkpoints hold, protocol 2 (torch.save)
 * or 4 (.metadata). Equal strings and equal globals are written once and fetched from the memo afterwards, as Python does
 * for interned ones.
 *
 * Calls append to a vec of bytes in pickle's own postfix order: build a value's parts, then the opcode that joins them.
 * The first failure sticks; check it once, with tsr_pickler_finish. Source: CPython's pickletools and Lib/pickle.py. */
#ifndef TSR_CODEC_PICKLE_WRITE_H
#define TSR_CODEC_PICKLE_WRITE_H

#include "tessera/sys/map.h"
#include "tessera/sys/vec.h"

typedef struct tsr_pickler {
    unsigned protocol;
    tsr_vec *out;
    tsr_map *strings; /* text → memo number */
    tsr_map *globals; /* "module\nname" → memo number */
    tsr_arena *keys;
    uint32_t memo_count;
    tsr_status status;
    tsr_error *err;
} tsr_pickler;

/* Begins a pickle at the end of `out`; `protocol` is 2 or 4. Close it whatever happened. */
void tsr_pickler_open(tsr_pickler *pickler, unsigned protocol, const tsr_allocator *allocator, tsr_vec *out, tsr_error *err);
/* STOP; returns the sticky status. */
tsr_status tsr_pickler_finish(tsr_pickler *pickler);
void tsr_pickler_close(tsr_pickler *pickler);

void tsr_pickler_none(tsr_pickler *pickler);
void tsr_pickler_bool(tsr_pickler *pickler, bool value);
void tsr_pickler_int(tsr_pickler *pickler, int64_t value);
void tsr_pickler_uint(tsr_pickler *pickler, uint64_t value);
/* Two's complement, little-endian. */
void tsr_pickler_bigint(tsr_pickler *pickler, tsr_str bytes);
void tsr_pickler_float(tsr_pickler *pickler, double value);
void tsr_pickler_str(tsr_pickler *pickler, tsr_str text); /* UTF-8, lone surrogates as Python's surrogatepass has them */
void tsr_pickler_bytes(tsr_pickler *pickler, tsr_str bytes);
/* A class or function. Names with line breaks or NUL are refused: TSR_E_UNSUPPORTED. */
void tsr_pickler_global(tsr_pickler *pickler, tsr_str module, tsr_str name);

void tsr_pickler_mark(tsr_pickler *pickler);
/* A tuple of the `count` topmost values; above 3 a mark lies below them. 0 is the empty tuple. */
void tsr_pickler_tuple(tsr_pickler *pickler, size_t count);
void tsr_pickler_empty_list(tsr_pickler *pickler);
void tsr_pickler_empty_dict(tsr_pickler *pickler);
void tsr_pickler_appends(tsr_pickler *pickler);  /* list, mark, items… */
void tsr_pickler_setitems(tsr_pickler *pickler); /* dict, mark, key, value, … */
void tsr_pickler_reduce(tsr_pickler *pickler);   /* callable, arguments */
void tsr_pickler_newobj(tsr_pickler *pickler);   /* class, arguments */
void tsr_pickler_build(tsr_pickler *pickler);    /* object, state */
void tsr_pickler_persistent(tsr_pickler *pickler);
/* Puts the topmost value into the memo and returns its number; fetches it again. */
uint32_t tsr_pickler_memoize(tsr_pickler *pickler);
void tsr_pickler_get(tsr_pickler *pickler, uint32_t memo);

#endif
