/* Writes a checkpoint as a DCP directory with one data file: first byte items, then whole tensors, in the order of the
 * source. */
#include "convert/convert_to.h"
#include "formats/megatron/megatron.h"
#include "formats/torch/torch_loadable.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/end_sum.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "write/torch_plan.h"
#include "write/write_item.h"

#include <stddef.h>

/* ---- rows ---- */

typedef struct tsr_dcp_rows {
    const tsr_conversion_job *job;
    tsr_chosen chosen;
    tsr_dcp_output_entry *sources;
    size_t source_count;
    size_t *first_source; /* by row, plus one: a row's sources are those up to the next row's first */
    bool *in_common;      /* by row: written to common.pt instead of the DCP; NULL if there is no common.pt */
} tsr_dcp_rows;

/* The pieces of the sources and the data files that contain them, as in tsr_dcp_job. */
typedef struct tsr_dcp_contents {
    const tsr_dcp_piece *pieces;
    size_t piece_count;
    const tsr_str *files;
    uint32_t file_count;
} tsr_dcp_contents;

/* ---- objects ---- */

/* Names objects like PyTorch 2.3. Since 2.4, every value in a dict is a separate item. Before, a dict or list without any
 * tensor below it was a single item: `args`, not `args.lr`. 2.3 looks for that item, and later versions accept it.
 *
 * Source: traverse_state_dict and traverse_state_dict_v_2_3 in torch/distributed/checkpoint/_traverse.py. */

#define ALONE UINT32_MAX

typedef struct joining {
    tsr_dcp_rows *rows;
    tsr_map *above_tensors; /* paths of dicts and lists with a tensor somewhere below them */
    tsr_map *first_of;      /* path of a whole object → the first source that is in it */
    uint32_t *next;         /* by source: the next source in the same object, or ALONE */
    uint32_t *last;         /* by first source: the last source so far; ALONE if the source is in another one's object */
    uint32_t *depth;        /* by source: how many items of its path lead to the object */
    uint64_t *row_of;       /* by source */
} joining;

static bool is_tensor(const tsr_dcp_output_entry *source)
{
    return source->entry->kind == TSR_ENTRY_TENSOR;
}

/* The first `count` items of a path as a text that no other path has. */
static tsr_str path_key(const joining *j, const tsr_dcp_output_entry *source, uint32_t count, tsr_error *err)
{
    tsr_arena *arena = j->rows->job->arena;
    tsr_str key = TSR_STR("/");
    for (uint32_t i = 0; i < count && key.data; i++) {
        const tsr_path_item *item = &source->path[i];
        key = item->kind == TSR_PATH_KEY
                  ? tsr_arena_format(arena, err, "%.*s%llu:%.*s", TSR_STR_ARG(key), (unsigned long long)item->key.size,
                                     TSR_STR_ARG(item->key))
                  : tsr_arena_format(arena, err, "%.*s%c%lld", TSR_STR_ARG(key), item->kind == TSR_PATH_INDEX ? '[' : '{',
                                     (long long)item->integer);
    }
    return key;
}

static tsr_status note_tensors(joining *j, tsr_error *err)
{
    for (size_t s = 0; s < j->rows->source_count; s++) {
        const tsr_dcp_output_entry *source = &j->rows->sources[s];
        for (uint32_t depth = 1; is_tensor(source) && depth < source->path_length; depth++) {
            const tsr_str key = path_key(j, source, depth, err);
            if (!key.data) return TSR_E_NOMEM;
            TSR_TRY(tsr_map_put(j->above_tensors, key, 1, NULL, NULL, err));
        }
    }
    return TSR_OK;
}

/* Links the source to the other sources in the same whole object, if there is one. */
static tsr_status link_source(joining *j, uint32_t s, tsr_error *err)
{
    const tsr_dcp_output_entry *source = &j->rows->sources[s];
    tsr_str key = TSR_STR("");
    uint32_t depth, *first;
    bool inserted;
    j->next[s] = ALONE;
    j->last[s] = s;
    j->depth[s] = source->path_length;
    if (is_tensor(source)) return TSR_OK;
    for (depth = 1; depth < source->path_length; depth++) {
        key = path_key(j, source, depth, err);
        if (!key.data) return TSR_E_NOMEM;
        if (!tsr_map_get(j->above_tensors, key, 0)) break;
    }
    if (depth >= source->path_length) return TSR_OK;
    TSR_TRY(tsr_map_put(j->first_of, key, s, &first, &inserted, err));
    j->depth[s] = depth;
    if (inserted) return TSR_OK;
    j->next[j->last[*first]] = s;
    j->last[*first] = s;
    j->last[s] = ALONE;
    return TSR_OK;
}

