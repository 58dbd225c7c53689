/* What the command line and the module say about maps (tessera/mapping.h): the names of those that are built in, and a table of
 * what a mapped checkpoint is made of.
 *
 * Example:
 *
 *     for (size_t i = 0; tsr_mapping_builtin_name(i).size; i++)
 *         printf("%.*s\n", TSR_STR_ARG(tsr_mapping_builtin_name(i))); */
#ifndef TESSERA_SYS_MAPPING_H
#define TESSERA_SYS_MAPPING_H

#include "tessera/mapping.h"

TSR_API_BEGIN

/* Lists what a mapped checkpoint's entries are made of, one line per entry, then one per source entry that was dropped:
 * "source, source -> steps -> target dtype [shape]". */
tsr_status tsr_mapping_write_table(const tsr_checkpoint *mapped, tsr_status (*write)(void *ctx, const char *data, size_t size,
                                   tsr_error *err), void *ctx, tsr_error *err);

/* Refuses a --map that is neither a document nor the name of a built-in map: TSR_E_USAGE with the names that there are. */
tsr_status tsr_mapping_unknown(tsr_str name, tsr_error *err);
/* The name of built-in map `index`, in alphabetical order; empty behind the last one. */
tsr_str tsr_mapping_builtin_name(size_t index);

TSR_API_END

#endif
