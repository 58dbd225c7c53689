/* Presents the merge of several checkpoints as one mapped checkpoint over the first of them. */
#include "formats/common/metadata.h"
#include "merge/merge_parts.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/optimizer_scalars.h"
#include "tessera/sys/options.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/scaled.h"
#include "tessera/sys/try.h"

typedef struct builder {
    const tsr_merge_input *given;
    tsr_merge_options options;
    uint32_t count; /* without the base */
    tsr_mapped *m;
    tsr_merge *merge;
    uint32_t inputs; /* with the base */
    tsr_ring *ring;
    tsr_map *storages; /* storage_id of the first input → index in `tied` */
    tsr_vec tied;      /* of tied_row: the first tensor of each storage */
    bool *scalars; /* by entry of the first input: whether it is one of an optimizer's state, which `dtype` does not cast */
    tsr_error *err;
} builder;

typedef struct tied_row {
    const tsr_merged *tensor;
    size_t row;
    uint32_t file;
} tied_row;

/* ---- tied tensors ---- */

/* Sets *is to whether two tensors of one checkpoint are exactly the same stored bytes. */
static tsr_status is_alias(tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *is, tsr_error *err)
{
    tsr_view x, y;
    *is = a->storage_id && a->storage_id == b->storage_id && a->dtype == b->dtype && a->ndim == b->ndim &&
          a->chunk_count == 1 && b->chunk_count == 1 &&
          (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
    if (!*is) return TSR_OK;
    tsr_arena *scratch = tsr_arena_new(tsr_checkpoint_host(checkpoint)->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    tsr_status status = tsr_checkpoint_locate(checkpoint, a, a->chunks, scratch, &x, err);
    if (status == TSR_OK) status = tsr_checkpoint_locate(checkpoint, b, b->chunks, scratch, &y, err);
    *is = status == TSR_OK && tsr_view_is_plain(&x) && tsr_view_is_plain(&y) && x.file == y.file &&
          x.byte_offset == y.byte_offset;
    tsr_arena_free(scratch);
    return status;
}

/* Finds the earlier tensor that this one is tied to in every input, so that both share one computed file. *out is NULL if
 * there is none. Remembers the first tensor of each storage. */
static tsr_status find_tied(builder *b, const tsr_merged *tensor, tied_row **out)
{
    const tsr_entry *entry = tensor->entries[0];
    uint32_t *first;
    bool inserted, is = true;
    *out = NULL;
    if (!entry->storage_id) return TSR_OK;
    const tsr_str key = {(const char *)&entry->storage_id, sizeof entry->storage_id};
    TSR_TRY(tsr_map_put(b->storages, key, (uint32_t)b->tied.count, &first, &inserted, b->err));
    if (!inserted) {
        tied_row *found = (tied_row *)b->tied.items + *first;
        for (uint32_t i = 0; i < b->inputs && is; i++)
            TSR_TRY(is_alias(b->merge->inputs[i].checkpoint, tensor->entries[i], found->tensor->entries[i], &is, b->err));
        if (is) *out = found;
        return TSR_OK;
    }
    tied_row *added = tsr_vec_push(&b->tied, b->err);
    if (!added) return TSR_E_NOMEM;
    *added = (tied_row){.tensor = tensor, .row = b->m->rows.count};
    return TSR_OK;
}

/* ---- entries ---- */

static tsr_status add_sum(builder *b, tsr_merged *tensor)
{
    const tsr_entry *entry = tensor->entries[0];
    const tsr_computed by = {.dtype = tensor->dtype, .compute = tsr_merge_sum, .ctx = tensor};
    tied_row *tied;
    uint32_t file;
    const size_t noted = b->tied.count;
    TSR_TRY(find_tied(b, tensor, &tied));
    if (tied) {
        file = tied->file;
        TSR_TRY(tsr_mapped_share(b->m, entry, tensor->order, by.dtype, file, b->err));
    } else {
        TSR_TRY(tsr_mapped_compute(b->m, entry, tensor->order, &by, &file, b->err));
    }
    tsr_mapped_row *rows = b->m->rows.items;
    if (b->tied.count > noted) ((tied_row *)b->tied.items)[noted].file = file;
    if (tied) {
        rows[tied->row].entry.storage_id = rows[b->m->rows.count - 1].entry.storage_id = entry->storage_id;
        rows[b->m->rows.count - 1].entry.is_second_name = entry->is_second_name;
    }
    if (b->merge->tensors) b->merge->tensors[tensor->order] = tensor;
    return TSR_OK;
}

static tsr_status refuse_opaque(const builder *b, const tsr_entry *entry)
{
    return tsr_fail(b->err, TSR_E_UNSUPPORTED,
                    "'%.*s' in '%.*s' is %.*s, which cannot be merged; leave it out with --exclude", TSR_STR_ARG(entry->fqn),
                    TSR_STR_ARG(b->merge->inputs[0].name), TSR_STR_ARG(entry->type));
}

/* Whether an entry is compared and merged. */
static bool is_merged(const builder *b, const tsr_entry *entry)
{
    if (b->options.skip_objects && entry->kind == TSR_ENTRY_OBJECT) return false;
    return tsr_selection_keeps(&b->merge->selection, entry->fqn);
}

static tsr_status add_entry(builder *b, const tsr_entry *entry, uint64_t order)
{
    const tsr_merge_input *inputs = b->merge->inputs;
    tsr_arena *arena = b->m->own->arena;
    if (!is_merged(b, entry)) return tsr_mapped_keep(b->m, entry, order, b->err);
    if (entry->kind == TSR_ENTRY_OPAQUE) return refuse_opaque(b, entry);
    const tsr_entry **entries = tsr_arena_array(arena, b->inputs, sizeof *entries, b->err);
    tsr_merged *tensor = entries ? TSR_ARENA_NEW(arena, tsr_merged, b->err) : NULL;
    if (!tensor) return TSR_E_NOMEM;
    *tensor = (tsr_merged){.merge = b->merge,
                           .entries = entries,
                           .sums = TSR_FLOAT32,
                           .dtype = b->options.dtype && !b->scalars[order] ? b->options.dtype : entry->dtype,
                           .order = order};
    entries[0] = entry;
    for (uint32_t i = 1; i < b->inputs; i++) {
        entries[i] = tsr_checkpoint_entry(inputs[i].checkpoint, entry->fqn);
        TSR_FAIL_IF(!entries[i], b->err, TSR_E_FORMAT, "'%.*s' is in '%.*s' but not in '%.*s'", TSR_STR_ARG(entry->fqn),
                    TSR_STR_ARG(inputs[0].name), TSR_STR_ARG(inputs[i].name));
        TSR_TRY(tsr_merge_check(b->merge, i, entry, entries[i], b->ring, b->err));
    }
    for (uint32_t i = 0; i < b->inputs; i++)
        if (entries[i]->dtype == TSR_FLOAT64) tensor->sums = TSR_FLOAT64;
    return tsr_merge_sums(entry) ? add_sum(b, tensor) : tsr_mapped_keep(b->m, entry, order, b->err);
}

/* Refuses names that the first input does not have. */
static tsr_status check_names(const builder *b)
{
    const tsr_merge_input *inputs = b->merge->inputs;
    for (uint32_t i = 1; i < b->inputs; i++) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(inputs[i].checkpoint);
        for (uint64_t e = 0; e < catalog->entry_count; e++) {
            const tsr_str fqn = catalog->entries[e].fqn;
            if (is_merged(b, &catalog->entries[e]) && !tsr_checkpoint_entry(inputs[0].checkpoint, fqn))
                return tsr_fail(b->err, TSR_E_FORMAT, "'%.*s' is in '%.*s' but not in '%.*s'", TSR_STR_ARG(fqn),
                                TSR_STR_ARG(inputs[i].name), TSR_STR_ARG(inputs[0].name));
        }
    }
    return TSR_OK;
}

/* Rejects too many repeated elements before any values are compared. The job that writes the merge only sees sums, each of
 * which is computed. */
static tsr_status check_repeats(const builder *b, tsr_checkpoint *input)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(input);
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, input);
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++)
        if (is_merged(b, &catalog->entries[i]))
            status = tsr_repeats_add(&repeats, &catalog->entries[i], NULL, NULL, NULL, b->err);
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, b->err);
    tsr_repeats_close(&repeats);
    return status;
}