/* PyTorch's name for what is at a path: its items, joined with dots. */
static tsr_str name_of(const joining *j, const tsr_dcp_output_entry *source, uint32_t depth, tsr_error *err)
{
    tsr_arena *arena = j->rows->job->arena;
    tsr_str name = TSR_STR("");
    for (uint32_t i = 0; i < depth && name.data; i++) {
        const tsr_path_item *item = &source->path[i];
        const char *dot = i ? "." : "";
        name = item->kind == TSR_PATH_KEY
                   ? tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(name), dot, TSR_STR_ARG(item->key))
                   : tsr_arena_format(arena, err, "%.*s%s%lld", TSR_STR_ARG(name), dot, (long long)item->integer);
    }
    return name;
}

/* Turns the first source of an object into the whole object. */
static tsr_status join(const joining *j, uint32_t first, tsr_error *err)
{
    tsr_arena *arena = j->rows->job->arena;
    tsr_dcp_output_entry *source = &j->rows->sources[first];
    const uint32_t depth = j->depth[first];
    size_t count = 0;
    if (depth == source->path_length) return TSR_OK;
    for (uint32_t s = first; s != ALONE; s = j->next[s]) count++;
    tsr_leaf *leaves = tsr_arena_array(arena, count, sizeof *leaves, err);
    tsr_entry *whole = TSR_ARENA_NEW(arena, tsr_entry, err);
    if (!leaves || !whole) return TSR_E_NOMEM;
    count = 0;
    for (uint32_t s = first; s != ALONE; s = j->next[s]) {
        const tsr_dcp_output_entry *part = &j->rows->sources[s];
        leaves[count++] = (tsr_leaf){.path = part->path + depth,
                                     .path_length = part->path_length - depth,
                                     .value = part->entry->value,
                                     .name = part->name};
    }
    *whole = *source->entry;
    source->name = name_of(j, source, depth, err);
    if (!source->name.data) return TSR_E_NOMEM;
    whole->fqn = source->name;
    TSR_TRY(tsr_nest(leaves, count, tsr_checkpoint_host(j->rows->job->checkpoint), arena, &whole->value, err));
    source->entry = whole;
    source->path_length = depth;
    return TSR_OK;
}

/* Removes the sources that became part of another one's object. */
static void close_gaps(joining *j)
{
    tsr_dcp_rows *rows = j->rows;
    size_t kept = 0, s = 0;
    for (uint64_t r = 0; r <= rows->chosen.count; r++) {
        const size_t end = rows->first_source[r];
        for (; s < end; s++) {
            if (j->last[s] != ALONE) rows->sources[kept++] = rows->sources[s];
        }
        rows->first_source[r] = kept;
    }
    rows->source_count = kept;
}

/* Names the rows of an object's parts after the object, for the report of what was written. */
static void name_rows(const joining *j)
{
    const tsr_dcp_output_entry *sources = j->rows->sources;
    tsr_converted *rows = j->rows->chosen.rows;
    for (uint32_t s = 0; s < j->rows->source_count; s++) {
        for (uint32_t part = s; j->last[s] != ALONE && part != ALONE; part = j->next[part])
            rows[j->row_of[part]].name = sources[s].name;
    }
}

/* For PyTorch 2.3: makes one source of all objects in a dict or list without tensors. */
static tsr_status join_objects(tsr_dcp_rows *rows, tsr_error *err)
{
    tsr_arena *arena = rows->job->arena;
    const tsr_allocator *allocator = tsr_checkpoint_host(rows->job->checkpoint)->allocator;
    joining j = {.rows = rows};
    j.next = tsr_arena_array(arena, rows->source_count, sizeof *j.next, err);
    j.last = tsr_arena_array(arena, rows->source_count, sizeof *j.last, err);
    j.depth = tsr_arena_array(arena, rows->source_count, sizeof *j.depth, err);
    j.row_of = tsr_arena_array(arena, rows->source_count, sizeof *j.row_of, err);
    if (!j.next || !j.last || !j.depth || !j.row_of) return TSR_E_NOMEM;
    for (uint64_t r = 0; r < rows->chosen.count; r++)
        for (size_t s = rows->first_source[r]; s < rows->first_source[r + 1]; s++) j.row_of[s] = r;
    j.above_tensors = tsr_map_new(allocator, 0, err);
    j.first_of = j.above_tensors ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = j.first_of ? note_tensors(&j, err) : TSR_E_NOMEM;
    for (size_t s = 0; s < rows->source_count && status == TSR_OK; s++) status = link_source(&j, (uint32_t)s, err);
    for (size_t s = 0; s < rows->source_count && status == TSR_OK; s++)
        if (j.last[s] != ALONE) status = join(&j, (uint32_t)s, err);
    tsr_map_free(j.above_tensors);
    tsr_map_free(j.first_of);
    if (status != TSR_OK) return status;
    name_rows(&j);
    close_gaps(&j);
    return TSR_OK;
}

