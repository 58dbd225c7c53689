/* Builds the values that PyTorch 2.13 and later pickle for a DTensor, and (further down) for a ShardedTensor:
 *
 *   _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
 *                         (DTensor, dtype, size, stride, 0, layout, device, requires_grad),
 *                         (None or {"_is_param": True}, {"_local_tensor": …, "_spec": DTensorSpec}))
 *
 * Source: torch/_tensor.py (_reduce_ex_internal), torch/distributed/tensor/_dtensor_spec.py, device_mesh.py,
 * _mesh_layout.py, and files that real ranks wrote. In 2.15, a mesh without `_preserve_rank_order` cannot be compared; 2.13
 * ignores it. Hashes that these objects cache are omitted, so that they are computed again. */
#include "write/torch_plan.h"

#include "formats/torch/torch_writer.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

/* Building blocks. A failure propagates: if a part is NULL, the whole is NULL, too. */
typedef struct maker {
    tsr_arena *arena;
    tsr_error *err;
} maker;

static const tsr_value *whole(maker m, tsr_value_kind kind, const tsr_value *const *parts, size_t count)
{
    const tsr_value **items = tsr_arena_array(m.arena, count, sizeof *items, m.err);
    if (!items) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (!parts[i]) return NULL;
        items[i] = parts[i];
    }
    return tsr_value_items(m.arena, kind, items, count, m.err);
}

static const tsr_value *text(maker m, const char *s)
{
    return tsr_value_str(m.arena, tsr_str_from(s), m.err);
}

static const tsr_value *integer(maker m, uint64_t value)
{
    return tsr_value_int(m.arena, (int64_t)value, m.err);
}

static const tsr_value *boolean(maker m, bool value)
{
    tsr_value *v = tsr_value_new(m.arena, TSR_VALUE_BOOL, m.err);
    if (v) v->as.boolean = value;
    return v;
}

static const tsr_value *none(maker m)
{
    return tsr_value_new(m.arena, TSR_VALUE_NONE, m.err);
}

static const tsr_value *named(maker m, tsr_value_kind kind, const char *name)
{
    tsr_value *v = tsr_value_new(m.arena, kind, m.err);
    if (v) v->text = tsr_str_from(name);
    return v;
}

static const tsr_value *tuple(maker m, const tsr_value *const *parts, size_t count)
{
    return whole(m, TSR_VALUE_TUPLE, parts, count);
}

/* A call of a function or class with arguments. See also `built`, which makes an instance with a state. */
static const tsr_value *called(maker m, const char *name, const tsr_value *arguments)
{
    tsr_value *v = (tsr_value *)whole(m, TSR_VALUE_OBJECT, &arguments, 1);
    if (!v) return NULL;
    v->text = tsr_str_from(name);
    v->called = true;
    return v;
}

static const tsr_value *built(maker m, const char *name, const tsr_value *arguments, const tsr_value *state)
{
    const tsr_value *parts[] = {arguments ? arguments : none(m), state ? state : none(m)};
    tsr_value *v = (tsr_value *)whole(m, TSR_VALUE_OBJECT, parts, 2);
    if (v) v->text = tsr_str_from(name);
    return v;
}

static const tsr_value *value_numbers(maker m, tsr_value_kind kind, const uint64_t *from, size_t count)
{
    const tsr_value **items = tsr_arena_array(m.arena, count, sizeof *items, m.err);
    for (size_t i = 0; items && i < count; i++) items[i] = integer(m, from[i]);
    return items ? whole(m, kind, items, count) : NULL;
}

static const tsr_value *contiguous_strides(maker m, const tsr_dtensor *d)
{
    uint64_t strides[TSR_MAX_NDIM], step = 1;
    for (uint32_t i = d->ndim; i-- > 0;) {
        strides[i] = step;
        step *= d->shape[i] ? d->shape[i] : 1;
    }
    return value_numbers(m, TSR_VALUE_TUPLE, strides, d->ndim);
}

static const tsr_value *dtype_value(maker m, tsr_dtype dtype)
{
    tsr_value *v = tsr_value_new(m.arena, TSR_VALUE_DTYPE, m.err);
    if (v) v->as.dtype = dtype;
    return v;
}

