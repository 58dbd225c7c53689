/* `tessera convert PATH DEST --to FORM`: writes a checkpoint in another format. */
#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/program/shards_option.h"
#include "cli/writing/writing.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/glob.h"

static tsr_status choose_container(cli_writing *w, const tsr_command_options *arguments, tsr_error *err)
{
    const tsr_status status = cli_choose_container(w, arguments->to, arguments->max_shard_size, err);
    if (status != TSR_OK) return status;
    if (arguments->world_size && w->to != TSR_TO_RANKS)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--world-size can only be used with --to ranks");
    w->program->writes_ranks = w->to == TSR_TO_RANKS;
    return TSR_OK;
}

/* For --to ranks: the map of --shards says how tensors are cut. Without --world-size, there are as many ranks as the map
 * joined. */
static tsr_status choose_ranks(cli_writing *w, const tsr_command_options *arguments, tsr_error *err)
{
    if (w->to != TSR_TO_RANKS) return TSR_OK;
    const uint64_t world = arguments->world_size ? arguments->world_size : tsr_checkpoint_joined_ranks(w->source.checkpoint);
    if (!w->program->options.source.shards || !world)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--to ranks needs --shards FILE%s",
                         w->program->options.source.shards ? " and --world-size N" : "");
    w->world_size = world < UINT32_MAX ? (uint32_t)world : UINT32_MAX;
    return cli_read_shards(w->program, &w->shards, err);
}

static tsr_status parse_renames(cli_writing *w, const tsr_texts *texts, tsr_error *err)
{
    tsr_rename *renames = tsr_arena_array(w->arena, texts->count, sizeof *renames, err);
    if (!renames) return TSR_E_NOMEM;
    w->renames = renames;
    for (; w->rename_count < texts->count; w->rename_count++) {
        tsr_status status = tsr_rename_parse(tsr_str_from(texts->items[w->rename_count]), &renames[w->rename_count], err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *path = program->operands.items[0];
    tsr_error err = {0};
    tsr_command_options writing = *arguments;
    cli_writing w = {.program = program,
                     .options = &writing,
                     .what = "converting",
                     .destination = program->operands.items[1],
                     .against = arguments->against,
                     .documents = {arguments->against}};
    const tsr_open_options used = {.selects = cli_selects, .selects_ctx = &arguments->selection};
    cli_map_options map = cli_map_of(arguments);
    map.lists = arguments->dry_run;
    w.arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = w.arena ? choose_container(&w, arguments, &err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = cli_quantize_dtype(&writing, &err);
    if (status == TSR_OK) status = parse_renames(&w, &arguments->renames, &err);
    if (status == TSR_OK) status = cli_open_mapped(program, path, &used, &map, &w.source, &err);
    if (status == TSR_OK) status = choose_ranks(&w, arguments, &err);
    w.documents[1] = w.source.map_path;
    if (status == TSR_OK && arguments->dry_run && !arguments->json) status = cli_put_map_table(program, &w.source, &err);
    status = cli_agree(program, status, &err);
    if (status == TSR_OK) cli_choose_parts(&w);
    if (status == TSR_OK) status = cli_write(&w, &err);
    int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
    cli_writing_close(&w);
    tsr_arena_free(w.arena);
    cli_close(&w.source);
    return result;
}

const cli_command cli_convert = {
    .name = "convert",
    .examples =
        "tessera convert ckpt/ model.safetensors --to safetensors\n"
        "Convert DCP to a single file, in a few MiB of memory\n"
        "tessera convert ckpt/ hf/ --to safetensors\nWrite hf/model.safetensors: a DEST that ends in / is a directory\n"
        "tessera convert ckpt/ hf/ --to safetensors --max-shard-size 5GB --include 'model.**' --rename "
        "model.=\nWrite shards with an index, and strip the prefix of the names\n"
        "tessera convert checkpoint-500/ model.safetensors --part model\nTake the model out of a training checkpoint\n"
        "tessera convert checkpoint-500/ parts/ --to safetensors --objects sidecar\nWrite one file per part of it\n"
        "tessera convert step-500/ model.safetensors --part model --against modules.json\n"
        "Refuse to write what this model would not load\n"
        "tessera convert llama-70b/ model.safetensors --shards meta-llama\n"
        "Join the consolidated.NN.pth files of all ranks\n"
        "tessera convert base/ merged.safetensors --lora adapter/\nFold a LoRA adapter into its base model\n"
        "tessera convert model/ fp8/ --quantize fp8-block --max-shard-size 5GB\nQuantize the weights of a model for "
        "inference\n"
        "tessera convert run.pt ckpt/ --to dcp\nPrepare a checkpoint to resume training with any number of ranks\n"
        "tessera convert run/global_step100 out/ --to deepspeed-universal\nLet DeepSpeed continue with another number of "
        "ranks",
    .run = run,
};
