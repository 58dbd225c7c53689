/* Decides what happens to the destination's files: which stay, which are removed, and which names are free. Also writes the
 * sidecar of objects. */
#include <sys/stat.h>
#include <unistd.h>

#include "cli/writing/writing.h"
#include "cli/writing/writing_parts.h"
#include "publish/completed.h"
#include "publish/folder_output.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/try.h"

/* ---- container ---- */

/* Decides which files DEST will consist of. */

bool cli_container_of_name(const char *path, tsr_container *out)
{
    static const struct {
        const char *suffix;
        tsr_container to;
    } suffixes[] = {
        {".safetensors", TSR_TO_SAFETENSORS}, {".pt", TSR_TO_TORCH}, {".pth", TSR_TO_TORCH}, {".bin", TSR_TO_TORCH}};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (!tsr_str_ends(tsr_str_from(path), tsr_str_from(suffixes[i].suffix))) continue;
        *out = suffixes[i].to;
        return true;
    }
    return false;
}

static bool ends_in_slash(const char *path)
{
    return tsr_str_ends(tsr_str_from(path), TSR_STR("/"));
}

/* --max-shard-size means safetensors where the extension of DEST does not mean anything else. */
static tsr_status infer(cli_writing *w, uint64_t max_shard_size, tsr_error *err)
{
    w->to = TSR_TO_SAFETENSORS;
    if (!cli_container_of_name(w->destination, &w->to) && !max_shard_size)
        return tsr_raise(
            err, TSR_E_USAGE, TSR_NO_POSITION,
            "cannot infer the output format from '%s'; pass --to safetensors, torch, dcp, megatron-dist, deepspeed-universal or ranks",
            w->destination);
    return TSR_OK;
}

tsr_status cli_choose_container(cli_writing *w, unsigned to, uint64_t max_shard_size, tsr_error *err)
{
    const tsr_status status = to ? TSR_OK : infer(w, max_shard_size, err);
    if (status != TSR_OK) return status;
    if (to) w->to = (tsr_container)(to - 1);
    if (max_shard_size && w->to != TSR_TO_SAFETENSORS)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--max-shard-size can only be used with --to safetensors");
    if (w->to == TSR_TO_DEEPSPEED_UNIVERSAL && w->options->overwrite)
        return tsr_raise(
            err, TSR_E_USAGE, TSR_NO_POSITION,
            "--overwrite cannot be used with --to deepspeed-universal, which only writes a new directory; remove '%s' first if it exists",
            w->destination);
    w->max_shard_size = max_shard_size;
    w->marker = w->max_shard_size ? TSR_INDEX_MARKER : tsr_marker_of(w->to);
    w->is_folder = w->marker || w->to == TSR_TO_DEEPSPEED_UNIVERSAL || w->to == TSR_TO_RANKS;
    if (!w->is_folder && ends_in_slash(w->destination)) {
        w->file_name = tsr_str_from(tsr_file_of(w->to));
        w->is_folder = true;
    }
    return TSR_OK;
}

/* A checkpoint with parts becomes a directory of safetensors files, one per part, unless DEST is the name of one file. */
void cli_choose_parts(cli_writing *w)
{
    const bool one_file = tsr_str_ends(tsr_str_from(w->destination), TSR_STR(".safetensors"));
    if (w->to != TSR_TO_SAFETENSORS || w->max_shard_size || one_file || !w->source.catalog->part_count) return;
    w->per_part = w->is_folder = true;
    w->file_name = (tsr_str){NULL, 0};
}

tsr_status cli_place_file(const char *destination, tsr_str name, tsr_arena *arena, cli_file_place *out, tsr_error *err)
{
    struct stat info;
    *out = (cli_file_place){destination, TSR_STR("")};
    if (!ends_in_slash(destination)) return TSR_OK;
    if (!tsr_is_url(destination) && stat(destination, &info) != 0) {
        out->name = name;
        return TSR_OK;
    }
    out->path = tsr_arena_format(arena, err, "%s%.*s", destination, TSR_STR_ARG(name)).data;
    return out->path ? TSR_OK : TSR_E_NOMEM;
}

/* ---- destination ---- */

#define MOST_KEPT_NAMED 100u

