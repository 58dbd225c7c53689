/* An output whose files the host writes. */
#ifndef TSR_WASM_SINK_H
#define TSR_WASM_SINK_H

#include "shim.h"
#include "tessera/output.h"

typedef struct host_sink {
    tsr_output output; /* first: the output's functions cast back */
    uint32_t number;   /* that tsr_create and tsr_write are given back */
    uint32_t files;
} host_sink;

/* Needs no closing: what was written, and what becomes of it, is the host's. */
host_sink tessera_host_sink(uint32_t number);

#endif
