/* See deepspeed_parts.h. */
#include "formats/deepspeed/deepspeed_parts.h"

#include "formats/common/file_names.h"
#include "formats/common/rank_entries.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

enum { DEPTH = 64, NODES = 1 << 20, MOST_NAMED = 64, MOST_COLUMNS = 4096 };

/* ---- missing files ---- */

/* Whether the job trained in bfloat16. DeepSpeed then adds a prefix to the names of optimizer files. */
static bool is_bf16(const tsr_ds_file *model)
{
    const tsr_value *config = model ? tsr_ds_dict(model->root, "ds_config") : NULL;
    const tsr_value *bf16 = tsr_ds_dict(config, "bf16"), *older = tsr_ds_dict(config, "bfloat16");
    const tsr_value *enabled = tsr_ds_get(bf16 ? bf16 : older, "enabled");
    return enabled && enabled->kind == TSR_VALUE_BOOL && enabled->as.boolean;
}

/* What the names of a column's files of one kind have in common, except for the rank: taken from a file that exists, or
 * otherwise built like DeepSpeed's. */
static tsr_ds_name name_like(const tsr_ds_column *column, bool optims)
{
    const tsr_ds_file *const *ranks = optims ? column->optims : column->models;
    for (uint32_t r = 0; r < column->world; r++)
        if (ranks[r]) return ranks[r]->name;
    return (tsr_ds_name){.kind = optims ? TSR_DS_OPTIM : TSR_DS_MODEL,
                         .has_rank = true,
                         .model_rank = column->model_rank,
                         .prefix = optims && is_bf16(column->model) ? "bf16_" : NULL};
}

/* Reports the ranks of a column whose file of one kind is missing. */
static tsr_status check_ranks(const tsr_ds_files *files, const tsr_ds_column *column, bool optims, tsr_error *err)
{
    const tsr_ds_file *const *ranks = optims ? column->optims : column->models;
    tsr_shown_names missing = {.used = 0};
    tsr_str first = {NULL, 0};
    tsr_ds_name like = name_like(column, optims);
    for (uint32_t r = 0; r < column->world; r++) {
        if (ranks[r]) continue;
        like.rank = r;
        const tsr_str name = tsr_ds_name_text(files->checkpoint->arena, &like, err);
        if (!name.data) return TSR_E_NOMEM;
        if (!first.data) first = name;
        TSR_TRY(tsr_checkpoint_implies(files->checkpoint, name, err));
        if (missing.count >= MOST_NAMED) {
            tsr_shown_names_add(&missing, TSR_STR("…"));
            continue;
        }
        tsr_shown_names_add(&missing, name);
        if (tsr_store_find(files->checkpoint->store, name) == TSR_NO_FILE)
            TSR_TRY(tsr_checkpoint_lacks(files->checkpoint, name, err));
    }
    if (missing.count == 0) return TSR_OK;
    return tsr_ds_report(files->checkpoint, first, err,
                         "%llu of the %s files of %u ranks cannot be read or are missing: %s%s; copy them from where the "
                         "checkpoint was written",
                         (unsigned long long)missing.count, optims ? "optimizer" : "model states", column->world,
                         missing.text, tsr_shown_names_rest(&missing));
}

static tsr_status check_model(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    if (column->model) return TSR_OK;
    files->checkpoint->names_unknown = files->column_count == 1;
    const tsr_str name = tsr_ds_model_states_name(files, column->model_rank, 0, err);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_checkpoint_lacks(files->checkpoint, name, err));
    return tsr_ds_report(files->checkpoint, name, err,
                         "'%.*s', which has the names of the weights, is missing or cannot be read", TSR_STR_ARG(name));
}

/* Records the model states of model-parallel ranks that have no file, so that a server is asked for them. They show which
 * optimizer files exist. */
