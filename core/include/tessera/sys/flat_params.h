/* FSDP1 flat parameters: the contents of tessera.flat-params/1, and the conversion of their optimizer state in both
 * directions.
 *
 *   flat parameter    | emb.weight (33) | c.weight (6) | c.bias (3) |        originals, flattened, in order
 *   3 ranks           |--- rank 0: 14 ---|--- rank 1: 14 ---|--- rank 2: 14 ---|   equal slices; the last are padded
 *
 * With use_orig_params the spans between originals are aligned (padding spans) and optimizers see each original's slice as
 * a parameter of its own. All numbers are elements ("numel"); ranges are half-open.
 *
 * Source of the behavior: torch/distributed/fsdp/_optim_utils.py and _flat_param.py of PyTorch 2.13.
 *
 * Example:
 *
 *     tsr_flat_params flat;
 *     uint64_t begin, end;
 *     status = tsr_flat_params_parse(text, host, arena, &flat, &err);
 *     if (status == TSR_OK) {
 *         tsr_flat_shard_range(&flat.units[0], flat.world_size, 0, &begin, &end);
 *         printf("rank 0 has elements %llu to %llu\n", (unsigned long long)begin, (unsigned long long)end);
 *     } */
#ifndef TESSERA_SYS_FLAT_PARAMS_H
#define TESSERA_SYS_FLAT_PARAMS_H

#include "tessera/catalog.h"
#include "tessera/comm.h"
#include "tessera/mesh.h"
#include "tessera/modules.h"

TSR_API_BEGIN

typedef struct tsr_flat_param {
    tsr_str fqn; /* global */
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t flat_begin, flat_end; /* in the flat parameter; elements between two originals are padding */
    bool needs_state; /* known to require gradients: in original-parameter mode its unit cannot have state without it */
} tsr_flat_param;

typedef struct tsr_flat_unit {
    tsr_str fsdp_module;
    tsr_str raw_name;             /* of the flat parameter; empty with use_orig_params */
    const tsr_flat_param *params; /* in flat order */
    uint32_t param_count;
    const tsr_flat_shared *shared; /* second names of tied originals, global */
    size_t shared_count;
    uint64_t numel;  /* end of the last original: padding behind it depends on the world size */
    bool is_sharded; /* false: NO_SHARD */
    bool is_hybrid;  /* cut among the ranks of one replica (tsr_flat_params.shard_groups), not among all */
} tsr_flat_unit;

#define TSR_NO_PARAM UINT32_MAX

typedef struct tsr_flat_params {
    uint32_t world_size;
    bool use_orig_params;
    const tsr_str *files; /* world_size of them, or none */
    size_t file_count;
    const tsr_flat_unit *units;
    uint32_t unit_count;
    const tsr_name_list *groups; /* raw parameter names of each param group; ids count through them */
    size_t group_count;
    /* HYBRID strategies: replicas of shard_size ranks each, their ranks in the order of the slices, one replica after the
     * other; world_size numbers. NULL: no unit is hybrid. */
    const uint32_t *shard_groups;
    uint32_t shard_size;
} tsr_flat_params;

/* Reads a tessera.flat-params/1 document into `arena`. Errors: TSR_E_FORMAT with the place in the document (numels that are
 * not their shapes', a name twice, a unit without a raw name, …), TSR_E_LIMIT, TSR_E_NOMEM. (core/documents) */
tsr_status tsr_flat_params_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_flat_params *out, tsr_error *err);

/* The part of a flat parameter that is in one rank's slice of it: torch.chunk. Ranks behind the end have none. */
void tsr_flat_shard_range(const tsr_flat_unit *unit, uint32_t world_size, uint32_t rank, uint64_t *flat_begin,
                          uint64_t *flat_end);
/* Elements of one rank's slice of a flat parameter, padding included (torch.chunk, padded to equal slices). */
uint64_t tsr_flat_shard_numel(const tsr_flat_unit *unit, uint32_t world_size);

