/* What jobs have in common at all destinations: what is replaced, the sidecar of objects, and whether the destination is complete
 * already. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/destination.h"
#include "publish/directory_output.h"
#include "publish/job_state.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum { MOST_KEPT_NAMED = 100, MOST_PARTS_NAMED = 8 };

/* ---- environment ---- */

tsr_status tsr_job_agree(const job_state *s, tsr_status status, tsr_error *err)
{
    return s->ranks ? tsr_comm_agree_as_one(s->ranks, status, err) : status;
}

void tsr_job_guard(const tsr_job_environment *e, tsr_remains (*remove)(void *state), void *state)
{
    if (e->guard) e->guard(e->ctx, remove, state);
}

void tsr_job_unguard(const tsr_job_environment *e)
{
    if (e->unguard) e->unguard(e->ctx);
}

void tsr_job_hold(const tsr_job_environment *e)
{
    if (e->hold) e->hold(e->ctx);
}

void tsr_job_release(const tsr_job_environment *e)
{
    if (e->release) e->release(e->ctx);
}

/* One about what is written. TSR_E_NOMEM if the text has no data. */
static tsr_status note(const tsr_job_environment *e, tsr_str text, tsr_error *err)
{
    if (!text.data) return TSR_E_NOMEM;
    return e->warn ? e->warn(e->ctx, text, true, err) : TSR_OK;
}

void tsr_job_warn(const tsr_job_environment *e, const char *format, ...)
{
    char text[2048];
    tsr_error ignored = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (e->warn) e->warn(e->ctx, tsr_str_from(text), false, &ignored); /* which fails only for those that last */
}

/* ---- destination ---- */

tsr_status tsr_job_note_kept(const tsr_job_environment *e, const tsr_replacement *r, const char *destination,
                             tsr_arena *arena, tsr_error *err)
{
    for (size_t i = 0; i < r->kept_count && i < MOST_KEPT_NAMED; i++)
        TSR_TRY(note(e,
                     tsr_arena_format(arena, err, "'%.*s' in '%s' is not listed by the replaced checkpoint; it is kept",
                                      TSR_STR_ARG(r->kept[i].name), destination),
                     err));
    if (r->kept_count <= MOST_KEPT_NAMED) return TSR_OK;
    return note(
        e, tsr_arena_format(arena, err, "%zu more files in '%s' are kept", r->kept_count - MOST_KEPT_NAMED, destination),
        err);
}

tsr_status tsr_job_hold_destination(const tsr_job_environment *e, tsr_journals *journals, const char *destination,
                                    tsr_error *err)
{
    uint64_t cleared;
    TSR_TRY(tsr_journals_hold(journals, destination, &cleared, err));
    if (cleared) tsr_job_warn(e, "removed the remains of an interrupted save in '%s'", destination);
    return TSR_OK;
}

/* Notes which files stay. */
static tsr_status note_kept(job_state *s, tsr_error *err)
{
    return tsr_job_note_kept(&s->job->environment, &s->replacement, s->job->destination, s->job->arena, err);
}

tsr_status tsr_job_decide(job_state *s, const tsr_str *written, size_t count, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_new();
    const tsr_replacement_request request = {.host = s->job->host,
                                             .path = s->job->destination,
                                             .is_directory = s->job->is_directory,
                                             .overwrite = s->job->replaces,
                                             .marker = s->job->marker,
                                             .file_name = s->job->file_name,
                                             .inputs = &inputs,
                                             .written = written,
                                             .written_count = count};
    tsr_status status = s->job->replaces && s->job->list_inputs ? s->job->list_inputs(s->job->ctx, &inputs, err) : TSR_OK;
    if (status == TSR_OK) status = tsr_replacement_decide(&request, s->job->arena, &s->replacement, err);
    if (status == TSR_OK) status = tsr_replacement_check_readers(&request, &s->replacement, err);
    tsr_inputs_free(&inputs);
    return status;
}

static tsr_str sidecar_name(const job_state *s)
{
    const uint32_t generation = s->generation;
    return generation ? tsr_arena_format(s->job->arena, NULL, "objects-g%u.json", (unsigned)generation)
                      : TSR_STR("objects.json");
}