static tsr_status imply_columns(const tsr_ds_files *files, uint64_t count, tsr_error *err)
{
    for (uint32_t rank = 0, c = 0; rank < count && rank < MOST_COLUMNS; rank++) {
        while (c < files->column_count && files->columns[c].model_rank < rank) c++;
        if (c < files->column_count && files->columns[c].model_rank == rank) continue;
        const tsr_str name = tsr_ds_model_states_name(files, rank, 0, err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(files->checkpoint, name, err));
    }
    return TSR_OK;
}

/* Checks that there are as many model-parallel ranks as the model states imply. */
static tsr_status check_columns(const tsr_ds_files *files, tsr_error *err)
{
    const tsr_ds_file *model = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *dims = model ? tsr_ds_dict(model->root, "checkpoint_parallel_dimensions") : NULL;
    uint64_t stages = 1, ranks = 1;
    if (!model) return TSR_OK;
    if (!tsr_ds_number(tsr_ds_get(dims, "pp_degree"), &stages) || !tsr_ds_number(tsr_ds_get(dims, "tp_degree"), &ranks))
        tsr_ds_number(tsr_ds_get(model->root, "mp_world_size"), &ranks);
    if (stages < 1 || stages > UINT16_MAX || ranks > UINT16_MAX || stages * ranks <= files->column_count) return TSR_OK;
    TSR_TRY(imply_columns(files, stages * ranks, err));
    uint32_t absent = 0;
    while (absent < files->column_count && files->columns[absent].model_rank == absent) absent++;
    const tsr_str name = tsr_ds_model_states_name(files, absent, 0, err);
    if (!name.data) return TSR_E_NOMEM;
    return tsr_ds_report(files->checkpoint, name, err,
                         "the files of model-parallel rank %u (…%.*s) are missing: the job had %llu such ranks, but there "
                         "are files of only %u",
                         absent, TSR_STR_ARG(name), (unsigned long long)(stages * ranks), files->column_count);
}

/* ---- files from other saves ---- */

/* Whether param groups are partitioned over different numbers of ranks. */
static bool is_uneven(const tsr_value *counts, uint64_t *a, uint64_t *b)
{
    if (!counts || counts->kind != TSR_VALUE_LIST) return false;
    for (size_t i = 0; i < counts->count; i++) {
        if (!tsr_ds_number(counts->items[i], b)) return false;
        if (i == 0) *a = *b;
        if (*a != *b) return true;
    }
    return false;
}

static tsr_status check_count(const tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_file *file,
                              tsr_error *err)
{
    const tsr_str name = tsr_ds_file_name(files, file);
    const tsr_value *optimizer = tsr_ds_optimizer(file);
    const uint64_t world = tsr_ds_world_of(optimizer);
    uint64_t a, b;
    if (file->name.rank >= column->world)
        TSR_TRY(tsr_ds_report(
            files->checkpoint, name, err,
            "%.*s: belongs to rank %u, but the checkpoint has %u ranks: the file is left over from another save",
            TSR_STR_ARG(name), file->name.rank, column->world));
    else if (column->optims && column->optims[file->name.rank] != file)
        TSR_TRY(tsr_ds_report(files->checkpoint, name, err,
                              "%.*s: belongs to rank %u, as '%.*s' does: one of the two is left over from another save",
                              TSR_STR_ARG(name), file->name.rank,
                              TSR_STR_ARG(tsr_ds_file_name(files, column->optims[file->name.rank]))));
    if (world && (files->has_experts ? column->world % world : world != column->world))
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: was saved by %llu ranks ('partition_count'), but the other files by %u: the files do "
                             "not belong to the same save",
                             TSR_STR_ARG(name), (unsigned long long)world, column->world);
    if (!files->has_experts && is_uneven(tsr_ds_get(optimizer, "partition_count"), &a, &b))
        return tsr_ds_report(
            files->checkpoint, name, err,
            "%.*s: one param group is split over %llu ranks and another over %llu ('partition_count'), as for experts, "
            "which is not supported; load the checkpoint with DeepSpeed's engine",
            TSR_STR_ARG(name), (unsigned long long)a, (unsigned long long)b);
    return TSR_OK;
}

