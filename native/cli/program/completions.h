/* What the completion scripts of all shells share: the meanings of the placeholders for values and operands. */
#ifndef TSR_CLI_PROGRAM_COMPLETIONS_H
#define TSR_CLI_PROGRAM_COMPLETIONS_H

#include "cli/program/cli.h"

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

#endif
