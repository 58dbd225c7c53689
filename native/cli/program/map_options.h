/* --map, --inverse, --dequantize, --lora and --quantize: PATH as a map makes it, with scaled numbers multiplied, with an adapter folded
 * in, with its weights quantized. */
#ifndef TSR_CLI_PROGRAM_MAP_OPTIONS_H
#define TSR_CLI_PROGRAM_MAP_OPTIONS_H

#include "cli/program/session.h"

typedef struct cli_map_options {
    const char *map; /* a built-in map's name or a document's path; NULL: none */
    tsr_str document; /* of the map, in place of `map`; data NULL: none */
    bool inverse, dequantize;
    const char *lora;  /* the directory of an adapter; NULL: none */
    unsigned quantize; /* choice: fp8-block */
    cli_list no_quantize;
    const char *dtype; /* --dtype, which the products take; NULL: what config.json states */
} cli_map_options;

#define CLI_LORA_OPTION(type, field, what) \
    {"lora", 0, CLI_TEXT, "DIRECTORY", "Fold a LoRA adapter of PEFT into " what ", as its merge_and_unload does", offsetof(type, field.lora)}

#define CLI_DEQUANTIZE_OPTION(type, field) \
    { \
        "dequantize", 0, CLI_FLAG, NULL, \
            "Multiply float8, int8, MXFP4 and NVFP4 numbers by their scales, to --dtype (default: the dtype in config.json, or bfloat16)", \
            offsetof(type, field.dequantize) \
    }

/* The same for a command without --dtype. */
#define CLI_MULTIPLY_OPTION(type, field, whose) \
    { \
        "dequantize", 0, CLI_FLAG, NULL, \
            "Multiply float8, int8, MXFP4 and NVFP4 numbers " whose "by their scales, to the dtype in config.json, or bfloat16", \
            offsetof(type, field.dequantize) \
    }

/* The command also calls cli_quantize_dtype. */
#define CLI_QUANTIZE_OPTIONS(type, field) \
    {"quantize", 0, CLI_CHOICE, "fp8-block", \
     "Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does", \
     offsetof(type, field.quantize)}, \
        {"no-quantize", 0, CLI_LIST, "GLOB", \
         "With --quantize: leave weights that match as they are, too (repeatable); embeddings, norms, output layers and routers always are", \
         offsetof(type, field.no_quantize)}

#define CLI_MAP_OPTIONS(type, field) \
    {"map", 0, CLI_TEXT, "MAP", "Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map", \
     offsetof(type, field.map)}, \
        {"inverse", 0, CLI_FLAG, NULL, "With --map: apply the map backwards", offsetof(type, field.inverse)}

/* As cli_open; numbers are multiplied before an adapter is folded in, that before a map is applied, and weights are quantized last.
 * With any of them the session's checkpoint and catalog are what they make, and `options->selects` has no say while PATH is opened,
 * because the selection is of the names that the map gives. */
tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err);
/* quantize_option.c. The session's checkpoint with quantized weights; of `used` the selection counts. */
tsr_status cli_quantize(cli *program, const cli_map_options *map, const tsr_open_options *used, cli_session *session, tsr_error *err);
/* With --quantize the cast of --dtype comes before it, and *dtype, to which the writer would cast, becomes NULL. TSR_E_USAGE where the
 * options do not go together. */
tsr_status cli_quantize_dtype(const cli_map_options *map, bool raw_cast, const char **dtype, tsr_error *err);
/* Whether PATH is read through layers, so that there is a table of what becomes of every name. */
bool cli_has_map_table(const cli_session *session);
/* Where there is one: prints it on stderr, since stdout belongs to --json. */
tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err);
/* The document that --map names: a file's text, or the built-in map's. Lives in `arena`. */
tsr_status cli_load_map(cli *program, const char *name, tsr_arena *arena, tsr_str *text, tsr_error *err);

#endif
