/* Rebuilds a lost or damaged `.metadata` of a DCP checkpoint from its data files.
 *
 *   __0_0.distcp   [archive][archive][archive]…    each one tensor (dtype, sizes) or one object; no name, no place in a
 *                                                  global tensor: those stood in .metadata alone
 *
 * Another checkpoint of the same job (the step before) has the same items in the same order, so its names, boxes and shapes
 * fit, item by item; where an item has another dtype, other sizes or another kind, it does not. Without one every item
 * becomes a tensor or object of its own, named after its file and number.
 * Source of the layout of data files: torch.distributed.checkpoint.filesystem of PyTorch 2.13.
 *
 * Example:
 *
 *     tsr_salvage found;
 *     status = tsr_salvage_dcp(store, host,
 *                              &(tsr_salvage_options){.like = tsr_checkpoint_catalog(other), .findings = findings}, arena,
 *                              &found, &err);
 *     if (status == TSR_OK) printf("%llu items have no name\n", (unsigned long long)found.unnamed); */
#ifndef TESSERA_SYS_SALVAGE_H
#define TESSERA_SYS_SALVAGE_H

#include "tessera/checkpoint.h"
#include "tessera/sys/dcp_item.h"

TSR_API_BEGIN

/* How far it is, in bytes; false stops it with TSR_E_CANCELLED. */
typedef struct tsr_salvage_progress {
    bool (*step)(void *ctx, uint64_t byte_done, uint64_t byte_total);
    void *ctx;
} tsr_salvage_progress;

typedef struct tsr_salvage_options {
    size_t size;             /* TSR_OPTIONS sets it */
    const tsr_catalog *like; /* of the other checkpoint, over its own store; NULL: none */
    tsr_findings *findings;
    const tsr_salvage_progress *progress; /* or NULL */
} tsr_salvage_options;

typedef struct tsr_salvage {
    const tsr_dcp_new_entry *entries; /* for tsr_dcp_metadata_write; they live in the arena */
    uint64_t entry_count;
    uint64_t items;   /* whole archives that were found */
    uint64_t unnamed; /* of them, those whose names and positions are not known */
    uint64_t lost;    /* items of the other checkpoint that were not found */
    uint32_t files;   /* data files */
} tsr_salvage;

/* Reads the root's `.distcp` files of `store` to their ends. Those of the other checkpoint
 * (options->like) are matched by name. Names that cannot be known, lost items and items that do not fit become findings:
 * repair/no-item (bytes that are not a whole archive), repair/unnamed, repair/lost, repair/unlike.
 * Errors: TSR_E_NOT_FOUND when there is no `.distcp` file, TSR_E_IO, TSR_E_NOMEM, TSR_E_CANCELLED. */
tsr_status tsr_salvage_dcp(tsr_store *store, const tsr_host *host, const tsr_salvage_options *options, tsr_arena *arena,
                           tsr_salvage *out, tsr_error *err);

TSR_API_END

#endif
