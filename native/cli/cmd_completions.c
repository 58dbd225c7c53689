/* `tessera completions SHELL`: what a shell needs to complete commands, options and their values, written from the tables.
 */
#include <stdio.h>

#include "cli/completions.h"
#include "cli/session.h"

static cli_meaning meaning_of(tsr_str text)
{
    static const struct {
        const char *word;
        cli_meaning meaning;
    } known[] = {{"FILE", CLI_MEANS_FILES},   {"PATH", CLI_MEANS_FILES},     {"DEST", CLI_MEANS_FILES},
                 {"DIRECTORY", CLI_MEANS_FILES}, {"A", CLI_MEANS_FILES},        {"B", CLI_MEANS_FILES},
                 {"DTYPE", CLI_MEANS_DTYPES}, {"RULE", CLI_MEANS_RULES},     {"COMMAND", CLI_MEANS_COMMANDS},
                 {"PLAN", CLI_MEANS_FILES},   {"MANIFEST", CLI_MEANS_FILES}, {"FQN[SLICE", CLI_MEANS_FQNS}};
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

cli_placeholder cli_value_placeholder(const cli_option *option)
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
        for (const cli_command *const *c = cli_commands; *c; c++) printf(" %s", (*c)->name);
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

enum { MOST_NAMES = 1000 };

/* Whether a name can be typed, and shown by a shell. */
static bool is_visible(tsr_str name)
{
    size_t at = 0, length = 1;
    for (; at < name.size && length; at += length) length = tsr_str_visible((tsr_str){name.data + at, name.size - at});
    return name.size && length;
}

/* What the scripts ask while someone types `tessera get PATH …`. Trouble is silent: nothing to suggest. */
static void put_names(cli *program)
{
    tsr_error err = {0};
    cli_session session;
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_NAMES};
    tsr_str prefix = tsr_str_from(program->operands.count > 2 ? program->operands.items[2] : "");
    if (program->operands.count < 2 || cli_open(program, program->operands.items[1], &options, &session, &err) != TSR_OK)
        return;
    unsigned left = MOST_NAMES;
    for (uint64_t i = 0; i < session.catalog->entry_count && left; i++) {
        tsr_str fqn = session.catalog->entries[i].fqn;
        if (!is_visible(fqn) || !tsr_str_starts(fqn, prefix)) continue;
        printf("%.*s\n", TSR_STR_ARG(fqn));
        left--;
    }
    cli_close(&session);
}

static int run(cli *program, const void *given)
{
    (void)given;
    const char *shell = program->operands.items[0];
    if (strcmp(shell, "bash") == 0) cli_put_bash();
    else if (strcmp(shell, "zsh") == 0) cli_put_zsh();
    else if (strcmp(shell, "fish") == 0) cli_put_fish();
    else if (strcmp(shell, "names") == 0) put_names(program);
    else return cli_fail(program, "completions are written for bash, zsh and fish, not '%s'", shell);
    return CLI_DONE;
}

static const cli_option options[] = {{0}};

const cli_command cli_completions = {
    .name = "completions",
    .summary = "Write the completion script for bash, zsh or fish",
    .operands = "bash|zsh|fish",
    .least = 1,
    .most = 3, /* the scripts call `completions names PATH PREFIX` */
    .examples = "source <(tessera completions bash)\nComplete in this shell; packages install the script for all\n"
                "tessera completions zsh >~/.zsh/_tessera\nInstall it in a directory of $fpath\n"
                "tessera completions fish >~/.config/fish/completions/tessera.fish\nInstall it for all new shells\n",
    .options = options,
    .run = run,
};
