/* What was written: a line for people, a document for scripts. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/program/term.h"
#include "cli/writing/writing.h"

#define FINDINGS_SHOWN 5u

typedef struct tally {
    uint64_t tensors, objects, left_out, cast, copied, not_weights_only;
} tally;

static tally count_rows(const tsr_conversion *conversion)
{
    tally t = {0};
    for (uint64_t i = 0; i < conversion->row_count; i++) {
        const tsr_converted *row = &conversion->rows[i];
        bool tensor = row->entry->kind == TSR_ENTRY_TENSOR;
        t.tensors += row->written && tensor;
        t.objects += row->written && !tensor;
        t.left_out += !row->written;
        t.cast += row->cast;
        t.copied += row->copied;
        t.not_weights_only += row->written && !tensor && !row->weights_only;
    }
    return t;
}

/* "a, b, c and 12 more" of the rows that `pick` picks. */
static void name_some(const tsr_conversion *conversion, bool (*pick)(const tsr_converted *row), char *out, size_t capacity)
{
    size_t used = 0, named = 0;
    uint64_t more = 0;
    *out = '\0';
    for (uint64_t i = 0; i < conversion->row_count; i++) {
        const tsr_converted *row = &conversion->rows[i];
        if (!pick(row)) continue;
        if (named == 5 || used + row->entry->fqn.size + 40 >= capacity) {
            more++;
            continue;
        }
        used += (size_t)snprintf(out + used, capacity - used, "%s%.*s", named++ ? ", " : "", TSR_STR_ARG(row->entry->fqn));
    }
    if (more) snprintf(out + used, capacity - used, " and %" PRIu64 " more", more);
}

static bool is_copied(const tsr_converted *row)
{
    return row->copied;
}

static bool needs_full_pickle(const tsr_converted *row)
{
    return row->written && row->entry->kind != TSR_ENTRY_TENSOR && !row->weights_only;
}

/* What the reader found wrong in what was written all the same. */
static void warn_of_errors(const cli_writing *w)
{
    const tsr_findings *findings = tsr_checkpoint_findings(w->source.checkpoint);
    uint64_t left = tsr_findings_total(findings, TSR_ERROR);
    size_t shown = 0;
    for (size_t i = 0; i < tsr_findings_count(findings) && shown < FINDINGS_SHOWN; i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        if (f->level != TSR_ERROR) continue;
        cli_warn(w->program, "%.*s%s%.*s (%s)", TSR_STR_ARG(f->file), f->file.size ? ": " : "", TSR_STR_ARG(f->message),
                 f->rule->id);
        shown++;
        left--;
    }
    if (left) cli_warn(w->program, "%s more; run tessera validate to list them", cli_plural(left, "error").text);
}

static void report_text(const cli_writing *w)
{
    char names[1024];
    tally t = count_rows(&w->conversion);
    warn_of_errors(w);
    if (t.copied) {
        name_some(&w->conversion, is_copied, names, sizeof names);
        cli_warn(w->program, "%s shared storage and %s now: %s", cli_plural(t.copied, "tensor").text,
                 t.copied == 1 ? "is an independent copy" : "are independent copies", names);
    }
    if (t.not_weights_only) {
        name_some(&w->conversion, needs_full_pickle, names, sizeof names);
        cli_warn(w->program, "torch.load(weights_only=True) will refuse: %s", names);
    }
    if (w->options->json || w->program->globals.quiet) return;
    if (w->units_found && !w->finish) {
        fprintf(stderr, "resumed: %s of %s were done already\n", cli_number(w->units_found).text,
                cli_plural(tsr_work_units(w->work), "unit").text);
    }
    if (w->part && !w->published) {
        fprintf(stderr, "part %" PRIu64 " of %" PRIu64 " of ", w->part, w->parts);
        cli_put(stderr, tsr_str_from(w->destination));
        fprintf(stderr, " is done; %.2f s\n", w->seconds);
        return;
    }
    fprintf(stderr, "%s ", w->options->dry_run ? "would write" : "wrote");
    cli_put(stderr, tsr_str_from(w->destination));
    fprintf(stderr, ": %s", cli_plural(t.tensors, "tensor").text);
    if (t.objects) fprintf(stderr, ", %s", cli_plural(t.objects, "object").text);
    fprintf(stderr, ", %s in %s", cli_bytes(w->conversion.byte_total).text,
            cli_plural(w->conversion.file_count, "file").text);
    if (t.cast) fprintf(stderr, ", %s cast", cli_number(t.cast).text);
    if (t.left_out) fprintf(stderr, ", %s left out", cli_number(t.left_out).text);
    if (!w->options->dry_run && w->seconds > 0) {
        fprintf(stderr, "; %.2f s, %s/s", w->seconds,
                cli_bytes((uint64_t)((double)w->conversion.byte_total / w->seconds)).text);
    }
    fputc('\n', stderr);
}

