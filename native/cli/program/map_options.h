/* --map, --inverse and --dequantize: PATH as a map makes it, and with scaled numbers multiplied. */
#ifndef TSR_CLI_PROGRAM_MAP_OPTIONS_H
#define TSR_CLI_PROGRAM_MAP_OPTIONS_H

#include "cli/program/session.h"

typedef struct cli_map_options {
    const char *map; /* a built-in map's name or a document's path; NULL: none */
    bool inverse, dequantize;
    const char *dtype; /* --dtype, which the products take; NULL: what config.json states */
} cli_map_options;

#define CLI_DEQUANTIZE_OPTION(type, field) \
    { \
        "dequantize", 0, CLI_FLAG, NULL, \
            "Multiply float8, int8 and MXFP4 numbers by their scales, to --dtype (default: the dtype in config.json, or bfloat16)", \
            offsetof(type, field.dequantize) \
    }

#define CLI_MAP_OPTIONS(type, field) \
    {"map", 0, CLI_TEXT, "MAP", "Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map", \
     offsetof(type, field.map)}, \
        {"inverse", 0, CLI_FLAG, NULL, "With --map: apply the map backwards", offsetof(type, field.inverse)}

/* As cli_open; numbers are multiplied before a map is applied. With either the session's checkpoint and catalog are the mapped ones, and `options->selects` has no say, because the
 * selection is of the names that the map gives. */
tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err);
/* Where there is a map: prints what becomes of every name, on stderr, since stdout belongs to --json. */
tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err);
/* The document that --map names: a file's text, or the built-in map's. Lives in `arena`. */
tsr_status cli_load_map(cli *program, const char *name, tsr_arena *arena, tsr_str *text, tsr_error *err);

#endif