static tsr_status list_inputs(const cli_writing *w, tsr_inputs *inputs, tsr_error *err)
{
    tsr_status status = tsr_inputs_add(inputs, w->source.store, cli_source_checkpoint(&w->source), err);
    for (size_t i = 0; i < w->source.other_count && status == TSR_OK; i++)
        status = tsr_inputs_add(inputs, w->source.others[i].store, cli_source_checkpoint(&w->source.others[i]), err);
    const tsr_command_options *o = w->options;
    const char *const documents[] = {w->plan_path, w->against,       o->target,  o->map,
                                     o->storage,   o->source.shards, o->modules, o->flat_params};
    for (size_t i = 0; i < sizeof documents / sizeof *documents && status == TSR_OK; i++)
        status = tsr_inputs_add_path(inputs, documents[i], err);
    return status;
}

/* Prints a warning, and keeps it for the document. */
static tsr_status note(cli_writing *w, tsr_str text, tsr_error *err)
{
    TSR_TRY(cli_keep_warning(w, text, err));
    cli_warn(w->program, "%.*s", TSR_STR_ARG(text));
    return TSR_OK;
}

tsr_status cli_note_kept(cli_writing *w, tsr_error *err)
{
    const tsr_replacement *r = &w->replacement;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < r->kept_count && i < MOST_KEPT_NAMED && status == TSR_OK; i++)
        status = note(w,
                      tsr_arena_format(w->arena, err, "'%.*s' in '%s' is not listed by the replaced checkpoint; it is kept",
                                       TSR_STR_ARG(r->kept[i].name), w->destination),
                      err);
    if (status == TSR_OK && r->kept_count > MOST_KEPT_NAMED)
        status = note(w,
                      tsr_arena_format(w->arena, err, "%zu more files in '%s' are kept", r->kept_count - MOST_KEPT_NAMED,
                                       w->destination),
                      err);
    return status;
}

tsr_status cli_decide_replacement(cli_writing *w, const tsr_str *written, size_t count, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_of(&tsr_allocator_libc);
    const tsr_replacement_request request = {.host = cli_host(w->program),
                                             .path = w->destination,
                                             .is_folder = w->is_folder,
                                             .overwrite = w->options->overwrite,
                                             .marker = w->marker,
                                             .file_name = w->file_name,
                                             .inputs = &inputs,
                                             .written = written,
                                             .written_count = count};
    tsr_status status = w->options->overwrite ? list_inputs(w, &inputs, err) : TSR_OK;
    if (status == TSR_OK) status = tsr_replacement_decide(&request, w->arena, &w->replacement, err);
    if (status == TSR_OK) status = tsr_replacement_check_readers(&request, &w->replacement, err);
    tsr_inputs_free(&inputs);
    return status;
}

/* For a single file: a sidecar may replace only another sidecar. */
static tsr_status check_sidecar_file(cli_writing *w, tsr_error *err)
{
    const tsr_str path = tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
    if (!path.data) return TSR_E_NOMEM;
    if (access(path.data, F_OK) != 0 || (w->options->overwrite && tsr_is_sidecar(path.data))) return TSR_OK;
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     w->options->overwrite ? "'%s' exists and was not written by a conversion; move it away"
                                           : "'%s' exists; --overwrite replaces it",
                     path.data);
}

static tsr_status check_name(const cli_writing *w, tsr_str name, tsr_error *err)
{
    return tsr_replacement_check_name(&w->replacement, w->destination, name, err);
}

/* For a single file: warns if transformers would load another file of its directory. Both may belong to one model, so it is
 * written. */
static tsr_status note_preferred_file(cli_writing *w, tsr_error *err)
{
    static const char *const preferred[] = {TSR_MODEL_FILE, TSR_INDEX_MARKER};
    const tsr_str dest = tsr_str_from(w->destination), name = TSR_STR(TSR_TORCH_FILE);
    const tsr_str folder = {dest.data, tsr_str_ends(dest, name) ? dest.size - name.size : 0};
    if (!tsr_str_ends(dest, name) || (folder.size && folder.data[folder.size - 1] != '/')) return TSR_OK;
    for (size_t i = 0; i < sizeof preferred / sizeof *preferred; i++) {
        const tsr_str path = tsr_arena_format(w->arena, err, "%.*s%s", TSR_STR_ARG(folder), preferred[i]);
        if (!path.data) return TSR_E_NOMEM;
        if (access(path.data, F_OK) != 0) continue;
        return note(w,
                    tsr_arena_format(w->arena, err,
                                     "transformers loads '%s' instead of the new '%.*s' in the same directory", preferred[i],
                                     TSR_STR_ARG(name)),
                    err);
    }
    return TSR_OK;
}

