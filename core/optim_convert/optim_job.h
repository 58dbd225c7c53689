/* Declarations shared by the files of an optimizer conversion. */
#ifndef TSR_OPTIM_CONVERT_OPTIM_JOB_H
#define TSR_OPTIM_CONVERT_OPTIM_JOB_H

#include "tessera/optim.h"
#include "tessera/optim_convert.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/trees.h"

struct tsr_optim_job {
    tsr_optim_request request;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_store *store;
    tsr_modules_document document;
    tsr_modules *modules; /* NULL if none was given */
    tsr_params *params;
    tsr_flat_params flat;
    tsr_trees trees;
    const tsr_value **ranks; /* unshard: the contents of each rank's file */
    const tsr_value *result; /* for shard: the full state, from which each file gets its part */
    uint32_t rank;           /* the rank whose state is used where ranks differ */
    uint32_t file_count;     /* 0: there is only one file, which is the destination itself */
    tsr_str *file_names;
    tsr_mesh mesh; /* with unshard and sharded: the mesh of the DTensors */
    uint64_t mesh_shape[2];
    tsr_str frozen; /* names of frozen parameters whose state is kept, for a message */
    size_t frozen_count;
    const tsr_str *carried;
    size_t carried_count;
};

/* Warns the caller about something that is converted nevertheless. */
static inline void tsr_optim_warn(const tsr_optim_job *job, tsr_str message)
{
    if (job->request.warn) job->request.warn(job->request.warn_ctx, message);
}

/* optim_source.c: opens the source (for unshard, all ranks' files), and rejects it if it has error findings. */
tsr_status tsr_optim_open_source(tsr_optim_job *job, tsr_error *err);
/* Finds the optimizer in a training state: the root itself, what `at` names, or the only dict in it that looks like one. */
typedef struct tsr_found_optimizer {
    const tsr_value *value;
    tsr_str name; /* "optimizer_states.0"; empty for the root */
} tsr_found_optimizer;
tsr_status tsr_optim_find(const tsr_optim_job *job, const tsr_value *root, tsr_found_optimizer *out, tsr_error *err);
/* Rejects an optimizer of the source whose states tsr_validate_optimizers reports as errors. */
tsr_status tsr_optim_check_states(const tsr_optim_job *job, tsr_str name, tsr_error *err);
/* Rejects the job's result in the same way: the states of ranks are those of parameters only when they are joined. */
tsr_status tsr_optim_check_joined(const tsr_optim_job *job, tsr_error *err);

/* optim_tree.c: a callback for tsr_unflatten and tsr_fsdp_context; `ctx` is the job. */
tsr_status tsr_optim_same_tensor(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
/* tsr_optim_flatten, tsr_optim_to_fqn and tsr_optim_unflatten, with the data of the job's documents. */
tsr_status tsr_optim_flatten_tree(tsr_optim_job *job, const tsr_value *optim, const tsr_value **out, tsr_error *err);
tsr_status tsr_optim_tree_to_fqn(tsr_optim_job *job, const tsr_value *optim, const tsr_value **out, tsr_error *err);
tsr_status tsr_optim_unflatten_tree(tsr_optim_job *job, const tsr_value *flat, const tsr_value **out, tsr_error *err);

/* optim_ranks.c: finds the optimizer of each rank, and joins them unless each rank gets a separate file. */
tsr_status tsr_optim_unshard(tsr_optim_job *job, const tsr_value **out, tsr_error *err);
/* Nests the full state, so that it can be sharded. */
tsr_status tsr_optim_nest(tsr_optim_job *job, const tsr_value *optim, const tsr_value **out, tsr_error *err);
/* The contents of a rank's file; allocated in `arena`. */
tsr_status tsr_optim_rank_tree(tsr_optim_job *job, uint32_t rank, tsr_arena *arena, const tsr_value **out, tsr_error *err);
/* Makes FSDP's mesh: the ranks, or replicas × ranks per replica. */
tsr_status tsr_optim_make_mesh(tsr_optim_job *job, tsr_error *err);

#endif
