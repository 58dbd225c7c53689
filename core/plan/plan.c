/* Makes a plan: gives every tensor its placements, its layout and its class. Each class is checked and indexed once. */
#include "base/cursor.h"
#include "plan/plan_room.h"
#include "plan/plan_sources.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/map.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/target.h"
#include "tessera/sys/tiling.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

typedef struct maker {
    tsr_plan *plan;
    tsr_map *layouts;    /* placements and shape → number in layout_list */
    tsr_map *classes;    /* layout and chunk boxes → number of the class */
    tsr_vec layout_list; /* of const tsr_layout * */
    tsr_source_loads loads;
} maker;

/* Copies an entry with float4 counted in single elements as one that counts pairs: the last dimension of its shape and
 * chunks is halved. */
static tsr_status pack_entry(const tsr_entry *entry, tsr_arena *arena, const tsr_entry **out, tsr_error *err)
{
    uint32_t ndim = entry->ndim, last = ndim - 1;
    tsr_entry *copy = TSR_ARENA_NEW(arena, tsr_entry, err);
    uint64_t *numbers = copy ? tsr_arena_array(arena, 2 * entry->chunk_count + 1, ndim * sizeof *numbers, err) : NULL;
    tsr_chunk *chunks = numbers ? tsr_arena_array(arena, entry->chunk_count, sizeof *chunks, err) : NULL;
    if (!chunks) return TSR_E_NOMEM;
    *copy = *entry;
    memcpy(numbers, entry->shape, ndim * sizeof *numbers);
    bool even = tsr_dtype_pack(&copy->dtype, &numbers[last]);
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        uint64_t *offsets = numbers + (2 * i + 1) * ndim, *sizes = offsets + ndim;
        memcpy(offsets, entry->chunks[i].offsets, ndim * sizeof *offsets);
        memcpy(sizes, entry->chunks[i].sizes, ndim * sizeof *sizes);
        even = even && offsets[last] % 2 == 0 && sizes[last] % 2 == 0;
        offsets[last] /= 2;
        sizes[last] /= 2;
        chunks[i] = entry->chunks[i];
        chunks[i].offsets = offsets;
        chunks[i].sizes = sizes;
    }
    TSR_FAIL_IF(!even, err, TSR_E_UNSUPPORTED, "'%.*s' is float4, and the target splits it in the middle of a byte",
                TSR_STR_ARG(entry->fqn));
    copy->shape = numbers;
    copy->chunks = chunks;
    *out = copy;
    return TSR_OK;
}

/* Adds a key unless the map already has it; an existing value is not replaced. */
static tsr_status put_key(tsr_map *map, tsr_str key, uint32_t value, tsr_arena *arena, tsr_error *err)
{
    uint32_t *existing;
    bool inserted;
    tsr_str kept = tsr_arena_str(arena, key, err);
    if (!kept.data) return TSR_E_NOMEM;
    return tsr_map_put(map, kept, value, &existing, &inserted, err);
}

/* Finds the layout for a shape and its placements, or makes it on first use. */
static tsr_status find_layout(maker *m, const tsr_entry *entry, const tsr_placement *placements, uint32_t *number,
                              tsr_error *err)
{
    tsr_arena *arena = m->plan->arena;
    const tsr_mesh *mesh = &m->plan->target->mesh;
    size_t head = mesh->dim_count * sizeof *placements, size = head + entry->ndim * sizeof *entry->shape;
    char key[TSR_MESH_MAX_DIMS * sizeof *placements + TSR_MAX_NDIM * sizeof *entry->shape];
    memcpy(key, placements, head);
    if (entry->ndim) memcpy(key + head, entry->shape, size - head);
    *number = tsr_map_get(m->layouts, (tsr_str){key, size}, UINT32_MAX);
    if (*number != UINT32_MAX) return TSR_OK;
    *number = (uint32_t)m->layout_list.count;
    TSR_TRY(put_key(m->layouts, (tsr_str){key, size}, *number, arena, err));
    tsr_layout *layout = TSR_ARENA_NEW(arena, tsr_layout, err), **slot = layout ? tsr_vec_push(&m->layout_list, err) : NULL;
    if (!slot) return TSR_E_NOMEM;
    *slot = layout;
    return tsr_layout_over_mesh(&(tsr_sharding){mesh, placements, m->plan->target->strided},
                                (tsr_shape){entry->ndim, entry->shape}, arena, layout, err);
}

