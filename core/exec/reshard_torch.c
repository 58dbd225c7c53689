/* One torch.save file a rank: all that the rank holds, as DTensors over the target's mesh, and the objects. Ranks are
 * written one after the other, each in an arena of its own. */
#include "base/try.h"
#include "exec/dtensor_value.h"
#include "exec/localize.h"
#include "exec/reshard_to.h"
#include "exec/torch_plan.h"
#include "formats/nest.h"

typedef struct ranks {
    const tsr_conversion_job *job;
    const tsr_plan *plan;
    tsr_chosen chosen;
    uint64_t planned;     /* tensors of the plan */
    uint64_t *planned_of; /* by row: index in the plan */
    uint64_t byte_done;   /* of the ranks before */
    uint64_t byte_total;  /* of all */
    tsr_progress progress;
    tsr_str *names;
    uint64_t *sizes;
} ranks;

/* What is made for one rank's file. */
typedef struct rank_file {
    ranks *all;
    uint64_t rank;
    tsr_arena *arena;
    tsr_entry *locals; /* one a row */
    tsr_entry *rank_map;
    const uint8_t *rank_numbers;
    const tsr_value *mesh_value;
} rank_file;

static bool step(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    const ranks *r = ctx;
    const tsr_progress *outer = r->job->options->progress;
    (void)byte_total;
    return !outer || !outer->step || outer->step(outer->ctx, r->byte_done + byte_done, r->byte_total);
}

