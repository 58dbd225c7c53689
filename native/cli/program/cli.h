/* What the commands of `tessera` share: the tables of commands and options, the state of the running program, and its
 * messages. Names here begin with cli_ and are not used outside native/cli.
 *
 * Data goes to stdout, messages and progress to stderr. A command returns its exit status. */
#ifndef TSR_CLI_PROGRAM_CLI_H
#define TSR_CLI_PROGRAM_CLI_H

#include <stdarg.h>

#include "tessera/comm.h"
#include "tessera/native_host.h"
#include "tessera/sys/json.h"
#include "tessera/version.h"

enum { CLI_DONE = 0, CLI_DIFFERS = 1, CLI_TROUBLE = 2 };

/* ---- tables ---- */

typedef enum cli_option_kind {
    CLI_FLAG,   /* field: bool */
    CLI_TEXT,   /* field: const char *, NULL when not given; the last one counts */
    CLI_LIST,   /* field: cli_list, every one counts */
    CLI_CHOICE, /* field: unsigned, 0 when not given, otherwise 1 + the position among the words of `value` */
    CLI_REAL,   /* field: cli_real */
    CLI_COUNT,  /* field: uint64_t; a whole number of 1 or more */
    CLI_BYTES   /* field: uint64_t; "64MB" is decimal, "64MiB" binary, a bare number bytes */
} cli_option_kind;

typedef struct cli_list {
    const char **items;
    size_t count;
} cli_list;

typedef struct cli_real {
    bool given;
    double value;
} cli_real;

typedef struct cli_option {
    const char *name; /* without dashes */
    char letter;      /* 0: none */
    cli_option_kind kind;
    const char *value; /* its value, as shown in help: "GLOB", or "text|json" for a choice; NULL for a flag */
    const char *help;
    size_t field; /* offset in the command's arguments, or CLI_OF_SOURCE + offset in cli_source */
} cli_option;
enum { CLI_OF_SOURCE = 1 << 20 };

/* Which part of PATH is opened, and how. */
typedef struct cli_source {
    const char *part, *step; /* NULL: not given */
    cli_list also;
    bool is_used;       /* a checkpoint was opened, and `also` was applied to it */
    const char *shards; /* NULL: not given */
} cli_source;

/* Options of commands that open PATH with cli_open. `exec` has only the last two, because the plan states part and step.
 * Commands omit the options that are meaningless for them. */
#define CLI_ALSO_OPTION \
    { \
        "also", 0, CLI_LIST, "PATH", \
            "Add the files of another directory to those of PATH (repeatable), for nodes that wrote to local disks", \
            CLI_OF_SOURCE + offsetof(cli_source, also) \
    }
#define CLI_SHARDS_OPTION \
    { \
        "shards", 0, CLI_TEXT, "MAP", \
            "Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm", \
            CLI_OF_SOURCE + offsetof(cli_source, shards) \
    }
#define CLI_PART_OPTION \
    { \
        "part", 0, CLI_TEXT, "NAME", "Open only this part of a checkpoint that is made of parts (inspect lists them)", \
            CLI_OF_SOURCE + offsetof(cli_source, part) \
    }
#define CLI_STEP_OPTION \
    { \
        "step", 0, CLI_TEXT, "STEP", \
            "Open this checkpoint of a directory that holds several: latest, a name or path below it, or the number in its name", \
            CLI_OF_SOURCE + offsetof(cli_source, step) \
    }
#define CLI_SOURCE_OPTIONS CLI_PART_OPTION, CLI_STEP_OPTION, CLI_ALSO_OPTION, CLI_SHARDS_OPTION

typedef struct cli cli;

/* An option that only other commands have, and what to do instead. */
typedef struct cli_absent {
    const char *name, *why;
} cli_absent;

typedef struct cli_command {
    const char *name;
    const char *summary;       /* one line, imperative: "Compare two checkpoints" */
    const char *operands;      /* "PATH DEST"; completions.h lists the meanings of these words */
    unsigned least, most;      /* number of operands */
    const char *examples;      /* pairs of lines: a command, and what it does */
    const cli_option *options; /* ends with a NULL name */
    const cli_absent *absent;  /* ends with a NULL name; may be NULL */
    size_t arguments_size;
    int (*run)(cli *program, const void *arguments);
} cli_command;

extern const cli_command *const cli_commands[]; /* ends with NULL */

