/* `tessera repair`: rebuilds a lost or damaged `.metadata` from the data files, as far as possible; writes a safetensors file
 * again without what makes it unreadable; and writes what is whole of a truncated torch.save file. */
#include <stdio.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/text/report_text.h"
#include "cli/writing/writing.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/salvage.h"
#include "tessera/sys/salvaged_file.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

typedef struct repair {
    cli *program;
    const tsr_command_options *arguments;
    const char *path, *dest;
    cli_file_place place; /* of the new .metadata */
    cli_files files;
    tsr_store *store;     /* of the checkpoint, or of the part that --part names */
    tsr_checkpoint *part; /* with --part: it owns `store`; otherwise NULL */
    cli_session like;
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_salvage salvage;
    tsr_salvaged_file found; /* in a damaged safetensors file; without a store for others */
    bool is_torch;           /* a single torch.save file */
    uint64_t kept, lost;     /* its entries that are whole, and the others */
} repair;

/* With --part: opens the directory of the part, which has its own .metadata. */
static tsr_status enter_part(repair *r, tsr_error *err)
{
    const char *part = r->program->options.source.part;
    tsr_str directory;
    r->store = r->files.store;
    if (!part) return TSR_OK;
    TSR_TRY(tsr_part_directory(r->files.store, tsr_str_from(part), &directory, err));
    const tsr_status opened = tsr_step_open(r->files.store, cli_host(r->program), directory, &r->part, err);
    if (opened == TSR_OK) r->store = tsr_checkpoint_store(r->part);
    return opened;
}

/* Refuses what is not a checkpoint to repair: another program's format, and a checkpoint that can be read, unless it is
 * `safetensors`, which may have bytes behind its end. */
static tsr_status refuse_sound(const repair *r, bool safetensors, tsr_error *err)
{
    const tsr_host *host = cli_host(r->program);
    tsr_error why = {0};
    tsr_checkpoint *checkpoint = NULL;
    bool has_data = false;
    const tsr_open_options options = {.skip_objects = true};
    for (uint32_t f = 0; f < r->store->file_count; f++) {
        const tsr_str name = r->store->files[f].name;
        const bool is_paddles = tsr_is_digit(name.data[0]); /* "0_0.distcp", where PyTorch writes "__0_0.distcp" */
        has_data |= !is_paddles && tsr_str_ends(name, TSR_STR(".distcp"));
    }
    const tsr_status opened = tsr_checkpoint_open(r->store, host, &options, &checkpoint, &why);
    if (opened == TSR_E_UNSUPPORTED && !has_data) return tsr_raise_again(err, opened, &why);
    if (opened != TSR_OK || safetensors) {
        tsr_checkpoint_close(checkpoint);
        return TSR_OK;
    }
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    tsr_status status = tsr_validate_catalog(catalog, host, findings, err);
    if (status == TSR_OK && catalog->format == TSR_FORMAT_DCP && tsr_findings_total(findings, TSR_ERROR) == 0)
        status =
            tsr_fail(err, TSR_E_USAGE, "there is nothing to repair: .metadata is present and agrees with the data files");
    else if (status == TSR_OK && catalog->format != TSR_FORMAT_DCP)
        status = tsr_fail(err, TSR_E_UNSUPPORTED,
                          "only a DCP, a single safetensors file or a truncated torch.save file can be repaired; this is a "
                          "whole checkpoint in the format %s",
                          tsr_format_name(catalog->format));
    tsr_checkpoint_close(checkpoint);
    return status;
}

static tsr_status salvage(repair *r, tsr_error *err)
{
    cli_progress progress;
    cli_progress_start(&progress, r->program, "reading");
    const tsr_salvage_progress step = {progress.base.step, progress.base.ctx};
    const tsr_status status =
        tsr_salvage_dcp(r->store, cli_host(r->program),
                        &(tsr_salvage_options){.like = r->like.catalog, .findings = r->findings, .progress = &step},
                        r->arena, &r->salvage, err);
    cli_progress_end(&progress);
    return status;
}

typedef struct contents {
    const repair *repair;
    const tsr_vec *bytes;
} contents;