/* Whether a file is a sidecar with the objects of a conversion, judged by the beginning of its content. */
static bool is_sidecar(const char *path)
{
    static const char want[] = "{\"schema\":\"tessera.objects/1\"";
    struct stat info;
    char text[256];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const ssize_t size = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? pread(fd, text, sizeof text, 0) : -1;
    size_t matched = 0;
    if (fd >= 0) close(fd);
    for (ssize_t i = 0; i < size && matched < sizeof want - 1; i++) {
        if (text[i] == want[matched]) matched++;
        else if (text[i] != ' ' && text[i] != '\n') return false;
    }
    return matched == sizeof want - 1;
}
/* Turns the kept file of this name into an obsolete one if it is such a sidecar, because the new sidecar will replace it. */
static tsr_status take_sidecar(tsr_replacement *replacement, const char *path, tsr_str name, tsr_arena *arena,
                               tsr_error *err)
{
    const tsr_str there = tsr_arena_format(arena, err, "%s/%.*s", path, TSR_STR_ARG(name));
    if (!there.data) return TSR_E_NOMEM;
    for (size_t i = 0; i < replacement->kept_count; i++) {
        if (!tsr_str_equal(replacement->kept[i].name, name) || !is_sidecar(there.data)) continue;
        replacement->obsolete[replacement->obsolete_count++] = replacement->kept[i].name;
        replacement->kept[i] = replacement->kept[--replacement->kept_count];
        break;
    }
    return TSR_OK;
}

/* For a single file: a sidecar may replace only another sidecar. */
static tsr_status check_sidecar_file(job_state *s, tsr_error *err)
{
    const tsr_str path = tsr_arena_format(s->job->arena, err, "%s.objects.json", s->job->destination);
    if (!path.data) return TSR_E_NOMEM;
    if (access(path.data, F_OK) != 0 || (s->job->replaces && is_sidecar(path.data))) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    s->job->replaces ? "'%s' exists and was not written by a conversion; move it away"
                                     : "'%s' exists; --overwrite replaces it",
                    path.data);
}

static tsr_status check_name(const job_state *s, tsr_str name, tsr_error *err)
{
    return tsr_replacement_check_name(&s->replacement, s->job->destination, name, err);
}

/* For a single file: warns if transformers would load another file of its directory. Both may belong to one model, so it is
 * written. */
static tsr_status note_preferred_file(job_state *s, tsr_error *err)
{
    static const char *const preferred[] = {TSR_MODEL_FILE, TSR_INDEX_MARKER};
    const tsr_str dest = tsr_str_from(s->job->destination), name = TSR_STR(TSR_TORCH_FILE);
    const tsr_str directory = {dest.data, tsr_str_ends(dest, name) ? dest.size - name.size : 0};
    if (!tsr_str_ends(dest, name) || (directory.size && directory.data[directory.size - 1] != '/')) return TSR_OK;
    for (size_t i = 0; i < sizeof preferred / sizeof *preferred; i++) {
        const tsr_str path = tsr_arena_format(s->job->arena, err, "%.*s%s", TSR_STR_ARG(directory), preferred[i]);
        if (!path.data) return TSR_E_NOMEM;
        if (access(path.data, F_OK) != 0) continue;
        return note(&s->job->environment,
                    tsr_arena_format(s->job->arena, err,
                                     "transformers loads '%s' instead of the new '%.*s' in the same directory", preferred[i],
                                     TSR_STR_ARG(name)),
                    err);
    }
    return TSR_OK;
}

tsr_status tsr_job_check_names(job_state *s, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(s->work);
    tsr_status status = s->job->is_directory ? TSR_OK : note_preferred_file(s, err);
    if (status != TSR_OK) return status;
    if (!s->job->is_directory) return c->sidecar.size ? check_sidecar_file(s, err) : TSR_OK;
    if (c->sidecar.size) status = take_sidecar(&s->replacement, s->job->destination, sidecar_name(s), s->job->arena, err);
    for (uint32_t f = 0; f < c->file_count && status == TSR_OK; f++) status = check_name(s, c->files[f], err);
    if (status == TSR_OK && s->job->marker) status = check_name(s, tsr_str_from(s->job->marker), err);
    if (status == TSR_OK && c->sidecar.size) status = check_name(s, sidecar_name(s), err);
    return status == TSR_OK ? note_kept(s, err) : status;
}

/* What cannot be planned is described without its plan. The run itself reports why, after the ranks have compared what they see. */
tsr_status tsr_job_describe(job_state *s, tsr_str *text, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_status planned = s->job->describes_plan ? tsr_job_plan(s, &why) : TSR_OK;
    if (planned == TSR_E_NOMEM) return tsr_raise_again(err, planned, &why);
    if (s->work) s->job->conversion = *tsr_work_conversion(s->work);
    return s->job->describe(s->job->ctx, text, err);
}

