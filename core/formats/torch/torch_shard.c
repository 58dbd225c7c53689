/* DTensor and ShardedTensor pickles: which boxes of the global tensor this file's rank holds.
 *
 * A DTensor is pickled as its wrapper (global size), its local tensor and a DTensorSpec: a DeviceMesh with this rank's
 * coordinate, and one placement a mesh dimension. The boxes follow from torch.chunk along each sharded dimension:
 *
 *   shard(0) over 3 ranks of 7 rows     rank 0: [0,3)   rank 1: [3,6)   rank 2: [6,7)
 *
 * strided_shard(d, f) says that the dimension was first cut by mesh dimensions to its right, f pieces in all (FSDP2 over
 * tensor parallelism). Where f is a product of such mesh sizes, the dimension is cut in that order, which is what the ranks
 * really hold; else it is cut into f pieces and this rank holds a part of each, several boxes.
 *
 * Sources: torch/distributed/tensor (_dtensor_spec.py, placement_types.py), device_mesh.py, _mesh_layout.py,
 * _shard/sharded_tensor/api.py of PyTorch 2.13; the local tensors that ranks saved. */
#include "base/cursor.h"

#include "formats/common/rank_entries.h"
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { MESH_DIMS_MAX = 32, CUTS_MAX = 4096 };

typedef struct placement {
    uint32_t id; /* TSR_TORCH_SHARD, … */
    uint64_t dim;
    uint64_t split;
} placement;

typedef struct mesh {
    tsr_ref spec; /* of the DTensor: it may state the order in which dims are cut */
    uint32_t dims;
    uint64_t sizes[MESH_DIMS_MAX];
    uint64_t coordinate[MESH_DIMS_MAX];
    bool placed; /* the coordinate is known */
    placement placements[MESH_DIMS_MAX];
} mesh;

/* A run [start, start + size) of one dimension, and where it begins in the local tensor. */
typedef struct cut {
    uint64_t start, size, local;
} cut;

typedef struct cuts {
    cut *items;
    uint32_t count;
} cuts;

static tsr_ref either(const tsr_pickle *pickle, tsr_ref holder, const char *name, const char *older)
{
    tsr_ref found = tsr_torch_attribute(pickle, holder, name);
    return found != TSR_REF_NONE ? found : tsr_torch_attribute(pickle, holder, older);
}

/* The number of ranks along an axis: an integer, or a flattened axis's tuple of them. */
static bool axis_size(const tsr_pickle *pickle, tsr_ref ref, uint64_t *out)
{
    size_t count = tsr_pickle_count(pickle, ref);
    bool several = tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_TUPLE;
    *out = 1;
    for (size_t i = 0; i < (several ? count : 1); i++) {
        tsr_ref item = several ? tsr_pickle_item(pickle, ref, i) : ref;
        int64_t value = tsr_pickle_int(pickle, item);
        if (tsr_pickle_kind_of(pickle, item) != TSR_PICKLE_INT || value <= 0 || !tsr_mul_u64(*out, (uint64_t)value, out))
            return false;
    }
    return true;
}

/* PyTorch 2.13: _layout.axes[i].shape; 2.9: _layout.shape; older: the size of the tensor `mesh`. */
static bool read_mesh_sizes(const tsr_pickle *pickle, tsr_ref holder, mesh *out)
{
    tsr_ref layout = tsr_torch_attribute(pickle, holder, "_layout");
    tsr_ref axes = tsr_torch_attribute(pickle, layout, "axes");
    tsr_ref shape = axes != TSR_REF_NONE ? axes : tsr_torch_attribute(pickle, layout, "shape");
    if (layout == TSR_REF_NONE) shape = tsr_torch_arg(pickle, tsr_torch_attribute(pickle, holder, "mesh"), 2);
    if (tsr_pickle_kind_of(pickle, shape) == TSR_PICKLE_INT) {
        out->dims = 1;
        return axis_size(pickle, shape, &out->sizes[0]);
    }
    size_t count = tsr_pickle_count(pickle, shape);
    if (tsr_pickle_kind_of(pickle, shape) != TSR_PICKLE_TUPLE || count > MESH_DIMS_MAX) return false;
    out->dims = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        tsr_ref axis = tsr_pickle_item(pickle, shape, i);
        if (axes != TSR_REF_NONE) axis = tsr_torch_attribute(pickle, axis, "shape");
        if (!axis_size(pickle, axis, &out->sizes[i])) return false;
    }
    return true;
}

