/* See deepspeed_expert_ranks.h. */
#include "formats/deepspeed/deepspeed_expert_ranks.h"

#include "formats/common/shown_names.h"
#include "formats/deepspeed/deepspeed_check.h"
#include "formats/deepspeed/deepspeed_experts.h"
#include "formats/deepspeed/deepspeed_states.h"
#include "formats/deepspeed/deepspeed_steps.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

#define WITHIN_LAYER "experts.deepspeed_experts."
#define GROUP_NAME   "ep_size_"

enum { MOST_RANKS = 1 << 16 };

/* The experts of a layer. */
typedef struct layer {
    const tsr_ds_file *files; /* sorted by expert */
    uint32_t count;
    tsr_str prefix; /* of the names in the layer, "….deepspeed_moe." */
    uint64_t held;  /* how many experts the layer has */
    uint32_t own;   /* how many experts a rank has */
    bool placed;
} layer;

typedef struct experts {
    const tsr_ds_plain *from;
    uint32_t ranks; /* number of expert-parallel ranks */
    layer *layers;
    uint32_t layer_count;
    bool uneven; /* the ranks cannot have equally many experts of each layer, so it is not known which ones they have */
    tsr_error *err;
} experts;

/* ---- the module of a rank ---- */

static tsr_str prefix_of(const tsr_ds_file *file)
{
    const size_t within = sizeof WITHIN_LAYER - 1;
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *name = file->root->items[2 * i];
        const size_t size = name->kind == TSR_VALUE_STR ? tsr_ds_expert_prefix(name->text) : 0;
        if (size > within) return (tsr_str){name->text.data, size - within};
    }
    return (tsr_str){NULL, 0};
}

static tsr_status list_layers(experts *e)
{
    uint32_t count;
    const tsr_ds_file *files = tsr_ds_first(e->from->files, TSR_DS_EXPERT, &count);
    const tsr_value *stated = tsr_ds_list(e->from->file->root, "num_experts");
    e->layers = tsr_arena_array(e->from->files->checkpoint->arena, count, sizeof *e->layers, e->err);
    if (!e->layers) return TSR_E_NOMEM;
    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && files[end].name.rank == files[i].name.rank;) end++;
        uint64_t number = 0;
        tsr_ds_number(tsr_ds_item(stated, files[i].name.rank), &number);
        const uint64_t held = number && number <= UINT32_MAX ? number : files[end - 1].name.expert + UINT64_C(1);
        e->layers[e->layer_count++] =
            (layer){.files = files + i, .count = end - i, .prefix = prefix_of(&files[i]), .held = held};
    }
    return TSR_OK;
}

static void set_ranks(experts *e, uint32_t ranks)
{
    e->ranks = ranks;
    e->uneven = false;
    for (uint32_t l = 0; l < e->layer_count; l++) {
        e->layers[l].own = (uint32_t)(e->layers[l].held / ranks);
        e->uneven = e->uneven || e->layers[l].held % ranks;
    }
}

static void add_layer(layer *l, uint32_t rank, const tsr_value **items, size_t *count)
{
    l->placed = true;
    for (uint32_t i = 0; i < l->count; i++) {
        const tsr_ds_file *file = &l->files[i];
        if (file->name.expert / l->own != rank) continue;
        memcpy(items + *count, file->root->items, file->root->count * sizeof *items);
        *count += file->root->count;
    }
}

static bool is_within(const tsr_value *name, const layer *l)
{
    return l->prefix.data && name->kind == TSR_VALUE_STR && tsr_str_starts(name->text, l->prefix);
}

/* The module of a rank as a DICT in its order: experts follow the gate of their layer. */
static const tsr_value *module_of(experts *e, uint32_t rank)
{
    const tsr_value *dense = e->from->module;
    size_t most = dense ? dense->count : 0, count = 0;
    for (uint32_t l = 0; l < e->layer_count; l++) {
        e->layers[l].placed = false;
        for (uint32_t i = 0; i < e->layers[l].count; i++) most += e->layers[l].files[i].root->count;
    }
    const tsr_value **items = tsr_arena_array(e->from->files->checkpoint->arena, most, sizeof *items, e->err);
    if (!items) return NULL;
    for (size_t i = 0; i < (dense ? dense->count : 0); i += 2) {
        items[count++] = dense->items[i];
        items[count++] = dense->items[i + 1];
        for (uint32_t l = 0; l < e->layer_count; l++) {
            const bool last = i + 2 == dense->count || !is_within(dense->items[i + 2], &e->layers[l]);
            const bool gate = is_within(dense->items[i], &e->layers[l]) && last;
            if (gate && !e->layers[l].placed) add_layer(&e->layers[l], rank, items, &count);
        }
    }
    for (uint32_t l = 0; l < e->layer_count; l++)
        if (!e->layers[l].placed) add_layer(&e->layers[l], rank, items, &count);
    return tsr_value_items(e->from->files->checkpoint->arena, TSR_VALUE_DICT, items, count, e->err);
}

