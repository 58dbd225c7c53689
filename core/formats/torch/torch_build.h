/* Turns the parsed pickle of torch.save into values. torch_value.c (containers, objects), torch_tensor.c (storages, dense
 * tensors) and torch_shard.c (DTensor, ShardedTensor) share this state while they read one pickle.
 *
 * Tensors are made before the positions of their storages are known, because the legacy form lists the storages after the
 * pickle. Until tsr_torch_place is called, their byte offsets count from the beginning of their storage. */
#ifndef TSR_FORMATS_TORCH_TORCH_BUILD_H
#define TSR_FORMATS_TORCH_TORCH_BUILD_H

#include "formats/pickle/torch_names.h"
#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/sys/containers.h"

typedef struct tsr_torch_storage {
    tsr_str key;
    tsr_dtype dtype; /* the dtype of its class; uint8 for an untyped storage */
    uint64_t byte_length;
    uint64_t byte_offset; /* in the file; the container fills it in before tsr_torch_place */
    bool meta;            /* on the meta device: has no bytes */
    bool lost;            /* its bytes are not whole */
    bool unloadable;      /* an untyped storage in the legacy form */
    uint64_t pickled_at;  /* the position in the file of what names it first */
} tsr_torch_storage;

/* A dense tensor and what is needed to take a box out of it. `entry` first: a TENSOR value points to it. */
typedef struct tsr_torch_dense {
    tsr_entry entry;
    uint32_t storage;        /* index; UINT32_MAX: several chunks, made of other tensors */
    uint64_t byte_offset;    /* in the storage */
    const uint64_t *strides; /* elements */
    bool conj, neg;
} tsr_torch_dense;

/* What is known of the rank that wrote the file. */
typedef struct tsr_torch_rank {
    bool known; /* a mesh or a ShardedTensor in the file states it */
    uint32_t rank;
    uint32_t world; /* the number of ranks according to the meshes and ShardedTensors; 0: unknown */
    bool hinted;    /* the file's name states a rank, for meshes without a coordinate */
    uint32_t hint;
} tsr_torch_rank;

typedef struct tsr_torch_build {
    const tsr_pickle *pickle;
    tsr_str pickle_bytes; /* in `arena`: texts that are part of them are borrowed */
    const tsr_host *host;
    tsr_arena *arena;
    tsr_findings *findings; /* or NULL */
    tsr_str file_name;
    uint32_t file;
    uint64_t pickle_offset; /* of the pickle in the file, for positions */
    bool legacy;            /* of the form before zip */
    tsr_torch_rank rank;
    const tsr_chunk *zstd;  /* the archive is inside the stream that fills this chunk; NULL: in the file itself */
    tsr_map *storage_index; /* key → index */
    tsr_map *rank_places;   /* (list of a mesh's ranks, rank) → where the rank stands; NULL until one is asked */
    tsr_vec storages;       /* tsr_torch_storage */
    tsr_vec chunks;         /* placed_chunk of torch_tensor.c */
    uint64_t room;          /* how many bytes of boxes strided shards may still be cut into */
    uint64_t copied;        /* items copied out of nodes that other nodes may share; limited by the size of the pickle */
} tsr_torch_build;

tsr_status tsr_torch_build_open(tsr_torch_build *build, tsr_error *err); /* after the fields above the map are set */
void tsr_torch_build_close(tsr_torch_build *build);

/* The whole tree under a node. Parts that are tensors become TSR_VALUE_TENSOR with tsr_torch_dense entries. What the
 * allowlist does not know becomes TSR_VALUE_OBJECT {text: class, items: args, state, list items, dict} and a finding. */
tsr_status tsr_torch_values(tsr_torch_build *build, tsr_ref root, const tsr_value **out, tsr_error *err);
/* Adds the byte offset of each storage to the chunks in it. `swap`: the bytes are big-endian. A chunk inside a zstd
 * stream is given the stream's position in the file, and a view that describes its place in the decompressed bytes. */
tsr_status tsr_torch_place(tsr_torch_build *build, bool swap, tsr_error *err);

/* The position of a node's opcode in the file. */
static inline uint64_t tsr_torch_position(const tsr_torch_build *build, tsr_ref ref)
{
    uint64_t position = tsr_pickle_position(build->pickle, ref);
    return position == TSR_NO_POSITION ? build->pickle_offset : build->pickle_offset + position;
}

/* Argument `index` of an OBJECT, or NONE. */
static inline tsr_ref tsr_torch_arg(const tsr_pickle *pickle, tsr_ref object, size_t index)
{
    return tsr_pickle_item(pickle, tsr_pickle_args(pickle, object), index);
}
/* torch_tensor.c. An attribute: `holder` is an OBJECT (its state is searched), a state dict, or a (dict, slots) pair. */
tsr_ref tsr_torch_attribute(const tsr_pickle *pickle, tsr_ref holder, const char *name);
/* Non-negative integers of a TUPLE, LIST or torch.Size into the arena. */
tsr_status tsr_torch_sizes(tsr_torch_build *build, tsr_ref ref, const uint64_t **out, uint32_t *count, tsr_error *err);

/* torch_tensor.c. `args` is the TUPLE of a rebuild function with the id. */
tsr_status tsr_torch_rebuild(tsr_torch_build *build, uint32_t id, tsr_ref args, tsr_torch_dense **out, tsr_error *err);
/* The storage that a persistent id names, which then must be in the file. */
tsr_status tsr_torch_require_storage(tsr_torch_build *build, tsr_ref persistent, uint64_t position, tsr_error *err);
/* A bare storage as a 1-d tensor of its elements. */
tsr_status tsr_torch_bare_storage(tsr_torch_build *build, tsr_ref persistent, tsr_torch_dense **out, tsr_error *err);
/* The chunk that fills `box`, at `byte_offset` of the storage of `on`. The arrays of `box` are not copied. */
tsr_status tsr_torch_chunk(tsr_torch_build *build, const tsr_torch_dense *on, uint64_t byte_offset, tsr_box box,
                           tsr_chunk *out, tsr_error *err);

/* torch_shard.c. The tensor of a DTensor pickle, with the boxes that this rank holds as its chunks. `local` is this rank's
 * tensor (without a storage if it is a tensor subclass: the only chunk then states no bytes), `wrapper` the arguments of _rebuild_wrapper_subclass. *out is NULL when the boxes cannot be told (partial
 * values, an unknown rank, a local tensor of another shape); then a finding says so. */
tsr_status tsr_torch_dtensor(tsr_torch_build *build, tsr_ref wrapper, tsr_ref state, const tsr_torch_dense *local,
                             tsr_torch_dense **out, tsr_error *err);
/* The local shards that a ShardedTensor's state lists; TSR_REF_NONE when it has another form. */
tsr_ref tsr_torch_local_shards(const tsr_pickle *pickle, tsr_ref state);
/* The tensor of a ShardedTensor pickle: one chunk a local shard; `locals` are their tensors. */
tsr_status tsr_torch_sharded(tsr_torch_build *build, tsr_ref wrapper, tsr_ref state, const tsr_torch_dense *const *locals,
                             tsr_torch_dense **out, tsr_error *err);

/* "module.name" of a class, function, or what stands for one, in the arena; `data` is NULL on failure. */
tsr_str tsr_torch_class_text(tsr_torch_build *build, tsr_ref ref, tsr_error *err);
/* A text of the pickle that may outlive it: what its parser had to decode is copied. */
tsr_status tsr_torch_keep_text(tsr_torch_build *build, tsr_ref ref, tsr_str *out, tsr_error *err);

#endif
