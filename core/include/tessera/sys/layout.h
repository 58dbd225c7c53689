/* Boxes of elements, layouts of shards, tilings, and what holds for every layout. */
#ifndef TESSERA_SYS_LAYOUT_H
#define TESSERA_SYS_LAYOUT_H

#include "tessera/box.h"
#include "tessera/mesh.h"
#include "tessera/sys/containers.h"
#include "tessera/validate.h"

TSR_API_BEGIN

/* Shard layouts: the part of a tensor that each rank holds, for all ranks together.
 *
 * A layout over a mesh is symbolic: tensor dims are cut independently, so it is one table of runs per dim and a rank is
 * a position in each. Its size grows with the mesh dims that cut a dim, never with ranks × tensors:
 *
 *   shape [6, 4], mesh a=2,b=2, shard(0),shard(1)     dim 0: 0-3 | 3-6      rank 2 (a=1, b=0): 3-6 × 0-2
 *                                                     dim 1: 0-2 | 2-4
 *
 * An explicit layout lists the boxes of every rank (flat ranges of FSDP1 are such).
 *
 * Example:
 *
 *     const uint64_t shape[] = {10, 4};
 *     tsr_layout layout;
 *     tsr_shard shard;
 *     status = tsr_layout_over_mesh(&(tsr_sharding){&mesh, placements, TSR_STRIDED_FSDP}, (tsr_shape){2, shape}, arena,
 *                                   &layout, &err);
 *     if (status == TSR_OK) status = tsr_layout_shard(&layout, 0, arena, &shard, &err); */

/* One tensor dim under a mesh. */
typedef struct tsr_dim_layout {
    uint32_t cut_count;                    /* mesh dims that cut this tensor dim */
    uint32_t mesh_dims[TSR_MESH_MAX_DIMS]; /* in mesh order; a position is row-major over their coordinates */
    uint64_t positions;
    const uint64_t *first; /* positions + 1 numbers: the runs of position p are [first[p], first[p + 1]) */
    const tsr_span *runs;
    const uint64_t *local; /* where each run begins in the local tensor */
} tsr_dim_layout;

typedef struct tsr_layout {
    uint32_t ndim; /* of the tensor */
    const uint64_t *shape;
    uint64_t ranks;
    /* Over a mesh; NULL for an explicit layout. */
    const tsr_mesh *mesh;
    const tsr_dim_layout *dims;
    uint64_t copies; /* ranks that hold each box: those that differ in mesh dims that cut nothing */
    uint32_t copy_dim_count;
    uint32_t copy_dims[TSR_MESH_MAX_DIMS];
    const tsr_shard *shards; /* explicit: one per rank */
    /* Explicit, and local tensors are 1-d: the elements of a box lie one after the other, in row-major order, from
     * local_offsets[0] on; the other local offsets are 0. local_shape is [numel, 1, …]. */
    bool flat;
} tsr_layout;

/* The layout of a shape under placements (mesh->dim_count of them). Borrows mesh and shape; tables live in `arena`.
 * Errors as tsr_mesh_shard. */
tsr_status tsr_layout_over_mesh(const tsr_sharding *how, tsr_shape shape, tsr_arena *arena, tsr_layout *out, tsr_error *err);
/* Borrows everything. Boxes of different ranks may be equal; they count as different shards. */
tsr_layout tsr_layout_explicit(uint64_t ranks, const tsr_shard *shards, uint32_t ndim, const uint64_t *shape);

/* The shard of rank `holder` (< layout->ranks), in the form of tsr_mesh_shard. */
tsr_status tsr_layout_shard(const tsr_layout *layout, uint64_t holder, tsr_arena *arena, tsr_shard *out, tsr_error *err);
/* Elements of it. O(tensor rank). */
uint64_t tsr_layout_elements(const tsr_layout *layout, uint64_t holder);
/* Every distinct shard has a first holder, the lowest rank that has it; its copies are holders 0 (the first) to
 * layout->copies - 1, ascending. */
bool tsr_layout_is_first(const tsr_layout *layout, uint64_t holder);
uint64_t tsr_layout_copy(const tsr_layout *layout, uint64_t first, uint64_t copy);

/* FSDP1: the parameters of one unit flattened, concatenated, padded and cut into equal slices.
 *
 *   | w0 ........ |pad| w1 ...... |pad| w2 .. | tail padding |
 *   |<- slice of rank 0 ->|<- slice of rank 1 ->|<- slice of rank 2 ->|
 *
 * With alignment (use_orig_params: 16 bytes) each parameter but the first begins at a multiple of it and the whole is
 * padded to a multiple of the world size; without, only the last slices are padded. Source: FlatParamHandle.
 * _init_flat_param_and_metadata and _get_shard of PyTorch 2.13. */
