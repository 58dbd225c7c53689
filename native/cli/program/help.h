/* What help, manual pages and completion scripts say. */
#ifndef TSR_CLI_PROGRAM_HELP_H
#define TSR_CLI_PROGRAM_HELP_H

#include "cli/program/cli.h"

/* What the completion scripts of all shells share: the meanings of the placeholders for values and operands. */

typedef enum cli_meaning {
    CLI_MEANS_OTHER,    /* GLOB, SIZE, N, …: nothing to suggest */
    CLI_MEANS_WORDS,    /* text|json: one of these words */
    CLI_MEANS_FILES,    /* FILE, PATH, DEST, FOLDER, A, B, NAME.json */
    CLI_MEANS_DTYPES,   /* DTYPE */
    CLI_MEANS_RULES,    /* RULE */
    CLI_MEANS_COMMANDS, /* COMMAND */
    CLI_MEANS_TOPICS,   /* COMMAND|formats: what help describes */
    CLI_MEANS_FQNS      /* FQN: names in the checkpoint that is the first operand */
} cli_meaning;

typedef struct cli_placeholder {
    cli_meaning meaning;
    tsr_str text; /* without brackets and "…" */
    bool repeats; /* "PATH…" */
} cli_placeholder;

void cli_put_bash(void);
void cli_put_zsh(void);
void cli_put_fish(void);

/* ---- The documents that people write by hand, as help and the manual describe them. ---- */

typedef struct cli_format_key {
    const char *name, *help;
} cli_format_key;

enum { CLI_FORMAT_KEYS = 12 };

typedef struct cli_format {
    const char *name;                     /* its schema, or what it is called */
    const char *summary;                  /* what it is, and which options read it */
    cli_format_key keys[CLI_FORMAT_KEYS]; /* ended by one without a name */
    /* Lines: the name of a file, its contents, and a command that reads it. An empty line separates examples. */
    const char *examples;
} cli_format;

extern const cli_format cli_formats[]; /* ended by one without a name */

#endif
