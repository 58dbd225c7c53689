/* An opened checkpoint of any readable format: its catalog, what was found wrong with its metadata, and where the bytes
 * of each chunk are. Opening reads metadata and headers only, so its memory is bounded by the size of the metadata.
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
    TSR_FOR_FINDINGS,   /* validation: never refused for these reasons */
    TSR_FOR_ALL_NAMES   /* answers that depend on every name: refused where the save was interrupted */
} tsr_purpose;

typedef struct tsr_open_options {
    size_t size;       /* TSR_OPTIONS sets it */
    bool skip_objects; /* do not read object values that cost extra reads (DCP byte items); their entry.value is NULL */
    tsr_purpose purpose;
    /* Returns true for the entries that will be used; NULL: all. Tensors that differ between ranks are tolerated if they are
     * not among them. Only called while the checkpoint is opened. */
    bool (*selects)(const void *ctx, tsr_str fqn);
    const void *selects_ctx;
    /* Open only this part of a checkpoint that consists of parts (tsr_catalog.parts); the part's name is stripped from its
     * entries. NULL data: open all parts. Fails with TSR_E_NOT_FOUND, listing the parts, if there is no such part. */
    tsr_str part;
    /* Which checkpoint of a directory that holds several: "latest", a path below it or the last names of one ("step-100",
     * "global_step_100/actor"), the number at the end of such a name ("100"), or "latest-valid": the newest one without errors
     * (tessera/sys/latest.h), whatever a `latest` file names; newer ones are findings (`parts/passed-over`). Fails with TSR_E_NOT_FOUND if none matches,
     * and with TSR_E_USAGE and a list if several match. NULL data: the directory itself, or the one that its `latest` or
     * `latest_checkpointed_iteration.txt` names. */
    tsr_str step;
    bool stay; /* ignore such a file: open the directory itself or fail */
    /* How the plain tensors of several ranks form whole ones (tessera/shards.h); borrowed until the checkpoint is closed.
     * NULL: such tensors are listed per rank. Checkpoints whose tensors are whole do not need it
     * (tsr_checkpoint_joined_ranks). */
    const struct tsr_shards *shards;
    /* Of a DCP whose ranks wrote their own metadata, open only what this rank's file describes, as PyTorch does on that rank.
     * Fails with TSR_E_NOT_FOUND if the rank has none. NULL: open the union of all ranks. Other checkpoints ignore it. Only
     * read while the checkpoint is opened. */
    const uint32_t *metadata_rank;
    /* Of a single torch.save or safetensors file that has lost its end, open what is whole. Entries whose bytes are lost are not in
     * the catalog: each is a finding (`repair/lost`) that states its dtype and shape. Reads the whole torch.save file. Other
     * checkpoints ignore it. */
    bool salvage;
} tsr_open_options;

/* Recognizes the format from content and reads the metadata. Borrows `store` and `host` until close. `options` may be
 * NULL. Errors: TSR_E_UNSUPPORTED (a container known by name that is not read, or an unknown one), TSR_E_FORMAT,
 * TSR_E_LIMIT, TSR_E_IO, TSR_E_NOMEM; each names the file and, where there is one, the byte. */
tsr_status tsr_checkpoint_open(tsr_store *store, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                               tsr_error *err);
void tsr_checkpoint_close(tsr_checkpoint *checkpoint); /* accepts NULL */

/* The checkpoint's entries. Owned by the checkpoint and unchanged until it is closed. */
const tsr_catalog *tsr_checkpoint_catalog(const tsr_checkpoint *checkpoint);
/* The findings of opening and of all checks run since. Owned by the checkpoint. */
tsr_findings *tsr_checkpoint_findings(tsr_checkpoint *checkpoint);
/* The host to read the checkpoint with: that of tsr_checkpoint_open, or a copy of it with more threads where every read waits for a server
 * (tsr_store.threads). Owned by the checkpoint. */
const tsr_host *tsr_checkpoint_host(const tsr_checkpoint *checkpoint);

/* The entry with exactly this FQN, or NULL. O(1). */
const tsr_entry *tsr_checkpoint_entry(const tsr_checkpoint *checkpoint, tsr_str fqn);

TSR_API_END

#endif