typedef struct tsr_flat_layout {
    uint64_t count;               /* parameters */
    const uint64_t *flat_offsets; /* where each begins, in numel */
    const uint64_t *numels;
    uint64_t flat_numel;  /* with the padding between and behind them, without the padding of slices */
    uint64_t slice_numel; /* of every rank, padding included */
    uint64_t ranks;
} tsr_flat_layout;

typedef struct tsr_flat_numels {
    const uint64_t *numels;
    uint64_t count;
    uint64_t alignment; /* in numel, 0: none */
} tsr_flat_numels;
/* Errors: TSR_E_LIMIT on overflow. */
tsr_status tsr_flat_layout_make(tsr_flat_numels of, uint64_t ranks, tsr_arena *arena, tsr_flat_layout *out, tsr_error *err);
/* The elements of parameter `index` that `holder` has, as a range of the flattened parameter; size 0: none. torch's
 * [start, end] with end inclusive is {start, end - start + 1}. */
tsr_span tsr_flat_layout_range(const tsr_flat_layout *flat, uint64_t index, uint64_t holder);

/* The part of parameter `index` (a tensor of `shape`) that each rank holds: its range as boxes, in a 1-d local tensor. In
 * `arena`; borrows shape. */
tsr_status tsr_layout_flat(const tsr_flat_layout *flat, uint64_t index, tsr_shape shape, tsr_arena *arena, tsr_layout *out,
                           tsr_error *err);

/* A row-major range [range) of a tensor's elements as boxes, in order: at most 2 × ndim - 1. A 1-d local tensor holds
 * them one after another, so their local offsets are 1-d too and not given. `offsets` and `sizes` have room for
 * (2 × ndim - 1) × ndim numbers each (at least 1); returns the number of boxes. The range is within the tensor. */
uint32_t tsr_range_boxes(uint32_t ndim, const uint64_t *shape, tsr_span range, uint64_t *offsets, uint64_t *sizes);

/* The tensor dim that a placement cuts: false when it cuts none (replicate, partial) or none of this tensor's. */
bool tsr_placement_dim(const tsr_placement *placement, uint32_t ndim, uint32_t *dim);

/* The runs along one tensor dim of `size` that a rank at `coordinate` holds, ascending and disjoint, appended to `spans`
 * (of tsr_span). Neighboring runs are joined. Pieces of tsr_mesh_shard, for layouts that tabulate them. */
tsr_status tsr_mesh_spans(const tsr_sharding *how, tsr_shape shape, uint32_t dim, const uint64_t *coordinate, tsr_vec *spans,
                          tsr_error *err);

/* `coordinate` has room for dim_count numbers; `rank` < tsr_mesh_ranks. And back. */
void tsr_mesh_coordinate(const tsr_mesh *mesh, uint64_t rank, uint64_t *coordinate);
uint64_t tsr_mesh_rank_at(const tsr_mesh *mesh, const uint64_t *coordinate);

/* The texts that tsr_mesh_parse and tsr_placements_parse read; data NULL on TSR_E_NOMEM. */
tsr_str tsr_mesh_text(const tsr_mesh *mesh, tsr_arena *arena, tsr_error *err);
tsr_str tsr_placements_text(const tsr_placement *placements, uint32_t count, tsr_arena *arena, tsr_error *err);

/* Parses placements such as "shard(0),replicate", separated by top-level commas. Each is replicate, partial, shard(d) or
 * strided_shard(d, f). The result lives in `arena`. Errors: TSR_E_USAGE, with the byte position in `text`. */
tsr_status tsr_placements_parse(tsr_str text, tsr_arena *arena, tsr_placement **out, uint32_t *count, tsr_error *err);

/* The number of ranks of a mesh: the product of its sizes. */
uint64_t tsr_mesh_ranks(const tsr_mesh *mesh);

/* Computes the shard of mesh rank `mesh_rank` (< tsr_mesh_ranks), in O(mesh dims × boxes). A `partial` placement has the
 * boxes of `replicate`, although its values are only summands. Errors: TSR_E_USAGE if a placement names a dim that the
 * tensor does not have; TSR_E_LIMIT for more than TSR_MAX_NDIM dims or too many boxes. */
tsr_status tsr_mesh_shard(const tsr_sharding *how, tsr_shape shape, uint64_t mesh_rank, tsr_arena *arena, tsr_shard *out,
                          tsr_error *err);

/* Volumes, indices and intersections of boxes (tessera/box.h). Everything here is pure and thread-safe; nothing allocates.
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6}, offsets[] = {6, 0}, sizes[] = {4, 6};
 *     const tsr_box tensor = {2, NULL, shape}, chunk = {2, offsets, sizes};
 *     uint64_t common_offsets[2], common_sizes[2];
 *     if (tsr_box_intersect(tensor, chunk, common_offsets, common_sizes))
 *         printf("%llu rows of the chunk are in the tensor\n", (unsigned long long)common_sizes[0]); */

