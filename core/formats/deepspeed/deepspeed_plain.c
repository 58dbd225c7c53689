/* See deepspeed_module.h. */
#include "formats/deepspeed/deepspeed_module.h"

#include "formats/common/file_names.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

typedef struct plain {
    tsr_checkpoint *checkpoint;
    const tsr_ds_plain *from;
    bool is_stage;                   /* from a PipelineModule: the numbers count the parameters of one stage */
    bool has_expert_groups;          /* the experts are in separate param groups */
    const tsr_value *state, *groups; /* of the optimizer: {id: {key: …}}, [{params: [id, …]}] */
    const tsr_value *fp32;           /* fp32_groups: one list of tensors per group, or NULL */
    tsr_map *buffers;                /* names of buffers */
    tsr_ds_numbered *numbered;
    uint32_t count;
    tsr_ds_candidate *candidates;
    uint32_t candidate_count;
    tsr_vec ties; /* of tied_name */
    tsr_error *err;
} plain;

/* A second name of a candidate. */
typedef struct tied_name {
    tsr_str name;
    uint32_t candidate;
} tied_name;

/* ---- candidates ---- */

static bool same_bytes(const tsr_entry *a, const tsr_entry *b)
{
    return a->storage_id && a->storage_id == b->storage_id && a->ndim == b->ndim && a->chunk_count == 1 &&
           b->chunk_count == 1 && a->chunks[0].byte_offset == b->chunks[0].byte_offset &&
           a->chunks[0].byte_length == b->chunks[0].byte_length;
}

/* A key for the storage of a tensor. Ids are unique within a file, and experts are in other files than the rest. */
static uint64_t storage_of(const tsr_entry *tensor)
{
    return tensor->storage_id | (uint64_t)(tensor->chunk_count ? tensor->chunks[0].file : TSR_NO_FILE) << 32;
}

/* The candidate that a tensor belongs to, or UINT32_MAX. The optimizer has each parameter once, so a tied weight is a
 * candidate only under its first name. */
static uint32_t candidate_of(const plain *p, tsr_map *storages, const tsr_entry *tensor)
{
    const uint64_t storage = storage_of(tensor);
    const uint32_t i = tensor->storage_id
                           ? tsr_map_get(storages, (tsr_str){(const char *)&storage, sizeof storage}, UINT32_MAX)
                           : UINT32_MAX;
    return i != UINT32_MAX && same_bytes(p->candidates[i].tensor, tensor) ? i : UINT32_MAX;
}

static tsr_status add_tie(plain *p, tsr_str name, uint32_t candidate)
{
    tied_name *added = tsr_vec_push(&p->ties, p->err);
    if (!added) return TSR_E_NOMEM;
    *added = (tied_name){name, candidate};
    return TSR_OK;
}

static tsr_status add_candidate(plain *p, tsr_map *storages, tsr_str name, const tsr_entry *tensor)
{
    const uint32_t same = candidate_of(p, storages, tensor);
    if (same != UINT32_MAX) return add_tie(p, name, same);
    tsr_ds_candidate *added = &p->candidates[p->candidate_count];
    *added = (tsr_ds_candidate){name, tensor, false, p->has_expert_groups && tsr_ds_expert_prefix(name), storage_of(tensor)};
    return tsr_map_put(storages, (tsr_str){(const char *)&added->storage, sizeof added->storage}, p->candidate_count++, NULL,
                       NULL, p->err);
}

static tsr_status list_candidates(plain *p, tsr_map *storages)
{
    const tsr_value *module = p->from->module;
    p->candidates = tsr_arena_array(p->checkpoint->arena, tsr_ds_count(module), sizeof *p->candidates, p->err);
    if (!p->candidates) return TSR_E_NOMEM;
    for (size_t i = 0; i < tsr_ds_count(module); i++) {
        const tsr_value *name = module->items[2 * i];
        const tsr_entry *tensor = tsr_ds_tensor(module->items[2 * i + 1]);
        if (name->kind != TSR_VALUE_STR || !tensor || tsr_map_get(p->buffers, name->text, 0)) continue;
        TSR_TRY(add_candidate(p, storages, name->text, tensor));
    }
    return TSR_OK;
}

