/* See deepspeed_files.h. */
#include "formats/deepspeed/deepspeed_files.h"

#include "formats/common/incomplete.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

enum { MOST_RANKS = 1 << 16 };

/* ---- names ---- */

/* Skips `text` at the beginning of *rest. */
static bool skip(tsr_str *rest, const char *text)
{
    return tsr_str_skip(rest, tsr_str_from(text));
}

/* Skips and returns a decimal number of at most seven digits. */
static bool skip_number(tsr_str *rest, uint32_t *out)
{
    size_t at = 0;
    *out = 0;
    for (; at < rest->size && at < 7 && tsr_is_digit(rest->data[at]); at++)
        *out = *out * 10 + (uint32_t)(rest->data[at] - '0');
    *rest = tsr_str_after(*rest, at);
    return at > 0;
}

static tsr_ds_kind kind_of(tsr_str end)
{
    if (tsr_str_equal(end, TSR_STR("_model_states.pt"))) return TSR_DS_MODEL;
    return tsr_str_equal(end, TSR_STR("_optim_states.pt")) ? TSR_DS_OPTIM : TSR_DS_OTHER;
}

/* The rest of an expert's name after "expert_". */
static bool skip_expert(tsr_str *rest, tsr_ds_name *out)
{
    if (!skip_number(rest, &out->expert) || !skip(rest, "_mp_rank_")) return false;
    if (!skip_number(rest, &out->model_rank) || !tsr_str_equal(*rest, TSR_STR("_model_states.pt"))) return false;
    out->is_expert = true;
    out->kind = TSR_DS_EXPERT;
    return true;
}

static tsr_ds_name layer_of(tsr_str rest)
{
    tsr_ds_name out = {0};
    if (!skip_number(&rest, &out.rank)) return out;
    tsr_str ranked = rest;
    out.has_rank = skip(&ranked, "-model_") && skip_number(&ranked, &out.model_rank);
    if (tsr_str_equal(out.has_rank ? ranked : rest, TSR_STR("-model_states.pt"))) {
        out.kind = TSR_DS_LAYER;
        return out;
    }
    return skip(&rest, "_expert_") && skip_expert(&rest, &out) ? out : (tsr_ds_name){0};
}

tsr_ds_name tsr_ds_name_of(tsr_str name)
{
    tsr_ds_name out = {0};
    tsr_str rest = name;
    if (skip(&rest, "layer_")) return layer_of(rest);
    if (skip(&rest, "expert_")) {
        out.has_all_layers = true;
        return skip_expert(&rest, &out) ? out : (tsr_ds_name){0};
    }
    if (skip(&rest, "bf16_")) out.prefix = "bf16_";
    else if (skip(&rest, "fp16_")) out.prefix = "fp16_";
    out.is_expert = skip(&rest, "expp_rank_");
    out.has_rank = out.is_expert || skip(&rest, "zero_pp_rank_");
    if (out.has_rank && (!skip_number(&rest, &out.rank) || !skip(&rest, "_"))) return (tsr_ds_name){0};
    if (!skip(&rest, "mp_rank_") || !skip_number(&rest, &out.model_rank)) return (tsr_ds_name){0};
    out.kind = kind_of(rest);
    if (out.is_expert) out.kind = out.kind == TSR_DS_OPTIM ? TSR_DS_EXPERT_OPTIM : TSR_DS_OTHER;
    return out.kind == TSR_DS_OTHER ? (tsr_ds_name){0} : out;
}

#define BEFORE_NUMBER ".deepspeed_moe.experts.deepspeed_experts."

size_t tsr_ds_expert_prefix(tsr_str name)
{
    const tsr_str marker = TSR_STR(BEFORE_NUMBER);
    for (size_t at = name.size; at-- > 0;)
        if (tsr_str_starts(tsr_str_after(name, at), marker)) return at + marker.size;
    return 0;
}