/* The environment of the conversions below. */
typedef struct tsr_fsdp_context {
    const tsr_host *host;
    tsr_arena *arena;    /* results live here */
    uint32_t zeros_file; /* of the store that the tensors are in: a file that begins with 16 zero bytes */
    /* Whether two tensors of one dtype and shape hold equal bytes; NULL: they are assumed to be equal.
     * tsr_fsdp_unshard and tsr_fsdp_shard ask only about 0-d tensors, tsr_fsdp_differences about all. */
    tsr_status (*same)(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
    void *ctx;
    /* Parameters outside of units may have state on some ranks only. PyTorch's flat mode refuses such state if rank 0
     * has it, and drops it if rank 0 does not. With keep_own neither happens. */
    bool keep_own;
} tsr_fsdp_context;

/* Each rank's raw `optimizer.state_dict()` (world_size trees) → the full state keyed by FQN, as `FSDP.optim_state_dict` with
 * FULL_STATE_DICT gives it on `rank`. Tensors of the result are entries whose chunks are the ranks' slices, viewed to the
 * original shapes; padding is gone. State that FSDP does not shard comes from `rank` itself: state of parameters outside of
 * units and of NO_SHARD units, scalars of flat parameters, param groups, and state that belongs to no parameter, whose keys
 * are listed in `carried`. Scalars of original parameters must agree on all ranks that have a slice. Of hybrid units the
 * slices of the rank's replica are used. Errors: TSR_E_FORMAT for slices of a wrong size or dtype, ranks that lack what rank
 * 0 has, ids that no group lists; they name parameter, state, rank and both values. */
typedef struct tsr_fsdp_full {
    const tsr_value *optim;
    const tsr_str *carried;
    size_t carried_count;
} tsr_fsdp_full;
tsr_status tsr_fsdp_unshard(const tsr_flat_params *flat, const tsr_value *const *ranks, uint32_t rank,
                            const tsr_fsdp_context *context, tsr_fsdp_full *out, tsr_error *err);

/* One of the ranks that state is cut for. */
typedef struct tsr_fsdp_rank {
    uint32_t world_size, rank;
} tsr_fsdp_rank;

/* Converts the full state to a rank's part of it, keyed by id, as `FSDP.optim_state_dict_to_load` returns it. Originals
 * without state become zeros in a flat parameter's state; a scalar must exist and be equal for all of its originals. `full`
 * may lack param_groups; then the result lacks them, too. Chunks of tensors are raw bytes or have their views. Errors:
 * TSR_E_FORMAT for differing state names, types, dtypes, shapes or scalars inside one flat parameter, for names that no
 * group lists, and for elements that no chunk holds. */
tsr_status tsr_fsdp_shard(const tsr_flat_params *flat, const tsr_value *full, tsr_fsdp_rank of,
                          const tsr_fsdp_context *context, const tsr_value **out, tsr_error *err);

/* Converts the full state to a rank's sharded state, as `FSDP.optim_state_dict` with SHARDED_STATE_DICT returns it:
 * every tensor with dimensions is cut on dim 0 by torch.chunk among the ranks that cut its unit. Tensors of the result keep
 * their global shape; their chunks are the rank's rows alone (one empty chunk where it has none). With a mesh they are
 * DTensors (entry.distribution has the mesh and the placements: shard(0), or replicate, shard(0) on two dims), without one
 * ShardedTensors (no distribution); FSDP chooses in the same way (`_use_dtensor`). Back to the full state: a catalog of all
 * ranks' files (formats), or tsr_rows_gather. Errors as tsr_fsdp_shard; TSR_E_USAGE for a mesh that is not the world's. */
typedef struct tsr_fsdp_rows {
    uint32_t world_size, rank;
    const tsr_mesh *mesh; /* or NULL */
} tsr_fsdp_rows;
tsr_status tsr_fsdp_shard_rows(const tsr_flat_params *flat, const tsr_value *full, const tsr_fsdp_rows *options,
                               const tsr_fsdp_context *context, const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
