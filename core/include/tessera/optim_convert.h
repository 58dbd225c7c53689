/* The six conversions of `tessera optim`, from a checkpoint to one or more torch.save files:
 *
 *   flatten     nested → flat                        unshard   FSDP1's raw states, one file per rank → the full state
 *   unflatten   flat → nested                        shard     the full state → one raw state per rank
 *   to-fqn      parameter ids → names
 *   to-id       names → parameter ids
 *
 *   tsr_optim_open(store, …) ──▶ job ──┬── tsr_optim_write   each file into an output
 *                                      └── tsr_optim_store   all files as a store that can be opened like any other
 *
 * Opening a job reads metadata and works on value trees (optim.h, sys/flat_params.h). Tensor bytes stay in the source until the
 * files are written or read, except where two tensors have to be compared. (core/optim_convert)
 *
 * Example:
 *
 *     const tsr_optim_request request = {.action = TSR_OPTIM_FLATTEN, .ring = ring};
 *     tsr_optim_job *job;
 *     tsr_store *result;
 *     status = tsr_optim_open(store, host, &request, &job, &err);
 *     if (status == TSR_OK) status = tsr_optim_store(job, &result, &err);
 *     if (status == TSR_OK) status = tsr_checkpoint_open(result, host, NULL, &checkpoint, &err); */
#ifndef TESSERA_OPTIM_CONVERT_H
#define TESSERA_OPTIM_CONVERT_H

#include "tessera/read.h"
#include "tessera/sys/write_tree.h"

TSR_API_BEGIN

typedef enum tsr_optim_action {
    TSR_OPTIM_FLATTEN,
    TSR_OPTIM_UNFLATTEN,
    TSR_OPTIM_TO_FQN,
    TSR_OPTIM_TO_ID,
    TSR_OPTIM_UNSHARD,
    TSR_OPTIM_SHARD,
    TSR_OPTIM_ACTION_COUNT
} tsr_optim_action;

/* A document that the job needs: its text, and the name of its file for messages (may be NULL). Without text (data NULL)
 * it was not given. */
typedef struct tsr_optim_document {
    tsr_str text;
    const char *name;
} tsr_optim_document;

/* The conversion to perform. A zeroed request with an action and a ring is valid. Messages name options as the command line
 * does. */
typedef struct tsr_optim_request {
    tsr_optim_action action;
    tsr_optim_document modules;     /* tessera.modules/1: names, frozen parameters, groups */
    tsr_optim_document flat_params; /* tessera.flat-params/1; needed by unshard and shard */
    tsr_str part;                   /* of a checkpoint that consists of parts: the one to read; data NULL: all. Not for unshard */
    tsr_str at;                     /* the member that is the optimizer; data NULL: the only one that looks like one */
    bool sharded;                   /* unshard: one file of DTensors, cut by rows, for each rank */
    bool has_world_size, has_rank;
    uint64_t world_size; /* shard: the number of ranks to write for; otherwise the document's */
    uint64_t rank;       /* unshard: whose state to take where ranks differ in what FSDP does not shard */
    const char *source;  /* the checkpoint's name for messages; may be NULL */
    tsr_ring *ring;      /* borrowed: buffers for comparing tensors and for writing */
    void (*warn)(void *ctx, tsr_str message); /* may be NULL; also called by tsr_optim_write and tsr_optim_store */
    void *warn_ctx;
} tsr_optim_request;

typedef struct tsr_optim_job tsr_optim_job;

/* Reads the documents and the source, and converts what need not be converted rank by rank. Borrows `store`, `host` and the
 * request's ring, names and callback until close; the documents' texts only during the call. Errors: those of
 * tsr_optim_request_check; TSR_E_USAGE for ranks that differ in state that one file cannot hold for all of them;
 * those of the documents, of opening a checkpoint, and of optim.h and sys/flat_params.h. */
tsr_status tsr_optim_open(tsr_store *store, const tsr_host *host, const tsr_optim_request *request, tsr_optim_job **out,
                          tsr_error *err);
void tsr_optim_close(tsr_optim_job *job); /* accepts NULL */

/* The files of the result. Several files are one per rank, in the order of ranks, with their names in the directory; a
 * result that is one file has the name "". Names live as long as the job. */
uint32_t tsr_optim_file_count(const tsr_optim_job *job);
tsr_str tsr_optim_file_name(const tsr_optim_job *job, uint32_t index);

/* Writes file `index` as tsr_write_tree does: `file` says into which output and how; its name is the caller's to set. Memory
 * is that of one rank's trees. */
tsr_status tsr_optim_write(tsr_optim_job *job, uint32_t index, tsr_tree_file *file, tsr_error *err);

/* All files as a store (see tsr_tree_store_new): tsr_checkpoint_open lists and reads the result without its being written
 * first. A single file is called "optim.pt" there and is the store's primary file. Close the store before the job. */
tsr_status tsr_optim_store(tsr_optim_job *job, tsr_store **out, tsr_error *err);

TSR_API_END

#endif
