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

#endif
