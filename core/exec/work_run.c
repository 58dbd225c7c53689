/* Carrying out units, batch by batch, and finishing what they leave. */
#include "base/try.h"
#include "exec/work_parts.h"

#ifndef TSR_BATCH_UNITS /* tests make them small */
#define TSR_BATCH_UNITS 64u /* between two entries in the journal: seconds of work */
#endif

/* ---- units ---- */

/* Units [first, end) of one stage on their way. */
typedef struct batch {
    tsr_work *work;
    tsr_sink sink;
    const tsr_stage *stage;
    size_t first, end;
    tsr_blit *blits;
    uint32_t *owners; /* blits of the stage */
    size_t count;
} batch;

/* A run over a part: how far it is. */
typedef struct run {
    tsr_work *work;
    tsr_ring *ring;
    const tsr_work_journal *journal;
    tsr_progress progress;
    uint64_t byte_done, byte_total;
    tsr_stage stage; /* the one laid out */
    tsr_arena *arena;
    uint32_t stage_number;
} run;

static bool step(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    const run *r = ctx;
    const tsr_progress *outer = r->work->job.options->progress;
    (void)byte_total;
    return !outer || !outer->step || outer->step(outer->ctx, r->byte_done + byte_done, r->byte_total);
}

static bool is_whole(const batch *b, size_t i)
{
    return b->blits[i].byte_length == b->stage->blits[b->owners[i]].byte_length;
}

static tsr_status blit_done(void *ctx, size_t i, tsr_error *err)
{
    const batch *b = ctx;
    if (!is_whole(b, i)) return TSR_OK; /* what stands behind a cut blit is written at the end */
    b->stage->blits[b->owners[i]].crc = b->blits[i].crc;
    return b->stage->behind ? b->stage->behind(b->stage, b->owners[i], &b->sink, err) : TSR_OK;
}

static void keep_sums(const batch *b)
{
    for (size_t u = b->first, at = 0; u < b->end; u++) {
        tsr_unit *unit = tsr_work_unit(b->work, u);
        for (uint32_t i = 0; i < unit->count; i++) unit->crcs[i] = b->blits[at++].crc;
        unit->done = true;
    }
}

static tsr_status write_batch(run *r, batch *b, tsr_arena *arena, tsr_error *err)
{
    const tsr_work *work = r->work;
    TSR_TRY(tsr_units_blits(b->stage, tsr_work_unit(work, b->first), b->end - b->first, work->unit_bytes, arena, &b->blits,
                            &b->owners, &b->count, err));
    for (size_t i = 0; i < b->count; i++) b->blits[i].file = work->numbers[b->blits[i].file];
    const tsr_blit_run blits = {.checkpoint = work->job.checkpoint,
                                .output = work->output,
                                .ring = r->ring,
                                .blits = b->blits,
                                .count = b->count,
                                .crc = work->writer.crc,
                                .progress = &r->progress,
                                .done = blit_done,
                                .ctx = b};
    TSR_TRY(tsr_blits_write(&blits, err));
    keep_sums(b);
    return TSR_OK;
}

static tsr_status append_records(const run *r, size_t first, size_t end, tsr_error *err)
{
    tsr_output *output = r->work->output;
    tsr_vec records = tsr_vec_of(r->work->host->allocator, 1);
    tsr_status status = output->sync ? output->sync(output, err) : TSR_OK;
    for (size_t u = first; u < end && status == TSR_OK; u++) status = tsr_work_put_record(r->work, u, &records, err);
    if (status == TSR_OK) status = r->journal->append(r->journal->ctx, (tsr_str){records.items, records.count}, err);
    tsr_vec_free(&records);
    return status;
}

static tsr_status lay_out(run *r, uint32_t number, tsr_error *err)
{
    if (r->arena && r->stage_number == number) return TSR_OK;
    tsr_arena_free(r->arena);
    r->stage_number = number;
    r->arena = tsr_arena_new(r->work->host->allocator, 0, err);
    return r->arena ? r->work->writer.stage(r->work->writer.ctx, number, r->arena, &r->stage, err) : TSR_E_NOMEM;
}

