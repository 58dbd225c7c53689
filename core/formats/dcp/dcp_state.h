/* What the source files of the DCP reader share: dcp.c (the catalog), dcp_metadata.c and dcp_fold.c (the records of `.metadata`),
 * dcp_place.c (where chunks are), dcp_item.c (one archive, also in a zstd stream), dcp_extents.c (every item in file order),
 * dcp_images.c (safetensors data files), dcp_subclass.c (tensor subclasses). */
#ifndef TSR_FORMATS_DCP_DCP_STATE_H
#define TSR_FORMATS_DCP_DCP_STATE_H

#include "codec/pickle.h"
#include "formats/common/reader.h"
#include "formats/torch/torch_file.h"
#include "tessera/dtype.h"
#include "tessera/memory.h"
#include "tessera/sys/containers.h"

/* Numbers the distinct names in a `.metadata` file: FQNs and paths, which its records repeat millions of times. Names mostly
 * recur in the same order, so the name that followed the previous one last time is tried before the hash table. */

typedef struct tsr_dcp_name {
    tsr_str text;
    uint32_t follower; /* the name that came after this one the last time */
    uint32_t hash;
} tsr_dcp_name;

/* Must not be moved while it holds names: its address is the seed of the hash. */
typedef struct tsr_dcp_names {
    tsr_vec list;  /* tsr_dcp_name */
    tsr_vec slots; /* uint32_t, a power of two of them: 1 + number of a name, or 0 when free */
    uint32_t last;
    uint64_t room; /* bytes that may still be hashed; limits the time, since a pickle can repeat a long name in a few
                    * bytes */
} tsr_dcp_names;

tsr_dcp_names tsr_dcp_names_of(const tsr_allocator *allocator, uint64_t room);
void tsr_dcp_names_free(tsr_dcp_names *names); /* leaves it empty; accepts a zeroed one */
/* The number of a text, which is added if it is new. Borrows the text. TSR_E_NOMEM, TSR_E_LIMIT. */
tsr_status tsr_dcp_names_add(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err);

static inline tsr_str tsr_dcp_name_text(const tsr_dcp_names *names, uint32_t number)
{
    return ((const tsr_dcp_name *)names->list.items)[number].text;
}

/* One `.metadata` file of torch.distributed.checkpoint as records: the contents of its pickle, before they are checked for
 * consistency. The classes of which a large file has millions of objects are folded while the pickle is parsed:
 *
 *   dims      [ ndim | 1 + what followed << 32 ] [ values… ]   torch.Size: sizes and offsets, equal ones mostly shared
 *   records   CHUNK   [ kind | offsets << 4 | sizes << 32 ]               ChunkStorageMetadata; dims ids
 *             INDEX   [ kind | fqn << 32 ] [ hint | offset dims << 32 ]   MetadataIndex; fqn: number in `fqns`
 *             STORAGE [ kind | transform << 8 | path << 32 ] [ offset ] [ length ]   _StorageInfo; path: number in `paths`
 *             TENSOR  [ kind | dtype << 8 | requires_grad << 16 | size dims << 32 ] [ chunks ] [ where its CHUNKs begin ]
 *             PROPERTIES, BYTES, NOTE (layouts, memory formats): one word
 *
 * "1 + what followed" is the id of the dims that came next the last time. Source: torch/distributed/checkpoint/metadata.py
 * and filesystem.py of PyTorch 2.13; older class names from files. */

#define TSR_DCP_NO_DIMS   UINT32_MAX
#define TSR_DCP_DIMS_FLAG 0x8000000u /* in a folded index: it is an id of dims, not of a record */
#define TSR_DCP_MAX_NDIM  64         /* PyTorch's own limit on the number of dimensions */

typedef enum tsr_dcp_kind {
    TSR_DCP_NOTE,
    TSR_DCP_CHUNK,
    TSR_DCP_INDEX,
    TSR_DCP_STORAGE,
    TSR_DCP_TENSOR,
    TSR_DCP_PROPERTIES,
    TSR_DCP_BYTES
} tsr_dcp_kind;

/* What an item's bytes went through before they were stored. */
typedef enum tsr_dcp_transform {
    TSR_DCP_PLAIN,
    TSR_DCP_ZSTD,
    TSR_DCP_EXTENDED /* a stream extension of the user's own */
} tsr_dcp_transform;

