/* Texts about maps (tessera/mapping.h) for the command line and the WebAssembly module: the names of the built-in maps, and
 * a table of the sources of a mapped checkpoint's tensors.
 *
 * Example:
 *
 *     for (size_t i = 0; tsr_mapping_builtin_name(i).size; i++)
 *         printf("%.*s\n", TSR_STR_ARG(tsr_mapping_builtin_name(i))); */
#ifndef TESSERA_SYS_MAPPING_H
#define TESSERA_SYS_MAPPING_H

#include "tessera/mapping.h"
#include "tessera/sys/json.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

/* Returns note `index` that users should read about a mapped checkpoint and those that it was opened over: a sentence in
 * that checkpoint's memory, or an empty text after the last one. An inverse names the first entry that may also come from
 * another name, because the map makes it by a rule and its exception, or may have kept it (tsr_mapping_write_table lists
 * them all). An adapter names a module that its configuration selects but for which it has no tensors, a setting that PEFT
 * does not have, and an embedding that is also the output layer, with what became of both. */
tsr_str tsr_mapping_note(const tsr_checkpoint *mapped, size_t index);
/* The note about a dequantized model whose config.json still says that it is quantized. */
#define TSR_NOTE_UNQUANTIZED \
    "the weights are not quantized any more; remove quantization_config from the config.json that is used with them"
/* Appends all of them to `out`, a vector of tsr_str. */
tsr_status tsr_mapping_add_notes(const tsr_checkpoint *mapped, tsr_vec *out, tsr_error *err);

/* Adds a note (tsr_mapping_note) about a layer that has some of the names of another, but not all, where a rule takes the names
 * of layers as they are (`{rest...}`), so that no rule states which of them are required. Call it once after
 * tsr_mapping_open. Errors: TSR_E_NOMEM. */
tsr_status tsr_mapping_compare_layers(tsr_checkpoint *mapped, tsr_error *err);

/* Fails if a tensor that a map left out as the same one as another (its "tied_to", where config.json ties them), or that an
 * adapter changes together with another, has other values. Reads both tensors. `mapped` may have been opened over the mapped checkpoint. Errors: TSR_E_FORMAT naming both
 * tensors and the first row that differs; those of tsr_read_box. */
tsr_status tsr_mapping_check_tied(const tsr_checkpoint *mapped, tsr_error *err);

/* Writes a table of the sources of a mapped checkpoint's entries: "source, source -> steps -> target dtype [shape]" for
 * each entry (more than four sources are wrapped onto indented lines), and then "source -> (dropped)" for each source that
 * was dropped. A name that may also come from another one (tsr_mapping_note) is followed by "(or NAME)". Sources are traced
 * back to the first checkpoint that is not a mapped one. */
tsr_status tsr_mapping_write_table(const tsr_checkpoint *mapped, tsr_write_fn *write, void *ctx, tsr_error *err);
/* Adds the same table to the JSON object that is open: "map": [{fqn, dtype, shape, from: [{fqn, dtype, shape}], steps,
 * or}], "dropped": [{fqn, dtype, shape}]. */
void tsr_mapping_put_table(const tsr_checkpoint *mapped, tsr_json *json);

/* Makes the error for a --map that is neither a document nor the name of a built-in map: TSR_E_USAGE, listing the names. */
tsr_status tsr_mapping_unknown(tsr_str name, tsr_error *err);
/* The name of built-in map `index`, in alphabetical order; empty after the last one. */
tsr_str tsr_mapping_builtin_name(size_t index);

TSR_API_END

#endif
