/* Finds out which ranks share a param group, and the names of its parameters.
 *
 * Without experts, every group is partitioned over all data-parallel ranks. A group of experts is partitioned only over the
 * ranks that hold the same experts, so it stands for several groups, one per expert-parallel rank. Each rank counts its own
 * experts from 0:
 *
 *   4 ranks, 2 expert-parallel     ranks 0, 2: experts 0 and 1 of 4     ranks 1, 3: experts 2 and 3, which they call 0 and 1
 *   with use_data_before_expert_parallelism     ranks 0, 1                     ranks 2, 3 */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_GROUPS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_GROUPS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "tessera/sys/map.h"

typedef struct tsr_ds_groups {
    const tsr_ds_files *files;
    const tsr_ds_column *column;
    const tsr_value *partitions; /* the LIST `partition_count`, or NULL */
    tsr_map *experts; /* "….deepspeed_experts." → number of experts of the layer on all ranks; NULL without experts */
    bool data_first;
} tsr_ds_groups;

/* The ranks that share a group: all ranks of a column, or those of one expert-parallel rank. */
typedef struct tsr_ds_sharers {
    uint32_t group;             /* its number in the files */
    uint32_t expert_rank;       /* 0 if the group has no experts */
    uint32_t expert_ranks;      /* 1 if the group has no experts */
    uint32_t world;             /* how many ranks share the group */
    const tsr_ds_file **optims; /* one per rank, NULL if it is missing */
} tsr_ds_sharers;

/* Opens the groups of a column. `out` must be closed in any case. */
tsr_status tsr_ds_groups_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_groups *out, tsr_error *err);
void tsr_ds_groups_close(tsr_ds_groups *groups); /* accepts a zeroed one */

/* The number of expert-parallel ranks of a group, at least 1. */
uint32_t tsr_ds_groups_split(const tsr_ds_groups *groups, uint32_t group);
/* Finds the ranks that share a group on an expert-parallel rank. */
tsr_status tsr_ds_groups_sharers(const tsr_ds_groups *groups, uint32_t group, uint32_t expert_rank, tsr_ds_sharers *out,
                                 tsr_error *err);
/* Changes the name of a parameter from the one on an expert-parallel rank to the one among the experts of all ranks. Fails
 * with TSR_E_FORMAT if it is not the name of one of the rank's experts. */
tsr_status tsr_ds_groups_name(const tsr_ds_groups *groups, uint32_t group, uint32_t expert_rank, tsr_str *name,
                              tsr_error *err);

#endif
