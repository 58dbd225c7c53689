/* Decides which files DEST will consist of. */
#include "cli/writing/writing.h"

#include <sys/stat.h>

#include "tessera/sys/path_store.h"

bool cli_container_of_name(const char *path, tsr_container *out)
{
    static const struct {
        const char *suffix;
        tsr_container to;
    } suffixes[] = {
        {".safetensors", TSR_TO_SAFETENSORS}, {".pt", TSR_TO_TORCH}, {".pth", TSR_TO_TORCH}, {".bin", TSR_TO_TORCH}};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (!tsr_str_ends(tsr_str_from(path), tsr_str_from(suffixes[i].suffix))) continue;
        *out = suffixes[i].to;
        return true;
    }
    return false;
}

static bool ends_in_slash(const char *path)
{
    return tsr_str_ends(tsr_str_from(path), TSR_STR("/"));
}

/* --max-shard-size means safetensors where the extension of DEST does not mean anything else. */
static tsr_status infer(cli_writing *w, uint64_t max_shard_size, tsr_error *err)
{
    w->to = TSR_TO_SAFETENSORS;
    if (!cli_container_of_name(w->destination, &w->to) && !max_shard_size)
        return tsr_raise(
            err, TSR_E_USAGE, TSR_NO_POSITION,
            "cannot infer the output format from '%s'; pass --to safetensors, torch, dcp, megatron-dist, deepspeed-universal or ranks",
            w->destination);
    return TSR_OK;
}

tsr_status cli_choose_container(cli_writing *w, unsigned to, uint64_t max_shard_size, tsr_error *err)
{
    const tsr_status status = to ? TSR_OK : infer(w, max_shard_size, err);
    if (status != TSR_OK) return status;
    if (to) w->to = (tsr_container)(to - 1);
    if (max_shard_size && w->to != TSR_TO_SAFETENSORS)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--max-shard-size can only be used with --to safetensors");
    if (w->to == TSR_TO_DEEPSPEED_UNIVERSAL && w->options->overwrite)
        return tsr_raise(
            err, TSR_E_USAGE, TSR_NO_POSITION,
            "--overwrite cannot be used with --to deepspeed-universal, which only writes a new directory; remove '%s' first if it exists",
            w->destination);
    w->max_shard_size = max_shard_size;
    w->marker = w->max_shard_size ? TSR_INDEX_MARKER : tsr_marker_of(w->to);
    w->is_folder = w->marker || w->to == TSR_TO_DEEPSPEED_UNIVERSAL || w->to == TSR_TO_RANKS;
    if (!w->is_folder && ends_in_slash(w->destination)) {
        w->file_name = tsr_str_from(tsr_file_of(w->to));
        w->is_folder = true;
    }
    return TSR_OK;
}

/* A checkpoint with parts becomes a directory of safetensors files, one per part, unless DEST is the name of one file. */
void cli_choose_parts(cli_writing *w)
{
    const bool one_file = tsr_str_ends(tsr_str_from(w->destination), TSR_STR(".safetensors"));
    if (w->to != TSR_TO_SAFETENSORS || w->max_shard_size || one_file || !w->source.catalog->part_count) return;
    w->per_part = w->is_folder = true;
    w->file_name = (tsr_str){NULL, 0};
}

tsr_status cli_place_file(const char *destination, tsr_str name, tsr_arena *arena, cli_file_place *out, tsr_error *err)
{
    struct stat info;
    *out = (cli_file_place){destination, TSR_STR("")};
    if (!ends_in_slash(destination)) return TSR_OK;
    if (!tsr_is_url(destination) && stat(destination, &info) != 0) {
        out->name = name;
        return TSR_OK;
    }
    out->path = tsr_arena_format(arena, err, "%s%.*s", destination, TSR_STR_ARG(name)).data;
    return out->path ? TSR_OK : TSR_E_NOMEM;
}
