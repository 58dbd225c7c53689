/* `tessera map`: lists the built-in maps, or derives a map from two checkpoints. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "tessera/sys/map_suggest.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/text.h"

static tsr_status write_list(const cli *program, tsr_error *err)
{
    tsr_json json;
    tsr_str name;
    cli_document_start(program, &json, err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.maps/1");
    tsr_json_put_array(&json, "maps");
    for (size_t i = 0; (name = tsr_mapping_builtin_name(i)).size; i++) tsr_json_str(&json, name);
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static int list_maps(cli *program, const tsr_command_options *arguments)
{
    (void)arguments;
    tsr_str name;
    tsr_error err = {0};
    if (program->options.json) return write_list(program, &err) == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
    for (size_t i = 0; (name = tsr_mapping_builtin_name(i)).size; i++) printf("%.*s\n", TSR_STR_ARG(name));
    return CLI_DONE;
}

/* Writes a finished document, the output of the command. */
static tsr_status put_document(const cli *program, tsr_str text, tsr_error *err)
{
    const cli_caller *caller = program->caller;
    return (caller ? caller->write : cli_write_file)(caller ? caller->ctx : stdout, text.data, text.size, err);
}

static int show_map(cli *program, const tsr_command_options *arguments)
{
    (void)arguments;
    tsr_error err = {0};
    tsr_str text;
    tsr_status status = tsr_mapping_named(program->operands.items[1], &text, &err);
    if (status == TSR_OK) status = put_document(program, text, &err);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
}

static tsr_status print_suggestion(cli *program, const cli_session *sessions, bool values, tsr_arena *arena, tsr_error *err)
{
    tsr_map_suggestion suggestion;
    tsr_status status = tsr_map_suggest(sessions[0].checkpoint, sessions[1].checkpoint, values, arena, &suggestion, err);
    for (unsigned i = 0; i < 2 && status == TSR_OK; i++) status = cli_unchanged(&sessions[i], err);
    if (status == TSR_OK) status = put_document(program, suggestion.document, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < suggestion.note_count; i++) cli_note(program, "%.*s", TSR_STR_ARG(suggestion.notes[i]));
    if (!values)
        cli_note(
            program,
            "only names and shapes were compared; --values compares the values, which decides more and shows rows in another order");
    return TSR_OK;
}

static int suggest(cli *program, const tsr_command_options *arguments)
{
    cli_session sessions[2] = {{0}, {0}};
    tsr_error err = {0};
    const char *path = NULL;
    const tsr_open_options options = {.skip_objects = true,
                                      .purpose = arguments->values ? TSR_FOR_VALUES : TSR_FOR_ALL_NAMES};
    cli_allow_expansion(program, arguments->allow_expansion);
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = arena ? TSR_OK : TSR_E_NOMEM;
    for (unsigned i = 0; i < 2 && status == TSR_OK; i++)
        status = cli_open(program, path = program->operands.items[1 + i], &options, &sessions[i], &err);
    if (status == TSR_OK) status = print_suggestion(program, sessions, arguments->values, arena, &err);
    for (unsigned i = 0; i < 2; i++)
        if (sessions[i].checkpoint) cli_close(&sessions[i]);
    tsr_arena_free(arena);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    static const struct {
        const char *name, *operands;
        size_t count;
        int (*run)(cli *program, const tsr_command_options *arguments);
    } kinds[] = {{"list", "", 0, list_maps}, {"show", "NAME", 1, show_map}, {"suggest", "A B", 2, suggest}, {.name = NULL}};
    const char *what = program->operands.items[0];
    for (size_t k = 0; kinds[k].name; k++) {
        if (strcmp(kinds[k].name, what) != 0) continue;
        if (arguments->values && kinds[k].run != suggest)
            return cli_fail(program, "--values can only be used with map suggest");
        const bool fits = cli_check_operands(program, true, kinds[k].operands, kinds[k].count, kinds[k].count);
        return fits ? kinds[k].run(program, arguments) : CLI_TROUBLE;
    }
    const char *meant = tsr_suggest(what, kinds, sizeof *kinds);
    if (meant) return cli_fail(program, "map takes list, show or suggest, not '%s'; did you mean '%s'?", what, meant);
    return cli_fail(program, "map takes list, show or suggest, not '%s'; see tessera help map", what);
}

const cli_command cli_map = {
    .name = "map",
    .examples =
        "tessera map list\nList the maps that --map takes by name\n"
        "tessera map show torchtitan-llama3 > mine.json\nPrint a map, as a start for your own\n"
        "tessera map suggest titan/ hf/ --values > map.json\n"
        "Suggest the map that gives the first checkpoint the names and layouts of the second; check it before you use it\n",
    .run = run,
};
