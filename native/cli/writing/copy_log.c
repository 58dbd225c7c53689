/* See copy_log.h. */
#include "cli/writing/copy_log.h"

#include "publish/file_sums.h"
#include "tessera/sys/little_endian.h"

enum { RECORD = 16 };

tsr_status cli_copy_log_new(tsr_arena *arena, const cli_copy_files *files, cli_copy_log *out, tsr_error *err)
{
    *out = (cli_copy_log){.pending = tsr_vec_of(&tsr_allocator_libc, 1)};
    out->first = tsr_arena_array(arena, files->count, sizeof *out->first, err);
    if (!out->first) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < files->count; i++) {
        out->first[i] = out->chunk_count;
        out->chunk_count += files->sizes[i] / CLI_COPY_CHUNK + (files->sizes[i] % CLI_COPY_CHUNK != 0);
    }
    out->sums = tsr_arena_array(arena, (size_t)out->chunk_count, sizeof *out->sums, err);
    out->is_recorded = tsr_arena_array(arena, (size_t)out->chunk_count, sizeof *out->is_recorded, err);
    if (!out->sums || !out->is_recorded) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < out->chunk_count; i++) out->is_recorded[i] = false;
    return TSR_OK;
}

void cli_copy_log_free(cli_copy_log *log)
{
    if (log->first) tsr_vec_free(&log->pending);
}

static void take_chunks(cli_copy_log *log, tsr_str records)
{
    for (size_t at = 0; at + RECORD <= records.size; at += RECORD) {
        const uint64_t chunk = tsr_load_le(records.data + at, 8);
        if (chunk >= log->chunk_count) continue;
        log->sums[chunk] = tsr_load_le(records.data + at + 8, 8);
        log->is_recorded[chunk] = log->has_chunks = true;
    }
}

tsr_status cli_copy_log_load(cli_copy_log *log, tsr_journal *journal, tsr_str source, bool *fits, tsr_error *err)
{
    const tsr_str all = tsr_journal_records(journal);
    tsr_str rest = all;
    tsr_journal_step step;
    *fits = source.size && tsr_journal_step_next(&rest, &step) && tsr_str_equal(step.records, source);
    if (!*fits) return TSR_OK;
    while (tsr_journal_step_next(&rest, &step)) take_chunks(log, step.records);
    log->journal = journal;
    return tsr_journal_cut(journal, all.size - rest.size, err);
}

static tsr_status append(cli_copy_log *log, tsr_str records, tsr_error *err)
{
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = tsr_step_put(records, NULL, 0, &text, err);
    if (status == TSR_OK) status = tsr_journal_append(log->journal, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status;
}

tsr_status cli_copy_log_begin(cli_copy_log *log, tsr_journal *journal, tsr_str source, tsr_error *err)
{
    if (!source.size) return TSR_OK; /* nothing would show that the source has changed, so the copy cannot be continued */
    log->journal = journal;
    return append(log, source, err);
}

uint64_t cli_copy_log_chunk(const cli_copy_log *log, uint32_t file, uint64_t offset)
{
    return log->first[file] + offset / CLI_COPY_CHUNK;
}

tsr_status cli_copy_log_add(cli_copy_log *log, uint64_t chunk, uint64_t sum, uint64_t size, tsr_error *err)
{
    uint8_t record[RECORD];
    if (!log->journal) return TSR_OK;
    tsr_store_le(record, chunk, 8);
    tsr_store_le(record + 8, sum, 8);
    if (tsr_vec_reserve(&log->pending, RECORD, err) != TSR_OK) return TSR_E_NOMEM;
    for (unsigned i = 0; i < RECORD; i++) *(uint8_t *)tsr_vec_push(&log->pending, err) = record[i];
    log->pending_bytes += size;
    return log->pending_bytes >= CLI_COPY_CHUNK ? cli_copy_log_flush(log, err) : TSR_OK;
}

tsr_status cli_copy_log_flush(cli_copy_log *log, tsr_error *err)
{
    if (!log->journal || !log->pending.count) return TSR_OK;
    const tsr_status status = append(log, (tsr_str){log->pending.items, log->pending.count}, err);
    if (status != TSR_OK) return status;
    log->pending.count = 0;
    log->pending_bytes = 0;
    log->has_chunks = true;
    return TSR_OK;
}