tsr_status cli_check_names(cli_writing *w, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(w->work);
    tsr_status status = w->is_folder ? TSR_OK : note_preferred_file(w, err);
    if (status != TSR_OK) return status;
    if (!w->is_folder) return c->sidecar.size ? check_sidecar_file(w, err) : TSR_OK;
    if (c->sidecar.size)
        status = tsr_replacement_take_sidecar(&w->replacement, w->destination, cli_sidecar_name(w), w->arena, err);
    for (uint32_t f = 0; f < c->file_count && status == TSR_OK; f++) status = check_name(w, c->files[f], err);
    if (status == TSR_OK && w->marker) status = check_name(w, tsr_str_from(w->marker), err);
    if (status == TSR_OK && c->sidecar.size) status = check_name(w, cli_sidecar_name(w), err);
    return status == TSR_OK ? cli_note_kept(w, err) : status;
}

tsr_str cli_sidecar_name(const cli_writing *w)
{
    const uint32_t generation = w->generation;
    return generation ? tsr_arena_format(w->arena, NULL, "objects-g%u.json", (unsigned)generation) : TSR_STR("objects.json");
}

static tsr_status open_sidecar(cli_writing *w, const char *path, tsr_error *err)
{
    const tsr_folder_output_options options = {
        .overwrite = w->options->overwrite, .tag = w->tag, .join = w->joins, .parent = tsr_journals_parent(&w->journals)};
    if (!w->compares) return tsr_folder_output_open(NULL, cli_host(w->program)->allocator, path, &options, &w->sidecar, err);
    return tsr_completed_open(cli_host(w->program), path, &w->sidecar, err);
}

/* Writes the sidecar into the directory, or next to the single file. */
tsr_status cli_write_sidecar(cli_writing *w, tsr_error *err)
{
    tsr_str text = w->conversion.sidecar;
    tsr_output *to = w->output;
    tsr_str name = cli_sidecar_name(w);
    uint32_t file;
    if (text.size == 0 || w->options->dry_run) return TSR_OK;
    if (!w->is_folder) {
        tsr_str path = tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
        if (!path.data) return TSR_E_NOMEM;
        const tsr_status status = open_sidecar(w, path.data, err);
        if (status != TSR_OK) return status;
        to = w->sidecar;
        name = TSR_STR("");
    }
    if (!name.data) return TSR_E_NOMEM;
    tsr_status status = to->create(to, name, text.size, &file, err);
    return status == TSR_OK ? to->write_at(to, file, 0, text.data, text.size, err) : status;
}

/* ---- completed ---- */

/* Finds out whether an earlier run of the job has already written DEST: the job runs over an output that compares
 * (publish/completed.h) instead of writing. */

/* What is at DEST, as far as it must be known before the comparison. */
typedef struct found {
    uint32_t exists;     /* a directory in an object store without its marker is not a checkpoint */
    uint32_t generation; /* that of its data files */
} found;

static tsr_status look(const cli_writing *w, found *out, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_error why = {0};
    *out = (found){0};
    const tsr_status status = tsr_path_store_open(cli_host(w->program), w->destination, &store, &why);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status != TSR_OK) return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
    const bool is_unmarked = tsr_is_object_url(w->destination) && w->is_folder && w->marker &&
                             tsr_store_find(store, tsr_str_from(w->marker)) == TSR_NO_FILE;
    /* A run that was killed after it had published a plan's parts leaves their notes, which the next one removes. */
    const bool has_notes = w->is_exec && tsr_is_object_url(w->destination) && tsr_path_store_hidden(store).count;
    out->exists = store->file_count > 0 && !is_unmarked && !has_notes;
    for (uint32_t f = 0; f < store->file_count && w->is_folder; f++) {
        const uint32_t next = tsr_generation_after(store->files[f].name.data);
        if (next > out->generation + 1) out->generation = next - 1;
    }
    store->close(store);
    return TSR_OK;
}

