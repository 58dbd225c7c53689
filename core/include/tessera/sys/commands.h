/* The table of commands and options, requests, and the layers that options put over a checkpoint. */
#ifndef TESSERA_SYS_COMMANDS_H
#define TESSERA_SYS_COMMANDS_H

#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/convert.h"
#include "tessera/memory.h"
#include "tessera/plan.h"
#include "tessera/str.h"
#include "tessera/sys/document.h"
#include "tessera/sys/json.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/names.h"
#include "tessera/sys/plan.h"

TSR_API_BEGIN

/* The commands of Tessera and their options: one table for all front ends. The command line parses by it and makes help, manual
 * pages and completions from it; the options of the npm package and of Python, with their types, come from it too.
 *
 * Example:
 *
 *     tsr_command_options options = {.deep = false};
 *     const tsr_command *command = tsr_command_find(TSR_STR("validate"));
 *     const tsr_option *option = tsr_option_find(command->options, TSR_STR("deep"));
 *     if (option) status = tsr_option_set(option, NULL, arena, &options, &err); */

/* ---- the values of options ---- */

typedef struct tsr_texts {
    const char **items;
    size_t count;
} tsr_texts;

typedef struct tsr_given_real {
    bool given;
    double value;
} tsr_given_real;

typedef struct tsr_given_number {
    bool given;
    uint64_t value;
} tsr_given_number;

/* --include and --exclude. */
typedef struct tsr_name_globs {
    tsr_texts include, exclude;
} tsr_name_globs;

/* Which part of PATH is opened, and how. */
typedef struct tsr_source_options {
    const char *part, *step;
    tsr_texts also;
    const char *shards;
    bool salvage;
} tsr_source_options;

/* The values of the options of any command. All zeros: nothing is given. A choice is 1 + the position among its words. */
typedef struct tsr_command_options {
    tsr_source_options source;
    tsr_name_globs selection;
    bool canonical;
    const char *kept_prefix; /* --prefix, where names that do not begin with it are left out */
    const char *map, *lora;
    bool inverse, dequantize, config;
    unsigned quantize;
    tsr_texts no_quantize;
    const char *target, *mesh, *placements, *storage;

    unsigned to, objects;
    const char *dtype, *for_torch;
    bool raw_cast, ignore_crc, no_checksums, allow_expansion;
    uint64_t world_size, max_shard_size, max_memory;
    tsr_texts renames;
    bool overwrite, resume, discard_parts, no_verify, dry_run;
    const char *share, *source_path; /* of exec */
    bool finish;

    unsigned method; /* of merge, like the next four */
    tsr_texts weights;
    const char *base;
    tsr_given_real t;
    bool no_normalize;

    const char *against, *layout, *prefix, *allow;
    bool deep, changed_files, list_rules;
    uint64_t keep, keep_every; /* of prune, like the next one */
    bool whole_directory;
    unsigned format, fail_on;
    tsr_texts rules;
    const char *baseline;
    bool values, compares_layout, compares_canonical;
    tsr_given_real atol, rtol;

    unsigned hash;
    bool stats, tree, items, no_chunks, print, json;
    const char *output, *checkpoint, *like;
    const char *modules, *flat_params, *at; /* of optim, like the next two; modules: of --canonical, too */
    bool sharded;
    tsr_given_number rank, ranks; /* ranks: --world-size */

    uint64_t port; /* of view, like the next one */
    const char *pages;
    bool man;

    bool quiet, no_progress, no_mpi, help, version; /* of every command, like the rest */
    unsigned color;
    uint64_t threads, io_depth;
} tsr_command_options;

/* ---- the table ---- */