/* ---- Megatron checkpoints ---- */

/* What a Megatron checkpoint has in addition to a DCP: objects in shards, fragments, common.pt, metadata.json.
 *
 *   stage 0    __R_N.distcp                 as in a DCP
 *   stage 1    common.pt                    the rows of the part "common"; empty if the source has no such part
 *   finish     .metadata, metadata.json     the marker last, as Megatron-Core writes them
 *
 * Source: megatron/core/dist_checkpointing, serialization.py and core.py, of Megatron-Core 0.14 and 0.16. */

#define COMMON "common."

static const char document[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                               "\"common_backend\": \"torch\", \"common_backend_version\": 1}";

/* ---- what a Megatron checkpoint stores ---- */

/* For tsr_choose. */
static const char *megatron_refusal(const tsr_converted *row)
{
    tsr_shard_name shard;
    const bool object = row->entry->kind != TSR_ENTRY_TENSOR, slash = memchr(row->name.data, '/', row->name.size) != NULL;
    if (object && slash && !tsr_shard_name_of(row->name, &shard))
        return "has a '/' in its name, which Megatron-Core puts between an object and its shards";
    return tsr_torch_refusal(row);
}

/* Sets in_common: the rows of the part "common" that stay in it. */
static tsr_status megatron_part_rows(tsr_dcp_rows *rows, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(rows->job->checkpoint);
    rows->in_common = tsr_arena_array(rows->job->arena, (size_t)rows->chosen.count, sizeof *rows->in_common, err);
    if (!rows->in_common) return TSR_E_NOMEM;
    for (uint32_t p = 0; catalog->format == TSR_FORMAT_MEGATRON_DIST && p < catalog->part_count; p++) {
        const tsr_part *part = &catalog->parts[p];
        if (!tsr_str_equal(part->name, TSR_STR("common"))) continue;
        for (uint64_t i = part->first_entry; i < part->first_entry + part->entry_count; i++)
            rows->in_common[i] = tsr_str_starts(rows->chosen.rows[i].name, TSR_STR(COMMON));
    }
    return TSR_OK;
}

static tsr_status add_object(const tsr_entry *entry, tsr_str name, tsr_vec *sources, tsr_error *err)
{
    tsr_dcp_output_entry *source = tsr_vec_push(sources, err);
    if (!source) return TSR_E_NOMEM;
    *source = (tsr_dcp_output_entry){.entry = entry, .name = name};
    return TSR_OK;
}

/* Adds a single shard, which contains the object in a list of one. */
static tsr_status add_only_shard(const tsr_dcp_rows *rows, const tsr_converted *row, tsr_vec *sources, tsr_error *err)
{
    tsr_arena *arena = rows->job->arena;
    tsr_shard_name shard;
    if (tsr_shard_name_of(row->name, &shard)) return add_object(row->entry, row->name, sources, err);
    tsr_entry *entry = TSR_ARENA_NEW(arena, tsr_entry, err);
    tsr_value *list = tsr_value_list(arena, TSR_VALUE_LIST, 1, row->entry->value);
    const tsr_str name = tsr_arena_format(arena, err, "%.*s/shard_0_1", TSR_STR_ARG(row->name));
    if (!entry || !list || !name.data) return TSR_E_NOMEM;
    *entry = *row->entry;
    list->expanded = row->entry->value->expanded;
    list->foreign = row->entry->value->foreign;
    entry->value = list;
    return add_object(entry, name, sources, err);
}

/* Appends the sources of a row that is written to the DCP to a vec of tsr_dcp_output_entry. */
static tsr_status megatron_add_sources(const tsr_dcp_rows *rows, tsr_converted *row, tsr_vec *sources, tsr_error *err)
{
    const tsr_megatron_stored *stored = tsr_megatron_stored_of(rows->job->checkpoint, row->entry);
    if (row->entry->kind != TSR_ENTRY_TENSOR && (!stored || !stored->shards)) return add_only_shard(rows, row, sources, err);
    for (uint64_t i = 0; row->entry->kind != TSR_ENTRY_TENSOR && i < stored->shard_count; i++) {
        tsr_shard_name shard;
        tsr_shard_name_of(stored->shards[i]->fqn, &shard);
        const tsr_str name =
            tsr_arena_format(rows->job->arena, err, "%.*s%.*s", TSR_STR_ARG(row->name), TSR_STR_ARG(shard.suffix));
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(add_object(stored->shards[i], name, sources, err));
    }
    if (row->entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    tsr_dcp_output_entry *source = tsr_vec_push(sources, err);
    if (!source) return TSR_E_NOMEM;
    *source = (tsr_dcp_output_entry){.entry = row->entry, .name = row->name, .dtype = row->dtype};
    source->in_mcore_data = stored && stored->in_mcore_data;
    source->fragments = stored ? stored->fragments : NULL;
    return TSR_OK;
}

/* ---- common.pt and metadata.json ---- */

typedef struct wrapping {
    const tsr_conversion_job *job;
    tsr_writer dcp;
    tsr_torch_plan common;
    uint32_t common_file;
} wrapping;

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    wrapping *w = ctx;
    if (number < w->dcp.stage_count) return w->dcp.stage(w->dcp.ctx, number, arena, out, err);
    *out = tsr_torch_plan_stage(&w->common, w->common_file);
    return TSR_OK;
}

static tsr_status finish(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    const wrapping *w = ctx;
    TSR_TRY(w->dcp.finish(w->dcp.ctx, output, marker, err));
    const tsr_host *host = tsr_checkpoint_host(w->job->checkpoint);
    tsr_vec text = tsr_vec_of(host->allocator, 1);
    tsr_status status = tsr_vec_append(&text, document, sizeof document - 1, err);
    if (status == TSR_OK && !w->job->options->no_checksums) status = tsr_end_sum_append(&text, host, err);
    if (status == TSR_OK) status = output->create(output, TSR_STR("metadata.json"), text.count, marker, err);
    if (status == TSR_OK) status = output->write_at(output, *marker, 0, text.items, text.count, err);
    tsr_vec_free(&text);
    return status;
}

/* Makes the dict that common.pt contains. */
static tsr_status common_root(tsr_dcp_rows *rows, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = rows->job->arena;
    const tsr_value *root, **values = tsr_arena_array(arena, (size_t)rows->chosen.count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < rows->chosen.count; i++) {
        const tsr_converted *row = &rows->chosen.rows[i];
        if (!row->written || !rows->in_common[i]) continue;
        const bool tensor = row->entry->kind == TSR_ENTRY_TENSOR;
        values[i] = tensor ? tsr_value_tensor(arena, row->entry, err) : row->entry->value;
        if (!values[i]) return TSR_E_NOMEM;
    }
    TSR_TRY(tsr_nest_rows(&rows->chosen, values, arena, &root, err));
    *out = tsr_value_get(root, TSR_STR("common"));
    if (!*out) *out = tsr_value_dict(arena, 0);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status plan_common(tsr_dcp_rows *rows, wrapping *w, tsr_error *err)
{
    const tsr_value *root;
    TSR_TRY(common_root(rows, &root, err));
    TSR_TRY(tsr_torch_plan_open(rows->job->checkpoint, root, rows->job->arena, &w->common, err));
    w->common.unsummed = rows->job->options->no_checksums;
    for (uint64_t i = 0; i < rows->chosen.count; i++) {
        tsr_converted *row = &rows->chosen.rows[i];
        if (!row->written || !rows->in_common[i]) continue;
        row->file = w->common_file;
        tsr_torch_tensor *source = row->cast ? tsr_torch_plan_source(&w->common, row->entry) : NULL;
        if (source) source->dtype = row->dtype;
    }
    return tsr_torch_plan_lay_out(&w->common, err);
}

/* Adds common.pt and metadata.json to a laid-out DCP: extends the conversion and replaces the writer. */
static tsr_status megatron_wrap(tsr_dcp_rows *rows, tsr_writer *writer, tsr_error *err)
{
    tsr_conversion *out = rows->job->out;
    const uint32_t count = out->file_count;
    wrapping *w = TSR_ARENA_NEW(rows->job->arena, wrapping, err);
    tsr_str *files = tsr_arena_array(rows->job->arena, (size_t)count + 1, sizeof *files, err);
    uint64_t *sizes = tsr_arena_array(rows->job->arena, (size_t)count + 1, sizeof *sizes, err);
    if (!w || !files || !sizes) return TSR_E_NOMEM;
    w->job = rows->job;
    w->dcp = *writer;
    w->common_file = count;
    TSR_TRY(plan_common(rows, w, err));
    memcpy(files, out->files, count * sizeof *files);
    memcpy(sizes, out->file_sizes, count * sizeof *sizes);
    files[count] = TSR_STR("common.pt");
    sizes[count] = w->common.archive.size;
    out->files = files;
    out->file_sizes = sizes;
    out->file_count = count + 1;
    for (uint32_t i = 0; i < w->common.storage_count; i++) out->byte_total += w->common.write_items[i].byte_length;
    *writer = (tsr_writer){
        .stage_count = w->dcp.stage_count + 1, .crc = writer->crc, .stage = stage_of, .finish = finish, .ctx = w};
    return TSR_OK;
}

/* ---- the items of rows ---- */

static tsr_status complete_row(const tsr_dcp_rows *rows, tsr_converted *row, tsr_error *err)
{
    if (row->entry->kind == TSR_ENTRY_TENSOR) return tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err);
    row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(rows->job->checkpoint));
    return TSR_OK;
}

