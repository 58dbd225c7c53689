/* `tessera cp`: copies all files of a checkpoint unchanged, and reads them back before its marker appears. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/signals.h"
#include "cli/program/term.h"
#include "cli/writing/copy_complete.h"
#include "cli/writing/copy_files.h"
#include "cli/writing/copy_log.h"
#include "cli/writing/copy_source.h"
#include "cli/writing/resumed.h"
#include "cli/writing/writing.h"
#include "io/file_name.h"
#include "io/sys.h"
#include "publish/completed.h"
#include "publish/file_sums.h"
#include "publish/publication.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/map.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path_choices.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/remote.h"
#include "tessera/sys/store_read.h"

#define JOB TSR_STR("a copy\n")

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
    bool is_complete; /* with --resume: an earlier run has made the same copy */
    tsr_replacement replacement;
    tsr_publication publication;
    tsr_output *output;
    char *buffer;
    uint64_t *sums; /* digests of the files, as far as they were copied or kept */
    uint64_t byte_done;
    tsr_object_resumed resumed;
    cli_copy_log log; /* for a copy to a disk: the digests of its chunks */
    cli_progress progress;
} copying;

/* Whether a run that ends now, before publishing, leaves its files for a later run to continue. */
static bool is_left(const copying *c)
{
    return c->arguments->resume && !c->is_remote && c->log.has_chunks;
}

static bool remove_unfinished(void *ctx)
{
    const copying *c = ctx;
    if (c->is_remote && c->output) tsr_object_output_abandon(c->output);
    if (c->is_remote) return c->arguments->resume;
    tsr_sys_stop_naming();
    if (is_left(c)) return true;
    if (c->output) tsr_folder_output_drop(c->output);
    if (c->output) tsr_folder_output_abandon(c->output);
    tsr_publication_discard(&c->publication);
    return false;
}

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

/* The names that a directory will have, for the journal. */
static tsr_publication_job job_of(const copying *c)
{
    return (tsr_publication_job){JOB, is_directory(c) ? c->files.names : NULL, is_directory(c) ? c->files.count : 0};
}

static tsr_status begin_journal(copying *c, tsr_error *err)
{
    const tsr_publication_job job = job_of(c);
    return tsr_publication_begin(&c->publication, JOB, 0, job.names, job.count, err);
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
        if (status == TSR_OK) status = c->output->write_at(c->output, number, range.offset + done, c->buffer, some, err);
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
    const tsr_status status = tsr_folder_output_sum(c->output, index, range, &sum, err);
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
    const uint64_t sum = tsr_folder_output_take_sum(c->output, index);
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
    uint32_t number;
    cli_signals_hold();
    tsr_status status = c->output->create(c->output, c->files.names[index], size, &number, err);
    cli_signals_release();
    if (status != TSR_OK || !size) return status;
    if (c->log.first) return continue_file(c, index, size, err);
    const tsr_copied_range whole = {c->store, file, 0, size};
    const bool may_copy = c->arguments->no_verify && c->output->copy_range;
    status = may_copy ? c->output->copy_range(c->output, number, 0, &whole, NULL) : TSR_E_UNSUPPORTED;
    if (status == TSR_E_UNSUPPORTED) return copy_range(c, number, file, (tsr_file_range){0, size}, err);
    if (status != TSR_OK)
        return tsr_raise(err, status, TSR_NO_POSITION, "'%.*s' cannot be copied", TSR_STR_ARG(c->files.names[index]));
    c->byte_done += size;
    return TSR_OK;
}

