/* A catalog is a state dict without its bytes: FQN → dtype, shape and chunks with their storage info, plus the objects.
 * It lives in the arena of the checkpoint it belongs to; everything here is borrowed and read-only once built.
 *
 * Example:
 *
 *     uint64_t elements = 0;
 *     for (uint64_t i = 0; i < catalog->entry_count; i++) {
 *         const tsr_entry *e = &catalog->entries[i];
 *         uint64_t count;
 *         if (e->kind == TSR_ENTRY_TENSOR && tsr_entry_elements(e, &count)) elements += count;
 *     } */
#ifndef TESSERA_CATALOG_H
#define TESSERA_CATALOG_H

#include "tessera/value.h"

TSR_API_BEGIN

struct tsr_store;

/* How a chunk's elements are laid out in a file. Element (i0, i1, …) of the chunk starts at
 * byte_offset + itemsize × (i0·strides[0] + i1·strides[1] + …). The reader has checked that the whole span is inside
 * the file (or, for zstd, will be checked against the decompressed size). */
typedef struct tsr_view {
    uint32_t file;
    uint64_t byte_offset;    /* of the chunk's first element; for zstd: inside the decompressed stream */
    const uint64_t *strides; /* elements, one per dim; NULL: contiguous row-major */
    bool conj, neg;          /* the values are the conjugate / the negative of the stored ones */
    bool swap;               /* stored big-endian: swap tsr_dtype_info.swap_bytes units */
    bool zstd;               /* the bytes are inside a zstd stream at [stream_offset, +stream_length) of the file */
    uint64_t stream_offset;
    uint64_t stream_length;
} tsr_view;

/* A box of a tensor and where its bytes are. `offsets` and `sizes` have one number per dimension of the tensor, in elements;
 * the box is half-open. */
typedef struct tsr_chunk {
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t byte_offset; /* in the file: the raw bytes, or for DCP the item's blob */
    uint64_t byte_length;
    const tsr_view *view; /* NULL: contiguous raw bytes at byte_offset, or found on demand (tsr_checkpoint_locate) */
    uint32_t file;        /* of the store; TSR_NO_FILE when the data file is missing */
} tsr_chunk;

typedef enum tsr_entry_kind { TSR_ENTRY_TENSOR, TSR_ENTRY_OBJECT, TSR_ENTRY_OPAQUE } tsr_entry_kind;

/* One key or index on the path from the root of the nested state dict to an entry. */
typedef struct tsr_path_item {
    enum { TSR_PATH_KEY, TSR_PATH_INT_KEY, TSR_PATH_INDEX } kind; /* dict key str, dict key int, list position */
    tsr_str key;                                                  /* TSR_PATH_KEY */
    int64_t integer;                                              /* the others */
    const tsr_value *value; /* TSR_PATH_KEY: the key itself where it is not a str (True, None, 1.5, (1, 2)) and `key` its
                               str(); otherwise NULL */
} tsr_path_item;

/* A tensor's distribution as far as it is known, as printable text: "dp=4,tp=2", "shard(0),replicate". May be empty. */
typedef struct tsr_distribution {
    tsr_str mesh;
    tsr_str placements;
} tsr_distribution;

struct tsr_entry;

/* The tensors that the ranks hold under one name, when they do not form a single tensor: their plain tensors differ, or some
 * ranks have none. `tensors` has one element per rank, in the order of the ranks' files; NULL: that rank holds no tensor with
 * this name. The elements' chunks say where each rank's bytes are. */
typedef struct tsr_per_rank {
    const struct tsr_entry *const *tensors;
    uint32_t count;
} tsr_per_rank;

typedef struct tsr_entry {
    tsr_str fqn;
    tsr_entry_kind kind;
    tsr_dtype dtype;         /* tensors; for opaque tensors the inner values' dtype where known */
    const uint64_t *shape;   /* tensor size: the global shape, `ndim` numbers */
    const tsr_chunk *chunks; /* distinct boxes in the reader's order */
    uint64_t chunk_count;
    const tsr_chunk *replicas; /* further copies of boxes that `chunks` already contains */
    uint64_t replica_count;
    const tsr_path_item *path; /* NULL: the FQN is one flat key */
    uint32_t path_length;
    uint32_t ndim;       /* number of dimensions */
    uint32_t storage_id; /* equal and non-zero: tensors on one storage (tied, views) */
    bool requires_grad;
    bool is_parameter;   /* torch.nn.Parameter */
    bool is_sharded;     /* a DTensor or ShardedTensor, which states where its chunks are */
    bool is_second_name; /* the file only states, in its metadata, that this is another name of a tensor with the same
                            storage_id (safetensors.torch.save_model writes this for tied weights) */
    const tsr_distribution *distribution; /* or NULL */
    /* Objects: the data. Opaque: the data that could be kept (may be NULL); if is_sharded, a LIST of what each of `chunks`
     * holds, which are then sorted by their offsets. */
    const tsr_value *value;
    tsr_str type;                 /* objects and opaque: class or Python type name ("dict", "int", "argparse.Namespace") */
    const tsr_per_rank *per_rank; /* or NULL; otherwise the kind is OPAQUE, because there is no single tensor to read */
} tsr_entry;

