/* Describes a job as lines of text: two runs with the same lines write the same bytes. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/program/term.h"
#include "cli/writing/resumed.h"
#include "cli/writing/source.h"
#include "cli/writing/writing_parts.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path_store.h"

/* ---- source ---- */

/* The modification time of a file, or the version that a server reports. */
static tsr_str version_of(const cli_session *session, uint32_t file, tsr_arena *arena, tsr_error *err)
{
    int64_t seconds, nanoseconds;
    if (session->is_remote) return tsr_arena_str(arena, tsr_str_from(tsr_path_store_version(session->store, file)), err);
    tsr_folder_store_modified(session->store, file, &seconds, &nanoseconds);
    return tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds);
}

tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_job *job, tsr_error *err)
{
    job->source_path = tsr_str_from(session->path);
    if (program->options.source.part) job->source_part = tsr_str_from(program->options.source.part);
    if (program->options.source.step) job->source_step = tsr_str_from(program->options.source.step);
    if (session->map_text.size) job->source_map = session->map_text;
    job->source_inverse = session->map_inverse;
    tsr_status status =
        tsr_plan_job_source(tsr_checkpoint_catalog(cli_source_checkpoint(session)), cli_host(program), arena, job, err);
    for (uint64_t i = 0; i < job->file_count && status == TSR_OK; i++) {
        tsr_plan_file *file = &job->files[i];
        file->modified = version_of(session, tsr_store_find(session->store, file->name), arena, err);
        if (!file->modified.data) status = TSR_E_NOMEM;
    }
    return status;
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
    tsr_str first;
    const size_t count = tsr_object_output_other_parts(output, &first);
    if (!count) return;
    cli_warn(
        program,
        "'%s' has unfinished parts of another plan ('%.*s'%s%s%s); they are kept; --discard-parts of exec, convert or reshard removes them",
        destination, TSR_STR_ARG(first), count > 1 ? " and " : "", count > 1 ? cli_number(count - 1).text : "",
        count > 1 ? " more" : "");
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

static tsr_status add_list(const cli_writing *w, tsr_str *text, const char *key, const tsr_texts *list, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < list->count && status == TSR_OK; i++)
        status = add_line(w, text, key, tsr_str_from(list->items[i]), err);
    return status;
}

/* A checksum of the names, sizes and modification times of the source's files. */
static tsr_str files_sum(const cli_writing *w, const tsr_plan_job *job, tsr_error *err)
{
    uint32_t sum = 0;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    for (uint64_t i = 0; i < job->file_count; i++) {
        const tsr_plan_file *file = &job->files[i];
        sum = tsr_crc32(NULL, sum, file->name.data, file->name.size);
        sum = tsr_crc32(NULL, sum, &file->bytes, sizeof file->bytes);
        sum = tsr_crc32(NULL, sum, file->modified.data, file->modified.size);
    }
    tsr_journal_tag((tsr_str){(const char *)&sum, sizeof sum}, tag);
    return tsr_arena_format(w->arena, err, "%" PRIu64 " with sizes and times %s", job->file_count, tag + 1);
}

/* Appends to the placements of a rule which ranks hold the tensors that it applies to. */
static tsr_str add_holders(const cli_writing *w, tsr_str line, const tsr_target_rule_text *rule, tsr_error *err)
{
    if (rule->ranks) line = tsr_arena_format(w->arena, err, "%.*s ranks", TSR_STR_ARG(line));
    for (uint64_t i = 0; i < rule->rank_count && line.data; i++)
        line = tsr_arena_format(w->arena, err, "%.*s %" PRIu64, TSR_STR_ARG(line), rule->ranks[i]);
    if (rule->stage_capture.size && line.data)
        line = tsr_arena_format(w->arena, err, "%.*s stage %.*s %.*s", TSR_STR_ARG(line), TSR_STR_ARG(rule->stage_dim),
                                TSR_STR_ARG(rule->stage_capture));
    for (uint32_t i = 0; i < rule->stage_range_count && line.data; i++)
        line = tsr_arena_format(w->arena, err, "%.*s %" PRIu64 "+%" PRIu64, TSR_STR_ARG(line), rule->stage_ranges[i].offset,
                                rule->stage_ranges[i].size);
    return line;
}

