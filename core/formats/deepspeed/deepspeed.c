/* Opens a DeepSpeed tag directory as one checkpoint with four parts: model, module, optim, engine. The files are read, their
 * contents are joined name by name, and the result is a tree that is flattened like that of a torch.save file. */
#include "formats/common/file_names.h"
#include "formats/common/rank_entries.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_module.h"
#include "formats/deepspeed/deepspeed_parts.h"
#include "formats/deepspeed/deepspeed_weights.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* ---- expert ranks ---- */

/* The optimizers of a mixture of experts without ZeRO. Each expert-parallel rank has a file with the states of its experts
 * and of everything else, which all ranks have alike:
 *
 *   mp_rank_00_model_states.pt                {"module": everything but the experts, "optimizer": of rank 0}
 *   expp_rank_0_mp_rank_00_optim_states.pt    {"optimizer": {"state": {0: …, 1: …}, "param_groups": …}}
 *
 * The numbers count the parameters of a rank, whose module has its own experts only: with 4 experts on 2 ranks, the experts 0
 * and 1, or 2 and 3. DeepSpeed loads these files, and not the copy in the model states. */

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
    for (; at < name->text.size && tsr_is_digit(name->text.data[at]) && number <= MOST_RANKS; at++)
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

static tsr_status ds_join_groups(const tsr_ds_files *files, const tsr_value **groups, const tsr_value *more, tsr_error *err);

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
    return ds_join_groups(e->from->files, groups, more, e->err);
}

/* Like tsr_ds_plain_add, for the optimizers of all expert-parallel ranks; `from` has those of the model states. Reports files
 * that are missing, or that are not of this save. */
static tsr_status ds_expert_ranks_add(const tsr_ds_plain *from, const tsr_value **groups, tsr_error *err)
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

/* ---- states ---- */

typedef enum state_form { ABSENT, WHOLE, FLAT, ODD } state_form;

/* One key of a segment's states, on all ranks. */
typedef struct state {
    const tsr_ds_weights *weights;
    uint32_t segment;
    tsr_str key;
} state;

static const tsr_ds_sharers *sharers_of(const state *s)
{
    return &s->weights->segments[s->segment].sharers;
}

/* The states that rank `rank` of the sharers has for a segment: a DICT, or NULL. */
static const tsr_value *state_of(const tsr_ds_weights *weights, uint32_t rank, uint32_t segment)
{
    const tsr_ds_sharers *sharers = &weights->segments[segment].sharers;
    const uint32_t group = sharers->group;
    const tsr_value *base = tsr_ds_base_state(weights->files, sharers->optims[rank]);
    /* Of an elastic checkpoint. */
    if (base && base->kind == TSR_VALUE_LIST) return tsr_ds_kind_or_null(tsr_ds_item(base, group), TSR_VALUE_DICT);
    const tsr_value *states = tsr_ds_dict(base, "state");
    const size_t pairs = tsr_ds_count(states);
    uint64_t number;
    /* The states are sorted by group and lack groups without any, so a group's states are at or before its index. */
    for (size_t i = group < pairs ? group + 1 : pairs; i-- > 0;) {
        if (!tsr_ds_number(states->items[2 * i], &number)) return NULL;
        if (number == group) return tsr_ds_kind_or_null(states->items[2 * i + 1], TSR_VALUE_DICT);
        if (number < group) return NULL;
    }
    return NULL;
}

static const tsr_value *held_by(const state *s, uint32_t rank)
{
    const tsr_value *dict = state_of(s->weights, rank, s->segment);
    return dict ? tsr_value_get(dict, s->key) : NULL;
}

