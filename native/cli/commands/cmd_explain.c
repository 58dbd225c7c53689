/* `tessera explain RULE`: what a rule checks, why its findings occur and what to do about them. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/term.h"
#include "cli/text/report_text.h"

#include "tessera/sys/finding_add.h"

static void put_table(const cli_terminal *terminal, const tsr_policy_scope *scope)
{
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    unsigned width = 0;
    for (size_t i = 0; i < count; i++) {
        if (strlen(rules[i].id) > width) width = (unsigned)strlen(rules[i].id);
    }
    for (size_t i = 0; i < count; i++) {
        if (scope && !tsr_policy_has_rule(*scope, &rules[i])) continue;
        printf("%-*s  %-8s", (int)width, rules[i].id, tsr_level_name(rules[i].level));
        cli_put_wrapped(stdout, tsr_str_from(rules[i].summary), width + 10, width + 10, terminal->columns);
    }
}

/* Writes the document of one rule, or of the rules of `scope`, or of all rules (both NULL). */
static int put_json(const cli *program, const tsr_rule *only, const tsr_policy_scope *scope)
{
    tsr_json json;
    tsr_error err = {0};
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    cli_document_start(program, &json, &err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.rules/1");
    tsr_json_put_array(&json, "rules");
    for (size_t i = 0; i < count; i++) {
        if ((only && only != &rules[i]) || (scope && !tsr_policy_has_rule(*scope, &rules[i]))) continue;
        tsr_json_object(&json);
        tsr_json_put_text(&json, "id", rules[i].id);
        tsr_json_put_text(&json, "level", tsr_level_name(rules[i].level));
        tsr_json_put_text(&json, "summary", rules[i].summary);
        tsr_json_put_text(&json, "help", rules[i].help);
        tsr_json_object_end(&json);
    }
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json) == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
}

int cli_put_rules(const cli *program, const tsr_policy_scope *scope)
{
    const tsr_command_options *o = &program->options;
    if (o->json || o->format == CLI_REPORT_JSON) return put_json(program, NULL, scope);
    put_table(&program->out, scope);
    return CLI_DONE;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    if (program->operands.count == 0) return cli_put_rules(program, NULL);
    const char *id = program->operands.items[0];
    const tsr_rule *rule = tsr_rule_find(id);
    if (rule && arguments->json) return put_json(program, rule, NULL);
    if (!rule) {
        const tsr_rule *meant = tsr_rule_suggest(id);
        if (meant) return cli_fail(program, "there is no rule '%s'; did you mean '%s'?", id, meant->id);
        return cli_fail(program, "there is no rule '%s'; tessera explain lists all rules", id);
    }
    cli_on(&program->out, stdout, CLI_BOLD);
    fputs(rule->id, stdout);
    cli_off(&program->out, stdout);
    printf("  (%s)\n", tsr_level_name(rule->level));
    cli_put_wrapped(stdout, tsr_str_from(rule->summary), 0, 0, program->out.columns);
    putchar('\n');
    cli_put_wrapped(stdout, tsr_str_from(rule->help), 0, 0, program->out.columns);
    return CLI_DONE;
}

const cli_command cli_explain = {
    .name = "explain",
    .examples = "tessera explain\nList all rules with their levels\n"
                "tessera explain layout/hole\nPrint what it means, why it happens and what to do\n",
    .run = run,
};
