/* The checkpoints below a directory that is not one itself, up to three levels down, for the message that refuses it. */
#ifndef TSR_FORMATS_RECOGNIZE_BELOW_H
#define TSR_FORMATS_RECOGNIZE_BELOW_H

#include "formats/common/reader.h"

enum { TSR_BELOW_BYTES = 520, TSR_BELOW_LEVELS = 3 };

typedef struct tsr_below {
    char text[TSR_BELOW_BYTES]; /* "outputs/step-1 (dcp), outputs/step-2 (dcp)": as many as there is room for */
    size_t used;
    unsigned shown, count;
    bool cut;    /* not everything was looked at */
    bool deeper; /* there are directories further down than was looked */
    /* Which directories to look at, by their paths; NULL: all. */
    bool (*wanted)(const void *ctx, tsr_str path);
    const void *wanted_ctx;
    tsr_str first; /* path of the first that was added, in the store */
} tsr_below;

/* Adds "path (form)" to the list, or counts it when the list is full. */
void tsr_below_add(tsr_below *below, tsr_str path, const char *form);
/* Adds every directory below the root that `recognize` (tsr_recognize, which asks for this list itself) takes for a checkpoint,
 * or that holds files that are, with its format; those inside a checkpoint belong to it. Lets the store list more of what lies
 * below. Errors: those of reading, TSR_E_NOMEM. */
typedef tsr_status tsr_recognize_fn(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);
tsr_status tsr_list_below(tsr_checkpoint *checkpoint, tsr_recognize_fn *recognize, tsr_below *below, tsr_error *err);
/* What a message that refuses a directory says of `deeper`; "" where there are none. */
const char *tsr_below_deeper(const tsr_below *below);
/* ", …", when some were counted and not shown. */
const char *tsr_below_rest(const tsr_below *below);

#endif
