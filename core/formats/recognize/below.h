/* Lists the checkpoints below a directory that is not a checkpoint itself, up to three levels down, for the error
 * message. */
#ifndef TSR_FORMATS_RECOGNIZE_BELOW_H
#define TSR_FORMATS_RECOGNIZE_BELOW_H

#include "formats/common/reader.h"

enum { TSR_BELOW_BYTES = 520, TSR_BELOW_LEVELS = 3 };

typedef struct tsr_below {
    char text[TSR_BELOW_BYTES]; /* "outputs/step-1 (dcp), outputs/step-2 (dcp)": as many as fit */
    size_t used;
    unsigned shown, count;
    bool cut;    /* not everything was examined */
    bool deeper; /* there are directories below the levels that were examined */
    /* Selects the directories to examine by their paths; NULL selects all. */
    bool (*wanted)(const void *ctx, tsr_str path);
    const void *wanted_ctx;
    tsr_str first; /* path in the store of the first one that was added */
} tsr_below;

/* Adds "path (format)" to the list, or only counts it if the list is full. */
void tsr_below_add(tsr_below *below, tsr_str path, const char *form);
/* Adds every directory below the root that `recognize` accepts as a checkpoint, or that contains files which are one, with
 * its format. Directories inside a checkpoint are not added. `recognize` is tsr_recognize, passed as a parameter because it
 * calls this function. May make the store list deeper levels. Fails if reading fails, or with TSR_E_NOMEM. */
typedef tsr_status tsr_recognize_fn(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);
tsr_status tsr_list_below(tsr_checkpoint *checkpoint, tsr_recognize_fn *recognize, tsr_below *below, tsr_error *err);
/* The part of the error message for `deeper`; "" if there are no such directories. */
const char *tsr_below_deeper(const tsr_below *below);
/* ", …" if some were counted but not shown. */
const char *tsr_below_rest(const tsr_below *below);

#endif
