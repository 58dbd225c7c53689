/* A checkpoint made from another one: optimizer state in another form. */
#ifndef TSR_WASM_MADE_H
#define TSR_WASM_MADE_H

#include "handles.h"
#include "shim.h"
#include "tessera/convert.h"
#include "tessera/optim_convert.h"
#include "tessera/output.h"
#include "tessera/sys/containers.h"

struct made {
    tsr_host host;
    tsr_ring *ring;
    tsr_optim_job *job;
    tsr_store *store; /* of the result */
    tsr_arena *arena;
    tsr_vec warnings; /* of tsr_str, in the arena */
    bool is_complete;
};

/* Sets the names and sizes of the result's files, allocated in `arena`. */
tsr_status tessera_made_files(const made *m, tsr_arena *arena, tsr_conversion *out, tsr_error *err);
/* Writes file `index` in the same way as `tessera optim`. */
tsr_status tessera_made_write(made *m, uint32_t index, tsr_output *output, const tsr_progress *progress, tsr_error *err);

/* ---- An output whose files the host writes. ---- */

typedef struct host_sink {
    tsr_output output; /* must be first, because the output's functions cast back */
    uint32_t number;   /* the number to pass to tsr_create and tsr_write */
    uint32_t files;
} host_sink;

/* Makes the output. It need not be closed: the host owns what was written. */
host_sink tessera_host_sink(uint32_t number);

#endif
