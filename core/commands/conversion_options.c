/* See tessera/sys/conversion_options.h. */
#include "tessera/sys/conversion_options.h"

#include "tessera/sys/casts.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/chosen_names.h"
#include "tessera/sys/layers.h"
#include "tessera/sys/try.h"

const char *const tsr_container_words[] = {"safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal", "ranks"};
const char *const tsr_objects_words[] = {"", "keep", "drop", "sidecar", "refuse"};

typedef struct renaming {
    const tsr_rename *renames;
    size_t count;
} renaming;

static tsr_status rename_entry(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const renaming *r = ctx;
    return tsr_rename_apply(r->renames, r->count, fqn, arena, out, err);
}

static void *selection_of(const tsr_command_options *options)
{
    return (void *)(uintptr_t)&options->selection;
}

tsr_status tsr_conversion_options(const tsr_command_options *options, tsr_container to, tsr_arena *arena,
                                  tsr_convert_options *out, tsr_error *err)
{
    *out = (tsr_convert_options){.to = to,
                                 .objects = (tsr_objects)options->objects,
                                 .want = tsr_globs_want,
                                 .want_ctx = selection_of(options),
                                 .raw_cast = options->raw_cast,
                                 .max_memory = (size_t)options->max_memory,
                                 .ignore_crc = options->ignore_crc,
                                 .no_checksums = options->no_checksums,
                                 .dry_run = options->dry_run};
    TSR_TRY(tsr_layers_cast(options, &out->dtype, err));
    TSR_TRY(tsr_for_torch_parse(tsr_str_from(options->for_torch), to, &out->for_torch, err));
    if (!options->renames.count) return TSR_OK;
    renaming *r = TSR_ARENA_NEW(arena, renaming, err);
    if (!r) return TSR_E_NOMEM;
    out->rename = rename_entry;
    out->rename_ctx = r;
    return tsr_renames_parse(&options->renames, arena, &r->renames, &r->count, err);
}

tsr_status tsr_conversion_ranks(const tsr_command_options *options, const tsr_shards *shards, const tsr_checkpoint *source,
                                tsr_convert_options *out, tsr_error *err)
{
    uint64_t world = options->world_size;
    TSR_FAIL_IF(out->to != TSR_TO_RANKS && world, err, TSR_E_USAGE, "--world-size can only be used with --to ranks");
    if (out->to != TSR_TO_RANKS) return TSR_OK;
    if (!world) world = tsr_checkpoint_joined_ranks(source);
    TSR_FAIL_IF(!shards || !world, err, TSR_E_USAGE, "--to ranks needs --shards FILE%s",
                shards ? " and --world-size N" : "");
    out->world_size = world < UINT32_MAX ? (uint32_t)world : UINT32_MAX;
    out->shards = shards;
    return TSR_OK;
}

tsr_status tsr_plan_request(tsr_checkpoint *checkpoint, const tsr_command_options *options, bool reshards, tsr_arena *arena,
                            tsr_command_request *out, tsr_error *err)
{
    tsr_convert_options casts;
    *out = (tsr_command_request){tsr_command_find(reshards ? TSR_STR("reshard") : TSR_STR("convert")), *options};
    tsr_command_options *o = &out->options;
    o->target = o->mesh = o->placements = NULL;
    TSR_TRY(tsr_options_fit(tsr_command_find(TSR_STR("plan")), o, out->command, err));
    o->storage = NULL;
    if (reshards && !o->to) o->to = 1 + (unsigned)tsr_container_for(tsr_checkpoint_catalog(checkpoint)->format);
    TSR_TRY(tsr_conversion_options(options, o->to ? (tsr_container)(o->to - 1) : TSR_TO_DCP, arena, &casts, err));
    return tsr_check_casts(checkpoint, &casts, err);
}
