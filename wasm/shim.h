/* The module's boundary: what JavaScript calls, and the functions it lends (sink.h and reals.c have the others).
 *
 *   page/worker/Node ── tessera_*() ──▶ shim ── core/include ──▶ core
 *                    ◀── tsr_read() ──
 *
 * Things that are opened are known by u32 handles; a stale or foreign number, or one of another kind, is refused. Closing a
 * checkpoint closes what was made from it. Every function that can fail takes a tsr_error that the caller allocated
 * (tessera_error_size bytes, zeroed) and returns 0 on failure unless it says otherwise. Pointers are u32 offsets into the
 * memory; file sizes and offsets are 64 bits. instance.js next to this file is the caller. The module comes in two files
 * (CMakeLists.txt) that share memory and handles; the second is loaded on demand. */
#ifndef TSR_WASM_SHIM_H
#define TSR_WASM_SHIM_H

#include "tessera/box.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/slice.h"

#define TSR_EXPORT(name) __attribute__((visibility("default"))) /* what is exported is in exports*.txt */
#pragma clang diagnostic ignored "-Wmissing-prototypes" /* exports are called from JavaScript only */

/* The host's: fills [pointer, pointer + size) from `file` of the store `store`; 0 when it could. A read is at most
 * TESSERA_READ_BYTES, so that the host can tell how far a long one is. */
#define TESSERA_READ_BYTES ((size_t)4 << 20)
__attribute__((import_module("env"), import_name("tsr_read"))) extern uint32_t tsr_read(uint32_t store, uint32_t file,
                                                                                        uint64_t offset, void *pointer,
                                                                                        uint32_t size);

/* One file of a store as JavaScript lays it down: 16 bytes each. */
typedef struct tessera_file {
    uint32_t name; /* pointer to UTF-8 */
    uint32_t name_size;
    uint64_t size;
} tessera_file;

typedef struct tessera_text {
    uint32_t data; /* pointer to UTF-8 */
    uint32_t size;
} tessera_text;

/* Which checkpoint the files stand for, where that is not all of them. A text whose pointer is 0 was not given; each has a NUL
 * behind it. */
typedef struct tessera_choice {
    uint32_t primary; /* the file that the user named, or ≥ the number of files */
    uint32_t is_remote; /* a read of a file is a request */
    tessera_text part, step;
    tessera_text shards; /* a built-in map's name, or a tessera.shards/1 document; needs the second file */
} tessera_choice;

/* The options of an optimizer conversion as JavaScript lays them down: 56 bytes. A text whose pointer is 0 was not given. */
enum {
    TESSERA_OPTIM_SHARDED = 1,
    TESSERA_OPTIM_HAS_WORLD_SIZE = 2,
    TESSERA_OPTIM_HAS_RANK = 4,
    TESSERA_OPTIM_ALLOW_EXPANSION = 8
};
typedef struct tessera_optim_options {
    uint32_t action; /* pointer to its name, with a NUL behind it */
    uint32_t flags;
    uint32_t modules, modules_size;
    uint32_t flat_params, flat_params_size;
    uint32_t at, at_size;
    uint32_t max_mem, max_mem_size; /* a size such as "64MiB" */
    uint64_t world_size, rank;
} tessera_optim_options;

/* A part of a tensor, which tessera_part_of fills in: 32 bytes, then the slice. */
typedef struct tessera_part {
    uint32_t entry, dtype, ndim;
    uint32_t whole; /* 0: a slice; 2: elements are smaller than bytes, and the tensor can only be read in one piece */
    uint32_t unit;  /* bytes */
    uint64_t count; /* of units: elements, or bytes where elements are smaller */
    tsr_slice slice;
} tessera_part;

/* Of tessera_diff. */
enum { TESSERA_DIFF_LAYOUT = 1, TESSERA_DIFF_CANONICAL = 2, TESSERA_DIFF_TOLERANT = 4 };

/* What a step of a job says: 0 is an error. */
enum { TESSERA_MORE = 1, TESSERA_DONE = 2 };

#endif