/* Tensors are FLAT if each is as long as its rank's float32 tensor, or if all are equally long because of padding. */
static state_form form_of(const state *s)
{
    const tsr_ds_sharers *sharers = sharers_of(s);
    const tsr_ds_buffer *fp32 = &s->weights->segments[s->segment].fp32;
    const tsr_value *first = NULL;
    uint64_t length = UINT64_MAX;
    bool lean = true, padded = true;
    for (uint32_t r = 0; r < sharers->world; r++) {
        const tsr_value *value = held_by(s, r);
        const tsr_entry *tensor = tsr_ds_tensor(value);
        if (!sharers->optims[r]) continue;
        if (!value) return ABSENT;
        if (!first) first = value;
        if (!tensor || tensor->ndim != 1) continue;
        if (length == UINT64_MAX) length = tensor->shape[0];
        lean = lean && tensor->shape[0] == fp32->pieces[r].count;
        padded = padded && tensor->shape[0] == length && length >= fp32->pieces[r].count;
    }
    if (!first) return ABSENT;
    const tsr_entry *tensor = tsr_ds_tensor(first);
    if (!tensor || tensor->ndim == 0) return WHOLE;
    return length != UINT64_MAX && (lean || padded) ? FLAT : ODD;
}

/* Reports a rank that lacks a key which another rank has: the files are from different saves. */
static tsr_status check_absent(const state *s, tsr_error *err)
{
    const tsr_ds_sharers *sharers = sharers_of(s);
    uint32_t with = UINT32_MAX, without = UINT32_MAX;
    for (uint32_t r = 0; r < sharers->world; r++) {
        if (!sharers->optims[r]) continue;
        *(held_by(s, r) ? &with : &without) = r;
    }
    if (with == UINT32_MAX || without == UINT32_MAX) return TSR_OK;
    const tsr_ds_files *files = s->weights->files;
    const tsr_str name = tsr_ds_file_name(files, sharers->optims[without]);
    return tsr_ds_report(files->checkpoint, name, err, "%.*s: has no '%.*s' for param group %u, but %.*s has",
                         TSR_STR_ARG(name), TSR_STR_ARG(s->key), sharers->group,
                         TSR_STR_ARG(tsr_ds_file_name(files, sharers->optims[with])));
}

static tsr_status add_flat(const state *s, tsr_ds_rows *rows, tsr_error *err)
{
    const tsr_ds_weights *w = s->weights;
    const tsr_ds_sharers *sharers = sharers_of(s);
    tsr_ds_buffer buffer;
    uint64_t longest = w->segments[s->segment].slice;
    TSR_TRY(tsr_ds_buffer_new(w->files->checkpoint->arena, sharers->world, &buffer, err));
    for (uint32_t r = 0; r < sharers->world; r++) {
        const tsr_entry *tensor = tsr_ds_tensor(held_by(s, r));
        if (tensor && tensor->ndim == 1 && tensor->shape[0] > longest) longest = tensor->shape[0];
    }
    for (uint32_t r = 0; r < sharers->world; r++) {
        const tsr_entry *tensor = tsr_ds_tensor(held_by(s, r));
        tsr_status status =
            tsr_ds_buffer_add(&buffer, tensor, tensor && tensor->ndim == 1 ? tensor->shape[0] : longest, err);
        if (status != TSR_OK)
            return tsr_error_context(err, "%.*s, '%.*s'", TSR_STR_ARG(tsr_ds_file_name(w->files, sharers->optims[r])),
                                     TSR_STR_ARG(s->key)),
                   status;
    }
    return tsr_ds_weights_place(w, s->segment, &buffer, s->key, rows, err);
}

static const tsr_value *first_of(const state *s)
{
    const tsr_value *value = NULL;
    for (uint32_t r = 0; r < sharers_of(s)->world && !value; r++) value = held_by(s, r);
    return value;
}

static tsr_status add_whole(const state *s, tsr_ds_rows *rows, tsr_error *err)
{
    const tsr_ds_segment *segment = &s->weights->segments[s->segment];
    const tsr_value *value = first_of(s);
    for (uint32_t i = 0; i < segment->count; i++)
        TSR_TRY(tsr_ds_rows_add(rows, s->weights->weights[segment->first + i].name, s->key, value, err));
    return TSR_OK;
}