static bool read_coordinate(const tsr_pickle *pickle, tsr_ref ref, mesh *out)
{
    if (tsr_pickle_count(pickle, ref) != out->dims) return false;
    for (uint32_t i = 0; i < out->dims; i++) {
        tsr_ref item = tsr_pickle_item(pickle, ref, i);
        int64_t value = tsr_pickle_int(pickle, item);
        if (tsr_pickle_kind_of(pickle, item) != TSR_PICKLE_INT || value < 0 || (uint64_t)value >= out->sizes[i])
            return false;
        out->coordinate[i] = (uint64_t)value;
    }
    return ref != TSR_REF_NONE;
}

/* Where a rank stands in a list of ranks, or UINT32_MAX. All tensors of a mesh share its list: it is searched once. */
static tsr_status place_of(tsr_torch_build *build, tsr_ref ranks, uint32_t rank, uint32_t *at, tsr_error *err)
{
    uint32_t key[2] = {ranks, rank}, *stored;
    bool fresh;
    if (!build->rank_places) build->rank_places = tsr_map_new(build->host->allocator, 0, err);
    uint32_t *kept = build->rank_places ? tsr_arena_array(build->arena, 2, sizeof *kept, err) : NULL;
    if (!kept) return TSR_E_NOMEM;
    memcpy(kept, key, sizeof key);
    TSR_TRY(tsr_map_put(build->rank_places, (tsr_str){(const char *)kept, sizeof key}, UINT32_MAX, &stored, &fresh, err));
    size_t count = fresh ? tsr_pickle_count(build->pickle, ranks) : 0;
    for (uint32_t i = 0; i < count && *stored == UINT32_MAX; i++)
        if (tsr_pickle_int(build->pickle, tsr_pickle_item(build->pickle, ranks, i)) == rank) *stored = i;
    *at = *stored;
    return TSR_OK;
}

/* The coordinate of rank `rank` from the mesh's row-major list of ranks. */
static tsr_status find_coordinate(tsr_torch_build *build, tsr_ref ranks, uint32_t rank, mesh *out, tsr_error *err)
{
    uint64_t total = 1;
    uint32_t at;
    for (uint32_t i = 0; i < out->dims; i++)
        if (!tsr_mul_u64(total, out->sizes[i], &total)) return TSR_OK;
    if (tsr_pickle_count(build->pickle, ranks) != total) return TSR_OK;
    TSR_TRY(place_of(build, ranks, rank, &at, err));
    out->placed = at != UINT32_MAX;
    for (uint32_t i = out->dims; out->placed && i-- > 0;) {
        out->coordinate[i] = at % out->sizes[i];
        at /= (uint32_t)out->sizes[i];
    }
    return TSR_OK;
}

/* The rank at the mesh's coordinate, from the row-major list. */
static int64_t rank_at(const tsr_pickle *pickle, tsr_ref ranks, const mesh *at)
{
    uint64_t index = 0, total = 1;
    for (uint32_t i = 0; i < at->dims; i++) {
        index = index * at->sizes[i] + at->coordinate[i];
        if (!tsr_mul_u64(total, at->sizes[i], &total)) return -1;
    }
    tsr_ref item = tsr_pickle_item(pickle, ranks, (size_t)index);
    bool listed = tsr_pickle_count(pickle, ranks) == total && tsr_pickle_kind_of(pickle, item) == TSR_PICKLE_INT;
    return listed ? tsr_pickle_int(pickle, item) : -1;
}

static void learn_rank(tsr_torch_rank *known, int64_t rank, uint64_t world)
{
    if (world > known->world && world <= INT32_MAX) known->world = (uint32_t)world;
    if (known->known || rank < 0 || rank > INT32_MAX) return;
    known->known = true;
    known->rank = (uint32_t)rank;
}

/* *known: the mesh has a known form. */
static tsr_status read_mesh(tsr_torch_build *build, tsr_ref holder, mesh *out, bool *known, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    *known = read_mesh_sizes(pickle, holder, out);
    if (!*known) return TSR_OK;
    tsr_ref ranks = either(pickle, holder, "_flatten_rank_map", "_flatten_mesh_list");
    const tsr_torch_rank *own = &build->rank;
    out->placed = read_coordinate(pickle, tsr_torch_attribute(pickle, holder, "_coordinate_on_dim"), out);
    if (!out->placed && (own->known || own->hinted))
        TSR_TRY(find_coordinate(build, ranks, own->known ? own->rank : own->hint, out, err));
    tsr_ref rank_ref = tsr_torch_attribute(pickle, holder, "_rank");
    int64_t rank = -1;
    if (tsr_pickle_kind_of(pickle, rank_ref) == TSR_PICKLE_INT) rank = tsr_pickle_int(pickle, rank_ref);
    else if (out->placed) rank = rank_at(pickle, ranks, out);
    learn_rank(&build->rank, rank, tsr_pickle_count(pickle, ranks));
    return TSR_OK;
}

