/* See deepspeed_weights.h. */
#include "formats/deepspeed/deepspeed_weights.h"

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_module.h"
#include "tessera/sys/layout.h"
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

/* Opens the groups of a column. `out` must be closed in any case. */
static tsr_status ds_groups_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_groups *out, tsr_error *err)
{
    *out = (tsr_ds_groups){.files = files, .column = column};
    if (!files->has_experts) return TSR_OK;
    for (uint32_t r = 0; r < column->world && !out->partitions; r++)
        out->partitions = tsr_ds_list(tsr_ds_optimizer(column->optims[r]), "partition_count");
    out->data_first =
        is_true(tsr_ds_get(tsr_ds_dict(column->model->root, "ds_config"), "use_data_before_expert_parallelism"));
    return count_experts(out, err);
}

static void ds_groups_close(tsr_ds_groups *groups)
{
    tsr_map_free(groups->experts);
    groups->experts = NULL;
}

/* ---- ranks ---- */

/* The number of expert-parallel ranks of a group, at least 1. */
static uint32_t ds_groups_split(const tsr_ds_groups *groups, uint32_t group)
{
    uint64_t sharers = 0;
    if (!groups->experts || !tsr_ds_number(tsr_ds_item(groups->partitions, group), &sharers)) return 1;
    return sharers && groups->column->world % sharers == 0 ? groups->column->world / (uint32_t)sharers : 1;
}

/* Finds the ranks that share a group on an expert-parallel rank. */
static tsr_status ds_groups_sharers(const tsr_ds_groups *groups, uint32_t group, uint32_t expert_rank, tsr_ds_sharers *out,
                                    tsr_error *err)
{
    const uint32_t split = ds_groups_split(groups, group), world = groups->column->world / split;
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
    for (*size = 0; *size < text.size && *size < 9 && tsr_is_digit(text.data[*size]); ++*size)
        number = number * 10 + (uint64_t)(text.data[*size] - '0');
    return number;
}

/* Changes the name of a parameter from the one on an expert-parallel rank to the one among the experts of all ranks. Fails
 * with TSR_E_FORMAT if it is not the name of one of the rank's experts. */
