/* A map between two checkpoints, suggested from their names, shapes and values.
 *
 * Example:
 *
 *     tsr_map_suggestion suggestion;
 *     status = tsr_map_suggest(checkpoint, other, true, arena, &suggestion, &err);
 *     if (status == TSR_OK) printf("%.*s", (int)suggestion.document.size, suggestion.document.data); */
#ifndef TESSERA_SYS_MAP_SUGGEST_H
#define TESSERA_SYS_MAP_SUGGEST_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

typedef struct tsr_map_suggestion {
    tsr_str document; /* tessera.map/1: the rules that could be decided; its `refuse` makes names without a rule an error */
    const tsr_str *notes; /* the names that could not be decided, one line each, with the candidates */
    size_t note_count;
} tsr_map_suggestion;

/* Names that differ only in numbers are one pattern. Patterns of A and B are paired if the numbers and the shapes fit:
 * unchanged, transposed, stacked along a new first dim, or the reverse. If several candidates fit, `values` decides by equal
 * values: all candidates are read and compared bit for bit, including rope permutations and padded rows, and then tensors
 * that are parts of another one, such as q, k and v, which may be joined head by head. Without `values` a name that is the end of the other name is preferred. Patterns that
 * stay undecided are not in the document but in the notes. Everything lives in `arena`.
 *
 * Errors: TSR_E_LIMIT beyond 1,024 patterns; those of reading. */
tsr_status tsr_map_suggest(tsr_checkpoint *a, tsr_checkpoint *b, bool values, tsr_arena *arena, tsr_map_suggestion *out,
                           tsr_error *err);

TSR_API_END

#endif
