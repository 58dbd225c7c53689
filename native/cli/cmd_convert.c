/* `tessera convert PATH DEST --to FORM`: writes a checkpoint again. Order: decide and refuse, write under temporary names,
 * check that the source did not change, publish. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/session.h"
#include "cli/term.h"
#include "io/folder.h"
#include "tessera/convert.h"
#include "tessera/glob.h"

typedef struct convert_arguments {
    unsigned to;      /* choice: safetensors, torch, dcp */
    unsigned objects; /* choice: keep, drop, sidecar, refuse */
    cli_selection selection;
    cli_list renames;
    const char *dtype;
    uint64_t max_shard_size, max_memory;
    bool overwrite, dry_run, json;
} convert_arguments;

typedef struct job {
    cli *program;
    const convert_arguments *arguments;
    const char *destination;
    tsr_container to;
    bool is_folder;
    cli_session source;
    tsr_arena *arena;
    tsr_rename *renames;
    tsr_vec obsolete; /* of tsr_str: the replaced checkpoint's files */
    tsr_output *output, *sidecar;
    tsr_conversion conversion;
    double seconds;
} job;

/* ---- options ---- */

static tsr_status choose_container(job *j, tsr_error *err)
{
    static const struct {
        const char *suffix;
        tsr_container to;
    } suffixes[] = {{".safetensors", TSR_TO_SAFETENSORS}, {".pt", TSR_TO_TORCH}, {".pth", TSR_TO_TORCH}, {".bin", TSR_TO_TORCH}};
    if (j->arguments->to) {
        j->to = (tsr_container)(j->arguments->to - 1);
    } else {
        size_t i = 0;
        while (i < 4 && !tsr_str_ends(tsr_str_from(j->destination), tsr_str_from(suffixes[i].suffix))) i++;
        if (i == 4) return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--to safetensors, torch or dcp must say what to write");
        j->to = suffixes[i].to;
    }
    j->is_folder = j->to == TSR_TO_DCP || (j->to == TSR_TO_SAFETENSORS && j->arguments->max_shard_size > 0);
    if (j->arguments->max_shard_size && j->to != TSR_TO_SAFETENSORS) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--max-shard-size is for --to safetensors");
    }
    return TSR_OK;
}

