/* `tessera cp`: copies all files of a checkpoint unchanged, and reads them back before its marker appears. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/writing/writing.h"
#include "io/sys.h"
#include "publish/file_sums.h"
#include "publish/journal.h"
#include "publish/replacement.h"
#include "publish/text.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum {
    BUFFER = 1 << 20, /* bytes; small enough that what was read is still in the cache when it is written and summed up */
    CHUNK = 32 << 20,
    RECORD = 16, /* bytes in the journal per chunk */
    NAMED = 4,   /* how many missing files an error names */
    LEVELS = 64  /* of subdirectories */
};

/* The files of a copy in the order in which they are created: markers, whose presence makes a checkpoint complete, are the last. */
typedef struct copied_files {
    tsr_store *from;
    uint32_t *numbers;      /* of the files in `from` */
    tsr_str *names;         /* "" for a single file */
    uint64_t *sizes;        /* in bytes */
    uint32_t count, marker; /* number of files; index of the first marker (a single file is one), or `count` */
    uint64_t byte_total;
    tsr_hidden_names hidden;  /* files that `from` does not list because of their names */
    tsr_hidden_names special; /* what is neither a file nor a directory that is listed */
} copied_files;

/* What a copy to a disk has done, in its journal, so that --resume can continue it: an identification of the source, then the digest
 * of every chunk that was written, as publish/file_sums.h computes it. The first step of the journal identifies the source; each later
 * one holds chunks: n × (number u64, digest u64), little-endian. */
typedef struct copy_log {
    tsr_journal *journal; /* NULL: nothing is recorded */
    uint64_t *first;      /* for each file, in the order of the copy, the number of its first chunk */
    uint64_t chunk_count;
    uint64_t *sums;
    bool *is_recorded;
    tsr_vec pending; /* of char: records that are not in the journal yet */
    uint64_t pending_bytes;
    bool has_chunks; /* chunks are recorded, which a later run can continue */
} copy_log;

/* ---- the source ---- */

static bool describe(tsr_store *store, uint32_t file, char *line, size_t room)
{
    tsr_file_id id;
    int64_t seconds, nanoseconds;
    const uint64_t size = store->files[file].size;
    if (tsr_directory_store_identify(store, file, &id)) {
        tsr_directory_store_modified(store, file, &seconds, &nanoseconds);
        snprintf(line, room, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 "\n", size, id.device, id.inode,
                 seconds, nanoseconds);
        return true;
    }
    const char *version = tsr_path_store_version(store, file);
    const int length = snprintf(line, room, "%" PRIu64 " %s\n", size, version);
    return *version && length > 0 && (size_t)length < room;
}

/* Identifies the source by a text that is the same in a later run only if none of its files has changed. It has one line per file: its
 * size and its version, which is the ETag of a remote file, or inode and modification time of a local one. It is empty if a remote
 * file has no version. It contains no URL, because a URL may contain a signature. */
static tsr_status identify_source(const copied_files *files, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    char line[512];
    bool is_known = true;
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = tsr_text_add(&text, TSR_STR("source\n"), err);
    for (uint32_t i = 0; i < files->count && status == TSR_OK && is_known; i++) {
        is_known = describe(files->from, files->numbers[i], line, sizeof line);
        status = tsr_text_add(&text, tsr_str_from(line), err);
    }
    *out = (tsr_str){"", 0};
    if (status == TSR_OK && is_known) *out = tsr_arena_str(arena, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}

/* ---- the journal ---- */

static tsr_status log_new(tsr_arena *arena, const copied_files *files, copy_log *out, tsr_error *err)
{
    *out = (copy_log){.pending = tsr_vec_of(&tsr_allocator_libc, 1)};
    out->first = tsr_arena_array(arena, files->count, sizeof *out->first, err);
    if (!out->first) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < files->count; i++) {
        out->first[i] = out->chunk_count;
        out->chunk_count += files->sizes[i] / CHUNK + (files->sizes[i] % CHUNK != 0);
    }
    out->sums = tsr_arena_array(arena, (size_t)out->chunk_count, sizeof *out->sums, err);
    out->is_recorded = tsr_arena_array(arena, (size_t)out->chunk_count, sizeof *out->is_recorded, err);
    if (!out->sums || !out->is_recorded) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < out->chunk_count; i++) out->is_recorded[i] = false;
    return TSR_OK;
}