/* The states of a parameter. The dictionary is sorted by id and lacks the ids without states. */
static const tsr_value *states_of(const plain *p, uint32_t id)
{
    const size_t pairs = tsr_ds_count(p->state);
    uint64_t number;
    for (size_t i = id < pairs ? id + 1 : pairs; i-- > 0;) {
        if (!tsr_ds_number(p->state->items[2 * i], &number) || number < id) return NULL;
        if (number == id) return tsr_ds_kind_or_null(p->state->items[2 * i + 1], TSR_VALUE_DICT);
    }
    return NULL;
}

static const tsr_entry *shaped_by(const tsr_value *states)
{
    for (size_t i = 0; i < tsr_ds_count(states); i++) {
        const tsr_entry *tensor = tsr_ds_tensor(states->items[2 * i + 1]);
        if (tensor && tensor->ndim) return tensor;
    }
    return NULL;
}

/* Whether DeepSpeed split this group from one of the user's, because it has the experts. */
static bool is_of_experts(const tsr_value *group)
{
    const tsr_value *moe = tsr_ds_get(group, "moe");
    return moe && moe->kind == TSR_VALUE_BOOL && moe->as.boolean;
}

/* Lists the optimizer's parameters. Their ids count through the groups in order. */
static tsr_status list_numbered(plain *p)
{
    size_t count = 0;
    for (size_t g = 0; g < tsr_ds_count(p->groups); g++) count += tsr_ds_count(tsr_ds_list(p->groups->items[g], "params"));
    p->numbered = tsr_arena_array(p->checkpoint->arena, count, sizeof *p->numbered, p->err);
    if (!p->numbered || count > UINT32_MAX / 2) return TSR_E_NOMEM;
    for (size_t g = 0; g < tsr_ds_count(p->groups); g++) {
        const tsr_value *copies = tsr_ds_kind_or_null(tsr_ds_item(p->fp32, g), TSR_VALUE_LIST);
        for (size_t i = 0; i < tsr_ds_count(tsr_ds_list(p->groups->items[g], "params")); i++) {
            const tsr_entry *fp32 = tsr_ds_tensor(tsr_ds_item(copies, i)), *shaped = shaped_by(states_of(p, p->count));
            p->numbered[p->count++] =
                (tsr_ds_numbered){fp32 ? fp32 : shaped, fp32, UINT32_MAX, is_of_experts(p->groups->items[g])};
        }
    }
    return TSR_OK;
}

/* ---- matching ---- */

static bool fits(const tsr_ds_numbered *n, const tsr_ds_candidate *c)
{
    return !n->shaped || tsr_entry_same_shape(n->shaped, c->tensor);
}

/* Whether the user had one group. DeepSpeed may have split it: the experts follow, in as many groups as their size requires,
 * which have the name of their expert-parallel group. */
static bool is_one_group(const plain *p)
{
    const tsr_value *name = NULL;
    for (size_t g = 0; g < tsr_ds_count(p->groups); g++) {
        const tsr_value *group = p->groups->items[g], *its = tsr_ds_get(group, "name");
        if (!is_of_experts(group)) {
            if (g) return false;
        } else if (!its || its->kind != TSR_VALUE_STR || (name && !tsr_str_equal(name->text, its->text))) return false;
        else name = its;
    }
    return true;
}

/* Gives the parameters in the groups of experts, or those in the other groups, the candidates of the same kind one by one.
 * Unless `assigns`, only finds out whether there are as many, of the same shapes. */
static bool pair_in_order(const plain *p, bool experts, bool assigns)
{
    uint32_t c = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->numbered[i].is_expert != experts) continue;
        while (c < p->candidate_count && p->candidates[c].is_expert != experts) c++;
        if (c == p->candidate_count || !fits(&p->numbered[i], &p->candidates[c])) return false;
        if (assigns) {
            p->numbered[i].candidate = c;
            p->candidates[c].taken = true;
        }
        c++;
    }
    while (c < p->candidate_count && p->candidates[c].is_expert != experts) c++;
    return c == p->candidate_count;
}

