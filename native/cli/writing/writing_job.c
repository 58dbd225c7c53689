/* Describes a job as lines of text: two runs with the same lines write the same bytes. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/program/shards_option.h"
#include "cli/program/term.h"
#include "cli/writing/resumed.h"
#include "cli/writing/source.h"
#include "cli/writing/writing.h"
#include "publish/journal.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

/* ---- source ---- */

/* The modification time of a file, or the version that a server reports. */
static tsr_str version_of(const cli_session *session, uint32_t file, tsr_arena *arena, tsr_error *err)
{
    int64_t seconds, nanoseconds;
    if (session->is_remote) return tsr_arena_str(arena, tsr_str_from(tsr_path_store_version(session->store, file)), err);
    tsr_folder_store_modified(session->store, file, &seconds, &nanoseconds);
    return tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds);
}

tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_source *out,
                               tsr_error *err)
{
    out->path = tsr_str_from(session->path);
    tsr_status status = tsr_plan_source_describe(tsr_checkpoint_catalog(cli_source_checkpoint(session)), &program->options,
                                                 cli_host(program), arena, out, err);
    for (uint64_t i = 0; i < out->file_count && status == TSR_OK; i++) {
        tsr_plan_file *file = &out->files[i];
        file->modified = version_of(session, tsr_store_find(session->store, file->name), arena, err);
        if (!file->modified.data) status = TSR_E_NOMEM;
    }
    return status;
}

tsr_status cli_options_with_texts(cli *program, const cli_session *session, const tsr_command_options *options,
                                  tsr_command_options *out, tsr_error *err)
{
    const tsr_shards *shards;
    TSR_TRY(cli_read_shards(program, &shards, err));
    *out = *options;
    out->source.shards = program->options.source.shards;
    if (session->map_text.data) {
        out->map =
            tsr_arena_str(session->arena, session->map_text, err).data; /* that of a built-in map has no NUL at its end */
        if (!out->map) return TSR_E_NOMEM;
    }
    if (session->modules_text.data) out->modules = session->modules_text.data;
    if (shards && shards->document.size) out->source.shards = shards->document.data;
    return TSR_OK;
}

/* ---- resumed ---- */

void cli_report_resumed(const cli *program, const tsr_object_resumed *r)
{
    if (program->options.quiet) return;
    if (r->objects || r->parts) {
        fprintf(stderr, "resumed: %s and %s (%s) were uploaded already", cli_plural(r->objects, "object").text,
                cli_plural(r->parts, "part").text, cli_bytes(r->bytes).text);
    } else {
        fprintf(stderr, "resumed: nothing that can be continued was found; everything was uploaded");
    }
    if (r->differing)
        fprintf(stderr, "; %s with another size or checksum uploaded again", cli_plural(r->differing, "part").text);
    if (r->uploads_given_up) fprintf(stderr, "; %s given up", cli_plural(r->uploads_given_up, "other upload").text);
    fputc('\n', stderr);
    if (r->uploads_left)
        cli_warn(
            program,
            "the destination has %s unfinished upload%s of objects that this run does not write; nothing of them was removed",
            cli_number(r->uploads_left).text, r->uploads_left == 1 ? "" : "s");
}

void cli_note_other_parts(const cli *program, const tsr_output *output, const char *destination)
{
    char text[2048];
    if (tsr_job_other_parts(output, destination, text, sizeof text)) cli_warn(program, "%s", text);
}

void cli_report_continued(const tsr_object_resumed *r)
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

void cli_put_resumed(tsr_json *json, const tsr_object_resumed *r)
{
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"objects", r->objects},
                  {"parts", r->parts},
                  {"bytes", r->bytes},
                  {"differing", r->differing},
                  {"uploads_given_up", r->uploads_given_up},
                  {"uploads_left", r->uploads_left}};
    tsr_json_put_object(json, "resumed");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_object_end(json);
}

/* ---- job ---- */

static tsr_status add_line(const cli_writing *w, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    *text = tsr_arena_format(w->arena, err, "%.*s%s %.*s\n", TSR_STR_ARG(*text), key, TSR_STR_ARG(value));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}