/* Lists the files that the job creates, to distinguish them from files of others if the run is killed. */
tsr_status tsr_job_list_files(job_state *s, const tsr_str **files, size_t *count, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(s->work);
    const char *marker = s->job->marker, *beside = tsr_beside_marker(marker);
    tsr_str *list = tsr_arena_array(s->job->arena, (size_t)c->file_count + 3, sizeof *list, err);
    if (!list) return TSR_E_NOMEM;
    *count = 0;
    for (uint32_t f = 0; f < c->file_count; f++)
        if (c->files[f].size) list[(*count)++] = c->files[f];
    if (beside) list[(*count)++] = tsr_str_from(beside);
    if (marker) list[(*count)++] = tsr_str_from(marker);
    if (c->sidecar.size) list[(*count)++] = sidecar_name(s);
    *files = list;
    return *count && !list[*count - 1].data ? TSR_E_NOMEM : TSR_OK;
}

tsr_status tsr_job_plan(job_state *s, tsr_error *err)
{
    if (s->work && s->planned == s->generation) return TSR_OK;
    tsr_work_free(s->work);
    s->work = NULL;
    s->planned = s->generation;
    return tsr_work_new(s->job->source, &s->options, s->generation, s->job->arena, &s->work, err);
}

static tsr_status open_sidecar(job_state *s, const char *path, tsr_error *err)
{
    const tsr_directory_output_options options = {.existing =
                                                      s->job->replaces ? TSR_EXISTING_REPLACED : TSR_EXISTING_REFUSED,
                                                  .tag = s->tag,
                                                  .begun = s->joins ? TSR_BEGUN_JOINED : TSR_BEGUN_REFUSED,
                                                  .parent = tsr_journals_parent(&s->journals)};
    if (!s->compares) return tsr_directory_output_open(NULL, s->job->host->allocator, path, &options, &s->sidecar, err);
    return tsr_completed_open(s->job->host, path, &s->sidecar, err);
}

/* Writes the sidecar into the directory, or next to the single file. */
tsr_status tsr_job_write_sidecar(job_state *s, tsr_error *err)
{
    tsr_str text = s->job->conversion.sidecar;
    tsr_output *to = s->output;
    tsr_str name = sidecar_name(s);
    uint32_t file;
    if (text.size == 0) return TSR_OK;
    if (!s->job->is_directory) {
        tsr_str path = tsr_arena_format(s->job->arena, err, "%s.objects.json", s->job->destination);
        if (!path.data) return TSR_E_NOMEM;
        TSR_TRY(open_sidecar(s, path.data, err));
        to = s->sidecar;
        name = TSR_STR("");
    }
    if (!name.data) return TSR_E_NOMEM;
    tsr_status status = to->create(to, name, text.size, &file, err);
    return status == TSR_OK ? to->write_at(to, file, 0, text.data, text.size, err) : status;
}

/* ---- completed ---- */

/* Finds out whether an earlier run of the job has already written DEST: the job runs over an output that compares
 * (publish/destination.h) instead of writing. */

/* Whether a directory in an object store lacks the file that makes its checkpoint complete. A model that fits into one shard has no
 * index: that one file is it. */
static bool is_unmarked(const job_state *s, const tsr_store *store)
{
    const char *marker = s->job->marker, *alone = tsr_file_of(s->options.to);
    if (!tsr_is_object_url(s->job->destination) || !s->job->is_directory || !marker) return false;
    return tsr_store_find(store, tsr_str_from(marker)) == TSR_NO_FILE &&
           (strcmp(marker, TSR_INDEX_MARKER) != 0 || tsr_store_find(store, tsr_str_from(alone)) == TSR_NO_FILE);
}

/* What is at DEST, as far as it must be known before the comparison. */
typedef struct found {
    uint32_t exists;     /* a directory in an object store without its marker is not a checkpoint */
    uint32_t generation; /* that of its data files */
} found;

static tsr_status look(const job_state *s, found *out, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_error why = {0};
    *out = (found){0};
    const tsr_status status = tsr_path_store_open(s->job->host, s->job->destination, &store, &why);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status != TSR_OK) return tsr_raise_again(err, status, &why);
    /* A run that was killed after it had published a plan's shares leaves their notes, which the next one removes. */
    const bool has_notes = s->is_shared && tsr_is_object_url(s->job->destination) && tsr_path_store_hidden(store).count;
    out->exists = store->file_count > 0 && !is_unmarked(s, store) && !has_notes;
    for (uint32_t f = 0; f < store->file_count && s->job->is_directory; f++) {
        const uint32_t next = tsr_generation_after(store->files[f].name.data);
        if (next > out->generation + 1) out->generation = next - 1;
    }
    store->close(store);
    return TSR_OK;
}

