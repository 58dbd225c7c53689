/* Opens a DeepSpeed tag directory as one checkpoint with four parts: model, module, optim, engine. The files are read, their
 * contents are joined name by name, and the result is a tree that is flattened like that of a torch.save file. */
#include "formats/common/file_names.h"
#include "formats/deepspeed/deepspeed_agree.h"
#include "formats/deepspeed/deepspeed_check.h"
#include "formats/deepspeed/deepspeed_engine.h"
#include "formats/deepspeed/deepspeed_expert_ranks.h"
#include "formats/deepspeed/deepspeed_experts.h"
#include "formats/deepspeed/deepspeed_layers.h"
#include "formats/deepspeed/deepspeed_layouts.h"
#include "formats/deepspeed/deepspeed_module.h"
#include "formats/deepspeed/deepspeed_parts.h"
#include "formats/deepspeed/deepspeed_plain.h"
#include "formats/deepspeed/deepspeed_stages.h"
#include "formats/deepspeed/deepspeed_states.h"
#include "formats/deepspeed/deepspeed_steps.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/try.h"

typedef struct reading {
    tsr_ds_files files;
    tsr_ds_rows model, states, odd;
    const tsr_value *groups; /* the param groups, with the parameters of all pipeline stages */
    tsr_error *err;
} reading;

static tsr_status recognizes(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = false;
    for (uint32_t f = 0; f < checkpoint->store->file_count && !*is; f++) {
        const tsr_ds_name name = tsr_ds_name_of(checkpoint->store->files[f].name);
        *is = name.kind == TSR_DS_MODEL || name.kind == TSR_DS_OPTIM || name.kind == TSR_DS_EXPERT_OPTIM;
    }
    return TSR_OK;
}

static bool writes(tsr_str name)
{
    return tsr_str_starts(name, TSR_STR("zero_pp_rank_")) || tsr_name_holds(name, TSR_STR("_zero_pp_rank_")) ||
           (tsr_str_starts(name, TSR_STR("mp_rank_")) && tsr_str_ends(name, TSR_STR("_model_states.pt")));
}

static tsr_status place_all(const reading *r, const tsr_ds_weights *weights, tsr_ds_rows *trained)
{
    for (uint32_t s = 0; s < weights->segment_count; s++)
        TSR_TRY(tsr_ds_weights_place(weights, s, &weights->segments[s].fp32, TSR_STR(""), trained, r->err));
    return TSR_OK;
}

static tsr_status read_flat(reading *r, const tsr_ds_column *column, tsr_ds_rows *trained, const tsr_value **groups)
{
    tsr_ds_weights weights;
    bool found, renamed;
    TSR_TRY(tsr_ds_weights_open(&r->files, column, &weights, &found, r->err));
    if (!found) return TSR_OK;
    TSR_TRY(place_all(r, &weights, trained));
    TSR_TRY(tsr_ds_stages_rename(&weights, trained, &r->model, &renamed, r->err));
    if (renamed) {
        tsr_ds_rows_close(trained);
        TSR_TRY(tsr_ds_rows_open(trained, r->files.checkpoint, 1, r->err));
        TSR_TRY(place_all(r, &weights, trained));
    }
    TSR_TRY(tsr_ds_states_add(&weights, &r->states, &r->odd, r->err));
    return tsr_ds_param_groups(&weights, groups, r->err);
}

static tsr_status read_plain(reading *r, const tsr_ds_column *column, tsr_ds_rows *trained, const tsr_value **groups)
{
    const tsr_ds_plain plain = {.files = &r->files,
                                .file = column->model,
                                .module = tsr_ds_dict(column->model->root, "module"),
                                .weights = trained,
                                .states = &r->states};
    return r->files.has_experts ? tsr_ds_expert_ranks_add(&plain, groups, r->err) : tsr_ds_plain_add(&plain, groups, r->err);
}

static tsr_status read_column(reading *r, uint32_t number)
{
    const tsr_ds_column *column = &r->files.columns[number];
    const tsr_value *groups = NULL;
    tsr_ds_rows trained;
    if (!column->model) return TSR_OK;
    r->model.rank = r->states.rank = tsr_ds_tensor_rank(&r->files, number);
    tsr_status status = tsr_ds_rows_open(&trained, r->files.checkpoint, 1, r->err);
    if (status == TSR_OK && r->files.zero) status = read_flat(r, column, &trained, &groups);
    if (status == TSR_OK && !r->files.zero) status = read_plain(r, column, &trained, &groups);
    if (status == TSR_OK) status = tsr_ds_agree(&r->files, column, &trained, r->err);
    if (status == TSR_OK) status = tsr_ds_check_steps(&r->files, column, r->err);
    if (status == TSR_OK) status = tsr_ds_join_groups(&r->files, &r->groups, groups, r->err);
    if (status == TSR_OK) status = tsr_ds_model_add(&r->files, column, &trained, &r->model, r->err);
    if (status == TSR_OK) status = tsr_ds_experts_add_rest(&r->files, &r->model, r->err);
    tsr_ds_rows_close(&trained);
    return status;
}

