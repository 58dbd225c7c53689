/* The boundary of the module: the functions that JavaScript calls, and those that it provides (made.h and reals.c have the
 * others).
 *
 *   page/worker/Node ── tessera_*() ──▶ shim ── core/include ──▶ core
 *                    ◀── tsr_read() ──
 *
 * Everything that is open has a u32 handle. A handle that is stale, unknown, or of another kind is rejected. Closing a
 * checkpoint also closes everything made from it. Every function that can fail receives a tsr_error that the caller
 * allocated (tessera_error_size bytes, zeroed), and returns 0 on failure unless stated otherwise. Pointers are u32 offsets
 * into the memory; file sizes and offsets have 64 bits. instance.js calls these functions. The module consists of two files
 * (CMakeLists.txt) that share memory and handles; the second one is loaded on demand. */
#ifndef TSR_WASM_SHIM_H
#define TSR_WASM_SHIM_H

#include "tessera/box.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/layout.h"

#define TSR_EXPORT(name) __attribute__((visibility("default"))) /* exports*.txt list the exports */
#pragma clang diagnostic ignored "-Wmissing-prototypes"         /* only JavaScript calls exports */

/* Provided by the host: reads [offset, offset + size) of `file` in the store `store` into `pointer`. Returns 0 on success, and
 * TESSERA_WAIT if the host fetches the bytes first: tsr_wait then returns when they are there, and the read is repeated. A
 * read has at most TESSERA_READ_BYTES, so that the host can report the progress of long ones. */
#define TESSERA_READ_BYTES ((size_t)4 << 20)
#define TESSERA_WAIT       2u
__attribute__((import_module("env"), import_name("tsr_wait"))) extern void tsr_wait(void);
/* Announces places that will be read soon. TESSERA_WAIT if the host fetches them first; tsr_wait then returns when they are there. */
__attribute__((import_module("env"), import_name("tsr_prefetch"))) extern uint32_t tsr_prefetch(
    uint32_t store, const tsr_store_place *places, uint32_t count);
__attribute__((import_module("env"), import_name("tsr_read"))) extern uint32_t tsr_read(uint32_t store, uint32_t file,
                                                                                        uint64_t offset, void *pointer,
                                                                                        uint32_t size);

/* A file of a store, as JavaScript passes it: 16 bytes. */
typedef struct tessera_file {
    uint32_t name; /* pointer to UTF-8 */
    uint32_t name_size;
    uint64_t size;
} tessera_file;

typedef struct tessera_text {
    uint32_t data; /* pointer to UTF-8 */
    uint32_t size;
} tessera_text;

/* Selects the checkpoint if it is not made of all files. Every text ends with a NUL that is not counted; a text whose
 * pointer is 0 was not given. */
typedef struct tessera_choice {
    uint32_t primary;   /* the file that the user named; if too large, none */
    uint32_t is_remote; /* each read is a request */
    uint32_t salvage;   /* of a damaged file, open what is whole; needs the second file */
    tessera_text part, step;
    tessera_text shards; /* the name of a built-in map, or a tessera.shards/1 document; needs the second file */
} tessera_choice;

/* The options of an optimizer conversion, as JavaScript passes them: 56 bytes. A text whose pointer is 0 was not given. */
enum {
    TESSERA_OPTIM_SHARDED = 1,
    TESSERA_OPTIM_HAS_WORLD_SIZE = 2,
    TESSERA_OPTIM_HAS_RANK = 4,
    TESSERA_OPTIM_ALLOW_EXPANSION = 8
};
typedef struct tessera_optim_options {
    uint32_t action; /* pointer to its name, which ends with a NUL */
    uint32_t flags;
    uint32_t modules, modules_size;
    uint32_t flat_params, flat_params_size;
    uint32_t at, at_size;
    uint32_t max_mem, max_mem_size; /* a size such as "64MiB" */
    uint64_t world_size, rank;
} tessera_optim_options;

/* A part of a tensor, set by tessera_part_of: 32 bytes, followed by the slice. */
typedef struct tessera_part {
    uint32_t entry, dtype, ndim;
    /* 0: a slice; 1: the whole tensor; 2: the elements are smaller than bytes, so the tensor can only be read in one
     * piece */
    uint32_t whole;
    uint32_t unit;  /* in bytes */
    uint64_t count; /* in units: elements, or bytes if elements are smaller */
    tsr_slice slice;
} tessera_part;

/* The flags of tessera_diff. */
enum { TESSERA_DIFF_LAYOUT = 1, TESSERA_DIFF_CANONICAL = 2, TESSERA_DIFF_TOLERANT = 4 };

/* The results of a step of a job; 0 is an error. */
enum { TESSERA_MORE = 1, TESSERA_DONE = 2 };

#endif
