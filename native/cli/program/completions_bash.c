/* The bash script: three tables (options, their values, operands) and a function that uses them and nothing but bash
 * itself. */
#include <stdio.h>

#include "cli/program/completions.h"

static void put_kind(const cli_placeholder *placeholder)
{
    fputs("echo '", stdout);
    if (placeholder->meaning == CLI_MEANS_FILES) fputs("files", stdout);
    else if (placeholder->meaning == CLI_MEANS_FQNS) fputs("names", stdout);
    else {
        fputs("words", stdout);
        cli_put_words(placeholder);
    }
    puts("' ;;");
}

static void put_values(const char *command, const tsr_option *const *options)
{
    for (; *options; options++) {
        const tsr_option *option = *options;
        if (!option->value) continue;
        cli_placeholder placeholder = cli_value_placeholder(option);
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
    cli_placeholder placeholder;
    const char *operands = command->operands;
    for (unsigned number = 1; cli_next_operand(&operands, &placeholder); number++) {
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

void cli_put_bash(void)
{
    const cli_placeholder commands = {.meaning = CLI_MEANS_COMMANDS};
    printf("# bash completion for tessera %s, written by `tessera completions bash`\n_tessera_commands='", TSR_VERSION);
    cli_put_words(&commands);
    puts("'\n");
    put_tables();
    fputs(functions, stdout);
}
