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
/* call_open.c: opens the checkpoint of `handle` again for a purpose, with the layers that the options ask for over it. With `lists`,
 * values are not read (tessera/sys/commands.h). tessera_call_close accepts any call, including a zeroed one and one that could not be
 * opened. */
tsr_status tessera_call_open(call *out, uint32_t handle, const tsr_open_options *wanted, bool lists, tsr_error *err);
void tessera_call_close(call *call);
/* Returns the handle given with --lora, or 0. */
uint32_t tessera_call_adapter(const call *call);
tsr_status tessera_call_ring(call *call, tsr_error *err);

/* call_plan.c: reads the target from --target, or from --mesh and --placements, into the call's arena. The plan borrows it,
 * and must be freed by the caller. */
tsr_status tessera_read_target(call *call, tsr_target_texts *texts, tsr_target *target, tsr_error *err);
tsr_status tessera_make_plan(call *call, const tsr_target_texts *texts, const tsr_target *target, const tsr_storage *storage,
                             tsr_plan **out, tsr_error *err); /* `storage` may be NULL */

/* Collects what the options choose by name; `target` may be NULL. TSR_E_USAGE if --include and --exclude select nothing. */
tsr_status tessera_name_choice(const call *call, const tsr_target_texts *target, tsr_name_choice *out, tsr_error *err);

/* call_*.c: write the documents of calls. */
tsr_status tessera_write_inspect(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_layout(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_manifest(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_validate(call *call, tsr_json *json, tsr_error *err);
/* Fails if the option `against` was given and the result of the conversion would not load into what it names. */
tsr_status tessera_check_conversion(call *call, const tsr_conversion *conversion, tsr_error *err);
tsr_status tessera_write_verify(call *call, tsr_json *json, tsr_error *err);
tsr_status tessera_write_plan(call *call, tsr_json *json, tsr_error *err);

/* The names of a checkpoint as a tree that can be opened, closed, folded and filtered, for lists of any length.
 *
 *   names: a.w, a.b, l.0.w, l.1.w, l.2.w        nodes in depth-first order; [i + 1, end) are below i
 *                                                 0 (all) 1 a 2 a.w 3 a.b 4 l 5 l.0 6 l.0.w 7 l.1 8 l.1.w 9 l.2 10 l.2.w
 *
 * Three or more adjacent siblings with numbers as names and the same content (names, dtypes, shapes) are a run. Its first
 * member represents all of them until the run is unfolded. */

/* The filter line of the viewer. Terms are separated by spaces, and an entry must satisfy all of them:
 *
 *   text            part of the name, ignoring case; with * ? or [ a glob for the whole name
 *   dtype:bfloat16  or a glob               shape:4096x*   a glob for the sizes       file:__0_0
 *   kind:object     tensor, object, opaque  >1GB  <=64MiB  bytes of the tensor        -term  not */

enum { FILTER_TERMS = 16 };

typedef struct filter_term {
    enum { TERM_NAME, TERM_DTYPE, TERM_SHAPE, TERM_FILE, TERM_KIND, TERM_MORE, TERM_LESS } what;
    bool negated, is_glob, or_equal;
    tsr_str text;
    double bytes;
} filter_term;

typedef struct filter {
    filter_term terms[FILTER_TERMS];
    uint32_t count;
} filter;

/* Whether inspect lists the entry as a tensor: it is one, or at least one rank has a tensor with this name. */
bool tessera_is_tensor(const tsr_entry *entry);

#define NO_ENTRY UINT32_MAX

typedef struct node {
    tsr_str name; /* the last component */
    uint32_t parent, end, entry, depth;
    uint32_t entries;      /* in this node and below it */
    uint32_t run, run_end; /* the node number of the run's first member, and the end of the run; 0: not in a run */
    uint32_t run_count;    /* only for the first member */
    uint8_t open, open_filtered, unfolded, level, odd; /* level: 1 + that of the worst finding */
    bool matches;                                      /* the node, or something below it, matches the filter */
    uint64_t elements, bytes, dtypes;                  /* including what is below; dtypes has one bit per tsr_dtype */
    uint64_t form;                                     /* a hash of what is below */
} node;

typedef struct outline {
    const tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    node *nodes;
    uint32_t count;
    uint32_t *node_of; /* by entry; 0: the entry was left out */
    uint32_t *shown;   /* visible nodes, from the top */
    uint32_t shown_count;
    bool filtered;
    bool objects_only; /* tensors are left out */
} outline;

#endif