/* Adds a layout supplied by the caller. */
static tsr_status take_layout(maker *m, const tsr_entry *entry, const tsr_layout *layout, uint32_t *number, tsr_error *err)
{
    tsr_box shape = {entry->ndim, NULL, entry->shape};
    bool fits = layout->ranks == m->plan->ranks && tsr_box_equal(shape, (tsr_box){layout->ndim, NULL, layout->shape});
    TSR_FAIL_IF(!fits, err, TSR_E_USAGE, "the layout given for '%.*s' has a different shape or number of ranks",
                TSR_STR_ARG(entry->fqn));
    const tsr_layout **slot = tsr_vec_push(&m->layout_list, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = layout;
    *number = (uint32_t)m->layout_list.count - 1;
    return TSR_OK;
}

/* What tensors of one class have in common, except for the chunks. */
typedef struct placing {
    uint32_t layout; /* number in layout_list */
    const tsr_placement *placements;
    tsr_holders holders;
} placing;

static tsr_status choose_layout(maker *m, const tsr_plan_options *options, tsr_plan_tensor *tensor, placing *out,
                                tsr_error *err)
{
    const tsr_layout *own = options && options->layout ? options->layout(options->layout_ctx, tensor->entry) : NULL;
    *out = (placing){.holders = {.mesh = &m->plan->target->mesh}};
    if (own) return take_layout(m, tensor->packed, own, &out->layout, err);
    TSR_TRY(
        tsr_target_placements(m->plan->target, tensor->packed, m->plan->arena, &out->placements, &tensor->replicated, err));
    TSR_TRY(tsr_target_holders(m->plan->target, tensor->packed, &out->holders, err));
    return find_layout(m, tensor->packed, out->placements, &out->layout, err);
}

static uint64_t hash_boxes(const tsr_entry *entry)
{
    uint64_t hash = entry->chunk_count;
    size_t size = entry->ndim * sizeof(uint64_t);
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        hash = tsr_hash_bytes(entry->chunks[i].offsets, size, hash);
        hash = tsr_hash_bytes(entry->chunks[i].sizes, size, hash);
    }
    return hash;
}

static bool same_boxes(const tsr_entry *a, const tsr_entry *b)
{
    if (a->ndim != b->ndim || a->chunk_count != b->chunk_count) return false;
    for (uint64_t i = 0; i < a->chunk_count; i++) {
        tsr_box box_a = {a->ndim, a->chunks[i].offsets, a->chunks[i].sizes};
        if (!tsr_box_equal(box_a, (tsr_box){a->ndim, b->chunks[i].offsets, b->chunks[i].sizes})) return false;
    }
    return true;
}

