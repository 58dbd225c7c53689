/* See session.h. */
#include "cli/program/session.h"

#include "cli/program/map_options.h"
#include "cli/program/term.h"
#include "io/sys.h"
#include "tessera/glob.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/document.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static void add_paths(tsr_texts *list, const char *path, tsr_texts also)
{
    list->items[list->count++] = path;
    for (size_t i = 0; i < also.count; i++) list->items[list->count++] = also.items[i];
}

/* Lists PATH and the directories of --also, which belong only to the first checkpoint that the command opens. */
static tsr_status list_paths(cli *program, const char *path, tsr_texts *out, tsr_error *err)
{
    const tsr_texts also = program->also_is_used ? (tsr_texts){0} : program->options.source.also;
    *out = (tsr_texts){calloc(also.count + 1, sizeof *out->items), 0};
    if (!out->items) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    program->also_is_used = true;
    add_paths(out, path, also);
    return TSR_OK;
}

tsr_status cli_list_sources(const cli *program, const char *path, const cli_session *session, tsr_arena *arena,
                            tsr_texts *out, tsr_error *err)
{
    const tsr_texts also = program->options.source.also;
    const size_t others = session ? session->other_count : 0;
    *out = (tsr_texts){tsr_arena_array(arena, 1 + also.count + others, sizeof *out->items, err), 0};
    if (!out->items) return TSR_E_NOMEM;
    add_paths(out, path, also);
    for (size_t i = 0; i < others; i++) out->items[out->count++] = session->others[i].path;
    return TSR_OK;
}

static tsr_store_opener opener_of(cli *program)
{
    return (tsr_store_opener){
        .open = tsr_path_store_open_by, .host = cli_host(program), .sys = program->caller ? program->caller->sys : NULL};
}

static tsr_status open_paths(cli *program, const char *path, const tsr_open_options *options, tsr_checkpoint **out,
                             tsr_error *err)
{
    const tsr_store_opener opener = opener_of(program);
    tsr_texts paths = {NULL, 0};
    tsr_status status = list_paths(program, path, &paths, err);
    if (status == TSR_OK) status = tsr_paths_open_by(&opener, paths.items, paths.count, options, out, err);
    free(paths.items);
    return status;
}

static tsr_status open_compared(cli *program, const char *path, const tsr_open_options *options, tsr_checkpoint **out,
                                tsr_error *err)
{
    const tsr_store_opener opener = opener_of(program);
    return tsr_path_open_compared(&opener, path, options, out, err);
}

/* Warns of files that are not read and the like. `inspect` and `validate`, which list these findings, do not open
 * checkpoints for their values. */
static tsr_status warn_of_opening(cli *program, const char *path, tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = cli_host(program)->allocator;
    tsr_vec warnings = tsr_vec_of(allocator, sizeof(tsr_str));
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    const tsr_status status = arena ? tsr_opening_warnings(checkpoint, arena, &warnings, err) : TSR_E_NOMEM;
    for (size_t i = 0; i < warnings.count && status == TSR_OK; i++)
        cli_warn(program, "%s: %.*s", path, TSR_STR_ARG(((const tsr_str *)warnings.items)[i]));
    tsr_vec_free(&warnings);
    tsr_arena_free(arena);
    return status;
}

typedef tsr_status open_fn(cli *program, const char *path, const tsr_open_options *options, tsr_checkpoint **out,
                           tsr_error *err);

/* Says so if an option about PATH has no effect on the checkpoint. */
static void note_unused(cli *program, const cli_session *session, const tsr_open_options *chosen)
{
    const tsr_format format = tsr_checkpoint_catalog(session->checkpoint)->format;
    const tsr_store *store = tsr_checkpoint_store(session->checkpoint);
    const bool is_file = store->primary != TSR_NO_FILE || store->file_count == 1;
    const bool may_salvage =
        is_file && (format == TSR_FORMAT_TORCH_ZIP || format == TSR_FORMAT_TORCH_LEGACY || format == TSR_FORMAT_SAFETENSORS);
    if (!cli_speaks(program)) return;
    if (session->ignores_shards)
        cli_note(program, "--shards is not used for %s: its tensors are not plain tensors of several ranks", session->path);
    if (chosen->salvage && !may_salvage)
        cli_note(program, "--salvage is not used for %s: it is not a single torch.save or safetensors file", session->path);
}

