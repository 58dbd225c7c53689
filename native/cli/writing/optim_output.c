/* The files of an optimizer conversion. They are written next to the destination, or uploaded without being visible, and
 * published together. */
#include "cli/writing/optim_output.h"

#include "cli/program/session.h"
#include "cli/writing/resumed.h"
#include "publish/completed.h"

#include "tessera/sys/folder.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"

#define JOB TSR_STR("optimizer state\n")

/* Removes unfinished files when a signal ends the program. */
static bool remove_unfinished(void *ctx)
{
    const cli_optim_output *o = ctx;
    if (o->is_remote && o->output) tsr_object_output_abandon(o->output);
    if (o->is_remote) return false;
    tsr_sys_stop_naming();
    tsr_publication_discard(&o->publication);
    return false;
}

static tsr_status list_inputs(const cli_optim_output *o, tsr_inputs *inputs, tsr_error *err)
{
    tsr_status status = tsr_inputs_add(inputs, o->store, NULL, err);
    for (size_t i = 0; i < 2 && status == TSR_OK; i++) status = tsr_inputs_add_path(inputs, o->documents[i], err);
    return status;
}

/* The name of the source, for a file in a directory. A directory that is read has a name without an extension. */
static tsr_str source_name(const cli_optim_output *o, tsr_error *err)
{
    const bool is_file = o->store->primary != TSR_NO_FILE;
    tsr_str name = is_file ? o->store->files[o->store->primary].name : tsr_str_from(o->source);
    while (name.size > 1 && name.data[name.size - 1] == '/') name.size--;
    for (size_t i = name.size; i-- > 0;) {
        if (name.data[i] != '/') continue;
        name = (tsr_str){name.data + i + 1, name.size - i - 1};
        break;
    }
    return tsr_arena_format(o->arena, err, "%.*s%s", TSR_STR_ARG(name), is_file ? "" : ".pt");
}

static tsr_status choose_place(cli_optim_output *o, tsr_error *err)
{
    o->is_folder = tsr_optim_is_directory(o->optim);
    o->place = (cli_file_place){o->destination, TSR_STR("")};
    if (o->is_folder) return TSR_OK;
    const tsr_str name = source_name(o, err);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(cli_place_file(o->destination, name, o->arena, &o->place, err));
    o->destination = o->place.path;
    o->is_folder = o->place.name.size > 0;
    return TSR_OK;
}

static tsr_str file_name(const cli_optim_output *o, uint32_t index)
{
    return o->place.name.size ? o->place.name : tsr_optim_file_name(o->optim, index);
}

static tsr_status list_names(const cli_optim_output *o, const tsr_str **out, size_t *count, tsr_error *err)
{
    *count = o->is_folder ? tsr_optim_file_count(o->optim) : 0;
    tsr_str *names = tsr_arena_array(o->arena, *count, sizeof *names, err);
    *out = names;
    for (uint32_t i = 0; names && i < *count; i++) names[i] = file_name(o, i);
    return names ? TSR_OK : TSR_E_NOMEM;
}

/* Decides what happens to the files that are at the destination now. */
static tsr_status decide_replacement(cli_optim_output *o, const tsr_str *names, size_t count, tsr_error *err)
{
    tsr_replacement *out = &o->replacement;
    tsr_inputs inputs = tsr_inputs_of(cli_host(o->program)->allocator);
    const tsr_replacement_request request = {.host = cli_host(o->program),
                                             .path = o->destination,
                                             .is_folder = o->is_folder,
                                             .overwrite = o->overwrite,
                                             .inputs = &inputs};
    tsr_status status = list_inputs(o, &inputs, err);
    if (status == TSR_OK) status = tsr_replacement_decide(&request, o->arena, out, err);
    tsr_inputs_free(&inputs);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        status = tsr_replacement_check_name(out, o->destination, names[i], err);
    for (size_t i = 0; i < out->kept_count && status == TSR_OK; i++)
        cli_warn(o->program, "'%.*s' in '%s' is not listed by the replaced checkpoint; it is kept",
                 TSR_STR_ARG(out->kept[i].name), o->destination);
    return status;
}

static tsr_status open_remote(cli_optim_output *o, tsr_texts sources, const tsr_str *names, size_t count, tsr_error *err)
{
    const tsr_str single = TSR_STR("");
    const tsr_replacement *r = &o->replacement;
    const tsr_object_output_options options = {.is_folder = o->is_folder,
                                               .overwrite = o->overwrite,
                                               .obsolete = r->obsolete,
                                               .obsolete_count = r->obsolete_count,
                                               .marker_count = r->marker_count,
                                               .is_unlike = r->swap,
                                               .resume = o->resume,
                                               .names = count ? names : &single,
                                               .name_count = count ? count : 1};
    TSR_TRY(tsr_urls_refuse_overlap(sources.items, sources.count, o->destination, err));
    const tsr_status status = tsr_object_output_open(cli_host(o->program), o->destination, &options, &o->output, err);
    if (status != TSR_OK) return status;
    cli_note_other_parts(o->program, o->output, o->destination);
    o->cleanup = (cli_cleanup){.remove = remove_unfinished, .ctx = o};
    cli_cleanup_add(&o->cleanup);
    return TSR_OK;
}