/* The offset of a box along `dim` (< ndim), in elements. Boxes without offsets begin at 0. */
static inline uint64_t tsr_box_offset(tsr_box box, uint32_t dim)
{
    return box.offsets ? box.offsets[dim] : 0;
}

/* Elements; false on overflow. A box with a zero size has none, whatever its other sizes. */
bool tsr_box_volume(tsr_box box, uint64_t *elements);
bool tsr_box_is_empty(tsr_box box);
/* Whether every offset + size of `inner` is within `outer`; empty boxes at the far edge are within. */
bool tsr_box_contains(tsr_box outer, tsr_box inner);
/* The common part, in the coordinates of both; `offsets` and `sizes` have room for `ndim` numbers. False when it is empty. */
bool tsr_box_intersect(tsr_box a, tsr_box b, uint64_t *offsets, uint64_t *sizes);

/* The runs of bytes that a box is made of, inside the boxes that it is copied from and to. Pure and thread-safe; nothing
 * allocates.
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6}, offsets[] = {2, 1}, sizes[] = {3, 2};
 *     const tsr_box tensor = {2, NULL, shape}, part = {2, offsets, sizes};
 *     tsr_box_walk walk;
 *     for (tsr_box_walk_start(&walk, part, tensor, part); walk.runs_left; tsr_box_walk_next(&walk))
 *         printf("%llu elements at %llu\n", (unsigned long long)walk.run, (unsigned long long)walk.index_a); */

/* Whether two boxes have the same offsets and sizes. */
bool tsr_box_equal(tsr_box a, tsr_box b);
/* Enlarges the box {ndim, offsets, sizes} until it also contains `box`. */
void tsr_box_enclose(uint32_t ndim, uint64_t *offsets, uint64_t *sizes, tsr_box box);
/* Row-major index inside `parent` of the element at `at` (coordinates of the tensor). `parent`'s volume must not
 * overflow and `at` must be inside. */
uint64_t tsr_box_index(tsr_box parent, const uint64_t *at);
/* Whether `inner` is one contiguous run of its parent's row-major elements. */
bool tsr_box_is_contiguous(tsr_box parent, tsr_box inner);

/* Walks the runs of `inner` that are contiguous in both `a` and `b` (two boxes that contain it: where its elements come
 * from and where they go), in row-major order of `inner`:
 *
 *   for (tsr_box_walk_start(&walk, inner, a, b); walk.runs_left; tsr_box_walk_next(&walk))
 *       copy(walk.run elements from index walk.index_a of a to index walk.index_b of b);
 *
 * Pass the same box twice to walk one parent. Volumes of a and b must not overflow. An empty box has no runs. */
typedef struct tsr_box_walk {
    uint64_t run;       /* elements of every run */
    uint64_t runs_left; /* this one included */
    uint64_t index_a;
    uint64_t index_b;
    uint32_t outer; /* leading dims that vary from run to run */
    uint64_t at[TSR_MAX_NDIM];
    uint64_t counts[TSR_MAX_NDIM];
    uint64_t strides_a[TSR_MAX_NDIM];
    uint64_t strides_b[TSR_MAX_NDIM];
} tsr_box_walk;

/* `walk` borrows nothing of the boxes; no other call may be on it at the same time. */
void tsr_box_walk_start(tsr_box_walk *walk, tsr_box inner, tsr_box a, tsr_box b);
void tsr_box_walk_next(tsr_box_walk *walk);

/* Parts of tensors as people write them: "w[0:2,:,3]".
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6};
 *     tsr_slice slice;
 *     status = tsr_slice_parse(TSR_STR("0:2,-1"), 2, shape, &slice, &err);
 *     if (status == TSR_OK) printf("%llu rows\n", (unsigned long long)slice.shape[0]); */

/* A part of a tensor as text gives it, "w[0:2,:,3]". */
typedef struct tsr_slice {
    uint64_t offsets[TSR_MAX_NDIM];
    uint64_t sizes[TSR_MAX_NDIM];
    uint64_t shape[TSR_MAX_NDIM]; /* of the result: dims taken by a number are gone */
    uint32_t ndim;                /* of the result */
} tsr_slice;

/* The part of `text` before a trailing "[…]", which goes to *inside ({NULL, 0} when there is none). */
tsr_str tsr_slice_split(tsr_str text, tsr_str *inside);
/* `inside` as Python's basic indexing without steps: numbers, a:b with either side open, negative from the end, "..." once.
 * Errors: TSR_E_USAGE, which names the wrong part and the allowed values. An absent slice (data NULL) is the whole
 * tensor. */
tsr_status tsr_slice_parse(tsr_str inside, uint32_t ndim, const uint64_t *shape, tsr_slice *out, tsr_error *err);