/* A checksum of the names, sizes and modification times of the source's files. */
static tsr_str files_sum(const cli_writing *w, const tsr_plan_source *source, tsr_error *err)
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
    return tsr_arena_format(w->arena, err, "%" PRIu64 " with sizes and times %s", source->file_count, tag + 1);
}

/* Describes a checkpoint that is read, but not where it is: it may be moved between two runs. */
static tsr_status add_source(cli_writing *w, const cli_session *session, tsr_plan_source *source, tsr_str *text,
                             tsr_error *err)
{
    TSR_TRY(cli_describe_source(w->program, session, w->arena, source, err));
    const tsr_str sum = files_sum(w, source, err);
    if (!sum.data) return TSR_E_NOMEM;
    TSR_TRY(add_line(w, text, "source", source->format, err));
    TSR_TRY(add_line(w, text, "metadata", source->digest, err));
    return add_line(w, text, "files", sum, err);
}

/* A document takes the place of its text: this many characters of its hash. */
static tsr_status add_hash(const cli_writing *w, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_journal_tag(value, tag);
    return add_line(w, text, key, tsr_str_from(tag + 1), err);
}

/* The target as its document, on one line, where it was not given by --mesh and --placements. */
static tsr_status add_target(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    tsr_json json;
    tsr_mesh mesh;
    tsr_vec line = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_status status = tsr_mesh_parse(w->plan_job.target.mesh, w->arena, &mesh, err);
    tsr_json_start(&json, tsr_vec_write, &line, 0, err);
    if (status == TSR_OK) tsr_target_texts_write(&json, &w->plan_job.target, &mesh);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    /* without the newline that ends a document */
    if (status == TSR_OK) status = add_line(w, text, "target", (tsr_str){line.items, line.count - 1}, err);
    tsr_vec_free(&line);
    return status;
}

/* The options that affect the output. DEST and the target have decided some of them. */
static tsr_status add_options(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_option_value *values;
    size_t count;
    const tsr_command *command = w->is_exec ? w->plan_job.request.command : w->program->command;
    tsr_command_request request = {.command = command};
    tsr_command_options *options = &request.options;
    TSR_TRY(cli_options_with_texts(w->program, &w->source, w->options, options, err));
    options->to = 0;
    if (!w->source.modules_text.data) options->modules = NULL; /* optim has it in its recipe */
    options->flat_params = NULL;
    options->target = options->storage = NULL; /* see add_target */
    TSR_TRY(tsr_request_list(&request, w->arena, &values, &count, err));
    for (size_t i = 0; i < count; i++) {
        const char *name = values[i].option->name;
        const tsr_str value = tsr_str_from(values[i].text ? values[i].text : "");
        const bool is_document = values[i].option->type == TSR_OPTION_DOCUMENT;
        if (values[i].option->role == TSR_OPTION_OF_SOURCE) continue;
        if (is_document && tsr_is_document(values[i].text)) TSR_TRY(add_hash(w, text, name, value, err));
        else TSR_TRY(add_line(w, text, name, value, err));
    }
    return TSR_OK;
}

/* Writes one line for each property of the job that affects the output. */
tsr_status cli_describe_work(cli_writing *w, tsr_str *text, tsr_error *err)
{
    *text = TSR_STR(TSR_JOURNAL_MAGIC);
    TSR_TRY(add_line(w, text, "tessera", TSR_STR(TSR_VERSION), err));
    TSR_TRY(add_source(w, &w->source, &w->plan_job.source, text, err));
    if (w->source.recipe.data) TSR_TRY(add_line(w, text, "recipe", w->source.recipe, err));
    for (size_t i = 0; i < w->source.other_count; i++) {
        tsr_plan_source other = {.digest_algorithm = w->plan_job.source.digest_algorithm};
        TSR_TRY(add_source(w, &w->source.others[i], &other, text, err));
    }
    TSR_TRY(add_line(w, text, "to", tsr_str_from(tsr_container_words[w->to]), err));
    if (w->file_name.size) TSR_TRY(add_line(w, text, "file", w->file_name, err));
    TSR_TRY(add_options(w, text, err));
    return w->plan && !w->options->mesh ? add_target(w, text, err) : TSR_OK;
}
