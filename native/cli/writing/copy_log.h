/* What a copy onto a disk has done, in the records of its journal, so that --resume can continue it: which source it reads, then the
 * digest of every chunk of CLI_COPY_CHUNK bytes that was written. The digests are those of publish/file_sums.h. The first step of the
 * journal identifies the source, each later one holds chunks: n × (number u64, digest u64), little-endian. */
#ifndef TSR_CLI_WRITING_COPY_LOG_H
#define TSR_CLI_WRITING_COPY_LOG_H

#include "cli/program/cli.h"
#include "publish/journal.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/vec.h"

#define CLI_COPY_CHUNK ((uint64_t)32 << 20)

typedef struct cli_copy_log {
    tsr_journal *journal; /* NULL: nothing is recorded */
    uint64_t *first;      /* the number of each file's first chunk; files have their order in the copy */
    uint64_t chunk_count;
    uint64_t *sums;
    bool *is_recorded;
    tsr_vec pending; /* bytes of records that are not in the journal yet */
    uint64_t pending_bytes;
    bool has_chunks; /* there is something that a later run can continue */
} cli_copy_log;

/* `sizes`: of the files. What it allocates is in `arena`, except for what cli_copy_log_free frees. */
tsr_status cli_copy_log_new(tsr_arena *arena, const uint64_t *sizes, uint32_t count, cli_copy_log *out, tsr_error *err);
void cli_copy_log_free(cli_copy_log *log); /* takes a zeroed one */
/* Reads what an interrupted run recorded. *fits is false, and nothing is taken, where it read another source. A record that was cut off
 * is removed. */
tsr_status cli_copy_log_load(cli_copy_log *log, tsr_journal *journal, tsr_str source, bool *fits, tsr_error *err);
/* Begins the records of a journal that has none. */
tsr_status cli_copy_log_begin(cli_copy_log *log, tsr_journal *journal, tsr_str source, tsr_error *err);
/* The chunk of a file at an offset, which is a multiple of CLI_COPY_CHUNK. */
uint64_t cli_copy_log_chunk(const cli_copy_log *log, uint32_t file, uint64_t offset);
/* Notes that a chunk of `size` bytes was written. The journal is written once per CLI_COPY_CHUNK bytes; cli_copy_log_flush writes what is
 * still missing in it. */
tsr_status cli_copy_log_add(cli_copy_log *log, uint64_t chunk, uint64_t sum, uint64_t size, tsr_error *err);
tsr_status cli_copy_log_flush(cli_copy_log *log, tsr_error *err);

#endif
