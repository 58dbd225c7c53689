/* The six conversions of `tessera optim`, from a checkpoint to one or more torch.save files:
 *
 *   flatten     nested → flat                        unshard   FSDP1's raw states, one file per rank → the full state
 *   unflatten   flat → nested                        shard     the full state → one raw state per rank
 *   to-fqn      parameter ids → names
 *   to-id       names → parameter ids
 *
 *   tsr_optim_open(store, …) ──▶ job ──┬── tsr_optim_write   each file into an output
 *                                      └── tsr_optim_store   all files as a store
 *
 * Opening a job reads metadata and converts value trees (optim.h, sys/flat_params.h). Tensor bytes are not read until files
 * are written or read, except where two tensors have to be compared. (core/optim_convert)
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

/* A document for the job: its text (data NULL: no document is given), and its file name for messages (may be NULL). */
typedef struct tsr_optim_document {
    tsr_str text;
    const char *name;
} tsr_optim_document;

/* The conversion to perform. Only `action` and `ring` are always required; the rest may be zero. Messages use the option
 * names of the command line. */
typedef struct tsr_optim_request {
    tsr_optim_action action;
    tsr_optim_document modules;     /* tessera.modules/1: names, frozen parameters, groups */
    tsr_optim_document flat_params; /* tessera.flat-params/1; needed by unshard and shard */
    tsr_str part;                   /* the part to read of a checkpoint that has parts; data NULL: all. Not for unshard */
    tsr_str at;                     /* the optimizer's name, "optimizer_states.0"; data NULL: the only one found */
    bool sharded;                   /* unshard: write one file per rank, with DTensors split by rows */
    bool has_world_size, has_rank;
    uint64_t world_size; /* shard: the number of ranks to write for; if not set, the document's */
    uint64_t rank;       /* unshard: the rank to use where ranks differ in state that FSDP does not shard */
    tsr_ring *ring;      /* borrowed: buffers for comparing tensors and for writing */
    /* May be NULL; also called by tsr_optim_write and tsr_optim_store. A message is valid until it returns. */
    void (*warn)(void *ctx, tsr_str message);
    void *warn_ctx;
} tsr_optim_request;

typedef struct tsr_optim_job tsr_optim_job;

/* Reads the documents and the source, and does the conversions that are not done per rank; those are done when a file is
 * written or read. Borrows `store`, `host` and the request's ring, names and callback until close, but the documents' texts
 * only during the call. Errors: those of tsr_optim_request_check; TSR_E_USAGE if ranks differ in state of which one file
 * can hold only one value; those of the documents, of opening a checkpoint, and of optim.h and sys/flat_params.h. */
tsr_status tsr_optim_open(tsr_store *store, const tsr_host *host, const tsr_optim_request *request, tsr_optim_job **out,
                          tsr_error *err);
void tsr_optim_close(tsr_optim_job *job); /* accepts NULL */

/* The number of files in the result, and their names. If there are several, there is one per rank, in rank order, and each
 * has its name in the directory. A single file's name is "". Names live as long as the job. */
uint32_t tsr_optim_file_count(const tsr_optim_job *job);
tsr_str tsr_optim_file_name(const tsr_optim_job *job, uint32_t index);

/* Writes file `index` as tsr_write_tree does. `file` gives the output and how to write to it; the caller sets its name.
 * Memory: the trees of one rank. */
tsr_status tsr_optim_write(tsr_optim_job *job, uint32_t index, tsr_tree_file *file, tsr_error *err);

/* Makes a store of all files (see tsr_tree_store_new), so that tsr_checkpoint_open can list and read the result before it is
 * written. A single file is named "optim.pt" there and is the store's primary file. Close the store before the job. */
tsr_status tsr_optim_store(tsr_optim_job *job, tsr_store **out, tsr_error *err);

TSR_API_END

#endif