/* ---- ranks ---- */

/* The number of expert-parallel ranks in the name of a param group, such as "ep_size_2"; otherwise 0. */
static uint32_t ranks_in(const tsr_value *group)
{
    const tsr_value *name = tsr_ds_get(group, "name");
    uint32_t number = 0;
    size_t at = sizeof GROUP_NAME - 1;
    if (!name || name->kind != TSR_VALUE_STR || !tsr_str_starts(name->text, TSR_STR(GROUP_NAME))) return 0;
    for (; at < name->text.size && name->text.data[at] >= '0' && name->text.data[at] <= '9' && number <= MOST_RANKS; at++)
        number = 10 * number + (uint32_t)(name->text.data[at] - '0');
    return at == name->text.size && number <= MOST_RANKS ? number : 0;
}

/* The number of expert-parallel ranks by the names of param groups; 0 if DeepSpeed did not split them. */
static uint32_t named_ranks(const tsr_ds_plain *from)
{
    uint32_t ranks = 0;
    const tsr_value *optimizer = tsr_ds_dict(from->file->root, "optimizer"),
                    *inner = tsr_ds_dict(optimizer, "optimizer_state_dict");
    const tsr_value *groups = tsr_ds_list(inner ? inner : optimizer, "param_groups");
    for (size_t g = 0; g < tsr_ds_count(groups); g++)
        if (ranks_in(groups->items[g]) > ranks) ranks = ranks_in(groups->items[g]);
    return ranks;
}

/* Finds the number of expert-parallel ranks. Without names it is that of the files, unless the parameters of rank 0 only fit a
 * larger one, because files of the last ranks are missing. */
static tsr_status find_ranks(experts *e)
{
    uint32_t count, ranks = named_ranks(e->from);
    uint64_t most = 0; /* no more ranks than processes, or than experts in a layer */
    const tsr_ds_file *files = tsr_ds_first(e->from->files, TSR_DS_EXPERT_OPTIM, &count);
    set_ranks(e, ranks ? ranks : count && files[count - 1].name.rank < MOST_RANKS ? files[count - 1].name.rank + 1 : 1);
    tsr_ds_number(tsr_ds_get(e->from->file->root, "dp_world_size"), &most);
    for (uint32_t l = 0; l < e->layer_count; l++) most = e->layers[l].held < most ? e->layers[l].held : most;
    for (uint32_t tried = e->ranks, first = tried; !ranks && tried <= most && tried < MOST_RANKS; tried++) {
        tsr_ds_plain plain = *e->from;
        bool fits;
        set_ranks(e, tried);
        if (!e->uneven) {
            plain.module = module_of(e, 0);
            if (!plain.module) return TSR_E_NOMEM;
            TSR_TRY(tsr_ds_plain_fits(&plain, &fits, e->err));
            if (fits) return TSR_OK;
        }
        set_ranks(e, first);
    }
    return TSR_OK;
}

static const tsr_ds_file *file_of(const tsr_ds_files *files, uint32_t rank)
{
    uint32_t count;
    const tsr_ds_file *file = tsr_ds_first(files, TSR_DS_EXPERT_OPTIM, &count);
    for (uint32_t i = 0; i < count; i++)
        if (file[i].name.rank == rank) return &file[i];
    return NULL;
}

static tsr_status check_left_over(const experts *e)
{
    uint32_t count;
    const tsr_ds_file *file = tsr_ds_first(e->from->files, TSR_DS_EXPERT_OPTIM, &count);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = tsr_ds_file_name(e->from->files, &file[i]);
        if (file[i].name.rank < e->ranks) continue;
        TSR_TRY(tsr_ds_report(
            e->from->files->checkpoint, name, e->err,
            "%.*s: belongs to expert-parallel rank %u, but the checkpoint has %u such ranks: the file is left over from another save",
            TSR_STR_ARG(name), file[i].name.rank, e->ranks));
    }
    return TSR_OK;
}