tsr_str tsr_ds_name_text(tsr_arena *arena, const tsr_ds_name *name, tsr_error *err)
{
    const char *prefix = name->prefix ? name->prefix : "", *what = name->kind == TSR_DS_MODEL ? "model" : "optim";
    if (name->has_all_layers)
        return tsr_arena_format(arena, err, "expert_%u_mp_rank_%02u_model_states.pt", name->expert, name->model_rank);
    if (name->kind == TSR_DS_EXPERT)
        return tsr_arena_format(arena, err, "layer_%u_expert_%u_mp_rank_%02u_model_states.pt", name->rank, name->expert,
                                name->model_rank);
    if (name->kind == TSR_DS_LAYER && name->has_rank)
        return tsr_arena_format(arena, err, "layer_%02u-model_%02u-model_states.pt", name->rank, name->model_rank);
    if (name->kind == TSR_DS_LAYER) return tsr_arena_format(arena, err, "layer_%02u-model_states.pt", name->rank);
    if (!name->has_rank) return tsr_arena_format(arena, err, "%smp_rank_%02u_%s_states.pt", prefix, name->model_rank, what);
    return tsr_arena_format(arena, err, "%s%s_rank_%u_mp_rank_%02u_%s_states.pt", prefix,
                            name->is_expert ? "expp" : "zero_pp", name->rank, name->model_rank, what);
}

tsr_str tsr_ds_file_name(const tsr_ds_files *files, const tsr_ds_file *file)
{
    return files->checkpoint->store->files[file->file].name;
}

tsr_str tsr_ds_model_states_name(const tsr_ds_files *files, uint32_t model_rank, uint32_t rank, tsr_error *err)
{
    const tsr_ds_name name = {.kind = TSR_DS_MODEL, .has_rank = files->zero == 3, .rank = rank, .model_rank = model_rank};
    return tsr_ds_name_text(files->checkpoint->arena, &name, err);
}

const tsr_value *tsr_ds_optimizer(const tsr_ds_file *file)
{
    return file ? tsr_ds_dict(file->root, "optimizer_state_dict") : NULL;
}

/* ---- opening ---- */

static int by_place(const void *a, const void *b)
{
    const tsr_ds_name *x = &((const tsr_ds_file *)a)->name, *y = &((const tsr_ds_file *)b)->name;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->model_rank != y->model_rank) return x->model_rank < y->model_rank ? -1 : 1;
    if (x->has_rank != y->has_rank) return x->has_rank ? 1 : -1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static tsr_status collect(tsr_ds_files *files, tsr_error *err)
{
    tsr_checkpoint *checkpoint = files->checkpoint;
    const tsr_store *store = checkpoint->store;
    files->files = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *files->files, err);
    if (!files->files) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_ds_name name = tsr_ds_name_of(store->files[f].name);
        files->has_experts = files->has_experts || name.is_expert;
        if (name.kind != TSR_DS_OTHER) files->files[files->count++] = (tsr_ds_file){name, f, 0, NULL};
    }
    qsort(files->files, files->count, sizeof *files->files, by_place);
    return TSR_OK;
}

static tsr_status open_file(tsr_ds_files *files, tsr_ds_file *file, tsr_error *err)
{
    tsr_torch_file opened;
    tsr_error why = {0};
    const tsr_str name = tsr_ds_file_name(files, file);
    const tsr_status status =
        tsr_torch_file_open(files->checkpoint, file->file, (tsr_torch_rank){0}, &opened, &files->runs, &why);
    if (status == TSR_E_IO || status == TSR_E_NOMEM) {
        *err = why;
        return status;
    }
    if (status != TSR_OK) return tsr_ds_report(files->checkpoint, name, err, "%s", why.message);
    file->root = tsr_ds_kind_or_null(opened.root, TSR_VALUE_DICT);
    file->storage_base = files->file_storages;
    files->file_storages += opened.storage_count;
    if (file->root) return TSR_OK;
    return tsr_ds_report(files->checkpoint, name, err, "%.*s: does not contain a dict, so it is not a DeepSpeed file",
                         TSR_STR_ARG(name));
}

/* Removes the files that could not be read. */
static void keep_readable(tsr_ds_files *files)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < files->count; i++)
        if (files->files[i].root) files->files[kept++] = files->files[i];
    files->count = kept;
}

const tsr_ds_file *tsr_ds_first(const tsr_ds_files *files, tsr_ds_kind kind, uint32_t *count)
{
    const tsr_ds_file *first = NULL;
    *count = 0;
    for (uint32_t i = 0; i < files->count; i++) {
        if (files->files[i].name.kind != kind) continue;
        if (!first) first = &files->files[i];
        ++*count;
    }
    return first;
}

/* ---- columns ---- */

/* The ZeRO stage that wrote an optimizer file: stated as a number or as the enum ZeroStageEnum, or implied by the names of
 * its buffers. */
