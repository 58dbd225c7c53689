/* See deepspeed_groups.h. */
#include "formats/deepspeed/deepspeed_groups.h"

#include "formats/deepspeed/deepspeed_experts.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/try.h"

/* ---- the experts of each layer ---- */

/* Counts the experts of the layer that the weights in a file belong to: as many as the model states count, or at least up to
 * this expert if they count none. */
static tsr_status count_expert(tsr_ds_groups *g, const tsr_value *layers, const tsr_ds_file *file, tsr_error *err)
{
    uint64_t stated = 0;
    tsr_ds_number(tsr_ds_item(layers, file->name.rank), &stated);
    const uint32_t experts = stated && stated < UINT32_MAX ? (uint32_t)stated : file->name.expert + 1;
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *key = file->root->items[2 * i];
        const size_t prefix = key->kind == TSR_VALUE_STR ? tsr_ds_expert_prefix(key->text) : 0;
        uint32_t *known;
        bool fresh;
        if (!prefix) continue;
        TSR_TRY(tsr_map_put(g->experts, (tsr_str){key->text.data, prefix}, experts, &known, &fresh, err));
        if (*known < experts) *known = experts;
    }
    return TSR_OK;
}

static tsr_status count_experts(tsr_ds_groups *g, tsr_error *err)
{
    uint32_t count;
    const tsr_ds_file *files = tsr_ds_first(g->files, TSR_DS_EXPERT, &count);
    const tsr_value *layers = tsr_ds_list(g->column->model->root, "num_experts");
    g->experts = tsr_map_new(g->files->checkpoint->host->allocator, 0, err);
    if (!g->experts) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) TSR_TRY(count_expert(g, layers, &files[i], err));
    return TSR_OK;
}

static bool is_true(const tsr_value *value)
{
    return value && value->kind == TSR_VALUE_BOOL && value->as.boolean;
}

tsr_status tsr_ds_groups_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_groups *out, tsr_error *err)
{
    *out = (tsr_ds_groups){.files = files, .column = column};
    if (!files->has_experts) return TSR_OK;
    for (uint32_t r = 0; r < column->world && !out->partitions; r++)
        out->partitions = tsr_ds_list(tsr_ds_optimizer(column->optims[r]), "partition_count");
    out->data_first =
        is_true(tsr_ds_get(tsr_ds_dict(column->model->root, "ds_config"), "use_data_before_expert_parallelism"));
    return count_experts(out, err);
}

void tsr_ds_groups_close(tsr_ds_groups *groups)
{
    tsr_map_free(groups->experts);
    groups->experts = NULL;
}

/* ---- ranks ---- */

uint32_t tsr_ds_groups_split(const tsr_ds_groups *groups, uint32_t group)
{
    uint64_t sharers = 0;
    if (!groups->experts || !tsr_ds_number(tsr_ds_item(groups->partitions, group), &sharers)) return 1;
    return sharers && groups->column->world % sharers == 0 ? groups->column->world / (uint32_t)sharers : 1;
}

tsr_status tsr_ds_groups_sharers(const tsr_ds_groups *groups, uint32_t group, uint32_t expert_rank, tsr_ds_sharers *out,
                                 tsr_error *err)
{
    const uint32_t split = tsr_ds_groups_split(groups, group), world = groups->column->world / split;
    *out = (tsr_ds_sharers){
        .group = group, .expert_rank = expert_rank, .expert_ranks = split, .world = world, .optims = groups->column->optims};
    if (split == 1) return TSR_OK;
    out->optims = tsr_arena_array(groups->files->checkpoint->arena, world, sizeof *out->optims, err);
    if (!out->optims) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < world; r++)
        out->optims[r] = groups->column->optims[groups->data_first ? expert_rank * world + r : expert_rank + r * split];
    return TSR_OK;
}

/* ---- names ---- */

/* The number at the beginning of `text`. *size is its length, or 0 if there is none. */
static uint64_t number_at(tsr_str text, size_t *size)
{
    uint64_t number = 0;
    for (*size = 0; *size < text.size && *size < 9 && text.data[*size] >= '0' && text.data[*size] <= '9'; ++*size)
        number = number * 10 + (uint64_t)(text.data[*size] - '0');
    return number;
}

tsr_status tsr_ds_groups_name(const tsr_ds_groups *groups, uint32_t group, uint32_t expert_rank, tsr_str *name,
                              tsr_error *err)
{
    const uint32_t split = tsr_ds_groups_split(groups, group);
    size_t digits;
    if (split == 1) return TSR_OK;
    const size_t prefix = tsr_ds_expert_prefix(*name);
    const uint32_t experts = tsr_map_get(groups->experts, (tsr_str){name->data, prefix}, 0), own = experts / split;
    const uint64_t number = number_at((tsr_str){name->data + prefix, name->size - prefix}, &digits);
    TSR_FAIL_IF(
        !prefix || !digits || experts % split || number >= own, err, TSR_E_FORMAT,
        "'%.*s' is in a param group of %u of %u ranks ('partition_count'), but it is not one of the %u experts of its layer "
        "that such a rank holds ('num_experts', layer_*_expert_*)",
        TSR_STR_ARG(*name), groups->column->world / split, groups->column->world, own);
    *name = tsr_arena_format(groups->files->checkpoint->arena, err, "%.*s%llu%.*s", (int)prefix, name->data,
                             (unsigned long long)(expert_rank * (uint64_t)own + number), (int)(name->size - prefix - digits),
                             name->data + prefix + digits);
    return name->data ? TSR_OK : TSR_E_NOMEM;
}