/* A dict of a nested state dict that the paths of its entries do not describe fully: an OrderedDict,
 * a Counter, a defaultdict, one with attributes, or one without entries. */
typedef struct tsr_mapping {
    tsr_str fqn;
    const tsr_path_item *path;
    uint32_t path_length;
    uint64_t entries_before; /* entries of its container that come before it */
    const tsr_value *value;
} tsr_mapping;

typedef enum tsr_format {
    TSR_FORMAT_NONE = 0,
    TSR_FORMAT_DCP,
    TSR_FORMAT_DCP_SAFETENSORS,
    TSR_FORMAT_SAFETENSORS,
    TSR_FORMAT_SAFETENSORS_INDEX,
    TSR_FORMAT_TORCH_ZIP,
    TSR_FORMAT_TORCH_LEGACY,
    TSR_FORMAT_TORCH_RANKS,
    TSR_FORMAT_TORCH_INDEX, /* pytorch_model.bin.index.json and its shards */
    TSR_FORMAT_SHARDS,      /* one file or several per rank, whose plain tensors differ */
    TSR_FORMAT_DEEPSPEED,   /* this and the rest: directories of training frameworks, made of parts */
    TSR_FORMAT_DEEPSPEED_UNIVERSAL,
    TSR_FORMAT_MEGATRON_DIST,
    TSR_FORMAT_VERL,
    TSR_FORMAT_ACCELERATE_FSDP,
    TSR_FORMAT_LIGHTNING_DIST,
    TSR_FORMAT_HF_TRAINER,
    TSR_FORMAT_TORCH_CHECKPOINTING,
    TSR_FORMAT_JSON,       /* this and the next: parts of such directories */
    TSR_FORMAT_PICKLE,     /* without a container */
    TSR_FORMAT_ACCELERATE, /* a directory like the others; accelerate without FSDP */
    TSR_FORMAT_NEMO,       /* NeMo 2; like the next three, a directory of such directories */
    TSR_FORMAT_AUTOMODEL,
    TSR_FORMAT_OLMO_CORE,
    TSR_FORMAT_PRIME_RL,
    TSR_FORMAT_DIFFUSERS,            /* a pipeline: a directory of models */
    TSR_FORMAT_SENTENCE_TRANSFORMERS /* modules in directories of their own */
} tsr_format;

/* The name of a format in documents and on the command line: "dcp", "torch-zip", …. Static text. */
const char *tsr_format_name(tsr_format format);

/* A pair of texts that a container has for the checkpoint as a whole. */
typedef struct tsr_text_pair {
    tsr_str key, value;
} tsr_text_pair;

/* A component of a checkpoint that several files make up: a model, an optimizer, random states. Its entries follow each other
 * in the catalog. */
typedef struct tsr_part {
    tsr_str name;
    tsr_format format;
    uint64_t files;       /* how many files it is in */
    uint64_t first_entry; /* of the catalog's entries */
    uint64_t entry_count;
    bool own_names; /* its stored names already begin with the part's name; otherwise the name was prepended */
    const tsr_text_pair *metadata; /* as in tsr_catalog, of this part alone */
    size_t metadata_count;
} tsr_part;

typedef struct tsr_catalog {
    tsr_format format;
    const tsr_entry *entries; /* in the order of the container; FQNs are unique */
    uint64_t entry_count;
    const tsr_mapping *mappings; /* torch.save; of several files those of the first */
    uint64_t mapping_count;
    const tsr_part *parts; /* in the order in which they were mounted; none if the checkpoint does not consist of parts */
    uint32_t part_count;
    bool compressed; /* chunks may be inside zstd streams, which can only be read from the start */
    bool mapped;     /* the entries come from those of another checkpoint, so that several may share bytes of a file */
    const struct tsr_store *store;
    const tsr_str *file_names; /* of the store's files, for messages; NULL: messages name no file */
    /* The pairs of safetensors' __metadata__ that are equal in all files, each key once. Without second names of tensors,
     * which are entries, and without Tessera's own keys. */
    const tsr_text_pair *metadata;
    size_t metadata_count;
    const tsr_str *differing_keys; /* of __metadata__: the keys that are not the same in all files */
    size_t differing_count;
} tsr_catalog;

/* Selects the entries to process. A NULL `keeps` selects all of them. */
typedef struct tsr_selection {
    bool (*keeps)(const void *ctx, tsr_str fqn);
    const void *ctx;
} tsr_selection;

/* Compute the number of elements and of bytes of the whole tensor. Return false on overflow. */
bool tsr_entry_elements(const tsr_entry *entry, uint64_t *elements);
bool tsr_entry_bytes(const tsr_entry *entry, uint64_t *bytes);

TSR_API_END

#endif