typedef enum tsr_option_type {
    TSR_OPTION_FLAG,       /* field: bool */
    TSR_OPTION_TEXT,       /* field: const char *; the last one counts */
    TSR_OPTION_TEXTS,      /* field: tsr_texts; every one counts */
    TSR_OPTION_CHOICE,     /* field: unsigned; one of the words of `value` */
    TSR_OPTION_REAL,       /* field: tsr_given_real; 0 or more */
    TSR_OPTION_NUMBER,     /* field: tsr_given_number; a whole number of 0 or more */
    TSR_OPTION_COUNT,      /* field: uint64_t; a whole number of 1 or more */
    TSR_OPTION_SIZE,       /* field: uint64_t; "64MB" is decimal, "64MiB" binary, a bare number bytes */
    TSR_OPTION_DOCUMENT,   /* field: const char *: the path of a JSON document, or a name that stands for one */
    TSR_OPTION_CHECKPOINT, /* field: const char *: a path */
    TSR_OPTION_MODEL /* field: const char *: the path of a checkpoint, a document or a list of names that names come from */
} tsr_option_type;

/* What an option is about. Plans have the first two, journals the first. */
typedef enum tsr_option_role {
    TSR_OPTION_OF_OUTPUT, /* what is written, or printed */
    TSR_OPTION_OF_SOURCE, /* which checkpoints are read */
    TSR_OPTION_OF_RUN     /* how the command runs: checks, limits, progress, what becomes of an existing DEST */
} tsr_option_role;

typedef struct tsr_option {
    const char *name; /* as on the command line, without dashes */
    char letter;      /* 0: none */
    tsr_option_type type;
    size_t field;           /* offset in tsr_command_options */
    const char *value;      /* the name of its value: "GLOB"; "text|json" for a choice; NULL for a flag */
    const char *help;       /* ends with " (default: …)" if there is a default */
    const char *by_default; /* what holds without the option, as help states it; NULL: it is off, or has no value */
    const char *npm;        /* why a call of the npm package does not have it; NULL: it has */
    const char *npm_name;   /* its name there, if it is another one */
    tsr_option_role role;
    bool npm_opens;     /* the package has it as an option of `open` */
    bool npm_needs;     /* the package requires it */
    const char *python; /* why a function of Python does not have it; NULL: it has */
} tsr_option;

/* An option that only other commands have, and what to do instead. */
typedef struct tsr_absent_option {
    const char *name, *why;
} tsr_absent_option;

typedef struct tsr_command {
    const char *name;
    const char *group;   /* the title under which this command and those after it are listed; NULL: that of the one before */
    const char *summary; /* one line, imperative: "Compare two checkpoints" */
    const char *operands;             /* "PATH DEST" */
    uint32_t least, most;             /* number of operands */
    const tsr_option *const *options; /* in the order of help; ends with NULL */
    const tsr_absent_option *absent;  /* ends with a NULL name; may be NULL */
    const char *npm;                  /* the call of the npm package that has its options; NULL: none */
    const char *const *python; /* the functions of Python that have its options; ends with NULL; NULL: one of its name */
} tsr_command;

extern const tsr_command tsr_commands[];             /* in the order of help; ends with a NULL name */
extern const tsr_option *const tsr_global_options[]; /* of every command; ends with NULL */

/* Returns NULL if there is none of this name. */
const tsr_command *tsr_command_find(tsr_str name);
const tsr_option *tsr_option_find(const tsr_option *const *options, tsr_str name);

/* The next of the words in "a|b|c", which a choice lists in option->value; *rest is NULL after the last one. */
tsr_str tsr_choice_word(const char **rest);
/* Sets the option's field. `value` is not used for a flag; otherwise it is a text that lives as long as `options`. Lists grow in
 * `arena`. Errors: TSR_E_USAGE if the value does not fit the type; TSR_E_NOMEM. */
tsr_status tsr_option_set(const tsr_option *option, const char *value, tsr_arena *arena, tsr_command_options *options,
                          tsr_error *err);

/* Writes the table, for tools that make the types of other front ends from it. */
tsr_status tsr_commands_write(tsr_json *json);

/* A request: a command with its options, as a document (tessera.request/1) and as a list of values.
 *
 * Plans contain the request that `tessera exec` carries out, and journals the values that tell whether a run continues an earlier one.
 *
 * Example:
 *
 *     const tsr_command_request request = {tsr_command_find(TSR_STR("convert")), {.dtype = "bfloat16"}};
 *     const tsr_option_value *values;
 *     size_t count;
 *     status = tsr_request_list(&request, arena, &values, &count, &err);
 *     if (status == TSR_OK && count) printf("%s = %s\n", values[0].option->name, values[0].text); */