/* Undoes pairs whose float32 copies are not those of the weights: the user listed the parameters in another order. */
static tsr_status check_order(const plain *p, bool experts)
{
    bool same = true;
    for (uint32_t i = 0; i < p->count && same; i++) {
        const tsr_ds_numbered *n = &p->numbered[i];
        if (n->is_expert != experts || n->candidate == UINT32_MAX || !n->fp32) continue;
        TSR_TRY(tsr_ds_rounds_to(p->checkpoint, n->fp32, p->candidates[n->candidate].tensor, &same, p->err));
    }
    for (uint32_t i = 0; i < p->count && !same; i++) {
        tsr_ds_numbered *n = &p->numbered[i];
        if (n->is_expert != experts || n->candidate == UINT32_MAX) continue;
        p->candidates[n->candidate].taken = false;
        n->candidate = UINT32_MAX;
    }
    return TSR_OK;
}

/* Finds two parameters that only the order names: they have the same shape and no copies. *a is NULL if there are none. */
static tsr_status find_alike(const plain *p, bool experts, const tsr_ds_numbered **a, const tsr_ds_numbered **b)
{
    tsr_map *shapes = tsr_map_new(p->checkpoint->host->allocator, 0, p->err);
    tsr_status status = shapes ? TSR_OK : TSR_E_NOMEM;
    *a = NULL;
    for (uint32_t i = 0; i < p->count && status == TSR_OK && !*a; i++) {
        const tsr_ds_numbered *n = &p->numbered[i];
        uint32_t *first;
        bool is_new = true;
        if (n->is_expert != experts || n->candidate == UINT32_MAX || n->fp32 || !n->shaped) continue;
        const tsr_str shape = {(const char *)n->shaped->shape, n->shaped->ndim * sizeof *n->shaped->shape};
        status = tsr_map_put(shapes, shape, i, &first, &is_new, p->err);
        if (status != TSR_OK || is_new) continue;
        *a = &p->numbered[*first];
        *b = n;
    }
    tsr_map_free(shapes);
    return status;
}

/* Reports once per checkpoint that only the order names the states, although expert-parallel ranks have further optimizers. */
static tsr_status report_order(const plain *p)
{
    const tsr_ds_numbered *a, *b = NULL;
    if (p->from->file->name.kind != TSR_DS_MODEL) return TSR_OK;
    TSR_TRY(find_alike(p, false, &a, &b));
    if (!a) TSR_TRY(find_alike(p, true, &a, &b));
    if (!a) return TSR_OK;
    return tsr_finding_add_at(
        p->checkpoint->findings, (tsr_rated_rule){"parts/unnamed-states", TSR_NOTE},
        (tsr_place){tsr_ds_file_name(p->from->files, p->from->file), TSR_NO_POSITION, {NULL, 0}}, p->err,
        "the optimizer's states have no names and are named by the order of the module's parameters; if the optimizer was "
        "given them in another order, those of equal shape, such as '%.*s' and '%.*s', have the wrong names",
        TSR_STR_ARG(p->candidates[a->candidate].name), TSR_STR_ARG(p->candidates[b->candidate].name));
}

/* If the user had only one group with all parameters, it usually has the order of the module. */
static tsr_status match_in_order(const plain *p)
{
    if (!is_one_group(p)) return TSR_OK;
    for (int experts = 0; experts < 2; experts++) {
        if (!pair_in_order(p, experts, false)) continue;
        pair_in_order(p, experts, true);
        TSR_TRY(check_order(p, experts));
    }
    return report_order(p);
}

