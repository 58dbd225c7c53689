/* Describes a job as lines of text: two runs with the same lines write the same bytes. */
#include <inttypes.h>

#include "cli/writing/source.h"
#include "cli/writing/writing_parts.h"

#include "tessera/sys/host_calls.h"

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
    if (status == TSR_OK && w->file_name.size) status = add_line(w, text, "file", w->file_name, err);
    if (status == TSR_OK && w->shards) status = add_shards(w, text, err);
    if (status == TSR_OK) status = add_map(w, text, err);
    if (status == TSR_OK) status = add_others(w, text, err);
    if (status == TSR_OK) status = add_list(w, text, "include", &w->options->selection.include, err);
    if (status == TSR_OK) status = add_list(w, text, "exclude", &w->options->selection.exclude, err);
    if (status == TSR_OK) status = add_renames(w, text, err);
    return status == TSR_OK && w->plan ? add_target(w, text, err) : status;
}
