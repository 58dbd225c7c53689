/* Reports layers of a pipeline whose files are missing. See deepspeed_layers.h. */
#include "formats/common/shown_names.h"
#include "formats/deepspeed/deepspeed_layers_parts.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { MOST_TRIED = 1 << 12, TRIED_BEYOND = 8 };

typedef struct missing_layers {
    const tsr_ds_layers *l;
    uint32_t at; /* index of the first file that was not passed yet */
    tsr_shown_names names;
    tsr_str first;
} missing_layers;

/* Whether the file of a layer and rank exists. Must be called in the order of the files. */
static bool is_there(missing_layers *m, uint32_t number, uint32_t rank)
{
    for (; m->at < m->l->count; m->at++) {
        const tsr_ds_name *name = &m->l->layers[m->at].name;
        if (name->model_rank > rank || (name->model_rank == rank && name->rank >= number)) break;
    }
    return m->at < m->l->count && m->l->layers[m->at].name.model_rank == rank && m->l->layers[m->at].name.rank == number;
}

static tsr_str file_of(const missing_layers *m, uint32_t number, uint32_t rank)
{
    const tsr_ds_name name = {
        .kind = TSR_DS_LAYER, .has_rank = m->l->files->tensor_ranks > 1, .rank = number, .model_rank = rank};
    return tsr_ds_name_text(m->l->files->checkpoint->arena, &name, m->l->err);
}

static tsr_status look_for(missing_layers *m, uint32_t number, uint32_t rank)
{
    tsr_checkpoint *checkpoint = m->l->files->checkpoint;
    if (is_there(m, number, rank)) return TSR_OK;
    const tsr_str file = file_of(m, number, rank);
    if (!file.data) return TSR_E_NOMEM;
    if (!m->first.data) m->first = file;
    tsr_shown_names_add(&m->names, file);
    TSR_TRY(tsr_checkpoint_implies(checkpoint, file, m->l->err));
    return tsr_store_find(checkpoint->store, file) == TSR_NO_FILE ? tsr_checkpoint_lacks(checkpoint, file, m->l->err)
                                                                  : TSR_OK;
}

static tsr_status report_missing(const missing_layers *m)
{
    if (!m->names.count) return TSR_OK;
    return tsr_ds_report(m->l->files->checkpoint, m->first, m->l->err,
                         "files of pipeline layers are missing or cannot be read: %s%s; copy them from where the checkpoint "
                         "was written",
                         m->names.text, tsr_shown_names_rest(&m->names));
}

/* Reports a tied layer whose file is missing. Its number is not stored, so the message lists the numbers without a file,
 * which are the ones that it may have. */
static tsr_status report_tied(missing_layers *m, uint32_t head)
{
    const tsr_str key = m->l->tied[head].key;
    tsr_shown_names names = {.used = 0};
    tsr_str first = {NULL, 0};
    uint32_t last = 0;
    for (uint32_t i = 0; i < m->l->count; i++)
        if (m->l->layers[i].name.rank > last) last = m->l->layers[i].name.rank;
    m->at = 0;
    for (uint32_t number = 0; number <= last && number < TSR_DS_MOST_LAYERS; number++) {
        if (m->l->named[number] || is_there(m, number, 0)) continue;
        const tsr_str file = file_of(m, number, 0);
        if (!file.data) return TSR_E_NOMEM;
        if (!first.data) first = file;
        tsr_shown_names_add(&names, file);
    }
    return tsr_ds_report(
        m->l->files->checkpoint, first.data ? first : TSR_STR(""), m->l->err,
        "no file of a layer holds the weights of the tied layer '%.*s'; it may be %s%s; copy it from where the "
        "checkpoint was written",
        TSR_STR_ARG(key), names.count ? names.text : "one with a higher number", tsr_shown_names_rest(&names));
}

/* Whether the file of a tied layer exists. If no names of weights are stored, only its buffers are known, which may fit any
 * file. */
static bool has_file(const tsr_ds_layers *l, uint32_t head)
{
    if (l->has_shapes) return l->owners[head] || l->unsure[head];
    for (uint32_t i = 0; i < l->count; i++)
        if (!l->named[l->layers[i].name.rank % TSR_DS_MOST_LAYERS] && tsr_ds_layers_fit(l, &l->layers[i], head)) return true;
    return false;
}

static tsr_status check_tied(missing_layers *m)
{
    for (uint32_t t = 0; t < m->l->tied_count; t++)
        if (m->l->tied[t].head == t && !has_file(m->l, t)) TSR_TRY(report_tied(m, t));
    for (uint32_t t = 0; t < m->l->tied_count; t++)
        if (m->l->unsure[t])
            TSR_TRY(
                tsr_finding_add_at(m->l->files->checkpoint->findings, (tsr_rated_rule){"parts/unnamed-states", TSR_NOTE},
                                   (tsr_place){TSR_STR(""), TSR_NO_POSITION, {NULL, 0}}, m->l->err,
                                   "several files of layers may be those of the tied layer '%.*s'; their weights are listed "
                                   "by the numbers of the layers",
                                   TSR_STR_ARG(m->l->tied[t].key)));
    return TSR_OK;
}

