/* Writes a checkpoint as one torch.save file. The nested structure is restored from the entries' paths, objects are written
 * with the data that was read, and tensors that shared a storage share one again. */
#include "convert/convert_to.h"
#include "formats/torch/torch_loadable.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "write/torch_plan.h"

/* ---- a whole checkpoint ---- */

const char *tsr_torch_refusal(const tsr_converted *row)
{
    if (tsr_is_object(row->entry)) return row->entry->value ? NULL : "is an object whose value was not read";
    if (tsr_entry_is_subclass(row->entry)) return row->entry->is_sharded ? "is sharded and cannot be joined" : NULL;
    if (row->entry->kind == TSR_ENTRY_OPAQUE) return tsr_opaque_refusal(row->entry);
    if (tsr_dtype_describe(row->dtype)->bits == 6) return "has a float6 type, which torch does not have";
    return tsr_dtype_describe(row->dtype)->kind == TSR_CLASS_QUANTIZED ? "is quantized, and its scale is unknown" : NULL;
}

/* Nests all written rows into one value. */
static tsr_status nest_rows(const tsr_conversion_job *job, const tsr_chosen *chosen, const tsr_value **root, tsr_error *err)
{
    const tsr_value **values = tsr_arena_array(job->arena, (size_t)chosen->count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        values[i] = row->entry->value;
        if (!row->written) continue;
        if (row->entry->kind != TSR_ENTRY_TENSOR) {
            row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(job->checkpoint));
            continue;
        }
        values[i] = tsr_value_tensor(job->arena, row->entry, err);
        if (!values[i]) return TSR_E_NOMEM;
    }
    return tsr_nest_rows(chosen, values, job->arena, root, err);
}

static tsr_status report(const tsr_conversion_job *job, const tsr_chosen *chosen, const tsr_torch_plan *plan, tsr_error *err)
{
    tsr_conversion *out = job->out;
    tsr_str *name = TSR_ARENA_NEW(job->arena, tsr_str, err);
    uint64_t *size = TSR_ARENA_NEW(job->arena, uint64_t, err);
    if (!name || !size) return TSR_E_NOMEM;
    *name = tsr_single_file(job);
    *size = plan->archive.size;
    *out = (tsr_conversion){.rows = chosen->rows,
                            .row_count = chosen->count,
                            .files = name,
                            .file_sizes = size,
                            .file_count = 1,
                            .marker = TSR_NO_FILE};
    for (uint32_t i = 0; i < plan->storage_count; i++) out->byte_total += plan->write_items[i].byte_length;
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        row->copied = false; /* shared storages are shared again */
        if (row->written && row->entry->kind == TSR_ENTRY_TENSOR)
            TSR_TRY(tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err));
    }
    return TSR_OK;
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    (void)number, (void)arena, (void)err;
    *out = tsr_torch_plan_stage(ctx, 0);
    return TSR_OK;
}

static tsr_status convert(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_chosen chosen;
    const tsr_value *root;
    tsr_torch_plan *plan = TSR_ARENA_NEW(job->arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &chosen, err));
    TSR_TRY(nest_rows(job, &chosen, &root, err));
    TSR_TRY(tsr_torch_plan_open(job->checkpoint, root, job->arena, plan, err));
    plan->unsummed = job->options->no_checksums;
    for (uint64_t i = 0; i < chosen.count; i++) {
        tsr_torch_tensor *source = chosen.rows[i].cast ? tsr_torch_plan_source(plan, chosen.rows[i].entry) : NULL;
        if (source) source->dtype = chosen.rows[i].dtype;
    }
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    *out = (tsr_writer){.stage_count = 1, .crc = !plan->unsummed, .stage = stage_of, .ctx = plan};
    return report(job, &chosen, plan, err);
}

/* ---- for a plan ---- */

/* One torch.save file per rank: DTensors, ShardedTensors, plain shards, or FSDP1's flat parameters. */

/* The slices of flat parameters on one rank. */
typedef struct tsr_flat_rank {
    const tsr_chosen *chosen;
    const tsr_plan *plan;
    uint64_t rank;
    tsr_entry *locals; /* one per unit: its slice */
} tsr_flat_rank;

/* ---- flat ---- */

/* Makes a unit's slice on a rank a storage that is filled from ranges of the unit's parameters:
 *
 *   flat parameter   [ w0 ········· ][ w1 ············ ]
 *   storage                 [ w0 ·· ][ w1 ··· ]             write items: boxes of w0, boxes of w1 */

