/* Canonical names as a document, in both modules. */
#ifndef TSR_WASM_NAMES_H
#define TSR_WASM_NAMES_H

#include "handles.h"
#include "tessera/fqn.h"

typedef struct names_request {
    tsr_host host;
    tsr_arena *arena;
    tsr_name *names;
    size_t count;
    bool by_text;
} names_request;

/* tessera.fqn/1 of the names, or NULL where `status`, of finding them, is an error. Frees the arena. */
document *tessera_finish_names(names_request *request, tsr_status status, tsr_error *err);

#endif
