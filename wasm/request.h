/* The options of a call, as JavaScript passes them: the names of the command line's long options and their values, each with
 * a NUL at the end that is not counted. A repeatable option occurs once per value; a flag that is set has an empty value. */
#ifndef TSR_WASM_REQUEST_H
#define TSR_WASM_REQUEST_H

#include "handles.h"
#include "tessera/read.h"
#include "tessera/sys/document.h"
#include "tessera/sys/name_choice.h"
#include "tessera/sys/plan_job.h"

typedef struct tessera_option {
    tessera_text name, value;
} tessera_option;

typedef struct request {
    const tessera_option *items;
    uint32_t count;
} request;

/* Returns the last value of an option. Its data is NULL if the option was not given. */
tsr_str tessera_option_text(const request *request, const char *name);
bool tessera_option_given(const request *request, const char *name);
/* Copies the request, with its texts, into `arena`. */
tsr_status tessera_request_copy(const request *from, tsr_arena *arena, request *out, tsr_error *err);
/* Lists all values of an option, in `arena`. */
tsr_status tessera_option_list(const request *request, const char *name, tsr_arena *arena, const tsr_str **out,
                               size_t *count, tsr_error *err);
/* Sets *out to 1 + the position of the value among `words` ("a|b|c"), or to 0 if the option was not given. TSR_E_USAGE for
 * other values. */
tsr_status tessera_option_choice(const request *request, const char *name, const char *words, unsigned *out, tsr_error *err);
/* Reads a size in bytes; 0 if the option was not given. TSR_E_USAGE if the value is not a size. */
tsr_status tessera_option_size(const request *request, const char *name, uint64_t *out, tsr_error *err);
/* Whether the name matches one of the globs given for the option. */
bool tessera_option_matches(const request *request, const char *name, tsr_str fqn);
/* Whether --include and --exclude keep the name; `ctx` is the request. */
bool tessera_selects(const void *ctx, tsr_str fqn);

enum { CALL_LAYERS = 4 }; /* --dequantize, --lora, --map, --quantize */

/* A checkpoint that is opened again for one call, with its options, so that earlier calls have no effect on it. */
typedef struct call {
    request request;
    tsr_str path;
    tsr_open_options chosen; /* as chosen when the checkpoint was first opened */
    tsr_host host;
    tsr_checkpoint *checkpoint;          /* the last layer, or the source itself */
    tsr_checkpoint *source;              /* opened over the files */
    tsr_checkpoint *layers[CALL_LAYERS]; /* opened over the source, each over the previous one */
    unsigned layer_count;
    struct call *adapter; /* --lora: the checkpoint that is folded in, or NULL */
    tsr_arena *arena;
    tsr_ring *ring; /* only for calls that read bytes; otherwise NULL */
} call;

/* call_open.c: opens the checkpoint of `handle` again for a purpose, with the layers of --dequantize, --lora, --map and
 * --quantize over it. tessera_call_close accepts any call, including a zeroed one and one that could not be opened. */
tsr_status tessera_call_open(call *out, uint32_t handle, const tsr_open_options *wanted, tsr_error *err);
void tessera_call_close(call *call);
/* Returns the handle given with --lora, or 0. */
uint32_t tessera_call_adapter(const call *call);
tsr_status tessera_call_ring(call *call, tsr_error *err);

/* call_layers.c: opens these layers over the source. The layer of --lora uses `adapter`. */
bool tessera_call_is_layered(const call *call);
tsr_status tessera_call_add_layers(call *call, tsr_error *err);
/* Sets *out to the dtype to which a writer casts: that of --dtype. With --quantize it is TSR_DTYPE_NONE, because that casts
 * first. */
tsr_status tessera_call_dtype(const call *call, tsr_dtype *out, tsr_error *err);

/* Returns the document of --map, which may name a built-in map. Empty if the option was not given. */
tsr_str tessera_call_map_text(const call *call);

/* call_plan.c: reads the target from --target, or from --mesh and --placements, into the call's arena. The plan borrows it,
 * and must be freed by the caller. */
tsr_status tessera_read_target(call *call, tsr_target_texts *texts, tsr_target *target, tsr_error *err);
tsr_status tessera_make_plan(call *call, const tsr_target_texts *texts, const tsr_target *target, const tsr_storage *storage,
                             tsr_plan **out, tsr_error *err); /* `storage` may be NULL */

/* choice.c: sets *out to the call's --include and --exclude. TSR_E_USAGE if they select nothing. */
tsr_status tessera_name_choice(const call *call, tsr_name_choice *out, tsr_error *err);
/* Appends warnings about these options, the renames in `choice`, --no-quantize and the target's rules that have no effect. */
tsr_status tessera_name_choice_warnings(const call *call, tsr_name_choice *choice, const tsr_target_texts *target,
                                        tsr_vec *warnings, tsr_error *err);

/* call_*.c: write the documents of calls. */
tsr_status tessera_write_inspect(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_layout(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_manifest(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_validate(call *call, tsr_json *json, tsr_error *err);
/* Fails if the option `against` was given and the result of the conversion would not load into what it names. */
tsr_status tessera_check_conversion(call *call, const tsr_conversion *conversion, tsr_error *err);
tsr_status tessera_write_verify(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_plan(call *call, tsr_json *json, tsr_error *err);

#endif
