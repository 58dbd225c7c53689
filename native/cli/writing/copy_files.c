/* See copy_files.h. */
#include "cli/writing/copy_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/program/term.h"
#include "io/sys.h"
#include "publish/file_sums.h"
#include "publish/text.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

/* ---- copy source ---- */

static bool describe(tsr_store *store, uint32_t file, char *line, size_t room)
{
    tsr_file_id id;
    int64_t seconds, nanoseconds;
    const uint64_t size = store->files[file].size;
    if (tsr_folder_store_identify(store, file, &id)) {
        tsr_folder_store_modified(store, file, &seconds, &nanoseconds);
        snprintf(line, room, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 "\n", size, id.device, id.inode,
                 seconds, nanoseconds);
        return true;
    }
    const char *version = tsr_path_store_version(store, file);
    const int length = snprintf(line, room, "%" PRIu64 " %s\n", size, version);
    return *version && length > 0 && (size_t)length < room;
}

tsr_status cli_copy_source(const cli_copy_files *files, tsr_arena *arena, tsr_str *out, tsr_error *err)
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

/* ---- copy log ---- */

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

/* ---- copy complete ---- */

enum { NAMED = 4 };

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
    return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION,
                     "%zu file%s that the checkpoint names %s missing: %s%s; nothing was copied", count,
                     count == 1 ? "" : "s", count == 1 ? "is" : "are", names, count > NAMED ? ", …" : "");
}

/* An interrupted save that is copied would pass for a checkpoint that is safe elsewhere. */
static tsr_status refuse_interrupted(const tsr_checkpoint *checkpoint, tsr_str below, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_status status = tsr_checkpoint_require(checkpoint, TSR_FOR_ALL_NAMES, &why);
    if (status == TSR_OK) return TSR_OK;
    return tsr_raise(err, status, TSR_NO_POSITION, "%.*s%s%s; nothing was copied", TSR_STR_ARG(below),
                     below.size ? ": " : "", why.message);
}

static bool complete_is_marker(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR("/.metadata")) ||
           tsr_str_ends(name, TSR_STR(".index.json"));
}

static bool has_marker(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        if (complete_is_marker(name) && !memchr(name.data, '/', name.size)) return true;
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
    if (status == TSR_E_NOMEM || status == TSR_E_CANCELLED)
        return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
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
        if (!complete_is_marker(name)) continue;
        while (name.size && name.data[name.size - 1] != '/') name.size--;
        if (!name.size) continue;
        name.size--;
        TSR_TRY(add_directory(name, known, arena, steps, err));
    }
    return TSR_OK;
}

tsr_status cli_copy_check_complete(cli *program, const char *source, tsr_store *store, tsr_error *err)
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

/* ---- copy files ---- */

enum { LEVELS = 64 };

tsr_status cli_copy_list_all_levels(tsr_store *from, tsr_error *err)
{
    bool cut = false, deeper = false;
    if (from->primary != TSR_NO_FILE) return TSR_OK;
    if (from->deepen) {
        const tsr_status status = from->deepen(from, LEVELS, &cut, &deeper, err);
        if (status != TSR_OK) return status;
    }
    if (cut || deeper)
        return tsr_raise(err, TSR_E_LIMIT, TSR_NO_POSITION,
                         "it holds too many files, or directories more than %d levels down", LEVELS);
    return TSR_OK;
}

static tsr_status list_directory(cli_copy_files *files, tsr_error *err)
{
    const tsr_status status = cli_copy_list_all_levels(files->from, err);
    if (status != TSR_OK) return status;
    files->hidden = tsr_path_store_hidden(files->from);
    files->special = tsr_folder_store_unlisted(files->from).special;
    const tsr_hidden_names unreadable = tsr_folder_store_unlisted(files->from).unreadable;
    if (unreadable.count)
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION,
                         "%s cannot be read, such as '%s': permission denied, or the path is too long; nothing was copied",
                         cli_plural(unreadable.count, "name").text, unreadable.first);
    files->count = files->from->file_count;
    if (!files->count) return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "it contains no files");
    return TSR_OK;
}

static tsr_str base_name(tsr_str name)
{
    size_t start = name.size;
    while (start && name.data[start - 1] != '/') start--;
    return (tsr_str){name.data + start, name.size - start};
}

/* Whether a file lists the files of a checkpoint, or of several: it makes them a checkpoint. */
static bool is_list(tsr_str base)
{
    return tsr_str_ends(base, TSR_STR(".metadata")) || tsr_str_ends(base, TSR_STR(".index.json")) ||
           tsr_str_equal(base, TSR_STR("metadata.json")) || tsr_str_equal(base, TSR_STR("latest"));
}

/* 0 if the name of a file is not that of a marker; 1 for a marker in a subdirectory, 2 for one in the root. Besides lists,
 * markers are the files that the Trainer, Lightning, Megatron, DeepSpeed and OLMo-core write last. */
static unsigned marker_level(tsr_str name)
{
    static const char *const last[] = {"trainer_state.json", "meta.pt", "latest_checkpointed_iteration.txt",
                                       "latest_universal", ".metadata.json"};
    const tsr_str base = base_name(name);
    bool is_marker = is_list(base);
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) is_marker |= tsr_str_equal(base, tsr_str_from(last[i]));
    return !is_marker ? 0 : base.size < name.size ? 1 : 2;
}

/* Orders the files of a directory: markers last, and those of the root after those of subdirectories. */
static tsr_status put_in_order(cli_copy_files *files, tsr_error *err)
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
            return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s' cannot be the name of a file here",
                             TSR_STR_ARG(files->names[i]));
    }
    return TSR_OK;
}

tsr_status cli_copy_list(tsr_store *from, tsr_arena *arena, cli_copy_files *out, tsr_error *err)
{
    tsr_status status = TSR_OK;
    const bool is_single = from->primary != TSR_NO_FILE;
    *out = (cli_copy_files){.from = from, .count = 1};
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

const char *cli_copy_last_list(const cli_copy_files *files)
{
    for (uint32_t i = files->count; i-- > files->marker;)
        if (is_list(base_name(files->names[i]))) return files->names[i].data;
    return NULL;
}
