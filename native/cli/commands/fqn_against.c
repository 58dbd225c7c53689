#include "cli/commands/fqn_against.h"

#include <stdio.h>

#include "cli/program/term.h"
#include "tessera/diff.h"

/* ---- pairing ---- */

/* Makes a catalog of one side under its canonical names. The dtypes of tensors are ignored: a float32 model may be saved as
 * bfloat16. All objects get the same type, different from that of tensors, so that they can be paired, too. */
static tsr_status make_catalog(cli_known_names side, tsr_arena *arena, tsr_catalog *out, tsr_error *err)
{
    tsr_entry *entries = tsr_arena_array(arena, side.count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    for (size_t i = 0; i < side.count; i++) {
        entries[i] = (tsr_entry){.fqn = side.names[i].match,
                                 .kind = TSR_ENTRY_TENSOR,
                                 .dtype = side.names[i].is_tensor ? TSR_UINT8 : TSR_BOOL,
                                 .ndim = side.names[i].ndim,
                                 .shape = side.names[i].shape};
    }
    *out = (tsr_catalog){.format = TSR_FORMAT_DCP, .entries = entries, .entry_count = side.count};
    return TSR_OK;
}

static void pair_up(const tsr_diff *diff, const tsr_catalog *a, const tsr_catalog *b, const cli_known_name *want,
                    tsr_name_pair *pairs, bool *met)
{
    for (uint64_t i = 0; i < diff->pair_count + diff->renamed_count; i++) {
        bool same = i < diff->pair_count;
        const tsr_diff_rename *rename = same ? NULL : &diff->renamed[i - diff->pair_count];
        size_t from = (size_t)((same ? diff->pairs[i].a : rename->a) - a->entries),
               to = (size_t)((same ? diff->pairs[i].b : rename->b) - b->entries);
        pairs[from].to = want[to].name;
        met[to] = true;
    }
}

tsr_status cli_compare_names(cli_known_names have, cli_known_names want, const tsr_host *host, tsr_arena *arena,
                             cli_against *out, tsr_error *err)
{
    tsr_catalog a, b;
    tsr_diff diff;
    *out = (cli_against){.pair_count = have.count};
    tsr_status status = make_catalog(have, arena, &a, err);
    if (status == TSR_OK) status = make_catalog(want, arena, &b, err);
    if (status == TSR_OK) status = tsr_diff_catalogs((tsr_catalog_pair){&a, &b}, NULL, host, arena, &diff, err);
    if (status != TSR_OK) return status;
    bool *met = tsr_arena_array(arena, want.count, sizeof *met, err);
    tsr_str *missing = tsr_arena_array(arena, want.count, sizeof *missing, err);
    out->pairs = tsr_arena_array(arena, have.count, sizeof *out->pairs, err);
    if (!met || !missing || !out->pairs) return TSR_E_NOMEM;
    for (size_t i = 0; i < have.count; i++) out->pairs[i] = (tsr_name_pair){have.names[i].name, {NULL, 0}};
    pair_up(&diff, &a, &b, want.names, out->pairs, met);
    for (size_t i = 0; i < want.count; i++) {
        if (!met[i]) missing[out->missing_count++] = want.names[i].name;
    }
    out->missing = missing;
    return tsr_fqn_rename_rules(out->pairs, have.count, arena, &out->rules, &out->rule_count, err);
}

/* ---- output ---- */

void cli_put_against_json(tsr_json *json, const cli_against *against)
{
    tsr_json_put_object(json, "against");
    tsr_json_put_array(json, "renames");
    for (size_t i = 0; i < against->rule_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "rename", against->rules[i].text);
        tsr_json_put_uint(json, "names", against->rules[i].names);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_put_array(json, "pairs");
    for (size_t i = 0; i < against->pair_count; i++) {
        if (!against->pairs[i].to.data) continue;
        tsr_json_object(json);
        tsr_json_put_str(json, "from", against->pairs[i].from);
        tsr_json_put_str(json, "to", against->pairs[i].to);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_put_array(json, "unexpected");
    for (size_t i = 0; i < against->pair_count; i++) {
        if (!against->pairs[i].to.data) tsr_json_str(json, against->pairs[i].from);
    }
    tsr_json_array_end(json);
    tsr_json_put_strs(json, "missing", against->missing, against->missing_count);
    tsr_json_object_end(json);
}

static void put_line(const char *what, tsr_str name)
{
    fputs(what, stdout);
    cli_put(stdout, name);
    putchar('\n');
}

void cli_put_against_text(const cli *program, const cli_against *against)
{
    size_t same = 0, moved = 0, settled = 0;
    for (size_t i = 0; i < against->pair_count; i++) {
        const tsr_name_pair *pair = &against->pairs[i];
        same += pair->to.data && tsr_str_equal(pair->from, pair->to);
        moved += pair->to.data && !tsr_str_equal(pair->from, pair->to);
    }
    for (size_t i = 0; i < against->rule_count; i++) {
        cli_on(&program->out, stdout, CLI_YELLOW);
        fputs("--rename '", stdout);
        cli_put(stdout, against->rules[i].text);
        fputs("'", stdout);
        cli_off(&program->out, stdout);
        printf("  %s\n", cli_plural(against->rules[i].names, "name").text);
        settled += against->rules[i].names;
    }
    for (size_t i = 0; i < against->missing_count; i++) put_line("missing: ", against->missing[i]);
    for (size_t i = 0; i < against->pair_count; i++) {
        if (!against->pairs[i].to.data) put_line("unexpected: ", against->pairs[i].from);
    }
    printf("%s %s the same, %s %s different", cli_plural(same, "name").text, same == 1 ? "is" : "are",
           cli_number(moved).text, moved == 1 ? "is" : "are");
    if (moved > settled) printf(", %s of them without a rename", cli_number(moved - settled).text);
    putchar('\n');
}
