/* Mixtures of experts, as DeepSpeed's engine saves them:
 *
 *   mp_rank_00_model_states.pt                    module: everything but the experts; num_experts: [4, …], one per layer of experts
 *   layer_0_expert_2_mp_rank_00_model_states.pt   {"….deepspeed_experts.2.weight": …}, numbered among the experts of all ranks
 *   zero_pp_rank_0_…_optim_states.pt              groups of experts are partitioned over fewer ranks than the others
 *   expp_rank_0_mp_rank_00_optim_states.pt        without ZeRO: the optimizer of a rank, by numbers
 *
 * The stored weights have names and are complete. The float32 weights and the states are read, too: under ZeRO 1 and 2 see
 * deepspeed_groups.h, without ZeRO deepspeed_expert_ranks.h.
 * Neither zero_to_fp32 nor ds_to_universal reads any of this, so the running engine is the reference. */
#include "formats/deepspeed/deepspeed_experts.h"

#include "formats/common/shown_names.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/try.h"

#define BEFORE_NUMBER ".deepspeed_moe.experts.deepspeed_experts."
#define NOT_SUPPORTED "the checkpoint has experts %s, whose float32 weights and optimizer states are not supported; %s"
#define USE_STORED    "open the stored weights with --part module, or load the checkpoint with DeepSpeed's engine"
#define USE_ENGINE    "load the checkpoint with DeepSpeed's engine"

enum { MOST_MISSING = 64 };

typedef struct missing_experts {
    const tsr_ds_files *files;
    const tsr_ds_file *next; /* the next of the files that exist, sorted by layer and expert */
    uint32_t left;
    bool have_all_layers;
    tsr_shown_names names;
    tsr_str first;
} missing_experts;

static bool is_before(const tsr_ds_name *name, uint32_t layer, uint32_t expert)
{
    return name->rank < layer || (name->rank == layer && name->expert < expert);
}

static tsr_status look_for(missing_experts *m, uint32_t layer, uint32_t expert, tsr_error *err)
{
    tsr_checkpoint *checkpoint = m->files->checkpoint;
    for (; m->left && is_before(&m->next->name, layer, expert); m->next++, m->left--) {
    }
    if (m->left && m->next->name.rank == layer && m->next->name.expert == expert) return TSR_OK;
    const tsr_ds_name lost = {
        .kind = TSR_DS_EXPERT, .is_expert = true, .rank = layer, .expert = expert, .has_all_layers = m->have_all_layers};
    const tsr_str name = tsr_ds_name_text(checkpoint->arena, &lost, err);
    if (!name.data) return TSR_E_NOMEM;
    if (!m->first.data) m->first = name;
    tsr_shown_names_add(&m->names, name);
    return tsr_checkpoint_lacks(checkpoint, name, err);
}

/* Reports files of experts that the model states do not count: they are from a save with more of them. */
static tsr_status check_left_over(const tsr_ds_files *files, const tsr_value *layers, const tsr_ds_file *experts,
                                  uint32_t count, tsr_error *err)
{
    for (uint32_t i = 0; i < count && layers; i++) {
        const tsr_ds_name *name = &experts[i].name;
        const tsr_str file = tsr_ds_file_name(files, &experts[i]);
        uint64_t of_layer = 0;
        if (name->rank < tsr_ds_count(layers) &&
            (!tsr_ds_number(layers->items[name->rank], &of_layer) || name->expert < of_layer))
            continue;
        TSR_TRY(
            tsr_ds_report(files->checkpoint, file, err,
                          "%.*s: the checkpoint has no such expert ('num_experts'): the file is left over from another save",
                          TSR_STR_ARG(file)));
    }
    return TSR_OK;
}

/* Reports experts that the model states count but that have no file. */
static tsr_status check_files(const tsr_ds_files *files, const tsr_ds_file *experts, uint32_t count, tsr_error *err)
{
    const tsr_ds_file *model = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *layers = model ? tsr_ds_list(model->root, "num_experts") : NULL;
    missing_experts m = {.files = files, .next = experts, .left = count};
    TSR_TRY(check_left_over(files, layers, experts, count, err));
    for (uint32_t layer = 0; layer < tsr_ds_count(layers); layer++) {
        uint64_t of_layer = 0;
        if (!tsr_ds_number(layers->items[layer], &of_layer)) continue;
        for (uint32_t expert = 0; expert < of_layer && m.names.count < MOST_MISSING; expert++)
            TSR_TRY(look_for(&m, layer, expert, err));
    }
    uint64_t of_all = 0;
    m.have_all_layers = model && tsr_ds_number(tsr_ds_get(model->root, "num_experts"), &of_all);
    for (uint32_t expert = 0; expert < of_all && m.names.count < MOST_MISSING; expert++)
        TSR_TRY(look_for(&m, 0, expert, err));
    if (!m.names.count) return TSR_OK;
    return tsr_ds_report(
        files->checkpoint, m.first, err,
        "files of experts are missing or cannot be read: %s%s; copy them from where the checkpoint was written",
        m.names.text, tsr_shown_names_rest(&m.names));
}