/* The title under which a command and those after it are listed. */
typedef struct cli_group {
    const char *title;
    const cli_command *first;
} cli_group;
extern const cli_group cli_groups[]; /* ends with a NULL title */
/* The title of the group that a command begins, or NULL. */
const char *cli_group_begun(const cli_command *command);
extern const cli_option cli_global_options[]; /* fields of cli_globals */
extern const char *const cli_overview_examples;
extern const char *const cli_overview_summary;

/* ---- the running program ---- */

typedef struct cli_globals {
    bool quiet;
    bool no_progress;
    bool no_mpi;       /* handled before the command line is parsed */
    unsigned color;    /* choice: auto, always, never */
    uint64_t threads;  /* 0: as many as allowed */
    uint64_t io_depth; /* 0: TSR_IO_DEPTH */
    bool help;
    bool version;
} cli_globals;

typedef struct cli_terminal {
    bool is_terminal;
    bool color;
    unsigned columns;
} cli_terminal;

struct cli {
    cli_globals globals;
    cli_source source;
    struct cli_shards *shards; /* set by cli_read_shards */
    bool writes_ranks;         /* the map also applies to the output */
    const cli_command *command;
    cli_list operands;
    cli_terminal out, err;
    tsr_native_host native; /* opened by cli_host */
    bool host_is_open;
    uint32_t default_threads;        /* 0: as many as allowed */
    tsr_comm *ranks;                 /* the processes that share this command; NULL: there is only this one */
    struct cli_addresses *addresses; /* used by cli_hide_secrets */
};

/* Returns a text of the command line without secrets (tsr_uri_redact) if it is a URL, so that no message or document can
 * contain them; other texts unchanged. Only the code that opens a URL needs the secrets. The result lives until
 * cli_forget_addresses. */
const char *cli_hide_secrets(cli *program, const char *text);
/* Returns the original of a text that cli_hide_secrets returned, or of an equal text; otherwise the text itself. */
const char *cli_given_address(const cli *program, const char *shown);
void cli_forget_addresses(cli *program);

/* Whether this process prints the messages and results (rank 0, or the only process). */
bool cli_speaks(const cli *program);
/* If ranks may have had different results: agrees on a common one, as tsr_comm_agree does. Collective if there are ranks. */
tsr_status cli_agree(const cli *program, tsr_status status, tsr_error *err);

const tsr_host *cli_host(cli *program);
/* --allow-expansion: lifts limits.repetition for this run. */
void cli_allow_expansion(cli *program, bool allowed);

/* The digests that --hash chooses from: values of tsr_digest_algorithm. */
#define CLI_HASHES "sha256|xxh3"

#define CLI_EXPANSION_OPTION(type, field) \
    { \
        "allow-expansion", 0, CLI_FLAG, NULL, \
            "Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB", offsetof(type, field) \
    }

/* ---- parsing ---- */

/* Parses everything after the command's name. `arguments` is zeroed memory of the command's size. Returns false after
 * printing a message; the program then ends with CLI_TROUBLE. Lists point into argv. */
bool cli_parse(cli *program, int argc, char **argv, void *arguments);
void cli_free_lists(const cli_command *command, void *arguments);

/* NULL if there is no such command; prints a message with a suggestion. */
const cli_command *cli_find_command(const cli *program, const char *name);

/* ---- messages ---- */

void cli_put_help(const cli *program, const cli_command *command); /* NULL: the overview */
void cli_put_man(const cli_command *command);                      /* the manual page; NULL: tessera(1) */
/* The documents that people write by hand: `tessera help formats`, and tessera-formats(5). */
void cli_put_formats(const cli *program);
void cli_put_formats_man(void);
extern const char *const cli_formats_summary;
/* Prints "tessera: …" on stderr. Returns CLI_TROUBLE. */
int cli_fail(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
void cli_fail_with(const cli *program, const char *format, va_list arguments);
/* Prints the error of a library call about `path` (may be NULL). */
int cli_fail_error(const cli *program, const char *path, const tsr_error *err);
/* Prints "tessera: warning: …", unless --quiet. */
void cli_warn(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Prints "tessera: note: …", unless --quiet. */
void cli_note(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Returns `status`, or CLI_TROUBLE after a message if stdout could not be written. */
int cli_finish_stdout(const cli *program, int status);

/* A tsr_write_fn; `ctx` is a FILE. */
tsr_status cli_write_file(void *ctx, const char *data, size_t size, tsr_error *err);

#endif