static tsr_status open_session(cli *program, open_fn *open, const tsr_open_options *options, cli_session *out,
                               tsr_error *err)
{
    const char *given = out->is_remote ? cli_given_address(program, out->path) : out->path;
    tsr_open_options chosen = options ? *options : (tsr_open_options){0};
    if (program->options.source.part) chosen.part = tsr_str_from(program->options.source.part);
    if (program->options.source.step) chosen.step = tsr_str_from(program->options.source.step);
    chosen.salvage = program->options.source.salvage;
    tsr_status status = cli_read_shards(program, &chosen.shards, err);
    out->arena = status == TSR_OK ? tsr_arena_new(cli_host(program)->allocator, 0, err) : NULL;
    if (status == TSR_OK) status = out->arena ? open(program, given, &chosen, &out->checkpoint, err) : TSR_E_NOMEM;
    if (status != TSR_OK) {
        tsr_arena_free(out->arena);
        out->arena = NULL;
        return status;
    }
    out->layers.top = out->checkpoint;
    out->ignores_shards = chosen.shards && !tsr_checkpoint_joined_ranks(out->checkpoint) && !program->writes_ranks;
    note_unused(program, out, &chosen);
    out->store = tsr_checkpoint_store(out->checkpoint);
    out->catalog = tsr_checkpoint_catalog(out->checkpoint);
    if (chosen.purpose == TSR_FOR_VALUES) status = warn_of_opening(program, out->path, out->checkpoint, err);
    if (status != TSR_OK) cli_close(out);
    return status;
}

tsr_status cli_open(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err)
{
    *out = (cli_session){.path = path, .is_remote = tsr_is_url(path)};
    return open_session(program, open_paths, options, out, err);
}

tsr_status cli_open_compared(cli *program, const char *path, const tsr_open_options *options, cli_session *out,
                             tsr_error *err)
{
    *out = (cli_session){.path = path, .is_remote = tsr_is_url(path)};
    return open_session(program, open_compared, options, out, err);
}

tsr_status cli_open_apart(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err)
{
    const tsr_source_options given = program->options.source;
    const bool was_used = program->also_is_used;
    program->options.source = (tsr_source_options){.part = NULL};
    program->also_is_used = true;
    const tsr_status status = cli_open(program, path, options, out, err);
    program->options.source = given;
    program->also_is_used = was_used;
    return status;
}

tsr_status cli_files_open(cli *program, const char *path, cli_files *out, tsr_error *err)
{
    const char *step = program->options.source.step;
    tsr_texts paths = {NULL, 0};
    *out = (cli_files){.all = NULL};
    tsr_status status = list_paths(program, cli_given_address(program, path), &paths, err);
    if (status == TSR_OK) status = tsr_paths_store_open(paths.items, paths.count, cli_host(program), &out->all, err);
    free(paths.items);
    if (status == TSR_OK)
        status = tsr_step_open(out->all, cli_host(program), step ? tsr_str_from(step) : (tsr_str){NULL, 0}, &out->step, err);
    if (status == TSR_OK) status = warn_of_opening(program, path, out->step, err);
    if (status == TSR_OK) out->store = tsr_checkpoint_store(out->step);
    else cli_files_close(out);
    return status;
}

void cli_files_close(cli_files *files)
{
    tsr_checkpoint_close(files->step);
    if (files->all) files->all->close(files->all);
    *files = (cli_files){.all = NULL};
}

void cli_add_layer(cli_session *session, tsr_checkpoint *layer)
{
    if (!session->source) session->source = session->checkpoint;
    tsr_layers_add(&session->layers, layer);
    session->checkpoint = layer;
    session->catalog = tsr_checkpoint_catalog(layer);
}

void cli_close(cli_session *session)
{
    tsr_layers_close(&session->layers);
    for (size_t i = 0; i < session->other_count; i++) cli_close(&session->others[i]);
    free(session->others);
    tsr_path_close(cli_source_checkpoint(session));
    tsr_arena_free(session->arena);
    *session = (cli_session){.path = session->path};
}

tsr_status cli_unchanged(const cli_session *session, tsr_error *err)
{
    tsr_status status = tsr_directory_store_unchanged(session->store, err);
    for (size_t i = 0; i < session->other_count && status == TSR_OK; i++) status = cli_unchanged(&session->others[i], err);
    return status;
}

/* ---- progress ---- */

/* Draws over the whole line but its last column, behind which terminals go on to the next line. Blanks erase what was there, because
 * not every terminal (TERM=dumb) knows the code for that. */
static void draw_line(const cli_progress *p, const char *text)
{
    const int width = (int)p->program->err.columns - 1;
    fprintf(stderr, "\r%-*.*s", width, width, text);
    fflush(stderr);
}

/* What does not fit in the line is left out. */
static void draw(cli_progress *p, uint64_t byte_done, uint64_t byte_total, double now)
{
    const double elapsed = now - p->started, rate = elapsed > 0 ? (double)byte_done / elapsed : 0;
    const double left = rate > 0 && byte_total > byte_done && elapsed > 0.5 ? (double)(byte_total - byte_done) / rate : -1;
    char line[512], parts[3][128] = {"", "", ""};
    size_t used = (size_t)snprintf(line, sizeof line, "%.99s %3.0f %%", p->what,
                                   byte_total ? 100.0 * (double)byte_done / (double)byte_total : 100.0);
    snprintf(parts[0], sizeof parts[0], "  %s of %s", cli_bytes(byte_done).text, cli_bytes(byte_total).text);
    snprintf(parts[1], sizeof parts[1], "  %s/s", cli_bytes((uint64_t)rate).text);
    if (left >= 0) snprintf(parts[2], sizeof parts[2], "  %.0f s left", left);
    for (size_t i = 0; i < 3; i++) {
        if (used + strlen(parts[i]) < p->program->err.columns)
            used += (size_t)snprintf(line + used, sizeof line - used, "%s", parts[i]);
    }
    draw_line(p, line);
}