static tsr_status name_of(const plain *p, uint32_t id, tsr_str *out)
{
    const uint32_t candidate = p->numbered[id].candidate;
    if (candidate != UINT32_MAX) *out = p->candidates[candidate].name;
    else if (p->is_stage)
        *out = tsr_arena_format(p->checkpoint->arena, p->err, "mp_rank_%02u.%u", p->from->file->name.model_rank, id);
    else if (p->from->rank) *out = tsr_arena_format(p->checkpoint->arena, p->err, "%s.%u", p->from->rank, id);
    else *out = tsr_arena_format(p->checkpoint->arena, p->err, "%u", id);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether the float32 weights are needed for the requested part, or because all parts are opened. */
static bool needs_weights(const tsr_checkpoint *checkpoint)
{
    return !checkpoint->options.part.data || tsr_str_equal(checkpoint->options.part, TSR_STR("model"));
}

/* DeepSpeed itself loads the checkpoint, so this is not an error; only the part "model" cannot be read. */
static tsr_status report_unreadable(const plain *p, tsr_str file, tsr_str message)
{
    if (!message.data) return TSR_E_NOMEM;
    if (!p->checkpoint->incomplete.size) p->checkpoint->incomplete = message;
    return tsr_finding_add_at(p->checkpoint->findings, (tsr_rated_rule){"parts/unnamed-states", TSR_WARNING},
                              (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, p->err, "%.*s", TSR_STR_ARG(message));
}

/* Reports the parameters of a pipeline stage, whose names are in none of the files. */
static tsr_status report_stage(const plain *p)
{
    const tsr_str file = tsr_ds_file_name(p->from->files, p->from->file);
    if (p->fp32 && needs_weights(p->checkpoint))
        return report_unreadable(
            p, file,
            tsr_arena_format(
                p->checkpoint->arena, p->err,
                "%.*s: the optimizer's float32 weights of a pipeline's stage have no names without ZeRO; open the 16-bit "
                "weights with --part module, or save the checkpoint with ZeRO stage 1, which stores names",
                TSR_STR_ARG(file)));
    return tsr_finding_add_at(
        p->checkpoint->findings, (tsr_rated_rule){"parts/unnamed-states", TSR_NOTE},
        (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, p->err,
        "the optimizer's states of %u parameters are listed by their number in the pipeline's stage, because "
        "without ZeRO no file has their names; weights of tied layers are listed by the number of the layer, too",
        p->count);
}

/* Whether a float32 copy without a name is that of none of the weights. */
static tsr_status is_of_none(const plain *p, const tsr_ds_numbered *n, bool *out)
{
    bool same = false;
    for (uint32_t c = 0; c < p->candidate_count && !same; c++) {
        const tsr_ds_candidate *candidate = &p->candidates[c];
        if (candidate->taken || candidate->is_expert != n->is_expert || !fits(n, candidate)) continue;
        TSR_TRY(tsr_ds_rounds_to(p->checkpoint, n->fp32, candidate->tensor, &same, p->err));
    }
    *out = !same;
    return TSR_OK;
}

/* Whether there is one: then the weights and the optimizer's state are of different steps. */
static tsr_status has_of_none(const plain *p, bool *out)
{
    *out = false;
    for (uint32_t i = 0; i < p->count && !*out; i++)
        if (p->numbered[i].candidate == UINT32_MAX && p->numbered[i].fp32) TSR_TRY(is_of_none(p, &p->numbered[i], out));
    return TSR_OK;
}

/* Reports parameters that could not be named. If a float32 copy has no name, a weight would be lost. */
static tsr_status report_unnamed(const plain *p)
{
    tsr_shown_names names = {.used = 0};
    const tsr_str file = tsr_ds_file_name(p->from->files, p->from->file);
    uint32_t unnamed = 0;
    for (uint32_t i = 0; i < p->count; i++) unnamed += p->numbered[i].candidate == UINT32_MAX;
    if (unnamed == 0) return TSR_OK;
    if (p->is_stage) return report_stage(p);
    for (uint32_t c = 0; c < p->candidate_count; c++)
        if (!p->candidates[c].taken) tsr_shown_names_add(&names, p->candidates[c].name);
    bool differs = false;
    if (p->fp32 && needs_weights(p->checkpoint)) TSR_TRY(has_of_none(p, &differs));
    if (differs)
        return tsr_ds_report(p->checkpoint, file, p->err,
                             "%.*s: float32 weights of the optimizer are copies of none of the weights, of which these have "
                             "none: %s%s; the files are of different steps",
                             TSR_STR_ARG(file), names.text, tsr_shown_names_rest(&names));
    if (p->fp32 && needs_weights(p->checkpoint))
        return report_unreadable(
            p, file,
            tsr_arena_format(p->checkpoint->arena, p->err,
                             "%.*s: %u float32 weights of the optimizer have no names, and each of them matches several "
                             "weights in shape and values: %s%s; open the 16-bit weights with --part module, or save the "
                             "checkpoint with ZeRO stage 1, which stores names",
                             TSR_STR_ARG(file), unnamed, names.text, tsr_shown_names_rest(&names)));
    return tsr_finding_add_at(
        p->checkpoint->findings, (tsr_rated_rule){"parts/unnamed-states", TSR_NOTE},
        (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, p->err,
        "the optimizer's states of %u parameters are listed by number, because they may belong to any of %s%s", unnamed,
        names.text, tsr_shown_names_rest(&names));
}

static tsr_status add_parameter(const plain *p, uint32_t id)
{
    tsr_ds_rows *weights = p->from->weights, *states = p->from->states;
    tsr_str name;
    const tsr_value *dict = states_of(p, id);
    TSR_TRY(name_of(p, id, &name));
    for (size_t i = 0; i < tsr_ds_count(dict); i++)
        if (dict->items[2 * i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_ds_rows_add(states, name, dict->items[2 * i]->text, dict->items[2 * i + 1], p->err));
    if (!p->numbered[id].fp32 || p->numbered[id].candidate == UINT32_MAX) return TSR_OK;
    tsr_entry *copy = TSR_ARENA_NEW(p->checkpoint->arena, tsr_entry, p->err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *p->numbered[id].fp32;
    if (copy->storage_id) copy->storage_id += p->from->file->storage_base;
    const tsr_value *value = tsr_value_tensor(p->checkpoint->arena, copy, p->err);
    return value ? tsr_ds_rows_add(weights, name, TSR_STR(""), value, p->err) : TSR_E_NOMEM;
}

/* A param group with names instead of numbers. `*id` is the number of its first parameter, and is advanced past the
 * group. */
static tsr_status name_group(const plain *p, const tsr_value *group, uint32_t *id, const tsr_value **out)
{
    tsr_arena *arena = p->checkpoint->arena;
    const tsr_value *params = tsr_ds_list(group, "params");
    *out = group;
    if (!params) return TSR_OK;
    const tsr_value **items = tsr_arena_array(arena, group->count, sizeof *items, p->err);
    const tsr_value **names = tsr_arena_array(arena, params->count, sizeof *names, p->err);
    if (!items || !names) return TSR_E_NOMEM;
    for (size_t i = 0; i < params->count; i++) {
        tsr_str name;
        TSR_TRY(name_of(p, (*id)++, &name));
        names[i] = tsr_value_str(arena, name, p->err);
        if (!names[i]) return TSR_E_NOMEM;
    }
    const tsr_value *list = tsr_value_items(arena, TSR_VALUE_LIST, names, params->count, p->err);
    for (size_t i = 0; i < group->count; i++) items[i] = group->items[i] == params ? list : group->items[i];
    *out = list ? tsr_value_items(arena, TSR_VALUE_DICT, items, group->count, p->err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status name_groups(const plain *p, const tsr_value **out)
{
    uint32_t id = 0;
    const tsr_value **items = tsr_arena_array(p->checkpoint->arena, tsr_ds_count(p->groups), sizeof *items, p->err);
    if (!items) return TSR_E_NOMEM;
    for (size_t g = 0; g < tsr_ds_count(p->groups); g++) TSR_TRY(name_group(p, p->groups->items[g], &id, &items[g]));
    *out = tsr_value_items(p->checkpoint->arena, TSR_VALUE_LIST, items, tsr_ds_count(p->groups), p->err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Adds the float32 copies under the second names, too. They share a storage as the weights do. */
static tsr_status add_ties(const plain *p)
{
    tsr_ds_rows *weights = p->from->weights;
    const tied_name *ties = p->ties.items;
    for (size_t i = 0; i < p->ties.count; i++) {
        const tsr_value *copy = tsr_ds_rows_get(weights, p->candidates[ties[i].candidate].name, TSR_STR(""));
        if (copy) TSR_TRY(tsr_ds_rows_add(weights, ties[i].name, TSR_STR(""), copy, p->err));
    }
    return TSR_OK;
}

static tsr_status list_both(plain *p)
{
    tsr_map *storages = tsr_map_new(p->checkpoint->host->allocator, 0, p->err);
    if (!storages) return TSR_E_NOMEM;
    const tsr_status status = list_candidates(p, storages);
    tsr_map_free(storages);
    return status == TSR_OK ? list_numbered(p) : status;
}

static tsr_status add_all(plain *p, const tsr_value **groups)
{
    TSR_TRY(list_both(p));
    TSR_TRY(match_in_order(p));
    TSR_TRY(tsr_ds_match(p->checkpoint, p->numbered, p->count, p->candidates, p->candidate_count, p->err));
    TSR_TRY(report_unnamed(p));
    for (uint32_t id = 0; id < p->count; id++) TSR_TRY(add_parameter(p, id));
    TSR_TRY(add_ties(p));
    return p->groups ? name_groups(p, groups) : TSR_OK;
}

/* Lists the names of buffers, which are never trained. The model states have them. */
static tsr_status list_buffers(plain *p)
{
    const tsr_ds_files *files = p->from->files;
    p->buffers = tsr_map_new(p->checkpoint->host->allocator, 0, p->err);
    if (!p->buffers) return TSR_E_NOMEM;
    for (uint32_t c = 0; c < files->column_count; c++) {
        const tsr_ds_file *model = files->columns[c].model;
        if (model && model->name.model_rank == p->from->file->name.model_rank)
            TSR_TRY(tsr_ds_add_names(tsr_ds_list(model->root, "buffer_names"), p->buffers, p->err));
    }
    return TSR_OK;
}

static bool has_expert_groups(const tsr_value *groups)
{
    size_t g = 0;
    while (g < tsr_ds_count(groups) && !is_of_experts(groups->items[g])) g++;
    return g < tsr_ds_count(groups);
}

/* Begins with the optimizer of a file. `out` must be closed in any case. */
static tsr_status open_plain(const tsr_ds_plain *from, plain *out, tsr_error *err)
{
    const tsr_ds_files *files = from->files;
    const tsr_value *optimizer = tsr_ds_dict(from->file->root, "optimizer"),
                    *inner = tsr_ds_dict(optimizer, "optimizer_state_dict");
    *out = (plain){.checkpoint = files->checkpoint,
                   .from = from,
                   .is_stage = files->has_layers,
                   .err = err,
                   .fp32 = tsr_ds_list(optimizer, "fp32_groups"),
                   .ties = tsr_vec_of(files->checkpoint->host->allocator, sizeof(tied_name))};
    if (!inner) inner = optimizer;
    out->state = tsr_ds_dict(inner, "state");
    out->groups = tsr_ds_list(inner, "param_groups");
    out->has_expert_groups = has_expert_groups(out->groups);
    return list_buffers(out);
}

static void close_plain(plain *p)
{
    tsr_map_free(p->buffers);
    tsr_vec_free(&p->ties);
}

tsr_status tsr_ds_plain_fits(const tsr_ds_plain *from, bool *fits, tsr_error *err)
{
    plain p;
    tsr_status status = open_plain(from, &p, err);
    *fits = false;
    if (status == TSR_OK && p.groups) status = list_both(&p);
    if (status == TSR_OK && p.groups)
        *fits = is_one_group(&p) && pair_in_order(&p, false, false) && pair_in_order(&p, true, false);
    close_plain(&p);
    return status;
}

tsr_status tsr_ds_plain_add(const tsr_ds_plain *from, const tsr_value **groups, tsr_error *err)
{
    plain p;
    const tsr_ds_files *files = from->files;
    const tsr_str file = tsr_ds_file_name(files, from->file);
    if (tsr_ds_get(tsr_ds_dict(from->file->root, "optimizer"), "fp32_groups_flat") && needs_weights(files->checkpoint))
        TSR_TRY(tsr_ds_report(files->checkpoint, file, err,
                              "%.*s: the optimizer's float32 weights are in flat buffers without names "
                              "('fp32_groups_flat'), which are not supported",
                              TSR_STR_ARG(file)));
    tsr_status status = open_plain(from, &p, err);
    if (status == TSR_OK && p.groups) status = add_all(&p, groups);
    close_plain(&p);
    return status;
}
