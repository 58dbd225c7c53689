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
#ifndef TSR_FORMATS_DCP_DCP_METADATA_H
#define TSR_FORMATS_DCP_DCP_METADATA_H

#include "codec/pickle.h"
#include "formats/dcp/dcp_names.h"
#include "tessera/dtype.h"

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

#endif
