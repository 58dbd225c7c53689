/* The commands of Tessera and their options: one table for all front ends. The command line parses by it and makes help, manual
 * pages and completions from it; the options of the npm package and of Python, with their types, come from it too.
 *
 * Example:
 *
 *     tsr_command_options options = {.deep = false};
 *     const tsr_command *command = tsr_command_find(TSR_STR("validate"));
 *     const tsr_option *option = tsr_option_find(command->options, TSR_STR("deep"));
 *     if (option) status = tsr_option_set(option, NULL, arena, &options, &err); */
#ifndef TESSERA_SYS_COMMANDS_H
#define TESSERA_SYS_COMMANDS_H

#include "tessera/memory.h"
#include "tessera/str.h"
#include "tessera/sys/json.h"

TSR_API_BEGIN

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
    size_t field;      /* offset in tsr_command_options */
    const char *value; /* the name of its value: "GLOB"; "text|json" for a choice; NULL for a flag */
    const char *help;
    const char *npm;      /* why a call of the npm package does not have it; NULL: it has */
    const char *npm_name; /* its name there, if it is another one */
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

TSR_API_END

#endif