typedef struct tsr_command_request {
    const tsr_command *command;
    tsr_command_options options;
} tsr_command_request;

/* The value of an option, as tsr_option_set reads it; NULL for a flag. */
typedef struct tsr_option_value {
    const tsr_option *option;
    const char *text;
} tsr_option_value;
/* Lists what is given of the options of a request but those of TSR_OPTION_OF_RUN, in the order of the command's options; an option
 * whose values are a list occurs once per value. In `arena`. TSR_E_NOMEM. */
tsr_status tsr_request_list(const tsr_command_request *request, tsr_arena *arena, const tsr_option_value **out,
                            size_t *count, tsr_error *err);

/* Writes {"schema": "tessera.request/1", "command": "convert", "options": {"dtype": "bfloat16", "include": ["model.**"]}} with what
 * tsr_request_list lists. A flag is true, a number a number. */
void tsr_request_write(tsr_json *json, const tsr_command_request *request);
/* Sets in `out` the options of `command`, and those of every command, that are given in `given`, in place of those that `out` has. */
void tsr_options_override(const tsr_command *command, const tsr_command_options *given, tsr_command_options *out);

/* The document tessera.plan/1: a request to convert or reshard that can be carried out later, what it reads, and how much.
 *
 * Example:
 *
 *     tsr_plan_job job;
 *     status = tsr_plan_job_read(text, host, arena, &job, &err);
 *     if (status == TSR_OK) printf("tessera %s\n", job.request.command->name); */

typedef struct tsr_planning {
    const tsr_target_texts *texts;
    const tsr_target *target;        /* that of the texts */
    const tsr_plan_options *options; /* or NULL */
} tsr_planning;
/* The plan for a target of texts: as tsr_plan_new, or with FSDP1's flat ranges, where every wanted tensor is a parameter (then
 * the layouts live in `arena`, as long as the plan). Errors as tsr_plan_new and
 * tsr_target_fsdp1. */
tsr_status tsr_plan_for_texts(const tsr_catalog *catalog, const tsr_planning *what, const tsr_host *host, tsr_arena *arena,
                              tsr_plan **out, tsr_error *err);

/* The target of a plan for a conversion, of which only what is read counts: everything on one rank. In `arena`. */
tsr_status tsr_target_of_conversion(tsr_arena *arena, tsr_target_texts *texts, tsr_target *out, tsr_error *err);

/* TSR_E_NOT_FOUND that names a tensor which a job would read and whose bytes are missing. Planning does not need them. `source` is what
 * was opened, `planned` itself or a layer on it, whose tensors may be made of any of the source's. */
tsr_status tsr_plan_check_present(const tsr_checkpoint *source, const tsr_checkpoint *planned,
                                  const tsr_command_options *options, tsr_error *err);

/* A checkpoint that a plan reads: enough to find it, and to notice that it has changed. */
typedef struct tsr_plan_file {
    tsr_str name;
    uint64_t bytes;
    tsr_str modified; /* seconds since 1970 with nine decimals, or a server's ETag or date; empty: not known */
} tsr_plan_file;
typedef struct tsr_plan_source {
    tsr_str path, format;
    tsr_str digest_algorithm, digest; /* of the catalog (tsr_catalog_digest), in hexadecimal */
    tsr_plan_file *files;             /* those that hold tensors */
    uint64_t file_count;
} tsr_plan_source;
/* Fills in everything but `path` from a catalog; `modified` stays empty. The only file of a store is always listed, whatever it
 * contains, and config.json and params.json are where the options take numbers from them. A digest_algorithm that is
 * already set ("sha256", "xxh3") is used, because the plan of another build may have to be checked. In `arena`. TSR_E_UNSUPPORTED
 * if this build lacks that digest. */
tsr_status tsr_plan_source_describe(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_host *host,
                                    tsr_arena *arena, tsr_plan_source *out, tsr_error *err);