static tsr_status add_source(const tsr_dcp_rows *rows, const tsr_converted *row, tsr_vec *sources, tsr_error *err)
{
    tsr_dcp_output_entry *source = tsr_vec_push(sources, err);
    if (!source) return TSR_E_NOMEM;
    *source = (tsr_dcp_output_entry){.entry = row->entry, .name = row->name, .dtype = row->dtype};
    return tsr_renamed_path(row->entry, row->name, rows->job->arena, &source->path, &source->path_length, err);
}

static tsr_status add_sources(tsr_dcp_rows *rows, tsr_vec *sources, tsr_error *err)
{
    for (uint64_t i = 0; i < rows->chosen.count; i++) {
        tsr_converted *row = &rows->chosen.rows[i];
        rows->first_source[i] = sources->count;
        if (!row->written) continue;
        TSR_TRY(complete_row(rows, row, err));
        if (!rows->in_common) TSR_TRY(add_source(rows, row, sources, err));
        else if (!rows->in_common[i]) TSR_TRY(megatron_add_sources(rows, row, sources, err));
    }
    rows->first_source[rows->chosen.count] = sources->count;
    return TSR_OK;
}

static tsr_status make_sources(tsr_dcp_rows *rows, tsr_error *err)
{
    tsr_arena *arena = rows->job->arena;
    tsr_vec sources = tsr_vec_of(tsr_checkpoint_host(rows->job->checkpoint)->allocator, sizeof(tsr_dcp_output_entry));
    tsr_status status = add_sources(rows, &sources, err);
    rows->source_count = sources.count;
    rows->sources = status == TSR_OK ? tsr_arena_array(arena, sources.count, sizeof *rows->sources, err) : NULL;
    if (status == TSR_OK && !rows->sources) status = TSR_E_NOMEM;
    if (status == TSR_OK && sources.count) memcpy(rows->sources, sources.items, sources.count * sizeof *rows->sources);
    tsr_vec_free(&sources);
    return status;
}