/* Refuses objects that a job with --objects sidecar has left: this job does not write them. */
static tsr_status refuse_sidecar(const job_state *s, tsr_error *err)
{
    const tsr_str path = s->job->is_directory ? tsr_arena_format(s->job->arena, err, "%s/%.*s", s->job->destination,
                                                                 TSR_STR_ARG(sidecar_name(s)))
                                              : tsr_arena_format(s->job->arena, err, "%s.objects.json", s->job->destination);
    if (!path.data) return TSR_E_NOMEM;
    if (s->job->conversion.sidecar.size || tsr_is_url(s->job->destination) || !is_sidecar(path.data)) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "the destination '%s' exists, and is not what this job writes: '%s' is not written by it; --overwrite "
                    "replaces it",
                    s->job->destination, path.data);
}

/* What rank 0 writes after all units. */
static tsr_status compare_rest(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_work_finish(s->work, err);
    s->job->conversion = *tsr_work_conversion(s->work);
    if (status == TSR_OK) status = tsr_job_write_sidecar(s, err);
    if (status == TSR_OK) status = refuse_sidecar(s, err);
    if (status == TSR_OK) status = s->output->publish(s->output, s->job->conversion.marker, err);
    if (status == TSR_OK && s->sidecar) status = s->sidecar->publish(s->sidecar, 0, err);
    return status;
}

static tsr_status compare_units(job_state *s, tsr_error *err)
{
    const tsr_comm *ranks = s->ranks;
    tsr_status status = tsr_job_plan(s, err);
    if (status == TSR_OK) status = tsr_completed_open(s->job->host, s->job->destination, &s->output, err);
    if (status == TSR_OK) status = tsr_work_open(s->work, s->output, err);
    return status == TSR_OK ? tsr_work_run(s->work, ranks ? ranks->rank : 0, ranks ? ranks->size : 1, NULL, err) : status;
}

static tsr_status compare(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_job_agree(s, compare_units(s, err), err);
    if (status == TSR_OK) status = tsr_job_exchange_records(s, err);
    if (status == TSR_OK) status = s->is_first ? compare_rest(s, err) : TSR_OK;
    if (status == TSR_OK) status = s->job->unchanged(s->job->ctx, err);
    return tsr_job_agree(s, status, err);
}

void tsr_job_close_outputs(job_state *s)
{
    if (s->output) s->output->close(s->output);
    if (s->sidecar) s->sidecar->close(s->sidecar);
    s->output = s->sidecar = NULL;
}

/* A run that was killed while it removed a checkpoint from an object store leaves objects of it. They cannot be told from
 * those of others, so they stay, and are named. */
static tsr_status note_left(job_state *s, tsr_error *err)
{
    tsr_error ignored = {0};
    const bool looks = s->job->replaces && tsr_is_object_url(s->job->destination) && s->is_first;
    return looks && tsr_job_decide(s, NULL, 0, &ignored) == TSR_OK ? note_kept(s, err) : TSR_OK;
}

tsr_status tsr_job_find_completed(job_state *s, tsr_error *why, tsr_error *err)
{
    tsr_comm *ranks = s->ranks;
    found there = {0};
    tsr_status status = tsr_job_agree(s, s->is_first ? look(s, &there, err) : TSR_OK, err);
    if (status == TSR_OK && ranks) status = ranks->broadcast(ranks, &there, sizeof there, 0, err);
    if (status != TSR_OK || !there.exists) return status;
    s->generation = there.generation;
    s->compares = true;
    status = compare(s, why);
    s->compares = false;
    if (status == TSR_OK) s->job->resumed.objects = tsr_completed_count(s->output, &s->job->resumed.bytes);
    tsr_job_close_outputs(s);
    if (status == TSR_OK) {
        s->job->is_complete = s->job->published = true;
        s->job->units_found = tsr_work_units(s->work);
        return note_left(s, err);
    }
    tsr_work_free(s->work);
    s->work = NULL;
    s->generation = 0;
    s->job->conversion = (tsr_conversion){0};
    if (status == TSR_E_EXISTS) return TSR_OK;
    *err = *why;
    *why = (tsr_error){0};
    return status;
}