/* Whether chunks tile their tensor exactly, and where they do not.
 *
 * Example:
 *
 *     tsr_tiling tiling;
 *     status = tsr_tiling_check(host->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count,
 *                               &tiling, &err);
 *     if (status == TSR_OK && tiling.exact) printf("every element is in exactly one chunk\n"); */

#define TSR_NO_CHUNK UINT64_MAX /* where a number of a chunk is expected */

/* How a list of chunks tiles a tensor. Chunk numbers are indexes into the list. */
typedef struct tsr_tiling {
    bool exact;          /* every element is in exactly one chunk, and no chunk leaves the tensor */
    uint64_t outside;    /* a chunk that leaves the tensor, or TSR_NO_CHUNK; its part inside still counts below */
    uint64_t overlap[2]; /* two chunks with common elements (lower number first), or TSR_NO_CHUNK */
    uint64_t overlap_offsets[TSR_MAX_NDIM]; /* one element that both hold */
    uint64_t missing;                       /* elements in no chunk */
    bool missing_at_least;                  /* damage so widespread that counting stopped: `missing` is a lower bound */
    uint64_t hole_offsets[TSR_MAX_NDIM];    /* with missing > 0: a box that no chunk touches */
    uint64_t hole_sizes[TSR_MAX_NDIM];
    uint64_t empty_chunks; /* chunks without elements: normal for trailing ranks */
} tsr_tiling;

/* Time O(count × ndim) for an exact tiling of any kind, O(count × ndim × log count) to locate the fault of any other list.
 * An exact tiling is always recognized; another is taken for exact with probability below rank / 2^61 (the chunks'
 * indicator functions are compared with the tensor's by a random multilinear form over the integers mod 2^61 - 1, seeded
 * from the chunks). Errors: TSR_E_LIMIT beyond TSR_MAX_NDIM dims or when the tensor's elements overflow, TSR_E_NOMEM. */
tsr_status tsr_tiling_check(const tsr_allocator *allocator, tsr_shape shape, const tsr_chunk *chunks, uint64_t count,
                            tsr_tiling *out, tsr_error *err);
/* Fails with TSR_E_FORMAT unless each element of a tensor is in exactly one of its chunks: only then can it be read as a whole. Other
 * errors as above. */
tsr_status tsr_entry_must_tile(const tsr_entry *entry, const tsr_allocator *allocator, tsr_error *err);

/* Which entries of a checkpoint a contract (tessera/validate.h) is about, and what it allows for each.
 *
 * Example:
 *
 *     tsr_contract contract = {.prefix = TSR_STR("model.")};
 *     tsr_str name;
 *     if (tsr_contract_name(&contract, entry->fqn, &name) && tsr_contract_allows(&contract, name) & TSR_ANY_DTYPE)
 *         printf("%.*s may have any dtype\n", TSR_STR_ARG(name)); */

/* The name that an entry of a checkpoint has for the contract: without the prefix; false if the contract ignores the
 * entry. */
bool tsr_contract_name(const tsr_contract *contract, tsr_str fqn, tsr_str *out);

/* The rule for a name, or NULL; and the differences that are allowed for it, as bits of tsr_leniency. */
uint32_t tsr_contract_allows(const tsr_contract *contract, tsr_str fqn);

/* "missing", "extra", "dtype", "shape", "chunks", "value" as a bit of tsr_leniency; 0: another word. */
uint32_t tsr_leniency_from_word(tsr_str word);
/* Such words with commas between them, as --allow has them; an empty text allows nothing. TSR_E_USAGE for another word. */
tsr_status tsr_leniency_parse(tsr_str words, uint32_t *out, tsr_error *err);

/* Checks the catalog against a contract and adds findings: layout/missing-entry, layout/unexpected-entry, layout/kind,
 * layout/dtype, layout/shape, layout/chunks, and the note layout/prefix where a prefix explains nearly all of them. Chunks are compared as sets of boxes. tsr_validate compares the digests. */
tsr_status tsr_validate_contract(const tsr_catalog *catalog, const tsr_contract *contract, const tsr_host *host,
                                 tsr_findings *findings, tsr_error *err);

/* Single checks of tsr_validate_catalog (tessera/validate.h), for operations that need no others.
 *
 * Example:
 *
 *     status = tsr_validate_optimizers(catalog, host, findings, &err);
 *     if (status == TSR_OK && tsr_findings_total(findings, TSR_ERROR)) puts("the optimizer's state is broken"); */

/* Adds findings about the states of optimizers: optim/state-incomplete, optim/state-shape, optim/state-missing,
 * optim/ids-are-texts. Objects that were not read are passed over. TSR_E_NOMEM. */
tsr_status tsr_validate_optimizers(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err);

TSR_API_END

#endif
