/* See session.h. */
#include "cli/program/session.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/program/shards_option.h"
#include "cli/program/term.h"
#include "io/clock.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/folder.h"
#include "tessera/glob.h"
#include "tessera/path.h"
#include "tessera/sys/remote.h"

/* --also adds to the first checkpoint that a command opens; a second one is what it is compared with. */
static tsr_status open_paths(cli *program, const char *path, const tsr_open_options *options, tsr_checkpoint **out, tsr_error *err)
{
    const cli_list also = program->source.is_used ? (cli_list){0} : program->source.also;
    const char **paths = calloc(also.count + 1, sizeof *paths);
    if (!paths) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    program->source.is_used = true;
    paths[0] = path;
    for (size_t i = 0; i < also.count; i++) paths[i + 1] = also.items[i];
    const tsr_status status = tsr_paths_open(paths, also.count + 1, cli_host(program), options, out, err);
    free(paths);
    return status;
}

tsr_status cli_open(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err)
{
    *out = (cli_session){.path = path, .is_remote = tsr_is_address(path)};
    const char *given = out->is_remote ? cli_given_address(program, path) : path;
    tsr_open_options chosen = options ? *options : (tsr_open_options){0};
    if (program->source.part) chosen.part = tsr_str_from(program->source.part);
    if (program->source.step) chosen.step = tsr_str_from(program->source.step);
    tsr_status status = cli_read_shards(program, &chosen.shards, err);
    if (status == TSR_OK) status = open_paths(program, given, &chosen, &out->checkpoint, err);
    if (status != TSR_OK) return status;
    if (chosen.shards && !tsr_checkpoint_joined_ranks(out->checkpoint) && !program->writes_ranks && cli_speaks(program))
        cli_note(program, "--shards is not used for %s: its tensors are not plain tensors of several ranks", path);
    out->store = tsr_checkpoint_store(out->checkpoint);
    out->catalog = tsr_checkpoint_catalog(out->checkpoint);
    return TSR_OK;
}

void cli_close(cli_session *session)
{
    if (session->source && session->checkpoint != session->dequantized) tsr_checkpoint_close(session->checkpoint);
    tsr_checkpoint_close(session->dequantized);
    tsr_path_close(cli_source_checkpoint(session));
    tsr_arena_free(session->map_arena);
    session->checkpoint = session->source = session->dequantized = NULL;
    session->map_arena = NULL;
    session->store = NULL;
}

tsr_status cli_unchanged(const cli_session *session, tsr_error *err)
{
    return tsr_folder_store_unchanged(session->store, err);
}

tsr_status cli_load_file(cli *program, const char *path, tsr_store **store, tsr_bytes *bytes, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    tsr_status status = tsr_folder_store_open(NULL, host->allocator, path, store, err);
    if (status != TSR_OK) return status;
    uint32_t file = (*store)->primary != TSR_NO_FILE ? (*store)->primary : 0;
    if ((*store)->primary == TSR_NO_FILE && (*store)->file_count != 1) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%s' is a directory; a file is expected", path);
    }
    return tsr_store_load(*store, host, file, 0, (*store)->files[file].size, bytes, err);
}

static bool any_matches(const cli_list *globs, tsr_str fqn)
{
    for (size_t i = 0; i < globs->count; i++) {
        if (tsr_glob_match(tsr_str_from(globs->items[i]), fqn)) return true;
    }
    return false;
}

bool cli_selects(const void *selection, tsr_str fqn)
{
    const cli_selection *s = selection;
    if (any_matches(&s->exclude, fqn)) return false;
    return s->include.count == 0 || any_matches(&s->include, fqn);
}

/* ---- progress ---- */

static void draw(cli_progress *p, uint64_t byte_done, uint64_t byte_total, double now)
{
    double elapsed = now - p->started, rate = elapsed > 0 ? (double)byte_done / elapsed : 0;
    cli_words done = cli_bytes(byte_done), total = cli_bytes(byte_total), speed = cli_bytes((uint64_t)rate);
    fprintf(stderr, "\r%s %3.0f %%  %s of %s  %s/s", p->what,
            byte_total ? 100.0 * (double)byte_done / (double)byte_total : 100.0, done.text, total.text, speed.text);
    if (rate > 0 && byte_total > byte_done && elapsed > 0.5)
        fprintf(stderr, "  %.0f s left", (double)(byte_total - byte_done) / rate);
    fputs("\x1b[K", stderr);
    fflush(stderr);
    p->drawn = now;
}

static bool step(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    cli_progress *p = ctx;
    if (!p->visible) return true;
    double now = tsr_seconds();
    if (now - p->drawn >= 0.1) draw(p, byte_done, byte_total, now);
    return true;
}

void cli_progress_start(cli_progress *progress, const cli *program, const char *what)
{
    bool wanted = program->err.is_terminal && !program->globals.quiet && !program->globals.no_progress;
    *progress = (cli_progress){{step, progress}, program, what, 0, 0, wanted};
    progress->started = progress->drawn = tsr_seconds();
}

void cli_progress_end(cli_progress *progress)
{
    if (progress->visible && progress->drawn > progress->started) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
    }
}
