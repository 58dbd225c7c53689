/* The parts of a DCP directory, for those who write one from memory: the bytes around each item, and the `.metadata`, as
 * torch.distributed.checkpoint 2.13 writes them.
 *
 *   __0_0.distcp   [item: head | bytes of the box | tail][item …]      each item a torch.save archive
 *   .metadata      which item is where
 *
 * Example:
 *
 *     const uint64_t sizes[] = {2, 3};
 *     const float values[6] = {1, 2, 3, 4, 5, 6};
 *     tsr_vec head = tsr_vec_of(host->allocator, 1), tail = tsr_vec_of(host->allocator, 1);
 *     const tsr_dcp_box box = {TSR_FLOAT32, 2, sizes, tsr_crc32(host, 0, values, sizeof values)};
 *     status = tsr_dcp_item_around(&box, host, &head, &tail, &err);
 *     if (status == TSR_OK) fwrite(head.items, 1, head.count, file);
 *     if (status == TSR_OK) fwrite(values, 1, sizeof values, file);
 *     if (status == TSR_OK) fwrite(tail.items, 1, tail.count, file); */
#ifndef TESSERA_SYS_DCP_ITEM_H
#define TESSERA_SYS_DCP_ITEM_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/torch_version.h"

TSR_API_BEGIN

/* A box of elements whose contiguous little-endian bytes have the CRC-32 `crc32`. */
typedef struct tsr_dcp_box {
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *sizes;
    uint32_t crc32;
} tsr_dcp_box;
/* Appends the bytes of an item before and after the bytes of its box to two vecs of bytes. Their lengths depend only on
 * dtype and sizes, and the head's length is a multiple of 64. Errors: TSR_E_UNSUPPORTED for a dtype that torch.save does not
 * have, TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_dcp_item_around(const tsr_dcp_box *box, const tsr_host *host, tsr_vec *head, tsr_vec *tail, tsr_error *err);
/* The whole item of an object without tensors, appended. TSR_E_UNSUPPORTED for values that cannot be pickled. */
tsr_status tsr_dcp_item_object(const tsr_value *value, const tsr_host *host, tsr_vec *out, tsr_error *err);

/* An item of which Python has made the pickle. It refers to `storage_count` storages. */
typedef struct tsr_dcp_pickled {
    tsr_str pickle;
    const uint64_t *byte_lengths; /* of the storages */
    const uint32_t *crcs;         /* of their bytes */
    uint32_t storage_count;
    bool unsummed; /* write 0 for every CRC-32 */
} tsr_dcp_pickled;
/* Appends the bytes between storage `at` - 1 and storage `at`: at 0 all bytes before the first storage, and at storage_count all bytes after the
 * last one. It uses the CRCs of the storages before `at` only. Errors: TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_dcp_item_piece(const tsr_dcp_pickled *item, uint32_t at, const tsr_host *host, tsr_vec *out, tsr_error *err);

/* The location of one item's archive. */
typedef struct tsr_dcp_new_item {
    const uint64_t *offsets; /* tensors: the chunk's box */
    const uint64_t *sizes;
    tsr_str file; /* relative path */
    uint64_t byte_offset;
    uint64_t byte_length;
} tsr_dcp_new_item;

typedef struct tsr_dcp_new_entry {
    tsr_str fqn;
    const tsr_path_item *path; /* planner_data; dict keys become strings, as PyTorch makes them */
    uint32_t path_length;
    bool tensor; /* otherwise a byte item */
    bool requires_grad;
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    const tsr_dcp_new_item *items; /* one per chunk; exactly one for byte items */
    uint64_t item_count;
    /* Tensors of Megatron-Core 0.14 and before: in the metadata's mcore_data, which is written where an entry is in it; and
     * the shape of one that is stored as flat ranges of fragments, otherwise NULL. */
    bool in_mcore_data;
    const uint64_t *original_shape;
    uint32_t original_ndim;
} tsr_dcp_new_entry;

/* A save id, in a UUID's form, out of names, places and `content`, the CRC of whatever the items hold. data NULL on
 * TSR_E_NOMEM. */
tsr_str tsr_dcp_save_id(const tsr_dcp_new_entry *entries, uint64_t count, uint32_t content, tsr_arena *arena,
                        tsr_error *err);

typedef struct tsr_dcp_new_metadata {
    const tsr_dcp_new_entry *entries;
    uint64_t count;
    tsr_str save_id;             /* 36 characters of hexadecimal digits and dashes */
    tsr_torch_version for_torch; /* from 2.4 on, and for 0, with the save id; from 2.15 on with strides */
    bool unsummed;               /* without a checksum at the end (tessera/sys/end_sum.h) */
} tsr_dcp_new_metadata;

/* Appends the pickle (protocol 4, without frames) to `out`, which is empty. Entries without items (an empty tensor that no rank holds) get no
 * storage data. */
tsr_status tsr_dcp_metadata_write(const tsr_dcp_new_metadata *metadata, const tsr_host *host, tsr_vec *out, tsr_error *err);

TSR_API_END

#endif
