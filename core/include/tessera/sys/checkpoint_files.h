/* The files of a checkpoint: those that it needs, owns or was read from, and those that are missing.
 *
 * Example:
 *
 *     tsr_file_role role;
 *     status = tsr_store_file_role(store, 0, &role, &err);
 *     if (status == TSR_OK && role == TSR_ROLE_MARKER) printf("the first file says what the directory is\n"); */
#ifndef TESSERA_SYS_CHECKPOINT_FILES_H
#define TESSERA_SYS_CHECKPOINT_FILES_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* The files it is read from: those of the store that was given, or of the directory below it that a step chose. */
tsr_store *tsr_checkpoint_store(tsr_checkpoint *checkpoint);
/* The store that was given to tsr_checkpoint_open, also where a step below its root was opened. */
tsr_store *tsr_checkpoint_given_store(tsr_checkpoint *checkpoint);
/* The arena that lives as long as the checkpoint. Not thread-safe. */
tsr_arena *tsr_checkpoint_arena(tsr_checkpoint *checkpoint);
/* Raises TSR_E_NOT_FOUND with the reason why bytes of the entry `fqn` are missing: the names of missing files, or of a
 * truncated file. */
tsr_status tsr_checkpoint_raise_missing(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);
/* Raises TSR_E_NOT_FOUND for a name that no entry has. If exactly one entry ends in ".fqn", the message suggests it. */
tsr_status tsr_checkpoint_raise_no_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);
/* The names, relative to the store's root, of files that the metadata needs but the store does not have. Each is also a
 * finding. */
const tsr_str *tsr_checkpoint_missing(const tsr_checkpoint *checkpoint, size_t *count);
/* Names of files that the format of the checkpoint implies and the store does not have, except those that
 * tsr_checkpoint_missing lists. A server that cannot list files may still have them. Borrowed until close. */
const tsr_str *tsr_checkpoint_implied(const tsr_checkpoint *checkpoint, size_t *count);
/* Finds the files of the store that belong to the checkpoint by its own lists: its metadata or index and the files that
 * these name. For a format without a list (torch-ranks, dcp-safetensors) these are the files that were opened. A single
 * safetensors or torch file in a directory is not in any list, so it does not belong to the checkpoint. Fills `owned`, one
 * value for each file of the store. Errors: TSR_E_NOMEM, and those of opening. */
tsr_status tsr_checkpoint_own_files(tsr_checkpoint *checkpoint, bool *owned, tsr_error *err);

/* What a file of a directory means to recognition, whichever checkpoint it belongs to. */
typedef enum tsr_file_role {
    TSR_ROLE_NONE,    /* nothing: notes, configurations, files in subdirectories */
    TSR_ROLE_TENSORS, /* safetensors, torch.save, `.distcp`: may be read as a checkpoint or as a part of one */
    TSR_ROLE_MARKER   /* metadata or an index: decides what the directory is */
} tsr_file_role;
/* Decided by name and first bytes. Errors as reading. */
tsr_status tsr_store_file_role(tsr_store *store, uint32_t file, tsr_file_role *role, tsr_error *err);

/* Sets used[f] for every file f of the store (`used` has store->file_count places) that the checkpoint was read from, that its
 * metadata or index names, or that holds bytes of an entry. */
void tsr_checkpoint_used_files(const tsr_checkpoint *checkpoint, bool *used);

/* The directory of a part that is a DCP of its own: "pytorch_model_fsdp_0" for the part `model` of what accelerate saved. It
 * is borrowed from the store's names. Nothing is read, so its .metadata may be missing. TSR_E_NOT_FOUND if no directory of
 * `store` is that part. */
tsr_status tsr_part_directory(const tsr_store *store, tsr_str part, tsr_str *out, tsr_error *err);

TSR_API_END

#endif