static void take_chunks(copy_log *log, tsr_str records)
{
    for (size_t at = 0; at + RECORD <= records.size; at += RECORD) {
        const uint64_t chunk = tsr_load_le(records.data + at, 8);
        if (chunk >= log->chunk_count) continue;
        log->sums[chunk] = tsr_load_le(records.data + at + 8, 8);
        log->is_recorded[chunk] = log->has_chunks = true;
    }
}

/* Reads what an interrupted run recorded. If it copied another source, *fits is false, and nothing is taken from it. An
 * incomplete record at the end is removed. */
static tsr_status log_load(copy_log *log, tsr_journal *journal, tsr_str source, bool *fits, tsr_error *err)
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

static tsr_status append(copy_log *log, tsr_str records, tsr_error *err)
{
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = tsr_step_put(records, NULL, 0, &text, err);
    if (status == TSR_OK) status = tsr_journal_append(log->journal, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status;
}

/* Begins the records in a journal that has none. */
static tsr_status log_begin(copy_log *log, tsr_journal *journal, tsr_str source, tsr_error *err)
{
    if (!source.size) return TSR_OK; /* nothing would show that the source has changed, so the copy cannot be continued */
    log->journal = journal;
    return append(log, source, err);
}

/* The number of the chunk at `offset`, a multiple of CHUNK, of a file. */
static uint64_t log_chunk(const copy_log *log, uint32_t file, uint64_t offset)
{
    return log->first[file] + offset / CHUNK;
}

static tsr_status log_flush(copy_log *log, tsr_error *err)
{
    if (!log->journal || !log->pending.count) return TSR_OK;
    TSR_TRY(append(log, (tsr_str){log->pending.items, log->pending.count}, err));
    log->pending.count = 0;
    log->pending_bytes = 0;
    log->has_chunks = true;
    return TSR_OK;
}

/* Records that a chunk of `size` bytes was written. The journal is written once per CHUNK bytes; log_flush writes the remaining records. */
static tsr_status log_add(copy_log *log, uint64_t chunk, uint64_t sum, uint64_t size, tsr_error *err)
{
    uint8_t record[RECORD];
    if (!log->journal) return TSR_OK;
    tsr_store_le(record, chunk, 8);
    tsr_store_le(record + 8, sum, 8);
    if (tsr_vec_reserve(&log->pending, RECORD, err) != TSR_OK) return TSR_E_NOMEM;
    for (unsigned i = 0; i < RECORD; i++) *(uint8_t *)tsr_vec_push(&log->pending, err) = record[i];
    log->pending_bytes += size;
    return log->pending_bytes >= CHUNK ? log_flush(log, err) : TSR_OK;
}

/* ---- whether the source is complete ---- */

static tsr_status refuse(const tsr_checkpoint *checkpoint, tsr_str below, tsr_error *err)
{
    size_t count, used = 0;
    char names[512] = "";
    const tsr_str *missing = tsr_checkpoint_missing(checkpoint, &count);
    if (!count) return TSR_OK;
    for (size_t i = 0; i < count && i < NAMED; i++) {
        const int size = snprintf(names + used, sizeof names - used, "%s'%.*s%s%.*s'", i ? ", " : "", TSR_STR_ARG(below),
                                  below.size ? "/" : "", TSR_STR_ARG(missing[i]));
        if (size < 0 || (size_t)size >= sizeof names - used) break;
        used += (size_t)size;
    }
    return tsr_fail(err, TSR_E_NOT_FOUND, "%zu file%s that the checkpoint names %s missing: %s%s; nothing was copied", count,
                    count == 1 ? "" : "s", count == 1 ? "is" : "are", names, count > NAMED ? ", …" : "");
}

/* An interrupted save that is copied would pass for a checkpoint that is safe elsewhere. */
static tsr_status refuse_interrupted(const tsr_checkpoint *checkpoint, tsr_str below, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_status status = tsr_checkpoint_require(checkpoint, TSR_FOR_ALL_NAMES, &why);
    if (status == TSR_OK) return TSR_OK;
    return tsr_fail(err, status, "%.*s%s%s; nothing was copied", TSR_STR_ARG(below), below.size ? ": " : "", why.message);
}

static bool is_marker(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR("/.metadata")) ||
           tsr_str_ends(name, TSR_STR(".index.json"));
}

static bool has_marker(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        if (is_marker(name) && !memchr(name.data, '/', name.size)) return true;
    }
    return false;
}

/* `below` is the path of the store below the source, empty for the source itself. A directory with a marker that cannot be opened is
 * named: whether its files are complete is not known. */