typedef struct tsr_dcp_metadata {
    tsr_pickle *pickle;
    tsr_ref extension;                              /* the descriptor of the first such extension, or TSR_REF_NONE */
    tsr_vec dims;                                   /* uint64_t */
    tsr_vec records;                                /* uint64_t */
    tsr_dcp_names fqns, paths;                      /* of storage_data */
    tsr_ref state_dict, planner_data, storage_data; /* DICTs, or TSR_REF_NONE */
    tsr_ref mcore_data;                             /* likewise: what Megatron-Core states about each tensor */
    bool is_megatron;                               /* has an attribute that only Megatron-Core writes */
    uint64_t odd_enum;    /* position of a call of an enum class with anything except one plain value, or TSR_NO_POSITION */
    uint64_t odd_getattr; /* position of a getattr that does not get an enum member, or TSR_NO_POSITION */
    uint64_t unloadable;  /* position of a call that fails with its arguments, or TSR_NO_POSITION */
    uint64_t misused;     /* position of an instance of a function, or of a class called without its fields, or
                           * TSR_NO_POSITION */
    uint64_t newer;       /* position of a state that only PyTorch 2.15 and later can read, or TSR_NO_POSITION */
    size_t pickle_end;    /* bytes of the pickle */
    bool has_end_sum;     /* only a checksum follows it (formats/common/end_sum.h) */
} tsr_dcp_metadata;

/* Parses `bytes`, which must outlive the pickle in `out`. Free with tsr_dcp_metadata_close, or free only the pickle and the
 * records with tsr_dcp_metadata_forget, which keeps the dims. */
tsr_status tsr_dcp_metadata_open(tsr_str bytes, const tsr_host *host, tsr_dcp_metadata *out, tsr_error *err);
void tsr_dcp_metadata_forget(tsr_dcp_metadata *metadata);
void tsr_dcp_metadata_close(tsr_dcp_metadata *metadata); /* accepts a zeroed one */

/* The record of a ref if it has the given kind, otherwise NULL. */
const uint64_t *tsr_dcp_record(const tsr_dcp_metadata *metadata, tsr_ref ref, tsr_dcp_kind kind);

/* The values of dims, `*ndim` of them. The pointer stays valid once the pickle is parsed. */
static inline const uint64_t *tsr_dcp_dims(const tsr_dcp_metadata *metadata, uint32_t id, uint32_t *ndim)
{
    const uint64_t *words = (const uint64_t *)metadata->dims.items + id;
    *ndim = (uint32_t)words[0];
    return words + 1;
}

/* The CHUNK records of a TENSOR. There are record[1] of them. */
static inline const uint64_t *tsr_dcp_chunks(const tsr_dcp_metadata *metadata, const uint64_t *record)
{
    return (const uint64_t *)metadata->records.items + record[2];
}

static inline uint32_t tsr_dcp_low(uint64_t word)
{
    return (uint32_t)word;
}
static inline uint32_t tsr_dcp_high(uint64_t word)
{
    return (uint32_t)(word >> 32);
}
static inline uint32_t tsr_dcp_chunk_offsets(uint64_t chunk)
{
    return tsr_dcp_low(chunk) >> 4;
}
static inline uint32_t tsr_dcp_chunk_sizes(uint64_t chunk)
{
    return tsr_dcp_high(chunk);
}

/* One metadata file: `.metadata`, or the `__R.metadata` of a rank. */
typedef struct tsr_dcp_metadata_file {
    tsr_dcp_metadata metadata;
    uint32_t file;
    tsr_chunk *chunks; /* of all its tensors and objects, those of one entry contiguous; owned by the source */
    uint64_t chunk_count, chunk_room;
    tsr_vec parts; /* tsr_dcp_part */
} tsr_dcp_metadata_file;

/* The chunks that one source has for one entry. */
typedef struct tsr_dcp_part {
    uint64_t first; /* index in source.chunks */
    uint64_t count;
    uint32_t entry;
} tsr_dcp_part;

/* The shape of a tensor before Megatron-Core stored it as flat ranges of fragments. */
typedef struct tsr_dcp_original {
    uint64_t entry; /* index in the catalog */
    const uint64_t *shape;
    uint32_t ndim;
} tsr_dcp_original;

typedef struct tsr_dcp_state {
    tsr_dcp_metadata_file *sources;
    uint32_t source_count;
    tsr_map *names;      /* FQN → entry; only while opening */
    tsr_vec entries;     /* tsr_entry; only while opening */
    tsr_map *transforms; /* key of (file, byte_offset) → tsr_dcp_transform, of items that are not plain; NULL if all are */
    tsr_str extension;   /* the user's own stream extension that items went through; empty if there is none */
    uint64_t extended_count;           /* of such items */
    uint8_t *file_uses;                /* a tsr_dcp_use per file of the store */
    const tsr_dcp_original *originals; /* in the order of mcore_data */
    uint64_t original_count;
    bool has_mcore_data;
    bool is_megatron; /* the metadata has attributes that only Megatron-Core writes */
    void *form;       /* data of a format that is a DCP with additions; in the arena */
} tsr_dcp_state;

