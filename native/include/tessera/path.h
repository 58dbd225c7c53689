/* Checkpoints and documents by their paths: open the checkpoint at a path, and write one to a path. Most programs therefore do
 * not need a store, an output or a unit of work of their own.
 *
 * Example:
 *
 *     const tsr_convert_options convert = {.to = TSR_TO_SAFETENSORS};
 *     const tsr_path_write_options options = {.convert = &convert};
 *     status = tsr_path_open("step-1000", host, NULL, &checkpoint, &err);
 *     if (status == TSR_OK) status = tsr_path_write(checkpoint, "model.safetensors", &options, arena, NULL, &err);
 *     tsr_path_close(checkpoint); */
#ifndef TESSERA_PATH_H
#define TESSERA_PATH_H

#include "tessera/checkpoint.h"
#include "tessera/comm.h"
#include "tessera/convert.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* Opens the checkpoint at `path`: a file, a directory, an http(s) URL, or the URL of an object store
 * (tessera/sys/object_store.h). The format is recognized from the content. Borrows `host` until close; `options` may be NULL.
 * Errors: those of tsr_path_store_open and tsr_checkpoint_open. The caller closes the checkpoint with tsr_path_close, never
 * with tsr_checkpoint_close. */
tsr_status tsr_path_open(const char *path, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                         tsr_error *err);
/* Closes a checkpoint that tsr_path_open opened, and its store. Accepts NULL. */
void tsr_path_close(tsr_checkpoint *checkpoint);

typedef struct tsr_path_write_options {
    size_t size;                        /* TSR_OPTIONS sets it */
    const tsr_convert_options *convert; /* the format to write (`to`), and everything else that tsr_convert can do */
    bool overwrite;                     /* replace the checkpoint at the destination; files that it does not list stay */
    tsr_comm *comm;                     /* NULL: this process works alone. Otherwise its ranks share the work */
    /* Continue what an interrupted write of the same checkpoint with the same options has done, and keep what this one has done if it
     * fails. If the destination is already complete, that is a success. */
    bool resume;
} tsr_path_write_options;

/* Writes a checkpoint to `path`, which may be the URL of an object store (s3://, gs://, az://), completely or not at all: a single
 * file, or a directory for DCP, for a reshard, and for safetensors with a max_shard_size. A path that ends in '/' is a directory, in
 * which a single file is model.safetensors or pytorch_model.bin. Nothing is visible under that name before everything is on disk, and a
 * failed run
 * leaves an earlier checkpoint as it was. The bytes do not depend on the number of ranks or threads. `out` (may be NULL)
 * receives what was written; it lives in `arena` and borrows the checkpoint. What TSR_OBJECTS_SIDECAR makes is written to
 * objects.json in a directory, and to PATH.objects.json next to a single file; not next to a single object of a store.
 *
 * With a `comm` the call is collective: every rank has opened the same checkpoint, passes the same options, and sees the
 * same file system at `path`; all of them return the same status.
 *
 * Errors: those of tsr_convert; TSR_E_EXISTS when `path` already exists; TSR_E_USAGE when the source would be overwritten, or
 * the ranks have opened different checkpoints; TSR_E_CHANGED when the source changed meanwhile; TSR_E_IO. */
tsr_status tsr_path_write(tsr_checkpoint *checkpoint, const char *path, const tsr_path_write_options *options,
                          tsr_arena *arena, tsr_conversion *out, tsr_error *err);

typedef struct tsr_path_tree_files tsr_path_tree_files;

/* What a checkpoint holds as one value tree: the form in which optimizer state is converted (tessera/optim.h). */
typedef struct tsr_path_tree {
    tsr_checkpoint *checkpoint; /* reads the bytes of the tensors in the tree */
    const tsr_value *root;
    tsr_path_tree_files *files;
} tsr_path_tree;

/* Opens the checkpoint at `path` as a tree: the value that was pickled into a torch.save file, or the nested state dict that the
 * entries' paths spell in other formats, where empty containers are missing. Borrows `host` and `arena` until tsr_path_tree_close,
 * after which `root` is gone too. Errors: those of tsr_path_open, and TSR_E_UNSUPPORTED for an entry that cannot be part of a tree. */
tsr_status tsr_path_tree_open(const char *path, const tsr_host *host, tsr_arena *arena, tsr_path_tree *out, tsr_error *err);
/* Accepts a zeroed tree. */
void tsr_path_tree_close(tsr_path_tree *tree);

/* Writes a value tree to the file `path` as torch.save does, completely or not at all. `checkpoint` reads the bytes of the
 * tensors in it (tsr_path_tree_open opens such trees). It never replaces a file: it returns TSR_E_EXISTS when `path` already
 * exists. Other errors: those of tsr_write_tree; TSR_E_CHANGED when the source changed meanwhile; TSR_E_IO. */
tsr_status tsr_path_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const char *path, tsr_error *err);

/* Reads the file at `path`, such as a JSON document, into `arena`. Files larger than limits.metadata_bytes are refused. Errors:
 * TSR_E_NOT_FOUND, TSR_E_USAGE for a directory, TSR_E_LIMIT, TSR_E_IO, TSR_E_NOMEM. */
tsr_status tsr_path_load(const char *path, const tsr_host *host, tsr_arena *arena, tsr_str *out, tsr_error *err);

TSR_API_END

#endif