/* Under tensor or pipeline parallelism, an expert's file has only a share of it, or some of the layers. */
static tsr_status check_parallelism(const tsr_ds_files *files, tsr_error *err)
{
    if (files->column_count <= 1) return TSR_OK;
    return tsr_ds_report(files->checkpoint, TSR_STR(""), err,
                         "experts of %u model-parallel ranks are not supported; load the checkpoint with DeepSpeed's engine",
                         files->column_count);
}

size_t tsr_ds_expert_prefix(tsr_str name)
{
    const tsr_str marker = TSR_STR(BEFORE_NUMBER);
    for (size_t at = name.size; at-- > 0;)
        if (tsr_str_starts((tsr_str){name.data + at, name.size - at}, marker)) return at + marker.size;
    return 0;
}

/* Whether an expert's weight has two names. In that case, only the names of the first rank's experts are stored. */
static bool has_shared_experts(const tsr_value *model)
{
    const tsr_value *shared = tsr_ds_dict(model, "shared_params");
    for (size_t i = 0; i < 2 * tsr_ds_count(shared); i++)
        if (shared->items[i]->kind == TSR_VALUE_STR && tsr_ds_expert_prefix(shared->items[i]->text)) return true;
    return false;
}

/* Versions that had one list of experts for all layers stated one number. */
static bool has_one_list(const tsr_value *model)
{
    uint64_t number;
    return tsr_ds_number(tsr_ds_get(model, "num_experts"), &number);
}

/* The kind of experts if their float32 weights cannot be read; otherwise NULL. */
static const char *unread_kind(const tsr_ds_files *files)
{
    uint32_t count;
    const tsr_ds_file *model = tsr_ds_first(files, TSR_DS_MODEL, &count);
    if (!model) return "without model states";
    if (tsr_ds_list(model->root, "ds_autoep_layers")) return "placed by AutoEP";
    if (has_one_list(model->root)) return "stored by an old version of DeepSpeed";
    if (files->zero == 3) return "under ZeRO 3";
    if (files->column_count > 1) return "on several model-parallel ranks";
    return has_shared_experts(model->root) ? "with tied weights" : NULL;
}

static tsr_status check_unread(const tsr_ds_files *files, tsr_error *err)
{
    const tsr_str part = files->checkpoint->options.part;
    const char *kind = files->experts_unread, *advice = files->zero == 3 ? USE_ENGINE : USE_STORED;
    TSR_FAIL_IF(part.data && (tsr_str_equal(part, TSR_STR("model")) || tsr_str_equal(part, TSR_STR("optim"))), err,
                TSR_E_UNSUPPORTED, NOT_SUPPORTED, kind, advice);
    return part.data ? TSR_OK : tsr_ds_report(files->checkpoint, TSR_STR(""), err, NOT_SUPPORTED, kind, advice);
}

tsr_status tsr_ds_experts_check(tsr_ds_files *files, tsr_error *err)
{
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(files, TSR_DS_EXPERT, &count);
    if (!files->has_experts) return TSR_OK;
    files->experts_unread = unread_kind(files);
    if (files->experts_unread) TSR_TRY(check_unread(files, err));
    TSR_TRY(check_parallelism(files, err));
    return files->zero == 3 ? TSR_OK : check_files(files, experts, count, err);
}

static tsr_status add_expert(const tsr_ds_files *files, const tsr_ds_file *file, bool only_new, tsr_ds_rows *rows,
                             tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *name = file->root->items[2 * i];
        if (name->kind != TSR_VALUE_STR || (only_new && tsr_ds_rows_get(rows, name->text, TSR_STR("")))) continue;
        TSR_TRY(tsr_ds_rows_add_stored(rows, files, file, name->text, file->root->items[2 * i + 1], err));
    }
    return TSR_OK;
}

static tsr_status add_experts(const tsr_ds_files *files, bool only_new, tsr_ds_rows *rows, tsr_error *err)
{
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(files, TSR_DS_EXPERT, &count);
    rows->rank = 0;
    for (uint32_t e = 0; e < count; e++) TSR_TRY(add_expert(files, &experts[e], only_new, rows, err));
    return TSR_OK;
}

tsr_status tsr_ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_experts(files, false, rows, err);
}

tsr_status tsr_ds_experts_add_rest(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_experts(files, true, rows, err);
}
