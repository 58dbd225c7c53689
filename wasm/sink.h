/* An output whose files the host writes. */
#ifndef TSR_WASM_SINK_H
#define TSR_WASM_SINK_H

#include "shim.h"
#include "tessera/output.h"

typedef struct host_sink {
    tsr_output output; /* must be first, because the output's functions cast back */
    uint32_t number;   /* the number to pass to tsr_create and tsr_write */
    uint32_t files;
} host_sink;

/* Makes the output. It need not be closed: the host owns what was written. */
host_sink tessera_host_sink(uint32_t number);

#endif
