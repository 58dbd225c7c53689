/* `tessera plan`: what a resharding would read, hold and send, before a byte is moved. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/session.h"
#include "cli/target_options.h"
#include "cli/term.h"

typedef struct plan_arguments {
    cli_target_options target;
    cli_selection selection;
    bool items, json;
} plan_arguments;

static bool want(void *ctx, tsr_str fqn)
{
    return cli_selects(ctx, fqn);
}

static void put_ranks(const tsr_plan_totals *totals)
{
    enum { SHOWN = 16 };
    printf("\n%8s  %10s  %10s  %10s\n", "RANK", "HOLDS", "READS", "RECEIVES");
    for (uint64_t r = 0; r < totals->ranks; r++) {
        if (r == SHOWN && totals->ranks > SHOWN + 1) {
            printf("… and %s more ranks\n", cli_number(totals->ranks - r).text);
            return;
        }
        const tsr_rank_load *load = &totals->per_rank[r];
        printf("%8" PRIu64 "  %10s  %10s  %10s\n", r, cli_bytes(load->held).text, cli_bytes(load->read).text,
               cli_bytes(load->received).text);
    }
}

static void put_text(const cli *program, const tsr_plan_document *document)
{
    const tsr_plan_totals *t = document->totals;
    uint64_t files = 0;
    for (uint32_t f = 0; f < t->file_count; f++) files += t->per_file[f].reads > 0;
    cli_on(&program->out, stdout, CLI_BOLD);
    cli_put(stdout, document->source_path);
    cli_off(&program->out, stdout);
    fputs(" → ", stdout);
    cli_put(stdout, document->texts->mesh);
    fputs(", ", stdout);
    cli_put(stdout, document->texts->default_placements);
    if (document->texts->rule_count) printf(", %s", cli_plural(document->texts->rule_count, "rule").text);
    printf("\n  %s in %s, %s", cli_plural(tsr_plan_count(document->plan), "tensor").text,
           cli_plural(t->classes, "kind").text, cli_plural(t->ranks, "rank").text);
    printf("\n  %s from %s, %s in all; the largest is %s", cli_plural(t->reads, "read").text, cli_plural(files, "file").text,
           cli_bytes(t->bytes).text, cli_bytes(t->largest_read).text);
    printf("\n  a rank holds at most %s (imbalance %.2f); read amplification %.2f\n", cli_bytes(t->held_max).text,
           t->imbalance, t->amplification);
    put_ranks(t);
}

static tsr_status report(cli *program, const cli_session *session, const plan_arguments *arguments, const tsr_plan *plan,
                         const tsr_target *target, const tsr_target_texts *texts, tsr_arena *arena, tsr_error *err)
{
    tsr_plan_totals totals;
    tsr_json json;
    tsr_status status = tsr_plan_count_totals(plan, arena, &totals, err);
    const tsr_plan_document document = {
        plan, &totals, session->catalog, &target->mesh, texts, tsr_str_from(session->path), arguments->items};
    if (status != TSR_OK) return status;
    if (!arguments->json && !arguments->items) {
        put_text(program, &document);
        return TSR_OK;
    }
    tsr_json_start(&json, cli_write_file, stdout, 1, err);
    status = tsr_document_plan(&document, cli_host(program), &json, err);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

static int run(cli *program, const void *given)
{
    const plan_arguments *arguments = given;
    const char *path = program->operands.items[0];
    tsr_error err = {0};
    cli_session session = {0};
    tsr_target target;
    tsr_target_texts texts;
    tsr_plan *plan = NULL;
    const tsr_plan_options options = {.want = want, .want_ctx = (void *)(uintptr_t)&arguments->selection};
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = arena ? cli_read_target(program, &arguments->target, arena, &texts, &target, &err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = cli_open(program, path, &(tsr_open_options){.skip_objects = true}, &session, &err);
    if (status == TSR_OK) status = tsr_plan_new(session.catalog, &target, &options, cli_host(program), &plan, &err);
    if (status == TSR_OK) status = report(program, &session, arguments, plan, &target, &texts, arena, &err);
    if (status == TSR_OK) status = cli_unchanged(&session, &err);
    int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, session.store ? path : NULL, &err);
    tsr_plan_free(plan);
    cli_close(&session);
    tsr_arena_free(arena);
    return result;
}

static const cli_option options[] = {
    CLI_TARGET_OPTIONS(plan_arguments, target),
    {"include", 0, CLI_LIST, "GLOB", "only names that match (repeatable)", offsetof(plan_arguments, selection.include)},
    {"exclude", 0, CLI_LIST, "GLOB", "no names that match (repeatable); beats --include",
     offsetof(plan_arguments, selection.exclude)},
    {"json", 0, CLI_FLAG, NULL, "the tessera.plan/1 document", offsetof(plan_arguments, json)},
    {"items", 0, CLI_FLAG, NULL, "the document with every read of every rank", offsetof(plan_arguments, items)},
    {0},
};

const cli_command cli_plan = {
    .name = "plan",
    .summary = "what resharding to another mesh would read, hold and send",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples =
        "tessera plan ckpt/ --mesh dp=4,tp=2 --placements 'shard(0),replicate'\nloads and totals, before a byte is moved\n"
        "tessera plan ckpt/ --target target.json --items\nevery read of every rank, for scripts\n",
    .options = options,
    .arguments_size = sizeof(plan_arguments),
    .run = run,
};
