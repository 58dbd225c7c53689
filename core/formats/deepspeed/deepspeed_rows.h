/* What the files of a DeepSpeed checkpoint hold together, collected name by name before it becomes a tree.
 *
 * A row is a value under one name, or under a name and a key ("exp_avg" of "norm.weight"). Rows of one name follow each other in
 * the tree in the order in which its keys were added. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_ROWS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_ROWS_H

#include "formats/common/reader.h"
#include "tessera/sys/map.h"

typedef struct tsr_ds_row {
    tsr_str name, key; /* the key may be empty */
    const tsr_value *value;
    uint32_t next;  /* row of the same name, UINT32_MAX: none */
    uint32_t last;  /* of the first row of a name: the last row of it */
    uint32_t rank;  /* that added it first */
    bool first;     /* of its name */
} tsr_ds_row;

typedef struct tsr_ds_rows {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    tsr_vec rows;   /* tsr_ds_row */
    tsr_map *names; /* name → first row */
    uint32_t ranks, rank; /* tensor-parallel ranks there are, and whose rows are being added */
} tsr_ds_rows;

tsr_status tsr_ds_rows_open(tsr_ds_rows *rows, tsr_checkpoint *checkpoint, uint32_t ranks, tsr_error *err);
void tsr_ds_rows_close(tsr_ds_rows *rows); /* takes a zeroed one */

/* Adds a row. If it is there already, the new tensor is a copy where the same rank has the first: two pipeline stages tie what both
 * have. The tensors of different ranks are listed side by side (tsr_per_rank). Borrows everything. */
tsr_status tsr_ds_rows_add(tsr_ds_rows *rows, tsr_str name, tsr_str key, const tsr_value *value, tsr_error *err);
/* The value under a name and key, or NULL. */
const tsr_value *tsr_ds_rows_get(const tsr_ds_rows *rows, tsr_str name, tsr_str key);
/* Forgets what shares a storage with what: ids of several files are not of one count. */
void tsr_ds_rows_untie(tsr_ds_rows *rows);
/* All rows as a DICT {name: value}, or {name: {key: value}} where there are keys. NULL: out of memory. */
tsr_value *tsr_ds_rows_tree(const tsr_ds_rows *rows, tsr_error *err);

#endif
