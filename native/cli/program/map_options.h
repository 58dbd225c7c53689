/* --map, --inverse, --dequantize, --lora and --quantize: opens PATH as changed by a map, with scaled numbers multiplied,
 * with an adapter folded in, or with its weights quantized. */
#ifndef TSR_CLI_PROGRAM_MAP_OPTIONS_H
#define TSR_CLI_PROGRAM_MAP_OPTIONS_H

#include "cli/program/session.h"

typedef struct cli_map_options {
    const char *map;  /* name of a built-in map, or path of a document; NULL: none */
    tsr_str document; /* text of a map to use instead of `map`; data NULL: none */
    bool inverse, dequantize;
    bool lists; /* the command reads no values: tensors that the map leaves out as copies are not compared with the others */
    const char *lora;  /* directory of an adapter; NULL: none */
    unsigned quantize; /* choice: fp8-block */
    tsr_texts no_quantize;
    const char *dtype; /* --dtype, the dtype of the products; NULL: the one in config.json */
} cli_map_options;

/* The layers that the options ask for. Commands that have --quantize must also call cli_quantize_dtype. */
cli_map_options cli_map_of(const tsr_command_options *options);

/* Like cli_open. Numbers are multiplied first, then an adapter is folded in, then a map is applied, and weights are
 * quantized last. With any of these, the session's checkpoint and catalog are the result, and `options->selects` is not used
 * while PATH is opened, because the selection refers to the names after mapping. */
tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err);
/* quantize_option.c: replaces the session's checkpoint by one with quantized weights. Only the selection in `used`
 * matters. */
tsr_status cli_quantize(cli *program, const cli_map_options *map, const tsr_open_options *used, cli_session *session,
                        tsr_error *err);
/* With --quantize, the cast to --dtype comes first, so writing->dtype, to which the writer would cast, becomes NULL. TSR_E_USAGE if
 * the options cannot be combined. */
tsr_status cli_quantize_dtype(tsr_command_options *writing, tsr_error *err);
/* Whether PATH is read through layers, so that a table can show what each name becomes. */
bool cli_has_map_table(const cli_session *session);
/* If there is such a table, prints it on stderr, because stdout belongs to --json. */
tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err);

#endif