/* Replaces every file whose name the copy has, whatever it belonged to. */
static tsr_status replace_same_names(copying *c, tsr_error *err)
{
    tsr_replacement *r = &c->replacement;
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

static tsr_status decide_replacement(copying *c, tsr_error *err)
{
    const char *marker = is_directory(c) ? cli_copy_last_list(&c->files) : NULL;
    tsr_inputs inputs = tsr_inputs_of(cli_host(c->program)->allocator);
    const tsr_replacement_request request = {.host = cli_host(c->program),
                                             .path = c->to,
                                             .is_folder = is_directory(c),
                                             .overwrite = c->arguments->overwrite,
                                             .marker = marker,
                                             .inputs = &inputs};
    tsr_status status = tsr_inputs_add(&inputs, c->store, NULL, err);
    if (status == TSR_OK) status = tsr_replacement_decide(&request, c->arena, &c->replacement, err);
    tsr_inputs_free(&inputs);
    if (status == TSR_OK) status = replace_same_names(c, err);
    return status == TSR_OK ? tsr_replacement_check_readers(&request, &c->replacement, err) : status;
}

static tsr_status open_remote_output(copying *c, tsr_error *err)
{
    tsr_status status = decide_replacement(c, err);
    const tsr_replacement *r = &c->replacement;
    const tsr_object_output_options options = {.is_folder = is_directory(c),
                                               .overwrite = c->arguments->overwrite,
                                               .verify = !c->arguments->no_verify,
                                               .obsolete = r->obsolete,
                                               .obsolete_count = r->obsolete_count,
                                               .marker_count = r->marker_count,
                                               .is_unlike = r->swap,
                                               .resume = c->arguments->resume,
                                               .names = c->files.names,
                                               .name_count = c->files.count};
    if (status == TSR_OK) status = tsr_object_output_open(cli_host(c->program), c->to, &options, &c->output, err);
    if (status == TSR_OK) cli_note_other_parts(c->program, c->output, c->to);
    return status;
}

/* Refuses before anything is copied: with --resume, what was copied would stay, for a run that can never end well. */
static tsr_status refuse_subdirectories(const copying *c, tsr_error *err)
{
    for (uint32_t i = 0; i < c->files.count && c->replacement.exists; i++)
        if (memchr(c->files.names[i].data, '/', c->files.names[i].size))
            return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                             "'%s' exists, and a checkpoint with subdirectories can only be written to a new directory",
                             c->to);
    return TSR_OK;
}

/* The new files have the names of the old ones, so only the whole directory can be replaced. */
static tsr_status replace_directory(copying *c, tsr_error *err)
{
    if (!c->arguments->overwrite) return TSR_OK;
    uint64_t cleared;
    tsr_status status = tsr_journals_hold(&c->publication.journals, c->to, &cleared, err);
    if (status == TSR_OK && cleared) cli_warn(c->program, "removed the remains of an interrupted save in '%s'", c->to);
    if (status == TSR_OK) status = decide_replacement(c, err);
    if (status == TSR_OK) status = refuse_subdirectories(c, err);
    c->replacement.swap = is_directory(c) && c->replacement.exists;
    return status;
}

/* Continues the records of an interrupted run; starts over if they are about another source. */
static tsr_status open_log(copying *c, tsr_error *err)
{
    tsr_publication *p = &c->publication;
    tsr_str source;
    bool fits = false;
    if ((c->arguments->no_verify && !c->arguments->resume) || !p->journal) return TSR_OK;
    tsr_status status = cli_copy_source(&c->files, c->arena, &source, err);
    if (status == TSR_OK) status = cli_copy_log_new(c->arena, &c->files, &c->log, err);
    if (status == TSR_OK && p->continues) status = cli_copy_log_load(&c->log, p->journal, source, &fits, err);
    if (status != TSR_OK || fits) return status;
    if (p->continues) {
        cli_warn(
            c->program,
            "the source changed since the interrupted copy, or nothing shows that it did not; everything is copied again");
        status = tsr_publication_start_over(p, err);
        if (status == TSR_OK) status = begin_journal(c, err);
    }
    return status == TSR_OK && p->journal ? cli_copy_log_begin(&c->log, p->journal, source, err) : status;
}