static tsr_status open_output(cli_optim_output *o, const tsr_str *names, size_t count, tsr_error *err)
{
    const tsr_allocator *allocator = cli_host(o->program)->allocator;
    const bool is_folder = o->is_folder;
    tsr_texts sources;
    TSR_TRY(cli_list_sources(o->program, o->source, NULL, o->arena, &sources, err));
    if (o->is_remote) return open_remote(o, sources, names, count, err);
    const tsr_folder_output_options options = {.is_folder = is_folder,
                                               .existing = tsr_replacement_mode(&o->replacement, o->overwrite, is_folder),
                                               .sources = sources.items,
                                               .source_count = sources.count,
                                               .tag = o->publication.tag,
                                               .obsolete = o->replacement.obsolete,
                                               .obsolete_count = o->replacement.obsolete_count,
                                               .parent = tsr_journals_parent(&o->publication.journals)};
    o->cleanup = (cli_cleanup){.remove = remove_unfinished, .ctx = o};
    cli_cleanup_add(&o->cleanup);
    cli_signals_hold();
    tsr_status status = tsr_publication_begin(&o->publication, JOB, 0, names, count, err);
    if (status == TSR_OK) status = tsr_folder_output_open(NULL, allocator, o->destination, &options, &o->output, err);
    cli_signals_release();
    return status;
}

/* Decides everything, and opens the output. */
static tsr_status prepare(cli_optim_output *o, tsr_error *err)
{
    const tsr_allocator *allocator = cli_host(o->program)->allocator;
    const tsr_str *names;
    size_t count;
    uint64_t cleared = 0;
    tsr_status status = list_names(o, &names, &count, err);
    if (status == TSR_OK && !o->is_remote)
        status = tsr_publication_open(allocator, o->destination, JOB, &o->publication, err);
    if (status == TSR_OK && o->overwrite && !o->is_remote)
        status = tsr_journals_hold(&o->publication.journals, o->destination, &cleared, err);
    if (status == TSR_OK && cleared)
        cli_warn(o->program, "removed the remains of an interrupted save in '%s'", o->destination);
    if (status == TSR_OK) status = decide_replacement(o, names, count, err);
    return status == TSR_OK ? open_output(o, names, count, err) : status;
}

static tsr_status write_file(cli_optim_output *o, uint32_t index, const tsr_progress *progress, uint32_t *number,
                             tsr_error *err)
{
    tsr_tree_file file = {
        .output = o->output, .name = file_name(o, index), .ring = o->ring, .progress = progress, .unsummed = o->unsummed};
    const tsr_status status = tsr_optim_write(o->optim, index, &file, err);
    if (status != TSR_OK) return status;
    *number = file.number;
    o->bytes_written += file.bytes;
    o->files_written++;
    return TSR_OK;
}

static tsr_status write_files(cli_optim_output *o, const tsr_progress *progress, uint32_t *file, tsr_error *err)
{
    o->files_written = 0;
    o->bytes_written = 0;
    for (uint32_t i = 0; i < tsr_optim_file_count(o->optim); i++) TSR_TRY(write_file(o, i, progress, file, err));
    TSR_TRY(tsr_folder_store_unchanged(o->store, err));
    if (o->is_folder) *file = TSR_NO_FILE;
    return TSR_OK;
}

/* With --resume: compares the destination with what would be written. It is refused, or replaced, if it differs. */
static tsr_status find_completed(cli_optim_output *o, const tsr_progress *progress, tsr_error *err)
{
    uint32_t file = TSR_NO_FILE;
    tsr_error why = {0};
    tsr_store *there = NULL;
    if (!o->resume) return TSR_OK;
    tsr_status status = tsr_path_store_open(cli_host(o->program), o->destination, &there, &why);
    if (there) there->close(there);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status == TSR_OK) status = tsr_completed_open(cli_host(o->program), o->destination, &o->output, &why);
    if (status == TSR_OK) status = write_files(o, progress, &file, &why);
    if (status == TSR_OK) status = o->output->publish(o->output, file, &why);
    o->is_complete = status == TSR_OK;
    if (o->output) o->output->close(o->output);
    o->output = NULL;
    if (o->is_complete || (status == TSR_E_EXISTS && (o->overwrite || o->is_remote))) return TSR_OK;
    return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
}

tsr_status cli_optim_output_write(cli_optim_output *o, const tsr_progress *progress, tsr_error *err)
{
    uint32_t file = TSR_NO_FILE;
    o->arena = tsr_arena_new(cli_host(o->program)->allocator, 0, err);
    o->is_remote = tsr_is_object_url(o->destination);
    tsr_status status = o->arena ? choose_place(o, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = find_completed(o, progress, err);
    if (status != TSR_OK || o->is_complete) return status;
    status = prepare(o, err);
    if (status == TSR_OK) status = write_files(o, progress, &file, err);
    /* Done here, because signals have to wait during the publication. */
    if (status == TSR_OK) status = o->output->sync(o->output, err);
    if (status != TSR_OK) return status;
    if (o->is_remote) return o->output->publish(o->output, file, err);
    cli_signals_hold();
    status = tsr_publication_publish(&o->publication, o->output, file, o->replacement.swap, err);
    cli_signals_release();
    return status;
}

void cli_optim_output_close(cli_optim_output *o)
{
    cli_signals_hold();
    if (o->output) o->output->close(o->output);
    o->output = NULL;
    if (!o->is_remote) tsr_publication_close(&o->publication);
    cli_signals_release();
    cli_cleanup_drop(&o->cleanup);
    tsr_arena_free(o->arena);
}
