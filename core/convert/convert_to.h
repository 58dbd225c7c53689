/* The writers that tsr_convert uses, one per container. Each chooses the rows, lays out the files, and returns how to write
 * them. */
#ifndef TSR_CONVERT_CONVERT_TO_H
#define TSR_CONVERT_CONVERT_TO_H

#include "tessera/convert.h"
#include "tessera/plan.h"
#include "write/dcp_write.h"
#include "write/write_item.h"

/* Chooses which entries of a checkpoint are written, with which name and dtype: the first step of every conversion. */

typedef struct tsr_chosen {
    tsr_checkpoint *checkpoint;
    const tsr_convert_options *options;
    tsr_arena *arena;
    tsr_converted *rows; /* one per entry of the catalog */
    uint64_t count;
    size_t tensor_count; /* number of rows that are tensors and will be written */
} tsr_chosen;

/* Whether an entry is data that can be pickled: an object, or an instance of a class that is not a kind of tensor. */
bool tsr_is_object(const tsr_entry *entry);

/* Why an opaque entry cannot be written, in the form of tsr_choose's `refusal`. */
const char *tsr_opaque_refusal(const tsr_entry *entry);

/* The `left_out` of objects that are written to the sidecar. */
extern const char tsr_put_aside[];

/* Fills the rows; `written` is set for those to be written. If `refusal` returns a text (which completes "'name' …"), the
 * container cannot contain the entry, and it is rejected by name. With TSR_OBJECTS_REFUSE, so are objects, and so are names
 * that collide. */
tsr_status tsr_choose(tsr_checkpoint *checkpoint, const tsr_convert_options *options,
                      const char *(*refusal)(const tsr_converted *row), tsr_arena *arena, tsr_chosen *out, tsr_error *err);

/* nest_rows.c: nests the written rows into one value, in `arena`. `values` has one value per row, or NULL if another row's
 * value stands for it. */
tsr_status tsr_nest_rows(const tsr_chosen *chosen, const tsr_value *const *values, tsr_arena *arena, const tsr_value **root,
                         tsr_error *err);

typedef struct tsr_conversion_job {
    tsr_checkpoint *checkpoint;
    const tsr_convert_options *options;
    uint32_t generation; /* that of the output's data files (tsr_output.generation) */
    tsr_arena *arena;
    tsr_conversion *out; /* filled except for the marker */
} tsr_conversion_job;

/* The name of the file of a container that consists of one. */
static inline tsr_str tsr_single_file(const tsr_conversion_job *job)
{
    return job->options->file_name.size ? job->options->file_name : TSR_STR("");
}

/* The writers of a container: for a whole checkpoint, and for one that is resharded by a plan (NULL: there is none). `job` must outlive the
 * writer. */
typedef struct tsr_container_writers {
    tsr_status (*convert)(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err);
    tsr_status (*reshard)(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
} tsr_container_writers;

extern const tsr_container_writers tsr_safetensors_writers, tsr_torch_writers, tsr_dcp_writers /* also Megatron's */,
    tsr_universal_writers, tsr_ranks_writers;

/* Why a container cannot contain a row, or NULL (for tsr_choose). */
const char *tsr_safetensors_refusal(const tsr_converted *row);
const char *tsr_torch_refusal(const tsr_converted *row); /* one file; also for ranks */

/* The row of an entry if it is written; otherwise NULL. */
tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry);
/* Marks tensors that the plan does not have as not written. */
tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err);

/* Puts the indices of `items` in the order of their files, those of one file as they are. `file_at` is the position of the uint32_t in
 * an item that is the number of its file, below `files`. *order lives in `arena`. TSR_E_NOMEM. */
tsr_status tsr_order_by_file(const tsr_vec *items, size_t file_at, uint64_t files, tsr_arena *arena, const size_t **order,
                             tsr_error *err);

#endif