static const tsr_value *tensor_value(maker m, const tsr_entry *entry)
{
    return tsr_value_tensor(m.arena, entry, m.err);
}

/* A dict with text keys; keys and values alternate in `pairs`. */
static const tsr_value *dict(maker m, const tsr_value *const *pairs, size_t count)
{
    return whole(m, TSR_VALUE_DICT, pairs, count);
}

/* ---- the mesh ---- */

/* One mesh dim: a _FlatLayout with its size and stride. A dim with a single rank has neither. */
static const tsr_value *axis(maker m, uint64_t size, uint64_t stride)
{
    const size_t count = size > 1;
    const tsr_value *pairs[] = {text(m, "shape"), value_numbers(m, TSR_VALUE_TUPLE, &size, count), text(m, "stride"),
                                value_numbers(m, TSR_VALUE_TUPLE, &stride, count)};
    return built(m, "torch.distributed._mesh_layout._FlatLayout", NULL, dict(m, pairs, 4));
}

static const tsr_value *layout_value(maker m, const tsr_mesh *mesh)
{
    const tsr_value *axes[TSR_MESH_MAX_DIMS];
    uint64_t stride = 1;
    for (uint32_t d = mesh->dim_count; d-- > 0;) {
        axes[d] = axis(m, mesh->shape[d], stride);
        stride *= mesh->shape[d];
    }
    const tsr_value *pairs[] = {text(m, "axes"), tuple(m, axes, mesh->dim_count)};
    return built(m, "torch.distributed._mesh_layout._MeshLayout", NULL, dict(m, pairs, 2));
}

static const tsr_value *dim_names(maker m, const tsr_mesh *mesh)
{
    const tsr_value *names[TSR_MESH_MAX_DIMS];
    for (uint32_t d = 0; d < mesh->dim_count; d++) {
        if (!mesh->names || mesh->names[d].size == 0) return none(m);
        names[d] = tsr_value_str(m.arena, mesh->names[d], m.err);
    }
    return tuple(m, names, mesh->dim_count);
}

static const tsr_value *all_ranks(maker m, const tsr_mesh *mesh)
{
    const uint64_t count = tsr_mesh_ranks(mesh);
    const tsr_value **items = tsr_arena_array(m.arena, (size_t)count, sizeof *items, m.err);
    for (uint64_t i = 0; items && i < count; i++) items[i] = integer(m, i);
    return items ? whole(m, TSR_VALUE_TUPLE, items, (size_t)count) : NULL;
}

/* The name that init_device_mesh gives to the rank's group along a dim, if the mesh is the first of a job. "0" is the group
 * of all ranks. On a mesh with several dims, each dim has its own groups, numbered from "1" on in the order of the other
 * dims. */
static uint64_t group_number(const tsr_mesh *mesh, const uint64_t *coordinate, uint32_t dim)
{
    uint64_t number = 1, index = 0;
    if (mesh->dim_count == 1) return 0;
    for (uint32_t d = 0; d < dim; d++) number += tsr_mesh_ranks(mesh) / mesh->shape[d];
    for (uint32_t d = 0; d < mesh->dim_count; d++) {
        if (d != dim) index = index * mesh->shape[d] + coordinate[d];
    }
    return number + index;
}

tsr_status tsr_mesh_rank_map(const tsr_mesh *mesh, tsr_arena *arena, tsr_entry **entry, const uint8_t **bytes,
                             tsr_error *err)
{
    const uint64_t count = tsr_mesh_ranks(mesh);
    uint8_t *numbers = tsr_arena_array(arena, (size_t)count, 4, err);
    uint64_t *shape = tsr_arena_array(arena, 1, sizeof *shape, err);
    *entry = TSR_ARENA_NEW(arena, tsr_entry, err);
    if (!numbers || !shape || !*entry) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) {
        for (unsigned b = 0; b < 4; b++) numbers[4 * i + b] = (uint8_t)(i >> (8 * b));
    }
    *shape = count;
    **entry = (tsr_entry){.dtype = TSR_INT32, .ndim = 1, .shape = shape};
    *bytes = numbers;
    return TSR_OK;
}