static tsr_status add_target(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_target_texts *target = &w->job.target;
    tsr_status status = add_line(w, text, "mesh", target->mesh, err);
    for (uint32_t i = 0; i < target->rule_count && status == TSR_OK; i++) {
        tsr_str rule = tsr_arena_format(w->arena, err, "%.*s %.*s", TSR_STR_ARG(target->rules[i].match),
                                        TSR_STR_ARG(target->rules[i].placements));
        if (rule.data) rule = add_holders(w, rule, &target->rules[i], err);
        status = rule.data ? add_line(w, text, "rule", rule, err) : TSR_E_NOMEM;
    }
    if (status == TSR_OK && target->fsdp1)
        status = add_line(w, text, "fsdp1", target->use_orig_params ? TSR_STR("original parameters") : TSR_STR("flat"), err);
    for (uint32_t i = 0; i < target->unit_count && status == TSR_OK; i++)
        status = add_line(w, text, "unit", target->units[i], err);
    for (uint32_t i = 0; i < target->ignored_count && status == TSR_OK; i++)
        status = add_line(w, text, "ignored", target->ignored[i], err);
    return status == TSR_OK ? add_line(w, text, "placements", target->default_placements, err) : status;
}

static tsr_status add_map(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_str map = w->source.map_text;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_status status = TSR_OK;
    if (w->source.dequantized_to) status = add_line(w, text, "dequantized", tsr_str_from(w->source.dequantized_to), err);
    if (status == TSR_OK && w->source.quantized.data) status = add_line(w, text, "quantized", w->source.quantized, err);
    if (status != TSR_OK || !map.size) return status;
    tsr_journal_tag(map, tag);
    return add_line(w, text, w->source.map_inverse ? "inverse map" : "map", tsr_str_from(tag + 1), err);
}

/* Adds the further checkpoints that are read, such as the other inputs of a merge, and what is made of them. */
static tsr_status add_others(cli_writing *w, tsr_str *text, tsr_error *err)
{
    tsr_status status = w->source.recipe.data ? add_line(w, text, "recipe", w->source.recipe, err) : TSR_OK;
    for (size_t i = 0; i < w->source.other_count && status == TSR_OK; i++) {
        tsr_plan_job job = {.digest_algorithm = w->job.digest_algorithm};
        status = cli_describe_source(w->program, &w->source.others[i], w->arena, &job, err);
        const tsr_str sum = status == TSR_OK ? files_sum(w, &job, err) : TSR_STR("");
        if (status == TSR_OK && !sum.data) status = TSR_E_NOMEM;
        if (status == TSR_OK) status = add_line(w, text, "other source", job.source_format, err);
        if (status == TSR_OK) status = add_line(w, text, "metadata", job.digest, err);
        if (status == TSR_OK) status = add_line(w, text, "files", sum, err);
    }
    return status;
}

static tsr_str shards_rule_line(const cli_writing *w, const tsr_shards_rule *rule, tsr_error *err)
{
    tsr_str line =
        tsr_arena_format(w->arena, err, "%.*s %d %d %u %u %d %" PRIu64, TSR_STR_ARG(rule->match), (int)rule->kind,
                         (int)rule->dim, (unsigned)rule->rank, (unsigned)rule->block_count, (int)rule->trims, rule->trim);
    for (uint32_t i = 0; rule->block_sizes && i < rule->block_count && line.data; i++)
        line = tsr_arena_format(w->arena, err, "%.*s size %" PRIu64, TSR_STR_ARG(line), rule->block_sizes[i]);
    for (uint32_t i = 0; rule->block_copies && i < rule->block_count && line.data; i++)
        line = tsr_arena_format(w->arena, err, "%.*s copies %" PRIu64, TSR_STR_ARG(line), rule->block_copies[i]);
    return line;
}

