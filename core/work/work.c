/* Makes a work: the container's writer lays everything out, and the stages' blits are divided into units. */
#include "check/compare_copy.h"
#include "convert/reshard_to.h"
#include "tessera/read.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/map.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"
#include "work/lanes.h"
#include "work/unit_servers.h"
#include "work/work_parts.h"
#include "write/object_json.h"

/* ---- lanes ---- */

static uint32_t group_of(const tsr_stage *stage, const tsr_unit *unit)
{
    return tsr_stage_blit(stage, unit->first)->file / stage->order.group_files;
}

static uint64_t weight_left(tsr_unit *const *units, size_t first, size_t end)
{
    uint64_t weight = 0;
    for (size_t u = first; u < end; u++) weight += units[u]->done ? 0 : tsr_unit_weight(units[u]);
    return weight;
}

size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes)
{
    size_t count = 1, grouped = first;
    if (first == end) return 0;
    while (grouped < end && units[grouped]->first < stage->order.grouped) grouped++;
    lanes[0] = (tsr_lane){first, grouped};
    if (grouped > first) return 1;
    const uint64_t each = weight_left(units, first, end) / most;
    uint64_t weight = 0;
    for (size_t u = first; u < end; lanes[count - 1].end = ++u) {
        const bool other = u > first && group_of(stage, units[u]) != group_of(stage, units[u - 1]);
        if (other && count < most && weight >= count * each - each / 8) lanes[count++] = (tsr_lane){u, u};
        weight += units[u]->done ? 0 : tsr_unit_weight(units[u]);
    }
    return count;
}

tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most)
{
    while (lane->first < lane->end && units[lane->first]->done) lane->first++;
    tsr_lane taken = {lane->first, lane->first};
    while (taken.end < lane->end && taken.end - taken.first < most && !units[taken.end]->done) taken.end++;
    lane->first = taken.end;
    return taken;
}

/* ---- copies ---- */

typedef struct copies {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    tsr_ring *ring;
    tsr_map *boxes;     /* offsets and sizes → chunk */
    tsr_arena *scratch; /* keys, strides */
    tsr_gather *chunks; /* NULL until something must be read */
    tsr_error *err;
} copies;

static tsr_str key_of(const copies *c, const tsr_chunk *chunk)
{
    const size_t row = c->entry->ndim * sizeof(uint64_t);
    char *key = tsr_arena_array(c->scratch, 2 * row + 1, 1, c->err);
    if (!key) return (tsr_str){NULL, 0};
    if (row) memcpy(key, chunk->offsets, row);
    if (row) memcpy(key + row, chunk->sizes, row);
    return (tsr_str){key, 2 * row};
}

static tsr_status index_chunks(copies *c)
{
    for (uint64_t i = 0; i < c->entry->chunk_count && i < UINT32_MAX; i++) {
        const tsr_str key = key_of(c, &c->entry->chunks[i]);
        if (!key.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(c->boxes, key, (uint32_t)i, NULL, NULL, c->err));
    }
    return TSR_OK;
}

/* Whether the source states equal CRCs for both chunks. */
static tsr_status match_sums(copies *c, const tsr_chunk *chunk, const tsr_chunk *replica, bool *same)
{
    tsr_stated_crc first, second;
    *same = false;
    if (!tsr_checkpoint_has_crcs(c->checkpoint)) return TSR_OK;
    TSR_TRY(tsr_checkpoint_crc(c->checkpoint, c->entry, chunk, c->scratch, &first, c->err));
    if (!first.is_stated) return TSR_OK;
    TSR_TRY(tsr_checkpoint_crc(c->checkpoint, c->entry, replica, c->scratch, &second, c->err));
    *same = second.is_stated && first.crc32 == second.crc32;
    return TSR_OK;
}

static tsr_status check_copy(copies *c, const tsr_chunk *replica)
{
    bool same = false;
    tsr_difference difference = {0};
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    const tsr_str key = key_of(c, replica);
    if (!key.data) return TSR_E_NOMEM;
    const uint32_t at = tsr_map_get(c->boxes, key, UINT32_MAX);
    if (replica->file >= store->file_count) return TSR_OK; /* missing files are findings already */
    if (at != UINT32_MAX && c->entry->chunks[at].file < store->file_count)
        TSR_TRY(match_sums(c, &c->entry->chunks[at], replica, &same));
    if (same) return TSR_OK;
    if (!c->chunks) TSR_TRY(tsr_gather_open(c->checkpoint, c->entry, NULL, &c->chunks, c->err));
    TSR_TRY(tsr_compare_copy(c->chunks, replica, c->ring, &difference, c->err));
    TSR_FAIL_AT(
        difference.differing, c->err, TSR_E_FORMAT, replica->byte_offset,
        "'%.*s' is replicated, but %llu of %llu elements of the copy in %.*s differ from the first copy; leave it out with "
        "--exclude, or replace the file",
        TSR_STR_ARG(c->entry->fqn), (unsigned long long)difference.differing, (unsigned long long)difference.elements,
        TSR_STR_ARG(store->files[replica->file].name));
    return TSR_OK;
}

/* Fails with TSR_E_FORMAT, naming the entry and the file, if a replica of `entry` does not have the same elements as the
 * chunk with the same box. Copies with equal CRCs are not read. All others are read along with their chunks, so this costs
 * at most twice the replicated bytes. Also fails if reading fails. */
static tsr_status tsr_check_copies(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    copies c = {.checkpoint = checkpoint, .entry = entry, .ring = ring, .err = err};
    c.boxes = tsr_map_new(host->allocator, 0, err);
    c.scratch = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    tsr_status status = c.boxes && c.scratch ? index_chunks(&c) : TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->replica_count && status == TSR_OK; i++) status = check_copy(&c, &entry->replicas[i]);
    tsr_gather_close(c.chunks);
    tsr_map_free(c.boxes);
    tsr_arena_free(c.scratch);
    return status;
}

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
