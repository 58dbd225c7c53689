/* Pairs of URLs: as they were given, and without secrets as they may be shown. */
#include <stdlib.h>

#include "cli/program/cli.h"

#include "tessera/sys/text.h"

typedef struct cli_address {
    char *shown;
    const char *given;
} cli_address;

struct cli_addresses {
    size_t count;
    cli_address items[];
};

/* NULL if memory ran out. */
static cli_address *add(cli *program)
{
    const size_t count = program->addresses ? program->addresses->count : 0;
    struct cli_addresses *longer = realloc(program->addresses, sizeof *longer + (count + 1) * sizeof(cli_address));
    if (!longer) return NULL;
    longer->count = count + 1;
    longer->items[count] = (cli_address){NULL, NULL};
    program->addresses = longer;
    return &longer->items[count];
}

const char *cli_hide_secrets(cli *program, const char *text)
{
    const size_t size = strlen(text), room = 3 * size;
    if (!strstr(text, "://")) return text;
    char *shown = malloc(room + 1);
    if (!shown) return "";
    shown[tsr_uri_redact(tsr_str_from(text), shown, room)] = '\0';
    const bool is_same = strcmp(shown, text) == 0;
    cli_address *address = is_same ? NULL : add(program);
    if (!address) {
        free(shown);
        return is_same ? text : "";
    }
    *address = (cli_address){shown, text};
    return shown;
}

const char *cli_given_address(const cli *program, const char *shown)
{
    const struct cli_addresses *all = program->addresses;
    for (size_t i = 0; all && i < all->count; i++)
        if (all->items[i].shown == shown) return all->items[i].given;
    for (size_t i = 0; all && i < all->count; i++)
        if (strcmp(all->items[i].shown, shown) == 0) return all->items[i].given;
    return shown;
}

void cli_forget_addresses(cli *program)
{
    for (size_t i = 0; program->addresses && i < program->addresses->count; i++) free(program->addresses->items[i].shown);
    free(program->addresses);
    program->addresses = NULL;
}
