/* `tessera plan`: shows what resharding would read, hold and send, without moving any data. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/program/term.h"
#include "cli/writing/writing.h"

#include "tessera/sys/plan.h"

enum { SHOWN = 16 /* rows of a table */, NAMED = 5 };

static void put_ranks(const tsr_plan_totals *totals)
{
    printf("\n%8s  %10s  %10s  %10s\n", "RANK", "HOLDS", "READS", "RECEIVES");
    for (uint64_t r = 0; r < totals->ranks; r++) {
        if (r == SHOWN && totals->ranks > SHOWN + 1) {
            printf("… and %s more\n", cli_plural(totals->ranks - r, "rank").text);
            return;
        }
        const tsr_rank_load *load = &totals->per_rank[r];
        printf("%8" PRIu64 "  %10s  %10s  %10s\n", r, cli_bytes(load->held).text, cli_bytes(load->read).text,
               cli_bytes(load->received).text);
    }
}

static void put_server_head(const tsr_plan_document *document)
{
    const tsr_storage *storage = document->storage;
    uint32_t most = 0;
    double seconds = 0;
    for (uint32_t s = 0; s < storage->server_count; s++) {
        seconds += document->servers[s].seconds;
        if (document->servers[s].seconds > document->servers[most].seconds) most = s;
    }
    const double longest = document->servers[most].seconds;
    printf("\n  %s: at least %.3g s, the time of server ", cli_plural(storage->server_count, "server").text, longest);
    cli_put(stdout, storage->servers[most].name);
    printf(" (imbalance %.2f)\n", seconds > 0 ? longest * storage->server_count / seconds : 0);
    const uint32_t assumed = tsr_storage_assumed(storage, document->totals);
    if (assumed)
        printf("  %s not listed in the storage document and assumed to begin at the servers in turn\n",
               cli_plural(assumed, "file").text);
}

static void put_servers(const tsr_plan_document *document)
{
    const uint32_t count = document->storage->server_count;
    put_server_head(document);
    printf("\n%10s  %10s  SERVER\n", "DELIVERS", "SECONDS");
    for (uint32_t s = 0; s < count; s++) {
        if (s == SHOWN && count > SHOWN + 1) {
            printf("… and %s more servers\n", cli_number(count - s).text);
            return;
        }
        printf("%10s  %10.3f  ", cli_bytes(document->servers[s].bytes).text, document->servers[s].seconds);
        cli_put(stdout, document->storage->servers[s].name);
        putchar('\n');
    }
}

static void put_files(const tsr_plan_document *document, uint64_t files)
{
    const tsr_storage *storage = document->storage;
    const tsr_store *store = document->catalog->store;
    const tsr_plan_totals *totals = document->totals;
    uint64_t shown = 0;
    printf("\n%10s  %7s  %7s  FILE, FIRST SERVER\n", "BYTES", "READS", "STRIPES");
    for (uint32_t f = 0; f < totals->file_count && f < store->file_count; f++) {
        if (!totals->per_file[f].reads) continue;
        if (shown++ == SHOWN && files > SHOWN + 1) {
            printf("… and %s more\n", cli_plural(files - SHOWN, "file").text);
            return;
        }
        printf("%10s  %7s  %7" PRIu32 "  ", cli_bytes(totals->per_file[f].bytes).text,
               cli_number(totals->per_file[f].reads).text, storage->files[f].stripe_count);
        cli_put(stdout, store->files[f].name);
        fputs(", ", stdout);
        cli_put(stdout, storage->servers[tsr_storage_server_at(storage, f, 0)].name);
        putchar('\n');
    }
}

/* Names tensors with too few dims for the default placements to shard them. */
static void put_replicated(const tsr_plan *plan)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < tsr_plan_count(plan); i++) {
        const tsr_planned planned = tsr_plan_tensor_at(plan, i);
        if (!planned.replicated || count++ >= NAMED) continue;
        fputs(count == 1 ? "  replicated, because they have too few dims: " : ", ", stdout);
        cli_put(stdout, planned.entry->fqn);
    }
    if (count > NAMED) printf(" and %s more", cli_number(count - NAMED).text);
    if (count) putchar('\n');
}

