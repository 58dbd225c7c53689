/* Mixtures of experts, as DeepSpeed's engine saves them:
 *
 *   mp_rank_00_model_states.pt                    module: everything but the experts; num_experts: [4, …], one per layer of experts
 *   layer_0_expert_2_mp_rank_00_model_states.pt   {"….deepspeed_experts.2.weight": …}, numbered among the experts of all ranks
 *   zero_pp_rank_0_…_optim_states.pt              groups of experts are cut for fewer ranks than the others
 *   expp_rank_0_mp_rank_00_optim_states.pt        without ZeRO: the optimizer of a rank, by numbers
 *
 * The weights have names and are whole: they belong to the part `module`. zero_to_fp32 and ds_to_universal fail on such a checkpoint, so
 * that nothing says what its parts `model` and `optim` would be. */
#include "formats/deepspeed/deepspeed_experts.h"

#include "base/try.h"
#include "formats/common/shown_names.h"
#include "formats/deepspeed/deepspeed_values.h"

#define NOT_SUPPORTED \
    "the checkpoint has experts, whose float32 weights and optimizer states are not supported; open the stored weights with " \
    "--part module, or load the checkpoint with DeepSpeed's engine"

enum { MOST_MISSING = 64 };

typedef struct missing_experts {
    const tsr_ds_files *files;
    const tsr_ds_file *next; /* of those that are there, in order of layers and experts */
    uint32_t left;
    tsr_shown_names names;
    tsr_str first;
} missing_experts;

static bool is_before(const tsr_ds_name *name, uint64_t layer, uint64_t expert)
{
    return name->rank < layer || (name->rank == layer && name->expert < expert);
}

static tsr_status look_for(missing_experts *m, size_t layer, uint64_t expert, tsr_error *err)
{
    tsr_checkpoint *checkpoint = m->files->checkpoint;
    for (; m->left && is_before(&m->next->name, layer, expert); m->next++, m->left--) {}
    if (m->left && m->next->name.rank == layer && m->next->name.expert == expert) return TSR_OK;
    const tsr_str name = tsr_arena_format(checkpoint->arena, err, "layer_%zu_expert_%llu_mp_rank_00_model_states.pt", layer, (unsigned long long)expert);
    if (!name.data) return TSR_E_NOMEM;
    if (!m->first.data) m->first = name;
    tsr_shown_names_add(&m->names, name);
    return tsr_checkpoint_lacks(checkpoint, name, err);
}

/* The experts that the model states count, and that have no file. */
static tsr_status check_files(const tsr_ds_files *files, const tsr_ds_file *experts, uint32_t count, tsr_error *err)
{
    const tsr_ds_file *model = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *layers = model ? tsr_ds_list(model->root, "num_experts") : NULL;
    missing_experts m = {.files = files, .next = experts, .left = count};
    for (size_t layer = 0; layer < tsr_ds_count(layers); layer++) {
        uint64_t of_layer = 0;
        if (!tsr_ds_number(layers->items[layer], &of_layer)) continue;
        for (uint64_t expert = 0; expert < of_layer && m.names.count < MOST_MISSING; expert++) TSR_TRY(look_for(&m, layer, expert, err));
    }
    if (!m.names.count) return TSR_OK;
    return tsr_ds_report(files->checkpoint, m.first, err,
                         "files of experts are missing or cannot be read: %s%s; copy them from where the checkpoint was written", m.names.text,
                         tsr_shown_names_rest(&m.names));
}

/* Under tensor or pipeline parallelism an expert's file holds a share of it, or of the layers. */
static tsr_status check_parallelism(const tsr_ds_files *files, tsr_error *err)
{
    if (files->column_count <= 1) return TSR_OK;
    return tsr_ds_report(files->checkpoint, TSR_STR(""), err,
                         "experts of %u model-parallel ranks are not supported; load the checkpoint with DeepSpeed's engine", files->column_count);
}

tsr_status tsr_ds_experts_check(const tsr_ds_files *files, tsr_error *err)
{
    const tsr_str part = files->checkpoint->options.part;
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(files, TSR_DS_EXPERT, &count);
    if (!files->has_experts) return TSR_OK;
    TSR_FAIL_IF(part.data && (tsr_str_equal(part, TSR_STR("model")) || tsr_str_equal(part, TSR_STR("optim"))), err, TSR_E_UNSUPPORTED,
                TSR_NO_POSITION, NOT_SUPPORTED);
    if (!part.data) TSR_TRY(tsr_ds_report(files->checkpoint, TSR_STR(""), err, NOT_SUPPORTED));
    TSR_TRY(check_parallelism(files, err));
    return check_files(files, experts, count, err);
}

tsr_status tsr_ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(files, TSR_DS_EXPERT, &count);
    for (uint32_t e = 0; e < count; e++) {
        const tsr_value *root = experts[e].root;
        rows->rank = 0;
        for (size_t i = 0; i < tsr_ds_count(root); i++)
            if (root->items[2 * i]->kind == TSR_VALUE_STR)
                TSR_TRY(tsr_ds_rows_add(rows, root->items[2 * i]->text, TSR_STR(""), root->items[2 * i + 1], err));
    }
    return TSR_OK;
}