tsr_status tsr_ds_same_scalar(const tsr_ds_files *files, const tsr_value *a, const tsr_value *b, bool *same, tsr_error *err)
{
    const tsr_entry *x = tsr_ds_tensor(a), *y = tsr_ds_tensor(b);
    *same = true;
    if (!a || !b) return TSR_OK;
    if (!x || !y) *same = tsr_value_match(a, b, DEPTH, NODES) == TSR_SAME;
    else if (x->ndim || y->ndim || x->chunk_count != 1 || y->chunk_count != 1) return TSR_OK;
    else if (x->dtype != y->dtype) *same = false;
    else if (!tsr_torch_decide(files->checkpoint, x, y, same))
        return tsr_rank_bytes_match(files->checkpoint, x, y, same, err);
    return TSR_OK;
}

static bool match(const tsr_value *a, const tsr_value *b)
{
    return !a == !b && (!a || tsr_value_match(a, b, DEPTH, NODES) == TSR_SAME);
}

/* Sets *differing to something that must be equal in two optimizer files of one save but is not, or to NULL. An adaptive
 * loss scaler counts steps too, which helps if the optimizer does not. */
static tsr_status compare_optimizers(const tsr_ds_files *files, const tsr_ds_file *a, const tsr_ds_file *b,
                                     const char **differing, tsr_error *err)
{
    bool same;
    const tsr_value *x = tsr_ds_optimizer(a), *y = tsr_ds_optimizer(b);
    TSR_TRY(tsr_ds_same_scalar(files, tsr_ds_step_of(files, a), tsr_ds_step_of(files, b), &same, err));
    *differing = NULL;
    if (!same) *differing = "a different step";
    else if (!match(tsr_ds_get(tsr_ds_base_state(files, a), "param_groups"),
                    tsr_ds_get(tsr_ds_base_state(files, b), "param_groups")))
        *differing = "different param groups ('param_groups')";
    else if (!match(tsr_ds_get(x, "loss_scaler"), tsr_ds_get(y, "loss_scaler")))
        *differing = "a different loss scaler ('loss_scaler')";
    else if (!match(tsr_ds_get(a->root, "ds_version"), tsr_ds_get(b->root, "ds_version")))
        *differing = "a different version of DeepSpeed ('ds_version')";
    return TSR_OK;
}

static const char *const agreed[] = {"global_steps", "dp_world_size", "mp_world_size", "ds_version", NULL};

/* The key that must be equal in all model states of one save but differs between these two, or NULL. */
static const char *compare_models(const tsr_ds_file *a, const tsr_ds_file *b)
{
    for (size_t i = 0; agreed[i]; i++) {
        const tsr_value *x = tsr_ds_get(a->root, agreed[i]), *y = tsr_ds_get(b->root, agreed[i]);
        if (x && y && tsr_value_match(x, y, DEPTH, NODES) != TSR_SAME) return agreed[i];
    }
    const tsr_value *x = tsr_ds_get(a->root, "param_shapes"), *y = tsr_ds_get(b->root, "param_shapes");
    if (a->name.model_rank != b->name.model_rank || !x || !y) return NULL;
    return tsr_value_match(x, y, DEPTH, NODES) == TSR_DIFFERENT ? "param_shapes" : NULL;
}

static tsr_status compare(const tsr_ds_files *files, const tsr_ds_file *a, const tsr_ds_file *b, const char **differing,
                          tsr_error *err)
{
    if (a->name.kind == TSR_DS_OPTIM) return compare_optimizers(files, a, b, differing, err);
    *differing = compare_models(a, b);
    return TSR_OK;
}

