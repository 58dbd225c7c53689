/* What the files of an optimizer conversion share. */
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
    tsr_modules *modules; /* NULL: none given */
    tsr_params *params;
    tsr_flat_params flat;
    tsr_trees trees;
    const tsr_value **ranks; /* unshard: what each rank's file has */
    const tsr_value *result; /* of shard: the full state, of which each file gets its part */
    uint32_t rank;           /* whose state is taken where ranks differ */
    uint32_t file_count;     /* 0: one file that is the destination itself */
    tsr_str *file_names;
    tsr_mesh mesh; /* unshard, sharded: that of the DTensors */
    uint64_t mesh_shape[2];
    const tsr_str *carried;
    size_t carried_count;
};

/* Tells the caller of something that is converted all the same. */
static inline void tsr_optim_warn(const tsr_optim_job *job, tsr_str message)
{
    if (job->request.warn) job->request.warn(job->request.warn_ctx, message);
}

/* optim_source.c: opens the source, all ranks' files for unshard, and refuses one whose findings are errors. */
tsr_status tsr_optim_open_source(tsr_optim_job *job, tsr_error *err);
/* The optimizer in a training state: the root itself, the member that `at` names, or the only member that looks like one. */
tsr_status tsr_optim_find(const tsr_optim_job *job, const tsr_value *root, const tsr_value **out, tsr_error *err);

/* optim_tree.c. For tsr_unflatten and tsr_fsdp_context; `ctx` is the job. */
tsr_status tsr_optim_same_tensor(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
/* tsr_optim_flatten, tsr_optim_to_fqn and tsr_optim_unflatten with what the documents of the job say. */
tsr_status tsr_optim_flatten_tree(tsr_optim_job *job, const tsr_value *optim, const tsr_value **out, tsr_error *err);
tsr_status tsr_optim_tree_to_fqn(tsr_optim_job *job, const tsr_value *optim, const tsr_value **out, tsr_error *err);
tsr_status tsr_optim_unflatten_tree(tsr_optim_job *job, const tsr_value *flat, const tsr_value **out, tsr_error *err);

/* optim_ranks.c: finds the optimizer of each rank and, unless each rank gets a file of its own, joins them. */
tsr_status tsr_optim_unshard(tsr_optim_job *job, const tsr_value **out, tsr_error *err);
/* The full state as the nested tree that can be sharded. */
tsr_status tsr_optim_nest(tsr_optim_job *job, const tsr_value *optim, const tsr_value **out, tsr_error *err);
/* What the file of a rank holds; lives in `arena`. */
tsr_status tsr_optim_rank_tree(tsr_optim_job *job, uint32_t rank, tsr_arena *arena, const tsr_value **out, tsr_error *err);
/* FSDP's mesh: the ranks, or replicas × ranks of one. */
tsr_status tsr_optim_make_mesh(tsr_optim_job *job, tsr_error *err);

#endif