/* TSR_E_CHANGED if a checkpoint has changed since it was described for a plan; the message has the difference, found and expected. */
tsr_status tsr_plan_source_check(const tsr_plan_source *planned, const tsr_plan_source *found, tsr_error *err);

/* What a plan says about its work. */
typedef struct tsr_plan_job {
    tsr_plan_source source;
    tsr_plan_source adapter;     /* of --lora; `path` empty: none */
    tsr_command_request request; /* of convert or reshard; its documents are texts, and its target and storage are here: */
    tsr_target_texts target;     /* the default spelled out; `mesh` empty: convert */
    tsr_storage_text storage;    /* its `servers` is NULL without one */
} tsr_plan_job;
/* Reads the job of a tessera.plan/1 document, and ignores its totals. The job lives in `arena`. Errors: those of
 * tsr_contract_read; TSR_E_UNSUPPORTED for a plan of a version that wrote no request. */
tsr_status tsr_plan_job_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out, tsr_error *err);

/* tessera.plan/1: a job, and what it would read, send and hold. With `items`, every read item of every rank. */
typedef struct tsr_plan_document {
    const tsr_plan *plan;
    const tsr_plan_totals *totals;
    const tsr_catalog *catalog;
    const tsr_mesh *mesh;
    const tsr_plan_job *job;
    bool items;
    const tsr_storage *storage;     /* of job->storage, or NULL */
    const tsr_server_load *servers; /* its servers' loads */
} tsr_plan_document;
tsr_status tsr_document_plan(const tsr_plan_document *document, tsr_json *json, tsr_error *err);

/* What the options --include, --exclude, --rename and --no-quantize, and the rules of a target, choose by name.
 *
 * Example:
 *
 *     const char *patterns[] = {"model.**"};
 *     const tsr_command_options options = {.selection.include = {patterns, 1}};
 *     tsr_name_choice choice;
 *     status = tsr_choice_of(catalog, &options, NULL, arena, &choice, &err);
 *     if (status == TSR_OK) status = tsr_name_choice_check(&choice, arena, &err); */

/* Whether --include and --exclude keep a name; `globs` is a tsr_name_globs. The second is for callers whose context is not const. */
bool tsr_globs_select(const void *globs, tsr_str fqn);
bool tsr_globs_want(void *globs, tsr_str fqn);
/* Collects what the options choose, for tsr_name_choice_check and tsr_name_choice_warnings. `target` may be NULL. In `arena`. */
tsr_status tsr_choice_of(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_target_texts *target,
                         tsr_arena *arena, tsr_name_choice *out, tsr_error *err);

/* What the options of convert, reshard, plan and merge say about the conversion itself.
 *
 * Example:
 *
 *     const tsr_command_options options = {.dtype = "bfloat16"};
 *     tsr_convert_options convert;
 *     tsr_conversion made;
 *     status = tsr_conversion_options(&options, TSR_TO_DCP, arena, &convert, &err);
 *     if (status == TSR_OK) status = tsr_convert(checkpoint, output, &convert, arena, &made, &err); */

/* The words of --to and --objects, indexed by tsr_container and tsr_objects; that of TSR_OBJECTS_DEFAULT is empty. */
extern const char *const tsr_container_words[6];
extern const char *const tsr_objects_words[5];

/* Sets everything that the options decide alone: names, dtypes, objects, memory, checks. The caller adds what depends on the source or
 * the destination. *out borrows `options` and `arena`. Errors: TSR_E_USAGE for a value that is not allowed; TSR_E_NOMEM. */
tsr_status tsr_conversion_options(const tsr_command_options *options, tsr_container to, tsr_arena *arena,
                                  tsr_convert_options *out, tsr_error *err);
/* For TSR_TO_RANKS: `shards` says how tensors are cut. Without --world-size, there are as many ranks as it joined in `source`.
 * TSR_E_USAGE without a map or a number of ranks, and for --world-size with another format. */
tsr_status tsr_conversion_ranks(const tsr_command_options *options, const tsr_shards *shards, const tsr_checkpoint *source,
                                tsr_convert_options *out, tsr_error *err);