/* A DCP keeps the items of a sharded tensor subclass. The plan of a reshard refuses it. */
static const char *dcp_refusal(const tsr_converted *row)
{
    return tsr_entry_is_subclass(row->entry) ? NULL : tsr_torch_refusal(row);
}

/* Chooses rows, sets their bytes and flags, and makes their sources. `plan` may be NULL; tensors that it lacks are not
 * written. Fails like tsr_choose. */
static tsr_status dcp_rows_of(const tsr_conversion_job *job, const tsr_plan *plan, tsr_dcp_rows *out, tsr_error *err)
{
    const bool megatron = job->options->to == TSR_TO_MEGATRON;
    *out = (tsr_dcp_rows){.job = job};
    TSR_TRY(
        tsr_choose(job->checkpoint, job->options, megatron ? megatron_refusal : dcp_refusal, job->arena, &out->chosen, err));
    if (plan) TSR_TRY(tsr_leave_unplanned(&out->chosen, plan, err));
    if (megatron) TSR_TRY(megatron_part_rows(out, err));
    out->first_source = tsr_arena_array(job->arena, (size_t)out->chosen.count + 1, sizeof *out->first_source, err);
    if (!out->first_source) return TSR_E_NOMEM;
    TSR_TRY(make_sources(out, err));
    const bool joins = job->options->for_torch && job->options->for_torch < TSR_TORCH_WITH_SPLIT_OBJECTS && !megatron;
    return joins ? join_objects(out, err) : TSR_OK;
}

