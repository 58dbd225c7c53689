/* `tessera completions SHELL`: prints the script with which a shell completes commands, options and their values. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "tessera/dtype.h"
#include "tessera/findings.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/text.h"

/* What the placeholders for values and operands mean to a shell. */
typedef enum value_meaning {
    MEANS_OTHER,    /* GLOB, SIZE, N, …: nothing to suggest */
    MEANS_WORDS,    /* text|json: one of these words */
    MEANS_FILES,    /* FILE, PATH, DEST, DIRECTORY, A, B, NAME.json */
    MEANS_DTYPES,   /* DTYPE */
    MEANS_RULES,    /* RULE */
    MEANS_COMMANDS, /* COMMAND */
    MEANS_TOPICS,   /* COMMAND|formats: what help describes */
    MEANS_FQNS      /* FQN: names in the checkpoint that is the first operand */
} value_meaning;

typedef struct value_placeholder {
    value_meaning meaning;
    tsr_str text; /* without brackets and "…" */
    bool repeats; /* "PATH…" */
} value_placeholder;

static value_meaning meaning_of(tsr_str text)
{
    static const struct {
        const char *word;
        value_meaning meaning;
    } known[] = {
        {"FILE", MEANS_FILES},       {"PATH", MEANS_FILES},     {"DEST", MEANS_FILES},   {"DIRECTORY", MEANS_FILES},
        {"A", MEANS_FILES},          {"B", MEANS_FILES},        {"DTYPE", MEANS_DTYPES}, {"RULE", MEANS_RULES},
        {"COMMAND", MEANS_COMMANDS}, {"OUT", MEANS_FILES},      {"RUN", MEANS_FILES},    {"PLAN", MEANS_FILES},
        {"MANIFEST", MEANS_FILES},   {"FQN[SLICE", MEANS_FQNS}, {"NAME|A", MEANS_FILES}, {"COMMAND|formats", MEANS_TOPICS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (tsr_str_equal(text, tsr_str_from(known[i].word))) return known[i].meaning;
    }
    if (text.size && memchr(text.data, '|', text.size)) return MEANS_WORDS;
    return tsr_str_ends(text, TSR_STR(".json")) ? MEANS_FILES : MEANS_OTHER;
}

static value_placeholder placeholder_of(tsr_str text)
{
    value_placeholder out = {.text = text};
    if (tsr_str_starts(out.text, TSR_STR("["))) out.text = tsr_str_after(text, 1);
    if (tsr_str_ends(out.text, TSR_STR("]"))) out.text.size--;
    if (tsr_str_ends(out.text, TSR_STR("…"))) {
        out.text.size -= strlen("…");
        out.repeats = true;
    }
    out.meaning = meaning_of(out.text);
    return out;
}

/* The placeholder of an option's value. The option must not be a flag. */
static value_placeholder placeholder_of_option(const tsr_option *option)
{
    return placeholder_of(tsr_str_from(option->value));
}

/* Parses the next of a command's operands and advances `*operands`; false after the last. */
static bool next_operand(const char **operands, value_placeholder *out)
{
    while (**operands == ' ') ++*operands;
    if (!**operands) return false;
    size_t size = strcspn(*operands, " ");
    *out = placeholder_of((tsr_str){*operands, size});
    *operands += size;
    return true;
}

/* Prints the words to choose from, each preceded by a space; nothing for FILES, FQNS and OTHER. */
static void put_words(const value_placeholder *placeholder)
{
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    switch (placeholder->meaning) {
    case MEANS_WORDS:
        putchar(' ');
        for (size_t i = 0; i < placeholder->text.size; i++) {
            putchar(placeholder->text.data[i] == '|' ? ' ' : placeholder->text.data[i]);
        }
        break;
    case MEANS_DTYPES:
        for (int d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++) {
            if (d != TSR_FLOAT4_E2M1FN) printf(" %s", tsr_dtype_describe((tsr_dtype)d)->name);
        }
        break;
    case MEANS_RULES:
        for (size_t i = 0; i < count; i++) printf(" %s", rules[i].id);
        break;
    case MEANS_COMMANDS:
    case MEANS_TOPICS:
        if (placeholder->meaning == MEANS_TOPICS) fputs(" formats", stdout);
        for (const tsr_command *c = tsr_commands; c->name; c++) printf(" %s", c->name);
        break;
    default: break;
    }
}

/* Prints text inside single quotes of a shell in which ' is written as `quote`, with a backslash before each character of
 * `escaped`. */
static void cli_put_shell(const char *text, const char *quote, const char *escaped)
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

/* ---- completions bash ---- */

/* The bash script: three tables (options, their values, operands) and a function that uses them and nothing but bash
 * itself. */

static void put_kind(const value_placeholder *placeholder)
{
    fputs("echo '", stdout);
    if (placeholder->meaning == MEANS_FILES) fputs("files", stdout);
    else if (placeholder->meaning == MEANS_FQNS) fputs("names", stdout);
    else {
        fputs("words", stdout);
        put_words(placeholder);
    }
    puts("' ;;");
}

static void put_values(const char *command, const tsr_option *const *options)
{
    for (; *options; options++) {
        const tsr_option *option = *options;
        if (!option->value) continue;
        value_placeholder placeholder = placeholder_of_option(option);
        printf("    %s:--%s", command, option->name);
        if (option->letter) printf(" | %s:-%c", command, option->letter);
        fputs(") ", stdout);
        put_kind(&placeholder);
    }
}

static void put_names_of(const tsr_option *const *options)
{
    for (; *options; options++) printf(" --%s", (*options)->name);
}

static void put_operands(const tsr_command *command)
{
    value_placeholder placeholder;
    const char *operands = command->operands;
    for (unsigned number = 1; next_operand(&operands, &placeholder); number++) {
        printf("    %s:", command->name);
        if (placeholder.repeats) fputs("*) ", stdout);
        else printf("%u) ", number);
        put_kind(&placeholder);
    }
}

static void put_tables(void)
{
    puts("# \"files\", \"names\" or \"words …\" for the value of an option; fails for one that takes "
         "none.\n_tessera_value() {\n"
         "    case $1:$2 in");
    for (const tsr_command *c = tsr_commands; c->name; c++) put_values(c->name, c->options);
    put_values("*", tsr_global_options);
    puts("    *) return 1 ;;\n    esac\n}\n\n# The same for an operand, counted from 1.\n_tessera_operand() {\n    case "
         "$1:$2 in");
    for (const tsr_command *c = tsr_commands; c->name; c++) put_operands(c);
    fputs("    esac\n}\n\n_tessera_options() {\n    case $1 in\n", stdout);
    for (const tsr_command *c = tsr_commands; c->name; c++) {
        printf("    %s) echo", c->name);
        put_names_of(c->options);
        put_names_of(tsr_global_options);
        puts(" ;;");
    }
    fputs("    esac\n}\n\n", stdout);
}

/* Names come from untrusted files. They are quoted, and never passed to `compgen -W`, which expands its argument. */
static const char functions[] =
    "_tessera_reply() {\n"
    "    local kind=$1 command=$2 path=$3 cur=$4 name\n"
    "    case $kind in\n"
    "    files)\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
    "        ;;\n"
    "    names)\n"
    "        path=${path//[\\\\\\\"\\']/}\n"
    "        while IFS= read -r name; do\n"
    "            printf -v name %q \"$name\"\n"
    "            COMPREPLY+=(\"$name\")\n"
    "        done < <(\"$command\" completions names \"${path/#\\~/$HOME}\" \"$cur\" 2>/dev/null)\n"
    "        ;;\n"
    "    words*) mapfile -t COMPREPLY < <(compgen -W \"${kind#words}\" -- \"$cur\") ;;\n"
    "    esac\n"
    "}\n"
    "\n"
    "_tessera() {\n"
    "    local command=${COMP_WORDS[1]} cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    local i word kind path= operand=1 only_operands=\n"
    "    COMPREPLY=()\n"
    "    # Where \"=\" breaks words, --option=value is three of them.\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == = ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        _tessera_reply \"words$(printf ' %s' $_tessera_commands --help --version)\" '' '' \"$cur\"\n"
    "        return\n"
    "    fi\n"
    "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
    "        word=${COMP_WORDS[i]}\n"
    "        if [[ $only_operands || $word != -* ]]; then\n"
    "            [[ $path ]] || path=$word\n"
    "            ((operand++))\n"
    "        elif [[ $word == -- ]]; then\n"
    "            only_operands=yes\n"
    "        elif _tessera_value \"$command\" \"$word\" >/dev/null; then\n"
    "            [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))\n"
    "            ((i++))\n"
    "        fi\n"
    "    done\n"
    "    if [[ -z $only_operands ]] && kind=$(_tessera_value \"$command\" \"$prev\"); then\n"
    "        _tessera_reply \"$kind\" \"${COMP_WORDS[0]}\" \"$path\" \"$cur\"\n"
    "    elif [[ -z $only_operands && $cur == -* ]]; then\n"
    "        _tessera_reply \"words $(_tessera_options \"$command\")\" '' '' \"$cur\"\n"
    "    else\n"
    "        _tessera_reply \"$(_tessera_operand \"$command\" $operand)\" \"${COMP_WORDS[0]}\" \"$path\" \"$cur\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _tessera tessera\n";

static void put_bash(void)
{
    const value_placeholder commands = {.meaning = MEANS_COMMANDS};
    printf("# bash completion for tessera %s, written by `tessera completions bash`\n_tessera_commands='", TSR_VERSION);
    put_words(&commands);
    puts("'\n");
    put_tables();
    fputs(functions, stdout);
}

/* ---- completions fish ---- */

/* The fish script: one `complete` line per option, which applies only to its command. */

static void put_quoted(const char *text)
{
    putchar('\'');
    cli_put_shell(text, "\\'", "\\");
    putchar('\'');
}

static void put_choice(const value_placeholder *placeholder)
{
    if (placeholder->meaning == MEANS_FILES) {
        fputs(" -F", stdout);
        return;
    }
    fputs(" -x", stdout);
    if (placeholder->meaning == MEANS_OTHER) return;
    fputs(" -a '", stdout);
    if (placeholder->meaning == MEANS_FQNS) fputs("(__tessera_names)", stdout);
    put_words(placeholder);
    putchar('\'');
}

static void put_options(const char *condition, const tsr_option *const *options)
{
    for (; *options; options++) {
        const tsr_option *option = *options;
        printf("complete -c tessera %s -l %s", condition, option->name);
        if (option->letter) printf(" -s %c", option->letter);
        if (option->value) {
            value_placeholder placeholder = placeholder_of_option(option);
            if (placeholder.meaning == MEANS_FILES) fputs(" -r", stdout);
            put_choice(&placeholder);
        }
        fputs(" -d ", stdout);
        put_quoted(option->help);
        putchar('\n');
    }
}

static void fish_put_operands(const tsr_command *command)
{
    value_placeholder placeholder;
    const char *operands = command->operands;
    for (unsigned number = 1; next_operand(&operands, &placeholder); number++) {
        if (placeholder.meaning == MEANS_OTHER) continue;
        if (placeholder.repeats) printf("complete -c tessera -n '__tessera_is %s'", command->name);
        else printf("complete -c tessera -n '__tessera_operand %s %u'", command->name, number);
        put_choice(&placeholder);
        putchar('\n');
    }
}

static void put_valued(const char *command, const tsr_option *const *options)
{
    printf("        case %s\n            set -a valued", command);
    for (; *options; options++) {
        const tsr_option *option = *options;
        if (!option->value) continue;
        printf(" --%s", option->name);
        if (option->letter) printf(" -%c", option->letter);
    }
    putchar('\n');
}

/* Fish itself does not distinguish operands from the values of options. */
static void put_functions(void)
{
    puts("function __tessera_is\n"
         "    set -l words (commandline -opc)\n"
         "    test (count $words) -ge 2; and test $words[2] = $argv[1]\n"
         "end\n\n"
         "function __tessera_operands\n"
         "    set -l words (commandline -opc)\n"
         "    set -l skip no\n"
         "    set -l valued\n"
         "    switch \"$words[2]\"");
    for (const tsr_command *c = tsr_commands; c->name; c++) put_valued(c->name, c->options);
    puts("    end\n    switch x");
    put_valued("x", tsr_global_options);
    puts("    end\n"
         "    set -e words[1..2]\n"
         "    for word in $words\n"
         "        if test $skip = yes\n"
         "            set skip no\n"
         "        else if not string match -q -- '-*' $word\n"
         "            echo $word\n"
         "        else if contains -- $word $valued\n"
         "            set skip yes\n"
         "        end\n"
         "    end\n"
         "end\n\n"
         "function __tessera_operand\n"
         "    __tessera_is $argv[1]; and test (count (__tessera_operands)) -eq (math $argv[2] - 1)\n"
         "end\n\n"
         "function __tessera_names\n"
         "    set -l operands (__tessera_operands)\n"
         "    set -l words (commandline -opc)\n"
         "    $words[1] completions names $operands[1] (commandline -ct) 2>/dev/null\n"
         "end\n");
}

static void put_fish(void)
{
    printf("# fish completion for tessera %s, written by `tessera completions fish`\n", TSR_VERSION);
    put_functions();
    puts("complete -c tessera -f\n"
         "complete -c tessera -n __fish_use_subcommand -l version -d 'version and what it was built with'\n"
         "complete -c tessera -n __fish_use_subcommand -l help -s h -d help");
    for (const tsr_command *c = tsr_commands; c->name; c++) {
        printf("complete -c tessera -n __fish_use_subcommand -a %s -d ", c->name);
        put_quoted(c->summary);
        putchar('\n');
    }
    for (const tsr_command *c = tsr_commands; c->name; c++) {
        char condition[64];
        snprintf(condition, sizeof condition, "-n '__tessera_is %s'", c->name);
        fish_put_operands(c);
        put_options(condition, c->options);
        put_options(condition, tsr_global_options);
    }
}

/* ---- completions zsh ---- */

/* The zsh script: one specification for _arguments per command. */

/* Inside a specification, brackets and colons are syntax. */
static void put_spec_text(const char *text)
{
    cli_put_shell(text, "'\\''", "[]:\\");
}

static void put_action(const value_placeholder *placeholder)
{
    putchar(':');
    for (size_t i = 0; i < placeholder->text.size; i++) {
        if (strchr("[]:\\", placeholder->text.data[i])) putchar('\\');
        putchar(placeholder->text.data[i]);
    }
    putchar(':');
    if (placeholder->meaning == MEANS_FILES) fputs("_files", stdout);
    else if (placeholder->meaning == MEANS_FQNS) fputs("_tessera_names", stdout);
    else if (placeholder->meaning != MEANS_OTHER) {
        putchar('(');
        put_words(placeholder);
        fputs(" )", stdout);
    }
}

static void zsh_put_options(const tsr_option *const *options)
{
    for (; *options; options++) {
        const tsr_option *option = *options;
        const char *repeat = option->type == TSR_OPTION_TEXTS ? "*" : "", *equals = option->value ? "=" : "";
        fputs("        ", stdout);
        if (option->letter) {
            if (*repeat) fputs("'*'", stdout);
            else printf("'(-%c --%s)'", option->letter, option->name);
            printf("{-%c%s,--%s%s}'[", option->letter, option->value ? "+" : "", option->name, equals);
        } else {
            printf("'%s--%s%s[", repeat, option->name, equals);
        }
        put_spec_text(option->help);
        putchar(']');
        if (option->value) {
            value_placeholder placeholder = placeholder_of_option(option);
            put_action(&placeholder);
        }
        puts("' \\");
    }
}

static void put_command(const tsr_command *command)
{
    printf("    %s)\n        _arguments -s -S \\\n", command->name);
    zsh_put_options(command->options);
    zsh_put_options(tsr_global_options);
    value_placeholder placeholder;
    const char *operands = command->operands;
    while (next_operand(&operands, &placeholder)) {
        fputs(placeholder.repeats ? "        '*" : "        '", stdout);
        put_action(&placeholder);
        puts("' \\");
    }
    puts("        && result=0\n        ;;");
}

static void put_zsh(void)
{
    printf("#compdef tessera\n# zsh completion for tessera %s, written by `tessera completions zsh`\n", TSR_VERSION);
    puts("\n_tessera_names() {\n"
         "    local -a names\n"
         "    names=(${(f)\"$(_call_program names $tessera_program completions names ${(Q)line[1]} ${(Q)PREFIX} "
         "2>/dev/null)\"})\n"
         "    compadd -- $names\n"
         "}\n\n_tessera_command_names() {\n    local -a commands=(");
    for (const tsr_command *c = tsr_commands; c->name; c++) {
        printf("        '%s:", c->name);
        put_spec_text(c->summary);
        puts("'");
    }
    puts("    )\n    _describe -t commands command commands\n}\n\n_tessera() {\n"
         "    local context state line result=1 tessera_program=$words[1]\n"
         "    typeset -A opt_args\n"
         "    _arguments -C '(- *)'{-h,--help}'[help]' '(- *)--version[version and what it was built with]' \\\n"
         "        '1:command:_tessera_command_names' '*::argument:->argument' && result=0\n"
         "    [[ $state == argument ]] || return result\n"
         "    case $words[1] in");
    for (const tsr_command *c = tsr_commands; c->name; c++) put_command(c);
    puts("    esac\n    return result\n}\n\n"
         "if [[ $funcstack[1] == _tessera ]]; then\n    _tessera \"$@\"\nelse\n    compdef _tessera tessera\nfi");
}

enum { MOST_NAMES = 1000 };

/* Whether a name consists of visible characters only, so that it can be typed and a shell can show it. */
static bool is_visible(tsr_str name)
{
    size_t at = 0, length = 1;
    for (; at < name.size && length; at += length) length = tsr_str_visible(tsr_str_after(name, at));
    return name.size && length;
}

/* `tessera completions names PATH PREFIX`, which the scripts call while someone types `tessera get PATH …`. Prints nothing
 * on an error. */
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

/* `tessera completions json`, from which the options of the npm package and the tests of Python's are made. */
static int put_table(const cli *program)
{
    tsr_json json;
    tsr_error err = {0};
    cli_document_start(program, &json, &err);
    return tsr_commands_write(&json) == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    (void)arguments;
    const char *shell = program->operands.items[0];
    if (strcmp(shell, "names") != 0 && !cli_check_operands(program, false, program->command->operands, 1, 1))
        return CLI_TROUBLE;
    if (strcmp(shell, "bash") == 0) put_bash();
    else if (strcmp(shell, "zsh") == 0) put_zsh();
    else if (strcmp(shell, "fish") == 0) put_fish();
    else if (strcmp(shell, "names") == 0) put_names(program);
    else if (strcmp(shell, "json") == 0) return put_table(program);
    else return cli_fail(program, "cannot write completions for '%s'; choose bash, zsh or fish", shell);
    return CLI_DONE;
}

const cli_command cli_completions = {
    .name = "completions",
    .examples = "source <(tessera completions bash)\nComplete in this shell; packages install the script for all\n"
                "tessera completions zsh >~/.zsh/_tessera\nInstall it in a directory of $fpath\n"
                "tessera completions fish >~/.config/fish/completions/tessera.fish\nInstall it for all new shells\n",
    .run = run,
};