static tsr_status run_batch(run *r, size_t first, size_t end, bool last, tsr_error *err)
{
    TSR_TRY(lay_out(r, tsr_work_unit(r->work, first)->stage, err));
    batch b = {.work = r->work, .sink = {r->work->output, r->work->numbers}, .stage = &r->stage, .first = first, .end = end};
    tsr_arena *arena = tsr_arena_new(r->work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = write_batch(r, &b, arena, err);
    tsr_arena_free(arena);
    const bool wanted = r->journal && !(last && r->journal->finishes);
    if (status == TSR_OK && wanted) status = append_records(r, first, end, err);
    for (size_t u = first; u < end; u++) r->byte_done += tsr_work_unit(r->work, u)->bytes;
    return status;
}

/* The end of the batch that begins with the undone unit `first`: one stage, without gaps. */
static size_t batch_end(const tsr_work *work, size_t first, size_t end)
{
    const uint32_t stage = tsr_work_unit(work, first)->stage;
    size_t u = first;
    while (u < end && u - first < TSR_BATCH_UNITS && !tsr_work_unit(work, u)->done && tsr_work_unit(work, u)->stage == stage) u++;
    return u;
}

static tsr_status run_units(run *r, size_t first, size_t end, tsr_error *err)
{
    for (size_t u = first; u < end; u++) {
        if (!tsr_work_unit(r->work, u)->done) r->byte_total += tsr_work_unit(r->work, u)->bytes;
    }
    for (size_t u = first; u < end;) {
        if (tsr_work_unit(r->work, u)->done) {
            u++;
            continue;
        }
        const size_t to = batch_end(r->work, u, end);
        TSR_TRY(run_batch(r, u, to, to == end, err));
        u = to;
    }
    return TSR_OK;
}

tsr_status tsr_work_run(tsr_work *work, uint64_t part, uint64_t parts, const tsr_work_journal *journal, tsr_error *err)
{
    size_t first, end;
    run r = {.work = work, .journal = journal};
    r.progress = (tsr_progress){step, &r};
    TSR_FAIL_IF(part >= parts, err, TSR_E_USAGE, TSR_NO_POSITION, "there is no part %llu of %llu", (unsigned long long)part,
                (unsigned long long)parts);
    TSR_TRY(tsr_ring_new(work->host, work->job.options->max_memory, &r.ring, err));
    tsr_work_part(work, part, parts, &first, &end);
    const tsr_status status = run_units(&r, first, end, err);
    tsr_arena_free(r.arena);
    tsr_ring_free(r.ring);
    return status;
}

/* ---- the end ---- */

static void join_sums(const tsr_stage *stage, const tsr_unit *unit)
{
    tsr_blit *blit = &stage->blits[unit->first];
    if (unit->is_tile) {
        blit->crc = unit->tile ? tsr_crc32_join(blit->crc, unit->crcs[0], unit->bytes) : unit->crcs[0];
        return;
    }
    for (uint32_t i = 0; i < unit->count; i++) blit[i].crc = unit->crcs[i];
}

static tsr_status finish_stage(tsr_work *work, const tsr_stage *stage, size_t first, size_t end, tsr_error *err)
{
    const tsr_sink sink = {work->output, work->numbers};
    for (size_t u = first; u < end; u++) join_sums(stage, tsr_work_unit(work, u));
    for (size_t u = first; u < end && stage->behind; u++) {
        const tsr_unit *unit = tsr_work_unit(work, u);
        if (unit->is_tile && unit->tile == 0) TSR_TRY(stage->behind(stage, unit->first, &sink, err));
    }
    return stage->rest ? stage->rest(stage, &sink, err) : TSR_OK;
}

static tsr_status finish_stages(tsr_work *work, tsr_error *err)
{
    size_t first = 0, end;
    for (uint32_t s = 0; s < work->writer.stage_count; s++, first = end) {
        for (end = first; end < work->units.count && tsr_work_unit(work, end)->stage == s;) end++;
        tsr_stage stage;
        tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
        if (!arena) return TSR_E_NOMEM;
        tsr_status status = work->writer.stage(work->writer.ctx, s, arena, &stage, err);
        if (status == TSR_OK) status = finish_stage(work, &stage, first, end, err);
        tsr_arena_free(arena);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

tsr_status tsr_work_finish(tsr_work *work, tsr_error *err)
{
    const uint64_t left = tsr_work_left(work, 0, 1);
    TSR_FAIL_IF(left, err, TSR_E_USAGE, TSR_NO_POSITION, "%llu of %zu units of the work are not done",
                (unsigned long long)left, work->units.count);
    TSR_TRY(finish_stages(work, err));
    const uint32_t marker = work->writer.marker;
    work->conversion.marker = marker < work->conversion.file_count ? work->numbers[marker] : TSR_NO_FILE;
    if (!work->writer.finish) return TSR_OK;
    return work->writer.finish(work->writer.ctx, work->output, &work->conversion.marker, err);
}