/* Lays out the data files (and the other files of the format), and fills the conversion. */
static tsr_status dcp_rows_lay_out(tsr_dcp_rows *rows, const tsr_dcp_contents *contents, tsr_writer *out, tsr_error *err)
{
    const tsr_conversion_job *job = rows->job;
    tsr_dcp_job dcp = {.checkpoint = job->checkpoint,
                       .arena = job->arena,
                       .sources = rows->sources,
                       .source_count = rows->source_count,
                       .pieces = contents->pieces,
                       .piece_count = contents->piece_count,
                       .files = contents->files,
                       .file_count = contents->file_count,
                       .for_torch = job->options->for_torch,
                       .unsummed = job->options->no_checksums};
    TSR_TRY(tsr_dcp_lay_out(&dcp, out, err));
    *job->out = (tsr_conversion){.rows = rows->chosen.rows,
                                 .row_count = rows->chosen.count,
                                 .files = dcp.files,
                                 .file_sizes = dcp.file_sizes,
                                 .file_count = dcp.file_count,
                                 .marker = TSR_NO_FILE,
                                 .byte_total = dcp.byte_total};
    return rows->in_common ? megatron_wrap(rows, out, err) : TSR_OK;
}

/* Calls `each` for the boxes in which a box of whole fragments is written: one box for all fragments along dim 0, and
 * separate boxes along the other dims. Stops at a status other than TSR_OK. */
static tsr_status fragment_boxes(const tsr_entry *entry, const uint64_t *fragments, tsr_box box,
                                 tsr_status (*each)(void *ctx, tsr_box box, tsr_error *err), void *ctx, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    uint32_t d;
    if (tsr_box_is_empty(box)) return each(ctx, box, err);
    for (uint32_t k = 0; k < box.ndim; k++) {
        offsets[k] = tsr_box_offset(box, k);
        sizes[k] = k ? entry->shape[k] / fragments[k] : box.sizes[k];
    }
    do {
        TSR_TRY(each(ctx, (tsr_box){box.ndim, offsets, sizes}, err));
        for (d = box.ndim; d > 0; d--) { /* moves along dim d - 1 */
            offsets[d - 1] += sizes[d - 1];
            if (offsets[d - 1] < tsr_box_offset(box, d - 1) + box.sizes[d - 1]) break;
            offsets[d - 1] = tsr_box_offset(box, d - 1);
        }
    } while (d > 0);
    return TSR_OK;
}

/* ---- a whole checkpoint ---- */

typedef struct placing {
    const tsr_dcp_rows *rows;
    tsr_vec pieces; /* of tsr_dcp_piece */
    size_t source;
} placing;

/* Adds a box of a tensor; NULL stands for the whole source. */
static tsr_status add_piece(placing *p, const tsr_box *box, tsr_error *err)
{
    tsr_dcp_piece *piece = tsr_vec_push(&p->pieces, err);
    if (!piece) return TSR_E_NOMEM;
    *piece = (tsr_dcp_piece){.source = p->source};
    if (!box) return TSR_OK;
    uint64_t *numbers = tsr_arena_array(p->rows->job->arena, 2 * (size_t)box->ndim, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < box->ndim; d++) {
        numbers[d] = tsr_box_offset(*box, d);
        numbers[box->ndim + d] = box->sizes[d];
    }
    piece->offsets = numbers;
    piece->sizes = numbers + box->ndim;
    return TSR_OK;
}

static tsr_status add_box(void *ctx, tsr_box box, tsr_error *err)
{
    return add_piece(ctx, &box, err);
}

/* The items of a sharded tensor subclass stay as they are. */
static tsr_status add_subclass(placing *p, const tsr_entry *entry, tsr_error *err)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        tsr_dcp_piece *piece = tsr_vec_push(&p->pieces, err);
        if (!piece) return TSR_E_NOMEM;
        *piece = (tsr_dcp_piece){.source = p->source,
                                 .offsets = entry->chunks[i].offsets,
                                 .sizes = entry->chunks[i].sizes,
                                 .value = entry->value->items[i]};
    }
    return TSR_OK;
}

static tsr_status place(placing *p, bool tensors, tsr_error *err)
{
    for (p->source = 0; p->source < p->rows->source_count; p->source++) {
        const tsr_dcp_output_entry *source = &p->rows->sources[p->source];
        const tsr_box whole = {source->entry->ndim, NULL, source->entry->shape};
        if ((source->entry->kind == TSR_ENTRY_TENSOR) != tensors) continue;
        if (!tensors && source->entry->is_sharded) {
            TSR_TRY(add_subclass(p, source->entry, err));
            continue;
        }
        TSR_TRY(source->fragments ? fragment_boxes(source->entry, source->fragments, whole, add_box, p, err)
                                  : add_piece(p, NULL, err));
    }
    return TSR_OK;
}