static bool read_placement(const tsr_pickle *pickle, tsr_ref ref, uint32_t ndim, placement *out)
{
    out->id = tsr_pickle_class_id(pickle, ref);
    if (out->id == TSR_TORCH_REPLICATE || out->id == TSR_TORCH_PARTIAL) return true;
    if (out->id != TSR_TORCH_SHARD && out->id != TSR_TORCH_STRIDED_SHARD) return false;
    tsr_ref dim_ref = tsr_torch_attribute(pickle, ref, "dim");
    if (dim_ref == TSR_REF_NONE) dim_ref = tsr_torch_arg(pickle, ref, 0);
    int64_t dim = tsr_pickle_int(pickle, dim_ref);
    if (dim < 0) dim += ndim;
    int64_t split =
        out->id == TSR_TORCH_SHARD ? 1 : tsr_pickle_int(pickle, tsr_torch_attribute(pickle, ref, "split_factor"));
    out->dim = (uint64_t)dim;
    out->split = (uint64_t)split;
    return tsr_pickle_kind_of(pickle, dim_ref) == TSR_PICKLE_INT && dim >= 0 && dim < (int64_t)ndim && split > 0;
}

static bool read_placements(const tsr_pickle *pickle, tsr_ref spec, uint32_t ndim, mesh *out)
{
    tsr_ref list = tsr_torch_attribute(pickle, spec, "placements");
    if (tsr_pickle_count(pickle, list) != out->dims) return false;
    for (uint32_t i = 0; i < out->dims; i++)
        if (!read_placement(pickle, tsr_pickle_item(pickle, list, i), ndim, &out->placements[i])) return false;
    return true;
}

static bool shards(const mesh *on, uint32_t mesh_dim, uint32_t dim)
{
    uint32_t id = on->placements[mesh_dim].id;
    return (id == TSR_TORCH_SHARD || id == TSR_TORCH_STRIDED_SHARD) && on->placements[mesh_dim].dim == dim;
}

/* The mesh dimensions that cut a tensor dimension, first cut first; false when the split factors name no order. */
static bool cutting_order(const mesh *on, uint32_t dim, uint32_t *order, uint32_t *count)
{
    *count = 0;
    for (uint32_t m = on->dims; m-- > 0;) {
        if (!shards(on, m, dim)) continue;
        uint64_t product = 1;
        uint32_t at = 0;
        while (at < *count && product != on->placements[m].split)
            if (!tsr_mul_u64(product, on->sizes[order[at++]], &product)) return false;
        if (product != on->placements[m].split) return false;
        memmove(order + at + 1, order + at, (*count - at) * sizeof *order);
        order[at] = m;
        ++*count;
    }
    return true;
}

/* Takes the order that a DTensorSpec of PyTorch 2.13 states for a dimension, if it states one. */
static void stated_order(const tsr_pickle *pickle, const mesh *on, uint32_t dim, uint32_t *order, uint32_t count)
{
    tsr_ref list = tsr_torch_attribute(pickle, on->spec, "shard_order");
    for (size_t i = 0; i < tsr_pickle_count(pickle, list); i++) {
        tsr_ref item = tsr_pickle_item(pickle, list, i);
        if (tsr_pickle_int(pickle, tsr_torch_arg(pickle, item, 0)) != (int64_t)dim) continue;
        tsr_ref mesh_dims = tsr_torch_arg(pickle, item, 1);
        uint32_t stated[MESH_DIMS_MAX];
        if (tsr_pickle_count(pickle, mesh_dims) != count) return;
        for (uint32_t j = 0; j < count; j++) {
            int64_t m = tsr_pickle_int(pickle, tsr_pickle_item(pickle, mesh_dims, j));
            if (m < 0 || m >= (int64_t)on->dims || !shards(on, (uint32_t)m, dim)) return;
            stated[j] = (uint32_t)m;
        }
        memcpy(order, stated, count * sizeof *order);
        return;
    }
}

static uint64_t total_of(const cuts *of)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < of->count; i++) total += of->items[i].size;
    return total;
}

/* Appends elements [low, high) of the runs `from`, taken as one sequence. */
static tsr_status take(const cuts *from, uint64_t low, uint64_t high, tsr_vec *to, tsr_error *err)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < from->count && at < high; at += from->items[i++].size) {
        uint64_t end = at + from->items[i].size;
        uint64_t start = low > at ? low : at, stop = high < end ? high : end;
        if (start >= stop) continue;
        cut piece = {from->items[i].start + (start - at), stop - start, 0};
        cut *last = to->count ? (cut *)to->items + to->count - 1 : NULL;
        if (last && last->start + last->size == piece.start) {
            last->size += piece.size;
            continue;
        }
        last = tsr_vec_push(to, err);
        if (!last) return TSR_E_NOMEM;
        *last = piece;
    }
    return TSR_OK;
}

