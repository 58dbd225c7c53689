/* torch.save files as nested value trees, over one store: what optimizer state is worked on as, before it is flattened to
 * names. Tensor leaves are entries whose bytes can be read through `checkpoint`. (core/formats) */
#ifndef TESSERA_TREES_H
#define TESSERA_TREES_H

#include "tessera/checkpoint.h"

typedef struct tsr_trees {
    tsr_checkpoint *checkpoint;    /* reads the tensors of all trees; its catalog is empty */
    const tsr_value *const *roots; /* one a file, in the order asked for */
    uint32_t count;
    uint32_t zeros_file;           /* a file of 16 zero bytes that stands in the store behind the others */
} tsr_trees;

/* Opens `count` files of `store` (numbers; zip or legacy form). Borrows `store` and `host` until close; the trees live as
 * long as the checkpoint. Errors: those of reading torch.save files, naming the file. */
tsr_status tsr_trees_open(tsr_store *store, const tsr_host *host, const uint32_t *files, uint32_t count, tsr_trees *out, tsr_error *err);
void tsr_trees_close(tsr_trees *trees); /* takes a zeroed one */

#endif
