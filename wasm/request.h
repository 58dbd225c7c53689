/* The options of a call, as JavaScript passes them: the names of the command line's long options and their values, each with
 * a NUL at the end that is not counted. A repeatable option occurs once per value; a flag that is set has an empty value. */
#ifndef TSR_WASM_REQUEST_H
#define TSR_WASM_REQUEST_H

#include "shim.h"
#include "tessera/catalog.h"
#include "tessera/checkpoint.h"
#include "tessera/read.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"

typedef struct tessera_option {
    tessera_text name, value;
} tessera_option;

typedef struct request {
    tsr_command_options options;                               /* --lora is the number of a handle */
    const char *path;                                          /* of the checkpoint, in documents; NULL: "" */
    const char *manifest, *against_names, *against_checkpoint; /* a document, an index, the number of a handle; or NULL */
    const char *names;                                         /* not NULL: for a list of names only */
} request;

/* Sets what the options of a command say. Texts are copied into `arena`. */
tsr_status tessera_request_read(const char *command, const tessera_option *items, uint32_t count, tsr_arena *arena,
                                request *out, tsr_error *err);

/* A checkpoint that is opened again for one call, with its options, so that earlier calls have no effect on it. */
typedef struct call {
    request request;
    tsr_str path;
    tsr_open_options chosen; /* as chosen when the checkpoint was first opened */
    tsr_host host;
    tsr_checkpoint *checkpoint; /* the topmost layer, or the source itself */
    tsr_checkpoint *source;     /* opened over the files */
    tsr_layers layers;          /* opened over the source */
    tsr_str map;                /* the document of --map; data NULL: none */
    struct call *adapter;       /* --lora: the checkpoint that is folded in, or NULL */
    tsr_arena *arena;
    tsr_ring *ring; /* only for calls that read bytes; otherwise NULL */
} call;

/* Reads the options of a call of `command`. The call has to be closed, also after a failure. */
tsr_status tessera_call_start(call *out, const char *command, const tessera_option *items, uint32_t count, tsr_error *err);
/* Opens the checkpoint of `handle` again for a purpose, with the layers that the options ask for over it. With `lists`,
 * values are not read (tessera/sys/commands.h). tessera_call_close accepts any call, including a zeroed one and one that could not be
 * opened. */
tsr_status tessera_call_open(call *out, uint32_t handle, const tsr_open_options *wanted, bool lists, tsr_error *err);
void tessera_call_close(call *call);
/* Returns the handle given with --lora, or 0. */
uint32_t tessera_call_adapter(const call *call);
tsr_status tessera_call_ring(call *call, tsr_error *err);

/* calls.c: reads the target from --target, or from --mesh and --placements, into the call's arena. The plan borrows it,
 * and must be freed by the caller. */
tsr_status tessera_read_target(call *call, tsr_target_texts *texts, tsr_target *target, tsr_error *err);
tsr_status tessera_make_plan(call *call, const tsr_target_texts *texts, const tsr_target *target, const tsr_storage *storage,
                             tsr_plan **out, tsr_error *err); /* `storage` may be NULL */

/* Collects what the options choose by name; `target` may be NULL. TSR_E_USAGE if --include and --exclude select nothing. */
tsr_status tessera_name_choice(const call *call, const tsr_target_texts *target, tsr_name_choice *out, tsr_error *err);

/* Fails if the option `against` was given and the result of the conversion would not load into what it names. */
tsr_status tessera_check_conversion(call *call, const tsr_conversion *conversion, tsr_error *err);
/* Sets the rules and the baseline that the options name. */
tsr_status tessera_read_policy(const tsr_command_options *options, tsr_policy *policy, tsr_error *err);

/* Whether inspect lists the entry as a tensor: it is one, or at least one rank has a tensor with this name. */
bool tessera_is_tensor(const tsr_entry *entry);

#endif
