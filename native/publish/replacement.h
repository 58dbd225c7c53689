/* What an output replaces, decided before anything is written, from the old checkpoint's own lists (tsr_checkpoint_own_files):
 *
 *   obsolete   files that the old checkpoint lists: they go when the new one is in place
 *   kept       every other file of the directory: it stays
 *
 * Nothing is ever removed because of its name. What would leave a directory that cannot be read, or that reads as a mixture
 * of two checkpoints, is refused. */
#ifndef TSR_NATIVE_REPLACEMENT_H
#define TSR_NATIVE_REPLACEMENT_H

#include "publish/overlap.h"
#include "tessera/convert.h"

#include "tessera/sys/checkpoint_files.h"

#define TSR_DCP_MARKER   ".metadata"
#define TSR_INDEX_MARKER "model.safetensors.index.json"

/* The marker of what is written in one directory or as several files of it; NULL: the form has none. */
static inline const char *tsr_marker_of(tsr_container to)
{
    return to == TSR_TO_DCP ? TSR_DCP_MARKER : to == TSR_TO_MEGATRON ? "metadata.json" : NULL;
}
/* What is created together with the marker and is not among a conversion's files: Megatron's .metadata; NULL: nothing. */
static inline const char *tsr_beside_marker(const char *marker)
{
    return marker && strcmp(marker, "metadata.json") == 0 ? TSR_DCP_MARKER : NULL;
}

typedef struct tsr_replacement_request {
    const tsr_host *host;
    const char *path; /* the destination; of URLs those of object stores */
    bool is_folder;   /* a directory will be written; else one file */
    bool overwrite;
    const char *marker;       /* as tsr_marker_of, or TSR_INDEX_MARKER, or NULL: a form without one */
    const tsr_inputs *inputs; /* what the job reads; or NULL */
    const tsr_str *written;   /* names in it that an unfinished publication of the same job has put there */
    size_t written_count;
} tsr_replacement_request;

typedef struct tsr_kept {
    tsr_str name;
    tsr_file_role role;
} tsr_kept;

/* Lives in the arena it was made in. */
typedef struct tsr_replacement {
    bool exists;     /* there is something at the destination */
    bool swap;       /* the directory must be replaced as a whole: no rename of one file can switch from old to new */
    bool has_stray;  /* a kept file holds tensors: the new checkpoint needs a marker to be told from it */
    tsr_str *obsolete; /* with room for all; markers first */
    size_t obsolete_count, marker_count;
    uint32_t generation; /* of an object store: the next that is free (tsr_folder_next_generation) */
    tsr_kept *kept;
    size_t kept_count;
} tsr_replacement;

/* Reads what is at the destination and decides. Without `overwrite` an existing one is left to tsr_folder_output_open, which
 * refuses it. Errors: TSR_E_USAGE where something that is read would be replaced or lies in the destination;
 * TSR_E_UNSUPPORTED where the old metadata cannot be read, and where a file that stays would spoil the new checkpoint;
 * those of reading the old checkpoint. */
tsr_status tsr_replacement_decide(const tsr_replacement_request *request, tsr_arena *arena, tsr_replacement *out, tsr_error *err);

/* Whether a file is a sidecar of objects that a conversion wrote, by how its content begins. */
bool tsr_is_sidecar(const char *path);
/* A kept file of this name becomes an obsolete one, where it is such a sidecar: the new sidecar takes its place. */
tsr_status tsr_replacement_take_sidecar(tsr_replacement *replacement, const char *path, tsr_str name, tsr_arena *arena,
                                        tsr_error *err);
/* Refuses a new file whose name a kept one has. `name` is in the destination. */
tsr_status tsr_replacement_check_name(const tsr_replacement *replacement, const char *path, tsr_str name, tsr_error *err);

#endif
