/* Records what a copy to a disk has done, in its journal, so that --resume can continue it: an identification of the
 * source, then the digest of every chunk of CLI_COPY_CHUNK bytes that was written. The digests are those of
 * publish/file_sums.h. The first step of the journal identifies the source; each later one holds chunks: n × (number u64,
 * digest u64), little-endian. */
#ifndef TSR_CLI_WRITING_COPY_LOG_H
#define TSR_CLI_WRITING_COPY_LOG_H

#include "cli/program/cli.h"
#include "cli/writing/copy_files.h"
#include "publish/journal.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/vec.h"

#define CLI_COPY_CHUNK ((uint64_t)32 << 20)

typedef struct cli_copy_log {
    tsr_journal *journal; /* NULL: nothing is recorded */
    uint64_t *first;      /* for each file, in the order of the copy, the number of its first chunk */
    uint64_t chunk_count;
    uint64_t *sums;
    bool *is_recorded;
    tsr_vec pending; /* of char: records that are not in the journal yet */
    uint64_t pending_bytes;
    bool has_chunks; /* chunks are recorded, which a later run can continue */
} cli_copy_log;

/* For a copy of `files`. Memory is taken from `arena`, except for what cli_copy_log_free frees. */
tsr_status cli_copy_log_new(tsr_arena *arena, const cli_copy_files *files, cli_copy_log *out, tsr_error *err);
void cli_copy_log_free(cli_copy_log *log); /* accepts a zeroed one */
/* Reads what an interrupted run recorded. If it copied another source, *fits is false, and nothing is taken from it. An
 * incomplete record at the end is removed. */
tsr_status cli_copy_log_load(cli_copy_log *log, tsr_journal *journal, tsr_str source, bool *fits, tsr_error *err);
/* Begins the records in a journal that has none. */
tsr_status cli_copy_log_begin(cli_copy_log *log, tsr_journal *journal, tsr_str source, tsr_error *err);
/* The number of the chunk at `offset`, a multiple of CLI_COPY_CHUNK, of a file. */
uint64_t cli_copy_log_chunk(const cli_copy_log *log, uint32_t file, uint64_t offset);
/* Records that a chunk of `size` bytes was written. The journal is written once per CLI_COPY_CHUNK bytes; cli_copy_log_flush
 * writes the remaining records. */
tsr_status cli_copy_log_add(cli_copy_log *log, uint64_t chunk, uint64_t sum, uint64_t size, tsr_error *err);
tsr_status cli_copy_log_flush(cli_copy_log *log, tsr_error *err);

#endif