/* An int32 tensor of the mesh's ranks in order. */
static tsr_status make_mesh(rank_file *f, const tsr_mesh *mesh, tsr_error *err)
{
    const uint64_t count = tsr_mesh_ranks(mesh);
    uint8_t *bytes = tsr_arena_array(f->arena, (size_t)count, 4, err);
    uint64_t *shape = tsr_arena_array(f->arena, 1, sizeof *shape, err);
    f->rank_map = TSR_ARENA_NEW(f->arena, tsr_entry, err);
    if (!bytes || !shape || !f->rank_map) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) {
        for (unsigned b = 0; b < 4; b++) bytes[4 * i + b] = (uint8_t)(i >> (8 * b));
    }
    *shape = count;
    *f->rank_map = (tsr_entry){.dtype = TSR_INT32, .rank = 1, .shape = shape};
    f->rank_numbers = bytes;
    f->mesh_value = tsr_mesh_value(mesh, f->rank, f->rank_map, f->arena, err);
    return f->mesh_value ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status tensor_leaf(rank_file *f, uint64_t row_number, const tsr_value **out, tsr_error *err)
{
    const ranks *r = f->all;
    const tsr_converted *row = &r->chosen.rows[row_number];
    const tsr_planned planned = tsr_plan_tensor_at(r->plan, r->planned_of[row_number]);
    tsr_entry *local = &f->locals[row_number];
    tsr_shard shard;
    TSR_TRY(tsr_layout_shard(planned.layout, f->rank, f->arena, &shard, err));
    TSR_TRY(tsr_localize(r->job->checkpoint, row->entry, &shard, f->arena, local, err));
    const tsr_dtensor dtensor = {.mesh = planned.layout->mesh,
                                 .mesh_value = f->mesh_value,
                                 .placements = planned.placements,
                                 .dtype = row->cast ? row->dtype : local->dtype,
                                 .rank = row->entry->rank,
                                 .shape = planned.shape,
                                 .requires_grad = row->entry->requires_grad,
                                 .is_parameter = row->entry->is_parameter,
                                 .local = local};
    *out = tsr_dtensor_value(&dtensor, f->arena, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status nest_rank(rank_file *f, const tsr_value **root, tsr_error *err)
{
    const tsr_chosen *chosen = &f->all->chosen;
    size_t count = 0;
    tsr_leaf *leaves = tsr_arena_array(f->arena, (size_t)chosen->count, sizeof *leaves, err);
    f->locals = tsr_arena_array(f->arena, (size_t)chosen->count, sizeof *f->locals, err);
    if (!leaves || !f->locals) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < chosen->count; i++) {
        const tsr_converted *row = &chosen->rows[i];
        if (!row->written) continue;
        tsr_leaf *leaf = &leaves[count++];
        *leaf = (tsr_leaf){.name = row->name, .value = row->entry->value};
        TSR_TRY(tsr_renamed_path(row->entry, row->name, f->arena, &leaf->path, &leaf->path_length, err));
        if (row->entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(tensor_leaf(f, i, &leaf->value, err));
    }
    return tsr_nest(leaves, count, tsr_checkpoint_host(f->all->job->checkpoint), f->arena, root, err);
}

static tsr_status plan_rank(rank_file *f, tsr_torch_plan *plan, tsr_error *err)
{
    const ranks *r = f->all;
    const tsr_value *root;
    if (r->planned) TSR_TRY(make_mesh(f, tsr_plan_tensor_at(r->plan, 0).layout->mesh, err));
    TSR_TRY(nest_rank(f, &root, err));
    TSR_TRY(tsr_torch_plan_open(r->job->checkpoint, root, f->arena, plan, err));
    plan->literal_entry = f->rank_map;
    plan->literal = f->rank_numbers;
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        tsr_torch_source *source = r->chosen.rows[i].cast ? tsr_torch_plan_source(plan, &f->locals[i]) : NULL;
        if (source) source->dtype = r->chosen.rows[i].dtype;
    }
    return tsr_torch_plan_lay_out(plan, err);
}

static tsr_status write_rank(rank_file *f, tsr_error *err)
{
    ranks *r = f->all;
    tsr_torch_plan plan;
    uint32_t file;
    uint64_t bytes = 0;
    TSR_TRY(plan_rank(f, &plan, err));
    r->sizes[f->rank] = plan.archive.size;
    for (uint32_t i = 0; i < plan.storage_count; i++) bytes += plan.blits[i].byte_length;
    r->job->out->byte_total += bytes;
    if (r->job->options->dry_run) return TSR_OK;
    TSR_TRY(tsr_torch_plan_write(&plan, r->job->output, r->names[f->rank], r->job->ring, &r->progress, &file, err));
    r->byte_done += bytes;
    return TSR_OK;
}

/* What all ranks hold together of one tensor, at the destination. */
static uint64_t held_bytes(const ranks *r, const tsr_converted *row, const tsr_layout *layout)
{
    const tsr_dtype dtype = row->dtype == TSR_FLOAT4_E2M1FN ? TSR_FLOAT4_E2M1FN_X2 : row->dtype;
    uint64_t elements = 0;
    for (uint64_t rank = 0; rank < tsr_plan_ranks(r->plan); rank++) elements += tsr_layout_elements(layout, rank);
    return elements * tsr_dtype_size(dtype);
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
            r->byte_total += held_bytes(r, row, tsr_plan_tensor_at(r->plan, r->planned_of[i]).layout);
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

tsr_status tsr_reshard_to_torch(const tsr_conversion_job *job, const tsr_plan *plan, tsr_error *err)
{
    ranks r = {.job = job, .plan = plan};
    r.progress = (tsr_progress){step, &r};
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &r.chosen, err));
    TSR_TRY(tsr_leave_unplanned(&r.chosen, plan, err));
    TSR_TRY(prepare(&r, err));
    for (uint64_t rank = 0; rank < tsr_plan_ranks(plan); rank++) {
        rank_file f = {.all = &r, .rank = rank};
        r.names[rank] = tsr_arena_format(job->arena, err, "rank%llu.pt", (unsigned long long)rank);
        f.arena = tsr_arena_new(tsr_checkpoint_host(job->checkpoint)->allocator, 0, err);
        if (!r.names[rank].data || !f.arena) {
            tsr_arena_free(f.arena);
            return TSR_E_NOMEM;
        }
        const tsr_status status = write_rank(&f, err);
        tsr_arena_free(f.arena);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}
