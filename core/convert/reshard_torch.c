/* Writes one torch.save file per rank, with everything the rank holds: DTensors on the target's mesh, or slices of FSDP1's
 * flat parameters (reshard_flat.c), and the objects. Each rank is a stage, laid out in its own arena when it is needed. */
#include "convert/reshard_flat.h"
#include "formats/torch/torch_loadable.h"
#include "tessera/sys/try.h"
#include "write/dtensor_value.h"
#include "write/localize.h"
#include "write/torch_plan.h"

#include "tessera/sys/holders.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/value_walk.h"

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
    if (f->all->flat) TSR_TRY(tsr_flat_values(&flat, values, f->arena, err));
    return tsr_nest_rows(chosen, values, f->arena, root, err);
}

static tsr_status plan_rank(rank_file *f, tsr_torch_plan *plan, tsr_error *err)
{
    const ranks *r = f->all;
    const tsr_value *root;
    if (r->planned && !r->flat) TSR_TRY(make_mesh(f, tsr_plan_tensor_at(r->plan, 0).layout->mesh, err));
    TSR_TRY(nest_rank(f, &root, err));
    TSR_TRY(tsr_torch_plan_open(r->job->checkpoint, root, f->arena, plan, err));
    plan->literal_entry = f->rank_map;
    plan->literal = f->rank_numbers;
    const tsr_flat_rank flat = flat_rank_of(f);
    if (r->flat) tsr_flat_casts(&flat, plan);
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        const tsr_converted *row = &r->chosen.rows[i];
        tsr_torch_tensor *source = tsr_torch_plan_source(plan, r->flat ? row->entry : &f->locals[i]);
        if (source && row->cast) source->dtype = row->dtype;
        if (source && !r->flat) source->rows = f->rows[i];
    }
    return tsr_torch_plan_lay_out(plan, err);
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    rank_file f = {.all = ctx, .rank = number, .arena = arena};
    tsr_torch_plan *plan = TSR_ARENA_NEW(arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(plan_rank(&f, plan, err));
    const bool first = f.all->sizes[number] == 0;
    for (uint32_t i = 0; i < plan->storage_count && first; i++) f.all->job->out->byte_total += plan->blits[i].byte_length;
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
            TSR_TRY(tsr_blit_measure(row->entry, NULL, row->dtype, &row->bytes, err));
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

tsr_status tsr_reshard_to_torch(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    const uint32_t count = (uint32_t)tsr_plan_ranks(plan);
    ranks *r = TSR_ARENA_NEW(job->arena, ranks, err);
    if (!r) return TSR_E_NOMEM;
    *r = (ranks){.job = job, .plan = plan};
    r->flat = tsr_plan_flat_units(plan, &r->flat_units) && tsr_plan_count(plan);
    TSR_TRY(check_version(r, err));
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &r->chosen, err));
    TSR_TRY(tsr_leave_unplanned(&r->chosen, plan, err));
    if (r->flat) TSR_TRY(tsr_flat_rows_name(&r->chosen, plan, job->arena, err));
    TSR_TRY(prepare(r, err));
    for (uint32_t rank = 0; rank < count; rank++) {
        r->names[rank] = tsr_arena_format(job->arena, err, "rank%u.pt", (unsigned)rank);
        if (!r->names[rank].data) return TSR_E_NOMEM;
    }
    *out = (tsr_writer){.stage_count = count, .crc = true, .marker = TSR_NO_FILE, .stage = stage_of, .ctx = r};
    return TSR_OK;
}