static tsr_status check_class(const maker *m, const tsr_plan_class *c, tsr_error *err)
{
    const tsr_entry *entry = c->sample;
    tsr_tiling tiling;
    TSR_TRY(tsr_tiling_check(m->plan->host->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks,
                             entry->chunk_count, &tiling, err));
    TSR_FAIL_IF(!tiling.exact, err, TSR_E_FORMAT,
                "the chunks of '%.*s' do not tile it (%llu element%s not covered%s); tessera validate shows where",
                TSR_STR_ARG(entry->fqn), (unsigned long long)tiling.missing, tiling.missing == 1 ? " is" : "s are",
                tiling.overlap[0] != TSR_NO_CHUNK ? ", some are covered several times" : "");
    bool cut = c->layout->dims == NULL;
    for (uint32_t d = 0; d < entry->ndim && !cut; d++) cut = c->layout->dims[d].positions > 1;
    TSR_FAIL_IF(cut && tsr_dtype_size(entry->dtype) == 0, err, TSR_E_UNSUPPORTED,
                "'%.*s' is %s, whose elements are not byte-aligned, so it cannot be split", TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    return tsr_plan_check_holders(c, m->plan->ranks, err);
}

static tsr_status add_class(maker *m, const tsr_entry *entry, const placing *place, tsr_error *err)
{
    tsr_plan_class *c = tsr_vec_push(&m->plan->classes, err);
    if (!c) return TSR_E_NOMEM;
    c->sample = entry;
    c->layout = ((const tsr_layout *const *)m->layout_list.items)[place->layout];
    c->placements = place->placements;
    c->holders = place->holders;
    TSR_TRY(check_class(m, c, err));
    tsr_entry_elements(entry, &c->elements); /* cannot overflow, since the tiling was checked */
    return tsr_chunk_index_build(entry->ndim, entry->chunks, entry->chunk_count, m->plan->arena, &c->index, err);
}

/* Finds the class of a tensor, or adds it. If another class has the same hash but different boxes, adds a second class. */
static tsr_status find_class(maker *m, const tsr_entry *entry, const placing *place, uint32_t *number, tsr_error *err)
{
    /* float6 tensors cannot be split, so the checks of a class depend on the element size. The pointer to a rule's list of
     * ranks identifies the rule. */
    const tsr_holders *holders = &place->holders;
    const uint64_t key[] = {place->layout,
                            hash_boxes(entry),
                            tsr_dtype_size(entry->dtype) == 0,
                            (uintptr_t)holders->ranks,
                            holders->at_coordinate ? holders->mesh_dim + UINT64_C(1) : 0,
                            holders->coordinate};
    tsr_str text = {(const char *)key, sizeof key};
    *number = tsr_map_get(m->classes, text, UINT32_MAX);
    if (*number != UINT32_MAX && same_boxes(tsr_plan_classes(m->plan)[*number].sample, entry)) return TSR_OK;
    *number = (uint32_t)m->plan->classes.count;
    TSR_TRY(add_class(m, entry, place, err));
    return put_key(m->classes, text, *number, m->plan->arena, err);
}

/* Adds up the bytes of all tensors. Below this limit, later sums of their bytes and bits cannot overflow 64 bits. */
static tsr_status count_bytes(tsr_plan *plan, const tsr_entry *entry, tsr_error *err)
{
    uint64_t bytes;
    bool fits = tsr_entry_bytes(entry, &bytes) && tsr_add_u64(plan->byte_total, bytes, &plan->byte_total);
    TSR_FAIL_IF(!fits || plan->byte_total >> 60, err, TSR_E_LIMIT, "the tensors up to '%.*s' have 2^60 bytes or more",
                TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

static tsr_status add_tensor(maker *m, const tsr_entry *entry, const tsr_plan_options *options, tsr_error *err)
{
    tsr_plan *plan = m->plan;
    placing place;
    tsr_plan_tensor tensor = {.entry = entry, .packed = entry};
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' has %u dimensions; at most %u are supported",
                TSR_STR_ARG(entry->fqn), entry->ndim, TSR_MAX_NDIM);
    TSR_TRY(count_bytes(plan, entry, err));
    if (entry->dtype == TSR_FLOAT4_E2M1FN && entry->ndim) TSR_TRY(pack_entry(entry, plan->arena, &tensor.packed, err));
    TSR_TRY(choose_layout(m, options, &tensor, &place, err));
    TSR_TRY(find_class(m, tensor.packed, &place, &tensor.class_number, err));
    TSR_TRY(tsr_sources_choose(&m->loads, entry, plan->arena, &tensor.sources, err));
    tsr_plan_class *c = (tsr_plan_class *)plan->classes.items + tensor.class_number;
    c->tensors++;
    c->element_bits += tsr_plan_bits(&tensor);
    tsr_plan_tensor *slot = tsr_vec_push(&plan->tensors, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = tensor;
    return TSR_OK;
}

/* Tensor subclasses are not planned: their inner tensors stay together, so they can be neither cut nor joined. */
static tsr_status refuse_cut(const maker *m, const tsr_entry *entry, tsr_error *err)
{
    const tsr_target *target = m->plan->target;
    const tsr_placement *placements;
    bool cut = entry->is_sharded, replicated = false;
    if (!tsr_entry_is_subclass(entry)) return TSR_OK;
    if (!cut) TSR_TRY(tsr_target_placements(target, entry, m->plan->arena, &placements, &replicated, err));
    for (uint32_t d = 0; d < target->mesh.dim_count && !cut && !replicated; d++)
        cut = placements[d].kind != TSR_REPLICATE && target->mesh.shape[d] > 1;
    TSR_FAIL_IF(cut, err, TSR_E_UNSUPPORTED, "'%.*s' is a tensor of the class %.*s, %s; leave it out with --exclude%s",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type),
                entry->is_sharded ? "whose shards cannot be joined or cut" : "which cannot be cut",
                entry->is_sharded ? "" : ", or replicate it");
    return TSR_OK;
}

static tsr_status add_tensors(maker *m, const tsr_plan_options *options, tsr_error *err)
{
    const tsr_catalog *catalog = m->plan->catalog;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        bool wanted = !options || !options->want || options->want(options->want_ctx, entry->fqn);
        if (wanted && entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(add_tensor(m, entry, options, err));
        else if (wanted && !(options && options->layout)) TSR_TRY(refuse_cut(m, entry, err));
    }
    return TSR_OK;
}

static tsr_status make(tsr_plan *plan, const tsr_plan_options *options, tsr_error *err)
{
    const tsr_allocator *allocator = plan->host->allocator;
    maker m = {.plan = plan};
    m.layout_list = tsr_vec_of(allocator, sizeof(tsr_layout *));
    m.loads.bytes = tsr_vec_of(allocator, sizeof(uint64_t));
    m.layouts = tsr_map_new(allocator, 0, err);
    m.classes = m.layouts ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = m.classes ? tsr_target_check(plan->target, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = add_tensors(&m, options, err);
    tsr_vec_free(&m.layout_list);
    tsr_vec_free(&m.loads.bytes);
    tsr_map_free(m.layouts);
    tsr_map_free(m.classes);
    return status;
}

tsr_status tsr_plan_new(const tsr_catalog *catalog, const tsr_target *target, const tsr_plan_options *options,
                        const tsr_host *host, tsr_plan **out, tsr_error *err)
{
    tsr_plan_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_plan_options, err));
    const uint64_t ranks = tsr_mesh_ranks(&target->mesh);
    TSR_FAIL_IF(ranks > TSR_PLAN_MAX_RANKS, err, TSR_E_LIMIT, "the mesh has %llu ranks; a plan can have at most %llu",
                (unsigned long long)ranks, (unsigned long long)TSR_PLAN_MAX_RANKS);
    tsr_arena *arena = tsr_arena_new(host->allocator, host->limits.memory_bytes, err);
    tsr_plan *plan = arena ? TSR_ARENA_NEW(arena, tsr_plan, err) : NULL;
    if (!plan) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *plan = (tsr_plan){.host = host, .catalog = catalog, .target = target, .arena = arena, .ranks = ranks};
    plan->classes = tsr_vec_of(host->allocator, sizeof(tsr_plan_class));
    plan->tensors = tsr_vec_of(host->allocator, sizeof(tsr_plan_tensor));
    plan->flat_units = own.flat_units;
    plan->flat_unit_count = own.flat_unit_count;
    plan->storage = own.storage;
    tsr_status status = make(plan, &own, err);
    if (status != TSR_OK) {
        tsr_plan_free(plan);
        return status;
    }
    *out = plan;
    return TSR_OK;
}

void tsr_plan_free(tsr_plan *plan)
{
    if (!plan) return;
    tsr_vec_free(&plan->classes);
    tsr_vec_free(&plan->tensors);
    tsr_arena_free(plan->arena);
}

uint64_t tsr_plan_ranks(const tsr_plan *plan)
{
    return plan->ranks;
}
const tsr_fsdp1_unit *tsr_plan_flat_units(const tsr_plan *plan, uint64_t *count)
{
    *count = plan->flat_unit_count;
    return plan->flat_units;
}
uint64_t tsr_plan_count(const tsr_plan *plan)
{
    return plan->tensors.count;
}

tsr_planned tsr_plan_tensor_at(const tsr_plan *plan, uint64_t index)
{
    const tsr_plan_tensor *tensor = &tsr_plan_tensors(plan)[index];
    const tsr_plan_class *c = &tsr_plan_classes(plan)[tensor->class_number];
    return (tsr_planned){tensor->entry, tensor->packed->shape, c->placements, c->layout, c->holders, tensor->replicated};
}
