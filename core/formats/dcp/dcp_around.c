/* Writes what surrounds a tensor's bytes in a DCP item, and whole items of objects. */
#include "formats/torch/torch_writer.h"
#include "tessera/box.h"
#include "tessera/sys/box.h"
#include "tessera/sys/dcp_item.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/try.h"

static tsr_status plan_tensor(const tsr_dcp_box *box, const tsr_host *host, tsr_arena *arena, tsr_torch_archive *out,
                              tsr_error *err)
{
    uint64_t elements;
    const tsr_entry entry = {.kind = TSR_ENTRY_TENSOR, .dtype = box->dtype, .ndim = box->ndim, .shape = box->sizes};
    const tsr_value root = {.kind = TSR_VALUE_TENSOR, .as.tensor = &entry};
    const tsr_torch_new_tensor tensor = {.entry = &entry, .ndim = box->ndim, .sizes = box->sizes};
    tsr_torch_new_storage storage = {.dtype = box->dtype};
    TSR_FAIL_IF(!tsr_box_volume((tsr_box){box->ndim, NULL, box->sizes}, &elements) ||
                    !tsr_dtype_bytes(box->dtype, elements, &storage.byte_length),
                err, TSR_E_LIMIT, "dcp: a box of %s is too large", tsr_dtype_describe(box->dtype)->name);
    const tsr_torch_tree tree = {&root, &tensor, 1, &storage, 1, NULL};
    return tsr_torch_archive_plan(&tree, host, arena, out, err);
}

tsr_status tsr_dcp_item_around(const tsr_dcp_box *box, const tsr_host *host, tsr_vec *head, tsr_vec *tail, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = plan_tensor(box, host, passing, &archive, err);
    if (status == TSR_OK) archive.members[archive.first_storage].crc32 = box->crc32;
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, head, &at, err);
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 1, tail, &at, err);
    tsr_arena_free(passing);
    return status;
}

tsr_status tsr_dcp_item_object(const tsr_value *value, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    const tsr_torch_tree tree = {.root = value};
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = tsr_torch_archive_plan(&tree, host, passing, &archive, err);
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, out, &at, err);
    tsr_arena_free(passing);
    return status;
}
