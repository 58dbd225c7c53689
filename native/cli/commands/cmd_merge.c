/* `tessera merge OUT A B …`: writes the weighted sum of several checkpoints. */
#include <stdlib.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/writing/writing.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/merge.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct merging {
    cli *program;
    const tsr_command_options *arguments;
    cli_writing *writing;
    const char *path; /* of the checkpoint that is being opened, for messages; or NULL */
    tsr_merge_input *inputs;
    size_t count;     /* number of inputs, not counting the base */
    bool dequantized; /* whether --dequantize found quantized tensors in any input */
    tsr_merge_options options;
    tsr_checkpoint *merged; /* the merge, before it is quantized */
} merging;

/* ---- options ---- */

static tsr_status usage(tsr_error *err, const char *text)
{
    return tsr_fail(err, TSR_E_USAGE, "%s", text);
}

static tsr_status choose_method(merging *m, tsr_error *err)
{
    const tsr_command_options *a = m->arguments;
    if (!a->method && m->count > 1) return usage(err, "choose a method with --method linear, slerp or task-arithmetic");
    m->options.method = a->method ? (tsr_merge_method)(a->method - 1) : TSR_MERGE_LINEAR;
    if (m->options.method != TSR_MERGE_LINEAR && a->no_normalize)
        return usage(err, "--no-normalize can only be used with --method linear");
    if (m->options.method != TSR_MERGE_TASK_ARITHMETIC && a->base)
        return usage(err, "--base can only be used with --method task-arithmetic");
    if (m->options.method == TSR_MERGE_TASK_ARITHMETIC && !a->base)
        return usage(err, "--method task-arithmetic needs --base PATH");
    if (m->options.method != TSR_MERGE_SLERP && a->t.given) return usage(err, "--t can only be used with --method slerp");
    if (m->options.method == TSR_MERGE_SLERP && !a->t.given)
        return usage(err, "--method slerp needs --t X, from 0 for the first checkpoint to 1 for the second");
    if (m->options.method == TSR_MERGE_SLERP && a->weights.count)
        return usage(err, "--weight cannot be used with --method slerp; pass --t");
    if (m->options.method == TSR_MERGE_SLERP && m->count != 2)
        return tsr_fail(err, TSR_E_USAGE, "--method slerp merges 2 checkpoints, found %zu", m->count);
    m->options.no_normalize = a->no_normalize;
    m->options.t = a->t.value;
    m->options.skip_objects = a->objects == TSR_OBJECTS_DROP;
    return tsr_cast_parse(tsr_str_from(a->dtype), false, &m->options.dtype, err);
}

static tsr_status set_weights(merging *m, tsr_error *err)
{
    const tsr_texts *given = &m->arguments->weights;
    if (given->count && given->count != m->count)
        return tsr_fail(err, TSR_E_USAGE, "%zu checkpoints need as many --weight options, found %zu", m->count,
                        given->count);
    for (size_t i = 0; i < m->count; i++) {
        char *end = NULL;
        m->inputs[i].weight = given->count ? tsr_real_read(given->items[i], &end) : 1;
        const bool is_number =
            !given->count || (end != given->items[i] && !*end && m->inputs[i].weight - m->inputs[i].weight == 0);
        if (!is_number) return tsr_fail(err, TSR_E_USAGE, "--weight '%s' is not a number", given->items[i]);
    }
    return TSR_OK;
}

/* ---- inputs ---- */

/* Opens input `i`; the one after the last is the base. The first one is the source of the job. */
static tsr_status open_input(merging *m, size_t i, tsr_error *err)
{
    cli_session *source = &m->writing->source, opened = {0};
    const tsr_open_options used = {.selects = tsr_globs_select, .selects_ctx = &m->arguments->selection};
    tsr_command_options options = *m->arguments;
    bool plain = false;   /* inputs without quantized tensors are added as they are */
    options.quantize = 0; /* the sums are */
    options.no_quantize.count = 0;
    if (i) options.lora = NULL;
    m->path = i < m->count ? m->program->operands.items[i + 1] : m->arguments->base;
    TSR_TRY(
        cli_open_mapped(m->program, m->path, &used, &(cli_map_options){.options = &options, .plain = &plain}, &opened, err));
    m->dequantized |= options.dequantize && !plain;
    m->inputs[i].checkpoint = opened.checkpoint;
    m->inputs[i].name = tsr_str_from(m->path);
    if (i == 0) *source = opened;
    else source->others[source->other_count++] = opened;
    return TSR_OK;
}

/* Makes room for the other inputs. If the first input has an adapter, that is in the list already. */
static tsr_status make_room(merging *m, tsr_error *err)
{
    cli_session *source = &m->writing->source;
    cli_session *others = calloc(m->count + 1, sizeof *others);
    if (!others) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    if (source->other_count) others[0] = source->others[0];
    free(source->others);
    source->others = others;
    return TSR_OK;
}

