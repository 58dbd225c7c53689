/* What a Megatron checkpoint has in addition to a DCP: objects in shards, fragments, common.pt, metadata.json.
 *
 *   stage 0    __R_N.distcp                 as in a DCP
 *   stage 1    common.pt                    the rows of the part "common"; empty if the source has no such part
 *   finish     .metadata, metadata.json     the marker last, as Megatron-Core writes them
 *
 * Source: megatron/core/dist_checkpointing, serialization.py and core.py, of Megatron-Core 0.14 and 0.16. */
#include "base/cursor.h"
#include "convert/dcp_rows.h"
#include "formats/megatron/megatron.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "write/blit.h"
#include "write/torch_plan.h"

#define COMMON "common."

static const char document[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                               "\"common_backend\": \"torch\", \"common_backend_version\": 1}";

/* ---- rows ---- */

const char *tsr_megatron_refusal(const tsr_converted *row)
{
    tsr_shard_name shard;
    const bool object = row->entry->kind != TSR_ENTRY_TENSOR, slash = memchr(row->name.data, '/', row->name.size) != NULL;
    if (object && slash && !tsr_shard_name_of(row->name, &shard))
        return "has a '/' in its name, which Megatron-Core puts between an object and its shards";
    return tsr_torch_refusal(row);
}

tsr_status tsr_megatron_part_rows(tsr_dcp_rows *rows, tsr_error *err)
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

tsr_status tsr_megatron_add_sources(const tsr_dcp_rows *rows, tsr_converted *row, tsr_vec *sources, tsr_error *err)
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
    TSR_TRY(output->create(output, TSR_STR("metadata.json"), sizeof document - 1, marker, err));
    return output->write_at(output, *marker, 0, document, sizeof document - 1, err);
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
    for (uint64_t i = 0; i < rows->chosen.count; i++) {
        tsr_converted *row = &rows->chosen.rows[i];
        if (!row->written || !rows->in_common[i]) continue;
        row->file = w->common_file;
        tsr_torch_tensor *source = row->cast ? tsr_torch_plan_source(&w->common, row->entry) : NULL;
        if (source) source->dtype = row->dtype;
    }
    return tsr_torch_plan_lay_out(&w->common, err);
}

tsr_status tsr_megatron_wrap(tsr_dcp_rows *rows, tsr_writer *writer, tsr_error *err)
{
    tsr_conversion *out = rows->job->out;
    const uint32_t count = out->file_count;
    wrapping *w = TSR_ARENA_NEW(rows->job->arena, wrapping, err);
    tsr_str *files = tsr_arena_array(rows->job->arena, (size_t)count + 1, sizeof *files, err);
    uint64_t *sizes = tsr_arena_array(rows->job->arena, (size_t)count + 1, sizeof *sizes, err);
    if (!w || !files || !sizes) return TSR_E_NOMEM;
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
    for (uint32_t i = 0; i < w->common.storage_count; i++) out->byte_total += w->common.blits[i].byte_length;
    *writer =
        (tsr_writer){.stage_count = w->dcp.stage_count + 1, .crc = true, .stage = stage_of, .finish = finish, .ctx = w};
    return TSR_OK;
}
