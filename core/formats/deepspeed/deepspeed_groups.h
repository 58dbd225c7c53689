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

#endif