/* Refuses objects that a job with --objects sidecar has left: this job does not write them. */
static tsr_status refuse_sidecar(const cli_writing *w, tsr_error *err)
{
    const tsr_str path = w->is_folder
                             ? tsr_arena_format(w->arena, err, "%s/%.*s", w->destination, TSR_STR_ARG(cli_sidecar_name(w)))
                             : tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
    if (!path.data) return TSR_E_NOMEM;
    if (w->conversion.sidecar.size || tsr_is_url(w->destination) || !tsr_is_sidecar(path.data)) return TSR_OK;
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "the destination '%s' exists, and is not what this job writes: '%s' is not written by it; --overwrite "
                     "replaces it",
                     w->destination, path.data);
}

/* What rank 0 writes after all units. */
static tsr_status compare_rest(cli_writing *w, tsr_error *err)
{
    tsr_status status = tsr_work_finish(w->work, err);
    w->conversion = *tsr_work_conversion(w->work);
    if (status == TSR_OK) status = cli_write_sidecar(w, err);
    if (status == TSR_OK) status = refuse_sidecar(w, err);
    if (status == TSR_OK) status = w->output->publish(w->output, w->conversion.marker, err);
    if (status == TSR_OK && w->sidecar) status = w->sidecar->publish(w->sidecar, 0, err);
    return status;
}

static tsr_status compare_units(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    const tsr_comm *ranks = w->program->ranks;
    tsr_status status = tsr_work_new(w->source.checkpoint, options, w->generation, w->arena, &w->work, err);
    if (status == TSR_OK) status = tsr_completed_open(cli_host(w->program), w->destination, &w->output, err);
    if (status == TSR_OK) status = tsr_work_open(w->work, w->output, err);
    return status == TSR_OK ? tsr_work_run(w->work, ranks ? ranks->rank : 0, ranks ? ranks->size : 1, NULL, err) : status;
}

static tsr_status compare(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    tsr_status status = cli_agree(w->program, compare_units(w, options, err), err);
    if (status == TSR_OK) status = cli_exchange_records(w, err);
    if (status == TSR_OK) status = cli_speaks(w->program) ? compare_rest(w, err) : TSR_OK;
    if (status == TSR_OK) status = cli_unchanged(&w->source, err);
    return cli_agree(w->program, status, err);
}

static void close_outputs(cli_writing *w)
{
    if (w->output) w->output->close(w->output);
    if (w->sidecar) w->sidecar->close(w->sidecar);
    w->output = w->sidecar = NULL;
}

/* A run that was killed while it removed a checkpoint from an object store leaves objects of it. They cannot be told from
 * those of others, so they stay, and are named. */
static tsr_status note_kept(cli_writing *w, tsr_error *err)
{
    tsr_error ignored = {0};
    const bool looks = w->options->overwrite && tsr_is_object_url(w->destination) && cli_speaks(w->program);
    return looks && cli_decide_replacement(w, NULL, 0, &ignored) == TSR_OK ? cli_note_kept(w, err) : TSR_OK;
}

tsr_status cli_find_completed(cli_writing *w, const tsr_convert_options *options, tsr_error *why, tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    found there = {0};
    tsr_status status = cli_agree(w->program, cli_speaks(w->program) ? look(w, &there, err) : TSR_OK, err);
    if (status == TSR_OK && ranks) status = ranks->broadcast(ranks, &there, sizeof there, 0, err);
    if (status != TSR_OK || !there.exists) return status;
    w->generation = there.generation;
    w->compares = true;
    status = compare(w, options, why);
    w->compares = false;
    if (status == TSR_OK) w->resumed.objects = tsr_completed_count(w->output, &w->resumed.bytes);
    close_outputs(w);
    if (status == TSR_OK) {
        w->is_complete = w->published = true;
        w->units_found = tsr_work_units(w->work);
        return note_kept(w, err);
    }
    tsr_work_free(w->work);
    w->work = NULL;
    w->generation = 0;
    w->conversion = (tsr_conversion){0};
    if (status == TSR_E_EXISTS) return TSR_OK;
    *err = *why;
    *why = (tsr_error){0};
    return status;
}