static tsr_status check(cli *program, tsr_store *store, tsr_str below, bool is_marked, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_FINDINGS, .stay = true};
    tsr_checkpoint *checkpoint;
    tsr_error why = {0};
    tsr_status status = tsr_checkpoint_open(store, cli_host(program), &options, &checkpoint, &why);
    if (status == TSR_OK) {
        status = refuse(checkpoint, below, err);
        if (status == TSR_OK) status = refuse_interrupted(checkpoint, below, err);
        tsr_checkpoint_close(checkpoint);
        return status;
    }
    if (status == TSR_E_NOMEM || status == TSR_E_CANCELLED) return tsr_raise_again(err, status, &why);
    if (is_marked)
        cli_warn(program,
                 "'%.*s' cannot be opened as a checkpoint, so its files are copied without a check that none is missing: %s",
                 TSR_STR_ARG(below.size ? below : TSR_STR(".")), why.message);
    return TSR_OK;
}

static tsr_status check_below(cli *program, const char *source, tsr_str below, tsr_arena *arena, tsr_error *err)
{
    tsr_str root = tsr_str_from(cli_given_address(program, source));
    tsr_store *store;
    while (root.size > 1 && root.data[root.size - 1] == '/') root.size--;
    const tsr_str path = tsr_arena_format(arena, err, "%.*s/%.*s", TSR_STR_ARG(root), TSR_STR_ARG(below));
    tsr_status status = path.data ? tsr_path_store_open(cli_host(program), path.data, &store, err) : TSR_E_NOMEM;
    if (status != TSR_OK) return status;
    if (tsr_is_address(source)) status = tsr_remote_list_checkpoint(store, cli_host(program), err);
    if (status == TSR_OK) status = check(program, store, below, true, err);
    store->close(store);
    return status;
}

static tsr_status add_directory(tsr_str name, tsr_map *known, tsr_arena *arena, tsr_vec *steps, tsr_error *err)
{
    bool is_new;
    const tsr_str copy = tsr_arena_str(arena, name, err);
    if (!copy.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(known, copy, 0, NULL, &is_new, err));
    tsr_str *step = is_new ? tsr_vec_push(steps, err) : NULL;
    if (step) *step = copy;
    return step || !is_new ? TSR_OK : TSR_E_NOMEM;
}

/* The directories below the root, at any depth, that have a marker. The store's names may change while they are examined. */
static tsr_status list_steps(const tsr_store *store, tsr_map *known, tsr_arena *arena, tsr_vec *steps, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        tsr_str name = store->files[f].name;
        if (!is_marker(name)) continue;
        while (name.size && name.data[name.size - 1] != '/') name.size--;
        if (!name.size) continue;
        name.size--;
        TSR_TRY(add_directory(name, known, arena, steps, err));
    }
    return TSR_OK;
}

/* TSR_E_NOT_FOUND with the names of files that the metadata or index of a checkpoint names and that are missing; TSR_E_UNSUPPORTED for
 * an interrupted save. Examines `source`, which is open as `store`, and every directory listed below it that has a `.metadata` or an
 * index. Warns of those that cannot be opened as checkpoints: they can be copied nevertheless. May change which files the store lists. */
