/* Finds out whether an earlier run of the job has already written DEST: the job runs over an output that compares
 * (publish/completed.h) instead of writing. */
#include "cli/writing/writing_parts.h"
#include "publish/completed.h"
#include "publish/folder_output.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path_store.h"

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