static tsr_status open_output(copying *c, tsr_error *err)
{
    const tsr_replacement *r = &c->replacement;
    if (c->is_remote) return open_remote_output(c, err);
    cli_signals_hold();
    tsr_status status = replace_directory(c, err);
    if (status == TSR_OK) status = begin_journal(c, err);
    if (status == TSR_OK) status = open_log(c, err);
    const tsr_folder_output_options options = {.is_folder = is_directory(c),
                                               .existing = tsr_replacement_mode(r, c->arguments->overwrite, is_directory(c)),
                                               .obsolete = r->obsolete,
                                               .obsolete_count = r->obsolete_count,
                                               .tag = c->publication.tag,
                                               .begun = c->publication.continues ? TSR_BEGUN_JOINED : TSR_BEGUN_REFUSED,
                                               .keep = c->arguments->resume,
                                               .sums = !c->arguments->no_verify || c->arguments->resume,
                                               .holes = !c->publication.continues && tsr_folder_store_has_holes(c->store),
                                               .sources = &c->from,
                                               .source_count = !tsr_is_url(c->from),
                                               .parent = tsr_journals_parent(&c->publication.journals)};
    if (status == TSR_OK)
        status = tsr_folder_output_open(NULL, cli_host(c->program)->allocator, c->to, &options, &c->output, err);
    cli_signals_release();
    return status;
}

static tsr_status publish_remote(copying *c, tsr_error *err)
{
    const tsr_status status = c->output->publish(c->output, c->files.marker, err);
    if (status == TSR_OK) c->resumed = tsr_object_output_resumed(c->output);
    return status;
}

/* Announces the files, in the order of the copy, to a store whose every read is a request. */
static tsr_status announce(copying *c, tsr_error *err)
{
    if (!tsr_store_takes_schedules(c->store)) return TSR_OK;
    tsr_store_place *places = tsr_arena_array(c->arena, c->files.count, sizeof *places, err);
    if (!places) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < c->files.count; i++) places[i] = (tsr_store_place){c->files.numbers[i], 0, c->files.sizes[i]};
    const tsr_status status = c->store->schedule(c->store, places, c->files.count, err);
    if (status == TSR_OK) c->scheduled = c->store;
    return status;
}

static tsr_status copy_files(copying *c, tsr_error *err)
{
    tsr_error ignored = {0};
    tsr_status status = announce(c, err);
    for (uint32_t i = 0; i < c->files.count && status == TSR_OK; i++) status = copy_file(c, i, err);
    if (c->scheduled) (void)c->scheduled->schedule(c->scheduled, NULL, 0, &ignored); /* which cannot fail */
    c->scheduled = NULL;
    return status;
}

static tsr_status copy_all(copying *c, tsr_error *err)
{
    tsr_status status = open_output(c, err);
    if (status == TSR_OK) status = copy_files(c, err);
    if (status == TSR_OK) status = c->output->sync(c->output, err);
    if (status == TSR_OK) status = tsr_folder_store_unchanged(c->store, err);
    if (status == TSR_OK && c->is_remote) return publish_remote(c, err);
    for (uint32_t i = 0; i < c->files.count && status == TSR_OK && !c->arguments->no_verify; i++)
        c->sums[i] = tsr_sum_add(c->sums[i], tsr_folder_output_take_sum(c->output, i));
    if (status == TSR_OK && !c->arguments->no_verify)
        status = tsr_folder_output_verify(c->output, c->sums, c->files.count, err);
    if (status != TSR_OK) return status;
    cli_signals_hold();
    status =
        tsr_publication_publish(&c->publication, c->output, is_directory(c) ? TSR_NO_FILE : 0, c->replacement.swap, err);
    cli_signals_release();
    return status;
}

static tsr_status refuse_existing(const copying *c, tsr_error *err)
{
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION, "'%s' already exists; choose a new name, or pass --overwrite",
                     c->to);
}

/* Compares the destination with what would be copied. Journals of interrupted runs do not matter: they are removed if the copy
 * is complete; otherwise they stay, because the user may remove the destination and resume. */
