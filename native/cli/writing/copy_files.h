/* Lists the files of a copy in the order in which they are created: markers, whose presence makes a checkpoint complete, are
 * the last. */
#ifndef TSR_CLI_WRITING_COPY_FILES_H
#define TSR_CLI_WRITING_COPY_FILES_H

#include "cli/program/cli.h"
#include "publish/journal.h"
#include "tessera/memory.h"
#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"

typedef struct cli_copy_files {
    tsr_store *from;
    uint32_t *numbers;      /* of the files in `from` */
    tsr_str *names;         /* "" for a single file */
    uint64_t *sizes;        /* in bytes */
    uint32_t count, marker; /* number of files; index of the first marker (a single file is one), or `count` */
    uint64_t byte_total;
    tsr_hidden_names hidden;  /* files that `from` does not list because of their names */
    tsr_hidden_names special; /* what is neither a file nor a directory that is listed */
} cli_copy_files;

/* Makes a directory list the files of its subdirectories, too. TSR_E_LIMIT for too many files or levels. */
tsr_status cli_copy_list_all_levels(tsr_store *from, tsr_error *err);
/* Lists the files in all levels. The arrays are in `arena`, and `from` is borrowed. Errors: those of the function above;
 * TSR_E_IO for names that cannot be read; TSR_E_NOT_FOUND if there are no files; TSR_E_UNSUPPORTED for a key in an object store that cannot be a file name. */
tsr_status cli_copy_list(tsr_store *from, tsr_arena *arena, cli_copy_files *out, tsr_error *err);
/* The name of the last file among the markers that lists the files of a checkpoint, which decides what a replacement may keep;
 * NULL if there is none. */
const char *cli_copy_last_list(const cli_copy_files *files);

/* ---- the source ---- */

/* Identifies the source of a copy by a text that is the same in a later run only if none of its files has changed. */

/* One line per file: its size and its version, which is the ETag of a remote file, or inode and modification time of a local
 * one. Empty if a remote file has no version. The text is in `arena`. It contains no URL, because a URL may contain a
 * signature. */
tsr_status cli_copy_source(const cli_copy_files *files, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* ---- whether the source is complete ---- */

/* Finds out whether the source of a copy is complete. */

/* TSR_E_NOT_FOUND with the names of files that the metadata or index of a checkpoint names and that are missing; TSR_E_UNSUPPORTED for
 * an interrupted save. Examines `source`, which is open as `store`, and every directory listed below it that has a `.metadata` or an
 * index. Warns of those that cannot be opened as checkpoints: they can be copied nevertheless. May change which files the store lists. */
tsr_status cli_copy_check_complete(cli *program, const char *source, tsr_store *store, tsr_error *err);

/* ---- what is done ---- */

/* Records what a copy to a disk has done, in its journal, so that --resume can continue it: an identification of the
 * source, then the digest of every chunk of CLI_COPY_CHUNK bytes that was written. The digests are those of
 * publish/file_sums.h. The first step of the journal identifies the source; each later one holds chunks: n × (number u64,
 * digest u64), little-endian. */

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
