/* An opened checkpoint of any readable format: its catalog, what was found wrong with its metadata, and where the bytes
 * of each chunk lie. Opening reads metadata and headers only; memory is bounded by the metadata's size.
 *
 * Missing or short data files, holes and other damage that still allows a listing are findings; input that cannot be
 * recognized or parsed is an error. Nothing that a pickle names is ever executed or imported.
 *
 * Example:
 *
 *     status = tsr_checkpoint_open(store, host, NULL, &checkpoint, &err);
 *     if (status == TSR_OK) {
 *         entry = tsr_checkpoint_entry(checkpoint, TSR_STR("model.embed.weight"));
 *         if (entry) printf("%s\n", tsr_dtype_describe(entry->dtype)->name);
 *     }
 *     tsr_checkpoint_close(checkpoint); */
#ifndef TESSERA_CHECKPOINT_H
#define TESSERA_CHECKPOINT_H

#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/store.h"

TSR_API_BEGIN

typedef struct tsr_checkpoint tsr_checkpoint;

/* What a checkpoint is opened for. Some directories can be listed, or only reported on, but not read as one checkpoint:
 * ranks whose plain tensors differ (tsr_entry.per_rank), entries of an index that are in no file, and saves that were
 * interrupted (`parts/incomplete-save`). */
typedef enum tsr_purpose {
    TSR_FOR_VALUES = 0, /* anything that uses the tensors: such a directory is refused */
    TSR_FOR_NAMES,      /* a listing: refused only where a missing file alone has the names */
    TSR_FOR_FINDINGS    /* validation: never refused for these reasons */
} tsr_purpose;

typedef struct tsr_open_options {
    bool skip_objects; /* leave object values unread where that costs extra reads (DCP byte items): entry.value is NULL */
    tsr_purpose purpose;
    /* The entries that will be used, by name; NULL: all. Tensors that differ between ranks do not matter if they are not
     * among them. Only called while the checkpoint is opened. */
    bool (*selects)(const void *ctx, tsr_str fqn);
    const void *selects_ctx;
} tsr_open_options;

/* Recognizes the format from content and reads the metadata. Borrows `store` and `host` until close. `options` may be
 * NULL. Errors: TSR_E_UNSUPPORTED (a container known by name that is not read, or an unknown one), TSR_E_FORMAT,
 * TSR_E_LIMIT, TSR_E_IO, TSR_E_NOMEM; each names the file and, where there is one, the byte. */
tsr_status tsr_checkpoint_open(tsr_store *store, const tsr_host *host, const tsr_open_options *options,
                               tsr_checkpoint **out, tsr_error *err);
void tsr_checkpoint_close(tsr_checkpoint *checkpoint); /* takes NULL */

/* Whether the checkpoint, opened for less, can serve a purpose: TSR_E_UNSUPPORTED with what is missing, or with the names of
 * tensors that differ between ranks. tsr_checkpoint_open asks this for the purpose of its options. */
tsr_status tsr_checkpoint_require(const tsr_checkpoint *checkpoint, tsr_purpose purpose, tsr_error *err);

/* What it holds; owned by the checkpoint, unchanged until it is closed. */
const tsr_catalog *tsr_checkpoint_catalog(const tsr_checkpoint *checkpoint);
/* Findings of opening and of the checks run since; owned by the checkpoint. */
tsr_findings *tsr_checkpoint_findings(tsr_checkpoint *checkpoint);
const tsr_host *tsr_checkpoint_host(const tsr_checkpoint *checkpoint);
tsr_store *tsr_checkpoint_store(tsr_checkpoint *checkpoint);
/* The arena that lives as long as the checkpoint. Not thread-safe. */
tsr_arena *tsr_checkpoint_arena(tsr_checkpoint *checkpoint);
/* Names, below the store's root, of files that the metadata needs and the store does not have; each is a finding too. */
const tsr_str *tsr_checkpoint_missing(const tsr_checkpoint *checkpoint, size_t *count);
/* TSR_E_NOT_FOUND with the reason why bytes of the entry `fqn` are not there: the files that are missing, by name, or one that
 * is cut short. */
tsr_status tsr_checkpoint_raise_missing(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);
/* Which files of the store belong to the checkpoint, by its own lists: its metadata or index and the files that these name. Of
 * a form without a list (torch-ranks, dcp-safetensors) the files that were opened as it. A single safetensors or torch file in
 * a directory is listed nowhere, so it belongs to nobody. Fills `owned`, one for each file of the store. TSR_E_NOMEM; else
 * as open. */
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
/* Entry by exact FQN, or NULL. O(1). */
const tsr_entry *tsr_checkpoint_entry(const tsr_checkpoint *checkpoint, tsr_str fqn);

/* Where the bytes of one chunk (of `entry`) lie. For DCP this reads the head and the end of the item's blob and checks its
 * dtype, sizes and member structure against the metadata. `scratch` holds the strides. Thread-safe for different
 * scratch arenas. Errors as open, plus TSR_E_NOT_FOUND for a missing data file. */
tsr_status tsr_checkpoint_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                 tsr_arena *scratch, tsr_view *out, tsr_error *err);

/* Whether the container can state CRCs of tensors at all. */
bool tsr_checkpoint_has_crcs(const tsr_checkpoint *checkpoint);
/* The CRC-32 that the source states of a chunk's elements just as they lie in the tensor, contiguous row-major; false in
 * *known where it states none of exactly these bytes: safetensors, views, a part of a storage, archives without CRCs
 * (torch.serialization.set_crc32_options(False)). It is what was written down, nothing is read and summed up. Otherwise as
 * tsr_checkpoint_locate. */
tsr_status tsr_checkpoint_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                              bool *known, uint32_t *crc, tsr_error *err);

/* One run of bytes that a full check must read: a zip member, a tensor of a safetensors file, … */
typedef struct tsr_extent {
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
    bool has_crc;
    uint32_t crc32;          /* of the bytes as stored */
    const tsr_entry *entry;  /* whose elements these are, or NULL (pickles, padding) */
    const tsr_chunk *chunk;
    tsr_view view;           /* with entry */
    tsr_str member;          /* name of the zip member, or empty */
} tsr_extent;

/* Calls `each` for every extent in order of (file, byte_offset), checking the structure of every item on the way (zip
 * and pickle structure, dtype and shape of every blob against the metadata); what is wrong becomes findings. A non-zero
 * status of `each` stops and is returned. */
tsr_status tsr_checkpoint_extents(tsr_checkpoint *checkpoint,
                                  tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                  tsr_error *err);

TSR_API_END

#endif
