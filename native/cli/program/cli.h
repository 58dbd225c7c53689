/* What the commands of `tessera` share: the state of the running program, and its messages. The commands and their options are in
 * the table of core (tessera/sys/commands.h). Names here begin with cli_ and are not used outside native/cli.
 *
 * Data goes to stdout, messages and progress to stderr. A command returns its exit status. */
#ifndef TSR_CLI_PROGRAM_CLI_H
#define TSR_CLI_PROGRAM_CLI_H

#include "tessera/comm.h"
#include "tessera/native_host.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/json.h"
#include "tessera/sys/path.h"
#include "tessera/version.h"

enum { CLI_DONE = 0, CLI_DIFFERS = 1, CLI_TROUBLE = 2 };

typedef struct cli cli;

/* ---- commands ---- */

/* What a command of tsr_commands does here. */
typedef struct cli_command {
    const char *name;
    const char *examples; /* pairs of lines: a command, and what it does */
    int (*run)(cli *program, const tsr_command_options *arguments);
} cli_command;

extern const cli_command *const cli_commands[]; /* ends with NULL */
const cli_command *cli_command_of(const tsr_command *command);
extern const char *const cli_overview_examples;
extern const char *const cli_overview_summary;

/* ---- the running program ---- */

/* A command with its operands and options, as another program asks for it. */
typedef struct cli_request {
    const char *command;
    const char *const *operands;
    size_t operand_count;
    const struct cli_request_option {
        const char *name;  /* as on the command line, without dashes */
        const char *value; /* not used for a flag; an option whose values are a list occurs once per value */
    } * options;
    size_t option_count;
} cli_request;

typedef enum cli_saying { CLI_SAYS_ERROR, CLI_SAYS_WARNING, CLI_SAYS_NOTE } cli_saying;

/* What receives the output of a command that another program calls (cli_call). Its functions may be called by another thread than
 * the one that called the command, but by one at a time. */
typedef struct cli_caller {
    void *ctx;
    tsr_write_fn *write; /* receives the document */
    /* `err` states the status and the position of an error. */
    void (*say)(void *ctx, cli_saying saying, const char *text, const tsr_error *err);
    void (*progress)(void *ctx, uint64_t byte_done, uint64_t byte_total); /* at most ten times a second */
    const tsr_sys *sys;                                                   /* for reading what is opened as a checkpoint */
    const tsr_allocator *allocator;                                       /* of the command */
    const volatile int *stop; /* not 0: work with progress is to end, with TSR_E_CANCELLED */
} cli_caller;

typedef struct cli_terminal {
    bool is_terminal;
    bool color;
    unsigned columns;
} cli_terminal;

struct cli {
    tsr_command_options options;
    bool also_is_used;         /* a checkpoint was opened, and --also was applied to it */
    struct cli_shards *shards; /* set by cli_read_shards */
    bool writes_ranks;         /* the map also applies to the output */
    const tsr_command *command;
    tsr_texts operands;
    tsr_arena *arena; /* of lists in `options` */
    cli_terminal out, err;
    tsr_native_host native; /* opened by cli_host */
    bool host_is_open;
    const cli_caller *caller;        /* NULL: this program, which prints */
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

/* ---- parsing ---- */

/* NULL if there is no such command; prints a message with a suggestion. */
const tsr_command *cli_find_command(const cli *program, const char *name);
/* Whether from `least` to `most` operands were given, of which messages call the whole `operands`; otherwise prints a message.
 * after_first: the first operand is a part of the command's name, as in `map show`, and does not count. */
bool cli_check_operands(const cli *program, bool after_first, const char *operands, size_t least, size_t most);

/* Runs a command for a program that is not `tessera`. Its document, or with the option `format` its report, goes to the caller, like
 * its messages. `threads` 0: as many as allowed; the option overrides it. Returns the exit status. */
int cli_call(const cli_request *request, const cli_caller *caller, uint32_t threads);

/* ---- messages ---- */

void cli_put_help(const cli *program, const tsr_command *command); /* NULL: the overview */
/* The documents that people write by hand: `tessera help formats`, and tessera-formats(5). */
void cli_put_formats(const cli *program);
extern const char *const cli_formats_summary;
/* Prints "tessera: …" on stderr. Returns CLI_TROUBLE. */
int cli_fail(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Prints the error of a library call about `path` (may be NULL). */
int cli_fail_error(const cli *program, const char *path, const tsr_error *err);
/* Prints "tessera: warning: …", unless --quiet. */
void cli_warn(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Prints "tessera: note: …", unless --quiet. */
void cli_note(const cli *program, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

/* Starts the JSON document, or the report, that is the command's output. */
void cli_document_start(const cli *program, tsr_json *json, tsr_error *err);
/* A tsr_write_fn; `ctx` is a FILE. */
tsr_status cli_write_file(void *ctx, const char *data, size_t size, tsr_error *err);

#endif