typedef enum tsr_dcp_use {
    TSR_DCP_UNUSED,
    TSR_DCP_OBJECTS,    /* no tensor seen yet */
    TSR_DCP_TORCH,      /* contains torch.save archives */
    TSR_DCP_SAFETENSORS /* is a safetensors file, possibly after some blobs */
} tsr_dcp_use;

static inline tsr_dcp_state *tsr_dcp_state_of(const tsr_checkpoint *checkpoint)
{
    return checkpoint->state;
}

/* No entry of that FQN among those collected so far. */
#define TSR_DCP_NO_ENTRY UINT32_MAX

/* Stores the original shapes in `mcore_data`. Fails with TSR_E_FORMAT if one is not made of sizes. */
tsr_status tsr_dcp_keep_originals(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err);
/* Sets the file, offset and length of a source's chunks. `entries` and their parts must be complete for this source. */
tsr_status tsr_dcp_place(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err);
/* Opens the safetensors files among the data files and gives their chunks a view. */
tsr_status tsr_dcp_place_safetensors(tsr_checkpoint *checkpoint, tsr_error *err);

tsr_dcp_transform tsr_dcp_transform_of(const tsr_dcp_state *state, const tsr_chunk *chunk);
static inline bool tsr_dcp_is_zstd(const tsr_dcp_state *state, const tsr_chunk *chunk)
{
    return tsr_dcp_transform_of(state, chunk) == TSR_DCP_ZSTD;
}
/* An item of a data file: what torch.save wrote for one chunk or object. */
typedef struct tsr_dcp_item {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    const tsr_chunk *chunk;
} tsr_dcp_item;

/* Opens an item in `arena`. For zstd items, positions refer to the decompressed bytes. */
tsr_status tsr_dcp_open_item(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                             tsr_error *err);
/* Reads a zstd item to its end, and adds a finding for each member whose bytes do not match its CRC. `members` are the
 * archive's, sorted by byte_offset. */
tsr_status tsr_dcp_check_zstd(tsr_dcp_item item, const tsr_zip_member *members, uint32_t count, tsr_arena *scratch,
                              tsr_error *err);
/* Adds a finding for an error in an item. Errors that are not the item's fault are passed on. */
tsr_status tsr_dcp_report_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                               const tsr_error *why, tsr_error *err);
/* Checks that an opened item is the tensor described in the metadata, and sets *out to its view in the file. */
tsr_status tsr_dcp_view_of(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_torch_item *item, tsr_arena *arena,
                           tsr_view *out, tsr_error *err);
tsr_status tsr_dcp_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_stated_crc *out, tsr_error *err);
tsr_status tsr_dcp_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                        tsr_found *out, tsr_error *err);
tsr_status tsr_dcp_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_view *out, tsr_error *err);
/* The items of `entries`, which need not be those of the catalog. */
tsr_status tsr_dcp_extents_of(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err);
/* Turns tensors whose items store a tensor subclass into opaque entries with its inner tensors, if the items' lengths reveal
 * them. */
tsr_status tsr_dcp_find_subclasses(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err);
/* Reads the values of byte items. */
tsr_status tsr_dcp_read_objects(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err);
/* Adds the finding dcp/item for a data file that is longer than its items and whose last one cannot be read. PyTorch replaces .metadata last,
 * and files end with their last item: where a save into the same directory was interrupted, .metadata is that of the one before. */
tsr_status tsr_dcp_check_ends(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count, tsr_error *err);

/* Folds the objects in the pickle of a `.metadata` file into the records above, while it is parsed. */

/* Ids of the classes whose objects stay in the pickle. */
enum { TSR_DCP_ID_METADATA = 32, TSR_DCP_ID_LISTED /* all others that are accepted */ };

/* dcp_fold.c: the classes that `.metadata` may name, `count` of them. */
const tsr_pickle_name *tsr_dcp_listed(size_t *count);
/* Parses `bytes`. Sets the pickle, its end, and the positions of what is odd in it; fills the vectors and names of `out`, which
 * must be empty. On failure, `out` may be partly filled. */
tsr_status tsr_dcp_fold(tsr_str bytes, const tsr_host *host, tsr_dcp_metadata *out, tsr_error *err);

/* Reports, as findings, what unpickling a `.metadata` file would do besides creating data, and where it would fail. */
tsr_status tsr_dcp_judge_pickle(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err);

#endif
