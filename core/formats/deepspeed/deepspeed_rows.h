/* Collects the contents of all files of a DeepSpeed checkpoint, name by name, before they become a tree.
 *
 * A row is a value under a name, or under a name and a key ("exp_avg" of "norm.weight"). In the tree, the rows of one name
 * keep the order in which their keys were added. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_ROWS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_ROWS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "tessera/sys/map.h"

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
/* Adds a row without a key whose value is stored in `file`, with a new storage id: each file counts its storages from 1, as
 * does the part `module`. */
tsr_status tsr_ds_rows_add_stored(tsr_ds_rows *rows, const tsr_ds_files *files, const tsr_ds_file *file, tsr_str name,
                                  const tsr_value *stored, tsr_error *err);
/* The value under a name and key, or NULL. */
const tsr_value *tsr_ds_rows_get(const tsr_ds_rows *rows, tsr_str name, tsr_str key);
/* Removes the storage ids, because ids of different files are unrelated. */
void tsr_ds_rows_untie(tsr_ds_rows *rows);
/* All rows as a DICT {name: value}, or {name: {key: value}} if there are keys. NULL if out of memory. */
tsr_value *tsr_ds_rows_tree(const tsr_ds_rows *rows, tsr_error *err);

#endif
