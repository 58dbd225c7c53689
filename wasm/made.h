/* A checkpoint made from another one: optimizer state in another form. */
#ifndef TSR_WASM_MADE_H
#define TSR_WASM_MADE_H

#include "shim.h"
#include "tessera/convert.h"
#include "tessera/optim_convert.h"
#include "tessera/output.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"

struct made {
    tsr_host host;
    tsr_ring *ring;
    tsr_optim_job *job;
    tsr_store *store; /* of the result */
    tsr_arena *arena;
    tsr_vec warnings; /* of tsr_str, in the arena */
    bool is_complete;
};

/* ---- An output whose files the host writes. ---- */

typedef struct host_sink {
    tsr_output output; /* must be first, because the output's functions cast back */
    uint32_t number;   /* the number to pass to tsr_create and tsr_write */
    uint32_t files;
} host_sink;

/* Makes the output. It need not be closed: the host owns what was written. */
host_sink tessera_host_sink(uint32_t number);

/* --rule, --baseline and --format of a diff. The code for them is in the second file, but a diff is in the first one, so it gets
 * these functions. */

typedef struct tessera_judge {
    tsr_policy *policy; /* NULL if all differences count */
    tsr_status (*apply)(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                        tsr_policy_result *result, tsr_error *err);
    void (*release)(tsr_policy *policy);
} tessera_judge;

/* jobs.c: returns the host of a diff, or NULL with an error. */
const tsr_host *tessera_diff_host(uint32_t handle, tsr_error *err);
/* Makes the diff write its documents under the policy, which it frees when it is closed. On failure the caller still owns
 * the policy. */
tsr_status tessera_diff_judge(uint32_t handle, const tessera_judge *judge, tsr_error *err);

/* What is written about a diff: the paths of its sides, and a function for the differences that its policy (NULL if there is none)
 * leaves. */
typedef struct tessera_diff_request {
    tsr_str path_a, path_b;
    tsr_status (*write)(const void *ctx, const tsr_diff_document *document, const tsr_policy *policy, tsr_json *json,
                        tsr_error *err);
    const void *ctx;
} tessera_diff_request;
document *tessera_diff_written(uint32_t handle, const tessera_diff_request *request, tsr_error *err); /* jobs.c */

#endif
