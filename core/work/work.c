/* Makes a work: the container's writer lays everything out. Finishes the output once all units are done, and compares it with the
 * CRCs that the source states. */
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
#include "tessera/sys/work.h"
#include "work/work_parts.h"
#include "write/dcp_write.h"
#include "write/write_item.h"

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
    static const tsr_container_writers *const writers[] = {
        [TSR_TO_SAFETENSORS] = &tsr_safetensors_writers,
        [TSR_TO_TORCH] = &tsr_torch_writers,
        [TSR_TO_DCP] = &tsr_dcp_writers,
        [TSR_TO_MEGATRON] = &tsr_dcp_writers,
        [TSR_TO_DEEPSPEED_UNIVERSAL] = &tsr_universal_writers,
        [TSR_TO_RANKS] = &tsr_ranks_writers,
    };
    const tsr_container to = work->job.options->to;
    if (!plan) return writers[to]->convert(&work->job, &work->writer, err);
    TSR_FAIL_IF(tsr_plan_ranks(plan) > UINT32_MAX / 2, err, TSR_E_LIMIT, "too many ranks to write files for");
    TSR_FAIL_IF(to == TSR_TO_DEEPSPEED_UNIVERSAL, err, TSR_E_USAGE,
                "a universal checkpoint can be loaded on any number of ranks; write it with convert instead of for a mesh");
    TSR_FAIL_IF(to == TSR_TO_RANKS, err, TSR_E_USAGE,
                "for --to ranks, tensors are split by a --shards map, not by a mesh with placements");
    return writers[to]->reshard(&work->job, plan, &work->writer, err);
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
                       .unit_bytes = own.unit_bytes,
                       .units = tsr_vec_of(host->allocator, sizeof(tsr_unit))};
    tsr_status status = choose_writer(work, own.plan, err);
    work->crc = work->writer.crc || tsr_checkpoint_has_crcs(checkpoint);
    if (status == TSR_OK) status = check_repeats(work, err);
    if (status == TSR_OK) status = tsr_work_cut(work, err);
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

/* Finds which bytes of which tensor a write item writes. *found is false if they are not a contiguous run. */
static tsr_status find_bytes(const tsr_write_item *write_item, const tsr_entry **entry, run *out, uint64_t *all, bool *found,
                             tsr_error *err)
{
    tsr_packed packed;
    *entry = write_item->rows.entry ? write_item->rows.entry : write_item->entry;
    TSR_TRY(tsr_gather_pack(*entry, &packed, err));
    const tsr_box whole = {packed.ndim, NULL, packed.shape},
                  box = {packed.ndim, write_item->offsets, write_item->sizes ? write_item->sizes : packed.shape};
    *out = (run){.first = write_item->rows.byte_first, .bytes = write_item->byte_length};
    *found = (write_item->rows.entry || tsr_find_run(packed.dtype, whole, box, &out->first, &out->bytes)) &&
             tsr_dtype_bytes(packed.dtype, packed.elements, all);
    return TSR_OK;
}

static tsr_status add_write_item(tsr_source_sums *sums, const tsr_write_item *write_item, tsr_error *err)
{
    const tsr_entry *entry;
    run r;
    uint64_t all;
    bool found;
    if (write_item->literal || write_item->dtype != write_item->entry->dtype) return TSR_OK;
    TSR_TRY(find_bytes(write_item, &entry, &r, &all, &found, err));
    if (!found) return TSR_OK;
    const bool listed = tsr_catalog_has(sums->catalog, entry);
    /* Or a whole storage, which is not listed. */
    sum own = {0}, *written = listed ? &sums->written[entry - sums->catalog->entries] : &own;
    join(written, &r, write_item->crc, all);
    return own.complete ? check_entry(sums, entry, &own, err) : TSR_OK;
}

/* Adds write items that were written, with their CRCs. A tensor's pieces only count if they are added in the order of their
 * rows. */
static tsr_status source_sums_add(tsr_source_sums *sums, const tsr_write_item *write_items, size_t count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) TSR_TRY(add_write_item(sums, &write_items[i], err));
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

/* ---- finishing ---- */

static void join_sums(const tsr_stage *stage, const tsr_unit *unit)
{
    tsr_write_item *write_item = tsr_stage_item(stage, unit->first);
    if (unit->is_tile) {
        write_item->crc = unit->tile ? tsr_crc32_join(write_item->crc, unit->crcs[0], unit->bytes) : unit->crcs[0];
        return;
    }
    for (uint32_t i = 0; i < unit->count; i++) tsr_stage_item(stage, unit->first + i)->crc = unit->crcs[i];
}

static tsr_status add_lost(tsr_work *work, tsr_lost_values *to, uint64_t count, const tsr_write_item *write_item,
                           tsr_error *err)
{
    if (count && !to->count)
        *to = (tsr_lost_values){.fqn = tsr_arena_str(work->job.arena, write_item->entry->fqn, err),
                                .dtype = write_item->dtype};
    to->count += count;
    return !count || to->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_losses(tsr_work *work, const tsr_stage *stage, const tsr_unit *unit, tsr_error *err)
{
    const tsr_write_item *zero = tsr_stage_item(stage, unit->first + unit->first_zero),
                         *overflow = tsr_stage_item(stage, unit->first + unit->first_overflow);
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
        tsr_status status = tsr_work_stage(work, s, arena, &stage, err);
        if (status == TSR_OK) status = finish_stage(work, &stage, first, end, err);
        if (status == TSR_OK && sums) status = source_sums_add(sums, stage.write_items, stage.count, err);
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

/* ---- a work with a single share ---- */

tsr_container tsr_container_for(tsr_format format)
{
    switch (format) {
    case TSR_FORMAT_DCP: return TSR_TO_DCP;
    case TSR_FORMAT_MEGATRON_DIST: return TSR_TO_MEGATRON;
    case TSR_FORMAT_DCP_SAFETENSORS:
    case TSR_FORMAT_SAFETENSORS:
    case TSR_FORMAT_SAFETENSORS_INDEX: return TSR_TO_SAFETENSORS;
    default: return TSR_TO_TORCH;
    }
}

static tsr_status carry_out(tsr_work *work, tsr_output *output, tsr_error *err)
{
    TSR_TRY(tsr_work_open(work, output, err));
    TSR_TRY(tsr_work_run(work, 0, 1, NULL, err));
    return tsr_work_finish(work, err);
}

tsr_status tsr_convert(tsr_checkpoint *checkpoint, tsr_output *output, const tsr_convert_options *options, tsr_arena *arena,
                       tsr_conversion *out, tsr_error *err)
{
    tsr_work *work;
    *out = (tsr_conversion){.marker = TSR_NO_FILE};
    TSR_TRY(tsr_work_new(checkpoint, options, output ? output->generation : 0, arena, &work, err));
    const tsr_status status = options->dry_run ? TSR_OK : carry_out(work, output, err);
    *out = *tsr_work_conversion(work);
    tsr_work_free(work);
    return status;
}
