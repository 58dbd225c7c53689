#include "live/optim/tree_pack.h"

#include <inttypes.h>

#include "live/tensor/value_pack.h"
#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

typedef struct packing {
    const tsr_live *live;
    tsr_vec *tensors;
    uint64_t byte_at;
} packing;

/* Packs the rows of a tensor that the rank has: those of its chunk, or all. */
static tsr_status put_tensor(void *ctx, const tsr_value *value, size_t depth, tsr_vec *out, tsr_error *err)
{
    packing *p = ctx;
    const tsr_entry *entry = value->as.tensor;
    (void)depth;
    uint64_t bytes = 0, end;
    bool fits = tsr_entry_bytes(entry, &bytes);
    const bool part = entry->ndim && entry->chunk_count == 1;
    const uint64_t all = entry->ndim ? entry->shape[0] : 0, begin = part ? entry->chunks->offsets[0] : 0,
                   rows = part ? entry->chunks->sizes[0] : all;
    if (part && all) bytes = bytes / all * rows;
    fits = fits && begin <= all && rows <= all - begin && !__builtin_add_overflow(p->byte_at, bytes, &end);
    TSR_FAIL_IF(!fits || tsr_dtype_size(entry->dtype) == 0 || entry->ndim > TSR_MAX_NDIM, err, TSR_E_UNSUPPORTED,
                "optim: '%.*s' is too large, or its dtype is not byte-aligned", TSR_STR_ARG(entry->fqn));
    TSR_TRY(tsr_pack_text(out, entry->fqn, err));
    TSR_TRY(tsr_pack_number(out, entry->dtype, 4, err));
    TSR_TRY(tsr_pack_number(out, entry->ndim, 4, err));
    for (uint32_t d = 0; d < entry->ndim; d++) TSR_TRY(tsr_pack_number(out, entry->shape[d], 8, err));
    if (entry->ndim == 0) return tsr_vec_append(out, p->live->bytes(p->live->ctx, entry), (size_t)bytes, err);
    TSR_TRY(tsr_pack_number(out, begin, 8, err));
    TSR_TRY(tsr_pack_number(out, rows, 8, err));
    TSR_TRY(tsr_pack_number(out, p->byte_at, 8, err));
    tsr_packed_tensor *tensor = tsr_vec_push(p->tensors, err);
    if (!tensor) return TSR_E_NOMEM;
    *tensor = (tsr_packed_tensor){entry, p->byte_at, bytes};
    p->byte_at = end;
    return TSR_OK;
}

tsr_status tsr_tree_pack(const tsr_value *tree, const tsr_live *live, const tsr_host *host, tsr_vec *bytes, tsr_vec *tensors,
                         tsr_error *err)
{
    packing p = {live, tensors, 0};
    return tsr_pack_tree(tree, host, put_tensor, &p, bytes, err);
}

typedef struct unpacking {
    uint32_t file;
    const tsr_unpacked_into *into;
} unpacking;

static tsr_status take_scalar(const unpacking *u, tsr_packed_bytes *from, tsr_chunk *chunk, size_t size, tsr_error *err)
{
    const uint8_t *data = tsr_packed_take(from, size);
    TSR_FAIL_IF(!data, err, TSR_E_FORMAT, "optim: a rank sent a truncated tensor");
    chunk->file = u->into->scalar_file;
    chunk->byte_offset = u->into->scalars->count;
    return tsr_vec_append(u->into->scalars, data, size, err);
}

static tsr_status take_tensor(void *ctx, tsr_packed_bytes *from, tsr_value *value, tsr_error *err)
{
    const unpacking *u = ctx;
    tsr_entry *entry = TSR_ARENA_NEW(from->arena, tsr_entry, err);
    tsr_chunk *chunk = TSR_ARENA_NEW(from->arena, tsr_chunk, err);
    if (!entry || !chunk) return TSR_E_NOMEM;
    *entry = (tsr_entry){.kind = TSR_ENTRY_TENSOR, .chunks = chunk, .chunk_count = 1};
    TSR_TRY(tsr_packed_text(from, &entry->fqn, err));
    entry->dtype = (tsr_dtype)tsr_packed_number(from, 4);
    entry->ndim = (uint32_t)tsr_packed_number(from, 4);
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM || entry->dtype >= TSR_DTYPE_COUNT, err, TSR_E_FORMAT,
                "optim: a rank sent a tensor of %" PRIu32 " dimensions", entry->ndim);
    uint64_t *numbers = tsr_arena_array(from->arena, 3 * (size_t)entry->ndim, sizeof *numbers, err), *sizes, elements;
    if (!numbers) return TSR_E_NOMEM;
    sizes = numbers + 2 * (size_t)entry->ndim;
    for (uint32_t d = 0; d < entry->ndim; d++) sizes[d] = numbers[entry->ndim + d] = tsr_packed_number(from, 8);
    entry->shape = numbers + entry->ndim;
    *chunk = (tsr_chunk){.offsets = numbers, .sizes = sizes, .file = u->file};
    value->as.tensor = entry;
    if (entry->ndim) {
        numbers[0] = tsr_packed_number(from, 8);
        sizes[0] = tsr_packed_number(from, 8);
    }
    bool fits = tsr_entry_elements(entry, &elements) && tsr_box_volume((tsr_box){entry->ndim, NULL, sizes}, &elements) &&
                !__builtin_mul_overflow(elements, (uint64_t)tsr_dtype_size(entry->dtype), &chunk->byte_length);
    fits = fits && (!entry->ndim || (numbers[0] <= entry->shape[0] && sizes[0] <= entry->shape[0] - numbers[0]));
    TSR_FAIL_IF(!fits, err, TSR_E_FORMAT, "optim: a rank sent a tensor that is too large");
    if (entry->ndim == 0) return take_scalar(u, from, chunk, (size_t)chunk->byte_length, err);
    chunk->byte_offset = tsr_packed_number(from, 8);
    return TSR_OK;
}

tsr_status tsr_tree_unpack(tsr_str bytes, uint32_t file, const tsr_unpacked_into *into, const tsr_value **out,
                           tsr_error *err)
{
    unpacking u = {file, into};
    return tsr_unpack_tree(bytes, into->host, take_tensor, &u, into->arena, out, err);
}