/* The name under which the states of a group itself are listed: the group's number, preceded by the ranks if groups of other
 * ranks have the same number. */
static tsr_str odd_name(const state *s, tsr_error *err)
{
    tsr_arena *arena = s->weights->files->checkpoint->arena;
    const tsr_ds_sharers *sharers = sharers_of(s);
    if (sharers->expert_ranks > 1)
        return tsr_arena_format(arena, err, "expp_rank_%u.%u", sharers->expert_rank, sharers->group);
    if (s->weights->files->column_count == 1) return tsr_arena_format(arena, err, "%u", sharers->group);
    return tsr_arena_format(arena, err, "mp_rank_%02u.%u", s->weights->column->model_rank, sharers->group);
}

/* Adds a tensor whose length differs between ranks, as in optimizers that compress or factor their states. */
static tsr_status add_odd(const state *s, tsr_ds_rows *odd, tsr_error *err)
{
    const tsr_ds_sharers *sharers = sharers_of(s);
    tsr_arena *arena = s->weights->files->checkpoint->arena;
    const tsr_entry **tensors = tsr_arena_array(arena, sharers->world, sizeof *tensors, err);
    tsr_entry *entry = TSR_ARENA_NEW(arena, tsr_entry, err);
    if (!tensors || !entry) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < sharers->world; r++) tensors[r] = tsr_ds_tensor(held_by(s, r));
    TSR_TRY(tsr_entry_list_per_rank(entry, tensors, sharers->world, arena, err));
    const tsr_str group = odd_name(s, err);
    const tsr_value *value = tsr_value_tensor(arena, sharers->world == 1 ? tensors[0] : entry, err);
    return group.data && value ? tsr_ds_rows_add(odd, group, s->key, value, err) : TSR_E_NOMEM;
}

static tsr_status add_state(const state *s, tsr_ds_rows *rows, tsr_ds_rows *odd, tsr_error *err)
{
    switch (form_of(s)) {
    case FLAT: return add_flat(s, rows, err);
    case WHOLE: return add_whole(s, rows, err);
    case ODD: return add_odd(s, odd, err);
    case ABSENT: break;
    }
    return check_absent(s, err);
}

static tsr_status add_segment(const tsr_ds_weights *w, uint32_t segment, tsr_ds_rows *rows, tsr_ds_rows *odd, tsr_error *err)
{
    const tsr_value *dict = NULL;
    for (uint32_t r = 0; r < w->segments[segment].sharers.world && !dict; r++) dict = state_of(w, r, segment);
    for (size_t i = 0; i < tsr_ds_count(dict); i++) {
        const tsr_value *key = dict->items[2 * i];
        if (key->kind != TSR_VALUE_STR) continue;
        const state s = {w, segment, key->text};
        TSR_TRY(add_state(&s, rows, odd, err));
    }
    return TSR_OK;
}

/* Adds the states of every weight as rows (name, key). Tensors as long as the float32 buffers are split like them, and a
 * number that applies to a group is added for each of its parameters. Other tensors are added to `odd` as rows (group, key),
 * with what each rank holds. */
static tsr_status ds_states_add(const tsr_ds_weights *weights, tsr_ds_rows *states, tsr_ds_rows *odd, tsr_error *err)
{
    for (uint32_t s = 0; s < weights->segment_count; s++) TSR_TRY(add_segment(weights, s, states, odd, err));
    return TSR_OK;
}

/* ---- param groups ---- */

