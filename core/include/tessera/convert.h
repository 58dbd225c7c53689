/* Converts a checkpoint: to another container, to other names, or to another floating-point type.
 *
 * The output depends only on the source's content and the options, not on the time or the number of threads. Strides,
 * conjugation and byte order are resolved, and values stay exact: nothing is cast, dropped or saturated unless the options ask
 * for it.
 *
 * Example:
 *
 *     const tsr_convert_options options = {.to = TSR_TO_TORCH, .dtype = TSR_BFLOAT16};
 *     tsr_conversion written;
 *     status = tsr_convert(checkpoint, output, &options, arena, &written, &err);
 *     if (status == TSR_OK) status = output->publish(output, written.marker, &err);
 *     output->close(output); */
#ifndef TESSERA_CONVERT_H
#define TESSERA_CONVERT_H

#include "tessera/output.h"
#include "tessera/plan.h"
#include "tessera/read.h"
#include "tessera/shards.h"
#include "tessera/torch_version.h"
#include "tessera/validate.h"

TSR_API_BEGIN

typedef enum tsr_container {
    TSR_TO_SAFETENSORS,         /* one file, or several and model.safetensors.index.json */
    TSR_TO_TORCH,               /* one torch.save file */
    TSR_TO_DCP,                 /* a directory for torch.distributed.checkpoint */
    TSR_TO_MEGATRON,            /* the same with what megatron.core.dist_checkpointing adds: the directory of an iteration */
    TSR_TO_DEEPSPEED_UNIVERSAL, /* a directory for DeepSpeed's load_universal_checkpoint; tsr_convert only */
    TSR_TO_RANKS                /* a directory with plain tensors in one file per rank, cut by a map of shards */
} tsr_container;

/* The container that a reshard writes by default: dcp for dcp, megatron-dist for megatron-dist, safetensors for
 * safetensors of any kind, otherwise torch. */
tsr_container tsr_container_for(tsr_format format);

/* How entries that are not tensors are handled. By default dcp and torch keep them and safetensors refuses them. A sidecar is a
 * JSON document (tsr_conversion.sidecar): {"schema": "tessera.objects/1", "objects": [{fqn, type, value or repr}]}. */
typedef enum tsr_objects {
    TSR_OBJECTS_DEFAULT,
    TSR_OBJECTS_KEEP,
    TSR_OBJECTS_DROP,
    TSR_OBJECTS_SIDECAR,
    TSR_OBJECTS_REFUSE
} tsr_objects;

typedef struct tsr_convert_options {
    size_t size; /* TSR_OPTIONS sets it */
    tsr_container to;
    tsr_objects objects;
    bool (*want)(void *ctx, tsr_str fqn); /* returns true for entries to write, by their names in the source; NULL: all */
    void *want_ctx;
    /* Gives the name at the destination in `*out`, which may be `fqn` itself or live in `arena`. NULL: names stay. */
    tsr_status (*rename)(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err);
    void *rename_ctx;
    /* TSR_DTYPE_NONE, or what floating tensors become, except the scalars of optimizer state (tessera/sys/read.h states the
     * rounding) */
    tsr_dtype dtype;
    bool raw_cast;           /* cast quantized numbers and their scales too, each by itself; otherwise that is refused */
    uint64_t max_shard_size; /* safetensors: most bytes of tensors per file; 0: a single file */
    bool per_part;       /* safetensors: a directory with a file PART.safetensors per part, with the part's name stripped */
    size_t max_memory;   /* of the ring; 0: its default */
    uint64_t unit_bytes; /* of work (work.h); 0: the default. Part of what a record means */
    const tsr_shards *shards; /* TSR_TO_RANKS: the map, which is not a built-in one */
    uint32_t world_size;      /* TSR_TO_RANKS: tensor-parallel ranks times pipeline stages */
    bool ignore_crc;          /* do not compare the bytes read with the CRCs that the source states */
    bool no_checksums;        /* state no checksums in the output: zeros for CRCs, no tessera.crc32 */
    bool dry_run;             /* decide everything, write nothing; the output may be NULL */
    const tsr_progress *progress;
    tsr_torch_version for_torch; /* not safetensors: which PyTorch must be able to load the output */
    /* NULL: the checkpoint as it is. Otherwise it is written as the ranks of the plan's target hold it (below). */
    const tsr_plan *plan;
    /* With `plan`: NULL, or the servers of the source (tessera/sys/plan.h). The work is then shared (tessera/sys/work.h) so
     * that the servers are busy for equal times, and each share begins at another server. The output does not change. */
    const struct tsr_storage *storage;
    tsr_str
        file_name; /* the name of a single file in a directory; empty: the output is the file itself, which is named "" */
} tsr_convert_options;

