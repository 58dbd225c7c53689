/* The names that accelerate gives its models and optimizers, and their parts. */
#ifndef TSR_FORMATS_FOLDERS_ACCELERATE_H
#define TSR_FORMATS_FOLDERS_ACCELERATE_H

#include "formats/common/reader.h"

/* A file's name, except for the number that all but the first of a kind have: "model_1.safetensors". */
typedef struct tsr_accelerate_name {
    const char *before, *after;
} tsr_accelerate_name;

typedef struct tsr_accelerate_kind {
    const char *part;
    const char *directory;            /* of DCPs, without its number; names of files per rank begin with it, too */
    const tsr_accelerate_name *files; /* of which the first that exists counts; ends with NULL */
} tsr_accelerate_kind;
extern const tsr_accelerate_kind tsr_accelerate_kinds[]; /* ends with a NULL part */

tsr_status tsr_accelerate_mount(tsr_checkpoint *checkpoint, tsr_error *err);

#endif