/* Describes how tensors are sharded into the files of ranks. */
static tsr_status add_shards(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_shards *map = w->shards;
    const tsr_str world = tsr_arena_format(w->arena, err, "%u", (unsigned)w->world_size);
    tsr_status status = world.data ? add_line(w, text, "world-size", world, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = add_line(w, text, "ranks", map->ranks, err);
    if (status == TSR_OK && map->stage_pattern.size) status = add_line(w, text, "stages", map->stage_pattern, err);
    for (uint32_t i = 0; i < map->stage_count && status == TSR_OK; i++) {
        const tsr_str layers = tsr_arena_format(w->arena, err, "%" PRIu64, map->stage_layers[i]);
        status = layers.data ? add_line(w, text, "layers", layers, err) : TSR_E_NOMEM;
    }
    for (uint32_t i = 0; i < map->rule_count && status == TSR_OK; i++) {
        const tsr_str rule = shards_rule_line(w, &map->rules[i], err);
        status = rule.data ? add_line(w, text, "shards-rule", rule, err) : TSR_E_NOMEM;
    }
    return status;
}

static tsr_status add_renames(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_rename *renames;
    size_t count;
    tsr_status status = tsr_renames_parse(&w->options->renames, w->arena, &renames, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        const tsr_rename *r = &renames[i];
        tsr_str rename = tsr_arena_format(w->arena, err, "%.*s%s%.*s → %.*s%s%.*s", TSR_STR_ARG(r->from_head),
                                          r->starred ? "*" : "", TSR_STR_ARG(r->from_tail), TSR_STR_ARG(r->to_head),
                                          r->starred ? "*" : "", TSR_STR_ARG(r->to_tail));
        status = rename.data ? add_line(w, text, "rename", rename, err) : TSR_E_NOMEM;
    }
    return status;
}

/* Writes one line for each property of the job that affects the output. */
tsr_status cli_describe_work(cli_writing *w, tsr_str *text, tsr_error *err)
{
    tsr_status status = cli_describe_source(w->program, &w->source, w->arena, &w->job, err);
    tsr_str sum = status == TSR_OK ? files_sum(w, &w->job, err) : TSR_STR("");
    if (status == TSR_OK && !sum.data) status = TSR_E_NOMEM;
    *text = TSR_STR(TSR_JOURNAL_MAGIC);
    const struct {
        const char *key;
        tsr_str value;
    } lines[] = {{"tessera", TSR_STR(TSR_VERSION)},
                 {"source", w->job.source_format},
                 {"metadata", w->job.digest},
                 {"files", sum},
                 {"to", tsr_str_from(tsr_container_words[w->to])},
                 {"objects", tsr_str_from(tsr_objects_words[w->options->objects])},
                 {"dtype", tsr_str_from(w->options->quantize ? NULL : w->options->dtype)},
                 {"for-torch", tsr_str_from(w->options->for_torch)},
                 {"shard-size", tsr_arena_format(w->arena, err, "%" PRIu64, w->max_shard_size)}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines && status == TSR_OK; i++)
        status = add_line(w, text, lines[i].key, lines[i].value, err);
    if (status == TSR_OK && w->options->no_checksums) status = add_line(w, text, "checksums", TSR_STR("none"), err);
    if (status == TSR_OK && w->file_name.size) status = add_line(w, text, "file", w->file_name, err);
    if (status == TSR_OK && w->shards) status = add_shards(w, text, err);
    if (status == TSR_OK) status = add_map(w, text, err);
    if (status == TSR_OK) status = add_others(w, text, err);
    if (status == TSR_OK) status = add_list(w, text, "include", &w->options->selection.include, err);
    if (status == TSR_OK) status = add_list(w, text, "exclude", &w->options->selection.exclude, err);
    if (status == TSR_OK) status = add_renames(w, text, err);
    return status == TSR_OK && w->plan ? add_target(w, text, err) : status;
}