static tsr_status find_completed(copying *c, tsr_error *err)
{
    tsr_error why = {0};
    tsr_store *there = NULL;
    uint32_t file;
    tsr_status status = tsr_path_store_open(cli_host(c->program), c->to, &there, &why);
    if (there) there->close(there);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status == TSR_OK) status = tsr_completed_open(cli_host(c->program), c->to, &c->output, &why);
    for (uint32_t i = 0; i < c->files.count && status == TSR_OK; i++)
        status = c->output->create(c->output, c->files.names[i], c->files.sizes[i], &file, &why);
    for (uint32_t i = 0; i < c->files.count && status == TSR_OK; i++)
        status = copy_range(c, i, c->files.numbers[i], (tsr_file_range){0, c->files.sizes[i]}, &why);
    const bool has_list = cli_copy_last_list(&c->files) || !is_directory(c);
    if (status == TSR_OK) status = c->output->publish(c->output, has_list ? c->files.marker : TSR_NO_FILE, &why);
    if (status == TSR_OK) status = tsr_folder_store_unchanged(c->store, &why);
    c->is_complete = status == TSR_OK;
    if (c->output) c->output->close(c->output);
    c->output = NULL;
    c->byte_done = 0;
    if (c->is_complete) c->resumed = (tsr_object_resumed){.objects = c->files.count, .bytes = c->files.byte_total};
    if (c->is_complete || (status == TSR_E_EXISTS && (c->arguments->overwrite || c->is_remote))) return TSR_OK;
    return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
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

static tsr_status check_destination(copying *c, tsr_error *err)
{
    if (c->is_remote) return tsr_urls_refuse_overlap(&c->from, 1, c->to, err);
    const tsr_status status = tsr_path_must_be_local(c->to, err);
    if (status != TSR_OK) return status;
    if (!c->arguments->overwrite && access(c->to, F_OK) == 0) return refuse_existing(c, err);
    const tsr_publication_job job = job_of(c);
    if (!c->arguments->resume)
        return tsr_publication_open(cli_host(c->program)->allocator, c->to, JOB, &c->publication, err);
    return tsr_publication_reopen(cli_host(c->program)->allocator, c->to, &job, &c->publication, err);
}

/* Removes the journal of an earlier run that was killed after it had published the copy. */
static tsr_status clear_completed(copying *c, tsr_error *err)
{
    if (c->is_remote) return TSR_OK;
    const tsr_status status = tsr_publication_open(cli_host(c->program)->allocator, c->to, JOB, &c->publication, err);
    if (status == TSR_OK) tsr_publication_close(&c->publication);
    return status;
}

static void close_all(copying *c, tsr_status status)
{
    tsr_error ignored = {0};
    if (status != TSR_OK) cli_copy_log_flush(&c->log, &ignored);
    const bool left = status != TSR_OK && is_left(c);
    if (c->output && !c->is_remote && !left) tsr_folder_output_drop(c->output);
    if (c->output) c->output->close(c->output);
    if (left) tsr_publication_leave(&c->publication);
    else if (!c->is_remote) tsr_publication_close(&c->publication);
    cli_copy_log_free(&c->log);
}

static tsr_status write_copy(copying *c, tsr_error *err)
{
    cli_cleanup cleanup = {.remove = remove_unfinished, .ctx = c};
    cli_progress_start(&c->progress, c->program, "copying");
    tsr_status status = choose_place(c, err);
    if (status == TSR_OK && c->arguments->resume) status = find_completed(c, err);
    if (status == TSR_OK && c->is_complete) status = clear_completed(c, err);
    else if (status == TSR_OK) status = check_destination(c, err);
    if (status != TSR_OK || c->is_complete) {
        cli_progress_end(&c->progress);
        return status;
    }
    cli_cleanup_add(&cleanup);
    status = copy_all(c, err);
    cli_progress_end(&c->progress);
    cli_signals_hold();
    close_all(c, status);
    cli_signals_release();
    cli_cleanup_drop(&cleanup);
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
    tsr_json_put_bool(&json, "verified", !c->arguments->no_verify || c->is_complete);
    if (c->arguments->resume) cli_put_resumed(&json, &c->resumed);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static void report(const copying *c)
{
    if (c->program->options.quiet) return;
    if (c->is_complete) {
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