static uint64_t chunk_size(uint64_t total, uint64_t pieces)
{
    return total / pieces + (total % pieces != 0);
}

/* A spec can be shared by any number of tensors, and a few bytes of it ask for thousands of pieces of each. */
static tsr_status charge(tsr_torch_build *build, uint64_t pieces, uint64_t bytes, tsr_error *err)
{
    TSR_FAIL_IF(pieces > build->room / bytes, err, TSR_E_LIMIT,
                "torch: strided shards have more boxes than fit in %u bytes for each byte of the pickle",
                TSR_EXPANSION_PER_BYTE);
    build->room -= pieces * bytes;
    return TSR_OK;
}

/* Cuts the runs into `split` pieces, each into `pieces`, and keeps number `index` of each. */
static tsr_status cut_once(tsr_torch_build *build, cuts *runs, uint64_t split, uint64_t pieces, uint64_t index,
                           tsr_error *err)
{
    tsr_vec kept = tsr_vec_of(build->host->allocator, sizeof(cut));
    uint64_t total = total_of(runs), outer = chunk_size(total, split);
    tsr_status status = TSR_OK;
    if (total && total / outer > CUTS_MAX)
        status = tsr_fail(err, TSR_E_LIMIT, "torch: a strided shard has more than %d runs", CUTS_MAX);
    if (total && status == TSR_OK) status = charge(build, (total / outer + 1) * runs->count, sizeof(uint64_t), err);
    for (uint64_t at = 0; at < total && status == TSR_OK; at += outer) {
        uint64_t length = total - at < outer ? total - at : outer, inner = chunk_size(length, pieces);
        uint64_t low = index > length / inner ? length : index * inner;
        uint64_t high = length - low < inner ? length : low + inner;
        status = low < high ? take(runs, at + low, at + high, &kept, err) : TSR_OK;
    }
    cut *copy = status == TSR_OK ? tsr_arena_array(build->arena, kept.count, sizeof *copy, err) : NULL;
    if (copy) {
        if (kept.count) memcpy(copy, kept.items, kept.count * sizeof *copy);
        for (size_t i = 1; i < kept.count; i++) copy[i].local = copy[i - 1].local + copy[i - 1].size;
        *runs = (cuts){copy, (uint32_t)kept.count};
    }
    tsr_vec_free(&kept);
    return copy ? TSR_OK : status != TSR_OK ? status : TSR_E_NOMEM;
}

/* The runs of dimension `dim` that the mesh's coordinate holds. */
static tsr_status cut_dimension(tsr_torch_build *build, const mesh *on, uint32_t dim, uint64_t size, cuts *out,
                                tsr_error *err)
{
    cut *whole = TSR_ARENA_NEW(build->arena, cut, err);
    if (!whole) return TSR_E_NOMEM;
    *whole = (cut){0, size, 0};
    *out = (cuts){whole, 1};
    uint32_t order[MESH_DIMS_MAX], count;
    if (cutting_order(on, dim, order, &count)) {
        stated_order(build->pickle, on, dim, order, count);
        for (uint32_t i = 0; i < count; i++)
            TSR_TRY(cut_once(build, out, 1, on->sizes[order[i]], on->coordinate[order[i]], err));
        return TSR_OK;
    }
    for (uint32_t m = 0; m < on->dims; m++)
        if (shards(on, m, dim)) TSR_TRY(cut_once(build, out, on->placements[m].split, on->sizes[m], on->coordinate[m], err));
    return TSR_OK;
}

/* The boxes are all combinations of the dimensions' runs; the local tensor holds them side by side in the same order. */
static tsr_status add_boxes(tsr_torch_build *build, const cuts *runs, const tsr_torch_dense *local, tsr_torch_dense *out,
                            tsr_error *err)
{
    uint32_t ndim = out->entry.ndim;
    uint64_t total = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        total *= runs[d].count; /* a product of 13 and 32 bits */
        TSR_FAIL_IF(total > CUTS_MAX, err, TSR_E_LIMIT, "torch: a strided shard has more than %d boxes", CUTS_MAX);
    }
    TSR_TRY(charge(build, total, 2 * sizeof(tsr_chunk) + 2 * ndim * sizeof(uint64_t), err));
    tsr_chunk *chunks = tsr_arena_array(build->arena, (size_t)total, sizeof *chunks, err);
    uint64_t *boxes = tsr_arena_array(build->arena, (size_t)total * 2 * ndim, sizeof *boxes, err);
    if (!chunks || !boxes) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < total; i++, boxes += 2 * ndim) {
        uint64_t rest = i, byte_offset = local->byte_offset;
        for (uint32_t d = ndim; d-- > 0;) {
            uint32_t which = (uint32_t)(rest % runs[d].count);
            rest /= runs[d].count;
            const cut *run = &runs[d].items[which];
            boxes[d] = run->start;
            boxes[ndim + d] = run->size;
            if (local->strides) byte_offset += run->local * local->strides[d] * tsr_dtype_size(local->entry.dtype);
        }
        const tsr_box box = {ndim, boxes, boxes + ndim};
        if (local->storage != UINT32_MAX) TSR_TRY(tsr_torch_chunk(build, local, byte_offset, box, &chunks[i], err));
        else chunks[i] = (tsr_chunk){.offsets = box.offsets, .sizes = box.sizes, .file = build->file};
    }
    out->entry.chunks = chunks;
    out->entry.chunk_count = total;
    return TSR_OK;
}