static tsr_status check_complete(cli *program, const char *source, tsr_store *store, tsr_error *err)
{
    if (store->primary != TSR_NO_FILE) return TSR_OK;
    const tsr_allocator *allocator = cli_host(program)->allocator;
    tsr_vec steps = tsr_vec_of(allocator, sizeof(tsr_str));
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    tsr_map *known = tsr_map_new(allocator, 0, err);
    tsr_status status = arena && known ? list_steps(store, known, arena, &steps, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = check(program, store, (tsr_str){NULL, 0}, has_marker(store), err);
    for (size_t i = 0; status == TSR_OK && i < steps.count; i++)
        status = check_below(program, source, ((const tsr_str *)steps.items)[i], arena, err);
    tsr_vec_free(&steps);
    tsr_map_free(known);
    tsr_arena_free(arena);
    return status;
}

/* ---- the files ---- */

/* Makes a directory list the files of its subdirectories, too. TSR_E_LIMIT for too many files or levels. */
static tsr_status list_all_levels(tsr_store *from, tsr_error *err)
{
    bool cut = false, deeper = false;
    if (from->primary != TSR_NO_FILE) return TSR_OK;
    if (from->deepen) {
        TSR_TRY(from->deepen(from, LEVELS, &cut, &deeper, err));
    }
    if (cut || deeper)
        return tsr_fail(err, TSR_E_LIMIT, "it holds too many files, or directories more than %d levels down", LEVELS);
    return TSR_OK;
}

static tsr_status list_directory(copied_files *files, tsr_error *err)
{
    TSR_TRY(list_all_levels(files->from, err));
    files->hidden = tsr_path_store_hidden(files->from);
    files->special = tsr_directory_store_unlisted(files->from).special;
    const tsr_hidden_names unreadable = tsr_directory_store_unlisted(files->from).unreadable;
    if (unreadable.count)
        return tsr_fail(err, TSR_E_IO,
                        "%s cannot be read, such as '%s': permission denied, or the path is too long; nothing was copied",
                        cli_plural(unreadable.count, "name").text, unreadable.first);
    files->count = files->from->file_count;
    if (!files->count) return tsr_fail(err, TSR_E_NOT_FOUND, "it contains no files");
    return TSR_OK;
}

/* 0 if the name of a file is not that of a marker; 1 for a marker in a subdirectory, 2 for one in the root. */
static unsigned marker_level(tsr_str name)
{
    return !tsr_is_run_end(name) ? 0 : memchr(name.data, '/', name.size) ? 1 : 2;
}

/* Orders the files of a directory: markers last, and those of the root after those of subdirectories. */
static tsr_status put_in_order(copied_files *files, tsr_error *err)
{
    uint32_t count = 0;
    for (unsigned level = 0; level <= 2; level++) {
        if (level == 1) files->marker = count;
        for (uint32_t f = 0; f < files->count; f++)
            if (marker_level(files->from->files[f].name) == level) files->numbers[count++] = f;
    }
    for (uint32_t i = 0; i < files->count; i++) {
        files->names[i] = files->from->files[files->numbers[i]].name;
        if (!tsr_is_name_below(files->names[i], SIZE_MAX)) /* keys in object stores need not be valid file names */
            return tsr_fail(err, TSR_E_UNSUPPORTED, "'%.*s' cannot be the name of a file here",
                            TSR_STR_ARG(files->names[i]));
    }
    return TSR_OK;
}

/* Lists the files in all levels. Errors: those of the function above; TSR_E_IO for names that cannot be read; TSR_E_NOT_FOUND if there
 * are no files; TSR_E_UNSUPPORTED for a key in an object store that cannot be a file name. */
static tsr_status list_source(tsr_store *from, tsr_arena *arena, copied_files *out, tsr_error *err)
{
    tsr_status status = TSR_OK;
    const bool is_single = from->primary != TSR_NO_FILE;
    *out = (copied_files){.from = from, .count = 1};
    if (!is_single) status = list_directory(out, err);
    if (status != TSR_OK) return status;
    out->numbers = tsr_arena_array(arena, out->count, sizeof *out->numbers, err);
    out->names = tsr_arena_array(arena, out->count, sizeof *out->names, err);
    out->sizes = tsr_arena_array(arena, out->count, sizeof *out->sizes, err);
    if (!out->numbers || !out->names || !out->sizes) return TSR_E_NOMEM;
    if (is_single) {
        out->numbers[0] = from->primary;
        out->names[0] = TSR_STR("");
    } else {
        status = put_in_order(out, err);
    }
    for (uint32_t i = 0; i < out->count && status == TSR_OK; i++)
        out->byte_total += out->sizes[i] = from->files[out->numbers[i]].size;
    return status;
}

/* The name of the last file among the markers that lists the files of a checkpoint, which decides what a replacement may keep;
 * NULL if there is none. */
static const char *last_list(const copied_files *files)
{
    for (uint32_t i = files->count; i-- > files->marker;)
        if (tsr_is_run_list(files->names[i])) return files->names[i].data;
    return NULL;
}

typedef struct copying {
    cli *program;
    const tsr_command_options *arguments;
    const char *from, *to;
    tsr_store *store;
    tsr_store *scheduled; /* the store, while it fetches what is read next; otherwise NULL */
    tsr_arena *arena;
    copied_files files;
    bool is_unlisted; /* the source is a directory of a server that lists none */
    bool is_remote;   /* the copy goes to an object store */
    cli_guard guard;
    tsr_publication publication;
    char *buffer;
    uint64_t *sums; /* digests of the files, as far as they were copied or kept */
    uint64_t byte_done;
    tsr_object_resumed resumed; /* of a copy to a disk */
    copy_log log;               /* for a copy to a disk: the digests of its chunks */
    cli_progress progress;
} copying;

static tsr_status list_files(copying *c, tsr_error *err)
{
    TSR_TRY(list_source(c->store, c->arena, &c->files, err));
    c->sums = tsr_arena_array(c->arena, c->files.count, sizeof *c->sums, err);
    for (uint32_t i = 0; i < c->files.count && c->sums; i++) c->sums[i] = 0;
    return c->sums ? TSR_OK : TSR_E_NOMEM;
}

/* Whether the copy is a directory; otherwise it is a single file. */
static bool is_directory(const copying *c)
{
    return c->files.names[0].size > 0;
}

/* ---- copying ---- */

static tsr_status step(copying *c, uint64_t bytes, tsr_error *err)
{
    c->byte_done += bytes;
    TSR_FAIL_IF(!c->progress.base.step(c->progress.base.ctx, c->byte_done, c->files.byte_total), err, TSR_E_CANCELLED,
                "interrupted");
    return TSR_OK;
}

static tsr_status copy_range(copying *c, uint32_t number, uint32_t file, tsr_file_range range, tsr_error *err)
{
    for (uint64_t done = 0; done < range.size; done += BUFFER) {
        const size_t some = range.size - done < BUFFER ? (size_t)(range.size - done) : BUFFER;
        tsr_store_expect(c->scheduled, file, range.offset + done, some);
        tsr_status status = tsr_store_read(c->store, file, range.offset + done, c->buffer, some, err);
        if (status == TSR_OK)
            status =
                c->publication.output->write_at(c->publication.output, number, range.offset + done, c->buffer, some, err);
        if (status == TSR_OK) status = step(c, some, err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

/* Whether an interrupted run has written this chunk, and its bytes still have the digest that was recorded. */
static tsr_status is_there(copying *c, uint32_t index, tsr_file_range range, bool *there, tsr_error *err)
{
    const uint64_t chunk = log_chunk(&c->log, index, range.offset);
    uint64_t sum;
    *there = false;
    if (!c->log.is_recorded[chunk]) return TSR_OK;
    TSR_TRY(tsr_directory_output_sum(c->publication.output, index, range, &sum, err));
    *there = sum == c->log.sums[chunk];
    if (!*there) {
        c->resumed.differing++;
        return TSR_OK;
    }
    c->sums[index] = tsr_sum_add(c->sums[index], sum);
    c->resumed.bytes += range.size;
    return step(c, range.size, err);
}

static tsr_status copy_chunk(copying *c, uint32_t index, tsr_file_range range, tsr_error *err)
{
    TSR_TRY(copy_range(c, index, c->files.numbers[index], range, err));
    const uint64_t sum = tsr_directory_output_take_sum(c->publication.output, index);
    c->sums[index] = tsr_sum_add(c->sums[index], sum);
    return log_add(&c->log, log_chunk(&c->log, index, range.offset), sum, range.size, err);
}

/* For a copy to a disk: keeps the chunks that an interrupted run has written and whose digests agree, and copies the
 * others. */
static tsr_status continue_file(copying *c, uint32_t index, uint64_t size, tsr_error *err)
{
    uint64_t found = 0, count = 0;
    for (uint64_t at = 0; at < size; at += CHUNK, count++) {
        const tsr_file_range range = {at, size - at < CHUNK ? size - at : CHUNK};
        bool there;
        tsr_status status = is_there(c, index, range, &there, err);
        if (status == TSR_OK && !there) status = copy_chunk(c, index, range, err);
        if (status != TSR_OK) return status;
        found += there;
    }
    if (found == count) c->resumed.objects++;
    else c->resumed.parts += found;
    return TSR_OK;
}

/* Without verification, the file system may copy the data itself or share the blocks (XFS, btrfs). */
static tsr_status copy_file(copying *c, uint32_t index, tsr_error *err)
{
    const uint32_t file = c->files.numbers[index];
    const uint64_t size = c->store->files[file].size;
    tsr_output *output = c->publication.output;
    uint32_t number;
    cli_signals_hold();
    tsr_status status = output->create(output, c->files.names[index], size, &number, err);
    cli_signals_release();
    if (status != TSR_OK || !size) return status;
    if (c->log.first) return continue_file(c, index, size, err);
    const tsr_copied_range whole = {c->store, file, 0, size};
    const bool may_copy = c->arguments->no_verify && output->copy_range;
    status = may_copy ? output->copy_range(output, number, 0, &whole, NULL) : TSR_E_UNSUPPORTED;
    if (status == TSR_E_UNSUPPORTED) return copy_range(c, number, file, (tsr_file_range){0, size}, err);
    if (status != TSR_OK) return tsr_fail(err, status, "'%.*s' cannot be copied", TSR_STR_ARG(c->files.names[index]));
    return step(c, size, err);
}

/* ---- what is replaced ---- */

/* Replaces every file whose name the copy has, whatever it belonged to. */
static tsr_status replace_same_names(const copying *c, tsr_replacement *r, tsr_error *err)
{
    tsr_map *copied = tsr_map_new(cli_host(c->program)->allocator, c->files.count, err);
    tsr_status status = copied ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t i = 0; i < c->files.count && status == TSR_OK; i++)
        status = tsr_map_put(copied, c->files.names[i], i, NULL, NULL, err);
    size_t kept = 0;
    for (size_t k = 0; k < r->kept_count && status == TSR_OK; k++) {
        if (tsr_map_get(copied, r->kept[k].name, UINT32_MAX) != UINT32_MAX)
            r->obsolete[r->obsolete_count++] = r->kept[k].name;
        else r->kept[kept++] = r->kept[k];
    }
    r->kept_count = kept;
    tsr_map_free(copied);
    return status;
}

/* Refuses before anything is copied: with --resume, what was copied would stay, for a run that can never end well. */
static tsr_status refuse_subdirectories(const copying *c, tsr_error *err)
{
    for (uint32_t i = 0; i < c->files.count; i++)
        if (memchr(c->files.names[i].data, '/', c->files.names[i].size))
            return tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED,
                            "'%s' exists, and a checkpoint with subdirectories can only be written to a new directory",
                            c->to);
    return TSR_OK;
}

/* The new files have the names of the old ones, so on a disk only the whole directory can be replaced. */
static tsr_status adjust(void *ctx, tsr_replacement *replacement, tsr_error *err)
{
    const copying *c = ctx;
    TSR_TRY(replace_same_names(c, replacement, err));
    if (c->is_remote || !replacement->exists) return TSR_OK;
    replacement->swap = is_directory(c);
    return refuse_subdirectories(c, err);
}

/* ---- the run ---- */

/* Continues the records of an interrupted run. Those about another source do not fit. */
static tsr_status begin_log(void *ctx, tsr_journal *journal, bool continued, bool *fits, tsr_error *err)
{
    copying *c = ctx;
    tsr_str source;
    TSR_TRY(identify_source(&c->files, c->arena, &source, err));
    TSR_TRY(log_new(c->arena, &c->files, &c->log, err));
    if (!continued) return log_begin(&c->log, journal, source, err);
    TSR_TRY(log_load(&c->log, journal, source, fits, err));
    if (!*fits)
        cli_warn(
            c->program,
            "the source changed since the interrupted copy, or nothing shows that it did not; everything is copied again");
    return TSR_OK;
}

/* Reads the copy back from the disk. */
static tsr_status verify(copying *c, tsr_error *err)
{
    tsr_output *output = c->publication.output;
    TSR_TRY(output->sync(output, err));
    for (uint32_t i = 0; i < c->files.count; i++)
        c->sums[i] = tsr_sum_add(c->sums[i], tsr_directory_output_take_sum(output, i));
    return tsr_directory_output_verify(output, c->sums, c->files.count, err);
}

/* What is left to copy of a file: everything from its first chunk that no interrupted run has recorded. */
static tsr_store_place what_is_left(const copying *c, uint32_t index)
{
    const uint64_t size = c->files.sizes[index];
    uint64_t at = 0;
    while (c->log.first && at < size && c->log.is_recorded[log_chunk(&c->log, index, at)])
        at += size - at < CHUNK ? size - at : CHUNK;
    return (tsr_store_place){c->files.numbers[index], at, size - at};
}

/* Announces what will be copied, in this order, to a store whose every read is a request. */
static tsr_status announce(copying *c, tsr_error *err)
{
    size_t count = 0;
    if (!tsr_store_takes_schedules(c->store)) return TSR_OK;
    tsr_store_place *places = tsr_arena_array(c->arena, c->files.count, sizeof *places, err);
    if (!places) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < c->files.count; i++) {
        places[count] = what_is_left(c, i);
        count += places[count].size > 0;
    }
    const tsr_status status = c->store->schedule(c->store, places, count, err);
    if (status == TSR_OK) c->scheduled = c->store;
    return status;
}

static tsr_status copy_files(copying *c, tsr_error *err)
{
    tsr_error ignored = {0};
    tsr_status status = announce(c, err);
    for (uint32_t i = 0; i < c->files.count && status == TSR_OK; i++)
        status = c->publication.compares ? copy_range(c, i, c->files.numbers[i], (tsr_file_range){0, c->files.sizes[i]}, err)
                                         : copy_file(c, i, err);
    if (c->scheduled) (void)c->scheduled->schedule(c->scheduled, NULL, 0, &ignored); /* which cannot fail */
    c->scheduled = NULL;
    return status;
}

/* Creates all files first, so that a destination with other files is refused before anything is read. */
static tsr_status compare(copying *c, tsr_error *err)
{
    uint32_t file;
    tsr_output *output = c->publication.output;
    for (uint32_t i = 0; i < c->files.count; i++)
        TSR_TRY(output->create(output, c->files.names[i], c->files.sizes[i], &file, err));
    return copy_files(c, err);
}

static tsr_status write_files(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    copying *c = ctx;
    const bool compares = c->publication.compares;
    (void)output;
    /* An object store gets the markers last. A directory on a disk appears as a whole. */
    const bool has_marker = compares ? last_list(&c->files) != NULL : c->is_remote;
    tsr_error ignored = {0};
    c->byte_done = 0;
    if (has_marker || !is_directory(c)) *marker = c->files.marker;
    if (compares) return compare(c, err);
    tsr_status status = copy_files(c, err);
    if (status == TSR_OK && !c->is_remote && !c->arguments->no_verify) status = verify(c, err);
    if (status != TSR_OK) log_flush(&c->log, &ignored);
    return status;
}

static tsr_str base_name(tsr_str name)
{
    size_t start = name.size;
    while (start && name.data[start - 1] != '/') start--;
    return tsr_str_after(name, start);
}

/* A destination that ends in '/' is a directory, to which a single file is copied under its own name. */
static tsr_status choose_place(copying *c, tsr_error *err)
{
    cli_file_place place;
    if (is_directory(c)) return TSR_OK;
    TSR_TRY(cli_place_file(c->to, base_name(c->store->files[c->store->primary].name), c->arena, &place, err));
    c->to = place.path;
    c->files.names[0] = place.name;
    return TSR_OK;
}

static tsr_status write_copy(copying *c, tsr_error *err)
{
    const tsr_continuation continuation = {begin_log, &c->log.has_chunks};
    TSR_TRY(choose_place(c, err));
    c->guard = (cli_guard){.program = c->program};
    c->publication = (tsr_publication){.environment = cli_environment(&c->guard),
                                       .host = cli_host(c->program),
                                       .arena = c->arena,
                                       .destination = c->to,
                                       .line = TSR_STR("a copy\n"),
                                       .is_directory = is_directory(c),
                                       .marker = is_directory(c) ? last_list(&c->files) : NULL,
                                       .names = c->files.names,
                                       .name_count = c->files.count,
                                       .source = c->store,
                                       .sources = &c->from,
                                       .source_count = 1,
                                       .replaces = c->arguments->overwrite,
                                       .resumes = c->arguments->resume,
                                       .reads_back = !c->arguments->no_verify,
                                       .continuation = &continuation,
                                       .adjust = adjust,
                                       .write = write_files,
                                       .ctx = c};
    cli_progress_start(&c->progress, c->program, "copying");
    const tsr_status status = tsr_publication_run(&c->publication, err);
    cli_progress_end(&c->progress);
    if (c->log.first) tsr_vec_free(&c->log.pending);
    if (c->is_remote || c->publication.is_complete) c->resumed = c->publication.resumed;
    return status;
}

static tsr_status put_json(const copying *c, tsr_error *err)
{
    tsr_json json;
    cli_document_start(c->program, &json, err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.cp/1");
    tsr_json_put_text(&json, "source", c->from);
    tsr_json_put_text(&json, "destination", c->to);
    tsr_json_put_uint(&json, "files", c->files.count);
    tsr_json_put_uint(&json, "bytes", c->files.byte_total);
    tsr_json_put_bool(&json, "verified", !c->arguments->no_verify || c->publication.is_complete);
    if (c->arguments->resume) cli_put_resumed(&json, &c->resumed);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

/* The same for a copy to a disk: objects are whole files, parts are chunks of other files. */
static void report_continued(const tsr_object_resumed *r)
{
    if (r->bytes) {
        fprintf(stderr, "resumed: %s and %s (%s) had been copied already", cli_plural(r->objects, "file").text,
                cli_plural(r->parts, "chunk").text, cli_bytes(r->bytes).text);
    } else {
        fprintf(stderr, "resumed: nothing that can be continued was found; everything was copied");
    }
    if (r->differing) fprintf(stderr, "; %s with another digest copied again", cli_plural(r->differing, "chunk").text);
    fputc('\n', stderr);
}

static void report(const copying *c)
{
    if (c->program->options.quiet) return;
    if (c->publication.is_complete) {
        cli_put(stderr, tsr_str_from(c->to));
        fprintf(stderr, " is already complete: %s, %s; nothing was copied\n", cli_plural(c->files.count, "file").text,
                cli_bytes(c->files.byte_total).text);
        return;
    }
    if (c->arguments->resume && c->is_remote) cli_report_resumed(c->program, &c->resumed);
    else if (c->arguments->resume) report_continued(&c->resumed);
    cli_put(stdout, tsr_str_from(c->to));
    printf(": %s, %s%s\n", cli_plural(c->files.count, "file").text, cli_bytes(c->files.byte_total).text,
           c->arguments->no_verify ? "" : ", read back");
}

/* Their names are those of unfinished outputs. They may be another run's, so they are not copied, but they may also be the user's. */
static void warn_hidden(const copying *c)
{
    cli_warn(
        c->program,
        "%s whose names begin with '.' and contain '.tessera-' %s not copied, such as '%s': unfinished outputs have such names",
        cli_plural(c->files.hidden.count, "file").text, c->files.hidden.count == 1 ? "is" : "are", c->files.hidden.first);
}

static void warn_special(const copying *c)
{
    const tsr_hidden_names *special = &c->files.special;
    cli_warn(
        c->program, "%s %s not copied, such as '%s': %s", cli_plural(special->count, "name").text,
        special->count == 1 ? "is" : "are", special->first,
        "pipes, sockets, devices, links that lead nowhere, and links to directories below the first level are not copied");
}

static void warn_unlisted(const copying *c)
{
    cli_warn(
        c->program,
        "the server lists no directories: the %s that the checkpoint names %s copied, and nothing else that may be next to %s",
        cli_plural(c->files.count, "file").text, c->files.count == 1 ? "is" : "are", c->files.count == 1 ? "it" : "them");
}

static int run(cli *program, const tsr_command_options *arguments)
{
    copying c = {
        .program = program, .arguments = arguments, .from = program->operands.items[0], .to = program->operands.items[1]};
    c.is_remote = tsr_is_object_url(c.to);
    const tsr_host *host = cli_host(program);
    tsr_error err = {0};
    const char *at = c.from;
    c.arena = tsr_arena_new(host->allocator, 0, &err);
    c.buffer = c.arena ? tsr_alloc(host->allocator, BUFFER, 1, &err) : NULL;
    tsr_status status =
        c.buffer ? tsr_path_store_open(host, cli_given_address(program, c.from), &c.store, &err) : TSR_E_NOMEM;
    c.is_unlisted = status == TSR_OK && tsr_is_address(c.from) && c.store->primary == TSR_NO_FILE;
    if (c.is_unlisted) status = tsr_remote_list_checkpoint(c.store, host, &err);
    if (status == TSR_OK) status = list_all_levels(c.store, &err);
    if (status == TSR_OK) status = check_complete(program, c.from, c.store, &err); /* it may change the listing */
    if (status == TSR_OK) status = list_files(&c, &err);
    if (status == TSR_OK && c.is_unlisted) warn_unlisted(&c);
    if (status == TSR_OK && c.files.hidden.count) warn_hidden(&c);
    if (status == TSR_OK && c.files.special.count) warn_special(&c);
    if (status == TSR_OK) status = write_copy(&c, &err);
    if (status == TSR_OK && c.arguments->json) status = put_json(&c, &err);
    else if (status == TSR_OK) report(&c);
    const int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, at, &err);
    if (c.store) c.store->close(c.store);
    tsr_free(host->allocator, c.buffer, BUFFER, 1);
    tsr_arena_free(c.arena);
    return result;
}

const cli_command cli_cp = {
    .name = "cp",
    .examples = "tessera cp s3://bucket/run/step-1000 step-1000\nDownload every file; the directory appears when all of it "
                "is there and has been read back\n"
                "tessera cp step-1000 s3://bucket/run/step-1000\nUpload every file; the checkpoint's marker appears when "
                "all of it is there and has been read back\n"
                "tessera cp step-1000 s3://bucket/run/step-1000 --resume\nContinue an interrupted copy\n"
                "tessera cp step-1000/ /mnt/other/step-1000 --no-verify\n"
                "Copy between disks without reading the copy back\n",
    .run = run,
};