/* Refuses numbers that would be added without their scales. */
static tsr_status check_scaled(const builder *b)
{
    const tsr_arithmetic sum = {.selection = b->merge->selection};
    for (uint32_t i = 0; i < b->inputs; i++) {
        const tsr_merge_input *input = &b->merge->inputs[i];
        const tsr_status status = tsr_check_arithmetic(input->checkpoint, &sum, b->err);
        if (status != TSR_OK) tsr_error_context(b->err, "%.*s", TSR_STR_ARG(input->name));
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static tsr_status fill_all(builder *b)
{
    const tsr_catalog *catalog = &b->m->source->catalog;
    b->scalars = tsr_arena_array(b->m->own->arena, (size_t)catalog->entry_count, sizeof *b->scalars, b->err);
    if (!b->scalars) return TSR_E_NOMEM;
    TSR_TRY(tsr_optimizer_scalars(catalog, b->m->own->host->allocator, b->scalars, b->err));
    TSR_TRY(check_scaled(b));
    TSR_TRY(check_names(b));
    for (uint32_t i = 0; i < b->inputs; i++) TSR_TRY(check_repeats(b, b->merge->inputs[i].checkpoint));
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(add_entry(b, &catalog->entries[i], i));
    return TSR_OK;
}

/* ---- the merge ---- */

static tsr_status copy_inputs(const builder *b, tsr_merge *merge)
{
    tsr_arena *arena = b->m->own->arena;
    tsr_merge_input *inputs = tsr_arena_array(arena, (size_t)b->inputs, sizeof *inputs, b->err);
    tsr_checkpoint **checkpoints = tsr_arena_array(arena, (size_t)b->inputs, sizeof(tsr_checkpoint *), b->err);
    merge->inputs = inputs;
    if (!checkpoints) return TSR_E_NOMEM;
    for (uint32_t i = 0; inputs && i < b->inputs; i++)
        checkpoints[i] = i < b->count ? b->given[i].checkpoint : b->options.base->checkpoint;
    b->m->others = checkpoints;
    b->m->other_count = b->inputs;
    for (uint32_t i = 0; inputs && i < b->inputs; i++) {
        inputs[i] = i < b->count ? b->given[i] : *b->options.base;
        inputs[i].name = tsr_arena_str(arena, inputs[i].name, b->err);
        if (!inputs[i].name.data) return TSR_E_NOMEM;
    }
    return inputs ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status new_merge(builder *b)
{
    tsr_arena *arena = b->m->own->arena;
    tsr_merge *merge = b->merge = TSR_ARENA_NEW(arena, tsr_merge, b->err);
    if (!merge) return TSR_E_NOMEM;
    *merge = (tsr_merge){.method = b->options.method,
                         .count = b->count,
                         .divisor = 1,
                         .float_divisor = 1,
                         .t = b->options.t,
                         .dtype = b->options.dtype,
                         .selection = b->options.selection,
                         .entry_count = b->m->source->catalog.entry_count};
    TSR_TRY(copy_inputs(b, merge));
    if (merge->method == TSR_MERGE_LINEAR && !b->options.no_normalize) {
        merge->divisor = merge->float_divisor = 0;
        for (uint32_t i = 0; i < b->count; i++) {
            merge->divisor += merge->inputs[i].weight;
            merge->float_divisor += (float)merge->inputs[i].weight;
        }
        TSR_FAIL_IF(merge->divisor == 0 || merge->float_divisor == 0, b->err, TSR_E_USAGE,
                    "the weights sum to 0, so they cannot be normalized; pass --no-normalize to use them as they are");
    }
    b->m->ctx = merge;
    if (merge->method != TSR_MERGE_SLERP) return TSR_OK;
    merge->angles = tsr_arena_array(arena, (size_t)merge->entry_count, sizeof *merge->angles, b->err);
    merge->tensors = tsr_arena_array(arena, (size_t)merge->entry_count, sizeof *merge->tensors, b->err);
    return merge->angles && merge->tensors ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status fill(tsr_mapped *m, void *ctx, tsr_error *err)
{
    builder *b = ctx;
    const tsr_host *host = m->own->host;
    b->m = m;
    b->err = err;
    b->tied = tsr_vec_of(host->allocator, sizeof(tied_row));
    b->storages = tsr_map_new(host->allocator, 0, err);
    tsr_status status = b->storages ? tsr_ring_new(host, 0, &b->ring, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = new_merge(b);
    if (status == TSR_OK) status = fill_all(b);
    tsr_ring_free(b->ring);
    tsr_map_free(b->storages);
    tsr_vec_free(&b->tied);
    return status;
}

/* What the inputs agree on holds for the merge as well. */
static tsr_status join_metadata(const builder *b, tsr_checkpoint *merged, tsr_error *err)
{
    tsr_text_pairs *lists = tsr_arena_array(merged->arena, b->inputs, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < b->inputs; i++) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(b->merge->inputs[i].checkpoint);
        lists[i] = (tsr_text_pairs){catalog->metadata, catalog->metadata_count};
    }
    return tsr_metadata_join(merged, lists, b->inputs, "inputs", err);
}

static tsr_status check_options(const builder *b, tsr_error *err)
{
    const tsr_merge_options *o = &b->options;
    TSR_FAIL_IF(o->method >= TSR_MERGE_METHODS || !b->count, err, TSR_E_USAGE, "a merge needs a method and an input");
    TSR_FAIL_IF((o->method == TSR_MERGE_TASK_ARITHMETIC) != (o->base != NULL), err, TSR_E_USAGE,
                o->base ? "a base can only be used with task-arithmetic" : "task-arithmetic needs a base");
    TSR_FAIL_IF(o->method == TSR_MERGE_SLERP && b->count != 2, err, TSR_E_USAGE, "slerp merges 2 checkpoints, found %u",
                (unsigned)b->count);
    char t[TSR_REAL_TEXT];
    TSR_FAIL_IF(o->method == TSR_MERGE_SLERP && !(o->t >= 0 && o->t <= 1), err, TSR_E_USAGE,
                "slerp's t %s is not between 0, the first checkpoint, and 1, the second", tsr_real_text(o->t, 6, t));
    TSR_FAIL_IF(o->dtype && !tsr_cast_possible(TSR_FLOAT32, o->dtype), err, TSR_E_USAGE, "merged tensors cannot be %s",
                tsr_dtype_describe(o->dtype)->name);
    return TSR_OK;
}

tsr_status tsr_merge_open(const tsr_merge_input *inputs, uint32_t count, const tsr_merge_options *options,
                          tsr_checkpoint **out, tsr_error *err)
{
    builder b = {.given = inputs, .count = count};
    const tsr_mapped_scheme scheme = {.fill = fill, .ctx = &b, .step = "merge", .keeps_names = true};
    *out = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&b.options, options, tsr_merge_options, err));
    TSR_TRY(check_options(&b, err));
    b.inputs = count + (b.options.base != NULL);
    TSR_TRY(tsr_mapped_open(inputs[0].checkpoint, &scheme, out, err));
    const tsr_status status = join_metadata(&b, *out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(*out);
    *out = NULL;
    return status;
}