/* Makes the request that a plan contains from the options of `plan`, whose documents are given as texts. With `reshards`, the target
 * is kept elsewhere, and --to is that of the source's format if it was not given. Refuses casts that would be refused when the plan is
 * carried out. Borrows `options`. */
tsr_status tsr_plan_request(tsr_checkpoint *checkpoint, const tsr_command_options *options, bool reshards, tsr_arena *arena,
                            tsr_command_request *out, tsr_error *err);

/* What lies between a checkpoint and a command that reads it. First its names become canonical (--canonical) and are stripped of a prefix
 * (--prefix), in place. Then come layers: FSDP1's flat parameters cut into those that they consist of (--flat-params), scaled numbers multiplied (--dequantize), an adapter folded in (--lora),
 * names and layouts of another model (--map), weights quantized (--quantize), in this order. Each is a checkpoint over the one before.
 *
 * Example:
 *
 *     const tsr_command_options options = {.map = "llama"};
 *     const tsr_layering wanted = {.options = &options, .map = text, .map_called = "--map llama"};
 *     tsr_layers layers = {.top = checkpoint};
 *     status = tsr_layers_open(&layers, &wanted, arena, &err);
 *     if (status == TSR_OK) printf("%u layers\n", layers.count);
 *     tsr_layers_close(&layers); */

enum { TSR_MOST_LAYERS = 5 };

typedef struct tsr_layers {
    tsr_checkpoint *top;                    /* the last layer, or what they lie on */
    tsr_checkpoint *items[TSR_MOST_LAYERS]; /* each over the one before */
    unsigned count;
    tsr_quantized quantized; /* --quantize: what was quantized and what was kept */
} tsr_layers;

/* What the layers are made of. Everything is borrowed, and has to outlive them. */
typedef struct tsr_layering {
    const tsr_command_options *options;
    tsr_str map;                  /* the document of --map; data NULL: none */
    const char *map_called;       /* in messages: "--map llama" */
    tsr_str modules;              /* the document of --modules; data NULL: none */
    tsr_checkpoint *adapter;      /* of --lora; NULL: none */
    tsr_str adapter_name;         /* in messages: its path; empty where it has none */
    const tsr_open_options *used; /* `selects`: the names, of the topmost layer, that are read; NULL: all are */
    bool *plain;                  /* becomes true if --dequantize finds nothing that is quantized; NULL: that is an error */
    bool lists; /* values are not read, so tensors that the map leaves out as copies are not compared with the others */
} tsr_layering;

/* Whether the options ask for any. Then a selection is about the names of the topmost layer, not about those of the source. */
bool tsr_options_are_layered(const tsr_command_options *options);
/* TSR_E_USAGE for options that need another one, or exclude each other. */
tsr_status tsr_layering_check(const tsr_layering *wanted, tsr_error *err);
/* Opens the layers over `layers->top`. The caller closes them, also on failure. Rules of a map live in `arena`. Errors: those of
 * tsr_layering_check and of the layers. */
tsr_status tsr_layers_open(tsr_layers *layers, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err);
/* The first of them alone: cuts FSDP1's flat parameters, which FLAT.json describes, into the parameters that they consist of. All
 * other entries stay. The checkpoint at the top may have been opened without selecting any of its tensors, which is made up for here. Errors: those of the document; TSR_E_FORMAT for a flat parameter that the document does not describe, or of
 * another size; TSR_E_NOT_FOUND where the source has neither a flat parameter nor its parameters. */
tsr_status tsr_layers_unflatten(tsr_layers *layers, tsr_str document, tsr_arena *arena, tsr_error *err);
/* The last of them alone, over whatever is on top; nothing if --quantize was not given. */
tsr_status tsr_layers_quantize(tsr_layers *layers, const tsr_layering *wanted, tsr_error *err);
/* Puts a checkpoint of the caller's on top, which is closed with the others. */
void tsr_layers_add(tsr_layers *layers, tsr_checkpoint *layer);
void tsr_layers_close(tsr_layers *layers); /* the last one first; not the source */

TSR_API_END

#endif
