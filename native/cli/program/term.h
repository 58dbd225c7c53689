/* Text for people: makes names from files safe to print, aligns columns, and prints sizes and counts in readable units. */
#ifndef TSR_CLI_PROGRAM_TERM_H
#define TSR_CLI_PROGRAM_TERM_H

#include <stdio.h>

#include "cli/program/cli.h"

typedef enum cli_style { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_RED, CLI_YELLOW, CLI_GREEN, CLI_BLUE, CLI_CYAN } cli_style;

/* Prints `text` with everything escaped that is not visible (tsr_str_step), so that a name in a file cannot control the
 * terminal or look like another name. */
void cli_put(FILE *file, tsr_str text);
/* The number of columns that cli_put fills. */
unsigned cli_width(tsr_str text);
/* Prints text, shortened in the middle with "…" if it is wider than `columns`; padded to `columns` with `pad`. */
void cli_put_fitted(FILE *file, tsr_str text, unsigned columns, bool pad);
void cli_pad(FILE *file, unsigned columns);
void cli_on(const cli_terminal *terminal, FILE *file, cli_style style);
void cli_off(const cli_terminal *terminal, FILE *file);
/* Prints `text` in lines of at most `columns`. Lines after the first are indented by `indent` spaces. Ends with a
 * newline. */
void cli_put_wrapped(FILE *file, tsr_str text, unsigned indent, unsigned used, unsigned columns);

typedef struct cli_words {
    char text[48];
} cli_words;
cli_words cli_bytes(uint64_t bytes);               /* "12.5 GiB" */
cli_words cli_number(uint64_t number);             /* "1,234,567" */
cli_words cli_plural(uint64_t n, const char *one); /* "1 tensor", "3 tensors" */

#endif