static tsr_status write_contents(void *ctx, tsr_output *output, uint32_t *number, tsr_error *err)
{
    const contents *c = ctx;
    const tsr_str name = c->repair->place.name;
    TSR_TRY(output->create(output, name, c->bytes->count, number, err));
    const tsr_status status = output->write_at(output, *number, 0, c->bytes->items, c->bytes->count, err);
    if (name.size) *number = TSR_NO_FILE;
    return status;
}

/* Never replaces an existing file, and never leaves an incomplete one. */
static tsr_status write_file(const repair *r, contents *c, tsr_error *err)
{
    cli_guard guard = {.program = r->program};
    c->repair = r;
    if (!tsr_is_object_url(r->dest) && access(r->dest, F_OK) == 0)
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "'%s' already exists; choose a new file", r->dest);
    tsr_publication p = {.environment = cli_environment(&guard),
                         .host = cli_host(r->program),
                         .arena = r->arena,
                         .destination = r->dest,
                         .line = TSR_STR("repaired metadata\n"),
                         .is_directory = r->place.name.size > 0,
                         .names = &r->place.name,
                         .name_count = 1,
                         .source = r->files.store,
                         .reads_back = tsr_is_object_url(r->dest),
                         .write = write_contents,
                         .ctx = c};
    return tsr_publication_run(&p, err);
}

static tsr_status write_metadata(repair *r, tsr_error *err)
{
    const tsr_host *host = cli_host(r->program);
    const tsr_salvage *s = &r->salvage;
    tsr_vec text = tsr_vec_of(host->allocator, 1);
    TSR_TRY(cli_place_file(r->dest, TSR_STR(TSR_DCP_MARKER), r->arena, &r->place, err));
    r->dest = r->place.path;
    const tsr_str id = tsr_dcp_save_id(s->entries, s->entry_count, 0, r->arena, err);
    const tsr_dcp_new_metadata metadata = {s->entries, s->entry_count, id, 0, false};
    tsr_status status = id.data ? tsr_dcp_metadata_write(&metadata, host, &text, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = write_file(r, &(contents){.bytes = &text}, err);
    tsr_vec_free(&text);
    return status;
}

/* The one file that PATH is, if it is a safetensors file; otherwise TSR_NO_FILE. */
static uint32_t safetensors_file(const repair *r)
{
    const tsr_store *store = r->store;
    const uint32_t file = store->primary != TSR_NO_FILE ? store->primary : store->file_count == 1 ? 0 : TSR_NO_FILE;
    return file != TSR_NO_FILE && tsr_str_ends(store->files[file].name, TSR_STR(".safetensors")) ? file : TSR_NO_FILE;
}

/* Sets *is to whether PATH is a single file that begins as those of torch.save do. */
static tsr_status begins_as_torch(const repair *r, bool *is, tsr_error *err)
{
    static const char zip[] = "PK\3\4", legacy[] = "\x80\2\x8a\x0al\xfc\x9c\x46"; /* the other one is a pickled number */
    const tsr_store *store = r->store;
    const uint32_t file = store->primary != TSR_NO_FILE ? store->primary : store->file_count == 1 ? 0 : TSR_NO_FILE;
    char head[8];
    *is = false;
    if (file == TSR_NO_FILE || store->files[file].size < sizeof head) return TSR_OK;
    if (tsr_str_ends(store->files[file].name, TSR_STR(".distcp"))) return TSR_OK;
    const tsr_status status = tsr_store_read(r->store, file, 0, head, sizeof head, err);
    *is = status == TSR_OK && (memcmp(head, zip, 4) == 0 || memcmp(head, legacy, sizeof head) == 0);
    return status;
}

/* Keeps the findings about what is lost. */
static tsr_status take_lost(repair *r, const cli_session *source, tsr_error *err)
{
    tsr_findings *found = tsr_checkpoint_findings(source->checkpoint);
    r->kept = source->catalog->entry_count;
    for (size_t i = 0; i < tsr_findings_count(found); i++) {
        const tsr_finding *f = tsr_findings_at(found, i);
        if (strcmp(f->rule->id, "repair/lost") != 0) continue;
        if (!r->lost++) r->lost += tsr_findings_unlisted(found, f->rule, f->level);
        const tsr_place place = {f->file, f->byte_offset, f->fqn};
        TSR_TRY(tsr_finding_add(r->findings, "repair/lost", place, err, "%.*s", TSR_STR_ARG(f->message)));
    }
    return TSR_OK;
}

/* Files are repaired by a conversion to their own form. `w` borrows the options. */
static tsr_status prepare_conversion(const repair *r, unsigned to, const char *form, tsr_command_options *options,
                                     cli_writing *w, tsr_error *err)
{
    *options = *r->arguments;
    options->json = false; /* the document is that of repair */
    options->to = to + 1;
    *w = (cli_writing){
        .program = r->program, .options = options, .what = "repairing", .destination = r->dest, .arena = r->arena};
    if (!options->like) return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "--like is for a DCP; PATH is a %s file", form);
}