static bool step(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    cli_progress *p = ctx;
    const cli_caller *caller = p->program->caller;
    if (caller && *caller->stop) return false;
    if (!p->visible) return true;
    double now = tsr_seconds();
    if (now - p->drawn < 0.1 && (!caller || byte_done < byte_total)) return true;
    if (caller) caller->progress(caller->ctx, byte_done, byte_total);
    else draw(p, byte_done, byte_total, now);
    p->drawn = now;
    return true;
}

void cli_progress_start(cli_progress *progress, const cli *program, const char *what)
{
    const bool wanted = program->caller
                            ? program->caller->progress != NULL
                            : program->err.is_terminal && !program->options.quiet && !program->options.no_progress;
    *progress = (cli_progress){{step, progress}, program, what, 0, 0, wanted};
    progress->started = progress->drawn = tsr_seconds();
}

void cli_progress_end(cli_progress *progress)
{
    if (progress->visible && !progress->program->caller && progress->drawn > progress->started) {
        draw_line(progress, "");
        fputc('\r', stderr);
        fflush(stderr);
    }
}

tsr_status cli_check_deep(void *ctx, tsr_checkpoint *checkpoint, tsr_error *err)
{
    cli_deep_check *deep = ctx;
    cli_progress progress;
    tsr_status status = deep->ring ? TSR_OK : tsr_ring_new(cli_host(deep->program), 0, &deep->ring, err);
    if (status != TSR_OK) return status;
    cli_progress_start(&progress, deep->program, "checking");
    status = tsr_check_deep(checkpoint, deep->ring, &progress.base, err);
    cli_progress_end(&progress);
    return status;
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool begins_like_json(tsr_str text)
{
    size_t at = 0;
    while (at < text.size &&
           (text.data[at] == ' ' || text.data[at] == '\n' || text.data[at] == '\r' || text.data[at] == '\t'))
        at++;
    return at < text.size && (text.data[at] == '{' || text.data[at] == '[');
}

/* Takes names, dtypes and shapes from another checkpoint. Its chunks are ignored. */
static tsr_status take_checkpoint(cli *program, const char *path, cli_contract *out, tsr_error *err)
{
    TSR_TRY(cli_open_compared(program, path, &(tsr_open_options){.skip_objects = true}, &out->session, err));
    out->contract =
        (tsr_contract){.expected = *out->session.catalog, .called = "the other checkpoint", .allow = TSR_ANY_CHUNKS};
    return TSR_OK;
}

static tsr_status read_document(cli *program, cli_contract *out, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    out->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    return out->arena ? tsr_contract_read(out->text.data, host, out->arena, &out->contract, err) : TSR_E_NOMEM;
}

/* JSON is a document. Anything else is a checkpoint or, if its format is not recognized, a list of names. */
static tsr_status take_file(cli *program, const char *path, cli_contract *out, tsr_error *err)
{
    tsr_error unknown = {0};
    tsr_status status = cli_load_file(program, path, &out->store, &out->text, err);
    if (status != TSR_OK) return status;
    if (begins_like_json(out->text.data)) return read_document(program, out, err);
    status = take_checkpoint(program, path, out, &unknown);
    if (status == TSR_E_UNSUPPORTED) return read_document(program, out, err);
    if (status != TSR_OK) *err = unknown;
    return status;
}

tsr_status cli_contract_open(cli *program, const char *path, cli_contract *out, tsr_error *err)
{
    *out = (cli_contract){0};
    const tsr_status status =
        is_directory(path) ? take_checkpoint(program, path, out, err) : take_file(program, path, out, err);
    out->contract.match = tsr_glob_match;
    return status;
}

void cli_contract_free(cli_contract *contract)
{
    tsr_bytes_free(&contract->text);
    if (contract->store) contract->store->close(contract->store);
    cli_close(&contract->session);
    tsr_arena_free(contract->arena);
}

/* ---- signals ---- */

const char *cli_cleanup_run(const cli_cleanup *list)
{
    static const char *const said[] = {
        [TSR_REMAINS_NOTHING] = "the unfinished output was removed",
        [TSR_REMAINS_WORK] = "the finished work was kept; run the same command with --resume to continue",
        [TSR_REMAINS_UNKNOWN] = "the unfinished output could not be removed, and some of it may be left"};
    tsr_remains most = TSR_REMAINS_NOTHING;
    for (; list; list = list->next) {
        const tsr_remains left = list->remove(list->ctx);
        if (left > most) most = left;
    }
    return said[most];
}