static tsr_status convert(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_dcp_rows rows;
    tsr_str *file = TSR_ARENA_NEW(job->arena, tsr_str, err);
    if (!file) return TSR_E_NOMEM;
    *file = tsr_arena_format(job->arena, err, "__0_%u.distcp", (unsigned)job->generation);
    if (!file->data) return TSR_E_NOMEM;
    TSR_TRY(dcp_rows_of(job, NULL, &rows, err));
    placing p = {.rows = &rows,
                 .pieces = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(tsr_dcp_piece))};
    tsr_status status = place(&p, false, err);
    if (status == TSR_OK) status = place(&p, true, err);
    tsr_dcp_piece *pieces = tsr_arena_array(job->arena, p.pieces.count, sizeof *pieces, err);
    if (pieces && p.pieces.count) memcpy(pieces, p.pieces.items, p.pieces.count * sizeof *pieces);
    const size_t count = p.pieces.count;
    tsr_vec_free(&p.pieces);
    TSR_TRY(status);
    const tsr_dcp_contents contents = {.pieces = pieces, .piece_count = count, .files = file, .file_count = 1};
    return pieces ? dcp_rows_lay_out(&rows, &contents, out, err) : TSR_E_NOMEM;
}

/* ---- for a plan ---- */

/* Writes a DCP directory for the target's ranks: every distinct shard once, in the file `__R_0.distcp` of a rank that holds
 * it, and objects in rank 0's file, before its tensors. */

typedef struct gathering {
    const tsr_plan *plan;
    tsr_dcp_rows rows;
    tsr_vec pieces; /* of tsr_dcp_piece: objects, then tensors in the plan's order */
    size_t source;  /* of the shard that is being split */
    uint32_t owner;
} gathering;

static tsr_status copy_numbers(tsr_arena *arena, const uint64_t *from, uint32_t count, const uint64_t **out, tsr_error *err)
{
    uint64_t *copy = tsr_arena_array(arena, count, sizeof *copy, err);
    if (!copy) return TSR_E_NOMEM;
    if (count) memcpy(copy, from, count * sizeof *copy);
    *out = copy;
    return TSR_OK;
}

static tsr_status add_shard_box(void *ctx, tsr_box box, tsr_error *err)
{
    gathering *g = ctx;
    tsr_dcp_piece *piece = tsr_vec_push(&g->pieces, err);
    if (!piece) return TSR_E_NOMEM;
    piece->source = g->source;
    piece->file = g->owner;
    TSR_TRY(copy_numbers(g->rows.job->arena, box.offsets, box.ndim, &piece->offsets, err));
    return copy_numbers(g->rows.job->arena, box.sizes, box.ndim, &piece->sizes, err);
}

/* The row of a tensor of the plan if it is written to the DCP; otherwise NULL. */
static tsr_converted *row_of(const gathering *g, uint64_t tensor)
{
    tsr_converted *row = tsr_row_of(&g->rows.chosen, tsr_plan_tensor_at(g->plan, tensor).entry);
    return row && !(g->rows.in_common && g->rows.in_common[row - g->rows.chosen.rows]) ? row : NULL;
}

static tsr_status add_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    gathering *g = ctx;
    tsr_converted *row = row_of(g, tensor);
    if (!row) return TSR_OK;
    row->file = (uint32_t)owner;
    g->owner = (uint32_t)owner;
    g->source = g->rows.first_source[row - g->rows.chosen.rows];
    const tsr_dcp_output_entry *source = &g->rows.sources[g->source];
    for (uint64_t i = 0; i < shard->box_count; i++) {
        const tsr_box box = {shard->ndim, shard->boxes[i].offsets, shard->boxes[i].sizes};
        TSR_TRY(source->fragments ? fragment_boxes(source->entry, source->fragments, box, add_shard_box, g, err)
                                  : add_shard_box(g, box, err));
    }
    return TSR_OK;
}

/* ---- fragments that the shards consist of ---- */

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Takes another box into account: reduces `steps`, the size of a fragment on each dim, so that the box's offsets and sizes
 * are multiples of it. */
static void fragment_steps(uint32_t ndim, uint64_t *steps, tsr_box box)
{
    if (tsr_box_is_empty(box)) return;
    for (uint32_t d = 0; d < ndim; d++)
        steps[d] = greatest_divisor(greatest_divisor(steps[d], tsr_box_offset(box, d)), box.sizes[d]);
}

