/* `tessera view`: opens a checkpoint in the browser viewer, served on the loopback address. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "io/sys.h"
#include "tessera/path.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"
#include "view/view_server.h"

static bool has_index(const char *directory)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/index.html", directory) < (int)sizeof path && access(path, R_OK) == 0;
}

/* Finds the viewer's files: installed with the program, or built in its source tree. `out` has PATH_MAX bytes. */
static bool find_pages(char *out)
{
    static const char *const places[] = {"../share/tessera/viewer", "../../../web/dist"};
    char program[PATH_MAX], path[PATH_MAX];
    const ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
    if (size <= 0) return false;
    program[size] = 0;
    char *slash = strrchr(program, '/');
    if (!slash) return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (snprintf(path, sizeof path, "%s/%s", program, places[i]) < (int)sizeof path && realpath(path, out) &&
            has_index(out))
            return true;
    }
    return false;
}

static const char *title_of(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t from = end;
    while (from && path[from - 1] != '/') from--;
    return path + from;
}

typedef struct viewed {
    cli_session session;
    bool *served;
    tsr_arena *arena; /* of the map that joins the ranks; may be NULL */
} viewed;

/* With --part, the page opens the part itself, from the files of the whole checkpoint: it also needs files that do not
 * belong to the part's entries, to recognize what kind of directory this is. *part is NULL if the checkpoint has no
 * parts. */
static tsr_status open_files(cli *program, const char *path, bool is_second, cli_session *out, const char **part,
                             tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true};
    tsr_status (*open)(cli *, const char *, const tsr_open_options *, cli_session *, tsr_error *) =
        is_second ? cli_open_compared : cli_open;
    const char *given = program->options.source.part;
    const bool was_used = program->also_is_used;
    tsr_status status = open(program, path, &options, out, err);
    *part = NULL;
    if (status != TSR_OK || !given) return status;
    cli_close(out);
    program->options.source.part = NULL;
    program->also_is_used = was_used;
    status = open(program, path, &options, out, err);
    program->options.source.part = given;
    if (status == TSR_OK && out->catalog->part_count) *part = given;
    return status;
}

/* A built-in map reads its numbers from these files, so the page needs them, too. */
static void serve_settings(viewed *side)
{
    static const char *const names[] = {"params.json", "config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const uint32_t file = tsr_store_find(side->session.store, tsr_str_from(names[i]));
        if (file != TSR_NO_FILE) side->served[file] = true;
    }
}

/* What the page needs to join the ranks: the name of a built-in map, or the text of the map. The text is valid, because the
 * checkpoint was opened with it. */
static tsr_status read_shards(cli *program, viewed *side, tsr_str *out, tsr_error *err)
{
    const char *given = program->options.source.shards;
    *out = (tsr_str){NULL, 0};
    if (!given || !tsr_checkpoint_joined_ranks(side->session.checkpoint)) return TSR_OK;
    *out = tsr_str_from(given);
    if (tsr_shards_built_in(*out)) {
        serve_settings(side);
        return TSR_OK;
    }
    side->arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
    return side->arena ? tsr_path_load(cli_given_address(program, given), cli_host(program), side->arena, out, err)
                       : TSR_E_NOMEM;
}

static tsr_status open_side(cli *program, size_t number, viewed *side, view_side *out, tsr_error *err)
{
    const char *path = program->operands.items[number];
    if (tsr_is_address(path))
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "view serves files on this machine only; open the URL in the page itself, if its server allows that");
    const char *part;
    TSR_TRY(open_files(program, path, number > 0, &side->session, &part, err));
    side->served = calloc(side->session.store->file_count + 1, sizeof *side->served);
    if (!side->served) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    tsr_checkpoint_used_files(side->session.checkpoint, side->served);
    *out = (view_side){.title = title_of(path),
                       .store = side->session.store,
                       .served = side->served,
                       .part = part,
                       .salvage = program->options.source.salvage};
    return read_shards(program, side, &out->shards, err);
}

/* Serves until a signal ends the program. */
static void serve(const view_server *server)
{
    printf("%s\n", view_address(server));
    fflush(stdout);
    for (;;) pause();
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const size_t count = program->operands.count;
    char pages[PATH_MAX];
    tsr_error err = {0};
    viewed sides[2] = {{.served = NULL}};
    view_server *server = NULL;
    view_settings view = {
        .pages = arguments->pages ? arguments->pages : pages, .side_count = count, .port = (uint16_t)arguments->port};
    if (!tsr_threads_exist())
        return cli_fail(program, "view needs a server, which this program cannot start, because it has one thread; open the "
                                 "checkpoint in the viewer's page, or install the program for this system");
    if (arguments->port > UINT16_MAX)
        return cli_fail(program, "--port takes a number from 1 to %u, not '%" PRIu64 "'", (unsigned)UINT16_MAX,
                        arguments->port);
    if (arguments->pages && !has_index(arguments->pages))
        return cli_fail(program, "there is no page in '%s'; web/build makes it in web/dist of Tessera's source directory",
                        arguments->pages);
    if (!arguments->pages && !find_pages(pages))
        return cli_fail(program, "the viewer's page is not installed with this program; run web/build in Tessera's source "
                                 "directory and install again, or pass the page's directory with --pages");
    const char *path = program->operands.items[0];
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        path = program->operands.items[i];
        status = open_side(program, i, &sides[i], &view.sides[i], &err);
    }
    if (status == TSR_OK) status = view_start(&view, cli_host(program), &server, &err);
    if (status == TSR_OK) serve(server);
    view_stop(server);
    for (size_t i = 0; i < count; i++) {
        cli_close(&sides[i].session);
        free(sides[i].served);
        tsr_arena_free(sides[i].arena);
    }
    return cli_fail_error(program, path, &err);
}

const cli_command cli_view_command = {
    .name = "view",
    .examples = "tessera view ckpt/\nPrint the address to open, which contains a secret token; stop with Ctrl-C\n"
                "tessera view old/ new/\nCompare two checkpoints\n"
                "ssh -L 8000:127.0.0.1:8000 host tessera view --port 8000 ckpt/\nView a checkpoint on another machine; "
                "only what you look at is transferred\n",
    .run = run,
};