const tsr_value *tsr_mesh_value(const tsr_mesh *mesh, uint64_t rank, const tsr_entry *rank_map, tsr_arena *arena,
                                tsr_error *err)
{
    const maker m = {arena, err};
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    const tsr_value *groups[TSR_MESH_MAX_DIMS];
    tsr_mesh_coordinate(mesh, rank, coordinate);
    for (uint32_t d = 0; d < mesh->dim_count; d++) {
        const tsr_str name = tsr_arena_format(arena, err, "%llu", (unsigned long long)group_number(mesh, coordinate, d));
        groups[d] = name.data ? tsr_value_str(arena, name, err) : NULL;
    }
    /* clang-format off */
    const tsr_value *pairs[] = {
        text(m, "_device_type"), text(m, "cpu"),
        text(m, "_layout"), layout_value(m, mesh),
        text(m, "_rank_map"), tensor_value(m, rank_map),
        text(m, "_mesh_dim_names"), dim_names(m, mesh),
        text(m, "_root_mesh"), none(m),
        text(m, "_preserve_rank_order"), boolean(m, false),
        text(m, "_flatten_rank_map"), all_ranks(m, mesh),
        text(m, "_thread_id"), none(m),
        text(m, "_flatten_mapping"), dict(m, NULL, 0),
        text(m, "_dim_group_names"), whole(m, TSR_VALUE_LIST, groups, mesh->dim_count),
        text(m, "_rank"), integer(m, rank),
        text(m, "_coordinate_on_dim"), value_numbers(m, TSR_VALUE_TUPLE, coordinate, mesh->dim_count),
        text(m, "_hash"), none(m),
    };
    /* clang-format on */
    return built(m, "torch.distributed.device_mesh.DeviceMesh", NULL, dict(m, pairs, sizeof pairs / sizeof *pairs));
}

/* ---- the tensor ---- */

#define PLACEMENT "torch.distributed.tensor.placement_types."

static const tsr_value *placement_value(maker m, const tsr_placement *placement, uint32_t ndim)
{
    uint32_t dim;
    if (!tsr_placement_dim(placement, ndim, &dim)) return built(m, PLACEMENT "Replicate", NULL, dict(m, NULL, 0));
    const tsr_value *pairs[] = {text(m, "dim"), integer(m, dim), text(m, "split_factor"),
                                integer(m, placement->split_factor)};
    if (placement->kind == TSR_SHARD) return built(m, PLACEMENT "Shard", NULL, dict(m, pairs, 2));
    return built(m, PLACEMENT "_StridedShard", NULL, dict(m, pairs, 4));
}

static bool has_strided(const tsr_dtensor *d)
{
    uint32_t dim;
    for (uint32_t i = 0; i < d->mesh->dim_count; i++) {
        if (d->placements[i].kind == TSR_STRIDED_SHARD && tsr_placement_dim(&d->placements[i], d->ndim, &dim)) return true;
    }
    return false;
}

/* For every tensor dim that is sharded: the mesh dims that shard it, in order. Strided shards contain this information
 * themselves. */
static const tsr_value *shard_order(maker m, const tsr_dtensor *d)
{
    const tsr_value *entries[TSR_MAX_NDIM];
    size_t count = 0;
    if (has_strided(d)) return none(m);
    for (uint32_t dim = 0; dim < d->ndim; dim++) {
        uint64_t cutters[TSR_MESH_MAX_DIMS];
        size_t cuts = 0;
        for (uint32_t i = 0; i < d->mesh->dim_count; i++) {
            uint32_t cut;
            if (tsr_placement_dim(&d->placements[i], d->ndim, &cut) && cut == dim) cutters[cuts++] = i;
        }
        if (!cuts) continue;
        const tsr_value *parts[] = {integer(m, dim), value_numbers(m, TSR_VALUE_TUPLE, cutters, cuts)};
        entries[count++] = built(m, "torch.distributed.tensor._dtensor_spec.ShardOrderEntry", tuple(m, parts, 2), NULL);
    }
    return tuple(m, entries, count);
}