static bool zero_stage_of(const tsr_value *optimizer, uint32_t *out)
{
    const tsr_value *stage = tsr_ds_get(optimizer, "zero_stage"), *plain = stage ? tsr_enum_value(stage) : NULL;
    uint64_t number;
    if (tsr_ds_number(plain ? plain : stage, &number) && number >= 1 && number <= 3) *out = (uint32_t)number;
    else if (tsr_ds_get(optimizer, "fp32_flat_groups")) *out = 3;
    else if (tsr_ds_get(optimizer, "single_partition_of_fp32_groups")) *out = 1;
    else return false;
    return true;
}

uint64_t tsr_ds_world_of(const tsr_value *optimizer)
{
    const tsr_value *count = tsr_ds_get(optimizer, "partition_count");
    uint64_t most = 0, number;
    if (tsr_ds_number(count, &most)) return most;
    for (size_t i = 0; count && count->kind == TSR_VALUE_LIST && i < count->count; i++)
        if (tsr_ds_number(count->items[i], &number) && number > most) most = number;
    return most;
}

static tsr_status find_zero_stage(tsr_ds_files *files, tsr_error *err)
{
    uint32_t count, models;
    const tsr_ds_file *optims = tsr_ds_first(files, TSR_DS_OPTIM, &count),
                      *model = tsr_ds_first(files, TSR_DS_MODEL, &models);
    tsr_majority stage = {0};
    for (uint32_t i = 0; i < count; i++)
        if (zero_stage_of(tsr_ds_optimizer(&optims[i]), &files->zero)) tsr_majority_vote(&stage, files->zero);
    if (stage.value) {
        files->zero = (uint32_t)stage.value;
        return TSR_OK;
    }
    /* DeepSpeed's bfloat16 optimizer without ZeRO writes optimizer files, and also rank 0's state into the model states. */
    if (!count && model && zero_stage_of(tsr_ds_dict(model->root, "optimizer"), &files->zero)) return TSR_OK;
    uint64_t stated = 0;
    const tsr_value *zero = model ? tsr_ds_dict(tsr_ds_dict(model->root, "ds_config"), "zero_optimization") : NULL;
    tsr_ds_number(tsr_ds_get(zero, "stage"), &stated);
    files->zero = stated <= 3 ? (uint32_t)stated : 0;
    if (models && model->name.has_rank) files->zero = 3;
    if (count == 0) return TSR_OK;
    return tsr_ds_report(files->checkpoint, tsr_ds_file_name(files, optims), err,
                         "%.*s: does not contain float32 buffers, so it is not an optimizer file of ZeRO 1 to 3",
                         TSR_STR_ARG(tsr_ds_file_name(files, optims)));
}

static bool is_of_rank(const tsr_ds_file *file)
{
    return file->name.kind == TSR_DS_MODEL || file->name.kind == TSR_DS_OPTIM;
}

/* The number of data-parallel ranks according to the files of a model-parallel rank. */
static uint32_t column_world(const tsr_ds_files *files, uint32_t model_rank)
{
    tsr_majority world = {0};
    uint64_t stated = 0, highest = 0, value;
    for (uint32_t i = 0; i < files->count; i++) {
        const tsr_ds_file *file = &files->files[i];
        if (!is_of_rank(file) || file->name.model_rank != model_rank) continue;
        if (file->name.has_rank && file->name.rank + UINT64_C(1) > highest) highest = file->name.rank + UINT64_C(1);
        if (file->name.kind == TSR_DS_OPTIM) tsr_majority_vote(&world, tsr_ds_world_of(tsr_ds_optimizer(file)));
        if (file->name.kind != TSR_DS_MODEL || !tsr_ds_number(tsr_ds_get(file->root, "dp_world_size"), &value)) continue;
        if (!stated) stated = value;
        tsr_majority_vote(&world, value);
    }
    if (files->zero == 0) return 1;
    if (files->has_experts && stated) world.value = stated; /* experts are partitioned over fewer ranks */
    if (!world.value || world.value > MOST_RANKS) world.value = highest;
    return (uint32_t)(world.value ? world.value : 1);
}

