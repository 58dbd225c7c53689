/* What lies between a checkpoint and a command that reads it. First its names become canonical (--canonical) and are stripped of a prefix
 * (--prefix), in place. Then come layers: FSDP1's flat parameters cut into those that they consist of (--flat-params), scaled numbers multiplied (--dequantize), an adapter folded in (--lora),
 * names and layouts of another model (--map), weights quantized (--quantize), in this order. Each is a checkpoint over the one before.
 *
 * Example:
 *
 *     const tsr_command_options options = {.map = "llama"};
 *     const tsr_layering wanted = {.options = &options, .map = text, .map_called = "--map llama"};
 *     tsr_layers layers = {.top = checkpoint};
 *     status = tsr_layers_open(&layers, &wanted, arena, &err);
 *     if (status == TSR_OK) printf("%u layers\n", layers.count);
 *     tsr_layers_close(&layers); */
#ifndef TESSERA_SYS_LAYERS_H
#define TESSERA_SYS_LAYERS_H

#include "tessera/checkpoint.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/mapping.h"

TSR_API_BEGIN

enum { TSR_MOST_LAYERS = 5 };

typedef struct tsr_layers {
    tsr_checkpoint *top;                    /* the last layer, or what they lie on */
    tsr_checkpoint *items[TSR_MOST_LAYERS]; /* each over the one before */
    unsigned count;
    tsr_dtype products;      /* --dequantize: the dtype that numbers were multiplied to; otherwise TSR_DTYPE_NONE */
    tsr_quantized quantized; /* --quantize: what was quantized and what was kept */
} tsr_layers;

/* What the layers are made of. Everything is borrowed, and has to outlive them. */
typedef struct tsr_layering {
    const tsr_command_options *options;
    tsr_str map;                  /* the document of --map; data NULL: none */
    const char *map_called;       /* in messages: "--map llama" */
    tsr_str modules;              /* the document of --modules; data NULL: none */
    tsr_checkpoint *adapter;      /* of --lora; NULL: none */
    tsr_str adapter_name;         /* in messages: its path; empty where it has none */
    const tsr_open_options *used; /* `selects`: the names, of the topmost layer, that are read; NULL: all are */
    bool lists; /* values are not read, so tensors that the map leaves out as copies are not compared with the others */
} tsr_layering;

/* Whether the options ask for any. Then a selection is about the names of the topmost layer, not about those of the source. */
bool tsr_options_are_layered(const tsr_command_options *options);
/* TSR_E_USAGE for options that need another one, or exclude each other. */
tsr_status tsr_layering_check(const tsr_layering *wanted, tsr_error *err);
/* Opens the layers over `layers->top`. The caller closes them, also on failure. Rules of a map live in `arena`. Errors: those of
 * tsr_layering_check and of the layers. */
tsr_status tsr_layers_open(tsr_layers *layers, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err);
/* The first of them alone: cuts FSDP1's flat parameters, which FLAT.json describes, into the parameters that they consist of. All
 * other entries stay. The checkpoint at the top may have been opened without selecting any of its tensors, which is made up for here. Errors: those of the document; TSR_E_FORMAT for a flat parameter that the document does not describe, or of
 * another size; TSR_E_NOT_FOUND where the source has neither a flat parameter nor its parameters. */
tsr_status tsr_layers_unflatten(tsr_layers *layers, tsr_str document, tsr_arena *arena, tsr_error *err);
/* The last of them alone, over whatever is on top; nothing if --quantize was not given. */
tsr_status tsr_layers_quantize(tsr_layers *layers, const tsr_layering *wanted, tsr_error *err);
/* Puts a checkpoint of the caller's on top, which is closed with the others. */
void tsr_layers_add(tsr_layers *layers, tsr_checkpoint *layer);
void tsr_layers_close(tsr_layers *layers); /* the last one first; not the source */

/* The dtype to which what is written is cast: that of --dtype, but TSR_DTYPE_NONE with --quantize, which casts before. */
tsr_status tsr_layers_cast(const tsr_command_options *options, tsr_dtype *out, tsr_error *err);

TSR_API_END

#endif