static const tsr_value *spec_value(maker m, const tsr_dtensor *d)
{
    const tsr_value *placements[TSR_MESH_MAX_DIMS];
    for (uint32_t i = 0; i < d->mesh->dim_count; i++) placements[i] = placement_value(m, &d->placements[i], d->ndim);
    const tsr_value *meta[] = {value_numbers(m, TSR_VALUE_SIZE, d->shape, d->ndim), contiguous_strides(m, d),
                               dtype_value(m, d->dtype)};
    /* clang-format off */
    const tsr_value *pairs[] = {
        text(m, "mesh"), d->mesh_value,
        text(m, "placements"), tuple(m, placements, d->mesh->dim_count),
        text(m, "tensor_meta"), built(m, "torch.distributed.tensor._dtensor_spec.TensorMeta", tuple(m, meta, 3), NULL),
        text(m, "shard_order"), shard_order(m, d),
        text(m, "use_strided_shard_as_shard_order"), boolean(m, has_strided(d)),
        text(m, "_hash"), none(m),
    };
    /* clang-format on */
    return built(m, "torch.distributed.tensor._dtensor_spec.DTensorSpec", NULL,
                 dict(m, pairs, sizeof pairs / sizeof *pairs));
}

/* (class, dtype, size, stride, storage offset, layout, device, requires_grad) */
static const tsr_value *wrapper_arguments(maker m, const char *class_name, const tsr_dtensor *d)
{
    const tsr_value *strided = text(m, "torch.strided");
    const tsr_value *arguments[] = {named(m, TSR_VALUE_GLOBAL, class_name),
                                    dtype_value(m, d->dtype),
                                    value_numbers(m, TSR_VALUE_TUPLE, d->shape, d->ndim),
                                    contiguous_strides(m, d),
                                    integer(m, 0),
                                    called(m, "torch.serialization._get_layout", tuple(m, &strided, 1)),
                                    named(m, TSR_VALUE_DEVICE, "cpu"),
                                    boolean(m, d->requires_grad)};
    return tuple(m, arguments, sizeof arguments / sizeof *arguments);
}

static const tsr_value *wrapped(maker m, const char *class_name, const tsr_dtensor *d, const tsr_value *state)
{
    const tsr_value *arguments[] = {named(m, TSR_VALUE_GLOBAL, "torch._utils._rebuild_wrapper_subclass"),
                                    named(m, TSR_VALUE_GLOBAL, class_name), wrapper_arguments(m, class_name, d), state};
    return called(m, "torch._tensor._rebuild_from_type_v2", tuple(m, arguments, 4));
}

const tsr_value *tsr_dtensor_value(const tsr_dtensor *d, tsr_arena *arena, tsr_error *err)
{
    const maker m = {arena, err};
    const tsr_value *flags[] = {text(m, "_is_param"), boolean(m, true)};
    const tsr_value *inner[] = {text(m, "_local_tensor"), tensor_value(m, d->local), text(m, "_spec"), spec_value(m, d)};
    const tsr_value *state[] = {d->is_parameter ? dict(m, flags, 2) : none(m), dict(m, inner, 4)};
    return wrapped(m, "torch.distributed.tensor.DTensor", d, tuple(m, state, 2));
}

/* ---- ShardedTensors ----
 *
 *   state: ([Shard], ShardedTensorMetadata, ProcessGroupState, EnumerableShardingSpec, init_rrefs)
 *
 * Source: torch/distributed/_shard/sharded_tensor/api.py, metadata.py; the state of classes with slots is (None, dict). */

#define SHARD_ROOM "torch.distributed._shard."

static const tsr_value *slotted(maker m, const char *class_name, const tsr_value *const *pairs, size_t count)
{
    const tsr_value *state[] = {none(m), dict(m, pairs, count)};
    return built(m, class_name, NULL, tuple(m, state, 2));
}

uint64_t tsr_sharded_size(const tsr_sharded *s, uint64_t rank)
{
    const uint64_t at = rank * s->slice_numel;
    if (at >= s->numel) return 0;
    return s->numel - at < s->slice_numel ? s->numel - at : s->slice_numel;
}

