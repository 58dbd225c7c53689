/* Makes a work: the container's writer lays everything out, and the stages' blits are divided into units. */
#include "convert/reshard_to.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"
#include "work/copies.h"
#include "work/unit_servers.h"
#include "work/work_parts.h"
#include "write/object_json.h"

/* ---- the sidecar ---- */

static tsr_status emit_sidecar(const tsr_conversion_job *job, tsr_vec *text, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, text, 1, err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.objects/1");
    tsr_json_put_array(&json, "objects");
    for (uint64_t i = 0; i < job->out->row_count; i++) {
        const tsr_converted *row = &job->out->rows[i];
        if (row->left_out != tsr_put_aside) continue;
        tsr_json_object(&json);
        tsr_json_put_str(&json, "fqn", row->entry->fqn);
        tsr_put_object(&json, row->entry, tsr_checkpoint_host(job->checkpoint));
        tsr_json_object_end(&json);
    }
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static tsr_status put_objects_aside(const tsr_conversion_job *job, tsr_error *err)
{
    if (job->options->objects != TSR_OBJECTS_SIDECAR) return TSR_OK;
    tsr_vec text = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, 1);
    tsr_status status = emit_sidecar(job, &text, err);
    if (status == TSR_OK) {
        job->out->sidecar = tsr_arena_str(job->arena, (tsr_str){text.items, text.count}, err);
        if (!job->out->sidecar.data) status = TSR_E_NOMEM;
    }
    tsr_vec_free(&text);
    return status;
}

/* ---- layout ---- */

static tsr_status choose_writer(tsr_work *work, const tsr_plan *plan, tsr_error *err)
{
    static const struct {
        tsr_status (*convert)(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err);
        tsr_status (*reshard)(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
    } writers[] = {
        [TSR_TO_SAFETENSORS] = {tsr_convert_to_safetensors, tsr_reshard_to_safetensors},
        [TSR_TO_TORCH] = {tsr_convert_to_torch, tsr_reshard_to_torch},
        [TSR_TO_DCP] = {tsr_convert_to_dcp, tsr_reshard_to_dcp},
        [TSR_TO_MEGATRON] = {tsr_convert_to_dcp, tsr_reshard_to_dcp},
        [TSR_TO_DEEPSPEED_UNIVERSAL] = {tsr_convert_to_universal, NULL},
        [TSR_TO_RANKS] = {tsr_convert_to_ranks, NULL},
    };
    const tsr_container to = work->job.options->to;
    if (!plan) return writers[to].convert(&work->job, &work->writer, err);
    TSR_FAIL_IF(tsr_plan_ranks(plan) > UINT32_MAX / 2, err, TSR_E_LIMIT, "too many ranks to write files for");
    TSR_FAIL_IF(to == TSR_TO_DEEPSPEED_UNIVERSAL, err, TSR_E_USAGE,
                "a universal checkpoint can be loaded on any number of ranks; write it with convert instead of for a mesh");
    TSR_FAIL_IF(to == TSR_TO_RANKS, err, TSR_E_USAGE,
                "for --to ranks, tensors are split by a --shards map, not by a mesh with placements");
    return writers[to].reshard(&work->job, plan, &work->writer, err);
}

/* Rejects too many repeated elements, before there would be too many units. */
static tsr_status check_repeats(const tsr_work *work, tsr_error *err)
{
    const tsr_conversion *conversion = &work->conversion;
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, work->job.checkpoint);
    for (uint64_t i = 0; i < conversion->row_count && status == TSR_OK; i++) {
        if (conversion->rows[i].written && !conversion->rows[i].second_of)
            status = tsr_repeats_add(&repeats, conversion->rows[i].entry, NULL, NULL, NULL, err);
    }
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

/* Only one copy of a replicated tensor is written, so the others must be equal to it. This comes after the check of repeated
 * elements, which also limits what is compared here. */
static tsr_status check_copies(const tsr_work *work, tsr_error *err)
{
    const tsr_conversion *conversion = &work->conversion;
    tsr_ring *ring = NULL;
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < conversion->row_count && status == TSR_OK; i++) {
        const tsr_converted *row = &conversion->rows[i];
        if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR || !row->entry->replica_count) continue;
        if (!ring) status = tsr_ring_new(work->host, work->job.options->max_memory, &ring, err);
        if (status == TSR_OK) status = tsr_check_copies(work->job.checkpoint, row->entry, ring, err);
    }
    tsr_ring_free(ring);
    return status;
}

tsr_status tsr_work_stage(const tsr_work *work, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(work->job.checkpoint);
    TSR_TRY(work->writer.stage(work->writer.ctx, number, arena, out, err));
    return tsr_blits_order(catalog, out->blits, out->count, arena, &out->order, err);
}

static tsr_status cut_stage(tsr_work *work, uint32_t number, tsr_error *err)
{
    tsr_stage stage;
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_work_stage(work, number, arena, &stage, err);
    const size_t before = work->units.count;
    if (status == TSR_OK) status = tsr_units_cut(&stage, number, work->unit_bytes, &work->units, err);
    const size_t count = work->units.count - before;
    if (status == TSR_OK && count && work->options.storage)
        status = tsr_units_find_servers(work, &stage, tsr_work_unit(work, before), count, err);
    tsr_arena_free(arena);
    return status;
}