/* The outcome for one entry of the source. Rows are in the source's order. */
typedef struct tsr_converted {
    const tsr_entry *entry;
    tsr_str name;    /* at the destination; empty when left out */
    tsr_dtype dtype; /* of a written tensor */
    uint64_t bytes;  /* written for it */
    uint32_t file;   /* of tsr_conversion.files, for written tensors */
    bool written;
    bool cast;
    bool kept;         /* a scalar of an optimizer's state, such as `step`, which `dtype` does not cast */
    bool copied;       /* it shares storage in the source and is an independent copy now */
    bool replicated;   /* with a plan: the target's default cuts a dim that the tensor does not have, so it is whole there */
    bool weights_only; /* objects: torch.load(weights_only=True) will accept it */
    const char *left_out;                  /* static text: why it was not written; NULL when it was */
    const struct tsr_converted *second_of; /* safetensors: it is only stated in the metadata, as another name of this one */
} tsr_converted;

/* Values that casts did not keep as numbers, in all tensors together, and the first tensor with such values. */
typedef struct tsr_lost_values {
    uint64_t count;
    tsr_str fqn;     /* of that tensor */
    tsr_dtype dtype; /* what it was cast to */
} tsr_lost_values;

typedef struct tsr_conversion {
    const tsr_converted *rows;
    uint64_t row_count;
    const tsr_str *files; /* names at the destination */
    const uint64_t *file_sizes;
    uint32_t file_count;
    uint32_t marker;     /* for tsr_output.publish: the output's number of the file that becomes visible last */
    uint64_t byte_total; /* of tensors */
    tsr_str sidecar;     /* JSON, with TSR_OBJECTS_SIDECAR and at least one object; otherwise empty */
    bool lacks_objects;  /* there is no sidecar only because no objects were selected */
    /* Values of the source that became zero and were not, and finite ones that were too large for their dtype. */
    tsr_lost_values zeros, overflows;
} tsr_conversion;

/* Writes everything but does not publish: the caller checks that its source did not change, then calls
 * output->publish(output, out->marker, err), and closes the output either way. Results live in `arena` and borrow the
 * checkpoint.
 *
 * Safetensors files get the source's metadata (tsr_catalog.metadata), and second names stay second names of what is written.
 *
 * TSR_TO_RANKS writes the files that the map's `ranks` names (rank{tp}.pt without one, mp_rank_{tp}_{pp}/model_optim_rng.pt
 * with stages), as safetensors where they are called so and with torch.save otherwise. Opened with the same map, they are the
 * source again. Tensors outside of the layers go into the files of every stage, and tensors without a rule into those of every
 * rank. TSR_E_USAGE for a tensor that cannot be cut evenly.
 *
 * Errors before the first byte is written: those of tsr_check_casts; TSR_E_UNSUPPORTED naming the entries that the container
 * cannot store (for safetensors: complex32, complex128, quantized, bits and opaque tensors, objects unless they are dropped or
 * go to a sidecar, and an empty name); TSR_E_USAGE for two entries that would get the same name, and for a cast to a type that
 * is not a floating-point type; TSR_E_FORMAT for tensors with holes. Later errors are those of reading and writing. Uses the
 * host's threads.
 *
 * With `plan` each rank's part is written (reshard): `max_shard_size` is not used, and tensors that the plan does not have
 * are left out. The result depends on `to`:
 *
 *   dcp          __R_0.distcp of the ranks, every distinct shard once, in the file of a rank that holds it; `.metadata`
 *   megatron     the same, objects by shards, common.pt and metadata.json
 *   safetensors  shard-RRRRR-model-… files as DCP's HuggingFaceStorageWriter names them, one per rank that owns shards
 *   torch        rankR.pt, one per rank, with all that the rank holds: DTensors over the target's mesh, and the objects
 *
 * Additional error: TSR_E_UNSUPPORTED for safetensors when a shard consists of several boxes (uneven strided shards). */
tsr_status tsr_convert(tsr_checkpoint *checkpoint, tsr_output *output, const tsr_convert_options *options, tsr_arena *arena,
                       tsr_conversion *out, tsr_error *err);

TSR_API_END

#endif
