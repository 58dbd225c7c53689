/* `tessera help COMMAND`, on the terminal or as a manual page in man(7) format, made from the tables. */
#include <ctype.h>
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/cli.h"
#include "cli/program/help.h"

/* ---- manual pages, in which ellipses are three dots: a terminal of the POSIX locale would show nothing ---- */

/* Decodes one character of valid UTF-8, which the tables are. *size is the number of its bytes. */
static unsigned code_point(const char *text, size_t *size)
{
    const unsigned char *p = (const unsigned char *)text;
    *size = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    unsigned point = *size == 1 ? p[0] : p[0] & (0x7fu >> *size);
    for (size_t i = 1; i < *size; i++) point = point << 6 | (p[i] & 0x3fu);
    return point;
}

/* Commands are copied from the page and typed, so hyphens and quotes must not be turned into typographic ones. */
static void put_text(const char *text, size_t size)
{
    if (size && (text[0] == '.' || text[0] == '\'')) fputs("\\&", stdout);
    for (size_t used; size; text += used, size -= used) {
        unsigned point = code_point(text, &used);
        switch (point) {
        case '\\': fputs("\\e", stdout); break;
        case '-': fputs("\\-", stdout); break;
        case '\'': fputs("\\(aq", stdout); break;
        case '`': fputs("\\(ga", stdout); break;
        case '^': fputs("\\(ha", stdout); break;
        case '~': fputs("\\(ti", stdout); break;
        case '"': fputs("\\(dq", stdout); break;
        case 0x2026: fputs("...", stdout); break;
        default: printf(point < 0x80 ? "%c" : "\\[u%04X]", point);
        }
    }
}

static void put_line(const char *text)
{
    put_text(text, strlen(text));
    putchar('\n');
}

static void put_title(const char *name, int section, const char *manual)
{
    fputs(".TH ", stdout);
    for (; *name; name++) {
        if (*name == '-') fputs("\\-", stdout);
        else putchar(toupper((unsigned char)*name));
    }
    printf(" %d %s \"tessera %s\" \"%s\"\n.nh\n.ad l\n", section, TSR_RELEASED, TSR_VERSION, manual);
}

static void put_examples(const char *examples)
{
    puts(".SH EXAMPLES");
    bool is_command = true;
    for (const char *line = examples; *line; is_command = !is_command) {
        size_t size = strcspn(line, "\n");
        fputs(is_command ? ".TP\n.B \"" : "", stdout);
        put_text(line, size);
        puts(is_command ? "\"" : "");
        line += size + (line[size] == '\n');
    }
}

static void put_options(const tsr_option *const *options)
{
    for (; *options; options++) {
        const tsr_option *option = *options;
        fputs(".TP\n", stdout);
        if (option->letter) printf("\\fB\\-%c\\fR, ", option->letter);
        fputs("\\fB\\-\\-", stdout);
        put_text(option->name, strlen(option->name));
        fputs("\\fR", stdout);
        if (option->value) {
            fputs(" \\fI", stdout);
            put_text(option->value, strlen(option->value));
            fputs("\\fR", stdout);
        }
        putchar('\n');
        put_line(option->help);
    }
}

static void put_end(void)
{
    puts(
        ".SH \"EXIT STATUS\"\n.TP\n.B 0\nsuccess; identical or valid\n.TP\n.B 1\ndifferences or findings\n.TP\n.B 2\nerror: "
        "wrong usage, unreadable input, or a failed read or write");
    puts(
        ".SH URLS\nA PATH may be an http(s) URL, or one of an object store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY or "
        "hf://[datasets/]ORG/REPO[@REVISION][/PATH]. Keys are taken as they are, without percent\\-decoding.");
    puts(
        ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nDisable colors if set and not empty\n.TP\n.B TERM\nDisable colors if dumb or "
        "not set\n.TP\n.B COLUMNS\nUse this width when the output is not a terminal\n"
        ".TP\n.B TESSERA_PEER_LIMIT\nUnder mpirun: treat a process as dead after so many seconds of silence (default: 20)\n"
        ".TP\n.B TESSERA_HTTP_HEADERS\nSend these lines as headers to the server of an http(s) URL\n"
        ".TP\n.BR CURL_CA_BUNDLE \", \" SSL_CERT_FILE\nTrust the certificate authorities in this file, the first of the two that is set, in place of "
        "the system's\n"
        ".TP\n.B TESSERA_RETRY_SECONDS\nGive up when a server has failed for so many seconds without recovering (default: 40)\n"
        ".TP\n.BR AWS_ACCESS_KEY_ID \", \" AWS_SECRET_ACCESS_KEY \", \" AWS_SESSION_TOKEN \", \" AWS_PROFILE \", \" AWS_REGION \", \" AWS_ENDPOINT_URL \", \" AWS_CA_BUNDLE\n"
        "As AWS\\(aqs own tools use them, like its profiles and the metadata services of containers and instances\n"
        ".TP\n.BR GOOGLE_OAUTH_ACCESS_TOKEN \", \" GOOGLE_HMAC_ACCESS_ID \", \" GOOGLE_HMAC_SECRET \", \" STORAGE_EMULATOR_HOST\nCredentials for gs:// "
        "(otherwise the metadata server), and an emulator\n"
        ".TP\n.BR AZURE_STORAGE_CONNECTION_STRING \", \" AZURE_STORAGE_SAS_TOKEN \", \" AZURE_STORAGE_SERVICE_ENDPOINT\nA shared access signature for az://, "
        "and another endpoint\n"
        ".TP\n.BR HF_TOKEN \", \" HF_HOME \", \" HF_ENDPOINT\nThe token for hf://, the directory that has it in a file, and another hub");
}