static tsr_status say(tsr_torch_build *build, tsr_ref at, const char *what, tsr_error *err)
{
    if (!build->findings) return TSR_OK;
    tsr_place place = {build->file_name, tsr_torch_position(build, at), {NULL, 0}};
    return tsr_finding_add(build->findings, "torch/dtensor", place, err, "%s", what);
}

static tsr_str mesh_text(tsr_torch_build *build, tsr_ref holder, const mesh *of, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref names = either(pickle, holder, "_mesh_dim_names", "mesh_dim_names");
    tsr_str text = {"", 0};
    for (uint32_t i = 0; i < of->dims && text.data; i++) {
        tsr_str name = tsr_pickle_text(pickle, tsr_pickle_item(pickle, names, i));
        text = tsr_arena_format(build->arena, err, "%.*s%s%.*s%s%llu", TSR_STR_ARG(text), i ? "," : "", TSR_STR_ARG(name),
                                name.size ? "=" : "", (unsigned long long)of->sizes[i]);
    }
    return text;
}

static tsr_str placements_text(tsr_torch_build *build, const mesh *of, tsr_error *err)
{
    tsr_str text = {"", 0};
    for (uint32_t i = 0; i < of->dims && text.data; i++) {
        const placement *p = &of->placements[i];
        const char *comma = i ? "," : "";
        int before = (int)text.size;
        if (p->id == TSR_TORCH_SHARD)
            text = tsr_arena_format(build->arena, err, "%.*s%sshard(%llu)", before, text.data, comma,
                                    (unsigned long long)p->dim);
        else if (p->id == TSR_TORCH_STRIDED_SHARD)
            text = tsr_arena_format(build->arena, err, "%.*s%sstrided_shard(%llu,%llu)", before, text.data, comma,
                                    (unsigned long long)p->dim, (unsigned long long)p->split);
        else text = tsr_arena_format(build->arena, err, "%.*s%sreplicate", before, text.data, comma);
    }
    return text;
}

static tsr_status describe(tsr_torch_build *build, tsr_ref holder, const mesh *of, tsr_entry *entry, tsr_error *err)
{
    tsr_distribution *distribution = TSR_ARENA_NEW(build->arena, tsr_distribution, err);
    if (!distribution) return TSR_E_NOMEM;
    distribution->mesh = mesh_text(build, holder, of, err);
    distribution->placements = placements_text(build, of, err);
    if (!distribution->mesh.data || !distribution->placements.data) return TSR_E_NOMEM;
    entry->distribution = distribution;
    return TSR_OK;
}

/* A new entry with the wrapper's dtype and global size, and the local tensor's storage. */
static tsr_status start_global(tsr_torch_build *build, tsr_ref wrapper, tsr_torch_dense **out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_torch_dense *dense = TSR_ARENA_NEW(build->arena, tsr_torch_dense, err);
    if (!dense) return TSR_E_NOMEM;
    dense->entry.dtype = tsr_torch_dtype(pickle, tsr_pickle_item(pickle, wrapper, 1));
    TSR_TRY(tsr_torch_sizes(build, tsr_pickle_item(pickle, wrapper, 2), &dense->entry.shape, &dense->entry.ndim, err));
    dense->entry.requires_grad = tsr_pickle_bool(pickle, tsr_pickle_item(pickle, wrapper, 7));
    dense->entry.is_sharded = true;
    dense->storage = UINT32_MAX;
    *out = dense;
    return TSR_OK;
}

/* Cuts every dimension and compares with what the rank really has. */
static tsr_status cut_all(tsr_torch_build *build, const mesh *on, tsr_shape global, cuts *runs, tsr_error *err)
{
    for (uint32_t d = 0; d < global.ndim; d++) TSR_TRY(cut_dimension(build, on, d, global.sizes[d], &runs[d], err));
    return TSR_OK;
}

static bool fit(const cuts *runs, const tsr_entry *global, const tsr_entry *local)
{
    bool fits = local->ndim == global->ndim && local->dtype == global->dtype;
    for (uint32_t d = 0; d < global->ndim && fits; d++) fits = total_of(&runs[d]) == local->shape[d];
    return fits;
}

