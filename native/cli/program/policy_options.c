/* See policy_options.h. */
#include "cli/program/policy_options.h"

#include <stdio.h>

#include "cli/program/session.h"
#include "cli/program/term.h"

static tsr_status load_baseline(cli *program, const char *path, tsr_policy *policy, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes text = {0};
    tsr_status status = cli_load_file(program, path, &store, &text, err);
    if (status == TSR_OK) status = tsr_policy_baseline(policy, text.data, err);
    tsr_bytes_free(&text);
    if (store) store->close(store);
    return status;
}

tsr_status cli_policy_open(cli *program, tsr_policy_scope scope, const tsr_command_options *options, tsr_policy **out,
                           const char **path, tsr_error *err)
{
    *path = NULL;
    *out = tsr_policy_new(scope, cli_host(program), err);
    tsr_status status = *out ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < options->rules.count && status == TSR_OK; i++)
        status = tsr_policy_rule(*out, options->rules.items[i], err);
    if (status == TSR_OK && options->baseline) status = load_baseline(program, *path = options->baseline, *out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_policy_free(*out);
    *out = NULL;
    return status;
}

static const char *left_out_text(const tsr_policy_result *result, char *out, size_t capacity)
{
    int used = 0;
    out[0] = '\0';
    if (result->has_baseline)
        used = snprintf(out, capacity, "%s left out by the baseline", cli_number(result->left_out).text);
    if (result->has_rules_off)
        snprintf(out + used, capacity - (size_t)used, "%s%s turned off", used ? ", " : "",
                 cli_number(result->turned_off).text);
    return out;
}

void cli_put_left_out(const tsr_policy_result *result)
{
    char text[128];
    if (*left_out_text(result, text, sizeof text)) printf("; %s", text);
}

void cli_note_left_out(const cli *program, const tsr_policy_result *result)
{
    char text[128];
    if (*left_out_text(result, text, sizeof text)) cli_note(program, "%s", text);
}