static tsr_status check_missing(const experts *e)
{
    const tsr_ds_files *files = e->from->files;
    tsr_shown_names missing = {.used = 0};
    tsr_str first = {NULL, 0};
    for (uint32_t r = 0; r < e->ranks; r++) {
        if (file_of(files, r)) continue;
        const tsr_ds_name lost = {.kind = TSR_DS_EXPERT_OPTIM,
                                  .has_rank = true,
                                  .is_expert = true,
                                  .rank = r,
                                  .model_rank = e->from->file->name.model_rank};
        const tsr_str name = tsr_ds_name_text(files->checkpoint->arena, &lost, e->err);
        if (!name.data) return TSR_E_NOMEM;
        if (!first.data) first = name;
        tsr_shown_names_add(&missing, name);
        TSR_TRY(tsr_checkpoint_implies(files->checkpoint, name, e->err));
        if (tsr_store_find(files->checkpoint->store, name) == TSR_NO_FILE)
            TSR_TRY(tsr_checkpoint_lacks(files->checkpoint, name, e->err));
    }
    if (!first.data) return TSR_OK;
    return tsr_ds_report(
        files->checkpoint, first, e->err,
        "%llu of the optimizer files of %u expert-parallel ranks cannot be read or are missing: %s%s; copy them from where "
        "the checkpoint was written",
        (unsigned long long)missing.count, e->ranks, missing.text, tsr_shown_names_rest(&missing));
}

/* The first step that the optimizer in a file counts, or NULL. */
static const tsr_value *step_of(const tsr_ds_file *file)
{
    const tsr_value *optimizer = tsr_ds_dict(file->root, "optimizer"),
                    *inner = tsr_ds_dict(optimizer, "optimizer_state_dict");
    const tsr_value *step = tsr_ds_step_in(tsr_ds_dict(inner ? inner : optimizer, "state"));
    return step ? step : tsr_ds_step_in(tsr_ds_list(inner ? inner : optimizer, "param_groups"));
}

/* Reports an optimizer that is not of the same step as the copy in the model states. */
static tsr_status check_step(const experts *e, const tsr_ds_file *file)
{
    bool same;
    const tsr_ds_files *files = e->from->files;
    const tsr_str name = tsr_ds_file_name(files, file);
    TSR_TRY(tsr_ds_same_scalar(files, step_of(file), step_of(e->from->file), &same, e->err));
    if (same) return TSR_OK;
    return tsr_ds_report(files->checkpoint, name, e->err,
                         "%.*s: has a different step than the optimizer in %.*s: the files do not belong to the same save",
                         TSR_STR_ARG(name), TSR_STR_ARG(tsr_ds_file_name(files, e->from->file)));
}

/* Files of experts state no step, and their weights can only be compared with float32 copies. */
static tsr_status report_unchecked(const experts *e)
{
    const tsr_ds_files *files = e->from->files;
    if (!e->layer_count || tsr_ds_list(tsr_ds_dict(e->from->file->root, "optimizer"), "fp32_groups")) return TSR_OK;
    return tsr_finding_add_at(
        files->checkpoint->findings, (tsr_rated_rule){"parts/unchecked-save", TSR_NOTE},
        (tsr_place){tsr_ds_file_name(files, e->layers[0].files), TSR_NO_POSITION, {NULL, 0}}, e->err,
        "the files of experts state no step, and the optimizer has no copies of their weights to compare with: an expert's file "
        "from another step would not be noticed");
}

/* Adds the optimizer of a rank, or the copy of rank 0's if `file` is the model states. */
static tsr_status add_rank(experts *e, const tsr_ds_file *file, uint32_t rank, const tsr_value **groups)
{
    const tsr_value *more = NULL;
    tsr_ds_plain plain = *e->from;
    plain.file = file;
    if (e->ranks > 1) plain.rank = tsr_arena_format(e->from->files->checkpoint->arena, e->err, "expp_rank_%u", rank).data;
    if (e->ranks > 1 && !plain.rank) return TSR_E_NOMEM;
    plain.module = e->uneven ? NULL : module_of(e, rank);
    if (!plain.module && !e->uneven) return TSR_E_NOMEM;
    TSR_TRY(tsr_ds_plain_add(&plain, &more, e->err));
    return tsr_ds_join_groups(e->from->files, groups, more, e->err);
}

tsr_status tsr_ds_expert_ranks_add(const tsr_ds_plain *from, const tsr_value **groups, tsr_error *err)
{
    experts e = {.from = from, .err = err};
    if (!tsr_ds_get(from->file->root, "optimizer")) return TSR_OK;
    TSR_TRY(list_layers(&e));
    TSR_TRY(find_ranks(&e));
    TSR_TRY(check_missing(&e));
    TSR_TRY(check_left_over(&e));
    TSR_TRY(report_unchecked(&e));
    for (uint32_t r = 0; r < e.ranks; r++) {
        const tsr_ds_file *file = file_of(from->files, r);
        if (file) TSR_TRY(check_step(&e, file));
        if (file) TSR_TRY(add_rank(&e, file, r, groups));
    }
    return add_rank(&e, from->file, 0, groups);
}