static tsr_status parse_renames(job *j, tsr_error *err)
{
    size_t count = j->arguments->renames.count;
    j->renames = tsr_arena_array(j->arena, count, sizeof *j->renames, err);
    if (!j->renames) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        tsr_status status = tsr_rename_parse(tsr_str_from(j->arguments->renames.items[i]), &j->renames[i], err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static bool want(void *ctx, tsr_str fqn)
{
    return cli_selects(&((const job *)ctx)->arguments->selection, fqn);
}

static tsr_status rename_entry(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const job *j = ctx;
    return tsr_rename_apply(j->renames, j->arguments->renames.count, fqn, arena, out, err);
}

static tsr_status make_options(job *j, const tsr_progress *progress, tsr_convert_options *out, tsr_error *err)
{
    tsr_dtype dtype = j->arguments->dtype ? tsr_dtype_from_name(tsr_str_from(j->arguments->dtype)) : TSR_DTYPE_NONE;
    if (j->arguments->dtype && dtype == TSR_DTYPE_NONE) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no dtype '%s'; float32, bfloat16, float16, float8_e4m3fn, …", j->arguments->dtype);
    }
    *out = (tsr_convert_options){
        .to = j->to,
        .objects = (tsr_objects)j->arguments->objects,
        .want = want,
        .want_ctx = j,
        .rename = j->arguments->renames.count ? rename_entry : NULL,
        .rename_ctx = j,
        .dtype = dtype,
        .max_shard_size = j->arguments->max_shard_size,
        .max_memory = (size_t)j->arguments->max_memory,
        .dry_run = j->arguments->dry_run,
        .progress = progress,
    };
    return TSR_OK;
}

/* ---- destination ---- */

static tsr_status add_obsolete(job *j, tsr_str name, tsr_error *err)
{
    tsr_str *item = tsr_vec_push(&j->obsolete, err);
    tsr_str copy = tsr_arena_str(j->arena, name, err);
    if (!item || !copy.data) return TSR_E_NOMEM;
    *item = copy;
    return TSR_OK;
}

/* The files of the checkpoint that DEST holds now: its data files and its marker. A folder that holds none has none. */
static tsr_status list_obsolete(job *j, tsr_error *err)
{
    tsr_error ignored = {0};
    cli_session old;
    if (!j->is_folder || !j->arguments->overwrite || j->arguments->dry_run) return TSR_OK;
    if (cli_open(j->program, j->destination, &(tsr_open_options){.skip_objects = true}, &old, &ignored) != TSR_OK) return TSR_OK;
    tsr_status status = TSR_OK;
    for (uint32_t f = 0; f < old.store->file_count && status == TSR_OK; f++) {
        tsr_str name = old.store->files[f].name;
        bool is_marker = tsr_str_equal(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR(".index.json"));
        bool is_data = tsr_str_ends(name, TSR_STR(".distcp")) || tsr_str_ends(name, TSR_STR(".safetensors"));
        if ((is_marker || is_data) && !memchr(name.data, '/', name.size)) status = add_obsolete(j, name, err);
    }
    cli_close(&old);
    return status;
}

static tsr_status open_destination(job *j, tsr_error *err)
{
    if (j->arguments->dry_run) return TSR_OK;
    const tsr_folder_output_options options = {
        .is_folder = j->is_folder,
        .overwrite = j->arguments->overwrite,
        .source = j->source.path,
        .obsolete = j->obsolete.items,
        .obsolete_count = j->obsolete.count,
    };
    return tsr_folder_output_open(NULL, cli_host(j->program)->allocator, j->destination, &options, &j->output, err);
}

/* In the folder, or beside the one file. */
static tsr_status write_sidecar(job *j, tsr_error *err)
{
    tsr_str text = j->conversion.sidecar;
    tsr_output *to = j->output;
    tsr_str name = TSR_STR("objects.json");
    uint32_t file;
    if (text.size == 0 || j->arguments->dry_run) return TSR_OK;
    if (!j->is_folder) {
        tsr_str path = tsr_arena_format(j->arena, err, "%s.objects.json", j->destination);
        const tsr_folder_output_options options = {.overwrite = j->arguments->overwrite};
        if (!path.data) return TSR_E_NOMEM;
        tsr_status status = tsr_folder_output_open(NULL, cli_host(j->program)->allocator, path.data, &options, &j->sidecar, err);
        if (status != TSR_OK) return status;
        to = j->sidecar;
        name = TSR_STR("");
    }
    tsr_status status = to->create(to, name, text.size, &file, err);
    if (status == TSR_OK) status = to->write_at(to, file, 0, text.data, text.size, err);
    return status == TSR_OK && j->sidecar ? j->sidecar->publish(j->sidecar, file, err) : status;
}

/* ---- report ---- */

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

static void report_text(const job *j)
{
    char names[1024];
    tally t = count_rows(&j->conversion);
    if (t.copied) {
        name_some(&j->conversion, is_copied, names, sizeof names);
        cli_warn(j->program, "%s shared storage and %s now: %s", cli_plural(t.copied, "tensor").text,
                 t.copied == 1 ? "is an independent copy" : "are independent copies", names);
    }
    if (t.not_weights_only) {
        name_some(&j->conversion, needs_full_pickle, names, sizeof names);
        cli_warn(j->program, "torch.load(weights_only=True) will refuse: %s", names);
    }
    if (j->arguments->json || j->program->globals.quiet) return;
    fprintf(stderr, "%s ", j->arguments->dry_run ? "would write" : "wrote");
    cli_put(stderr, tsr_str_from(j->destination));
    fprintf(stderr, ": %s", cli_plural(t.tensors, "tensor").text);
    if (t.objects) fprintf(stderr, ", %s", cli_plural(t.objects, "object").text);
    fprintf(stderr, ", %s in %s", cli_bytes(j->conversion.byte_total).text, cli_plural(j->conversion.file_count, "file").text);
    if (t.cast) fprintf(stderr, ", %s cast", cli_number(t.cast).text);
    if (t.left_out) fprintf(stderr, ", %s left out", cli_number(t.left_out).text);
    if (!j->arguments->dry_run && j->seconds > 0) {
        fprintf(stderr, "; %.2f s, %s/s", j->seconds, cli_bytes((uint64_t)((double)j->conversion.byte_total / j->seconds)).text);
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

static void put_summary(tsr_json *json, const job *j)
{
    tally t = count_rows(&j->conversion);
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"tensors", t.tensors}, {"objects", t.objects}, {"left_out", t.left_out},
                  {"cast", t.cast},       {"copied", t.copied},   {"bytes", j->conversion.byte_total}};
    tsr_json_key(json, "summary");
    tsr_json_object(json);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_json_key(json, counts[i].key);
        tsr_json_uint(json, counts[i].count);
    }
    tsr_json_key(json, "seconds");
    tsr_json_double(json, j->seconds);
    tsr_json_object_end(json);
}