/* ---- work ---- */

tsr_status tsr_job_exchange_records(const job_state *s, tsr_error *err)
{
    tsr_comm *ranks = s->ranks;
    tsr_comm_blobs all = {0};
    tsr_vec own = tsr_vec_of(s->job->host->allocator, 1);
    if (!ranks) return TSR_OK;
    tsr_status status = tsr_job_agree(s, tsr_work_records(s->work, &own, err), err);
    if (status == TSR_OK)
        status = tsr_comm_gather_blobs((tsr_ranks){ranks, own.allocator}, (tsr_str){own.items, own.count}, &all, err);
    for (uint32_t r = 0; r < all.count && status == TSR_OK; r++) status = tsr_work_take(s->work, all.blobs[r], NULL, err);
    tsr_comm_blobs_free(&all);
    tsr_vec_free(&own);
    return status;
}

tsr_status tsr_job_refuse_missing(const job_state *s, uint64_t shares, bool (*is_missing)(const void *ctx, uint64_t share),
                                  const void *ctx, tsr_error *err)
{
    tsr_str names = TSR_STR("");
    uint64_t missing = 0;
    for (uint64_t p = 1; p <= shares; p++) {
        if (!is_missing(ctx, p) || missing++ >= MOST_PARTS_NAMED) continue;
        names = tsr_arena_format(s->job->arena, err, "%.*s%s%" PRIu64, TSR_STR_ARG(names), names.size ? ", " : "", p);
        if (!names.data) return TSR_E_NOMEM;
    }
    return tsr_fail(
        tsr_naming(err), TSR_E_USAGE,
        "cannot finish '%s': share%s %.*s%s of %" PRIu64 " %s not done (%" PRIu64 " of %" PRIu64 " units are left)",
        s->job->destination, missing == 1 ? "" : "s", TSR_STR_ARG(names), missing > MOST_PARTS_NAMED ? " and more" : "",
        shares, missing == 1 ? "is" : "are", tsr_work_left(s->work, 0, 1), tsr_work_units(s->work));
}

/* ---- the text of a job ---- */

tsr_status tsr_job_add_line(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    *text = tsr_arena_format(arena, err, "%.*s%s %.*s\n", TSR_STR_ARG(*text), key, TSR_STR_ARG(value));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_job_add_hash(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_journal_tag(value, tag);
    return tsr_job_add_line(arena, text, key, tsr_str_from(tag + 1), err);
}

static tsr_str version_of(tsr_store *store, bool is_remote, uint32_t file, tsr_arena *arena, tsr_error *err)
{
    int64_t seconds, nanoseconds;
    if (is_remote) return tsr_arena_str(arena, tsr_str_from(tsr_path_store_version(store, file)), err);
    tsr_directory_store_modified(store, file, &seconds, &nanoseconds);
    return tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds);
}

tsr_status tsr_job_date_source(tsr_store *store, bool is_remote, tsr_plan_source *source, tsr_arena *arena, tsr_error *err)
{
    for (uint64_t i = 0; i < source->file_count; i++) {
        tsr_plan_file *file = &source->files[i];
        file->modified = version_of(store, is_remote, tsr_store_find(store, file->name), arena, err);
        if (!file->modified.data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* A checksum of the names, sizes and modification times of the source's files. */
static tsr_str files_sum(tsr_arena *arena, const tsr_plan_source *source, tsr_error *err)
{
    uint32_t sum = 0;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    for (uint64_t i = 0; i < source->file_count; i++) {
        const tsr_plan_file *file = &source->files[i];
        sum = tsr_crc32(NULL, sum, file->name.data, file->name.size);
        sum = tsr_crc32(NULL, sum, &file->bytes, sizeof file->bytes);
        sum = tsr_crc32(NULL, sum, file->modified.data, file->modified.size);
    }
    tsr_journal_tag((tsr_str){(const char *)&sum, sizeof sum}, tag);
    return tsr_arena_format(arena, err, "%" PRIu64 " with sizes and times %s", source->file_count, tag + 1);
}

tsr_status tsr_job_add_source(tsr_arena *arena, tsr_str *text, const tsr_plan_source *source, tsr_error *err)
{
    const tsr_str sum = files_sum(arena, source, err);
    if (!sum.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_job_add_line(arena, text, "source", source->format, err));
    TSR_TRY(tsr_job_add_line(arena, text, "metadata", source->digest, err));
    return tsr_job_add_line(arena, text, "files", sum, err);
}