/* One chunk stands for the whole of an empty tensor. */
static tsr_status add_empty(tsr_torch_build *build, const tsr_torch_dense *local, tsr_torch_dense *out, tsr_error *err)
{
    tsr_chunk *chunk = TSR_ARENA_NEW(build->arena, tsr_chunk, err);
    uint64_t *zeros = tsr_arena_array(build->arena, out->entry.ndim, sizeof *zeros, err);
    if (!chunk || !zeros) return TSR_E_NOMEM;
    out->entry.chunks = chunk;
    out->entry.chunk_count = 1;
    return tsr_torch_chunk(build, local, local->byte_offset, (tsr_box){out->entry.ndim, zeros, out->entry.shape}, chunk,
                           err);
}

tsr_status tsr_torch_dtensor(tsr_torch_build *build, tsr_ref wrapper, tsr_ref state, const tsr_torch_dense *local,
                             tsr_torch_dense **out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref spec = tsr_torch_attribute(pickle, state, "_spec");
    tsr_ref holder = either(pickle, spec, "mesh", "device_mesh");
    tsr_torch_dense *dense;
    mesh on = {.spec = spec};
    bool known;
    *out = NULL;
    TSR_TRY(start_global(build, wrapper, &dense, err));
    TSR_TRY(read_mesh(build, holder, &on, &known, err));
    if (!known || !read_placements(pickle, spec, dense->entry.ndim, &on))
        return say(build, wrapper, "a DTensor whose mesh or placements have an unknown form", err);
    for (uint32_t i = 0; i < on.dims; i++)
        if (on.placements[i].id == TSR_TORCH_PARTIAL)
            return say(build, wrapper, "a DTensor with partial values, which are not the values of the tensor", err);
    uint64_t held, elements;
    tsr_entry_elements(&local->entry, &held); /* checked when it was made */
    if (!tsr_entry_elements(&dense->entry, &elements)) return say(build, wrapper, "a DTensor of impossible size", err);
    if (!on.placed && held) return say(build, wrapper, "a DTensor that does not state which rank's shard it is", err);
    cuts *runs = tsr_arena_array(build->arena, dense->entry.ndim, sizeof *runs, err);
    if (!runs) return TSR_E_NOMEM;
    bool fits = true;
    if (held || elements == 0) {
        TSR_TRY(cut_all(build, &on, (tsr_shape){dense->entry.ndim, dense->entry.shape}, runs, err));
        fits = fit(runs, &dense->entry, &local->entry);
    }
    if (!fits) return say(build, wrapper, "a DTensor whose local tensor does not match its placements on this rank", err);
    for (uint32_t d = 0; d < dense->entry.ndim && held && local->storage == UINT32_MAX; d++)
        if (runs[d].count > 1)
            return say(build, wrapper, "a DTensor whose local tensor is a tensor subclass and in more than one box", err);
    TSR_TRY(describe(build, holder, &on, &dense->entry, err));
    dense->entry.storage_id = local->entry.storage_id;
    dense->entry.is_parameter = local->entry.is_parameter;
    *out = dense;
    if (held) return add_boxes(build, runs, local, dense, err);
    if (elements || local->storage == UINT32_MAX) return TSR_OK; /* this rank's shard is empty */
    return add_empty(build, local, dense, err);
}

tsr_ref tsr_torch_local_shards(const tsr_pickle *pickle, tsr_ref state)
{
    tsr_ref list = tsr_pickle_item(pickle, state, 0);
    bool known = tsr_pickle_kind_of(pickle, state) == TSR_PICKLE_TUPLE && tsr_pickle_count(pickle, state) >= 4 &&
                 tsr_pickle_kind_of(pickle, list) == TSR_PICKLE_LIST;
    return known ? list : TSR_REF_NONE;
}

static tsr_status shard_chunk(tsr_torch_build *build, tsr_ref shard, const tsr_torch_dense *local, const tsr_entry *global,
                              tsr_chunk *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref metadata = tsr_torch_attribute(pickle, shard, "metadata");
    uint64_t position = tsr_torch_position(build, shard);
    const uint64_t *offsets, *sizes;
    uint32_t offset_count, size_count;
    TSR_TRY(tsr_torch_sizes(build, tsr_torch_attribute(pickle, metadata, "shard_offsets"), &offsets, &offset_count, err));
    TSR_TRY(tsr_torch_sizes(build, tsr_torch_attribute(pickle, metadata, "shard_sizes"), &sizes, &size_count, err));
    bool fits = offset_count == global->ndim && size_count == global->ndim && local->entry.ndim == global->ndim &&
                local->entry.dtype == global->dtype && local->storage != UINT32_MAX;
    for (uint32_t d = 0; d < global->ndim && fits; d++)
        fits =
            sizes[d] == local->entry.shape[d] && sizes[d] <= global->shape[d] && offsets[d] <= global->shape[d] - sizes[d];
    TSR_FAIL_AT(!fits, err, TSR_E_FORMAT, position,
                "torch: a shard of a ShardedTensor does not match its metadata or reaches beyond the tensor");
    return tsr_torch_chunk(build, local, local->byte_offset, (tsr_box){global->ndim, offsets, sizes}, out, err);
}