static tsr_status report_different(const tsr_ds_files *files, const tsr_ds_file *like, const tsr_ds_file *file,
                                   const char *what, tsr_error *err)
{
    char a[64], b[64];
    const tsr_str name = tsr_ds_file_name(files, file), other = tsr_ds_file_name(files, like);
    const tsr_value *x = tsr_ds_get(like->root, what), *y = tsr_ds_get(file->root, what);
    if (file->name.kind == TSR_DS_OPTIM)
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: has %s than %.*s: the files do not belong to the same save", TSR_STR_ARG(name), what,
                             TSR_STR_ARG(other));
    if (strcmp(what, "param_shapes") == 0)
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: has different 'param_shapes' than %.*s: the files do not belong to the same model",
                             TSR_STR_ARG(name), TSR_STR_ARG(other));
    return tsr_ds_report(
        files->checkpoint, name, err, "%.*s: '%s' is %s, but in %.*s it is %s: the files do not belong to the same save",
        TSR_STR_ARG(name), what, tsr_value_text(y, b, sizeof b), TSR_STR_ARG(other), tsr_value_text(x, a, sizeof a));
}

/* Compares all files with one that most of them agree with, so that a single file from another save is the one that gets
 * reported. */
static tsr_status check_alike(const tsr_ds_files *files, const tsr_ds_file *first, uint32_t count, tsr_error *err)
{
    const tsr_ds_file *like = first;
    const char *differing;
    uint32_t votes = 0;
    bool all_alike = true;
    for (uint32_t i = 0; i < count; i++) {
        TSR_TRY(compare(files, like, &first[i], &differing, err));
        all_alike = all_alike && !differing;
        if (!differing) votes++;
        else if (votes) votes--;
        else {
            like = &first[i];
            votes = 1;
        }
    }
    for (uint32_t i = 0; i < count && !all_alike; i++) {
        TSR_TRY(compare(files, like, &first[i], &differing, err));
        if (differing) TSR_TRY(report_different(files, like, &first[i], differing, err));
    }
    return TSR_OK;
}

static tsr_status check_world(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    uint64_t world;
    const tsr_value *stated = column->model ? tsr_ds_get(column->model->root, "dp_world_size") : NULL;
    if (files->zero == 0 || !tsr_ds_number(stated, &world) || world == column->world) return TSR_OK;
    const tsr_str name = tsr_ds_file_name(files, column->model);
    return tsr_ds_report(
        files->checkpoint, name, err,
        "%.*s: 'dp_world_size' is %llu, but there are optimizer files of %u ranks: the files do not belong to the same save",
        TSR_STR_ARG(name), (unsigned long long)world, column->world);
}

static tsr_status check_column(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    TSR_TRY(check_model(files, column, err));
    if (column->models) TSR_TRY(check_ranks(files, column, false, err));
    if (column->optims) TSR_TRY(check_ranks(files, column, true, err));
    return check_world(files, column, err);
}

static const tsr_ds_column *column_of(const tsr_ds_files *files, uint32_t model_rank)
{
    uint32_t c = 0;
    while (files->columns[c].model_rank != model_rank) c++;
    return &files->columns[c];
}

/* Whether two files must agree: the model states of all ranks must, and the optimizer files of one model-parallel rank. */
static bool is_alike(const tsr_ds_file *first, const tsr_ds_file *file)
{
    return first->name.kind == file->name.kind &&
           (first->name.kind == TSR_DS_MODEL || first->name.model_rank == file->name.model_rank);
}

tsr_status tsr_ds_check(const tsr_ds_files *files, tsr_error *err)
{
    for (uint32_t c = 0; c < files->column_count; c++) TSR_TRY(check_column(files, &files->columns[c], err));
    TSR_TRY(check_columns(files, err));
    for (uint32_t i = 0, end; i < files->count; i = end) {
        const tsr_ds_file *first = &files->files[i];
        for (end = i + 1; end < files->count && is_alike(first, &files->files[end]);) end++;
        if (first->name.kind == TSR_DS_MODEL || first->name.kind == TSR_DS_OPTIM)
            TSR_TRY(check_alike(files, first, end - i, err));
        for (uint32_t f = i; f < end && first->name.kind == TSR_DS_OPTIM; f++)
            TSR_TRY(check_count(files, column_of(files, first->name.model_rank), &files->files[f], err));
    }
    return TSR_OK;
}
