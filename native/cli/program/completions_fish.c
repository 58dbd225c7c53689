/* The fish script: one `complete` line per option, which applies only to its command. */
#include <stdio.h>

#include "cli/program/completions.h"

static void put_quoted(const char *text)
{
    putchar('\'');
    cli_put_shell(text, "\\'", "\\");
    putchar('\'');
}

static void put_choice(const cli_placeholder *placeholder)
{
    if (placeholder->meaning == CLI_MEANS_FILES) {
        fputs(" -F", stdout);
        return;
    }
    fputs(" -x", stdout);
    if (placeholder->meaning == CLI_MEANS_OTHER) return;
    fputs(" -a '", stdout);
    if (placeholder->meaning == CLI_MEANS_FQNS) fputs("(__tessera_names)", stdout);
    cli_put_words(placeholder);
    putchar('\'');
}

static void put_options(const char *condition, const tsr_option *const *options)
{
    for (; *options; options++) {
        const tsr_option *option = *options;
        printf("complete -c tessera %s -l %s", condition, option->name);
        if (option->letter) printf(" -s %c", option->letter);
        if (option->value) {
            cli_placeholder placeholder = cli_value_placeholder(option);
            if (placeholder.meaning == CLI_MEANS_FILES) fputs(" -r", stdout);
            put_choice(&placeholder);
        }
        fputs(" -d ", stdout);
        put_quoted(option->help);
        putchar('\n');
    }
}

static void put_operands(const tsr_command *command)
{
    cli_placeholder placeholder;
    const char *operands = command->operands;
    for (unsigned number = 1; cli_next_operand(&operands, &placeholder); number++) {
        if (placeholder.meaning == CLI_MEANS_OTHER) continue;
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

void cli_put_fish(void)
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
        put_operands(c);
        put_options(condition, c->options);
        put_options(condition, tsr_global_options);
    }
}
