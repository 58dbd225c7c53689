/* Reads the values of a tensor, or of a slice of it, in pieces. */
#include "shim.h"
#include "tessera/read.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

static tsr_status find(const opened *item, tsr_str fqn, const tsr_entry **out, tsr_error *err)
{
    const tsr_entry *entry = *out = tsr_checkpoint_entry(item->checkpoint, fqn);
    const tsr_status status = tsr_checkpoint_require_entry(item->checkpoint, fqn, err);
    if (status != TSR_OK) return status;
    if (!entry) return tsr_checkpoint_raise_no_entry(item->checkpoint, fqn, err);
    if (entry->kind == TSR_ENTRY_TENSOR) return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE,
                    "'%.*s' is not a dense tensor but %.*s; only tensors can be sliced and written with -o",
                    TSR_STR_ARG(fqn), TSR_STR_ARG(entry->type));
}

static tsr_status measure(const tsr_entry *entry, bool whole, tessera_part *out, tsr_error *err)
{
    const uint32_t itemsize = tsr_dtype_size(entry->dtype);
    out->dtype = entry->dtype;
    out->ndim = entry->ndim;
    out->unit = itemsize ? itemsize : 1;
    if (whole) {
        const tsr_status status = tsr_tensor_bytes(entry, &out->count, err);
        out->count /= out->unit;
        return status;
    }
    if (!itemsize)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s elements are not byte-aligned, so they cannot be sliced; leave the slice out",
                        tsr_dtype_describe(entry->dtype)->name);
    tsr_box_volume((tsr_box){entry->ndim, NULL, out->slice.sizes}, &out->count); /* at most as many as the tensor has */
    return TSR_OK;
}

/* Sets *out to the part of a tensor that `slice` selects: the text between brackets, or NULL for the whole tensor. Returns
 * 1. */
TSR_EXPORT(tessera_part_of)
uint32_t tessera_part_of(uint32_t handle, const char *fqn, uint32_t fqn_size, const char *slice, uint32_t slice_size,
                         tessera_part *out, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    const tsr_entry *entry;
    if (!item || find(item, (tsr_str){fqn, fqn_size}, &entry, err) != TSR_OK) return 0;
    out->entry = (uint32_t)(entry - tsr_checkpoint_catalog(item->checkpoint)->entries);
    out->whole = slice ? 0 : tsr_dtype_size(entry->dtype) ? 1 : 2;
    tsr_status status = tsr_slice_parse((tsr_str){slice, slice_size}, entry->ndim, entry->shape, &out->slice, err);
    if (status == TSR_OK) status = tsr_repeats_check_box(item->checkpoint, entry, out->slice.offsets, out->slice.sizes, err);
    if (status == TSR_OK) status = measure(entry, !slice, out, err);
    if (status == TSR_OK && !slice) status = tsr_entry_must_tile(entry, item->host.allocator, err);
    return status == TSR_OK;
}

/* Reads units [first, first + count) of a part in row-major order. Returns 1. */
TSR_EXPORT(tessera_read)
uint32_t tessera_read(uint32_t handle, const tessera_part *part, uint64_t first, uint32_t count, void *pointer,
                      tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    const tsr_entry *entry = item ? tessera_entry_of(item, part->entry, err) : NULL;
    const tsr_run run = {part->whole ? NULL : part->slice.offsets, part->whole ? NULL : part->slice.sizes, first, count};
    return entry && tsr_read_run(item->checkpoint, entry, &run, pointer, (size_t)count * part->unit, err) == TSR_OK;
}
