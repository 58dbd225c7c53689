/* The files of a DeepSpeed universal checkpoint, as values for torch.save. */
#ifndef TSR_CONVERT_UNIVERSAL_H
#define TSR_CONVERT_UNIVERSAL_H

#include "convert/convert_to.h"

#define TSR_UNIVERSAL_MARKER "latest_universal"

typedef struct tsr_universal_file {
    tsr_str name; /* relative to the destination: "TAG/zero/norm.weight/fp32.pt" */
    const tsr_value *root;
} tsr_universal_file;

typedef struct tsr_universal {
    tsr_str tag; /* name of the directory: "global_step100_universal" */
    tsr_universal_file *files;
    uint32_t count;
} tsr_universal;

/* Makes the files from the written rows: trained weights "model.NAME", states "optim.state.NAME.KEY" (or "optimizer."),
 * param groups, and everything else for the model states. `root` is the value that tsr_nest_rows made of the rows. Allocates
 * in `arena`. Fails with TSR_E_UNSUPPORTED if there are no such weights or states, or if a state's weight is missing (which
 * the message names). */
tsr_status tsr_universal_files(const tsr_chosen *chosen, const tsr_value *root, tsr_arena *arena, tsr_universal *out,
                               tsr_error *err);

#endif
