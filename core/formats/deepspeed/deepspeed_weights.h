/* The trained weights of one model-parallel rank, and where they are in the flat buffers. This is decided by `param_shapes`
 * of the model states, as in DeepSpeed's zero_to_fp32: `param_slice_mappings` has a different order with
 * round_robin_gradients. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_WEIGHTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_WEIGHTS_H

#include "formats/common/reader.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "tessera/box.h"
#include "tessera/sys/containers.h"

/* ZeRO's flat buffers: the parameters of a group are concatenated in row-major order and split into the ranks' tensors.
 *
 *   ZeRO 1, 2   | embed.weight .... | norm.weight .. | norm.bias |padding|        one buffer for all ranks:
 *               |<--- rank 0 --->|<--- rank 1 --->|<--- rank 2 ---->|             every rank has one slice of it
 *
 *   ZeRO 3      rank 0 | embed[0:34] | norm[0:3] |    rank 1 | embed[34:68] | norm[3:6] |    one buffer per rank:
 *               every parameter is split into equal pieces, the last ones padded
 *
 * In both cases, a run of a parameter's elements is a run of a buffer, and a buffer is a list of tensors. */

/* A tensor that is part of a buffer. */
typedef struct tsr_ds_piece {
    const tsr_entry *tensor; /* 1-d; NULL if its file is missing */
    uint64_t first;          /* index in the buffer of its first element */
    uint64_t count;          /* elements */
} tsr_ds_piece;

typedef struct tsr_ds_buffer {
    tsr_ds_piece *pieces; /* in order, without gaps */
    uint32_t count;
    uint64_t elements;
    tsr_dtype dtype; /* NONE if all of its files are missing */
} tsr_ds_buffer;

/* Makes a buffer with room for `capacity` pieces. */
tsr_status tsr_ds_buffer_new(tsr_arena *arena, uint32_t capacity, tsr_ds_buffer *out, tsr_error *err);
/* Appends `count` elements of a tensor, which must exist, be contiguous, and have the buffer's dtype; otherwise fails with
 * TSR_E_FORMAT, without a position. If `tensor` is NULL, appends `count` missing elements. */
tsr_status tsr_ds_buffer_add(tsr_ds_buffer *buffer, const tsr_entry *tensor, uint64_t count, tsr_error *err);

/* The chunks of a tensor while they are collected. */
typedef struct tsr_ds_chunks {
    tsr_checkpoint *checkpoint;
    const uint64_t *shape;
    uint32_t ndim;
    tsr_vec chunks; /* tsr_chunk; empty at first; freed by the caller */
} tsr_ds_chunks;

/* Adds the elements [to, to + count) of the tensor, which are the elements [from, from + count) of the buffer. Both ranges
 * must be in bounds. */
tsr_status tsr_ds_chunks_add(tsr_ds_chunks *chunks, const tsr_ds_buffer *buffer, uint64_t from, uint64_t count, uint64_t to,
                             tsr_error *err);
/* Returns the tensor as a value, and empties the list of chunks for the next tensor. */
tsr_status tsr_ds_chunks_take(tsr_ds_chunks *chunks, tsr_dtype dtype, const tsr_value **out, tsr_error *err);

/* Finds out which ranks share a param group, and the names of its parameters.
 *
 * Without experts, every group is partitioned over all data-parallel ranks. A group of experts is partitioned only over the
 * ranks that hold the same experts, so it stands for several groups, one per expert-parallel rank. Each rank counts its own
 * experts from 0:
 *
 *   4 ranks, 2 expert-parallel     ranks 0, 2: experts 0 and 1 of 4     ranks 1, 3: experts 2 and 3, which they call 0 and 1
 *   with use_data_before_expert_parallelism     ranks 0, 1                     ranks 2, 3 */

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

/* Collects the contents of all files of a DeepSpeed checkpoint, name by name, before they become a tree.
 *
 * A row is a value under a name, or under a name and a key ("exp_avg" of "norm.weight"). In the tree, the rows of one name
 * keep the order in which their keys were added. */

typedef struct tsr_ds_row {
    tsr_str name, key; /* the key may be empty */
    const tsr_value *value;
    uint32_t next; /* next row of the same name, or UINT32_MAX */
    uint32_t last; /* only in the first row of a name: its last row */
    uint32_t rank; /* the rank that added it first */
    bool first;    /* whether it is the first row of its name */
} tsr_ds_row;

typedef struct tsr_ds_rows {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    tsr_vec rows;         /* tsr_ds_row */
    tsr_map *names;       /* name → first row */
    uint32_t ranks, rank; /* number of tensor-parallel ranks, and the rank whose rows are being added */
} tsr_ds_rows;

tsr_status tsr_ds_rows_open(tsr_ds_rows *rows, tsr_checkpoint *checkpoint, uint32_t ranks, tsr_error *err);
void tsr_ds_rows_close(tsr_ds_rows *rows); /* accepts a zeroed one */

/* Adds a row. If the row exists and came from the same rank, the new tensor is a copy: two pipeline stages have a tied
 * weight. Tensors of different ranks are listed next to each other (tsr_per_rank). Borrows everything. */