static tsr_status open_inputs(merging *m, tsr_error *err)
{
    tsr_status status = open_input(m, 0, err);
    if (status == TSR_OK) status = make_room(m, err);
    for (size_t i = 1; i < m->count + (m->arguments->base != NULL) && status == TSR_OK; i++) status = open_input(m, i, err);
    if (status != TSR_OK) return status;
    m->path = NULL; /* from here on, messages name the inputs themselves */
    TSR_FAIL_IF(m->arguments->dequantize && !m->dequantized, err, TSR_E_UNSUPPORTED,
                "--dequantize: there are no quantized tensors with scales in any of the checkpoints");
    return TSR_OK;
}

/* ---- the merge ---- */

/* Measures the tensors, of which each process takes its share. */
static tsr_status measure(merging *m, tsr_error *err)
{
    tsr_checkpoint *merged = m->merged;
    tsr_comm *ranks = m->program->ranks;
    const tsr_allocator *allocator = cli_host(m->program)->allocator;
    tsr_comm_blobs all = {0};
    if (m->arguments->dry_run || m->options.method != TSR_MERGE_SLERP) return TSR_OK;
    tsr_status status = tsr_merge_measure(merged, ranks ? ranks->rank : 0, ranks ? ranks->size : 1, err);
    if (!ranks) return status;
    status = cli_agree(m->program, status, err);
    if (status == TSR_OK) status = tsr_comm_gather_blobs((tsr_ranks){ranks, allocator}, tsr_merge_angles(merged), &all, err);
    for (uint32_t r = 0; r < all.count && status == TSR_OK; r++) tsr_merge_take_angles(merged, all.blobs[r]);
    tsr_comm_blobs_free(&all);
    return status;
}

static tsr_status open_merge(merging *m, tsr_error *err)
{
    const tsr_name_globs *selection = &m->arguments->selection;
    m->options.selection = (tsr_selection){tsr_globs_select, selection};
    m->options.base = m->arguments->base ? &m->inputs[m->count] : NULL;
    tsr_status status = tsr_merge_open(m->inputs, (uint32_t)m->count, &m->options, &m->merged, err);
    if (status == TSR_OK) cli_add_layer(&m->writing->source, m->merged);
    return status;
}

/* Applies --quantize to the sums, after they were rounded to --dtype. */
static tsr_status quantize(merging *m, tsr_error *err)
{
    const tsr_open_options used = {.selects = tsr_globs_select, .selects_ctx = &m->arguments->selection};
    return cli_quantize(m->program, m->arguments, &used, &m->writing->source, err);
}

static tsr_status merge(merging *m, tsr_error *err)
{
    cli_writing *w = m->writing;
    cli_allow_expansion(m->program, m->arguments->allow_expansion);
    w->arena = tsr_arena_new(cli_host(m->program)->allocator, 0, err);
    if (!w->arena) return TSR_E_NOMEM;
    m->inputs = tsr_arena_array(w->arena, m->count + 1, sizeof *m->inputs, err);
    if (!m->inputs) return TSR_E_NOMEM;
    tsr_status status = cli_choose_container(w, m->arguments->to, m->arguments->max_shard_size, err);
    if (status == TSR_OK) status = choose_method(m, err);
    if (status == TSR_OK) status = set_weights(m, err);
    if (status == TSR_OK) status = open_inputs(m, err);
    if (status == TSR_OK) status = open_merge(m, err);
    if (status == TSR_OK) status = quantize(m, err);
    if (status != TSR_OK) return status;
    w->source.recipe = TSR_STR("merge");
    return TSR_OK;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    cli_writing w = {.program = program, .options = arguments, .what = "merging", .destination = program->operands.items[0]};
    merging m = {.program = program, .arguments = arguments, .writing = &w, .count = program->operands.count - 1};
    tsr_status status = tsr_layering_check(&(tsr_layering){.options = arguments}, &err);
    if (status == TSR_OK) status = merge(&m, &err);
    status = cli_agree(program, status, &err);
    if (status == TSR_OK) status = measure(&m, &err);
    status = cli_agree(program, status, &err);
    if (status == TSR_OK) cli_choose_parts(&w);
    if (status == TSR_OK) status = cli_write(&w, &err);
    const int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, m.path, &err);
    cli_writing_close(&w);
    tsr_arena_free(w.arena);
    cli_close(&w.source);
    return result;
}

const cli_command cli_merge = {
    .name = "merge",
    .examples =
        "tessera merge out.safetensors a/ b/ --method linear\nAverage two checkpoints, in a few MiB of memory\n"
        "tessera merge out.safetensors a/ b/ --method linear --weight 0.7 --weight 0.3\nGive the first one more weight\n"
        "tessera merge out.safetensors a/ b/ --method slerp --t 0.3\nInterpolate along the arc between two models\n"
        "tessera merge hf/ math/ code/ --method task-arithmetic --base base/ --weight 0.6 --weight 0.4 --to safetensors "
        "--max-shard-size 5GB\nAdd what two models learned to their base\n"
        "tessera merge out.safetensors base/ --lora adapter/\nFold a LoRA adapter into its base model\n"
        "tessera merge fp8/ a/ b/ --method linear --quantize fp8-block --max-shard-size 5GB\nQuantize the sum for inference\n",
    .run = run,
};
