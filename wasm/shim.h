/* The boundary of the module: the functions that JavaScript calls, and those that it provides (made.c and reals.c have the
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
#include "tessera/sys/json.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/store.h"

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

/* ---- Declarations shared by the files of the module: handles, stores and JSON documents. ---- */

/* What the second file adds to the host when it is loaded (prepare.c): digests and zstd. */
extern tsr_host tessera_lent;
extern bool tessera_is_prepared;

typedef enum handle_kind {
    HANDLE_CHECKPOINT = 1,
    HANDLE_OUTLINE,
    HANDLE_TALLY,
    HANDLE_DIFF,
    HANDLE_TWINS,
    HANDLE_CONVERSION
} handle_kind;

/* The files that the host provides, as a store. */
typedef struct host_store {
    tsr_store store; /* must be first, because the store's functions cast back */
    uint32_t number; /* the number to pass to tsr_read */
    tsr_arena *names;
    tsr_guards *guards; /* NULL: guarded bytes are read when the checkpoint is opened */
} host_store;

tsr_host tessera_host(void);

typedef struct made made;
typedef struct opened {
    host_store files;        /* from the host; not used if the checkpoint was made from another one */
    tsr_store *store;        /* `files`, or the store of what was made */
    tsr_open_options chosen; /* part, step, shards and salvage; allocated in the arena of `files` */
    made *made;              /* NULL, or freed by `release_made` */
    void (*release_made)(made *made);
    /* NULL, or what `checkpoint` is opened over. `release_below` frees it after the checkpoint is closed. */
    void *below;
    void (*release_below)(void *below);
    tsr_host host;
    tsr_checkpoint *checkpoint; /* NULL if the files are not one checkpoint; `why` is the reason */
    tsr_error why;
    bool validated;
} opened;

/* Adds a handle for `item`. `release` frees the item when the handle, or one of its owners (0: none), is closed. On failure
 * the item is released immediately, and 0 is returned. */
uint32_t tessera_add_handle(handle_kind kind, void *item, void (*release)(void *item), uint32_t owner, uint32_t other_owner,
                            tsr_error *err);
void *tessera_item_of(uint32_t handle, handle_kind kind, tsr_error *err);
/* Returns the item of a checkpoint that can be listed, or NULL with an error. */
opened *tessera_checkpoint_of(uint32_t handle, tsr_error *err);
/* Opens what was made from the checkpoint `source`; it is closed together with it. Returns a handle that owns `result`. On
 * failure returns 0, and the caller still owns `result`. */
uint32_t tessera_open_made(made *result, tsr_store *store, void (*release)(made *result), uint32_t source, tsr_error *err);
/* Opens a checkpoint over another one. Takes ownership of `checkpoint` and `below`, even on failure, when it returns 0. */
typedef struct tessera_view {
    tsr_checkpoint *checkpoint;
    void *below;
    void (*release_below)(void *below);
} tessera_view;
uint32_t tessera_add_view(const tessera_view *view, uint32_t source, tsr_error *err);
/* Returns the options `wanted` (NULL: none) with the choice that was made when `item` was opened. */
tsr_open_options tessera_wanted_of(const opened *item, const tsr_open_options *wanted);
/* Reads `shards` of a tessera_choice. The function is in the second file, and NULL until that is loaded. Texts are allocated
 * in `arena`. It is volatile because the linker would otherwise replace calls through it by calls of the only function that
 * it can be, so the first file would need that function. */
extern tsr_status (*volatile tessera_read_shards)(tsr_str given, const tsr_host *host, tsr_arena *arena,
                                                  const struct tsr_shards **out, tsr_error *err);
/* Whether a text is a JSON object, which begins with a brace, rather than a name. */
static inline bool tessera_is_document(tsr_str text)
{
    size_t at = 0;
    while (at < text.size && strchr(" \t\r\n", text.data[at])) at++;
    return at < text.size && text.data[at] == '{';
}
/* Returns entry `index` of a checkpoint, or NULL with an error if there is none. */
const tsr_entry *tessera_entry_of(const opened *item, uint32_t index, tsr_error *err);

/* A document. `write` writes it with the given emitter. */
typedef struct document document;
document *tessera_make_document(tsr_status (*write)(void *ctx, tsr_json *json, tsr_error *err), void *ctx, tsr_error *err);

#endif