static void put_target(const tsr_target_texts *target)
{
    cli_put(stdout, target->mesh);
    fputs(", ", stdout);
    cli_put(stdout, target->default_placements);
    if (target->rule_count) printf(", %s", cli_plural(target->rule_count, "rule").text);
}

static void put_text(const cli *program, const tsr_plan_document *document)
{
    const tsr_plan_totals *t = document->totals;
    const bool reshards = document->job->target.mesh.size != 0;
    const unsigned to = document->job->request.options.to;
    uint64_t files = 0;
    for (uint32_t f = 0; f < t->file_count; f++) files += t->per_file[f].reads > 0;
    cli_on(&program->out, stdout, CLI_BOLD);
    cli_put(stdout, document->job->source.path);
    cli_off(&program->out, stdout);
    fputs(" → ", stdout);
    if (reshards) put_target(&document->job->target);
    else fputs(to ? tsr_container_words[to - 1] : "the format that exec infers from DEST", stdout);
    printf("\n  %s in %s", cli_plural(tsr_plan_count(document->plan), "tensor").text, cli_plural(t->classes, "kind").text);
    if (reshards) printf(", %s", cli_plural(t->ranks, "rank").text);
    printf("\n  %s from %s, %s in all; the largest is %s", cli_plural(t->reads, "read").text, cli_plural(files, "file").text,
           cli_bytes(t->bytes).text, cli_bytes(t->largest_read).text);
    if (!reshards) {
        putchar('\n');
        return;
    }
    printf("\n  a rank holds at most %s (imbalance %.2f); read amplification %.2f\n", cli_bytes(t->held_max).text,
           t->imbalance, t->amplification);
    put_replicated(document->plan);
    put_ranks(t);
    if (document->storage) put_servers(document);
    if (document->storage) put_files(document, files);
}

/* The plan for a checkpoint, and what it was made from. */
typedef struct planned {
    cli_session session;
    tsr_target target;
    tsr_plan_job job;
    tsr_target_texts counted; /* what the totals are of: the target of the job, or everything on one rank */
    tsr_storage storage;      /* parsed from job.storage; only if that lists servers */
    tsr_plan *plan;
    tsr_arena *arena;
} planned;

/* Describes what `tessera exec` has to do. */
static tsr_status describe_job(cli *program, const tsr_command_options *arguments, planned *p, tsr_error *err)
{
    tsr_command_options options;
    tsr_plan_job *job = &p->job;
    tsr_status status = cli_options_with_texts(program, &p->session, arguments, &options, err);
    if (status == TSR_OK)
        status = tsr_plan_request(p->session.checkpoint, &options, job->target.mesh.size != 0, p->arena, &job->request, err);
    if (status == TSR_OK) status = cli_describe_source(program, &p->session, p->arena, &job->source, err);
    if (status == TSR_OK && arguments->lora)
        status = cli_describe_source(program, p->session.others, p->arena, &job->adapter, err);
    return status;
}