tsr_status tsr_torch_sharded(tsr_torch_build *build, tsr_ref wrapper, tsr_ref state, const tsr_torch_dense *const *locals,
                             tsr_torch_dense **out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref list = tsr_torch_local_shards(pickle, state), group = tsr_pickle_item(pickle, state, 2);
    size_t count = tsr_pickle_count(pickle, list);
    tsr_torch_dense *dense;
    TSR_TRY(start_global(build, wrapper, &dense, err));
    tsr_chunk *chunks = tsr_arena_array(build->arena, count, sizeof *chunks, err);
    if (!chunks) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        TSR_TRY(shard_chunk(build, tsr_pickle_item(pickle, list, i), locals[i], &dense->entry, &chunks[i], err));
    dense->entry.chunks = chunks;
    dense->entry.chunk_count = count;
    if (count) dense->entry.storage_id = locals[0]->entry.storage_id;
    tsr_ref rank = tsr_torch_attribute(pickle, group, "global_rank");
    if (tsr_pickle_kind_of(pickle, rank) == TSR_PICKLE_INT)
        learn_rank(&build->rank, tsr_pickle_int(pickle, rank),
                   (uint64_t)tsr_pickle_int(pickle, tsr_torch_attribute(pickle, group, "global_world_size")));
    *out = dense;
    return TSR_OK;
}

/* The union is built in two steps: entries and chunks are collected in order of arrival, then each entry gets its run of one
 * array of chunks and one of replicas. */

typedef struct joined_chunk {
    uint32_t entry;
    bool replica;
    tsr_chunk chunk;
    const tsr_value *piece; /* of a sharded tensor subclass: what the chunk holds */
} joined_chunk;

static bool is_sharded_subclass(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_OPAQUE && entry->is_sharded;
}

tsr_status tsr_torch_union_open(tsr_torch_union *u, tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    *u = (tsr_torch_union){.checkpoint = checkpoint,
                           .entries = tsr_vec_of(allocator, sizeof(tsr_entry)),
                           .chunks = tsr_vec_of(allocator, sizeof(joined_chunk))};
    u->names = tsr_map_new(allocator, 0, err);
    u->boxes = u->names ? tsr_map_new(allocator, 0, err) : NULL;
    return u->boxes ? TSR_OK : TSR_E_NOMEM;
}

void tsr_torch_union_close(tsr_torch_union *u)
{
    tsr_map_free(u->names);
    tsr_map_free(u->boxes);
    tsr_vec_free(&u->entries);
    tsr_vec_free(&u->chunks);
}

tsr_status tsr_torch_keep_shared(const tsr_host *host, tsr_entry *entries, uint64_t count, uint32_t storages, tsr_error *err)
{
    uint32_t *uses = tsr_alloc(host->allocator, (size_t)storages + 1, sizeof *uses, err);
    if (!uses) return TSR_E_NOMEM;
    memset(uses, 0, ((size_t)storages + 1) * sizeof *uses);
    for (uint64_t i = 0; i < count; i++) uses[entries[i].storage_id]++;
    for (uint64_t i = 0; i < count; i++)
        if (uses[entries[i].storage_id] == 1) entries[i].storage_id = 0;
    tsr_free(host->allocator, uses, (size_t)storages + 1, sizeof *uses);
    return TSR_OK;
}

/* Whether the box is new to the entry. */
static tsr_status is_new_box(tsr_torch_union *u, uint32_t number, const tsr_chunk *chunk, uint32_t ndim, bool *fresh,
                             tsr_error *err)
{
    size_t row = ndim * sizeof(uint64_t);
    char *key = tsr_arena_array(u->checkpoint->arena, sizeof number + 2 * row, 1, err);
    if (!key) return TSR_E_NOMEM;
    memcpy(key, &number, sizeof number);
    if (ndim) memcpy(key + sizeof number, chunk->offsets, row);
    if (ndim) memcpy(key + sizeof number + row, chunk->sizes, row);
    return tsr_map_put(u->boxes, (tsr_str){key, sizeof number + 2 * row}, 0, NULL, fresh, err);
}