static tsr_status report_json(const job *j, tsr_error *err)
{
    static const char *const forms[] = {"safetensors", "torch", "dcp"};
    tsr_json json;
    tsr_json_start(&json, cli_write_file, stdout, 1, err);
    tsr_json_object(&json);
    put_pair(&json, "schema", TSR_STR("tessera.convert/1"));
    put_pair(&json, "source", tsr_str_from(j->source.path));
    put_pair(&json, "destination", tsr_str_from(j->destination));
    put_pair(&json, "to", tsr_str_from(forms[j->to]));
    tsr_json_key(&json, "dry_run");
    tsr_json_bool(&json, j->arguments->dry_run);
    put_summary(&json, j);
    tsr_json_key(&json, "files");
    tsr_json_array(&json);
    for (uint32_t f = 0; f < j->conversion.file_count; f++) {
        tsr_json_object(&json);
        put_pair(&json, "name", j->conversion.files[f]);
        tsr_json_key(&json, "bytes");
        tsr_json_uint(&json, j->conversion.file_sizes[f]);
        tsr_json_object_end(&json);
    }
    tsr_json_array_end(&json);
    tsr_json_key(&json, "entries");
    tsr_json_array(&json);
    for (uint64_t i = 0; i < j->conversion.row_count; i++) put_row(&json, &j->conversion, &j->conversion.rows[i]);
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

/* ---- command ---- */

static tsr_status write_and_publish(job *j, tsr_error *err)
{
    tsr_convert_options options;
    cli_progress progress;
    double start = cli_seconds();
    cli_progress_start(&progress, j->program, "converting");
    tsr_status status = make_options(j, &progress.base, &options, err);
    if (status == TSR_OK) status = open_destination(j, err);
    if (status == TSR_OK) status = tsr_convert(j->source.checkpoint, j->output, &options, j->arena, &j->conversion, err);
    if (status == TSR_OK) status = write_sidecar(j, err);
    if (status == TSR_OK) status = cli_unchanged(&j->source, err);
    if (status == TSR_OK && j->output) status = j->output->publish(j->output, j->conversion.marker, err);
    cli_progress_end(&progress);
    j->seconds = cli_seconds() - start;
    return status;
}

static tsr_status convert(job *j, tsr_error *err)
{
    j->arena = tsr_arena_new(cli_host(j->program)->allocator, 0, err);
    if (!j->arena) return TSR_E_NOMEM;
    tsr_status status = choose_container(j, err);
    if (status == TSR_OK) status = parse_renames(j, err);
    if (status == TSR_OK) status = cli_open(j->program, j->program->operands.items[0], NULL, &j->source, err);
    if (status == TSR_OK) status = list_obsolete(j, err);
    if (status == TSR_OK) status = write_and_publish(j, err);
    if (status == TSR_OK) report_text(j);
    if (status == TSR_OK && j->arguments->json) status = report_json(j, err);
    return status;
}

static int run(cli *program, const void *given)
{
    job j = {.program = program, .arguments = given, .destination = program->operands.items[1],
             .obsolete = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str))};
    tsr_error err = {0};
    tsr_status status = convert(&j, &err);
    int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, program->operands.items[0], &err);
    if (j.output) j.output->close(j.output);
    if (j.sidecar) j.sidecar->close(j.sidecar);
    tsr_vec_free(&j.obsolete);
    tsr_arena_free(j.arena);
    cli_close(&j.source);
    return result;
}

static const cli_option options[] = {
    {"to", 0, CLI_CHOICE, "safetensors|torch|dcp", "what to write (else DEST's ending tells)", offsetof(convert_arguments, to)},
    {"include", 0, CLI_LIST, "GLOB", "only names that match (repeatable)", offsetof(convert_arguments, selection.include)},
    {"exclude", 0, CLI_LIST, "GLOB", "no names that match (repeatable); beats --include", offsetof(convert_arguments, selection.exclude)},
    {"rename", 0, CLI_LIST, "FROM=TO", "a literal prefix, or one * on each side (repeatable)", offsetof(convert_arguments, renames)},
    {"dtype", 0, CLI_TEXT, "DTYPE", "cast floating tensors, correctly rounded", offsetof(convert_arguments, dtype)},
    {"objects", 0, CLI_CHOICE, "keep|drop|sidecar|refuse", "what is no tensor (default: kept for torch and dcp, refused for safetensors); sidecar writes JSON", offsetof(convert_arguments, objects)},
    {"max-shard-size", 0, CLI_BYTES, "SIZE", "safetensors: a folder of files of at most SIZE with an index", offsetof(convert_arguments, max_shard_size)},
    {"max-mem", 0, CLI_BYTES, "SIZE", "memory for buffers (default 16MiB)", offsetof(convert_arguments, max_memory)},
    {"overwrite", 0, CLI_FLAG, NULL, "replace an existing destination, once the new one is complete", offsetof(convert_arguments, overwrite)},
    {"dry-run", 0, CLI_FLAG, NULL, "decide everything, write nothing", offsetof(convert_arguments, dry_run)},
    {"json", 0, CLI_FLAG, NULL, "the tessera.convert/1 document: what was written, cast, copied, left out", offsetof(convert_arguments, json)},
    {0},
};

const cli_command cli_convert = {
    .name = "convert",
    .summary = "writes a checkpoint as safetensors, torch.save or DCP",
    .operands = "PATH DEST",
    .least = 2,
    .most = 2,
    .examples = "tessera convert ckpt/ model.safetensors --to safetensors\nDCP to one file, in a few MiB of memory\n"
                "tessera convert ckpt/ hf/ --to safetensors --max-shard-size 5GB --include 'model.**' --rename model.=\nshards with an index, names without their prefix\n"
                "tessera convert run.pt ckpt/ --to dcp\nto resume on another number of ranks\n",
    .options = options,
    .arguments_size = sizeof(convert_arguments),
    .run = run,
};