static void put_command(const tsr_command *command)
{
    char name[64];
    snprintf(name, sizeof name, "tessera-%s", command->name);
    put_title(name, 1, "User Commands");
    printf(".SH NAME\n");
    put_text(name, strlen(name));
    fputs(" \\- ", stdout);
    put_line(command->summary);
    printf(".SH SYNOPSIS\n\\fBtessera %s\\fR", command->name);
    if (*command->operands) {
        fputs(" \\fI", stdout);
        put_text(command->operands, strlen(command->operands));
        fputs("\\fR", stdout);
    }
    puts(" [\\fIOPTION\\fR]...");
    put_examples(cli_command_of(command)->examples);
    puts(".SH OPTIONS");
    put_options(command->options);
    puts(".SS Global options");
    put_options(tsr_global_options);
    put_end();
    puts(".SH \"SEE ALSO\"\n.BR tessera (1),\n.BR tessera\\-formats (5)");
}

static void put_overview(void)
{
    put_title("tessera", 1, "User Commands");
    fputs(".SH NAME\ntessera \\- ", stdout);
    put_line(cli_overview_summary);
    puts(".SH SYNOPSIS\n\\fBtessera\\fR \\fICOMMAND\\fR [\\fIOPERAND\\fR]... [\\fIOPTION\\fR]...");
    puts(
        ".SH DESCRIPTION\nTessera reads distributed checkpoints (DCP), torch.save files and safetensors, and recognizes them "
        "by their content.\nIt needs no Python, never executes anything in a checkpoint, and its memory use does not grow "
        "with the model.");
    put_examples(cli_overview_examples);
    puts(".SH COMMANDS");
    for (const tsr_command *c = tsr_commands; c->name; c++) {
        if (c->group) printf(".SS %s\n", c->group);
        printf(".TP\n.BR tessera\\-%s (1)\n", c->name);
        put_line(c->summary);
    }
    puts(".SH OPTIONS\nEvery command accepts these options.");
    put_options(tsr_global_options);
    put_end();
    puts(".SH \"SEE ALSO\"\n.BR tessera\\-formats (5)");
}

/* Examples are set as they are, with names of files and commands between them. */
static void put_format_examples(const char *examples)
{
    bool is_name = true;
    for (const char *line = examples; *line;) {
        const size_t size = strcspn(line, "\n");
        if (is_name) {
            fputs(".PP\nExample, in\n.IR ", stdout);
            put_text(line, size);
            puts(" :\n.RS 4\n.EX");
        } else if (strncmp(line, "tessera ", 8) == 0) {
            fputs(".EE\n.RE\n.PP\n.B \"", stdout);
            put_text(line, size);
            puts("\"");
        } else if (size) {
            put_text(line, size);
            putchar('\n');
        }
        is_name = size == 0;
        line += size + (line[size] == '\n');
    }
}

static void put_formats_man(void)
{
    put_title("tessera-formats", 5, "File Formats");
    fputs(".SH NAME\ntessera\\-formats \\- ", stdout);
    put_line(cli_formats_summary);
    puts(
        ".SH DESCRIPTION\nA GLOB matches whole names: * within a component, ** across components, ?, [...]. The schemas of all "
        "documents are installed in share/tessera/schemas.");
    for (const cli_format *format = cli_formats; format->name; format++) {
        fputs(".SS \"", stdout);
        put_text(format->name, strlen(format->name));
        puts("\"");
        put_line(format->summary);
        for (const cli_format_key *key = format->keys; key->name; key++) {
            fputs(".TP\n.B \"", stdout);
            put_text(key->name, strlen(key->name));
            puts("\"");
            put_line(key->help);
        }
        put_format_examples(format->examples);
    }
    puts(".SH \"SEE ALSO\"\n.BR tessera (1)");
}

/* the manual page; NULL: tessera(1) */
static void put_man(const tsr_command *command)
{
    if (command) put_command(command);
    else put_overview();
}

/* ---- the command ---- */

static int run(cli *program, const tsr_command_options *arguments)
{
    const tsr_command *command = NULL;
    if (program->operands.count && strcmp(program->operands.items[0], "formats") == 0) {
        if (arguments->man) put_formats_man();
        else cli_put_formats(program);
        return CLI_DONE;
    }
    if (program->operands.count && !(command = cli_find_command(program, program->operands.items[0]))) return CLI_TROUBLE;
    if (arguments->man) put_man(command);
    else cli_put_help(program, command);
    return CLI_DONE;
}

const cli_command cli_help = {
    .name = "help",
    .examples = "tessera help\nList all commands\ntessera help convert\nShow how to use convert\n"
                "tessera help formats\nDescribe the documents that options read, with examples\n",
    .run = run,
};