static tsr_status narrow_steps(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    gathering *g = ctx;
    const tsr_converted *row = row_of(g, tensor);
    (void)owner, (void)err;
    if (!row) return TSR_OK;
    const tsr_dcp_output_entry *source = &g->rows.sources[g->rows.first_source[row - g->rows.chosen.rows]];
    for (uint64_t i = 0; source->fragments && i < shard->box_count; i++)
        fragment_steps(shard->ndim, (uint64_t *)source->fragments, /* allocated by open_steps */
                       (tsr_box){shard->ndim, shard->boxes[i].offsets, shard->boxes[i].sizes});
    return TSR_OK;
}

/* Begins with steps of whole dims. Dims divided into single elements are axes of layers or experts, which Megatron-Core puts
 * before a tensor's own dims; they stay divided. */
static tsr_status open_steps(gathering *g, tsr_error *err)
{
    for (size_t s = 0; s < g->rows.source_count; s++) {
        tsr_dcp_output_entry *source = &g->rows.sources[s];
        const uint32_t ndim = source->entry->ndim;
        uint64_t *steps = source->fragments ? tsr_arena_array(g->rows.job->arena, ndim, sizeof *steps, err) : NULL;
        if (!source->fragments) continue;
        if (!steps) return TSR_E_NOMEM;
        for (uint32_t d = 0; d < ndim; d++)
            steps[d] = source->fragments[d] == source->entry->shape[d] ? 1 : source->entry->shape[d];
        source->fragments = steps;
    }
    return TSR_OK;
}

static tsr_status cut_fragments(gathering *g, tsr_error *err)
{
    TSR_TRY(open_steps(g, err));
    TSR_TRY(tsr_plan_each_write(g->plan, narrow_steps, g, err));
    for (size_t s = 0; s < g->rows.source_count; s++) {
        const tsr_dcp_output_entry *source = &g->rows.sources[s];
        uint64_t *steps = (uint64_t *)source->fragments;
        for (uint32_t d = 0; steps && d < source->entry->ndim; d++)
            steps[d] = steps[d] ? source->entry->shape[d] / steps[d] : 1;
    }
    return TSR_OK;
}

/* ---- layout ---- */

static tsr_status add_objects(gathering *g, tsr_error *err)
{
    for (size_t s = 0; s < g->rows.source_count; s++) {
        if (g->rows.sources[s].entry->kind == TSR_ENTRY_TENSOR) continue;
        tsr_dcp_piece *piece = tsr_vec_push(&g->pieces, err);
        if (!piece) return TSR_E_NOMEM;
        piece->source = s;
    }
    return TSR_OK;
}

static tsr_status sort_pieces(gathering *g, tsr_dcp_piece **out, tsr_error *err)
{
    const tsr_dcp_piece *pieces = g->pieces.items;
    tsr_arena *arena = g->rows.job->arena;
    const size_t *order;
    TSR_TRY(tsr_order_by_file(&g->pieces, offsetof(tsr_dcp_piece, file), tsr_plan_ranks(g->plan), arena, &order, err));
    *out = tsr_arena_array(arena, g->pieces.count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < g->pieces.count; i++) (*out)[i] = pieces[order[i]];
    return TSR_OK;
}

static tsr_status name_files(const gathering *g, tsr_str **out, tsr_error *err)
{
    const uint32_t ranks = (uint32_t)tsr_plan_ranks(g->plan);
    *out = tsr_arena_array(g->rows.job->arena, ranks, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < ranks; r++) {
        (*out)[r] =
            tsr_arena_format(g->rows.job->arena, err, "__%u_%u.distcp", (unsigned)r, (unsigned)g->rows.job->generation);
        if (!(*out)[r].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status lay_out(gathering *g, tsr_writer *out, tsr_error *err)
{
    tsr_str *files;
    tsr_dcp_piece *pieces;
    TSR_TRY(cut_fragments(g, err));
    TSR_TRY(add_objects(g, err));
    TSR_TRY(tsr_plan_each_write(g->plan, add_shard, g, err));
    TSR_TRY(sort_pieces(g, &pieces, err));
    TSR_TRY(name_files(g, &files, err));
    const tsr_dcp_contents contents = {
        .pieces = pieces, .piece_count = g->pieces.count, .files = files, .file_count = (uint32_t)tsr_plan_ranks(g->plan)};
    return dcp_rows_lay_out(&g->rows, &contents, out, err);
}

static tsr_status reshard(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    gathering g = {.plan = plan,
                   .pieces = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(tsr_dcp_piece))};
    tsr_status status = dcp_rows_of(job, plan, &g.rows, err);
    if (status == TSR_OK) status = lay_out(&g, out, err);
    tsr_vec_free(&g.pieces);
    return status;
}

const tsr_container_writers tsr_dcp_writers = {convert, reshard};
