/* A list of findings in its own arena. The number per rule is limited, so that a malicious file cannot fill memory with
 * findings. */
#include "tessera/findings.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"

#include <stdarg.h>
#include <stdio.h>

#include "tessera/sys/try.h"

enum { NAME_MAX_BYTES = 4096 };

#define DEFAULT_MAX_PER_RULE 1000

const char *tsr_level_name(tsr_level level)
{
    return level == TSR_ERROR ? "error" : level == TSR_WARNING ? "warning" : "note";
}

typedef struct rule_count {
    uint32_t stored;
    uint64_t unlisted[TSR_ERROR + 1]; /* by level: counted but not stored */
} rule_count;

struct tsr_findings {
    tsr_arena *arena;
    tsr_vec list;      /* of tsr_finding */
    rule_count *rules; /* indexed like the rule table */
    uint32_t max_per_rule;
    uint64_t totals[TSR_ERROR + 1];
};

tsr_findings *tsr_findings_new(const tsr_allocator *allocator, uint32_t max_per_rule, tsr_error *err)
{
    size_t rules;
    tsr_rules(&rules);
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    tsr_findings *findings = arena ? TSR_ARENA_NEW(arena, tsr_findings, err) : NULL;
    rule_count *counts = findings ? tsr_arena_array(arena, rules, sizeof *counts, err) : NULL;
    if (!counts) {
        tsr_arena_free(arena);
        return NULL;
    }
    findings->arena = arena;
    findings->list = tsr_vec_of(allocator, sizeof(tsr_finding));
    findings->rules = counts;
    findings->max_per_rule = max_per_rule ? max_per_rule : DEFAULT_MAX_PER_RULE;
    return findings;
}

void tsr_findings_free(tsr_findings *findings)
{
    if (!findings) return;
    tsr_vec_free(&findings->list);
    tsr_arena_free(findings->arena);
}

/* Shortens a very long name at a character boundary, because input may put the same endless name into every finding. */
static tsr_str clipped(tsr_str name)
{
    if (name.size <= NAME_MAX_BYTES) return name;
    name.size = NAME_MAX_BYTES;
    while (name.size && ((unsigned char)name.data[name.size] & 0xc0) == 0x80) name.size--;
    return name;
}

static tsr_status add(tsr_findings *findings, const tsr_rule *rule, tsr_level level, tsr_place place, const char *text,
                      tsr_error *err)
{
    tsr_finding *finding = tsr_vec_push(&findings->list, err);
    if (!finding) return TSR_E_NOMEM;
    *finding = (tsr_finding){.rule = rule, .level = level, .byte_offset = place.byte_offset};
    finding->message = tsr_arena_str(findings->arena, tsr_str_from(text), err);
    if (place.file.data) finding->file = tsr_arena_str(findings->arena, clipped(place.file), err);
    if (place.fqn.data) finding->fqn = tsr_arena_str(findings->arena, clipped(place.fqn), err);
    if (!finding->message.data || (place.file.data && !finding->file.data) || (place.fqn.data && !finding->fqn.data)) {
        findings->list.count--;
        return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static rule_count *count_of(const tsr_findings *findings, const tsr_rule *rule)
{
    size_t count;
    return &findings->rules[rule - tsr_rules(&count)];
}

/* Messages are cleaned by tsr_raise, so that a malicious name cannot send raw bytes to a terminal. Beyond the limit per
 * rule, findings are only counted: input may cause millions. */
typedef struct rated {
    const tsr_rule *rule;
    tsr_level level;
} rated;

static tsr_status find_rule(const char *id, const tsr_rule **out, tsr_error *err)
{
    *out = tsr_rule_find(id);
    TSR_FAIL_IF(!*out, err, TSR_E_USAGE, "there is no rule '%s'", id);
    return TSR_OK;
}

/* A file that cannot be opened fails for everything in it, and is reported once. */
#define IO_RULE "file/io"

static bool is_listed(const tsr_findings *findings, const tsr_rule *rule, const char *message)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        if (f->rule == rule && tsr_str_equal(f->message, tsr_str_from(message))) return true;
    }
    return false;
}