static tsr_status cut_stages(tsr_work *work, tsr_error *err)
{
    size_t count = 0;
    for (uint32_t s = 0; s < work->writer.stage_count; s++) TSR_TRY(cut_stage(work, s, err));
    for (size_t u = 0; u < work->units.count; u++) {
        work->weight += tsr_unit_weight(tsr_work_unit(work, u));
        count += tsr_work_unit(work, u)->count;
    }
    work->crcs = tsr_arena_array(work->job.arena, count, sizeof *work->crcs, err);
    work->numbers = tsr_arena_array(work->job.arena, work->conversion.file_count, sizeof *work->numbers, err);
    if (!work->crcs || !work->numbers) return TSR_E_NOMEM;
    for (size_t u = 0, at = 0; u < work->units.count; at += tsr_work_unit(work, u++)->count)
        tsr_work_unit(work, u)->crcs = work->crcs + at;
    return TSR_OK;
}

tsr_status tsr_work_new(tsr_checkpoint *checkpoint, const tsr_convert_options *options, uint32_t generation,
                        tsr_arena *arena, tsr_work **out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_convert_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_convert_options, err));
    tsr_work *work = tsr_alloc(host->allocator, 1, sizeof *work, err);
    if (!work) return TSR_E_NOMEM;
    *work = (tsr_work){.job = {checkpoint, &work->options, generation, arena, &work->conversion},
                       .options = own,
                       .conversion = {.marker = TSR_NO_FILE},
                       .host = host,
                       .unit_bytes = own.unit_bytes ? own.unit_bytes : TSR_UNIT_BYTES,
                       .units = tsr_vec_of(host->allocator, sizeof(tsr_unit))};
    tsr_status status = choose_writer(work, own.plan, err);
    work->crc = work->writer.crc || tsr_checkpoint_has_crcs(checkpoint);
    if (status == TSR_OK) status = check_repeats(work, err);
    if (status == TSR_OK) status = cut_stages(work, err);
    if (status == TSR_OK) status = check_copies(work, err);
    if (status == TSR_OK) status = put_objects_aside(&work->job, err);
    if (status == TSR_OK) status = tsr_ahead_new(checkpoint, &work->ahead, err);
    if (status != TSR_OK) {
        tsr_work_free(work);
        return status;
    }
    *out = work;
    return TSR_OK;
}

void tsr_work_free(tsr_work *work)
{
    if (!work) return;
    tsr_vec_free(&work->units);
    tsr_ahead_free(work->ahead);
    tsr_free(work->host->allocator, work, 1, sizeof *work);
}

/* ---- queries ---- */

const tsr_conversion *tsr_work_conversion(const tsr_work *work)
{
    return &work->conversion;
}

uint64_t tsr_work_units(const tsr_work *work)
{
    return work->units.count;
}

/* A unit belongs to the part that contains the beginning of the unit's weight, if the parts divide the sum of all weights
 * evenly. */
void tsr_work_part(const tsr_work *work, uint64_t part, uint64_t parts, size_t *first, size_t *end)
{
    const uint64_t each = work->weight / parts, more = work->weight % parts;
    const uint64_t from = part * each + (part < more ? part : more);
    const uint64_t to = part + 1 == parts ? UINT64_MAX : from + each + (part < more);
    uint64_t at = 0;
    size_t u = 0;
    for (; u < work->units.count && at < from; u++) at += tsr_unit_weight(tsr_work_unit(work, u));
    *first = u;
    for (; u < work->units.count && at < to; u++) at += tsr_unit_weight(tsr_work_unit(work, u));
    *end = u;
}

uint64_t tsr_work_left(const tsr_work *work, uint64_t part, uint64_t parts)
{
    size_t first, end;
    uint64_t left = 0;
    tsr_work_part(work, part, parts, &first, &end);
    for (size_t u = first; u < end; u++) left += !tsr_work_unit(work, u)->done;
    return left;
}

/* Forgets what casts lost when tensors were read before they are written, such as to compare them. */
static void drop_losses(const tsr_work *work)
{
    tsr_cast_losses ignored = {.zeros = 0};
    for (uint64_t i = 0; i < work->conversion.row_count; i++)
        tsr_checkpoint_take_losses(work->job.checkpoint, work->conversion.rows[i].entry, &ignored);
}

tsr_status tsr_work_open(tsr_work *work, tsr_output *output, tsr_error *err)
{
    drop_losses(work);
    const tsr_conversion *c = &work->conversion;
    work->output = output;
    for (uint32_t f = 0; f < c->file_count; f++) {
        work->numbers[f] = TSR_NO_FILE;
        if (c->file_sizes[f]) TSR_TRY(output->create(output, c->files[f], c->file_sizes[f], &work->numbers[f], err));
    }
    return TSR_OK;
}
