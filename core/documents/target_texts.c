/* Makes a target from the texts of a document or of the command line. */
#include <stdlib.h>

#include "tessera/sys/document.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/target_fsdp1.h"
#include "tessera/sys/try.h"

static tsr_status parse_list(const tsr_mesh *mesh, tsr_str text, tsr_str rule, tsr_arena *arena, const tsr_placement **out,
                             tsr_error *err)
{
    tsr_placement *list;
    uint32_t count;
    TSR_TRY(tsr_placements_parse(text, arena, &list, &count, err));
    TSR_FAIL_IF(count != mesh->dim_count, err, TSR_E_USAGE,
                "'%.*s' has %u placements, but the mesh has %u dims; give one placement per mesh dim in the rule '%.*s'",
                TSR_STR_ARG(text), count, mesh->dim_count, TSR_STR_ARG(rule));
    *out = list;
    return TSR_OK;
}

/* "replicate" for every mesh dim. */
static tsr_str replicate_everywhere(uint32_t dim_count, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("replicate");
    for (uint32_t i = 1; i < dim_count && text.data; i++)
        text = tsr_arena_format(arena, err, "%.*s,replicate", TSR_STR_ARG(text));
    return text;
}

static int by_number(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Sorts the ranks that hold the tensors of a rule. */
static tsr_status sort_ranks(const tsr_mesh *mesh, const tsr_target_rule_text *text, tsr_arena *arena, tsr_target_rule *out,
                             tsr_error *err)
{
    uint64_t *ranks = tsr_arena_array(arena, (size_t)text->rank_count, sizeof *ranks, err);
    if (!ranks) return TSR_E_NOMEM;
    memcpy(ranks, text->ranks, (size_t)text->rank_count * sizeof *ranks);
    qsort(ranks, (size_t)text->rank_count, sizeof *ranks, by_number);
    for (uint64_t i = 0; i < text->rank_count; i++) {
        TSR_FAIL_IF(ranks[i] >= tsr_mesh_ranks(mesh), err, TSR_E_USAGE,
                    "the rule '%.*s' names rank %llu, but the mesh has only %llu ranks", TSR_STR_ARG(text->match),
                    (unsigned long long)ranks[i], (unsigned long long)tsr_mesh_ranks(mesh));
        TSR_FAIL_IF(i && ranks[i] == ranks[i - 1], err, TSR_E_USAGE, "the rule '%.*s' names rank %llu twice",
                    TSR_STR_ARG(text->match), (unsigned long long)ranks[i]);
    }
    out->ranks = ranks;
    out->rank_count = text->rank_count;
    return TSR_OK;
}

/* Splits "layers.{n}." at the number. */
static bool split_capture(tsr_str capture, tsr_target_stage *out)
{
    for (size_t at = 0; at + 3 <= capture.size; at++) {
        if (memcmp(capture.data + at, "{n}", 3) != 0) continue;
        out->head = (tsr_str){capture.data, at};
        out->tail = (tsr_str){capture.data + at + 3, capture.size - at - 3};
        return true;
    }
    return false;
}

static tsr_status parse_stage(const tsr_mesh *mesh, const tsr_target_rule_text *text, tsr_arena *arena, tsr_target_rule *out,
                              tsr_error *err)
{
    uint32_t dim = 0;
    tsr_target_stage *stage = TSR_ARENA_NEW(arena, tsr_target_stage, err);
    if (!stage) return TSR_E_NOMEM;
    while (dim < mesh->dim_count && !(text->stage_dim.size && tsr_str_equal(mesh->names[dim], text->stage_dim))) dim++;
    TSR_FAIL_IF(dim == mesh->dim_count, err, TSR_E_USAGE,
                "the rule '%.*s' has stages of the mesh dim '%.*s', which the mesh does not have", TSR_STR_ARG(text->match),
                TSR_STR_ARG(text->stage_dim));
    TSR_FAIL_IF(!split_capture(text->stage_capture, stage), err, TSR_E_USAGE,
                "the rule '%.*s' captures layers with '%.*s', which does not contain {n}", TSR_STR_ARG(text->match),
                TSR_STR_ARG(text->stage_capture));
    TSR_FAIL_IF(text->stage_range_count != mesh->shape[dim], err, TSR_E_USAGE,
                "the rule '%.*s' has %u ranges of layers for the %llu stages of '%.*s'", TSR_STR_ARG(text->match),
                text->stage_range_count, (unsigned long long)mesh->shape[dim], TSR_STR_ARG(text->stage_dim));
    stage->mesh_dim = dim;
    stage->ranges = text->stage_ranges;
    out->stage = stage;
    return TSR_OK;
}

static tsr_status parse_rule(const tsr_mesh *mesh, tsr_target_rule_text *text, tsr_arena *arena, tsr_target_rule *out,
                             tsr_error *err)
{
    *out = (tsr_target_rule){.match = text->match};
    const bool may_lack = text->ranks || text->stage_capture.data;
    if (!text->placements.size && may_lack) text->placements = replicate_everywhere(mesh->dim_count, arena, err);
    if (!text->placements.data) return TSR_E_NOMEM;
    TSR_TRY(parse_list(mesh, text->placements, text->match, arena, &out->placements, err));
    if (text->ranks) TSR_TRY(sort_ranks(mesh, text, arena, out, err));
    return text->stage_capture.data ? parse_stage(mesh, text, arena, out, err) : TSR_OK;
}

tsr_status tsr_target_from_texts(tsr_target_texts *texts, bool (*match)(tsr_str glob, tsr_str name), tsr_arena *arena,
                                 tsr_target *out, tsr_error *err)
{
    *out = (tsr_target){.rule_count = texts->rule_count, .match = match};
    TSR_TRY(tsr_mesh_parse(texts->mesh, arena, &out->mesh, err));
    if (!texts->default_placements.data) texts->default_placements = replicate_everywhere(out->mesh.dim_count, arena, err);
    if (!texts->default_placements.data) return TSR_E_NOMEM;
    TSR_TRY(parse_list(&out->mesh, texts->default_placements, TSR_STR("default"), arena, &out->default_placements, err));
    tsr_target_rule *rules = tsr_arena_array(arena, texts->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < texts->rule_count; i++)
        TSR_TRY(parse_rule(&out->mesh, &texts->rules[i], arena, &rules[i], err));
    out->rules = rules;
    return tsr_target_check(out, err);
}