tsr_status tsr_ds_rows_add(tsr_ds_rows *rows, tsr_str name, tsr_str key, const tsr_value *value, tsr_error *err);
/* The value under a name and key, or NULL. */
const tsr_value *tsr_ds_rows_get(const tsr_ds_rows *rows, tsr_str name, tsr_str key);
/* Removes the storage ids, because ids of different files are unrelated. */
void tsr_ds_rows_untie(tsr_ds_rows *rows);
/* All rows as a DICT {name: value}, or {name: {key: value}} if there are keys. NULL if out of memory. */
tsr_value *tsr_ds_rows_tree(const tsr_ds_rows *rows, tsr_error *err);

typedef struct tsr_ds_weight {
    tsr_str name;
    const uint64_t *shape;
    uint32_t ndim;
    uint64_t elements;
    uint64_t offset; /* ZeRO 1, 2: in the segment's buffer; ZeRO 3: in each rank's tensor of the segment */
    uint64_t share;  /* ZeRO 3: elements per rank, including padding; otherwise 0 */
} tsr_ds_weight;

/* A group of parameters that was flattened: a param group of the optimizer, or under ZeRO 3 a sub-group of one. A group of
 * experts becomes one segment per expert-parallel rank. */
typedef struct tsr_ds_segment {
    tsr_ds_sharers sharers; /* the ranks whose tensors these are */
    uint32_t first, count;  /* range in the weights */
    uint64_t slice;         /* elements of a rank's float32 tensor; the maximum over the ranks */
    tsr_ds_buffer fp32;     /* the ranks' tensors, concatenated */
} tsr_ds_segment;

typedef struct tsr_ds_weights {
    const tsr_ds_files *files;
    const tsr_ds_column *column;
    tsr_ds_weight *weights; /* sorted by segment */
    uint32_t count;
    tsr_ds_segment *segments; /* sorted by group */
    uint32_t segment_count;
    uint32_t group_count;
} tsr_ds_weights;

/* Reads `param_shapes` of a column that has model states and is not ZeRO 0, and finds the float32 buffers. Contradictions
 * are reported as an incomplete save; *found is false if the weights cannot be located because of them. Fails with
 * TSR_E_FORMAT for an invalid shape, TSR_E_LIMIT or TSR_E_NOMEM. */
tsr_status tsr_ds_weights_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out, bool *found,
                               tsr_error *err);

/* The same for names and shapes only, for a column that has model states: the segments are the dictionaries of
 * `param_shapes`, without buffers. If the file has no such key, the list is empty. Errors as above. */
tsr_status tsr_ds_weights_by_shape(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out,
                                   tsr_error *err);

/* For a buffer with the same layout as the segment's, adds the tensor of each weight of the segment as a row (name, key). */
tsr_status tsr_ds_weights_place(const tsr_ds_weights *weights, uint32_t segment, const tsr_ds_buffer *buffer, tsr_str key,
                                tsr_ds_rows *rows, tsr_error *err);

/* Reads a torch.Size, or a LIST or TUPLE of ints, into the arena. */
tsr_status tsr_ds_shape(tsr_arena *arena, const tsr_value *value, const uint64_t **shape, uint32_t *ndim, uint64_t *elements,
                        tsr_error *err);

/* The part of an optimizer file that has "state" and "param_groups"; NULL if there is none. */
const tsr_value *tsr_ds_base_state(const tsr_ds_files *files, const tsr_ds_file *file);

/* How the tensors of several tensor-parallel ranks form whole ones, as the model states say themselves: DeepSpeed's AutoTP, and
 * trainers that prepare their checkpoints for ds_to_universal, store `universal_checkpoint_info`.
 *
 *   affine_map                               for each parameter the boxes that the ranks hold of it (DeepSpeed ≥ 0.19)
 *   tp_replicated_parameter_patterns         lists of regular expressions for names:
 *   parameter_with_row_parallelism_patterns    parameters that are concatenated along dim 1 instead of dim 0
 *   vocabulary_parameter_patterns              … cut to original_vocab_size
 *   parameter_with_2_sub_params_cat_dim_0      … whose halves are concatenated, each for itself
 *   parameter_with_sub_params                  the same for any number of parts; sub_param_shard_widths has their sizes
 *   parameter_to_average_patterns            parameters of which every rank has its own version
 *
 * Source: deepspeed.checkpoint.ds_to_universal.merge_tp_slices and checkpoint.affine of DeepSpeed 0.19. */

/* What the model states say, or nothing. Close it in any case. */
typedef struct tsr_ds_layouts tsr_ds_layouts;

/* Reads `universal_checkpoint_info` if there are several tensor-parallel ranks; otherwise *out is NULL. If it is not understood,
 * *out is NULL, too, and a note says why. Errors: TSR_E_NOMEM. */
tsr_status tsr_ds_layouts_open(const tsr_ds_files *files, tsr_ds_layouts **out, tsr_error *err);
void tsr_ds_layouts_close(tsr_ds_layouts *layouts); /* accepts NULL */

/* Makes whole tensors of those rows that list what each rank holds. Equal boxes of several ranks become replicas. Rows that the
 * layouts do not describe, whose parts a number has to be multiplied with, or that do not fit the description, stay as they are.
 * `layouts` may be NULL. Errors: TSR_E_NOMEM; those of reading. */
tsr_status tsr_ds_layouts_join(tsr_ds_layouts *layouts, tsr_ds_rows *rows, tsr_error *err);

#endif