static tsr_str key_of_shape(const tsr_entry *tensor)
{
    return (tsr_str){(const char *)tensor->shape, tensor->ndim * sizeof *tensor->shape};
}

/* Collects the shapes of all tensors in files of layers. */
static tsr_status list_shapes(const tsr_ds_layers *l, tsr_map *shapes)
{
    for (uint32_t i = 0; i < l->count; i++)
        for (size_t k = 0; k < tsr_ds_count(l->layers[i].root); k++) {
            const tsr_entry *tensor = tsr_ds_tensor(l->layers[i].root->items[2 * k + 1]);
            if (tensor && tensor->ndim) TSR_TRY(tsr_map_put(shapes, key_of_shape(tensor), 1, NULL, NULL, l->err));
        }
    return TSR_OK;
}

static tsr_status check_states(const tsr_ds_layers *l, const tsr_ds_file *model, const tsr_map *shapes)
{
    const tsr_str name = tsr_ds_file_name(l->files, model);
    const tsr_value *optimizer = tsr_ds_dict(model->root, "optimizer"),
                    *inner = tsr_ds_dict(optimizer, "optimizer_state_dict");
    const tsr_value *states = tsr_ds_dict(inner ? inner : optimizer, "state");
    for (size_t i = 0; i < tsr_ds_count(states); i++) {
        const tsr_entry *state = tsr_ds_tensor(tsr_ds_get(states->items[2 * i + 1], "exp_avg"));
        if (!state) state = tsr_ds_tensor(tsr_ds_get(states->items[2 * i + 1], "momentum_buffer"));
        if (!state || !state->ndim || tsr_map_get(shapes, key_of_shape(state), 0)) continue;
        return tsr_ds_report(
            l->files->checkpoint, name, l->err,
            "%.*s: the optimizer has states of a weight whose shape no layer_NN-model_states.pt file has: files of "
            "layers are missing; copy them from where the checkpoint was written",
            TSR_STR_ARG(name));
    }
    return TSR_OK;
}

/* Without ZeRO, the names of weights are not stored, so a missing layer is only noticed if no other layer has weights with
 * its shapes. */
static tsr_status check_all_states(const tsr_ds_layers *l)
{
    const tsr_ds_files *files = l->files;
    tsr_map *shapes = tsr_map_new(files->checkpoint->host->allocator, 0, l->err);
    tsr_status status = shapes ? list_shapes(l, shapes) : TSR_E_NOMEM;
    for (uint32_t c = 0; c < files->column_count && status == TSR_OK; c++)
        if (files->columns[c].model) status = check_states(l, files->columns[c].model, shapes);
    tsr_map_free(shapes);
    return status;
}

/* For servers that cannot list their files: frozen and tied layers have no stored name, so every number may have a file, and
 * so may a few beyond the highest known number. */
static tsr_status imply_others(missing_layers *m, uint32_t rank)
{
    uint32_t beyond = TRIED_BEYOND;
    for (uint32_t number = 0; number < TSR_DS_MOST_LAYERS; number++)
        if (m->l->named[number]) beyond = number + 1 + TRIED_BEYOND;
    for (uint32_t i = 0; i < m->l->count; i++)
        if (m->l->layers[i].name.rank >= beyond - TRIED_BEYOND) beyond = m->l->layers[i].name.rank + 1 + TRIED_BEYOND;
    m->at = 0;
    for (uint32_t number = 0; number < beyond && number < MOST_TRIED; number++) {
        if (m->l->named[number] || is_there(m, number, rank)) continue;
        const tsr_str file = file_of(m, number, rank);
        if (!file.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(m->l->files->checkpoint, file, m->l->err));
    }
    return TSR_OK;
}

static tsr_status check_layers(missing_layers *m)
{
    const tsr_ds_files *files = m->l->files;
    for (uint32_t rank = 0; rank < files->tensor_ranks; rank++)
        for (uint32_t number = 0; number < TSR_DS_MOST_LAYERS; number++)
            if (m->l->named[number]) TSR_TRY(look_for(m, number, rank));
    TSR_TRY(report_missing(m));
    for (uint32_t rank = 0; rank < files->tensor_ranks; rank++) TSR_TRY(imply_others(m, rank));
    TSR_TRY(check_tied(m));
    if (!m->l->count && !m->names.count)
        return tsr_ds_report(
            files->checkpoint, TSR_STR(""), m->l->err,
            "there are no layer_NN-model_states.pt files, which have the weights of a pipeline; copy them from where "
            "the checkpoint was written");
    return files->zero || !m->l->count ? TSR_OK : check_all_states(m->l);
}

tsr_status tsr_ds_layers_check(const tsr_ds_files *files, tsr_error *err)
{
    missing_layers m = {.l = tsr_ds_layers_of(files, err)};
    return m.l ? check_layers(&m) : TSR_OK;
}