static const tsr_value *shard_metadata(maker m, const tsr_sharded *s, uint64_t rank)
{
    const uint64_t at = rank * s->slice_numel, size = tsr_sharded_size(s, rank);
    const tsr_value *placed[] = {text(m, "_worker_name"), none(m),
                                 text(m, "_rank"),        integer(m, rank),
                                 text(m, "_device"),      named(m, TSR_VALUE_DEVICE, "cpu")};
    const tsr_value *pairs[] = {
        text(m, "shard_offsets"), value_numbers(m, TSR_VALUE_LIST, &at, 1),
        text(m, "shard_sizes"),   value_numbers(m, TSR_VALUE_LIST, &size, 1),
        text(m, "placement"),     built(m, "torch.distributed.remote_device._remote_device", NULL, dict(m, placed, 6))};
    return slotted(m, SHARD_ROOM "metadata.ShardMetadata", pairs, 6);
}

/* The metadata of the shards of all ranks that have a slice. */
static const tsr_value *all_shards(maker m, const tsr_sharded *s)
{
    const uint64_t count = s->slice_numel ? (s->numel + s->slice_numel - 1) / s->slice_numel : 0;
    const tsr_value **items = tsr_arena_array(m.arena, (size_t)count, sizeof *items, m.err);
    for (uint64_t r = 0; items && r < count; r++) items[r] = shard_metadata(m, s, r);
    return items ? whole(m, TSR_VALUE_LIST, items, (size_t)count) : NULL;
}

static const tsr_value *tensor_properties(maker m, const tsr_sharded *s)
{
    const tsr_value *strided = text(m, "torch.strided");
    const tsr_value *state[] = {
        dtype_value(m, s->dtype), called(m, "torch.serialization._get_layout", tuple(m, &strided, 1)),
        boolean(m, s->requires_grad),
        named(m, TSR_VALUE_GLOBAL, SHARD_ROOM "sharded_tensor.metadata.MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT"),
        boolean(m, false)};
    return built(m, SHARD_ROOM "sharded_tensor.metadata.TensorProperties", NULL, tuple(m, state, 5));
}

static const tsr_value *group_state(maker m, const tsr_sharded *s)
{
    const tsr_value *pairs[] = {text(m, "local_rank"),        integer(m, s->rank),         text(m, "global_rank"),
                                integer(m, s->rank),          text(m, "local_world_size"), integer(m, s->ranks),
                                text(m, "global_world_size"), integer(m, s->ranks)};
    return built(m, TSR_TORCH_GROUP_STATE, NULL, dict(m, pairs, 8));
}

const tsr_value *tsr_sharded_value(const tsr_sharded *s, tsr_arena *arena, tsr_error *err)
{
    const maker m = {arena, err};
    const tsr_value *shards = all_shards(m, s);
    const tsr_value *own[] = {text(m, "tensor"), s->local ? tensor_value(m, s->local) : none(m), text(m, "metadata"),
                              s->local ? shard_metadata(m, s, s->rank) : none(m)};
    const tsr_value *shard = slotted(m, SHARD_ROOM "sharded_tensor.shard.Shard", own, 4);
    const tsr_value *about[] = {text(m, "shards_metadata"),
                                shards,
                                text(m, "size"),
                                value_numbers(m, TSR_VALUE_SIZE, &s->numel, 1),
                                text(m, "tensor_properties"),
                                tensor_properties(m, s)};
    const tsr_value *spec[] = {text(m, "shards"), shards};
    const tsr_value *state[] = {
        whole(m, TSR_VALUE_LIST, &shard, s->local != NULL),
        built(m, SHARD_ROOM "sharded_tensor.metadata.ShardedTensorMetadata", NULL, dict(m, about, 6)), group_state(m, s),
        built(m, SHARD_ROOM "sharding_spec.api.EnumerableShardingSpec", NULL, dict(m, spec, 2)), boolean(m, false)};
    const tsr_dtensor global = {.dtype = s->dtype, .ndim = 1, .shape = &s->numel, .requires_grad = s->requires_grad};
    return wrapped(m, SHARD_ROOM "sharded_tensor.api.ShardedTensor", &global, tuple(m, state, 5));
}

/* ---- localize ---- */

/* Intersects the boxes of a shard with the chunks of the tensor to get the chunks of the local tensor.
 *
 *   global   [ chunk A ····[box····] ]  [ [····box] chunk B ··· ]
 *   local                   [ a1 ··][ b1 ···]                        views begin where the box begins in its chunk */