static tsr_status ds_groups_name(const tsr_ds_groups *groups, uint32_t group, uint32_t expert_rank, tsr_str *name,
                                 tsr_error *err)
{
    const uint32_t split = ds_groups_split(groups, group);
    size_t digits;
    if (split == 1) return TSR_OK;
    const size_t prefix = tsr_ds_expert_prefix(*name);
    const uint32_t experts = tsr_map_get(groups->experts, (tsr_str){name->data, prefix}, 0), own = experts / split;
    const uint64_t number = number_at(tsr_str_after(*name, prefix), &digits);
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

/* ---- shapes ---- */

tsr_status tsr_ds_shape(tsr_arena *arena, const tsr_value *value, const uint64_t **shape, uint32_t *ndim, uint64_t *elements,
                        tsr_error *err)
{
    const bool known =
        value && (value->kind == TSR_VALUE_SIZE || value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE);
    TSR_FAIL_IF(!known || value->count > TSR_MAX_NDIM, err, TSR_E_FORMAT,
                "a shape is not a torch.Size of at most %u numbers", TSR_MAX_NDIM);
    uint64_t *sizes = tsr_arena_array(arena, value->count, sizeof *sizes, err);
    if (!sizes) return TSR_E_NOMEM;
    for (size_t i = 0; i < value->count; i++)
        TSR_FAIL_IF(!tsr_ds_number(value->items[i], &sizes[i]), err, TSR_E_FORMAT,
                    "a shape holds something that is not a size");
    *ndim = (uint32_t)value->count;
    TSR_FAIL_IF(!tsr_box_volume((tsr_box){*ndim, NULL, sizes}, elements) || *elements > UINT64_MAX / 64, err, TSR_E_LIMIT,
                "a parameter has more than 2^64 elements");
    *shape = sizes;
    return TSR_OK;
}

static tsr_status read_weight(tsr_ds_weights *w, const tsr_value *dict, size_t pair, tsr_ds_weight *out, tsr_error *err)
{
    const tsr_value *name = dict->items[2 * pair];
    TSR_FAIL_IF(name->kind != TSR_VALUE_STR, err, TSR_E_FORMAT, "'param_shapes' has a key that is not a name");
    *out = (tsr_ds_weight){.name = name->text};
    tsr_status status =
        tsr_ds_shape(w->files->checkpoint->arena, dict->items[2 * pair + 1], &out->shape, &out->ndim, &out->elements, err);
    if (status != TSR_OK) tsr_error_context(err, "'param_shapes', '%.*s'", TSR_STR_ARG(name->text));
    return status;
}

/* Reads the parameters of a group, with the names that an expert-parallel rank uses. */
static tsr_status read_group(tsr_ds_weights *w, const tsr_ds_groups *of, const tsr_value *dict, tsr_ds_sharers as,
                             tsr_error *err)
{
    for (size_t p = 0; p < tsr_ds_count(dict); p++) {
        tsr_ds_weight *weight = &w->weights[w->count++];
        TSR_TRY(read_weight(w, dict, p, weight, err));
        if (of) TSR_TRY(ds_groups_name(of, as.group, as.expert_rank, &weight->name, err));
    }
    return TSR_OK;
}

/* If `of` is NULL, no group has experts. */
static tsr_status read_weights(tsr_ds_weights *w, const tsr_ds_groups *of, const tsr_value *groups, tsr_error *err)
{
    uint64_t count = 0;
    for (size_t g = 0; g < groups->count; g++) {
        TSR_FAIL_IF(groups->items[g]->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT,
                    "'param_shapes' is not a list of dictionaries");
        count += tsr_ds_count(groups->items[g]) * (of ? ds_groups_split(of, (uint32_t)g) : 1);
    }
    TSR_FAIL_IF(count > w->files->checkpoint->host->limits.entries || count > UINT32_MAX / 2, err, TSR_E_LIMIT,
                "'param_shapes' names too many parameters (%llu)", (unsigned long long)count);
    w->weights = tsr_arena_array(w->files->checkpoint->arena, (size_t)count, sizeof *w->weights, err);
    if (!w->weights) return TSR_E_NOMEM;
    for (uint32_t g = 0; g < groups->count; g++)
        for (uint32_t e = 0; e < (of ? ds_groups_split(of, g) : 1); e++)
            TSR_TRY(read_group(w, of, groups->items[g], (tsr_ds_sharers){.group = g, .expert_rank = e}, err));
    return TSR_OK;
}

/* ---- buffers ---- */

const tsr_value *tsr_ds_base_state(const tsr_ds_files *files, const tsr_ds_file *file)
{
    return tsr_ds_get(tsr_ds_optimizer(file), files->zero == 3 ? "optimizer_state_dict" : "base_optimizer_state");
}

static const tsr_value *fp32_groups(const tsr_ds_weights *w, const tsr_ds_file *optim)
{
    return tsr_ds_list(tsr_ds_optimizer(optim),
                       w->files->zero == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
}

static const tsr_entry *fp32_tensor(const tsr_ds_weights *w, const tsr_ds_sharers *sharers, uint32_t rank)
{
    return tsr_ds_tensor(tsr_ds_item(fp32_groups(w, sharers->optims[rank]), sharers->group));
}

/* Reports a file from a job with different param groups. The data of the other ranks can still be listed. */
static tsr_status report_no_buffer(const tsr_ds_weights *w, const tsr_ds_file *file, uint32_t group, tsr_error *err)
{
    const tsr_str name = tsr_ds_file_name(w->files, file);
    return tsr_ds_report(w->files->checkpoint, name, err,
                         "%.*s: has no float32 tensor for param group %u: the files do not belong to the same save",
                         TSR_STR_ARG(name), group);
}

static tsr_status open_segment(tsr_ds_weights *w, uint32_t s, tsr_error *err)
{
    tsr_ds_segment *segment = &w->segments[s];
    const tsr_ds_sharers *sharers = &segment->sharers;
    const uint32_t world = sharers->world;
    TSR_TRY(tsr_ds_buffer_new(w->files->checkpoint->arena, world, &segment->fp32, err));
    for (uint32_t r = 0; r < world; r++) {
        const tsr_entry *tensor = fp32_tensor(w, sharers, r);
        if (tensor && tensor->ndim == 1 && tensor->shape[0] > segment->slice) segment->slice = tensor->shape[0];
    }
    for (uint32_t r = 0; r < world; r++) {
        const tsr_ds_file *file = sharers->optims[r];
        const tsr_entry *tensor = fp32_tensor(w, sharers, r);
        const uint64_t count = tensor && tensor->ndim == 1 ? tensor->shape[0] : segment->slice;
        tsr_status status = tsr_ds_buffer_add(&segment->fp32, tensor, count, err);
        if (status == TSR_OK && file && !tensor) status = report_no_buffer(w, file, sharers->group, err);
        if (status != TSR_OK && file) tsr_error_context(err, "%.*s", TSR_STR_ARG(tsr_ds_file_name(w->files, file)));
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

/* Makes the segments of as many groups as the first existing file has. */
static tsr_status open_segments(tsr_ds_weights *w, const tsr_ds_groups *of, tsr_error *err)
{
    uint64_t count = 0;
    for (uint32_t r = 0; r < w->column->world && !w->group_count; r++)
        w->group_count = (uint32_t)tsr_ds_count(fp32_groups(w, w->column->optims[r]));
    for (uint32_t g = 0; g < w->group_count; g++) count += ds_groups_split(of, g);
    TSR_FAIL_IF(count > w->files->checkpoint->host->limits.entries, err, TSR_E_LIMIT,
                "the optimizer files have too many param groups (%llu)", (unsigned long long)count);
    w->segments = tsr_arena_array(w->files->checkpoint->arena, (size_t)count, sizeof *w->segments, err);
    if (!w->segments) return TSR_E_NOMEM;
    for (uint32_t g = 0; g < w->group_count; g++)
        for (uint32_t e = 0; e < ds_groups_split(of, g); e++) {
            TSR_TRY(ds_groups_sharers(of, g, e, &w->segments[w->segment_count].sharers, err));
            TSR_TRY(open_segment(w, w->segment_count++, err));
        }
    return TSR_OK;
}

/* ---- placing ---- */

static uint64_t align(uint64_t elements, uint64_t to)
{
    return (elements + to - 1) / to * to;
}

static tsr_status report(const tsr_ds_weights *w, bool *found, const char *what, uint64_t has, uint64_t wants,
                         tsr_error *err)
{
    const tsr_str name = tsr_ds_file_name(w->files, w->column->model);
    *found = false;
    if (w->segment_count == 0) return TSR_OK; /* no optimizer file exists, which was reported */
    return tsr_ds_report(w->files->checkpoint, name, err,
                         "%.*s: 'param_shapes' lists %s with %llu elements, but the optimizer files have %llu: the files do "
                         "not belong to the same save",
                         TSR_STR_ARG(name), what, (unsigned long long)wants, (unsigned long long)has);
}

/* The padding after each parameter, as stated in the first file that has it. */
static const tsr_value *alignment_of(const tsr_ds_weights *w, uint32_t segment)
{
    const tsr_ds_sharers *sharers = &w->segments[segment].sharers;
    const tsr_value *paddings = NULL;
    for (uint32_t r = 0; r < sharers->world && !paddings; r++)
        paddings = tsr_ds_list(tsr_ds_optimizer(sharers->optims[r]), "param_alignment_paddings");
    return tsr_ds_item(paddings, sharers->group);
}

/* ZeRO 1, 2: the parameters of a group follow each other, as in zero_to_fp32. */
static tsr_status place_group(tsr_ds_weights *w, uint32_t s, uint32_t count, uint32_t *next, bool *found, tsr_error *err)
{
    tsr_ds_segment *segment = &w->segments[s];
    const tsr_value *paddings = alignment_of(w, s);
    const uint64_t unit = UINT64_C(2) * segment->sharers.world;
    uint64_t at = 0, padding;
    segment->first = *next;
    segment->count = count;
    for (uint32_t i = 0; i < count; i++) {
        tsr_ds_weight *weight = &w->weights[(*next)++];
        weight->offset = at;
        at += weight->elements;
        if (tsr_ds_number(tsr_ds_item(paddings, i), &padding) && padding < UINT32_MAX) at += padding;
        TSR_FAIL_IF(at > UINT64_MAX / 16, err, TSR_E_LIMIT, "the parameters are too large");
    }
    if (align(at, unit) == align(segment->fp32.elements, unit)) return TSR_OK;
    bool whole = true;
    for (uint32_t r = 0; r < segment->sharers.world; r++) whole = whole && segment->sharers.optims[r];
    if (!whole && segment->fp32.elements >= at) return TSR_OK;
    return report(w, found, "parameters", segment->fp32.elements, at, err);
}

static tsr_status place_groups(tsr_ds_weights *w, const tsr_value *groups, bool *found, tsr_error *err)
{
    uint32_t next = 0;
    if (groups->count != w->group_count) return report(w, found, "groups", w->group_count, groups->count, err);
    for (uint32_t s = 0; s < w->segment_count; s++)
        TSR_TRY(place_group(w, s, (uint32_t)tsr_ds_count(groups->items[w->segments[s].sharers.group]), &next, found, err));
    return TSR_OK;
}

/* ZeRO 3: a rank's shares of all parameters follow each other across its sub-groups. */
static tsr_status place_shares(tsr_ds_weights *w, bool *found, tsr_error *err)
{
    uint32_t s = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        tsr_ds_weight *weight = &w->weights[i];
        weight->share = (weight->elements + w->column->world - 1) / w->column->world;
        while (s < w->segment_count && at >= w->segments[s].slice && (at > 0 || w->segments[s].slice == 0)) {
            at = 0;
            s++;
        }
        if (s == w->segment_count && weight->share == 0 && s > 0) s--; /* it has no elements, so nothing is stored */
        if (s == w->segment_count || weight->share > w->segments[s].slice - at)
            return report(w, found, "parameters", s < w->segment_count ? w->segments[s].slice : 0, at + weight->share, err);
        if (w->segments[s].count == 0) w->segments[s].first = i;
        w->segments[s].count++;
        weight->offset = at;
        at += weight->share;
    }
    if (w->count == 0 || s + 1 < w->segment_count || at != w->segments[s].slice)
        return report(w, found, "parameters", s < w->segment_count ? w->segments[s].slice : 0, at, err);
    return TSR_OK;
}

tsr_status tsr_ds_weights_by_shape(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out,
                                   tsr_error *err)
{
    const tsr_value *groups = tsr_ds_list(column->model->root, "param_shapes");
    *out = (tsr_ds_weights){.files = files, .column = column};
    if (!groups) return TSR_OK;
    const tsr_status status = read_weights(out, NULL, groups, err);
    if (status != TSR_OK) return tsr_error_context(err, "%.*s", TSR_STR_ARG(tsr_ds_file_name(files, column->model))), status;
    out->segments = tsr_arena_array(files->checkpoint->arena, groups->count, sizeof *out->segments, err);
    if (!out->segments) return TSR_E_NOMEM;
    for (uint32_t at = 0; out->segment_count < groups->count; out->segment_count++) {
        const uint32_t count = (uint32_t)tsr_ds_count(groups->items[out->segment_count]);
        out->segments[out->segment_count] =
            (tsr_ds_segment){.sharers.group = out->segment_count, .first = at, .count = count};
        at += count;
    }
    out->group_count = out->segment_count;
    return TSR_OK;
}

static tsr_status open_groups(tsr_ds_weights *w, const tsr_value *groups, bool *found, tsr_error *err)
{
    tsr_ds_groups of;
    tsr_status status = ds_groups_open(w->files, w->column, &of, err);
    if (status == TSR_OK) status = read_weights(w, &of, groups, err);
    if (status != TSR_OK) tsr_error_context(err, "%.*s", TSR_STR_ARG(tsr_ds_file_name(w->files, w->column->model)));
    if (status == TSR_OK) status = open_segments(w, &of, err);
    ds_groups_close(&of);
    if (status != TSR_OK) return status;
    return w->files->zero == 3 ? place_shares(w, found, err) : place_groups(w, groups, found, err);
}

tsr_status tsr_ds_weights_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out, bool *found,
                               tsr_error *err)
{
    *out = (tsr_ds_weights){.files = files, .column = column};
    const tsr_str name = tsr_ds_file_name(files, column->model);
    const tsr_value *groups = tsr_ds_list(column->model->root, "param_shapes");
    const tsr_str part = files->checkpoint->options.part;
    if (!groups) TSR_TRY(tsr_ds_layers_shapes(files, (uint32_t)(column - files->columns), &groups, err));
    *found = groups != NULL;
    /* These parts do not need them. */
    if (!groups && (tsr_str_equal(part, TSR_STR("module")) || tsr_str_equal(part, TSR_STR("engine")))) return TSR_OK;
    if (!groups)
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: has no 'param_shapes', which names the weights in the optimizer files%s",
                             TSR_STR_ARG(name), files->has_layers ? "; open the stored weights with --part module" : "");
    return open_groups(out, groups, found, err);
}

static tsr_status add_shares(const tsr_ds_weight *weight, const tsr_ds_buffer *buffer, tsr_ds_chunks *chunks, tsr_error *err)
{
    for (uint32_t r = 0; r < buffer->count; r++) {
        const uint64_t to = r * weight->share;
        if (to >= weight->elements) break;
        const uint64_t count = weight->elements - to < weight->share ? weight->elements - to : weight->share;
        TSR_TRY(tsr_ds_chunks_add(chunks, buffer, buffer->pieces[r].first + weight->offset, count, to, err));
    }
    return TSR_OK;
}

/* The tensors of one key while they are cut out of a buffer. */
typedef struct placing {
    const tsr_ds_buffer *buffer;
    tsr_str key;
    bool shares; /* every rank has a share of each weight (ZeRO 3) */
    tsr_ds_chunks chunks;
    tsr_ds_rows *rows;
    tsr_error *err;
} placing;

static tsr_status place_weight(placing *p, const tsr_ds_weight *weight)
{
    const tsr_value *tensor;
    const tsr_dtype dtype = p->buffer->dtype == TSR_DTYPE_NONE ? TSR_FLOAT32 : p->buffer->dtype;
    p->chunks.shape = weight->shape;
    p->chunks.ndim = weight->ndim;
    const tsr_status status = p->shares
                                  ? add_shares(weight, p->buffer, &p->chunks, p->err)
                                  : tsr_ds_chunks_add(&p->chunks, p->buffer, weight->offset, weight->elements, 0, p->err);
    if (status != TSR_OK) {
        tsr_error_context(p->err, "'%.*s' of '%.*s'", TSR_STR_ARG(p->key.size ? p->key : TSR_STR("the float32 weight")),
                          TSR_STR_ARG(weight->name));
        return status;
    }
    TSR_TRY(tsr_ds_chunks_take(&p->chunks, dtype, &tensor, p->err));
    return tsr_ds_rows_add(p->rows, weight->name, p->key, tensor, p->err);
}

tsr_status tsr_ds_weights_place(const tsr_ds_weights *weights, uint32_t segment, const tsr_ds_buffer *buffer, tsr_str key,
                                tsr_ds_rows *rows, tsr_error *err)
{
    tsr_checkpoint *checkpoint = weights->files->checkpoint;
    const tsr_ds_segment *s = &weights->segments[segment];
    placing p = {.buffer = buffer,
                 .key = key,
                 .shares = weights->files->zero == 3,
                 .chunks = {.checkpoint = checkpoint, .chunks = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_chunk))},
                 .rows = rows,
                 .err = err};
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < s->count && status == TSR_OK; i++) status = place_weight(&p, &weights->weights[s->first + i]);
    tsr_vec_free(&p.chunks.chunks);
    return status;
}