static tsr_status add_formatted(tsr_findings *findings, rated of, tsr_place place, tsr_error *err, const char *format,
                                va_list args)
{
    const tsr_rule *rule = of.rule;
    const tsr_level level = of.level;
    rule_count *count = count_of(findings, rule);
    if (count->stored >= findings->max_per_rule) {
        tsr_findings_count_more(findings, rule, level, 1);
        return TSR_OK;
    }
    char text[TSR_ERROR_MESSAGE_SIZE];
    vsnprintf(text, sizeof text, format, args);
    tsr_error clean = {0};
    tsr_fail(&clean, TSR_E_FORMAT, "%s", text);
    if (strcmp(rule->id, IO_RULE) == 0 && is_listed(findings, rule, clean.message)) return TSR_OK;
    findings->totals[level]++;
    TSR_TRY(add(findings, rule, level, place, clean.message, err));
    count->stored++;
    return TSR_OK;
}

tsr_status tsr_finding_add(tsr_findings *findings, const char *rule_id, tsr_place place, tsr_error *err, const char *format,
                           ...)
{
    const tsr_rule *rule;
    va_list args;
    TSR_TRY(find_rule(rule_id, &rule, err));
    va_start(args, format);
    tsr_status status = add_formatted(findings, (rated){rule, rule->level}, place, err, format, args);
    va_end(args);
    return status;
}

tsr_status tsr_finding_add_failure(tsr_findings *findings, const char *rule_id, tsr_place place, const tsr_error *failure,
                                   tsr_error *err)
{
    if (!tsr_may_be_finding(failure->status)) return tsr_raise_again(err, failure->status, failure);
    if (failure->status != TSR_E_IO) return tsr_finding_add(findings, rule_id, place, err, "%s", failure->message);
    return tsr_finding_add(findings, IO_RULE, (tsr_place){place.file, TSR_NO_POSITION, {NULL, 0}}, err, "%s",
                           failure->message);
}

tsr_status tsr_finding_add_at(tsr_findings *findings, tsr_rated_rule given, tsr_place place, tsr_error *err,
                              const char *format, ...)
{
    const tsr_rule *rule;
    va_list args;
    TSR_TRY(find_rule(given.id, &rule, err));
    va_start(args, format);
    tsr_status status = add_formatted(findings, (rated){rule, given.level}, place, err, format, args);
    va_end(args);
    return status;
}

void tsr_findings_count_more(tsr_findings *findings, const tsr_rule *rule, tsr_level level, uint64_t count)
{
    findings->totals[level] += count;
    count_of(findings, rule)->unlisted[level] += count;
}

uint64_t tsr_findings_unlisted(const tsr_findings *findings, const tsr_rule *rule, tsr_level level)
{
    return count_of(findings, rule)->unlisted[level];
}

size_t tsr_findings_count(const tsr_findings *findings)
{
    return findings->list.count;
}

const tsr_finding *tsr_findings_at(const tsr_findings *findings, size_t index)
{
    return (const tsr_finding *)findings->list.items + index;
}

uint64_t tsr_findings_total(const tsr_findings *findings, tsr_level level)
{
    return findings->totals[level];
}

tsr_status tsr_findings_take(tsr_findings *findings, const tsr_findings *more, tsr_error *err)
{
    size_t rules;
    const tsr_rule *table = tsr_rules(&rules);
    for (size_t i = 0; i < tsr_findings_count(more); i++) {
        const tsr_finding *f = tsr_findings_at(more, i);
        TSR_TRY(tsr_finding_add_at(findings, (tsr_rated_rule){f->rule->id, f->level},
                                   (tsr_place){f->file, f->byte_offset, f->fqn}, err, "%.*s", TSR_STR_ARG(f->message)));
    }
    for (size_t r = 0; r < rules; r++) {
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            tsr_findings_count_more(findings, &table[r], (tsr_level)level,
                                    tsr_findings_unlisted(more, &table[r], (tsr_level)level));
    }
    return TSR_OK;
}
