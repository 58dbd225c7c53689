/* `tessera convert PATH DEST --to FORM`: writes a checkpoint in another format. */
#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/writing/writing.h"

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *path = program->operands.items[0];
    tsr_error err = {0};
    cli_writing w = {.program = program,
                     .options = arguments,
                     .what = "converting",
                     .destination = program->operands.items[1],
                     .against = arguments->against};
    cli_config_copy config;
    w.arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = w.arena ? cli_open_conversion(&w, path, &err) : TSR_E_NOMEM;
    if (status == TSR_OK && arguments->dry_run && !arguments->json) status = cli_put_map_table(program, &w.source, &err);
    if (status == TSR_OK) status = cli_config_plan(&w, &config, &err);
    status = cli_agree(program, status, &err);
    if (status == TSR_OK) status = cli_write(&w, &err);
    if (status == TSR_OK) status = cli_config_write(&w, &config, &err);
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
        "tessera convert awq/ plain/ --dequantize --config --max-shard-size 5GB\nTurn a quantized model into one that loads "
        "without quantization\n"
        "tessera convert local-state/ model.safetensors --flat-params flat.json\n"
        "Join the model that the ranks of FSDP1 saved with LOCAL_STATE_DICT\n"
        "tessera convert base/ merged.safetensors --lora adapter/\nFold a LoRA adapter into its base model\n"
        "tessera convert model/ fp8/ --quantize fp8-block --max-shard-size 5GB\nQuantize the weights of a model for "
        "inference\n"
        "tessera convert run.pt ckpt/ --to dcp\nPrepare a checkpoint to resume training with any number of ranks\n"
        "tessera convert run/global_step100 out/ --to deepspeed-universal\nLet DeepSpeed continue with another number of "
        "ranks",
    .run = run,
};