/* The first segment of a group; the segments are sorted by group. */
static uint32_t first_segment(const tsr_ds_weights *w, uint32_t group)
{
    uint32_t low = 0, high = w->segment_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (w->segments[middle].sharers.group < group) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Appends the names of a group's parameters at names[*count]. If `names` is NULL, only counts them. */
static tsr_status add_names(const tsr_ds_weights *w, uint32_t group, const tsr_value **names, size_t *count, tsr_error *err)
{
    for (uint32_t s = first_segment(w, group); s < w->segment_count && w->segments[s].sharers.group == group; s++)
        for (uint32_t k = 0; k < w->segments[s].count; k++, ++*count) {
            if (!names) continue;
            names[*count] = tsr_value_str(w->files->checkpoint->arena, w->weights[w->segments[s].first + k].name, err);
            if (!names[*count]) return TSR_E_NOMEM;
        }
    return TSR_OK;
}

/* The names of the parameters in all groups whose numbers `params` lists; NULL if it lists anything else. */
static tsr_status names_of(const tsr_ds_weights *w, const tsr_value *params, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = w->files->checkpoint->arena;
    uint64_t number;
    size_t count = 0;
    *out = NULL;
    if (!params || params->kind != TSR_VALUE_LIST || params->count > w->group_count) return TSR_OK;
    for (size_t i = 0; i < params->count; i++) {
        if (!tsr_ds_number(params->items[i], &number) || number >= w->group_count) return TSR_OK;
        TSR_TRY(add_names(w, (uint32_t)number, NULL, &count, err));
        if (count > w->count) return TSR_OK;
    }
    const tsr_value **names = tsr_arena_array(arena, count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    count = 0;
    for (size_t i = 0; i < params->count; i++)
        TSR_TRY(add_names(w, (uint32_t)params->items[i]->as.integer, names, &count, err));
    *out = tsr_value_items(arena, TSR_VALUE_LIST, names, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status name_group(const tsr_ds_weights *w, const tsr_value **group, tsr_error *err)
{
    tsr_arena *arena = w->files->checkpoint->arena;
    const tsr_value *names;
    if (tsr_ds_kind_or_null(*group, TSR_VALUE_DICT) == NULL) return TSR_OK;
    TSR_TRY(names_of(w, tsr_ds_get(*group, "params"), &names, err));
    if (!names) return TSR_OK;
    const tsr_value **items = tsr_arena_array(arena, (*group)->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i + 1 < (*group)->count; i += 2) {
        const tsr_value *key = (*group)->items[i];
        const bool params = key->kind == TSR_VALUE_STR && tsr_str_equal(key->text, TSR_STR("params"));
        items[i] = key;
        items[i + 1] = params ? names : (*group)->items[i + 1];
    }
    *group = tsr_value_items(arena, TSR_VALUE_DICT, items, (*group)->count, err);
    return *group ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_name_groups(const tsr_ds_weights *weights, const tsr_value *groups, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = weights->files->checkpoint->arena;
    const tsr_value **items = tsr_arena_array(arena, groups->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < groups->count; i++) {
        items[i] = groups->items[i];
        TSR_TRY(name_group(weights, &items[i], err));
    }
    *out = tsr_value_items(arena, TSR_VALUE_LIST, items, groups->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Sets *out to the list of param groups, whose `params` are names; NULL if the files have none. */
static tsr_status ds_param_groups(const tsr_ds_weights *weights, const tsr_value **out, tsr_error *err)
{
    const tsr_value *groups = NULL;
    *out = NULL;
    for (uint32_t r = 0; r < weights->column->world && !groups; r++)
        groups = tsr_ds_list(tsr_ds_base_state(weights->files, weights->column->optims[r]), "param_groups");
    return groups ? tsr_ds_name_groups(weights, groups, out, err) : TSR_OK;
}

/* The union of two lists of names; NULL if out of memory. */
static const tsr_value *join_names(const tsr_ds_files *files, const tsr_value *a, const tsr_value *b, tsr_error *err)
{
    size_t count = a->count;
    tsr_map *names = tsr_map_new(files->checkpoint->host->allocator, a->count, err);
    const tsr_value **items =
        names ? tsr_arena_array(files->checkpoint->arena, a->count + b->count, sizeof *items, err) : NULL;
    tsr_status status = items ? tsr_ds_add_names(a, names, err) : TSR_E_NOMEM;
    if (status == TSR_OK && a->count) memcpy(items, a->items, a->count * sizeof *items);
    for (size_t i = 0; i < b->count && status == TSR_OK; i++)
        if (b->items[i]->kind != TSR_VALUE_STR || !tsr_map_get(names, b->items[i]->text, 0)) items[count++] = b->items[i];
    tsr_map_free(names);
    return status == TSR_OK ? tsr_value_items(files->checkpoint->arena, TSR_VALUE_LIST, items, count, err) : NULL;
}

static tsr_status join_group(const tsr_ds_files *files, const tsr_value **group, const tsr_value *more, tsr_error *err)
{
    const tsr_value *a = tsr_ds_list(*group, "params"), *b = tsr_ds_list(more, "params");
    if (!a || !b) return TSR_OK;
    const tsr_value *joined = join_names(files, a, b, err);
    const tsr_value **items = joined ? tsr_arena_array(files->checkpoint->arena, (*group)->count, sizeof *items, err) : NULL;
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < (*group)->count; i++) items[i] = (*group)->items[i] == a ? joined : (*group)->items[i];
    *group = tsr_value_items(files->checkpoint->arena, TSR_VALUE_DICT, items, (*group)->count, err);
    return *group ? TSR_OK : TSR_E_NOMEM;
}

/* Adds the parameters of another column's groups, `more`, to those of *groups, or sets *groups to `more` if it is NULL. The
 * stages of a pipeline have the same groups, with different parameters. `more` may be NULL. */
static tsr_status ds_join_groups(const tsr_ds_files *files, const tsr_value **groups, const tsr_value *more, tsr_error *err)
{
    const tsr_value *first = *groups;
    if (!first || !more) {
        if (more) *groups = more;
        return TSR_OK;
    }
    const tsr_value **items = tsr_arena_array(files->checkpoint->arena, first->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t g = 0; g < first->count; g++) {
        items[g] = first->items[g];
        TSR_TRY(join_group(files, &items[g], tsr_ds_item(more, g), err));
    }
    *groups = tsr_value_items(files->checkpoint->arena, TSR_VALUE_LIST, items, first->count, err);
    return *groups ? TSR_OK : TSR_E_NOMEM;
}

/* ---- deepspeed ---- */

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
    TSR_TRY(ds_states_add(&weights, &r->states, &r->odd, r->err));
    return ds_param_groups(&weights, groups, r->err);
}

static tsr_status read_plain(reading *r, const tsr_ds_column *column, tsr_ds_rows *trained, const tsr_value **groups)
{
    const tsr_ds_plain plain = {.files = &r->files,
                                .file = column->model,
                                .module = tsr_ds_dict(column->model->root, "module"),
                                .weights = trained,
                                .states = &r->states};
    return r->files.has_experts ? ds_expert_ranks_add(&plain, groups, r->err) : tsr_ds_plain_add(&plain, groups, r->err);
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
    if (status == TSR_OK) status = ds_join_groups(&r->files, &r->groups, groups, r->err);
    if (status == TSR_OK) status = tsr_ds_model_add(&r->files, column, &trained, &r->model, r->err);
    if (status == TSR_OK) status = tsr_ds_experts_add_rest(&r->files, &r->model, r->err);
    tsr_ds_rows_close(&trained);
    return status;
}

/* The value under "optimizer" in the first model states, or NULL. */
static const tsr_value *plain_optimizer(const tsr_ds_files *files)
{
    for (uint32_t c = 0; c < files->column_count; c++) {
        const tsr_value *optimizer =
            files->columns[c].model ? tsr_ds_dict(files->columns[c].model->root, "optimizer") : NULL;
        if (optimizer) return optimizer;
    }
    return NULL;
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
    const tsr_value *optimizer = r->files.zero ? tsr_ds_optimizer(first) : plain_optimizer(&r->files);
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
