/* See completions.h. */
#include "cli/program/completions.h"

#include <stdio.h>

#include "tessera/dtype.h"
#include "tessera/findings.h"
#include "tessera/sys/finding_add.h"

static cli_meaning meaning_of(tsr_str text)
{
    static const struct {
        const char *word;
        cli_meaning meaning;
    } known[] = {{"FILE", CLI_MEANS_FILES},       {"PATH", CLI_MEANS_FILES},
                 {"DEST", CLI_MEANS_FILES},       {"DIRECTORY", CLI_MEANS_FILES},
                 {"A", CLI_MEANS_FILES},          {"B", CLI_MEANS_FILES},
                 {"DTYPE", CLI_MEANS_DTYPES},     {"RULE", CLI_MEANS_RULES},
                 {"COMMAND", CLI_MEANS_COMMANDS}, {"OUT", CLI_MEANS_FILES},
                 {"RUN", CLI_MEANS_FILES},        {"PLAN", CLI_MEANS_FILES},
                 {"MANIFEST", CLI_MEANS_FILES},   {"FQN[SLICE", CLI_MEANS_FQNS},
                 {"NAME|A", CLI_MEANS_FILES},     {"COMMAND|formats", CLI_MEANS_TOPICS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (tsr_str_equal(text, tsr_str_from(known[i].word))) return known[i].meaning;
    }
    if (text.size && memchr(text.data, '|', text.size)) return CLI_MEANS_WORDS;
    return tsr_str_ends(text, TSR_STR(".json")) ? CLI_MEANS_FILES : CLI_MEANS_OTHER;
}

static cli_placeholder placeholder_of(tsr_str text)
{
    cli_placeholder out = {.text = text};
    if (tsr_str_starts(out.text, TSR_STR("["))) out.text = (tsr_str){text.data + 1, text.size - 1};
    if (tsr_str_ends(out.text, TSR_STR("]"))) out.text.size--;
    if (tsr_str_ends(out.text, TSR_STR("…"))) {
        out.text.size -= strlen("…");
        out.repeats = true;
    }
    out.meaning = meaning_of(out.text);
    return out;
}

cli_placeholder cli_value_placeholder(const tsr_option *option)
{
    return placeholder_of(tsr_str_from(option->value));
}

bool cli_next_operand(const char **operands, cli_placeholder *out)
{
    while (**operands == ' ') ++*operands;
    if (!**operands) return false;
    size_t size = strcspn(*operands, " ");
    *out = placeholder_of((tsr_str){*operands, size});
    *operands += size;
    return true;
}

void cli_put_words(const cli_placeholder *placeholder)
{
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    switch (placeholder->meaning) {
    case CLI_MEANS_WORDS:
        putchar(' ');
        for (size_t i = 0; i < placeholder->text.size; i++) {
            putchar(placeholder->text.data[i] == '|' ? ' ' : placeholder->text.data[i]);
        }
        break;
    case CLI_MEANS_DTYPES:
        for (int d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++) {
            if (d != TSR_FLOAT4_E2M1FN) printf(" %s", tsr_dtype_describe((tsr_dtype)d)->name);
        }
        break;
    case CLI_MEANS_RULES:
        for (size_t i = 0; i < count; i++) printf(" %s", rules[i].id);
        break;
    case CLI_MEANS_COMMANDS:
    case CLI_MEANS_TOPICS:
        if (placeholder->meaning == CLI_MEANS_TOPICS) fputs(" formats", stdout);
        for (const tsr_command *c = tsr_commands; c->name; c++) printf(" %s", c->name);
        break;
    default: break;
    }
}

void cli_put_shell(const char *text, const char *quote, const char *escaped)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs(quote, stdout);
            continue;
        }
        if (strchr(escaped, *text)) putchar('\\');
        putchar(*text);
    }
}
