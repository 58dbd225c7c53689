/* Writes pickles: the opcodes that Python's pickler writes for the data in checkpoints, in protocol 2 (torch.save) or 4
 * (.metadata). Equal strings and equal globals are written once and then fetched from the memo, as Python does for interned
 * strings.
 *
 * Calls append to a vec of bytes in the postfix order of pickles: write the parts of a value, then the opcode that combines
 * them. The first failure is kept and makes later calls do nothing, so check it once, with tsr_pickler_finish. Source:
 * CPython's pickletools and Lib/pickle.py. */
#ifndef TSR_CODEC_PICKLE_WRITE_H
#define TSR_CODEC_PICKLE_WRITE_H

#include "tessera/sys/containers.h"

typedef struct tsr_pickler {
    unsigned protocol;
    tsr_vec *out;
    tsr_map *strings; /* text → memo slot */
    tsr_map *globals; /* "module\nname" → memo slot */
    tsr_arena *keys;
    uint32_t memo_count;
    tsr_status status;
    tsr_error *err;
} tsr_pickler;

/* Starts a pickle at the end of `out`; `protocol` is 2 or 4. Call tsr_pickler_close afterwards, even after a failure. */
void tsr_pickler_open(tsr_pickler *pickler, unsigned protocol, const tsr_allocator *allocator, tsr_vec *out, tsr_error *err);
/* Writes STOP. Returns the first failure, or TSR_OK. */
tsr_status tsr_pickler_finish(tsr_pickler *pickler);
void tsr_pickler_close(tsr_pickler *pickler);

void tsr_pickler_none(tsr_pickler *pickler);
void tsr_pickler_bool(tsr_pickler *pickler, bool value);
void tsr_pickler_int(tsr_pickler *pickler, int64_t value);
void tsr_pickler_uint(tsr_pickler *pickler, uint64_t value);
/* Writes an int that is given as two's complement bytes, little-endian. */
void tsr_pickler_bigint(tsr_pickler *pickler, tsr_str bytes);
void tsr_pickler_float(tsr_pickler *pickler, double value);
void tsr_pickler_str(tsr_pickler *pickler, tsr_str text); /* UTF-8; lone surrogates as in Python's surrogatepass */
void tsr_pickler_bytes(tsr_pickler *pickler, tsr_str bytes);
/* Writes a class or function. Fails with TSR_E_UNSUPPORTED if a name contains a line break or NUL. */
void tsr_pickler_global(tsr_pickler *pickler, tsr_str module, tsr_str name);

void tsr_pickler_mark(tsr_pickler *pickler);
/* Combines the `count` topmost values into a tuple. If there are more than 3, write a mark before them. */
void tsr_pickler_tuple(tsr_pickler *pickler, size_t count);
void tsr_pickler_empty_list(tsr_pickler *pickler);
void tsr_pickler_empty_dict(tsr_pickler *pickler);
void tsr_pickler_appends(tsr_pickler *pickler);  /* after a list, a mark and the items */
void tsr_pickler_setitems(tsr_pickler *pickler); /* after a dict, a mark, and alternating keys and values */
void tsr_pickler_reduce(tsr_pickler *pickler);   /* after a callable and its arguments */
void tsr_pickler_newobj(tsr_pickler *pickler);   /* after a class and its arguments */
void tsr_pickler_build(tsr_pickler *pickler);    /* after an object and its state */
void tsr_pickler_persistent(tsr_pickler *pickler);
/* Store the topmost value in the memo, which returns its slot, and push the value of a slot again. */
uint32_t tsr_pickler_memoize(tsr_pickler *pickler);
void tsr_pickler_get(tsr_pickler *pickler, uint32_t memo);

#endif
