/* The zsh script: one specification for _arguments per command. */
#include <stdio.h>

#include "cli/program/completions.h"

/* Inside a specification, brackets and colons are syntax. */
static void put_spec_text(const char *text)
{
    cli_put_shell(text, "'\\''", "[]:\\");
}

static void put_action(const cli_placeholder *placeholder)
{
    putchar(':');
    for (size_t i = 0; i < placeholder->text.size; i++) {
        if (strchr("[]:\\", placeholder->text.data[i])) putchar('\\');
        putchar(placeholder->text.data[i]);
    }
    putchar(':');
    if (placeholder->meaning == CLI_MEANS_FILES) fputs("_files", stdout);
    else if (placeholder->meaning == CLI_MEANS_FQNS) fputs("_tessera_names", stdout);
    else if (placeholder->meaning != CLI_MEANS_OTHER) {
        putchar('(');
        cli_put_words(placeholder);
        fputs(" )", stdout);
    }
}

static void put_options(const tsr_option *const *options)
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
            cli_placeholder placeholder = cli_value_placeholder(option);
            put_action(&placeholder);
        }
        puts("' \\");
    }
}

static void put_command(const tsr_command *command)
{
    printf("    %s)\n        _arguments -s -S \\\n", command->name);
    put_options(command->options);
    put_options(tsr_global_options);
    cli_placeholder placeholder;
    const char *operands = command->operands;
    while (cli_next_operand(&operands, &placeholder)) {
        fputs(placeholder.repeats ? "        '*" : "        '", stdout);
        put_action(&placeholder);
        puts("' \\");
    }
    puts("        && result=0\n        ;;");
}

void cli_put_zsh(void)
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
