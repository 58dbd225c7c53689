/* How a checkpoint (tessera/checkpoint.h) was opened: what for, from which directory, and joined from how many ranks.
 *
 * Example:
 *
 *     status = tsr_checkpoint_require(checkpoint, TSR_FOR_VALUES, &err);
 *     if (status == TSR_OK && tsr_checkpoint_joined_ranks(checkpoint)) printf("its ranks were joined\n"); */
#ifndef TESSERA_SYS_CHECKPOINT_H
#define TESSERA_SYS_CHECKPOINT_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* Checks that a checkpoint that was opened for a lesser purpose can also serve `purpose`. Fails with TSR_E_UNSUPPORTED; the
 * message names the missing files or maps, or the tensors that differ between ranks. tsr_checkpoint_open makes this check
 * for the purpose in its options. */
tsr_status tsr_checkpoint_require(const tsr_checkpoint *checkpoint, tsr_purpose purpose, tsr_error *err);
/* The same for the values of the entry with this name alone. A name that is not there is not an error here. */
tsr_status tsr_checkpoint_require_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);

/* The number of ranks that the map in the open options joined, over all pipeline stages. 0 without a map, and for a
 * checkpoint whose files are not those of ranks with plain tensors. */
uint32_t tsr_checkpoint_joined_ranks(const tsr_checkpoint *checkpoint);
/* What documents state if --shards was given and there were no ranks to join. */
#define TSR_SHARDS_UNUSED "--shards is not used for this checkpoint: its tensors are not plain tensors of several ranks"

/* Makes `findings` the list that checks add to, and returns the one that was. The caller owns that one, and the checkpoint the other. */
tsr_findings *tsr_checkpoint_exchange_findings(tsr_checkpoint *checkpoint, tsr_findings *findings);

/* What an entry or a mapping of a checkpoint becomes. */
typedef struct tsr_new_name {
    tsr_str fqn;            /* NULL data: it is left out */
    const tsr_value *value; /* of an entry */
} tsr_new_name;
/* Gives the entries and mappings of an open checkpoint other names and values, as if they were stored like this; `entries` and
 * `mappings` have one element for each, which live in tsr_checkpoint_arena or as long. Paths follow the names. If entries are left out,
 * what is left has no parts, and is of the format of the one part that it was in. Called at most once, before anything
 * keeps an entry of the checkpoint. Errors: TSR_E_USAGE with the old names of two entries that would have one name;
 * TSR_E_NOMEM. */
tsr_status tsr_checkpoint_rename(tsr_checkpoint *checkpoint, const tsr_new_name *entries, const tsr_new_name *mappings,
                                 tsr_error *err);

/* The directory below the root that was opened, and in *marker the file that named it; NULL data and NULL where it was the
 * root itself, or if the caller chose the step. */
tsr_str tsr_checkpoint_step(const tsr_checkpoint *checkpoint, const char **marker);

TSR_API_END

#endif
