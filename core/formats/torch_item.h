/* One torch.save archive that fills a range of a file: a DCP item, or a whole file. Its pickle becomes a value tree in
 * which dense tensors are TSR_VALUE_TENSOR nodes, each with one chunk whose view says where the bytes lie. */
#ifndef TSR_FORMATS_TORCH_ITEM_H
#define TSR_FORMATS_TORCH_ITEM_H

#include "codec/zip.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"

typedef struct tsr_torch_item {
    const tsr_value *root;
    tsr_zip zip;
} tsr_torch_item;

/* `findings` (may be NULL) takes what is odd: unlisted classes (warning when built, error when called), CRC 0
 * throughout (note). Dense tensors are checked: storage within its member, strides within the storage. */
tsr_status tsr_torch_item_open(tsr_store *store, const tsr_host *host, uint32_t file, uint64_t offset, uint64_t size,
                               tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out, tsr_error *err);

#endif