/* A box around all boxes of the shard, so that other chunks need not be located. */
static tsr_box hull_of(const tsr_shard *shard, uint64_t *offsets, uint64_t *sizes)
{
    for (uint32_t d = 0; d < shard->ndim; d++) {
        offsets[d] = shard->box_count ? shard->boxes[0].offsets[d] : 0;
        sizes[d] = shard->box_count ? shard->boxes[0].sizes[d] : 0;
    }
    for (uint64_t b = 1; b < shard->box_count; b++)
        tsr_box_enclose(shard->ndim, offsets, sizes, (tsr_box){shard->ndim, shard->boxes[b].offsets, shard->boxes[b].sizes});
    return (tsr_box){shard->ndim, offsets, sizes};
}

static tsr_status add_chunk(const tsr_gather *gather, const tsr_located *part, const tsr_shard_box *box, tsr_arena *arena,
                            tsr_vec *chunks, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    const uint32_t ndim = gather->ndim;
    if (!tsr_box_intersect((tsr_box){ndim, part->offsets, part->sizes}, (tsr_box){ndim, box->offsets, box->sizes}, offsets,
                           sizes))
        return TSR_OK;
    tsr_chunk *chunk = tsr_vec_push(chunks, err);
    uint64_t *numbers = tsr_arena_array(arena, 3 * (size_t)ndim, sizeof *numbers, err);
    tsr_view *view = TSR_ARENA_NEW(arena, tsr_view, err);
    if (!chunk || !numbers || !view) return TSR_E_NOMEM;
    *view = part->view;
    for (uint32_t d = 0; d < ndim; d++) {
        numbers[d] = offsets[d] - box->offsets[d] + box->local_offsets[d];
        numbers[ndim + d] = sizes[d];
        numbers[2 * ndim + d] = part->strides[d];
        view->byte_offset += (offsets[d] - part->offsets[d]) * part->strides[d] * gather->itemsize;
    }
    view->strides = numbers + 2 * ndim;
    *chunk = (tsr_chunk){
        .offsets = numbers, .sizes = numbers + ndim, .byte_offset = view->byte_offset, .view = view, .file = view->file};
    return TSR_OK;
}

static tsr_status localize_cut(const tsr_gather *gather, const tsr_shard *shard, tsr_arena *arena, tsr_vec *chunks,
                               tsr_entry *out, tsr_error *err)
{
    for (uint64_t b = 0; b < shard->box_count; b++) {
        for (size_t i = 0; i < gather->part_count; i++) {
            TSR_TRY(add_chunk(gather, &gather->parts[i], &shard->boxes[b], arena, chunks, err));
        }
    }
    tsr_chunk *own = tsr_arena_array(arena, chunks->count, sizeof *own, err);
    if (!own) return TSR_E_NOMEM;
    if (chunks->count) memcpy(own, chunks->items, chunks->count * sizeof *own);
    out->chunks = own;
    out->chunk_count = chunks->count;
    return TSR_OK;
}

tsr_status tsr_localize(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_shard *shard, tsr_arena *arena,
                        tsr_entry *out, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], *shape = tsr_arena_array(arena, shard->ndim, sizeof *shape, err);
    const tsr_box hull = hull_of(shard, offsets, sizes);
    tsr_gather *gather = NULL;
    if (!shape) return TSR_E_NOMEM;
    TSR_FAIL_IF(tsr_dtype_describe(entry->dtype)->bits == 6, err, TSR_E_UNSUPPORTED, "'%.*s': %s cannot be split",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    if (shard->ndim) memcpy(shape, shard->local_shape, shard->ndim * sizeof *shape);
    if (shard->box_count) TSR_TRY(tsr_gather_open(checkpoint, entry, &hull, &gather, err));
    *out = (tsr_entry){.fqn = entry->fqn, .dtype = entry->dtype, .ndim = shard->ndim, .shape = shape};
    uint64_t last = 0;
    if (!tsr_dtype_pack(&out->dtype, &last)) return TSR_E_FORMAT;
    if (!gather) return TSR_OK;
    tsr_vec chunks = tsr_vec_of(tsr_checkpoint_host(checkpoint)->allocator, sizeof(tsr_chunk));
    tsr_status status = localize_cut(gather, shard, arena, &chunks, out, err);
    tsr_vec_free(&chunks);
    tsr_gather_close(gather);
    return status;
}
