/* Pickles of PyTorch objects in protocol 0, which is text, and a torch.save archive with one of them. */
#ifndef TESTS_SUPPORT_TORCH_PICKLE_H
#define TESTS_SUPPORT_TORCH_PICKLE_H

#include "support/zip_image.h"

/* A float32 tensor on storage `key` of `numel` elements; size and stride are pickled tuples. */
#define PICKLED_TENSOR(key, numel, size, stride) \
    "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'" key "'\nS'cpu'\nI" numel \
    "\ntQI0\n" size stride "I00\nccollections\nOrderedDict\n)RtR"
#define PICKLED_1(a)       "(I" a "\nt"
#define PICKLED_2(a, b)    "(I" a "\nI" b "\nt"
#define PICKLED_SHARD(dim) "ctorch.distributed.tensor.placement_types\nShard\n)\x81(dS'dim'\nI" dim "\nsb"
#define PICKLED_STRIDED(dim, split) \
    "ctorch.distributed.tensor.placement_types\n_StridedShard\n)\x81(dS'dim'\nI" dim "\nsS'split_factor'\nI" split "\nsb"
#define PICKLED_REPLICATE "ctorch.distributed.tensor.placement_types\nReplicate\n)\x81(db"
#define PICKLED_PARTIAL   "ctorch.distributed.tensor.placement_types\nPartial\n)\x81(dS'reduce_op'\nS'sum'\nsb"
/* A mesh in PyTorch 2.9's form (sizes in `_layout.shape`), with additional attributes. */
#define PICKLED_MESH(sizes, attributes) \
    "ctorch.distributed.device_mesh\nDeviceMesh\n)\x81(dS'_layout'\nctorch.distributed._mesh_layout\n_MeshLayout\n)\x81(" \
    "dS'shape'\n" sizes "sbs" attributes "b"
#define PICKLED_AT(coordinate) "S'_coordinate_on_dim'\n" coordinate "s"
#define PICKLED_DTENSOR(size, stride, local, mesh, placements, spec_attributes) \
    "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\nctorch.distributed.tensor\nDTensor\n" \
    "(ctorch.distributed.tensor\nDTensor\nctorch\nfloat32\n" size stride \
    "I0\nctorch.serialization\n_get_layout\n(S'torch.strided'\ntRctorch\ndevice\n(S'cpu'\ntRI00\nt(N(dS'_local_tensor'\n" local \
    "sS'_spec'\nctorch.distributed.tensor._dtensor_spec\nDTensorSpec\n)\x81(dS'mesh'\n" mesh "sS'placements'\n(" placements \
    "ts" spec_attributes "bsttR"

/* A ShardedTensor of float32: shards with their offsets and sizes, and the ranks stated by its process group. */
#define PICKLED_LOCAL_SHARD(tensor, offsets, sizes) \
    "ctorch.distributed._shard.sharded_tensor.shard\nShard\n)\x81(dS'tensor'\n" tensor \
    "sS'metadata'\nctorch.distributed._shard.metadata\nShardMetadata\n)\x81(dS'shard_offsets'\n" offsets \
    "sS'shard_sizes'\n" sizes "sbsb"
#define PICKLED_GROUP(rank, world) "(dS'global_rank'\n" rank "sS'global_world_size'\n" world "s"
#define PICKLED_SHARDED(size, shards, group) \
    "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n" \
    "ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n(Nctorch\nfloat32\n" size "(tI0\nNNI00\nt((l" shards \
    "N" group "NNttR"

/* Makes an archive with the pickle and storages 0, 1, … of the given sizes (at most 8; the list ends with SIZE_MAX). */
static inline void torch_image(zip_image *image, const char *pickle, const size_t *storage_bytes)
{
    static const char *const keys[] = {"a/data/0", "a/data/1", "a/data/2", "a/data/3",
                                       "a/data/4", "a/data/5", "a/data/6", "a/data/7"};
    static const char zeros[4096];
    zip_start(image, 0);
    zip_add(image, "a/data.pkl", pickle, strlen(pickle), ZIP_DESCRIPTOR);
    for (size_t i = 0; storage_bytes[i] != SIZE_MAX; i++) zip_add(image, keys[i], zeros, storage_bytes[i], ZIP_DESCRIPTOR);
    zip_add(image, "a/version", "3\n", 2, ZIP_DESCRIPTOR);
    zip_finish(image, true);
}

#endif