static tsr_status make_optim(reading *r, const tsr_value **out)
{
    /* clang-format off */
    static const char *const taken[] = {"base_optimizer_state", "optimizer_state_dict", "single_partition_of_fp32_groups",
                                        "fp32_flat_groups", "group_paddings", "param_alignment_paddings", "param_slice_mappings",
                                        "partition_count", "fp32_groups", "state", "param_groups", NULL};
    /* clang-format on */
    uint32_t count;
    const tsr_ds_file *first = tsr_ds_first(&r->files, TSR_DS_OPTIM, &count);
    const tsr_value *optimizer = r->files.zero ? tsr_ds_optimizer(first) : tsr_ds_plain_optimizer(&r->files);
    tsr_ds_rows_untie(&r->states); /* each parameter gets the step of its group; the copies do not share one tensor */
    tsr_ds_rows_untie(&r->odd);
    const tsr_ds_optim_contents contents = {
        .states = &r->states, .odd = &r->odd, .groups = r->groups, .rest = tsr_ds_rest(&r->files, optimizer, taken, r->err)};
    return tsr_ds_optim(&r->files, &contents, out, r->err);
}

static tsr_status mount(reading *r)
{
    tsr_checkpoint *checkpoint = r->files.checkpoint;
    tsr_ds_part parts[] = {{"model", NULL}, {"module", NULL}, {"optim", NULL}, {"engine", NULL}};
    TSR_TRY(tsr_ds_module(&r->files, &parts[1].tree, r->err));
    if (!r->files.experts_unread) {
        parts[0].tree = tsr_ds_rows_tree(&r->model, r->err);
        if (!parts[0].tree) return TSR_E_NOMEM;
        TSR_TRY(make_optim(r, &parts[2].tree));
    }
    TSR_TRY(tsr_ds_engine(&r->files, &parts[3].tree, r->err));
    return tsr_ds_mount(checkpoint, parts, sizeof parts / sizeof parts[0], r->files.storages, r->err);
}

static tsr_status read_all(reading *r, tsr_checkpoint *checkpoint)
{
    TSR_TRY(tsr_ds_files_open(checkpoint, &r->files, r->err));
    const uint32_t ranks = r->files.tensor_ranks;
    TSR_TRY(tsr_ds_rows_open(&r->model, checkpoint, ranks, r->err));
    TSR_TRY(tsr_ds_rows_open(&r->states, checkpoint, ranks, r->err));
    TSR_TRY(tsr_ds_rows_open(&r->odd, checkpoint, ranks, r->err));
    TSR_TRY(tsr_ds_check(&r->files, r->err));
    TSR_TRY(tsr_ds_layers_open(&r->files, r->err));
    TSR_TRY(tsr_ds_layers_check(&r->files, r->err));
    TSR_TRY(tsr_ds_experts_check(&r->files, r->err));
    for (uint32_t c = 0; c < r->files.column_count && !r->files.experts_unread; c++) TSR_TRY(read_column(r, c));
    TSR_TRY(tsr_ds_layers_add_rest(&r->files, &r->model, r->err));
    TSR_TRY(tsr_ds_layouts_open(&r->files, &r->files.layouts, r->err));
    TSR_TRY(tsr_ds_layouts_join(r->files.layouts, &r->model, r->err));
    TSR_TRY(tsr_ds_layouts_join(r->files.layouts, &r->states, r->err));
    return mount(r);
}

static tsr_status open_deepspeed(tsr_checkpoint *checkpoint, tsr_error *err)
{
    reading r = {.err = err};
    const tsr_status status = read_all(&r, checkpoint);
    tsr_ds_rows_close(&r.model);
    tsr_ds_rows_close(&r.states);
    tsr_ds_rows_close(&r.odd);
    tsr_ds_layouts_close(r.files.layouts);
    tsr_ds_files_close(&r.files);
    return status;
}

extern const tsr_reader tsr_reader_deepspeed;
const tsr_reader tsr_reader_deepspeed = {.format = TSR_FORMAT_DEEPSPEED,
                                         .is_rare = true,
                                         .open = open_deepspeed,
                                         .extents = tsr_torch_extents,
                                         .crc = tsr_torch_crc};
const tsr_directory tsr_directory_deepspeed = {
    .reader = &tsr_reader_deepspeed,
    .recognizes = recognizes,
    .writes = writes,
    .lacking = "files of a DeepSpeed checkpoint, but no *mp_rank_MM_model_states.pt and no *_mp_rank_MM_optim_states.pt"};
