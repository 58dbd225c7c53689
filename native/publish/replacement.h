/* Decides what an output replaces, before anything is written, from the old checkpoint's own lists
 * (tsr_checkpoint_own_files):
 *
 *   obsolete   files that the old checkpoint lists: they are removed when the new one is in place
 *   kept       every other file of the directory: it stays
 *
 * No file is ever removed because of its name. A replacement is refused if the directory could not be read afterwards, or
 * would be read as a mixture of two checkpoints. */
#ifndef TSR_NATIVE_REPLACEMENT_H
#define TSR_NATIVE_REPLACEMENT_H

#include "tessera/convert.h"

#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/directory.h"

/* ---- what is read ---- */

/* Finds out whether a file to be read is among those to be replaced. Compares device and inode, so other names and links are
 * recognized. */

/* All files that a job reads. */
typedef struct tsr_inputs {
    tsr_vec files;       /* of tsr_input */
    tsr_vec directories; /* of tsr_input: directories that contain files of a checkpoint */
} tsr_inputs;

typedef struct tsr_input {
    uint64_t device, inode;
    const char *name; /* borrowed */
} tsr_input;

tsr_inputs tsr_inputs_new(void);
void tsr_inputs_free(tsr_inputs *inputs); /* accepts a zeroed one */

/* Adds the files of an opened checkpoint: those that belong to it, and those that were read so far. `checkpoint` NULL: all
 * files of the store. Ignores files that are not on a file system of this machine. Borrows the store's names. */
tsr_status tsr_inputs_add(tsr_inputs *inputs, tsr_store *store, tsr_checkpoint *checkpoint, tsr_error *err);
/* Adds a document by its path. Ignores NULL and paths that do not exist. Borrows the path. */
tsr_status tsr_inputs_add_path(tsr_inputs *inputs, const char *path, tsr_error *err);

/* The input that is the same file as a path in `directory` (a descriptor, or AT_FDCWD), following links; or NULL. */
const tsr_input *tsr_inputs_find(const tsr_inputs *inputs, int directory, const char *path);

/* ---- replacement ---- */

#define TSR_DCP_MARKER   ".metadata"
#define TSR_INDEX_MARKER "model.safetensors.index.json"
#define TSR_MODEL_FILE   "model.safetensors"
#define TSR_TORCH_FILE   "pytorch_model.bin"

/* The marker of an output that is a directory; NULL if the format has none. */
static inline const char *tsr_marker_of(tsr_container to)
{
    return to == TSR_TO_DCP ? TSR_DCP_MARKER : to == TSR_TO_MEGATRON ? "metadata.json" : NULL;
}
/* The name of the file of a format that consists of one, if the destination is a directory. */
static inline const char *tsr_file_of(tsr_container to)
{
    return to == TSR_TO_TORCH ? TSR_TORCH_FILE : TSR_MODEL_FILE;
}
/* The file that is created together with the marker and is not among a conversion's files: Megatron's .metadata. NULL:
 * none. */
static inline const char *tsr_beside_marker(const char *marker)
{
    return marker && strcmp(marker, "metadata.json") == 0 ? TSR_DCP_MARKER : NULL;
}

typedef struct tsr_replacement_request {
    const tsr_host *host;
    const char *path;  /* the destination: a local path, or the URL of an object store */
    bool is_directory; /* a directory will be written; otherwise one file */
    bool overwrite;
    const char *marker;       /* as tsr_marker_of, or TSR_INDEX_MARKER; NULL: the format has none */
    tsr_str file_name;        /* of a single file in the directory, which replaces any file of this name; empty: not one */
    const tsr_inputs *inputs; /* what the job reads; may be NULL */
    const tsr_str *written;   /* names in it that an unfinished publication of the same job has created */
    size_t written_count;
} tsr_replacement_request;

typedef struct tsr_kept {
    tsr_str name;
    tsr_file_role role;
    bool is_file; /* it can be read */
} tsr_kept;

/* Lives in the arena given to tsr_replacement_decide. */
typedef struct tsr_replacement {
    bool exists; /* the destination exists */
    /* The directory must be replaced as a whole, because no rename of one file can switch from old to new. */
    bool swap;
    bool has_stray;    /* a kept file holds tensors: only a marker can distinguish the new checkpoint from it */
    tsr_str *obsolete; /* has room for all files; markers come first */
    size_t obsolete_count, marker_count;
    uint32_t generation; /* of an object store: the next free generation (tsr_directory_next_generation) */
    tsr_kept *kept;
    size_t kept_count;
} tsr_replacement;

/* `notices`: this process has looked, and creates the output of a directory. */
static inline tsr_existing tsr_replacement_mode(const tsr_replacement *replacement, bool overwrite, bool notices)
{
    if (!overwrite) return TSR_EXISTING_REFUSED;
    if (replacement->swap) return TSR_EXISTING_SWAPPED;
    return notices && !replacement->exists ? TSR_EXISTING_ABSENT : TSR_EXISTING_REPLACED;
}

/* Reads what is at the destination and decides. Without `overwrite`, does not look into an existing destination, because
 * tsr_directory_output_open refuses it. Errors: TSR_E_USAGE if a file being read would be replaced, or the source is in the
 * destination; TSR_E_UNSUPPORTED if the old metadata cannot be read, or if a file that stays would be taken for part of the
 * new checkpoint; errors of reading the old checkpoint. */
tsr_status tsr_replacement_decide(const tsr_replacement_request *request, tsr_arena *arena, tsr_replacement *out,
                                  tsr_error *err);

/* Refuses a kept file that the usual reader of the new checkpoint would load instead of it, by its name: transformers
 * prefers model.safetensors to its index, and both to pytorch_model.bin and its index. Callers that replace further files
 * by their names decide that first. */
tsr_status tsr_replacement_check_readers(const tsr_replacement_request *request, const tsr_replacement *replacement,
                                         tsr_error *err);

/* Refuses a new file that has the name of a kept one. `name` is relative to the destination. */
tsr_status tsr_replacement_check_name(const tsr_replacement *replacement, const char *path, tsr_str name, tsr_error *err);

#endif
