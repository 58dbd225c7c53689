/* The documents that people write by hand, as help and the manual describe them. */
#ifndef TSR_CLI_PROGRAM_HELP_H
#define TSR_CLI_PROGRAM_HELP_H

#include "cli/program/cli.h"

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
