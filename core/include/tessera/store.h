/* A store is a named set of read-only files: a checkpoint's directory, one file, or files dropped on a web page. The
 * implementations live outside core/formats: core/io has one over memory, native/io one over a directory, wasm/ one over the
 * page's files. Files are named by their path relative to the store's root, with '/' between components.
 *
 * Example:
 *
 *     for (uint32_t i = 0; i < store->file_count; i++)
 *         printf("%.*s: %llu bytes\n", TSR_STR_ARG(store->files[i].name), (unsigned long long)store->files[i].size); */
#ifndef TESSERA_STORE_H
#define TESSERA_STORE_H

#include "tessera/host.h"

TSR_API_BEGIN

typedef struct tsr_store_file {
    tsr_str name;
    uint64_t size; /* bytes */
} tsr_store_file;

/* Bytes that must be checked before those after them are used: the local header of a zip's member. */
typedef struct tsr_store_guard tsr_store_guard;
struct tsr_store_guard {
    uint32_t file;
    uint64_t byte_offset;    /* of the guard */
    uint64_t guarded_offset; /* where it ends, and what it guards begins */
    uint64_t guarded_length; /* bytes */
    tsr_str facts;           /* what `check` compares the guard with; the store copies it */
    /* `bytes`: the guard's, guarded_offset - byte_offset of them. */
    tsr_status (*check)(const tsr_store_guard *guard, const uint8_t *bytes, tsr_error *err);
};

/* Bytes of a file. */
typedef struct tsr_store_place {
    uint32_t file;
    uint64_t offset, size;
} tsr_store_place;

/* A directory of which a store lists no files. */
typedef struct tsr_store_gap {
    tsr_str name;
    const char *why; /* NULL: it is empty. Otherwise why it, or something in it, could not be looked at */
    bool
        is_link; /* a symbolic link: with `why`, one that leads nowhere or is not directly below the root; otherwise one to the root
                      * itself, or to a directory that contains it */
} tsr_store_gap;

/* A symbolic link whose target is below the root, too. */
typedef struct tsr_store_link {
    tsr_str name, target; /* below the root */
} tsr_store_link;

typedef struct tsr_store tsr_store;
struct tsr_store {
    uint32_t file_count;
    const tsr_store_file *files; /* sorted by name, byte-wise */
    /* The file that the user named, or TSR_NO_FILE for a directory. */
    uint32_t primary;
    /* Reads exactly `size` bytes at `offset`, or fails (reading past the end is TSR_E_IO naming the file). Thread-safe. */
    tsr_status (*read_at)(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);
    /* Optional (may be NULL, may give TSR_E_UNSUPPORTED): borrows the whole file as memory until release. */
    tsr_status (*map)(tsr_store *store, uint32_t file, tsr_str *out, tsr_error *err);
    void (*unmap)(tsr_store *store, uint32_t file, tsr_str mapped);
    void (*close)(tsr_store *store); /* frees the store itself */
    /* Optional: lists the files up to `levels` directories below the root as well, with a bound on the memory that this takes
     * (*cut: the bound was reached, at the last of the gaps; *deeper: there are directories further down). The files' numbers change: only while nothing refers
     * to them. */
    tsr_status (*deepen)(tsr_store *store, unsigned levels, bool *cut, bool *deeper, tsr_error *err);
    /* Optional: the directory `name` below the root, of any depth, as a store of its own, which the caller closes before this
     * one. */
    tsr_status (*below)(tsr_store *store, tsr_str name, tsr_store **out, tsr_error *err);
    /* Optional, for stores that show the files of others: the store that `*file` is in, whose number there it becomes.
     * TSR_NO_FILE stays: then the store that stands for the whole. */
    tsr_store *(*origin)(const tsr_store *store, uint32_t *file);
    /* Optional, for stores whose every read is a request: from here on read_at gives bytes that are guarded only after the guard
     * was read, together with them, and checked. Its errors are those of read_at then. */
    tsr_status (*guard)(tsr_store *store, const tsr_store_guard *guard, tsr_error *err);
    /* Optional, for the same stores: callers that read tensors announce the bytes of a chunk before they read it. Reading ahead
     * stops at the end of the chunk. Thread-safe. */
    void (*expect)(tsr_store *store, uint32_t file, uint64_t offset, uint64_t size);
    /* Optional, for stores whose small reads are slow: these places will be read soon, by small reads; fetches them together as far as there is
     * room. Bytes that cannot be fetched are left to the reads, which report why. Thread-safe. */
    void (*prefetch)(tsr_store *store, const tsr_store_place *places, size_t count);
    /* Optional, for stores whose every read is a request: from here on these places, of which a file has at most one, are read from
     * front to back in this order, and `expect` states where the reader is. The store keeps requests for what comes next in flight.
     * count 0: the reader is done. No other thread may be reading. */
    tsr_status (*schedule)(tsr_store *store, const tsr_store_place *places, size_t count, tsr_error *err);
    /* Optional, for stores of one file that was given by its path: opens the file `name` next to it as a store of its own, whose
     * primary file it is. The caller closes it before this one. TSR_E_NOT_FOUND if there is no such file. */
    tsr_status (*neighbor)(tsr_store *store, const tsr_host *host, tsr_str name, tsr_store **out, tsr_error *err);
    /* For stores that take schedules: threads that wait for answers, one for each request that may be in flight. They read a checkpoint
     * in the store if the host has fewer threads. The store owns them. */
    tsr_parallel_for *parallel_for;
    void *parallel_ctx;
    uint32_t threads;
    /* The files are made while they are read (tsr_tree_store_new): their archives state no checksums, which is not reported. */
    bool unsummed;
    /* For stores with directories, after `deepen`: those among the levels that show no files. */
    const tsr_store_gap *gaps;
    uint32_t gap_count;
    /* Likewise: the links to what is listed under another name as well, sorted by name. */
    const tsr_store_link *links;
    uint32_t link_count;
    /* Optional: whether two names are those of one file, as with hard links. */
    bool (*is_same)(const tsr_store *store, uint32_t file, uint32_t other);
};

TSR_API_END

#endif