static tsr_status fill_column(tsr_ds_files *files, tsr_ds_column *column, tsr_error *err)
{
    tsr_arena *arena = files->checkpoint->arena;
    column->world = column_world(files, column->model_rank);
    if (files->zero) column->optims = tsr_arena_array(arena, column->world, sizeof *column->optims, err);
    if (files->zero == 3) column->models = tsr_arena_array(arena, column->world, sizeof *column->models, err);
    if ((files->zero && !column->optims) || (files->zero == 3 && !column->models)) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < files->count; i++) {
        const tsr_ds_file *file = &files->files[i];
        if (!is_of_rank(file) || file->name.model_rank != column->model_rank) continue;
        const tsr_ds_file **ranks = file->name.kind == TSR_DS_OPTIM ? column->optims : column->models;
        if (file->name.kind == TSR_DS_MODEL && !column->model && file->name.has_rank == (files->zero == 3))
            column->model = file;
        if (file->name.has_rank && ranks && file->name.rank < column->world) ranks[file->name.rank] = file;
    }
    return TSR_OK;
}

static tsr_status make_columns(tsr_ds_files *files, tsr_error *err)
{
    files->columns = tsr_arena_array(files->checkpoint->arena, files->count, sizeof *files->columns, err);
    if (!files->columns) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < files->count; i++) {
        const tsr_ds_name *name = &files->files[i].name;
        uint32_t c = 0;
        if (!is_of_rank(&files->files[i])) continue;
        while (c < files->column_count && files->columns[c].model_rank != name->model_rank) c++;
        if (c == files->column_count) files->columns[files->column_count++].model_rank = name->model_rank;
    }
    for (uint32_t c = 0; c < files->column_count; c++) TSR_TRY(fill_column(files, &files->columns[c], err));
    return TSR_OK;
}

/* Whether there are experts. The model states count them even if their files are lost, and AutoEP adds a list of its
 * layers. */
static bool counts_experts(const tsr_ds_files *files)
{
    uint32_t count;
    const tsr_ds_file *model = tsr_ds_first(files, TSR_DS_MODEL, &count);
    return model && (tsr_ds_count(tsr_ds_list(model->root, "num_experts")) || tsr_ds_list(model->root, "ds_autoep_layers"));
}

/* The number of tensor-parallel ranks in each pipeline stage. Stages have different weights, and if two stages have the same
 * name, it is a tied weight. Versions that do not state the degrees count tensor-parallel ranks in `mp_world_size`. */
static uint32_t tensor_ranks_of(const tsr_ds_files *files)
{
    uint64_t ranks;
    uint32_t layers;
    const tsr_ds_file *model = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *dims = model ? tsr_ds_dict(model->root, "checkpoint_parallel_dimensions") : NULL;
    if (tsr_ds_number(tsr_ds_get(dims, "tp_degree"), &ranks) && ranks >= 1 && ranks <= files->column_count)
        return (uint32_t)ranks;
    const tsr_ds_file *layer = tsr_ds_first(files, TSR_DS_LAYER, &layers);
    if (layer && model && tsr_ds_number(tsr_ds_get(model->root, "mp_world_size"), &ranks) && ranks == 1) return 1;
    return files->column_count ? files->column_count : 1;
}

static bool is_stored_by_layers(const tsr_ds_files *files)
{
    uint32_t layers;
    for (uint32_t c = 0; c < files->column_count; c++) {
        const tsr_value *module = files->columns[c].model ? tsr_ds_get(files->columns[c].model->root, "module") : NULL;
        if (module && module->kind == TSR_VALUE_NONE) return true;
    }
    return tsr_ds_first(files, TSR_DS_LAYER, &layers) != NULL;
}

tsr_status tsr_ds_files_open(tsr_checkpoint *checkpoint, tsr_ds_files *out, tsr_error *err)
{
    *out = (tsr_ds_files){.checkpoint = checkpoint, .runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run))};
    TSR_TRY(collect(out, err));
    uint32_t *numbers = tsr_arena_array(checkpoint->arena, out->count, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < out->count; i++) numbers[i] = out->files[i].file;
    checkpoint->files = numbers;
    checkpoint->file_count = out->count;
    for (uint32_t i = 0; i < out->count; i++) TSR_TRY(open_file(out, &out->files[i], err));
    keep_readable(out);
    out->storages = 2 * out->file_storages;
    TSR_TRY(tsr_torch_keep_runs(checkpoint, &out->runs, err));
    TSR_TRY(find_zero_stage(out, err));
    out->has_experts = out->has_experts || counts_experts(out);
    TSR_TRY(make_columns(out, err));
    out->tensor_ranks = tensor_ranks_of(out);
    out->has_layers = is_stored_by_layers(out);
    return TSR_OK;
}

void tsr_ds_files_close(tsr_ds_files *files)
{
    tsr_vec_free(&files->runs);
}
