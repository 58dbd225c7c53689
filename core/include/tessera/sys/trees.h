/* Checkpoints as nested value trees: what optimizer state is worked on as, before it is flattened to names. Tensor leaves
 * are entries whose bytes can be read through `checkpoint`. (core/formats/recognize)
 *
 * Example:
 *
 *     tsr_trees trees = {0};
 *     status = tsr_trees_of(store, host, false, &trees, &err);
 *     if (status == TSR_OK) printf("%zu keys at the root\n", tsr_value_pairs(trees.roots[0]));
 *     tsr_trees_close(&trees); */
#ifndef TESSERA_SYS_TREES_H
#define TESSERA_SYS_TREES_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

typedef struct tsr_trees {
    tsr_checkpoint *checkpoint;    /* reads the tensors of all trees; its catalog is empty when `raw` */
    const tsr_value *const *roots; /* one per file, in the order asked for */
    uint32_t count;
    bool raw;                /* chunks have the locations of the bytes */
    uint32_t zeros_file;     /* raw: a file of 16 zero bytes, which follows the others in the store */
    tsr_checkpoint *entered; /* NULL, or the checkpoint that keeps the store of a step open */
} tsr_trees;

/* Opens `count` files of `store` (numbers; zip or legacy form). Borrows `store` and `host` until close; the trees live as
 * long as the checkpoint. Errors: those of reading torch.save files, naming the file. */
tsr_status tsr_trees_open(tsr_store *store, const tsr_host *host, const uint32_t *files, uint32_t count, tsr_trees *out,
                          tsr_error *err);

/* The single tree of the checkpoint in `store`, whatever its format. For a torch.save file it is the pickled value itself,
 * as above; for other formats it is the nested state dict that the entries' paths describe, without empty containers. Their
 * chunks have to be located through `checkpoint`. With `located` that is done here (for DCP by looking into every item), and
 * the tree is also `raw`. Errors as tsr_checkpoint_open and tsr_checkpoint_locate. */
tsr_status tsr_trees_of(tsr_store *store, const tsr_host *host, bool located, tsr_trees *out, tsr_error *err);
/* The same for a part of the checkpoint (tsr_open_options.part), or, with NULL data, for all of it. */
tsr_status tsr_trees_of_part(tsr_store *store, const tsr_host *host, tsr_str part, bool located, tsr_trees *out,
                             tsr_error *err);
void tsr_trees_close(tsr_trees *trees); /* accepts a zeroed one */

TSR_API_END

#endif
