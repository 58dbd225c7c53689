/* `tessera cp`: copies all files of a checkpoint unchanged, and reads them back before its marker appears. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/writing/copy_files.h"
#include "cli/writing/writing.h"
#include "io/sys.h"
#include "publish/file_sums.h"
#include "publish/replacement.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum { BUFFER = 8 << 20 };

typedef struct copying {
    cli *program;
    const tsr_command_options *arguments;
    const char *from, *to;
    tsr_store *store;
    tsr_store *scheduled; /* the store, while it fetches what is read next; otherwise NULL */
    tsr_arena *arena;
    cli_copy_files files;
    bool is_unlisted; /* the source is a directory of a server that lists none */
    bool is_remote;   /* the copy goes to an object store */
    cli_guard guard;
    tsr_publication publication;
    char *buffer;
    uint64_t *sums; /* digests of the files, as far as they were copied or kept */
    uint64_t byte_done;
    tsr_object_resumed resumed; /* of a copy to a disk */
    cli_copy_log log;           /* for a copy to a disk: the digests of its chunks */
    cli_progress progress;
} copying;

static tsr_status list_files(copying *c, tsr_error *err)
{
    const tsr_status status = cli_copy_list(c->store, c->arena, &c->files, err);
    if (status != TSR_OK) return status;
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

static void step(copying *c, uint64_t bytes)
{
    c->byte_done += bytes;
    c->progress.base.step(c->progress.base.ctx, c->byte_done, c->files.byte_total);
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
        if (status != TSR_OK) return status;
        step(c, some);
    }
    return TSR_OK;
}

/* Whether an interrupted run has written this chunk, and its bytes still have the digest that was recorded. */
static tsr_status is_there(copying *c, uint32_t index, tsr_file_range range, bool *there, tsr_error *err)
{
    const uint64_t chunk = cli_copy_log_chunk(&c->log, index, range.offset);
    uint64_t sum;
    *there = false;
    if (!c->log.is_recorded[chunk]) return TSR_OK;
    const tsr_status status = tsr_folder_output_sum(c->publication.output, index, range, &sum, err);
    if (status != TSR_OK) return status;
    *there = sum == c->log.sums[chunk];
    if (!*there) {
        c->resumed.differing++;
        return TSR_OK;
    }
    c->sums[index] = tsr_sum_add(c->sums[index], sum);
    c->resumed.bytes += range.size;
    step(c, range.size);
    return TSR_OK;
}

static tsr_status copy_chunk(copying *c, uint32_t index, tsr_file_range range, tsr_error *err)
{
    const tsr_status status = copy_range(c, index, c->files.numbers[index], range, err);
    if (status != TSR_OK) return status;
    const uint64_t sum = tsr_folder_output_take_sum(c->publication.output, index);
    c->sums[index] = tsr_sum_add(c->sums[index], sum);
    return cli_copy_log_add(&c->log, cli_copy_log_chunk(&c->log, index, range.offset), sum, range.size, err);
}

/* For a copy to a disk: keeps the chunks that an interrupted run has written and whose digests agree, and copies the
 * others. */
static tsr_status continue_file(copying *c, uint32_t index, uint64_t size, tsr_error *err)
{
    uint64_t found = 0, count = 0;
    for (uint64_t at = 0; at < size; at += CLI_COPY_CHUNK, count++) {
        const tsr_file_range range = {at, size - at < CLI_COPY_CHUNK ? size - at : CLI_COPY_CHUNK};
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
    if (status != TSR_OK)
        return tsr_raise(err, status, TSR_NO_POSITION, "'%.*s' cannot be copied", TSR_STR_ARG(c->files.names[index]));
    c->byte_done += size;
    return TSR_OK;
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
            return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
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
    TSR_TRY(cli_copy_source(&c->files, c->arena, &source, err));
    TSR_TRY(cli_copy_log_new(c->arena, &c->files, &c->log, err));
    if (!continued) return cli_copy_log_begin(&c->log, journal, source, err);
    TSR_TRY(cli_copy_log_load(&c->log, journal, source, fits, err));
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
        c->sums[i] = tsr_sum_add(c->sums[i], tsr_folder_output_take_sum(output, i));
    return tsr_folder_output_verify(output, c->sums, c->files.count, err);
}

/* What is left to copy of a file: everything from its first chunk that no interrupted run has recorded. */
static tsr_store_place what_is_left(const copying *c, uint32_t index)
{
    const uint64_t size = c->files.sizes[index];
    uint64_t at = 0;
    while (c->log.first && at < size && c->log.is_recorded[cli_copy_log_chunk(&c->log, index, at)])
        at += size - at < CLI_COPY_CHUNK ? size - at : CLI_COPY_CHUNK;
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
    const bool has_marker = compares ? cli_copy_last_list(&c->files) != NULL : c->is_remote;
    tsr_error ignored = {0};
    c->byte_done = 0;
    if (has_marker || !is_directory(c)) *marker = c->files.marker;
    if (compares) return compare(c, err);
    tsr_status status = copy_files(c, err);
    if (status == TSR_OK && !c->is_remote && !c->arguments->no_verify) status = verify(c, err);
    if (status != TSR_OK) cli_copy_log_flush(&c->log, &ignored);
    return status;
}

/* A destination that ends in '/' is a directory, to which a single file is copied under its own name. */
static tsr_status choose_place(copying *c, tsr_error *err)
{
    cli_file_place place;
    if (is_directory(c)) return TSR_OK;
    tsr_str name = c->store->files[c->store->primary].name;
    for (size_t i = name.size; i-- > 0;) {
        if (name.data[i] != '/') continue;
        name = (tsr_str){name.data + i + 1, name.size - i - 1};
        break;
    }
    const tsr_status status = cli_place_file(c->to, name, c->arena, &place, err);
    if (status != TSR_OK) return status;
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
                                       .is_folder = is_directory(c),
                                       .marker = is_directory(c) ? cli_copy_last_list(&c->files) : NULL,
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
    cli_copy_log_free(&c->log);
    if (c->is_remote || c->publication.is_complete) c->resumed = c->publication.resumed;
    return status;
}

static tsr_status put_json(const copying *c, tsr_error *err)
{
    tsr_json json;
    cli_document_start(c->program, &json, 1, err);
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
    else if (c->arguments->resume) cli_report_continued(&c->resumed);
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
    if (status == TSR_OK) status = cli_copy_list_all_levels(c.store, &err);
    if (status == TSR_OK) status = cli_copy_check_complete(program, c.from, c.store, &err); /* it may change the listing */
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