/* Converts the sound file inside a damaged one, so that the new file states a checksum. */
static tsr_status write_safetensors(repair *r, uint32_t file, tsr_error *err)
{
    tsr_command_options options;
    cli_writing w;
    TSR_TRY(prepare_conversion(r, TSR_TO_SAFETENSORS, "safetensors", &options, &w, err));
    tsr_status status = tsr_salvage_safetensors(r->store, file, cli_host(r->program), r->arena, &r->found, err);
    if (status == TSR_OK) status = cli_choose_container(&w, options.to, 0, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_open(r->found.store, cli_host(r->program), NULL, &w.source.checkpoint, err);
    if (status != TSR_OK) return status;
    w.source.path = r->path;
    w.source.store = r->found.store;
    w.source.layers.top = w.source.checkpoint;
    w.source.catalog = tsr_checkpoint_catalog(w.source.checkpoint);
    status = cli_write(&w, err);
    cli_writing_close(&w);
    cli_close(&w.source);
    return status;
}

/* Converts what is whole of a truncated torch.save file to another one. */
static tsr_status write_torch(repair *r, tsr_error *err)
{
    tsr_command_options options;
    cli_writing w;
    TSR_TRY(prepare_conversion(r, TSR_TO_TORCH, "torch.save", &options, &w, err));
    r->program->options.source.salvage = true;
    tsr_status status = cli_open_conversion(&w, r->path, err);
    if (status == TSR_OK) status = take_lost(r, &w.source, err);
    if (status == TSR_OK && !r->kept)
        status = tsr_fail(err, TSR_E_FORMAT, "all %llu entries of the file are lost", (unsigned long long)r->lost);
    if (status == TSR_OK) status = cli_write(&w, err);
    cli_writing_close(&w);
    cli_close(&w.source);
    return status;
}

static tsr_status write_dcp(repair *r, tsr_error *err)
{
    const tsr_status status = salvage(r, err);
    return status == TSR_OK ? write_metadata(r, err) : status;
}

static void put_found(const repair *r)
{
    const tsr_salvaged_file *f = &r->found;
    cli_put(stdout, tsr_str_from(r->dest));
    printf(": %s", cli_plural(f->entries, "tensor").text);
    if (f->trailing) printf("; %s behind the last tensor left out", cli_plural(f->trailing, "byte").text);
    if (f->header_nuls) printf("; %s in the header's padding replaced by spaces", cli_plural(f->header_nuls, "NUL").text);
    putchar('\n');
}

static void put_text(const repair *r)
{
    const tsr_salvage *s = &r->salvage;
    if (r->found.store) {
        put_found(r);
        return;
    }
    if (r->is_torch) {
        cli_put(stdout, tsr_str_from(r->dest));
        printf(": %s; %s lost\n", cli_plural(r->kept, "name").text, cli_number(r->lost).text);
        cli_put_findings(&r->program->out, r->findings, 20);
        return;
    }
    printf("%s in %s: %s named", cli_plural(s->items, "item").text, cli_plural(s->files, "data file").text,
           cli_number(s->items - s->unnamed).text);
    if (s->lost) printf(", %s lost", cli_number(s->lost).text);
    putchar('\n');
    const tsr_str dest = r->place.name.size ? tsr_arena_format(r->arena, NULL, "%s%.*s", r->dest, TSR_STR_ARG(r->place.name))
                                            : tsr_str_from(r->dest);
    const bool in_place = tsr_str_equal(dest, TSR_STR(".metadata")) || tsr_str_ends(dest, TSR_STR("/.metadata"));
    cli_put(stdout, dest);
    printf(": %s%s\n", cli_plural(s->entry_count, "name").text,
           in_place ? "" : "; move it to .metadata to load the checkpoint");
    cli_put_findings(&r->program->out, r->findings, 20);
}

static tsr_status put_json(const repair *r, tsr_error *err)
{
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"files", r->salvage.files},
                  {"items", r->salvage.items},
                  {"unnamed", r->salvage.unnamed},
                  {"lost", r->is_torch ? r->lost : r->salvage.lost},
                  {"entries", r->found.store ? r->found.entries
                              : r->is_torch  ? r->kept
                                             : r->salvage.entry_count},
                  {"trailing_bytes", r->found.trailing},
                  {"header_nuls", r->found.header_nuls}};
    const size_t used = sizeof counts / sizeof *counts - (r->found.store ? 0 : 2);
    tsr_json json;
    cli_document_start(r->program, &json, err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.repair/1");
    tsr_json_put_text(&json, "written", r->dest);
    for (size_t i = 0; i < used; i++) tsr_json_put_uint(&json, counts[i].key, counts[i].count);
    tsr_json_key(&json, "report");
    tsr_report_one(&tsr_report_json, &(tsr_reported){.findings = r->findings}, &json, cli_host(r->program)->allocator);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    repair r = {
        .program = program, .arguments = arguments, .path = program->operands.items[0], .dest = program->operands.items[1]};
    const tsr_host *host = cli_host(program);
    tsr_error err = {0};
    const char *at = r.path;
    tsr_status status = cli_files_open(program, r.path, &r.files, &err);
    if (status == TSR_OK) status = enter_part(&r, &err);
    const uint32_t safetensors = status == TSR_OK ? safetensors_file(&r) : TSR_NO_FILE;
    if (status == TSR_OK) status = refuse_sound(&r, safetensors != TSR_NO_FILE, &err);
    if (status == TSR_OK && safetensors == TSR_NO_FILE) status = begins_as_torch(&r, &r.is_torch, &err);
    if (status == TSR_OK && r.arguments->like && !r.is_torch)
        status = cli_open_apart(program, at = r.arguments->like, NULL, &r.like, &err);
    if (status == TSR_OK) {
        at = r.path;
        r.arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, &err);
        r.findings = r.arena ? tsr_findings_new(host->allocator, 0, &err) : NULL;
        status = !r.findings                  ? TSR_E_NOMEM
                 : r.is_torch                 ? write_torch(&r, &err)
                 : safetensors == TSR_NO_FILE ? write_dcp(&r, &err)
                                              : write_safetensors(&r, safetensors, &err);
    }
    if (status == TSR_OK && r.arguments->json) status = put_json(&r, &err);
    else if (status == TSR_OK) put_text(&r);
    /* 2: warnings count as failures, too. */
    int result = status == TSR_OK ? cli_report_status(r.findings, 2) : cli_fail_error(program, at, &err);
    tsr_findings_free(r.findings);
    tsr_arena_free(r.arena);
    cli_close(&r.like);
    tsr_checkpoint_close(r.part);
    cli_files_close(&r.files);
    return result;
}

const cli_command cli_repair = {
    .name = "repair",
    .examples = "tessera repair step-1000/ step-1000.metadata --like step-900/\nRebuild it in a new file; then run mv "
                "step-1000.metadata step-1000/.metadata\n"
                "tessera repair step-1000/ found.metadata\n"
                "Rebuild it without names: each item is named after its file and number, and the exit status is 1\n"
                "tessera repair padded.safetensors fixed.safetensors\n"
                "Copy a file without the bytes behind its last tensor, and with a header that readers accept\n"
                "tessera repair truncated.pt whole.pt\n"
                "Write what is whole of a torch.save file that has lost its end, and list what is lost\n",
    .run = run,
};
