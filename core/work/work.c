/* Makes a work: the container's writer lays everything out, and the stages' blits are divided into units. Processes units in
 * batches, and finishes the output. */
#include <stdlib.h>

#include "check/check_share.h"
#include "convert/convert_to.h"
#include "tessera/read.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/end_sum.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"
#include "work/work_parts.h"
#include "write/blit.h"
#include "write/dcp_write.h"

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
    uint64_t count = 0;
    for (uint64_t i = 0; i < job->out->row_count; i++) count += job->out->rows[i].left_out == tsr_put_aside;
    job->out->lacks_objects = !count;
    if (!count) return TSR_OK;
    tsr_vec text = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, 1);
    tsr_status status = emit_sidecar(job, &text, err);
    if (status == TSR_OK && !job->options->no_checksums)
        status = tsr_end_sum_append(&text, tsr_checkpoint_host(job->checkpoint), err);
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

/* Lays out a stage in `arena`, and orders its blits. */
static tsr_status work_stage(const tsr_work *work, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
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
    tsr_status status = work_stage(work, number, arena, &stage, err);
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

/* The units of a part, [*first, *end). A unit belongs to the part that contains the beginning of the unit's weight, if the parts divide the sum of all weights
 * evenly. */
static void work_part(const tsr_work *work, uint64_t part, uint64_t parts, size_t *first, size_t *end)
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
    work_part(work, part, parts, &first, &end);
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

typedef struct tsr_source_sums tsr_source_sums;

/* ---- source sums ---- */

/* Checks whether the bytes that were written match the CRCs stated in the source's archives. Nothing is read again: the CRCs
 * of a tensor's pieces, computed while they were written, are combined in row-major order, and so are the CRCs that the
 * source states for its chunks.
 *
 *   written   [ piece of rank 0      ][ piece of rank 1      ][ rank 2 ]   joined: CRC of the tensor's bytes
 *   stated    [ chunk ][ chunk ][ chunk ][ chunk ][ chunk ][ chunk ]       joined: the same, or the source is damaged
 *
 * Skips tensors that were cast, that are not split by rows in the source or the destination, or that have a chunk without a
 * stated CRC. */

#define LOOKED_FOR_AT_ONCE 1024u

/* A CRC of the first bytes of a tensor, in row-major order. */
typedef struct sum {
    uint64_t bytes;
    uint32_t crc;
    bool complete; /* it covers all bytes */
} sum;

/* A part of a tensor that is a contiguous run of its rows. */
typedef struct run {
    uint64_t first; /* index of its first byte */
    uint64_t bytes;
    const tsr_chunk *chunk;
} run;

struct tsr_source_sums {
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_ahead *ahead;
    sum *written; /* per entry: what was written so far */
};

static void source_sums_free(tsr_source_sums *sums);

/* `ahead` has what is already known about the chunks, or is NULL. */
static tsr_status source_sums_new(tsr_checkpoint *checkpoint, tsr_ahead *ahead, tsr_source_sums **out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_source_sums *sums = tsr_alloc(allocator, 1, sizeof *sums, err);
    if (!sums) return TSR_E_NOMEM;
    *sums =
        (tsr_source_sums){checkpoint, catalog, ahead, tsr_alloc(allocator, (size_t)catalog->entry_count, sizeof(sum), err)};
    if (!sums->written) {
        source_sums_free(sums);
        return TSR_E_NOMEM;
    }
    memset(sums->written, 0, (size_t)catalog->entry_count * sizeof(sum));
    *out = sums;
    return TSR_OK;
}

/* Accepts NULL. */
static void source_sums_free(tsr_source_sums *sums)
{
    if (!sums) return;
    const tsr_allocator *allocator = tsr_checkpoint_host(sums->checkpoint)->allocator;
    tsr_free(allocator, sums->written, (size_t)sums->catalog->entry_count, sizeof(sum));
    tsr_free(allocator, sums, 1, sizeof *sums);
}

static void join(sum *s, const run *r, uint32_t crc, uint64_t all)
{
    if (r->bytes == 0 || s->complete) return;
    if (r->first == 0) *s = (sum){r->bytes, crc, false};
    else if (r->first == s->bytes) *s = (sum){s->bytes + r->bytes, tsr_crc32_join(s->crc, crc, r->bytes), false};
    s->complete = s->bytes == all;
}

static int by_first(const void *a, const void *b)
{
    const run *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* The entry's chunks as runs in order. *count is 0 if one of them is not a run. */
static tsr_status sort_chunks(const tsr_entry *entry, tsr_arena *arena, run **out, uint64_t *count, tsr_error *err)
{
    const tsr_box whole = {entry->ndim, NULL, entry->shape};
    *count = 0;
    *out = tsr_arena_array(arena, (size_t)entry->chunk_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        (*out)[i].chunk = chunk;
        const tsr_box box = {entry->ndim, chunk->offsets, chunk->sizes};
        if (!tsr_find_run(entry->dtype, whole, box, &(*out)[i].first, &(*out)[i].bytes)) return TSR_OK;
    }
    *count = entry->chunk_count;
    if (*count) qsort(*out, (size_t)*count, sizeof **out, by_first);
    return TSR_OK;
}

/* The CRC of a whole tensor according to the source; not complete if the source does not state it. */
static tsr_status stated_sum(const tsr_source_sums *sums, const tsr_entry *entry, uint64_t all, tsr_arena *arena, sum *out,
                             tsr_error *err)
{
    run *runs;
    uint64_t count;
    tsr_stated_crc stated = {.is_stated = true};
    *out = (sum){0};
    TSR_TRY(sort_chunks(entry, arena, &runs, &count, err));
    for (uint64_t i = 0; i < count && stated.is_stated; i++) {
        if (runs[i].bytes == 0) continue;
        const tsr_found *known = tsr_ahead_find(sums->ahead, runs[i].chunk);
        if (known) stated = known->crc;
        else TSR_TRY(tsr_checkpoint_crc(sums->checkpoint, entry, runs[i].chunk, arena, &stated, err));
        if (stated.is_stated) join(out, &runs[i], stated.crc32, all);
    }
    return TSR_OK;
}

static tsr_status check_entry(const tsr_source_sums *sums, const tsr_entry *entry, const sum *written, tsr_error *err)
{
    sum stated;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(sums->checkpoint)->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_status status = stated_sum(sums, entry, written->bytes, arena, &stated, err);
    tsr_arena_free(arena);
    TSR_TRY(status);
    TSR_FAIL_IF(stated.complete && stated.crc != written->crc, err, TSR_E_FORMAT,
                "'%.*s' is damaged in the source: its bytes have CRC-32 %08x, but had %08x when they were saved; tessera "
                "validate --deep shows where, and --ignore-crc accepts the bytes as they are",
                TSR_STR_ARG(entry->fqn), (unsigned)written->crc, (unsigned)stated.crc);
    return TSR_OK;
}

/* Finds which bytes of which tensor a blit writes. *found is false if they are not a contiguous run. */
static tsr_status find_bytes(const tsr_blit *blit, const tsr_entry **entry, run *out, uint64_t *all, bool *found,
                             tsr_error *err)
{
    tsr_packed packed;
    *entry = blit->rows.entry ? blit->rows.entry : blit->entry;
    TSR_TRY(tsr_gather_pack(*entry, &packed, err));
    const tsr_box whole = {packed.ndim, NULL, packed.shape},
                  box = {packed.ndim, blit->offsets, blit->sizes ? blit->sizes : packed.shape};
    *out = (run){.first = blit->rows.byte_first, .bytes = blit->byte_length};
    *found = (blit->rows.entry || tsr_find_run(packed.dtype, whole, box, &out->first, &out->bytes)) &&
             tsr_dtype_bytes(packed.dtype, packed.elements, all);
    return TSR_OK;
}

static tsr_status add_blit(tsr_source_sums *sums, const tsr_blit *blit, tsr_error *err)
{
    const tsr_entry *entry;
    run r;
    uint64_t all;
    bool found;
    if (blit->literal || blit->dtype != blit->entry->dtype) return TSR_OK;
    TSR_TRY(find_bytes(blit, &entry, &r, &all, &found, err));
    if (!found) return TSR_OK;
    const bool listed = tsr_catalog_has(sums->catalog, entry);
    /* Or a whole storage, which is not listed. */
    sum own = {0}, *written = listed ? &sums->written[entry - sums->catalog->entries] : &own;
    join(written, &r, blit->crc, all);
    return own.complete ? check_entry(sums, entry, &own, err) : TSR_OK;
}

/* Adds blits that were written, with their CRCs. A tensor's pieces only count if they are added in the order of their
 * rows. */
static tsr_status source_sums_add(tsr_source_sums *sums, const tsr_blit *blits, size_t count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) TSR_TRY(add_blit(sums, &blits[i], err));
    return TSR_OK;
}

/* Looks up the stated CRCs of complete entries from *end on in one batch, which is large enough to keep the threads busy.
 * Moves *end after those entries. */
static tsr_status look_ahead(const tsr_source_sums *sums, uint64_t *end, tsr_error *err)
{
    TSR_TRY(tsr_ahead_make_room(sums->ahead, err));
    while (*end < sums->catalog->entry_count && tsr_ahead_waiting(sums->ahead) < LOOKED_FOR_AT_ONCE) {
        const tsr_entry *entry = &sums->catalog->entries[*end];
        if (sums->written[(*end)++].complete) TSR_TRY(tsr_ahead_want(sums->ahead, entry, NULL, err));
    }
    tsr_ahead_seek(sums->ahead);
    return TSR_OK;
}

/* Fails with TSR_E_FORMAT for a tensor whose CRCs differ. */
static tsr_status source_sums_check(const tsr_source_sums *sums, tsr_error *err)
{
    for (uint64_t i = 0, end = 0; i < sums->catalog->entry_count; i++) {
        if (i == end) TSR_TRY(look_ahead(sums, &end, err));
        if (sums->written[i].complete) TSR_TRY(check_entry(sums, &sums->catalog->entries[i], &sums->written[i], err));
    }
    return TSR_OK;
}

/* ---- run ---- */

#ifndef TSR_BATCH_UNITS     /* tests use small ones */
#define TSR_BATCH_UNITS 64u /* between two entries in the journal: a few seconds of work */
#endif

#define LANES_A_THREAD 2u /* so that enough lanes are left when one ends early */

/* ---- units ---- */

/* Units of one stage that are being processed: a few from each lane. */
typedef struct batch {
    tsr_work *work;
    tsr_unit *const *units; /* the units to which the lanes' indexes refer */
    tsr_sink sink;
    const tsr_stage *stage;
    const tsr_lane *lanes;
    size_t lane_count;
    tsr_unit_blits of;
} batch;

/* A run over a part, and its progress. */
typedef struct running {
    tsr_work *work;
    tsr_storage_reader part;
    tsr_unit **units; /* units of the part, in the order in which they are processed */
    tsr_ring *ring;
    const tsr_work_journal *journal;
    tsr_progress progress;
    uint64_t byte_done, byte_total;
    size_t units_left;
    tsr_stage stage; /* the stage that is laid out */
    size_t most_lanes;
    tsr_lane *lanes; /* the lanes' remaining units, and the batch: most_lanes each */
    tsr_lane *taken;
} running;

static bool step(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    const running *r = ctx;
    const tsr_progress *outer = r->work->job.options->progress;
    (void)byte_total;
    return !outer || !outer->step || outer->step(outer->ctx, r->byte_done + byte_done, r->byte_total);
}

static bool is_whole(const batch *b, size_t i)
{
    return b->of.blits[i].byte_length == b->stage->blits[b->of.owners[i]].byte_length;
}

static tsr_status blit_done(void *ctx, size_t i, tsr_error *err)
{
    const batch *b = ctx;
    if (!is_whole(b, i)) return TSR_OK; /* what follows a divided blit is written at the end */
    b->stage->blits[b->of.owners[i]].crc = b->of.blits[i].crc;
    return b->stage->behind ? b->stage->behind(b->stage, b->of.owners[i], &b->sink, err) : TSR_OK;
}

/* Adds what casts lost in blit `i` of the unit: while it was written, and while layers below it computed its elements. */
static void keep_losses(const batch *b, tsr_unit *unit, uint32_t i, const tsr_blit *blit)
{
    tsr_checkpoint *checkpoint = b->work->job.checkpoint;
    const bool listed = !blit->literal && tsr_catalog_has(tsr_checkpoint_catalog(checkpoint), blit->entry);
    const tsr_entry *entry = blit->entry;
    tsr_cast_losses losses = blit->losses;
    if (!blit->literal && !listed) entry = tsr_checkpoint_entry(checkpoint, entry->fqn); /* a shard stands for its tensor */
    if (!blit->literal && entry) tsr_checkpoint_take_losses(checkpoint, entry, &losses);
    if (losses.zeros && !unit->losses.zeros) unit->first_zero = i;
    if (losses.overflows && !unit->losses.overflows) unit->first_overflow = i;
    tsr_cast_losses_add(&unit->losses, losses);
}

static void keep_sums(const batch *b)
{
    size_t at = 0;
    for (size_t l = 0; l < b->lane_count; l++) {
        for (size_t u = b->lanes[l].first; u < b->lanes[l].end; u++) {
            tsr_unit *unit = b->units[u];
            for (uint32_t i = 0; i < unit->count; i++, at++) {
                unit->crcs[i] = b->of.blits[at].crc;
                keep_losses(b, unit, i, &b->of.blits[at]);
            }
            unit->done = true;
        }
    }
}

static tsr_status append_records(const running *r, const batch *b, tsr_error *err)
{
    tsr_output *output = r->work->output;
    tsr_vec records = tsr_vec_of(r->work->host->allocator, 1);
    tsr_status status = output->sync ? output->sync(output, err) : TSR_OK;
    for (size_t l = 0; l < b->lane_count; l++) {
        for (size_t u = b->lanes[l].first; u < b->lanes[l].end && status == TSR_OK; u++)
            status = tsr_work_put_record(r->work, (size_t)(b->units[u] - tsr_work_unit(r->work, 0)), &records, err);
    }
    if (status == TSR_OK) status = r->journal->append(r->journal->ctx, (tsr_str){records.items, records.count}, err);
    tsr_vec_free(&records);
    return status;
}

/* Processes the units of the first `lane_count` taken lanes, and appends their records to the journal. */
static tsr_status run_batch(running *r, size_t lane_count, tsr_error *err)
{
    tsr_work *work = r->work;
    batch b = {.work = work,
               .units = r->units,
               .sink = {work->output, work->numbers},
               .stage = &r->stage,
               .lanes = r->taken,
               .lane_count = lane_count};
    const tsr_lanes lanes = {.units = b.units, .unit_bytes = work->unit_bytes, .lanes = b.lanes, .count = lane_count};
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_units_blits(b.stage, &lanes, arena, &b.of, err);
    for (size_t i = 0; i < b.of.count && status == TSR_OK; i++) b.of.blits[i].file = work->numbers[b.of.blits[i].file];
    const tsr_blit_run blits = {.checkpoint = work->job.checkpoint,
                                .output = work->output,
                                .ring = r->ring,
                                .ahead = work->ahead,
                                .blits = b.of.blits,
                                .count = b.of.count,
                                .lane_ends = b.of.ends,
                                .lane_count = lane_count,
                                .crc = work->crc,
                                .progress = &r->progress,
                                .done = blit_done,
                                .ctx = &b};
    if (status == TSR_OK) status = tsr_blits_write(&blits, err);
    if (status == TSR_OK) keep_sums(&b);
    tsr_arena_free(arena);
    for (size_t l = 0; l < lane_count; l++) {
        r->units_left -= b.lanes[l].end - b.lanes[l].first;
        for (size_t u = b.lanes[l].first; u < b.lanes[l].end; u++) r->byte_done += r->units[u]->bytes;
    }
    const bool wanted = r->journal && (r->units_left || !r->journal->finishes);
    return status == TSR_OK && wanted ? append_records(r, &b, err) : status;
}

/* Takes up to `each` units from each of the run's lanes. Returns how many lanes had some. */
static size_t take_batch(running *r, size_t count, size_t each)
{
    size_t taken = 0;
    for (size_t l = 0; l < count; l++) {
        r->taken[taken] = tsr_lane_take(&r->lanes[l], r->units, each);
        taken += r->taken[taken].first < r->taken[taken].end;
    }
    return taken;
}

/* Whether units are ordered by server. A single process accesses one server after the other in any order. */
static bool goes_by_server(const running *r)
{
    return r->work->options.storage && r->part.readers > 1;
}

/* Processes units [first, end) of the run, which belong to one stage. */
static tsr_status run_stage(running *r, size_t first, size_t end, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(r->work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = work_stage(r->work, r->units[first]->stage, arena, &r->stage, err);
    if (status == TSR_OK && goes_by_server(r))
        status = tsr_units_order(r->work, &r->stage, r->part, r->units + first, end - first, err);
    while (first < end && status == TSR_OK) {
        const size_t count = tsr_lanes_cut(&r->stage, r->units, first, end, r->most_lanes, r->lanes);
        const size_t each = count < TSR_BATCH_UNITS ? TSR_BATCH_UNITS / count : 1;
        first = r->lanes[count - 1].end;
        for (size_t taken; status == TSR_OK && (taken = take_batch(r, count, each)) > 0;) status = run_batch(r, taken, err);
    }
    tsr_arena_free(arena);
    return status;
}

/* Allocates what a run needs: the ring, lanes, and units [first, + count) in their original order. */
static tsr_status open_run(running *r, size_t first, size_t count, tsr_error *err)
{
    const tsr_allocator *allocator = r->work->host->allocator;
    TSR_TRY(tsr_ring_new(r->work->host, r->work->job.options->max_memory, &r->ring, err));
    r->lanes = tsr_alloc(allocator, 2 * r->most_lanes, sizeof *r->lanes, err);
    r->units = r->lanes ? tsr_alloc(allocator, count ? count : 1, sizeof *r->units, err) : NULL;
    if (!r->units) return TSR_E_NOMEM;
    r->taken = r->lanes + r->most_lanes;
    for (size_t u = 0; u < count; u++) {
        r->units[u] = tsr_work_unit(r->work, first + u);
        r->byte_total += r->units[u]->done ? 0 : r->units[u]->bytes;
        r->units_left += !r->units[u]->done;
    }
    return TSR_OK;
}

static tsr_status run_range(tsr_work *work, tsr_storage_reader part, const tsr_lane *range, const tsr_work_journal *journal,
                            tsr_error *err)
{
    const tsr_allocator *allocator = work->host->allocator;
    const uint32_t threads = tsr_threads(work->host);
    const size_t count = range->end - range->first;
    running r = {.work = work, .part = part, .journal = journal};
    r.most_lanes = threads > 1 && !goes_by_server(&r) ? LANES_A_THREAD * threads : 1; /* lanes share no file: work_parts.h */
    r.progress = (tsr_progress){step, &r};
    tsr_status status = open_run(&r, range->first, count, err);
    for (size_t u = 0, end; u < count && status == TSR_OK; u = end) {
        bool left = false;
        for (end = u; end < count && r.units[end]->stage == r.units[u]->stage; end++) left |= !r.units[end]->done;
        if (left) status = run_stage(&r, u, end, err);
    }
    tsr_free(allocator, r.units, count ? count : 1, sizeof *r.units);
    tsr_free(allocator, r.lanes, 2 * r.most_lanes, sizeof *r.lanes);
    tsr_ring_free(r.ring);
    return status;
}

tsr_status tsr_work_run(tsr_work *work, uint64_t part, uint64_t parts, const tsr_work_journal *journal, tsr_error *err)
{
    tsr_lane range;
    TSR_FAIL_IF(part >= parts, err, TSR_E_USAGE, "there is no part %llu of %llu", (unsigned long long)part,
                (unsigned long long)parts);
    work_part(work, part, parts, &range.first, &range.end);
    return run_range(work, (tsr_storage_reader){part, parts}, &range, journal, err);
}

/* Assigns each file to the part in which its first unit begins, if the parts divide the sum of all weights evenly. */
static void choose_owners(const tsr_work *work, uint64_t parts, uint64_t *owners)
{
    const uint64_t each = work->weight / parts + 1;
    uint64_t at = 0;
    for (uint32_t f = 0; f < work->conversion.file_count; f++) owners[f] = parts;
    for (size_t u = 0; u < work->units.count; u++) {
        const tsr_unit *unit = tsr_work_unit(work, u);
        if (owners[unit->file] == parts) owners[unit->file] = at / each;
        at += tsr_unit_weight(unit);
    }
}

tsr_status tsr_work_run_files(tsr_work *work, uint64_t part, uint64_t parts, tsr_error *err)
{
    const size_t count = work->units.count;
    uint64_t *owners = tsr_arena_array(work->job.arena, work->conversion.file_count, sizeof *owners, err);
    bool *were_done = tsr_arena_array(work->job.arena, count, sizeof *were_done, err);
    if (!owners || !were_done) return TSR_E_NOMEM;
    choose_owners(work, parts, owners);
    for (size_t u = 0; u < count; u++) { /* units of other parts are skipped as if they were done */
        tsr_unit *unit = tsr_work_unit(work, u);
        were_done[u] = unit->done;
        unit->done |= owners[unit->file] != part;
    }
    const tsr_status status = run_range(work, (tsr_storage_reader){0, 1}, &(tsr_lane){0, count}, NULL, err);
    for (size_t u = 0; u < count; u++) {
        tsr_unit *unit = tsr_work_unit(work, u);
        if (owners[unit->file] != part) unit->done = were_done[u];
    }
    return status;
}

/* ---- finishing ---- */

static void join_sums(const tsr_stage *stage, const tsr_unit *unit)
{
    tsr_blit *blit = tsr_stage_blit(stage, unit->first);
    if (unit->is_tile) {
        blit->crc = unit->tile ? tsr_crc32_join(blit->crc, unit->crcs[0], unit->bytes) : unit->crcs[0];
        return;
    }
    for (uint32_t i = 0; i < unit->count; i++) tsr_stage_blit(stage, unit->first + i)->crc = unit->crcs[i];
}

static tsr_status add_lost(tsr_work *work, tsr_lost_values *to, uint64_t count, const tsr_blit *blit, tsr_error *err)
{
    if (count && !to->count)
        *to = (tsr_lost_values){.fqn = tsr_arena_str(work->job.arena, blit->entry->fqn, err), .dtype = blit->dtype};
    to->count += count;
    return !count || to->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_losses(tsr_work *work, const tsr_stage *stage, const tsr_unit *unit, tsr_error *err)
{
    const tsr_blit *zero = tsr_stage_blit(stage, unit->first + unit->first_zero),
                   *overflow = tsr_stage_blit(stage, unit->first + unit->first_overflow);
    TSR_TRY(add_lost(work, &work->conversion.zeros, unit->losses.zeros, zero, err));
    return add_lost(work, &work->conversion.overflows, unit->losses.overflows, overflow, err);
}

static tsr_status finish_stage(tsr_work *work, const tsr_stage *stage, size_t first, size_t end, tsr_error *err)
{
    const tsr_sink sink = {work->output, work->numbers};
    for (size_t u = first; u < end; u++) {
        join_sums(stage, tsr_work_unit(work, u));
        TSR_TRY(add_losses(work, stage, tsr_work_unit(work, u), err));
    }
    for (size_t u = first; u < end && stage->behind; u++) {
        const tsr_unit *unit = tsr_work_unit(work, u);
        if (unit->is_tile && unit->tile == 0) TSR_TRY(stage->behind(stage, stage->order.numbers[unit->first], &sink, err));
    }
    return stage->rest ? stage->rest(stage, &sink, err) : TSR_OK;
}

static tsr_status finish_stages(tsr_work *work, tsr_source_sums *sums, tsr_error *err)
{
    size_t first = 0, end;
    work->conversion.zeros = work->conversion.overflows = (tsr_lost_values){.count = 0};
    for (uint32_t s = 0; s < work->writer.stage_count; s++, first = end) {
        for (end = first; end < work->units.count && tsr_work_unit(work, end)->stage == s;) end++;
        tsr_stage stage;
        tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
        if (!arena) return TSR_E_NOMEM;
        tsr_status status = work_stage(work, s, arena, &stage, err);
        if (status == TSR_OK) status = finish_stage(work, &stage, first, end, err);
        if (status == TSR_OK && sums) status = source_sums_add(sums, stage.blits, stage.count, err);
        tsr_arena_free(arena);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

/* Finishes all stages, and checks what they read. */
static tsr_status finish_checked(tsr_work *work, tsr_error *err)
{
    tsr_source_sums *sums = NULL;
    tsr_checkpoint *source = work->job.checkpoint;
    if (work->job.options->ignore_crc || !tsr_checkpoint_has_crcs(source)) return finish_stages(work, NULL, err);
    TSR_TRY(source_sums_new(source, work->ahead, &sums, err));
    tsr_status status = finish_stages(work, sums, err);
    if (status == TSR_OK) status = source_sums_check(sums, err);
    source_sums_free(sums);
    return status;
}

tsr_status tsr_work_surround(tsr_work *work, tsr_error *err)
{
    return finish_stages(work, NULL, err);
}

tsr_status tsr_work_finish(tsr_work *work, tsr_error *err)
{
    const uint64_t left = tsr_work_left(work, 0, 1);
    TSR_FAIL_IF(left, err, TSR_E_USAGE, "%llu of %zu units of work are not done", (unsigned long long)left,
                work->units.count);
    TSR_TRY(finish_checked(work, err));
    const uint32_t marker = work->writer.marker;
    work->conversion.marker = marker < work->conversion.file_count ? work->numbers[marker] : TSR_NO_FILE;
    if (!work->writer.finish) return TSR_OK;
    return work->writer.finish(work->writer.ctx, work->output, &work->conversion.marker, err);
}
