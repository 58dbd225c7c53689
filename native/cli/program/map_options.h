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
    cli_list no_quantize;
    const char *dtype; /* --dtype, the dtype of the products; NULL: the one in config.json */
} cli_map_options;

#define CLI_LORA_OPTION(type, field, what) \
    { \
        "lora", 0, CLI_TEXT, "DIRECTORY", "Fold a LoRA adapter of PEFT into " what ", as its merge_and_unload does", \
            offsetof(type, field.lora) \
    }

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
            "Multiply float8, int8, MXFP4 and NVFP4 numbers " whose \
            "by their scales, to the dtype in config.json, or bfloat16", \
            offsetof(type, field.dequantize) \
    }

/* Commands with these options must also call cli_quantize_dtype. */
#define CLI_QUANTIZE_OPTIONS(type, field) \
    {"quantize", \
     0, \
     CLI_CHOICE, \
     "fp8-block", \
     "Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does", \
     offsetof(type, field.quantize)}, \
    { \
        "no-quantize", 0, CLI_LIST, "GLOB", \
            "With --quantize: also leave weights that match as they are (repeatable); embeddings, norms, output layers and routers are never quantized", \
            offsetof(type, field.no_quantize) \
    }

#define CLI_MAP_OPTIONS(type, field) \
    {"map", \
     0, \
     CLI_TEXT, \
     "MAP", \
     "Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map", \
     offsetof(type, field.map)}, \
    { \
        "inverse", 0, CLI_FLAG, NULL, "With --map: apply the map backwards", offsetof(type, field.inverse) \
    }

/* Like cli_open. Numbers are multiplied first, then an adapter is folded in, then a map is applied, and weights are
 * quantized last. With any of these, the session's checkpoint and catalog are the result, and `options->selects` is not used
 * while PATH is opened, because the selection refers to the names after mapping. */
tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err);
/* quantize_option.c: replaces the session's checkpoint by one with quantized weights. Only the selection in `used`
 * matters. */
tsr_status cli_quantize(cli *program, const cli_map_options *map, const tsr_open_options *used, cli_session *session,
                        tsr_error *err);
/* With --quantize, the cast to --dtype comes first, and *dtype, to which the writer would cast, becomes NULL. TSR_E_USAGE if
 * the options cannot be combined. */
tsr_status cli_quantize_dtype(const cli_map_options *map, bool raw_cast, const char **dtype, tsr_error *err);
/* Whether PATH is read through layers, so that a table can show what each name becomes. */
bool cli_has_map_table(const cli_session *session);
/* If there is such a table, prints it on stderr, because stdout belongs to --json. */
tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err);

#endif