static tsr_status add_chunks(tsr_torch_union *u, uint32_t number, const tsr_entry *entry, tsr_error *err)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        bool fresh;
        TSR_TRY(is_new_box(u, number, &entry->chunks[i], entry->ndim, &fresh, err));
        joined_chunk *added = tsr_vec_push(&u->chunks, err);
        if (!added) return TSR_E_NOMEM;
        *added = (joined_chunk){number, !fresh, entry->chunks[i], NULL};
        if (is_sharded_subclass(entry)) added->piece = entry->value->items[i];
    }
    return TSR_OK;
}

static tsr_joined compare(const tsr_entry *a, const tsr_entry *b)
{
    bool same = a->kind == b->kind && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
    if (!same) return TSR_JOINED_MISMATCH;
    if (is_sharded_subclass(a) != is_sharded_subclass(b)) return TSR_JOINED_MISMATCH;
    return a->kind == TSR_ENTRY_TENSOR || is_sharded_subclass(a) ? TSR_JOINED_CHUNKS : TSR_JOINED_NOTHING;
}

tsr_status tsr_torch_union_add(tsr_torch_union *u, const tsr_entry *entry, uint32_t storage_base, uint32_t *number,
                               tsr_joined *joined, tsr_error *err)
{
    uint32_t *existing;
    bool inserted;
    TSR_FAIL_IF(u->entries.count >= u->checkpoint->host->limits.entries || u->entries.count >= UINT32_MAX - 1, err,
                TSR_E_LIMIT, "torch: more than %zu entries (limit entries)", u->entries.count);
    TSR_TRY(tsr_map_put(u->names, entry->fqn, (uint32_t)u->entries.count, &existing, &inserted, err));
    uint32_t at = *existing;
    if (number) *number = at;
    *joined = inserted ? TSR_JOINED_NEW : compare((const tsr_entry *)u->entries.items + at, entry);
    if (inserted) {
        tsr_entry *added = tsr_vec_push(&u->entries, err);
        if (!added) return TSR_E_NOMEM;
        *added = *entry;
        added->chunks = NULL;
        added->chunk_count = 0;
        if (added->storage_id) added->storage_id += storage_base;
    }
    return inserted || *joined == TSR_JOINED_CHUNKS ? add_chunks(u, at, entry, err) : TSR_OK;
}

/* Gives the sharded tensor subclasses what their chunks hold. */
static tsr_status keep_pieces(const tsr_torch_union *u, tsr_entry *entries, size_t count, tsr_error *err)
{
    tsr_arena *arena = u->checkpoint->arena;
    const joined_chunk *joined = u->chunks.items;
    const tsr_value **pieces = tsr_arena_array(arena, u->chunks.count, sizeof *pieces, err);
    if (!pieces) return TSR_E_NOMEM;
    for (size_t e = 0; e < count; e++) {
        size_t n = 0;
        if (!is_sharded_subclass(&entries[e])) continue;
        for (size_t i = 0; i < u->chunks.count; i++)
            if (joined[i].entry == e && !joined[i].replica) pieces[n++] = joined[i].piece;
        TSR_TRY(tsr_entry_set_pieces(&entries[e], (tsr_chunk *)entries[e].chunks, pieces, n, arena, err));
        pieces += n;
    }
    return TSR_OK;
}

tsr_status tsr_torch_union_keep(tsr_torch_union *u, uint32_t storages, tsr_error *err)
{
    tsr_arena *arena = u->checkpoint->arena;
    const joined_chunk *joined = u->chunks.items;
    size_t count = u->entries.count;
    tsr_entry *entries = tsr_arena_array(arena, count, sizeof *entries, err);
    tsr_chunk *chunks = tsr_arena_array(arena, u->chunks.count, sizeof *chunks, err);
    if (!entries || !chunks) return TSR_E_NOMEM;
    if (count) memcpy(entries, u->entries.items, count * sizeof *entries);
    for (size_t i = 0; i < u->chunks.count; i++) {
        if (joined[i].replica) entries[joined[i].entry].replica_count++;
        else entries[joined[i].entry].chunk_count++;
    }
    for (size_t i = 0; i < count; i++) { /* each entry's chunks, then its replicas */
        entries[i].chunks = chunks;
        chunks += entries[i].chunk_count;
        entries[i].replicas = chunks;
        chunks += entries[i].replica_count;
        entries[i].chunk_count = entries[i].replica_count = 0;
    }
    for (size_t i = 0; i < u->chunks.count; i++) {
        tsr_entry *entry = &entries[joined[i].entry];
        if (joined[i].replica) ((tsr_chunk *)entry->replicas)[entry->replica_count++] = joined[i].chunk;
        else ((tsr_chunk *)entry->chunks)[entry->chunk_count++] = joined[i].chunk;
    }
    TSR_TRY(keep_pieces(u, entries, count, err));
    u->checkpoint->catalog.entries = entries;
    u->checkpoint->catalog.entry_count = count;
    return tsr_torch_keep_shared(u->checkpoint->host, entries, count, storages, err);
}