#define FLAT_PARAM "_flat_param" /* FLAT_PARAM of torch/distributed/fsdp/_common_utils.py */

/* ---- names ---- */

static bool same_item(const tsr_path_item *a, const tsr_path_item *b)
{
    return a->kind == b->kind && a->integer == b->integer && tsr_str_equal(a->key, b->key);
}

/* The path of the model's state dict: the items with which the paths of all flattened parameters begin. */
static const tsr_path_item *common_path(const tsr_plan *plan, uint32_t *length)
{
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(plan, &count);
    const tsr_path_item *path = NULL;
    bool first = true;
    *length = 0;
    for (uint64_t u = 0; u < count; u++) {
        for (uint64_t i = 0; i < units[u].count; i++, first = false) {
            const tsr_entry *entry = units[u].entries[i];
            const uint32_t own = entry->path && entry->path_length ? entry->path_length - 1 : 0;
            uint32_t same = 0;
            if (first) path = entry->path;
            if (first) *length = own;
            while (same < *length && same < own && same_item(&entry->path[same], &path[same])) same++;
            *length = same;
        }
    }
    return path;
}

static tsr_status root_name(const tsr_plan *plan, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    uint32_t length;
    const tsr_path_item *path = common_path(plan, &length);
    *out = TSR_STR("");
    for (uint32_t i = 0; i < length; i++) {
        *out = path[i].kind == TSR_PATH_KEY
                   ? tsr_arena_format(arena, err, "%.*s%.*s.", TSR_STR_ARG(*out), TSR_STR_ARG(path[i].key))
                   : tsr_arena_format(arena, err, "%.*s%lld.", TSR_STR_ARG(*out), (long long)path[i].integer);
        if (!out->data) return TSR_E_NOMEM;
    }
    *out = tsr_arena_format(arena, err, "%.*s" FLAT_PARAM, TSR_STR_ARG(*out));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status unit_name(const tsr_fsdp1_unit *unit, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_str module = unit->match;
    while (module.size && module.data[module.size - 1] == '*') module.size--;
    const bool starred = module.size < unit->match.size && module.size > 1 && module.data[module.size - 1] == '.';
    bool literal = starred;
    for (size_t i = 0; i < module.size; i++) literal = literal && !memchr("*?[", module.data[i], 3);
    TSR_FAIL_IF(!literal, err, TSR_E_USAGE,
                "the unit '%.*s' does not name a single module, so its flat parameter has no name in a torch.save file; "
                "units must have the form MODULE.**",
                TSR_STR_ARG(unit->match));
    *out = tsr_arena_format(arena, err, "%.*s" FLAT_PARAM, TSR_STR_ARG(module));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status check_loadable(const tsr_fsdp1_unit *unit, tsr_error *err)
{
    TSR_FAIL_IF(unit->use_orig_params, err, TSR_E_UNSUPPORTED,
                "'%.*s' would be part of a flat parameter, which FSDP1 with use_orig_params does not load from a rank's "
                "file; set \"use_orig_params\": false in the strategy, or reshard to dcp",
                TSR_STR_ARG(unit->entries[0]->fqn));
    return TSR_OK;
}

/* Renames the rows of every unit's parameters to the name of its flat parameter: that of the wrapped module, and
 * `_flat_param`. The unit's GLOB must state the module (MODULE.** or MODULE.*); the root's is where all flattened parameters
 * are. Fails with TSR_E_USAGE otherwise, and with TSR_E_UNSUPPORTED for use_orig_params, because PyTorch 2.13 cannot load
 * what it saves in that case. */
static tsr_status flat_rows_name(const tsr_chosen *chosen, const tsr_plan *plan, tsr_arena *arena, tsr_error *err)
{
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(plan, &count);
    for (uint64_t u = 0; u < count; u++) {
        tsr_str name;
        if (units[u].count == 0) continue;
        TSR_TRY(check_loadable(&units[u], err));
        if (units[u].match.size) {
            TSR_TRY(unit_name(&units[u], arena, &name, err));
        } else {
            TSR_TRY(root_name(plan, arena, &name, err));
        }
        for (uint64_t i = 0; i < units[u].count; i++) {
            tsr_converted *row = tsr_row_of(chosen, units[u].entries[i]);
            row->name = name;
        }
    }
    return TSR_OK;
}

/* ---- values ---- */

/* Sets `locals`, and the values of the rank's rows: each unit's ShardedTensor at its first parameter, NULL at the others. */
static tsr_status flat_values(const tsr_flat_rank *of, const tsr_value **values, tsr_arena *arena, tsr_error *err)
{
    const tsr_entry *first = tsr_checkpoint_catalog(of->chosen->checkpoint)->entries;
    tsr_entry *locals = of->locals;
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(of->plan, &count);
    for (uint64_t u = 0; u < count; u++) {
        const tsr_flat_layout *flat = &units[u].flat;
        uint64_t *shape = tsr_arena_array(arena, 1, sizeof *shape, err);
        if (!shape) return TSR_E_NOMEM;
        if (units[u].count == 0) continue;
        const tsr_converted *row = tsr_row_of(of->chosen, units[u].entries[0]);
        const tsr_dtype_class kind = tsr_dtype_describe(row->dtype)->kind;
        tsr_sharded sharded = {.dtype = row->dtype,
                               .numel = flat->flat_numel,
                               .slice_numel = flat->slice_numel,
                               .ranks = flat->ranks,
                               .rank = of->rank,
                               .requires_grad = kind == TSR_CLASS_FLOAT || kind == TSR_CLASS_COMPLEX};
        *shape = tsr_sharded_size(&sharded, of->rank);
        locals[u] = (tsr_entry){.fqn = row->name, .dtype = units[u].dtype, .ndim = 1, .shape = shape};
        if (*shape) sharded.local = &locals[u];
        for (uint64_t i = 0; i < units[u].count; i++) values[units[u].entries[i] - first] = NULL;
        values[units[u].entries[0] - first] = tsr_sharded_value(&sharded, arena, err);
        if (!values[units[u].entries[0] - first]) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* Sets the dtypes to which the slices in an opened plan are cast. */
static void flat_casts(const tsr_flat_rank *of, tsr_torch_plan *file)
{
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(of->plan, &count);
    for (uint64_t u = 0; u < count; u++) {
        tsr_torch_tensor *source = tsr_torch_plan_source(file, &of->locals[u]);
        if (source) source->dtype = tsr_row_of(of->chosen, units[u].entries[0])->dtype;
    }
}

/* ---- bytes ---- */

typedef struct flat_stage {
    tsr_torch_plan *file;
    tsr_write_item *write_items;
    size_t *ends; /* where the write items of each storage end */
} flat_stage;

/* A storage that is being filled. */
typedef struct filling {
    tsr_arena *arena;
    tsr_vec *write_items;
    tsr_write_item at; /* position of the next write item */
    uint32_t itemsize;
} filling;

static tsr_status add_range(filling *f, const tsr_entry *entry, tsr_span range, tsr_error *err)
{
    const uint32_t ndim = entry->ndim;
    const size_t most = ndim ? (2 * (size_t)ndim - 1) * ndim : 1;
    uint64_t elements, *offsets = tsr_arena_array(f->arena, 2 * most, sizeof *offsets, err), *sizes = offsets + most;
    if (!offsets) return TSR_E_NOMEM;
    const uint32_t count = tsr_range_boxes(ndim, entry->shape, range, offsets, sizes);
    for (uint32_t b = 0; b < count; b++) {
        tsr_write_item *write_item = tsr_vec_push(f->write_items, err);
        if (!write_item) return TSR_E_NOMEM;
        tsr_box_volume((tsr_box){ndim, NULL, sizes + b * ndim}, &elements); /* cannot overflow: it is part of the tensor */
        f->at.byte_length = elements * f->itemsize;
        *write_item = f->at;
        write_item->entry = entry;
        if (ndim) write_item->offsets = offsets + b * ndim;
        if (ndim) write_item->sizes = sizes + b * ndim;
        f->at.byte_offset += f->at.byte_length;
    }
    return TSR_OK;
}

static tsr_status fill_slice(filling *f, const tsr_fsdp1_unit *unit, uint64_t rank, tsr_error *err)
{
    for (uint64_t i = 0; i < unit->count; i++) {
        const tsr_span range = tsr_flat_layout_range(&unit->flat, i, rank);
        if (range.size) TSR_TRY(add_range(f, unit->entries[i], range, err));
    }
    return TSR_OK;
}

static tsr_status write_all(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    const flat_stage *f = stage->ctx;
    size_t at = 0;
    for (uint32_t s = 0; s < f->file->storage_count; s++) {
        uint32_t crc = 0;
        for (; at < f->ends[s]; at++) crc = tsr_crc32_join(crc, f->write_items[at].crc, f->write_items[at].byte_length);
        f->file->write_items[s].crc = crc;
    }
    for (uint32_t i = 0; i <= f->file->storage_count; i++) TSR_TRY(tsr_torch_plan_write_piece(f->file, i, sink, err));
    return TSR_OK;
}

/* By storage: the unit whose slice it contains, or `count`. */
static tsr_status match_units(const tsr_torch_plan *file, const tsr_entry *locals, uint64_t count, uint64_t **out,
                              tsr_error *err)
{
    const uintptr_t from = (uintptr_t)locals, to = (uintptr_t)(locals + count);
    *out = tsr_arena_array(file->arena, file->storage_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t s = 0; s < file->storage_count; s++) (*out)[s] = count;
    for (size_t t = 0; t < file->source_count; t++) {
        const uintptr_t at = (uintptr_t)file->tensors[t].entry;
        if (at >= from && at < to) (*out)[file->tensors[t].storage] = (uint64_t)(file->tensors[t].entry - locals);
    }
    return TSR_OK;
}

static tsr_status fill_storages(flat_stage *f, const tsr_flat_rank *of, tsr_vec *write_items, tsr_error *err)
{
    uint64_t count, *unit_of;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(of->plan, &count);
    TSR_TRY(match_units(f->file, of->locals, count, &unit_of, err));
    for (uint32_t s = 0; s < f->file->storage_count; s++) {
        const uint64_t u = unit_of[s];
        filling slice = {f->file->arena, write_items, f->file->write_items[s], 0};
        if (u < count) {
            slice.itemsize = tsr_dtype_size(slice.at.dtype);
            TSR_TRY(fill_slice(&slice, &units[u], of->rank, err));
        } else {
            tsr_write_item *write_item = tsr_vec_push(write_items, err);
            if (!write_item) return TSR_E_NOMEM;
            *write_item = f->file->write_items[s];
        }
        f->ends[s] = write_items->count;
    }
    return TSR_OK;
}

/* Makes the laid-out plan of the rank's file the stage of file `number`. The storage of a slice consists of pieces of its
 * parameters. */
static tsr_status tsr_flat_stage(const tsr_flat_rank *of, tsr_torch_plan *file, uint32_t number, tsr_stage *out,
                                 tsr_error *err)
{
    flat_stage *f = TSR_ARENA_NEW(file->arena, flat_stage, err);
    size_t *ends = tsr_arena_array(file->arena, file->storage_count, sizeof *ends, err);
    if (!f || !ends) return TSR_E_NOMEM;
    *f = (flat_stage){.file = file, .ends = ends};
    tsr_torch_plan_stage(file, number);
    tsr_vec write_items = tsr_vec_of(tsr_checkpoint_host(of->chosen->checkpoint)->allocator, sizeof(tsr_write_item));
    tsr_status status = fill_storages(f, of, &write_items, err);
    f->write_items = status == TSR_OK ? tsr_arena_array(file->arena, write_items.count, sizeof *f->write_items, err) : NULL;
    if (status == TSR_OK && !f->write_items) status = TSR_E_NOMEM;
    if (status == TSR_OK && write_items.count)
        memcpy(f->write_items, write_items.items, write_items.count * sizeof *f->write_items);
    *out = (tsr_stage){.write_items = f->write_items, .count = write_items.count, .rest = write_all, .ctx = f};
    tsr_vec_free(&write_items);
    return status;
}

/* ---- torch ---- */

/* Writes one torch.save file per rank, with everything the rank holds: DTensors on the target's mesh, or slices of FSDP1's
 * flat parameters, and the objects. Each rank is a stage, laid out in its own arena when it is needed. */

typedef struct ranks {
    const tsr_conversion_job *job;
    const tsr_plan *plan;
    tsr_chosen chosen;
    bool flat; /* the plan has FSDP1's flat ranges */
    uint64_t flat_units;
    uint64_t planned;     /* number of tensors in the plan */
    uint64_t *planned_of; /* by row: index in the plan */
    tsr_str *names;
    uint64_t *sizes;
} ranks;

/* State for making one rank's file. */
typedef struct rank_file {
    ranks *all;
    uint64_t rank;
    tsr_arena *arena;
    tsr_entry *locals;   /* one per row; with flat ranges, one per unit */
    tsr_row_range *rows; /* those of `locals`; not used with flat ranges */
    tsr_entry *rank_map;
    const uint8_t *rank_numbers;
    const tsr_value *mesh_value;
} rank_file;

static tsr_status make_mesh(rank_file *f, const tsr_mesh *mesh, tsr_error *err)
{
    TSR_TRY(tsr_mesh_rank_map(mesh, f->arena, &f->rank_map, &f->rank_numbers, err));
    f->mesh_value = tsr_mesh_value(mesh, f->rank, f->rank_map, f->arena, err);
    return f->mesh_value ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status find_rows(const tsr_entry *entry, const tsr_shard *shard, tsr_row_range *out, tsr_error *err)
{
    tsr_packed packed;
    uint64_t length;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    if (shard->box_count != 1) return TSR_OK;
    const tsr_box whole = {packed.ndim, NULL, packed.shape}, box = {packed.ndim, shard->boxes->offsets, shard->boxes->sizes};
    if (tsr_find_run(packed.dtype, whole, box, &out->byte_first, &length)) out->entry = entry;
    return TSR_OK;
}

static tsr_status tensor_leaf(rank_file *f, uint64_t row_number, const tsr_value **out, tsr_error *err)
{
    const ranks *r = f->all;
    const tsr_converted *row = &r->chosen.rows[row_number];
    const tsr_planned planned = tsr_plan_tensor_at(r->plan, r->planned_of[row_number]);
    tsr_entry *local = &f->locals[row_number];
    tsr_shard shard;
    *out = NULL; /* a rank that does not hold the tensor has no entry of this name */
    if (!tsr_holders_have(&planned.holders, f->rank)) return TSR_OK;
    TSR_TRY(tsr_layout_shard(planned.layout, f->rank, f->arena, &shard, err));
    TSR_TRY(tsr_localize(r->job->checkpoint, row->entry, &shard, f->arena, local, err));
    TSR_TRY(find_rows(row->entry, &shard, &f->rows[row_number], err));
    const tsr_dtensor dtensor = {.mesh = planned.layout->mesh,
                                 .mesh_value = f->mesh_value,
                                 .placements = planned.placements,
                                 .dtype = row->cast ? row->dtype : local->dtype,
                                 .ndim = row->entry->ndim,
                                 .shape = planned.shape,
                                 .requires_grad = row->entry->requires_grad,
                                 .is_parameter = row->entry->is_parameter,
                                 .local = local};
    *out = tsr_dtensor_value(&dtensor, f->arena, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_flat_rank flat_rank_of(const rank_file *f)
{
    return (tsr_flat_rank){.chosen = &f->all->chosen, .plan = f->all->plan, .rank = f->rank, .locals = f->locals};
}

static tsr_status nest_rank(rank_file *f, const tsr_value **root, tsr_error *err)
{
    const tsr_chosen *chosen = &f->all->chosen;
    const tsr_value **values = tsr_arena_array(f->arena, (size_t)chosen->count, sizeof *values, err);
    const uint64_t locals = f->all->flat ? f->all->flat_units : chosen->count;
    f->locals = tsr_arena_array(f->arena, (size_t)locals, sizeof *f->locals, err);
    f->rows = tsr_arena_array(f->arena, (size_t)locals, sizeof *f->rows, err);
    if (!values || !f->locals || !f->rows) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < chosen->count; i++) {
        const tsr_converted *row = &chosen->rows[i];
        values[i] = row->entry->value;
        if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR) continue;
        if (f->all->flat) {
            values[i] = tsr_value_tensor(f->arena, row->entry, err);
            if (!values[i]) return TSR_E_NOMEM;
        } else {
            TSR_TRY(tensor_leaf(f, i, &values[i], err));
        }
    }
    const tsr_flat_rank flat = flat_rank_of(f);
    if (f->all->flat) TSR_TRY(flat_values(&flat, values, f->arena, err));
    return tsr_nest_rows(chosen, values, f->arena, root, err);
}

static tsr_status plan_rank(rank_file *f, tsr_torch_plan *plan, tsr_error *err)
{
    const ranks *r = f->all;
    const tsr_value *root;
    if (r->planned && !r->flat) TSR_TRY(make_mesh(f, tsr_plan_tensor_at(r->plan, 0).layout->mesh, err));
    TSR_TRY(nest_rank(f, &root, err));
    TSR_TRY(tsr_torch_plan_open(r->job->checkpoint, root, f->arena, plan, err));
    plan->unsummed = r->job->options->no_checksums;
    plan->literal_entry = f->rank_map;
    plan->literal = f->rank_numbers;
    const tsr_flat_rank flat = flat_rank_of(f);
    if (r->flat) flat_casts(&flat, plan);
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        const tsr_converted *row = &r->chosen.rows[i];
        tsr_torch_tensor *source = tsr_torch_plan_source(plan, r->flat ? row->entry : &f->locals[i]);
        if (source && row->cast) source->dtype = row->dtype;
        if (source && !r->flat) source->rows = f->rows[i];
    }
    return tsr_torch_plan_lay_out(plan, err);
}

static tsr_status rank_stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    rank_file f = {.all = ctx, .rank = number, .arena = arena};
    tsr_torch_plan *plan = TSR_ARENA_NEW(arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(plan_rank(&f, plan, err));
    const bool first = f.all->sizes[number] == 0;
    for (uint32_t i = 0; i < plan->storage_count && first; i++)
        f.all->job->out->byte_total += plan->write_items[i].byte_length;
    f.all->sizes[number] = plan->archive.size;
    const tsr_flat_rank flat = flat_rank_of(&f);
    if (f.all->flat) return tsr_flat_stage(&flat, plan, number, out, err);
    *out = tsr_torch_plan_stage(plan, number);
    return TSR_OK;
}

static tsr_status prepare(ranks *r, tsr_error *err)
{
    const tsr_entry *first = tsr_checkpoint_catalog(r->job->checkpoint)->entries;
    r->planned = tsr_plan_count(r->plan);
    r->planned_of = tsr_arena_array(r->job->arena, (size_t)r->chosen.count, sizeof *r->planned_of, err);
    r->names = tsr_arena_array(r->job->arena, (size_t)tsr_plan_ranks(r->plan), sizeof *r->names, err);
    r->sizes = tsr_arena_array(r->job->arena, (size_t)tsr_plan_ranks(r->plan), sizeof *r->sizes, err);
    if (!r->planned_of || !r->names || !r->sizes) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < r->planned; i++) r->planned_of[tsr_plan_tensor_at(r->plan, i).entry - first] = i;
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        tsr_converted *row = &r->chosen.rows[i];
        if (!row->written) continue;
        row->copied = false;
        if (row->entry->kind != TSR_ENTRY_TENSOR) {
            row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(r->job->checkpoint));
        } else {
            TSR_TRY(tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err));
        }
    }
    *r->job->out = (tsr_conversion){.rows = r->chosen.rows,
                                    .row_count = r->chosen.count,
                                    .files = r->names,
                                    .file_sizes = r->sizes,
                                    .file_count = (uint32_t)tsr_plan_ranks(r->plan),
                                    .marker = TSR_NO_FILE};
    return TSR_OK;
}

