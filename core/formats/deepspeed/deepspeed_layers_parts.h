/* Declarations shared by deepspeed_layers*.c. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYERS_PARTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYERS_PARTS_H

#include "formats/deepspeed/deepspeed_layers.h"

enum { TSR_DS_MOST_LAYERS = 1 << 16, TSR_DS_MOST_TIED = 256 };

/* The name of a tied layer's weight: "tied_modules.KEY.REST". */
typedef struct tsr_ds_tied {
    tsr_str key, rest;
    const tsr_value *shape; /* NULL for a buffer, or if only its number of elements is known */
    uint64_t elements;      /* UINT64_MAX if unknown */
    uint32_t head;          /* index of the first name with the same key */
} tsr_ds_tied;

typedef struct tsr_ds_layers tsr_ds_layers;
struct tsr_ds_layers {
    const tsr_ds_files *files;
    const tsr_ds_file *layers; /* sorted by tensor-parallel rank and layer number */
    uint32_t count;
    bool *named;     /* by layer number: whether a stored name begins with it */
    bool has_shapes; /* trained weights have stored names */
    tsr_ds_tied tied[TSR_DS_MOST_TIED];
    uint32_t tied_count;
    const tsr_ds_file **owners; /* by index of a key's first name: the first file of that layer, or NULL */
    bool *unsure;               /* likewise: several layers may have this key */
    tsr_error *err;             /* that of the current call */
};

/* The layers of files, for a call with this `err`. NULL if the checkpoint has no files of layers. */
tsr_ds_layers *tsr_ds_layers_of(const tsr_ds_files *files, tsr_error *err);
/* Whether a file has every weight and buffer that is stored under a key; `head` is the index of the key's first name. */
bool tsr_ds_layers_fit(const tsr_ds_layers *l, const tsr_ds_file *file, uint32_t head);

#endif
