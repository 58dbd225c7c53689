/* A directory that the ranks of a communicator write together: rank 0 decides what is replaced, creates the files under
 * temporary names and publishes them, and the others open the same files.
 *
 *     rank 0    decide ──▶ plan ──▶ journal ──▶ create ──▶ …                    ──▶ publish
 *     others               plan                        ──▶ create ──▶ write, sync
 *
 * Nothing of an output that is not published stays. Collective, except for publish.
 *
 * Example:
 *
 *     tsr_joint_job job = {.comm = comm, .host = host, .path = "step-1000", .line = text};
 *     tsr_joint_output *joint = NULL;
 *     status = tsr_joint_output_open(&job, &joint, &err);
 *     if (status == TSR_OK) printf("generation %u\n", (unsigned)job.generation);
 *     tsr_joint_output_close(joint, status); */
#ifndef TESSERA_SYS_JOINT_OUTPUT_H
#define TESSERA_SYS_JOINT_OUTPUT_H

#include "tessera/comm.h"
#include "tessera/host.h"
#include "tessera/output.h"

TSR_API_BEGIN

/* The job, as all ranks describe it. Borrowed until the output is closed. */
typedef struct tsr_joint_job {
    tsr_comm *comm;
    const tsr_host *host;
    const char *path;
    tsr_str line; /* what the journal calls the job: one line, including its newline */
    bool overwrite;
    const char *marker; /* the file that makes the output complete; NULL: the format has none */

    /* Plans the output of a generation (tsr_output.generation), before anything is created. On rank 0 it may choose a later
     * generation than job->generation, which the other ranks then find there. May be NULL. */
    tsr_status (*plan)(void *ctx, struct tsr_joint_job *job, tsr_error *err);
    /* Creates the files, on all ranks in the same order. May be NULL. */
    tsr_status (*create)(void *ctx, tsr_output *output, tsr_error *err);
    void *ctx;

    /* Set by tsr_joint_output_open before it calls `plan`: */
    uint32_t generation;
    /* Set by `plan`: the names that will be created, which show in the journal that they belong to this job. */
    const tsr_str *names;
    size_t name_count;
} tsr_joint_job;

typedef struct tsr_joint_output tsr_joint_output;

/* Removes what killed runs of the same kind of job left, and opens the output on all ranks. Errors, the same on all ranks: those
 * of tsr_folder_output_open and of the callbacks; TSR_E_UNSUPPORTED if what is there cannot be replaced. *out must be closed after
 * an error, too. */
tsr_status tsr_joint_output_open(tsr_joint_job *job, tsr_joint_output **out, tsr_error *err);
tsr_output *tsr_joint_output_files(tsr_joint_output *joint);
/* Whether the files of an older checkpoint are replaced. Known on rank 0; false on the others unless a directory is replaced as a
 * whole. */
bool tsr_joint_output_replaces(const tsr_joint_output *joint);
/* Publishes the output. Called by rank 0 when all ranks have synced what they wrote. */
tsr_status tsr_joint_output_publish(tsr_joint_output *joint, uint32_t marker, tsr_error *err);
/* `status` is the outcome, the same on all ranks: after a failure rank 0 removes what was not published, once the others have closed
 * it. Accepts NULL. */
void tsr_joint_output_close(tsr_joint_output *joint, tsr_status status);

TSR_API_END

#endif