/* Every version before 2.13 pickles a mesh in its own way, and cannot load that of later versions. */
static tsr_status check_version(const ranks *r, tsr_error *err)
{
    const tsr_torch_version version = r->job->options->for_torch;
    if (r->flat || !version || version >= TSR_TORCH_WITH_MESH_LAYOUT) return TSR_OK;
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "PyTorch 2.%u cannot load DTensors as Tessera writes them, which takes 2.%d or newer; write DCP instead",
                    (unsigned)version, TSR_TORCH_WITH_MESH_LAYOUT);
}

static tsr_status reshard(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    const uint32_t count = (uint32_t)tsr_plan_ranks(plan);
    ranks *r = TSR_ARENA_NEW(job->arena, ranks, err);
    if (!r) return TSR_E_NOMEM;
    *r = (ranks){.job = job, .plan = plan};
    r->flat = tsr_plan_flat_units(plan, &r->flat_units) && tsr_plan_count(plan);
    TSR_TRY(check_version(r, err));
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &r->chosen, err));
    TSR_TRY(tsr_leave_unplanned(&r->chosen, plan, err));
    if (r->flat) TSR_TRY(flat_rows_name(&r->chosen, plan, job->arena, err));
    TSR_TRY(prepare(r, err));
    for (uint32_t rank = 0; rank < count; rank++) {
        r->names[rank] = tsr_arena_format(job->arena, err, "rank%u.pt", (unsigned)rank);
        if (!r->names[rank].data) return TSR_E_NOMEM;
    }
    *out = (tsr_writer){
        .stage_count = count, .crc = !job->options->no_checksums, .marker = TSR_NO_FILE, .stage = rank_stage_of, .ctx = r};
    return TSR_OK;
}

const tsr_container_writers tsr_torch_writers = {convert, reshard};
