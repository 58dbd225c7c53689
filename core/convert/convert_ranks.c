/* Writes plain tensors to one file per rank, split by a map of shards: the inverse of reading such files. Each torch.save
 * file is a stage, laid out when it is needed; safetensors files are laid out together. */
#include "convert/rank_files.h"
#include "formats/torch/torch_loadable.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "write/safetensors_write.h"
#include "write/torch_plan.h"

/* ---- torch.save ---- */

typedef struct rank_file {
    const tsr_rank_files *all;
    uint32_t number;
    tsr_arena *arena;
    tsr_rank_row *rows;
} rank_file;

static tsr_status nest_rank(rank_file *f, const tsr_value **root, tsr_error *err)
{
    tsr_chosen chosen = f->all->chosen;
    const size_t count = (size_t)chosen.count;
    const tsr_value **values = tsr_arena_array(f->arena, count, sizeof *values, err);
    tsr_converted *rows = tsr_arena_array(f->arena, count, sizeof *rows, err);
    f->rows = tsr_arena_array(f->arena, count, sizeof *f->rows, err);
    if (!values || !rows || !f->rows) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        rows[i] = chosen.rows[i];
        if (!rows[i].written) continue;
        TSR_TRY(tsr_rank_row_of(f->all, i, f->number, f->arena, &f->rows[i], err));
        rows[i].entry = &f->rows[i].named;
        rows[i].name = f->rows[i].named.fqn;
        if (!f->rows[i].held) continue;
        const bool is_tensor = rows[i].entry->kind == TSR_ENTRY_TENSOR;
        values[i] = is_tensor ? tsr_value_tensor(f->arena, &f->rows[i].local, err) : rows[i].entry->value;
        if (!values[i]) return TSR_E_NOMEM;
    }
    chosen.rows = rows;
    return tsr_nest_rows(&chosen, values, f->arena, root, err);
}

static tsr_status stage_of_torch(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    tsr_rank_files *all = ctx;
    rank_file f = {.all = all, .number = number, .arena = arena};
    tsr_torch_plan *plan = TSR_ARENA_NEW(arena, tsr_torch_plan, err);
    const tsr_value *root;
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(nest_rank(&f, &root, err));
    TSR_TRY(tsr_torch_plan_open(all->job->checkpoint, root, arena, plan, err));
    for (uint64_t i = 0; i < all->chosen.count; i++) {
        tsr_torch_tensor *source = all->chosen.rows[i].cast ? tsr_torch_plan_source(plan, &f.rows[i].local) : NULL;
        if (source) source->dtype = all->chosen.rows[i].dtype;
    }
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    const bool is_first_time = all->sizes[number] == 0;
    for (uint32_t i = 0; i < plan->storage_count && is_first_time; i++)
        all->job->out->byte_total += plan->blits[i].byte_length;
    all->sizes[number] = plan->archive.size;
    *out = tsr_torch_plan_stage(plan, number);
    return TSR_OK;
}

/* ---- safetensors ---- */

typedef struct all_files {
    tsr_rank_files *ranks;
    tsr_safetensors_output *pieces;
    size_t count;
    tsr_safetensors_file *files;
    tsr_blit *blits;
} all_files;

static tsr_status add_pieces(all_files *a, uint32_t file, tsr_error *err)
{
    const tsr_rank_files *r = a->ranks;
    const tsr_catalog *source = tsr_checkpoint_catalog(r->job->checkpoint);
    a->files[file].name = r->names[file];
    TSR_TRY(tsr_safetensors_carry((tsr_text_pairs){source->metadata, source->metadata_count}, (tsr_text_pairs){NULL, 0},
                                  r->job->arena, &a->files[file], err));
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        const tsr_converted *row = &r->chosen.rows[i];
        if (!row->written) continue;
        tsr_rank_row *held = TSR_ARENA_NEW(r->job->arena, tsr_rank_row, err);
        if (!held) return TSR_E_NOMEM;
        TSR_TRY(tsr_rank_row_of(r, i, file, r->job->arena, held, err));
        if (!held->held) continue;
        a->pieces[a->count++] = (tsr_safetensors_output){.entry = &held->local,
                                                         .name = held->named.fqn,
                                                         .dtype = row->cast ? row->dtype : held->local.dtype,
                                                         .file = file};
    }
    return TSR_OK;
}

static tsr_status write_headers(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    const all_files *a = stage->ctx;
    return tsr_safetensors_write_headers(a->files, a->ranks->count, sink, err);
}

static tsr_status stage_of_safetensors(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    all_files *a = ctx;
    (void)number, (void)arena, (void)err;
    *out = (tsr_stage){.blits = a->blits, .count = a->count, .rest = write_headers, .ctx = a};
    return TSR_OK;
}

static tsr_status lay_out_safetensors(tsr_rank_files *r, tsr_writer *out, tsr_error *err)
{
    tsr_arena *arena = r->job->arena;
    all_files *a = TSR_ARENA_NEW(arena, all_files, err);
    if (!a) return TSR_E_NOMEM;
    a->ranks = r;
    a->pieces = tsr_arena_array(arena, (size_t)r->chosen.tensor_count * r->count, sizeof *a->pieces, err);
    a->files = tsr_arena_array(arena, r->count, sizeof *a->files, err);
    if (!a->pieces || !a->files) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < r->count; f++) TSR_TRY(add_pieces(a, f, err));
    tsr_safetensors_layout layout = {
        .pieces = a->pieces, .piece_count = a->count, .files = a->files, .file_count = r->count};
    TSR_TRY(tsr_safetensors_lay_out(&layout, tsr_checkpoint_host(r->job->checkpoint), arena, err));
    a->blits = layout.blits;
    for (uint32_t f = 0; f < r->count; f++) {
        r->sizes[f] = a->files[f].size;
        r->job->out->byte_total += a->files[f].plan.data_size;
    }
    *out = (tsr_writer){.stage_count = 1, .marker = TSR_NO_FILE, .stage = stage_of_safetensors, .ctx = a};
    return TSR_OK;
}

/* ---- both ---- */

static tsr_status report(const tsr_rank_files *r, tsr_error *err)
{
    for (uint64_t i = 0; i < r->chosen.count; i++) {
        tsr_converted *row = &r->chosen.rows[i];
        row->copied = false; /* the tensors in a rank's file do not share storage, even if they did in the source */
        if (!row->written) continue;
        if (row->entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(tsr_blit_measure(row->entry, NULL, row->dtype, &row->bytes, err));
        else row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(r->job->checkpoint));
    }
    *r->job->out = (tsr_conversion){.rows = r->chosen.rows,
                                    .row_count = r->chosen.count,
                                    .files = r->names,
                                    .file_sizes = r->sizes,
                                    .file_count = r->count,
                                    .marker = TSR_NO_FILE};
    return TSR_OK;
}

tsr_status tsr_convert_to_ranks(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_rank_files *r = TSR_ARENA_NEW(job->arena, tsr_rank_files, err);
    if (!r) return TSR_E_NOMEM;
    TSR_TRY(tsr_rank_files_open(job, r, err));
    TSR_TRY(tsr_choose(job->checkpoint, job->options, r->is_safetensors ? tsr_safetensors_refusal : tsr_torch_refusal,
                       job->arena, &r->chosen, err));
    TSR_TRY(report(r, err));
    if (r->is_safetensors) return lay_out_safetensors(r, out, err);
    *out = (tsr_writer){.stage_count = r->count, .crc = true, .marker = TSR_NO_FILE, .stage = stage_of_torch, .ctx = r};
    return TSR_OK;
}
