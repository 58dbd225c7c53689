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
    tsr_str document;     /* tessera.map/1: what could be decided; under `refuse`, so that nothing else is passed over */
    const tsr_str *notes; /* what could not be decided, one line each, with what would fit */
    size_t note_count;
    uint64_t rule_count;
} tsr_map_suggestion;

/* Names that differ only in numbers are one pattern, and patterns of A and B are paired where the numbers and the shapes fit: as they
 * are, transposed, or stacked along a new first dim, and the other way round. Where several would fit, equal values decide (`values`:
 * all candidates are read and compared bit for bit, rope permutations too, and then tensors that are the parts of another one, such as q,
 * k and v), otherwise names of which one is the end of the other; what
 * stays open is not in the document but in the notes. Everything lives in `arena`.
 *
 * Errors: TSR_E_LIMIT beyond 1,024 patterns; those of reading. */
tsr_status tsr_map_suggest(tsr_checkpoint *a, tsr_checkpoint *b, bool values, tsr_arena *arena, tsr_map_suggestion *out, tsr_error *err);

TSR_API_END

#endif
