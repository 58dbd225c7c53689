/* Reports what was written: a line for people, a document for scripts. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/program/contract.h"
#include "cli/program/map_options.h"
#include "cli/program/term.h"
#include "cli/writing/writing.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/document.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/try.h"

static bool resumed_remotely(const cli_writing *w)
{
    return w->options->resume && w->job.published && tsr_is_object_url(w->destination);
}

static void report_text(const cli_writing *w)
{
    tsr_conversion_counts t;
    tsr_conversion_count(&w->job.conversion, &t);
    if (w->options->json || w->program->options.quiet) return;
    if (w->job.is_complete) {
        cli_put(stderr, tsr_str_from(w->destination));
        fprintf(stderr, " is already complete: %s, %s in %s; nothing was written\n", cli_plural(t.tensors, "tensor").text,
                cli_bytes(w->job.conversion.byte_total).text, cli_plural(w->job.conversion.file_count, "file").text);
        return;
    }
    if (resumed_remotely(w)) cli_report_resumed(w->program, &w->job.resumed);
    if (w->job.units_found && !w->finish) {
        fprintf(stderr, "resumed: %s of %s %s done already\n", cli_number(w->job.units_found).text,
                cli_plural(w->job.units, "unit").text, w->job.units_found == 1 ? "was" : "were");
    }
    if (w->part && !w->job.published) {
        fprintf(stderr, "part %" PRIu64 " of %" PRIu64 " of ", w->part, w->parts);
        cli_put(stderr, tsr_str_from(w->destination));
        fprintf(stderr, " is done; %.2f s\n", w->seconds);
        return;
    }
    fprintf(stderr, "%s ", w->options->dry_run ? "would write" : "wrote");
    cli_put(stderr, tsr_str_from(w->destination));
    fprintf(stderr, ": %s", cli_plural(t.tensors, "tensor").text);
    if (t.objects) fprintf(stderr, ", %s", cli_plural(t.objects, "object").text);
    fprintf(stderr, ", %s in %s", cli_bytes(w->job.conversion.byte_total).text,
            cli_plural(w->job.conversion.file_count, "file").text);
    if (t.cast) fprintf(stderr, ", %s cast", cli_number(t.cast).text);
    if (t.kept) fprintf(stderr, ", %s of optimizer state not cast", cli_plural(t.kept, "scalar").text);
    if (t.left_out) fprintf(stderr, ", %s left out", cli_number(t.left_out).text);
    if (t.replicated) fprintf(stderr, ", %s replicated (too few dims)", cli_number(t.replicated).text);
    if (!w->options->dry_run && w->seconds > 0) {
        fprintf(stderr, "; %.2f s, %s/s", w->seconds,
                cli_bytes((uint64_t)((double)w->job.conversion.byte_total / w->seconds)).text);
    }
    fputc('\n', stderr);
}

/* Writes how many units of work (tessera/sys/work.h) there are, and how many of them are done. */
static void put_run(void *ctx, tsr_json *json)
{
    const cli_writing *w = ctx;
    tsr_json_put_bool(json, "dry_run", w->options->dry_run);
    if (w->options->dry_run && cli_has_map_table(&w->source)) tsr_mapping_put_table(w->source.checkpoint, json);
    if (!w->job.is_planned) return;
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"units", w->job.units},
                  {"found_done", w->job.units_found},
                  {"left", w->job.units_left},
                  {"part", w->part},
                  {"parts", w->parts}};
    tsr_json_put_bool(json, "published", w->job.published);
    tsr_json_put_object(json, "work");
    for (size_t i = 0; i < (w->part ? 5u : 3u); i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_object_end(json);
    if (resumed_remotely(w)) cli_put_resumed(json, &w->job.resumed);
}

static tsr_status report_json(const cli_writing *w, tsr_error *err)
{
    tsr_json json;
    const tsr_conversion_document document = {.schema =
                                                  w->is_exec ? TSR_STR("tessera.exec/1") : TSR_STR("tessera.convert/1"),
                                              .source = tsr_str_from(w->source.path),
                                              .destination = tsr_str_from(w->destination),
                                              .to = w->to,
                                              .conversion = &w->job.conversion,
                                              .seconds = w->seconds,
                                              .warnings = w->warnings.items,
                                              .warning_count = w->warnings.count,
                                              .more = put_run,
                                              .more_ctx = (void *)(uintptr_t)w};
    cli_document_start(w->program, &json, 1, err);
    const tsr_status status = tsr_document_conversion(&document, &json);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

tsr_status cli_keep_warning(cli_writing *w, tsr_str text, tsr_error *err)
{
    tsr_str *warning = text.data ? tsr_vec_push(&w->warnings, err) : NULL;
    if (!warning) return TSR_E_NOMEM;
    *warning = text;
    return TSR_OK;
}

/* Prints warnings about the conversion, and keeps them for the document. */
static tsr_status warn(cli_writing *w, tsr_error *err)
{
    /* These were printed earlier. */
    if (w->source.ignores_shards) TSR_TRY(cli_keep_warning(w, TSR_STR(TSR_SHARDS_UNUSED), err));
    if (w->source.leaves_settings) TSR_TRY(cli_keep_warning(w, TSR_STR(CLI_SETTINGS_UNREAD), err));
    TSR_TRY(tsr_opening_warnings(cli_source_checkpoint(&w->source), w->arena, &w->warnings, err));
    TSR_TRY(tsr_mapping_add_notes(w->source.checkpoint, w->options->config, &w->warnings, err));
    const size_t before = w->warnings.count;
    tsr_status status =
        tsr_conversion_warnings(w->source.checkpoint, &w->job.conversion, w->to, w->arena, &w->warnings, err);
    const tsr_selection selection = {tsr_globs_select, &w->options->selection};
    if (status == TSR_OK && (w->to == TSR_TO_TORCH || w->to == TSR_TO_RANKS))
        status =
            tsr_conversion_changed_dicts(w->source.catalog, &w->job.conversion, &selection, w->arena, &w->warnings, err);
    if (status == TSR_OK && w->to == TSR_TO_DCP)
        status = tsr_conversion_text_keys(w->source.checkpoint, &w->job.conversion, w->arena, &w->warnings, err);
    const tsr_str *warnings = w->warnings.items;
    for (size_t i = before; i < w->warnings.count; i++) cli_warn(w->program, "%.*s", TSR_STR_ARG(warnings[i]));
    return status;
}

tsr_status cli_report_writing(cli_writing *w, tsr_error *err)
{
    const tsr_status status = warn(w, err);
    if (status != TSR_OK) return status;
    report_text(w);
    return w->options->json ? report_json(w, err) : TSR_OK;
}

/* ---- against ---- */

/* --against: refuses to write a checkpoint that could not be loaded. */

tsr_status cli_check_against(const cli_writing *w, tsr_error *err)
{
    cli_contract against;
    tsr_status status = cli_contract_open(w->program, w->against, &against, err);
    if (status != TSR_OK) tsr_error_context(err, "--against '%s'", w->against);
    else status = tsr_conversion_check(&w->job.conversion, &against.contract, cli_host(w->program), err);
    cli_contract_free(&against);
    return status;
}
