/* Which entries of a checkpoint are written, under which name and in which type: the first step of every conversion. */
#ifndef TSR_CONVERT_SELECTION_H
#define TSR_CONVERT_SELECTION_H

#include "tessera/convert.h"

typedef struct tsr_chosen {
    tsr_checkpoint *checkpoint;
    const tsr_convert_options *options;
    tsr_arena *arena;
    tsr_converted *rows; /* one an entry of the catalog */
    uint64_t count;
    size_t tensor_count; /* rows to be written that are tensors */
} tsr_chosen;

/* Whether an entry is data that pickles can hold: an object, or an instance of a class that is no kind of tensor. */
bool tsr_is_object(const tsr_entry *entry);

/* Why an opaque entry is not written, as tsr_choose's `refusal` says it. */
const char *tsr_opaque_refusal(const tsr_entry *entry);

/* `left_out` of objects that go into the sidecar. */
extern const char tsr_put_aside[];

/* Fills the rows: `written` says what is to be written. Entries for which `refusal` gives a text (it completes "'name' …")
 * cannot be held by the container and are refused by name; so are objects under TSR_OBJECTS_REFUSE, and names that
 * collide. */
tsr_status tsr_choose(tsr_checkpoint *checkpoint, const tsr_convert_options *options,
                      const char *(*refusal)(const tsr_converted *row), tsr_arena *arena, tsr_chosen *out, tsr_error *err);

/* nest_rows.c: the written rows as one nested value in `arena`; `values` has one a row, NULL
 * for one that another row's stands for. */
tsr_status tsr_nest_rows(const tsr_chosen *chosen, const tsr_value *const *values, tsr_arena *arena, const tsr_value **root,
                         tsr_error *err);

#endif
