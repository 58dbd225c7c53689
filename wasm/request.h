/* The options of a call, as JavaScript lays them down: names of the command line's long options with their values, which end
 * with a NUL that does not count. A repeatable option is there once per value; a flag that is set has an empty value. */
#ifndef TSR_WASM_REQUEST_H
#define TSR_WASM_REQUEST_H

#include "handles.h"
#include "tessera/read.h"
#include "tessera/sys/document.h"
#include "tessera/sys/plan_job.h"

typedef struct tessera_option {
    tessera_text name, value;
} tessera_option;

typedef struct request {
    const tessera_option *items;
    uint32_t count;
} request;

/* The value that was given last; data NULL where the option was not given. */
tsr_str tessera_option_text(const request *request, const char *name);
bool tessera_option_given(const request *request, const char *name);
/* The request with texts that live in `arena`. */
tsr_status tessera_request_copy(const request *from, tsr_arena *arena, request *out, tsr_error *err);
/* All values of an option, in `arena`. */
tsr_status tessera_option_list(const request *request, const char *name, tsr_arena *arena, const tsr_str **out, size_t *count,
                               tsr_error *err);
/* 1 + the position of the value among `words` ("a|b|c"), or 0 where the option was not given. TSR_E_USAGE for another word. */
tsr_status tessera_option_choice(const request *request, const char *name, const char *words, unsigned *out, tsr_error *err);
/* A size in bytes, or 0. TSR_E_USAGE for a text that is not a size. */
tsr_status tessera_option_size(const request *request, const char *name, uint64_t *out, tsr_error *err);
/* Whether a name matches one of the globs that an option was given. */
bool tessera_option_matches(const request *request, const char *name, tsr_str fqn);
/* Whether --include and --exclude keep a name; `ctx` is the request. */
bool tessera_selects(const void *ctx, tsr_str fqn);

enum { CALL_LAYERS = 4 }; /* --dequantize, --lora, --map, --quantize */

/* A checkpoint that is opened again for one call, with what the call asks for, so that nothing of an earlier call counts. */
typedef struct call {
    request request;
    tsr_str path;
    tsr_open_options chosen; /* when the checkpoint was opened */
    tsr_host host;
    tsr_checkpoint *checkpoint;          /* the last layer, or the source itself */
    tsr_checkpoint *source;              /* of the files */
    tsr_checkpoint *layers[CALL_LAYERS]; /* opened over the source, each over the one before */
    unsigned layer_count;
    struct call *adapter; /* --lora: the checkpoint that is folded in; NULL: none */
    tsr_arena *arena;
    tsr_ring *ring; /* where bytes are read; NULL otherwise */
} call;

/* call_open.c: opens `handle` for a purpose, and over it what --dequantize, --lora, --map and --quantize make of it. tessera_call_close
 * takes any call: a zeroed one, and one that could not be opened. */
tsr_status tessera_call_open(call *out, uint32_t handle, const tsr_open_options *wanted, tsr_error *err);
void tessera_call_close(call *call);
/* The handle of --lora, or 0. */
uint32_t tessera_call_adapter(const call *call);
tsr_status tessera_call_ring(call *call, tsr_error *err);

/* call_layers.c: opens these layers over the source; that of --lora is made with `adapter`. */
bool tessera_call_is_layered(const call *call);
tsr_status tessera_call_add_layers(call *call, tsr_error *err);
/* The dtype to which a writer casts: that of --dtype, but with --quantize TSR_DTYPE_NONE, because the cast comes before it. */
tsr_status tessera_call_dtype(const call *call, tsr_dtype *out, tsr_error *err);

/* The document of --map, which may name a built-in map; empty: there is none. */
tsr_str tessera_call_map_text(const call *call);

/* call_plan.c: the target of --target or of --mesh and --placements. Both live in the call's arena; the plan, which borrows
 * them, is the caller's to free. */
tsr_status tessera_read_target(call *call, tsr_target_texts *texts, tsr_target *target, tsr_error *err);
tsr_status tessera_make_plan(call *call, const tsr_target_texts *texts, const tsr_target *target, const tsr_storage *storage,
                             tsr_plan **out, tsr_error *err); /* `storage` may be NULL */

/* call_*.c: what each kind of call writes. */
tsr_status tessera_write_inspect(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_layout(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_manifest(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_validate(call *call, tsr_json *json, tsr_error *err);
/* Refuses a conversion whose result would not load into what `against` is, if it was given. */
tsr_status tessera_check_conversion(call *call, const tsr_conversion *conversion, tsr_error *err);
tsr_status tessera_write_verify(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_plan(call *call, tsr_json *json, tsr_error *err);

#endif
