/* `tessera reshard PATH DEST`: writes a checkpoint as the ranks of another mesh would hold it. */
#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/writing/writing.h"

static tsr_status prepare(cli_writing *w, tsr_target *target, tsr_plan **plan, tsr_error *err)
{
    tsr_status status = cli_read_target(w->program, w->options, w->arena, &w->plan_job.target, target, err);
    if (status == TSR_OK) status = cli_read_storage(w->program, w->options->storage, w->arena, &w->plan_job.storage, err);
    return status == TSR_OK ? cli_open_reshard(w, w->program->operands.items[0], target, plan, err) : status;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    tsr_target target;
    tsr_plan *plan = NULL;
    cli_writing w = {
        .program = program, .options = arguments, .what = "resharding", .destination = program->operands.items[1]};
    w.arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = w.arena ? prepare(&w, &target, &plan, &err) : TSR_E_NOMEM;
    if (status == TSR_OK && arguments->dry_run && !arguments->json) status = cli_put_map_table(program, &w.source, &err);
    status = cli_agree(program, status, &err);
    if (status == TSR_OK) status = cli_write(&w, &err);
    int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, w.source.path, &err);
    cli_writing_close(&w);
    tsr_plan_free(plan);
    tsr_arena_free(w.arena);
    cli_close(&w.source);
    return result;
}

const cli_command cli_reshard = {
    .name = "reshard",
    .examples =
        "tessera reshard ckpt/ ckpt-3/ --mesh dp=3 --placements 'shard(0)'\nPrepare a checkpoint for 3 ranks, each "
        "of which then loads a tensor with one read\n"
        "tessera reshard ckpt/ ranks/ --to torch --target target.json\n"
        "Write one torch.save file per rank, with DTensors\n"
        "tessera reshard ckpt/ ckpt-3/ --mesh dp=3 --placements 'shard(0)' --resume\nContinue an interrupted run: "
        "write only what is missing\n"
        "mpirun -n 8 tessera reshard ckpt/ ckpt-3/ --mesh dp=3 --placements 'shard(0)'\nShare the work between eight "
        "processes; the output is the same\n",
    .run = run,
};