static tsr_status report(cli *program, const tsr_command_options *arguments, planned *p, tsr_error *err)
{
    tsr_plan_totals totals;
    tsr_json json;
    tsr_status status = tsr_plan_count_totals(p->plan, p->arena, &totals, err);
    if (status == TSR_OK) status = describe_job(program, arguments, p, err);
    tsr_plan_document document = {.plan = p->plan,
                                  .totals = &totals,
                                  .catalog = p->session.catalog,
                                  .mesh = &p->target.mesh,
                                  .job = &p->job,
                                  .items = arguments->items,
                                  .storage = p->job.storage.servers ? &p->storage : NULL};
    if (status == TSR_OK && document.storage)
        status = tsr_plan_count_servers(p->plan, &p->storage, p->arena, &document.servers, err);
    if (status != TSR_OK) return status;
    if (!arguments->json && !arguments->items) {
        put_text(program, &document);
        return TSR_OK;
    }
    cli_document_start(program, &json, err);
    status = tsr_document_plan(&document, &json, err);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

static tsr_status make_plan(cli *program, const tsr_command_options *arguments, planned *p, tsr_error *err)
{
    const tsr_storage_text *text = &p->job.storage;
    const tsr_catalog *catalog = p->session.catalog;
    const tsr_host *host = cli_host(program);
    const tsr_plan_options options = {.want = tsr_globs_want,
                                      .want_ctx = (void *)(uintptr_t)&arguments->selection,
                                      .storage = text->servers ? &p->storage : NULL};
    const tsr_status status =
        text->servers ? tsr_storage_of(text, catalog->store, host, p->arena, &p->storage, err) : TSR_OK;
    if (status != TSR_OK) return status;
    return tsr_plan_for_texts(catalog, &(tsr_planning){&p->counted, &p->target, &options}, host, p->arena, &p->plan, err);
}

/* Without a target, the plan is for `tessera convert`. */
static tsr_status read_target(cli *program, const tsr_command_options *arguments, planned *p, tsr_error *err)
{
    tsr_status status = TSR_OK;
    if (arguments->target || arguments->mesh || arguments->placements) {
        status = cli_read_target(program, arguments, p->arena, &p->job.target, &p->target, err);
        p->counted = p->job.target;
        return status;
    }
    return tsr_target_of_conversion(p->arena, &p->counted, &p->target, err);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *path = program->operands.items[0];
    tsr_error err = {0}, missing = {0};
    planned p = {.plan = NULL};
    const tsr_open_options used = {.skip_objects = true, .selects = tsr_globs_select, .selects_ctx = &arguments->selection};
    p.arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = p.arena ? read_target(program, arguments, &p, &err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = cli_read_storage(program, arguments->storage, p.arena, &p.job.storage, &err);
    const cli_map_options map = {.options = arguments, .lists = true};
    if (status == TSR_OK) status = cli_open_mapped(program, path, &used, &map, &p.session, &err);
    if (status == TSR_OK) status = cli_check_selection(program, &p.session, arguments, &p.job.target, true, &err);
    if (status == TSR_OK) status = make_plan(program, arguments, &p, &err);
    if (status == TSR_OK) {
        const tsr_checkpoint *source = cli_source_checkpoint(&p.session);
        if (tsr_plan_check_present(source, p.session.checkpoint, arguments, &missing) != TSR_OK)
            cli_warn(program, "%s: %s", p.session.path, missing.message);
    }
    if (status == TSR_OK) status = report(program, arguments, &p, &err);
    if (status == TSR_OK) status = cli_unchanged(&p.session, &err);
    int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, p.session.path, &err);
    tsr_plan_free(p.plan);
    cli_close(&p.session);
    tsr_arena_free(p.arena);
    return result;
}

const cli_command cli_plan = {
    .name = "plan",
    .examples = "tessera plan ckpt/ --mesh dp=4,tp=2 --placements 'shard(0),replicate'\n"
                "Show the load of each rank before any byte is moved\n"
                "tessera plan ckpt/ --target target.json --items\nPrint every read of every rank as JSON, for scripts\n"
                "tessera plan ckpt/ --mesh dp=3 --placements 'shard(0)' --json > plan.json\n"
                "Write a plan that `tessera exec` carries out\n"
                "tessera plan ckpt/ --to safetensors --max-shard-size 5GB --objects drop --json > plan.json\n"
                "Plan a conversion, for shares that run on any machines\n"
                "tessera plan ckpt/ --mesh dp=512 --placements 'shard(1)' --storage storage.json\n"
                "Show what each server of a parallel file system delivers\n",
    .run = run,
};