static void put_pair(tsr_json *json, const char *key, tsr_str text)
{
    tsr_json_key(json, key);
    tsr_json_str(json, text);
}

static void put_row(tsr_json *json, const tsr_conversion *conversion, const tsr_converted *row)
{
    const char *from = tsr_dtype_describe(row->entry->dtype)->name;
    tsr_json_object(json);
    put_pair(json, "fqn", row->entry->fqn);
    if (!row->written) {
        put_pair(json, "left_out", tsr_str_from(row->left_out));
        tsr_json_object_end(json);
        return;
    }
    if (!tsr_str_equal(row->name, row->entry->fqn)) put_pair(json, "name", row->name);
    if (row->entry->kind == TSR_ENTRY_TENSOR) {
        put_pair(json, "dtype", tsr_str_from(tsr_dtype_describe(row->dtype)->name));
        if (row->cast) put_pair(json, "cast_from", tsr_str_from(from));
        if (row->file < conversion->file_count) put_pair(json, "file", conversion->files[row->file]);
        tsr_json_key(json, "bytes");
        tsr_json_uint(json, row->bytes);
        if (row->copied) {
            tsr_json_key(json, "copied");
            tsr_json_bool(json, true);
        }
    } else {
        tsr_json_key(json, "weights_only");
        tsr_json_bool(json, row->weights_only);
    }
    tsr_json_object_end(json);
}

static void put_summary(tsr_json *json, const cli_writing *w)
{
    tally t = count_rows(&w->conversion);
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"tensors", t.tensors}, {"objects", t.objects}, {"left_out", t.left_out},
                  {"cast", t.cast},       {"copied", t.copied},   {"bytes", w->conversion.byte_total}};
    tsr_json_key(json, "summary");
    tsr_json_object(json);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_json_key(json, counts[i].key);
        tsr_json_uint(json, counts[i].count);
    }
    tsr_json_key(json, "seconds");
    tsr_json_double(json, w->seconds);
    tsr_json_object_end(json);
}

/* Units: pieces of at most 16 MiB. */
static void put_work(tsr_json *json, const cli_writing *w)
{
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"units", tsr_work_units(w->work)},
                  {"found_done", w->units_found},
                  {"left", tsr_work_left(w->work, 0, 1)},
                  {"part", w->part},
                  {"parts", w->parts}};
    tsr_json_key(json, "published");
    tsr_json_bool(json, w->published);
    tsr_json_key(json, "work");
    tsr_json_object(json);
    for (size_t i = 0; i < (w->part ? 5u : 3u); i++) {
        tsr_json_key(json, counts[i].key);
        tsr_json_uint(json, counts[i].count);
    }
    tsr_json_object_end(json);
}

static void put_warnings(tsr_json *json, const cli_writing *w)
{
    const tsr_str *warnings = w->warnings.items;
    tsr_json_key(json, "warnings");
    tsr_json_array(json);
    for (size_t i = 0; i < w->warnings.count; i++) tsr_json_str(json, warnings[i]);
    tsr_json_array_end(json);
}

static tsr_status report_json(const cli_writing *w, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, cli_write_file, stdout, 1, err);
    tsr_json_object(&json);
    put_pair(&json, "schema", w->is_exec ? TSR_STR("tessera.exec/1") : TSR_STR("tessera.convert/1"));
    put_pair(&json, "source", tsr_str_from(w->source.path));
    put_pair(&json, "destination", tsr_str_from(w->destination));
    put_pair(&json, "to", tsr_str_from(cli_containers[w->to]));
    tsr_json_key(&json, "dry_run");
    tsr_json_bool(&json, w->options->dry_run);
    if (w->work) put_work(&json, w);
    put_summary(&json, w);
    put_warnings(&json, w);
    tsr_json_key(&json, "files");
    tsr_json_array(&json);
    for (uint32_t f = 0; f < w->conversion.file_count; f++) {
        tsr_json_object(&json);
        put_pair(&json, "name", w->conversion.files[f]);
        tsr_json_key(&json, "bytes");
        tsr_json_uint(&json, w->conversion.file_sizes[f]);
        tsr_json_object_end(&json);
    }
    tsr_json_array_end(&json);
    tsr_json_key(&json, "entries");
    tsr_json_array(&json);
    for (uint64_t i = 0; i < w->conversion.row_count; i++) put_row(&json, &w->conversion, &w->conversion.rows[i]);
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

tsr_status cli_report_writing(const cli_writing *w, tsr_error *err)
{
    report_text(w);
    return w->options->json ? report_json(w, err) : TSR_OK;
}
