/* What the commands of `tessera` share: the command and option tables, the running program's state, and its messages.
 * Names here begin with cli_; nothing outside this folder sees them.
 *
 * Data goes to stdout, messages and progress to stderr. A command returns its exit status. */
#ifndef TSR_CLI_PROGRAM_CLI_H
#define TSR_CLI_PROGRAM_CLI_H

#include <stdarg.h>

#include "tessera/comm.h"
#include "tessera/sys/json.h"
#include "tessera/native_host.h"
#include "tessera/version.h"

enum { CLI_DONE = 0, CLI_DIFFERS = 1, CLI_TROUBLE = 2 };

/* ---- tables ---- */

typedef enum cli_option_kind {
    CLI_FLAG,   /* field: bool */
    CLI_TEXT,   /* field: const char *, NULL when not given; the last one counts */
    CLI_LIST,   /* field: cli_list, every one counts */
    CLI_CHOICE, /* field: unsigned, 0 when not given, else 1 + position among the words of `value` */
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
    char letter;      /* or 0 */
    cli_option_kind kind;
    const char *value; /* what follows it: "GLOB", or "text|json" for a choice; NULL for a flag */
    const char *help;
    size_t field; /* offset in the command's arguments, or CLI_OF_SOURCE + offset in cli_source */
} cli_option;
enum { CLI_OF_SOURCE = 1 << 20 };

/* Which checkpoint PATH stands for, where that is not all of it, and how it is to be opened. */
typedef struct cli_source {
    const char *part, *step; /* NULL: not given */
    cli_list also;
    bool is_used; /* a checkpoint was opened: `also` was for it */
    const char *shards; /* NULL: not given */
} cli_source;

/* The rows of a command that opens PATH with cli_open. `exec` has the last two alone: part and step are the plan's. Others do not
 * have the rows that mean nothing for them. */
#define CLI_ALSO_OPTION \
    {"also", 0, CLI_LIST, "PATH", \
     "Add the files of another directory to those of PATH (repeatable), for nodes that wrote to local disks", \
     CLI_OF_SOURCE + offsetof(cli_source, also)}
#define CLI_SHARDS_OPTION \
    {"shards", 0, CLI_TEXT, "MAP", \
     "Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm", \
     CLI_OF_SOURCE + offsetof(cli_source, shards)}
#define CLI_PART_OPTION \
    {"part", 0, CLI_TEXT, "NAME", "Open only this part of a checkpoint that is made of parts (inspect lists them)", \
     CLI_OF_SOURCE + offsetof(cli_source, part)}
#define CLI_STEP_OPTION \
    {"step", 0, CLI_TEXT, "STEP", \
     "Open this checkpoint of a directory that holds several: latest, a name or path below it, or the number in its name", \
     CLI_OF_SOURCE + offsetof(cli_source, step)}
#define CLI_SOURCE_OPTIONS CLI_PART_OPTION, CLI_STEP_OPTION, CLI_ALSO_OPTION, CLI_SHARDS_OPTION

typedef struct cli cli;

/* An option of other commands that means nothing for this one, and what to do instead. */
typedef struct cli_absent {
    const char *name, *why;
} cli_absent;

typedef struct cli_command {
    const char *name;
    const char *summary;       /* one line, imperative: "Compare two checkpoints" */
    const char *operands;      /* "PATH DEST"; words of completions.h tell what they stand for */
    unsigned least, most;      /* operands */
    const char *examples;      /* lines in pairs: a command, and what it does */
    const cli_option *options; /* ends with a NULL name */
    const cli_absent *absent;  /* ends with a NULL name; NULL: none needs an explanation */
    size_t arguments_size;
    int (*run)(cli *program, const void *arguments);
} cli_command;

extern const cli_command *const cli_commands[]; /* ends with NULL */
extern const cli_option cli_global_options[];   /* fields of cli_globals */
extern const char *const cli_overview_examples;
extern const char *const cli_overview_summary;

/* ---- the running program ---- */

typedef struct cli_globals {
    bool quiet;
    bool no_progress;
    bool no_mpi; /* heard before the command line is parsed */
    unsigned color;   /* choice: auto, always, never */
    uint64_t threads; /* 0: as many as allowed */
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
    struct cli_shards *shards; /* of cli_read_shards */
    bool writes_ranks;         /* the map is for what is written, too */
    const cli_command *command;
    cli_list operands;
    cli_terminal out, err;
    tsr_native_host native; /* by cli_host */
    bool host_is_open;
    uint32_t default_threads; /* 0: as many as allowed */
    tsr_comm *ranks;          /* the processes that share this command; NULL: this one alone */
    struct cli_addresses *addresses; /* of cli_hide_secrets */
};

/* A text of the command line as everything but opening it may have it: an address without its secrets (tsr_uri_redact), so
 * that no message and no document can hold them; other texts as they are. Lives until cli_forget_addresses. */
const char *cli_hide_secrets(cli *program, const char *text);
/* What was given for a text that cli_hide_secrets returned, or for an equal one; else the text itself. */
const char *cli_given_address(const cli *program, const char *shown);
void cli_forget_addresses(cli *program);

/* Whether this process may print for all. */
bool cli_speaks(const cli *program);
/* Where ranks may have fared differently: the common result, as tsr_comm_agree. Collective where there are ranks. */
tsr_status cli_agree(const cli *program, tsr_status status, tsr_error *err);

const tsr_host *cli_host(cli *program);
/* --allow-expansion: lifts limits.repetition for this run. */
void cli_allow_expansion(cli *program, bool allowed);

#define CLI_EXPANSION_OPTION(type, field) \
    { \
        "allow-expansion", 0, CLI_FLAG, NULL, \
            "Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB", offsetof(type, field) \
    }

/* ---- parsing ---- */

/* Parses everything after the command's name. `arguments` is zeroed memory of the command's size. false: a message was
 * printed and the program ends with CLI_TROUBLE. Lists point into argv. */
bool cli_parse(cli *program, int argc, char **argv, void *arguments);
void cli_free_lists(const cli_command *command, void *arguments);

/* NULL after a message on stderr with a suggestion. */
const cli_command *cli_find_command(const cli *program, const char *name);

/* ---- messages ---- */

void cli_put_help(const cli *program, const cli_command *command); /* NULL: the overview */
void cli_put_man(const cli_command *command);                      /* the manual page; NULL: tessera(1) */
/* "tessera: …" on stderr; returns CLI_TROUBLE. */
int cli_fail(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
void cli_fail_with(const cli *program, const char *format, va_list arguments);
/* The error of a library call about `path` (may be NULL). */
int cli_fail_error(const cli *program, const char *path, const tsr_error *err);
/* "tessera: warning: …", unless --quiet. */
void cli_warn(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* "tessera: note: …", unless --quiet. */
void cli_note(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* CLI_TROUBLE with a message when stdout could not be written, else `status`. */
int cli_finish_stdout(const cli *program, int status);

/* A tsr_write_fn; `ctx` is a FILE. */
tsr_status cli_write_file(void *ctx, const char *data, size_t size, tsr_error *err);

#endif
