/* Recognizes what wrote a directory by the names of its files. */
#include "formats/recognize/directory_names.h"

#include <string.h>

tsr_str tsr_last_path_part(tsr_str path)
{
    size_t at = path.size;
    while (at > 0 && path.data[at - 1] != '/') at--;
    return (tsr_str){path.data + at, path.size - at};
}

bool tsr_name_holds(tsr_str text, tsr_str part)
{
    for (size_t at = 0; at + part.size <= text.size; at++) {
        const char *found = memchr(text.data + at, part.data[0], text.size - part.size - at + 1);
        if (!found) return false;
        at = (size_t)(found - text.data);
        if (memcmp(found, part.data, part.size) == 0) return true;
    }
    return false;
}

bool tsr_is_deeper(tsr_str path)
{
    const char *slash = memchr(path.data, '/', path.size);
    return slash && memchr(slash + 1, '/', path.size - (size_t)(slash + 1 - path.data));
}

/* Whether any path in the directory or directly below it satisfies `is`. Deeper paths are ignored, because only some stores
 * list them. */
static bool any_path(const tsr_store *store, bool (*is)(tsr_str path))
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str path = store->files[f].name;
        if (!tsr_is_deeper(path) && is(path)) return true;
    }
    return false;
}

static bool is_deepspeed(tsr_str path)
{
    tsr_str name = tsr_last_path_part(path);
    return tsr_str_starts(name, TSR_STR("zero_pp_rank_")) || tsr_name_holds(name, TSR_STR("_zero_pp_rank_")) ||
           (tsr_str_starts(name, TSR_STR("mp_rank_")) && tsr_str_ends(name, TSR_STR("_model_states.pt")));
}

static bool is_megatron(tsr_str path)
{
    tsr_str name = tsr_last_path_part(path);
    return tsr_str_equal(name, TSR_STR("latest_checkpointed_iteration.txt")) ||
           tsr_str_equal(name, TSR_STR("model_optim_rng.pt"));
}

/* Whether a file belongs to a DCP, complete or interrupted. */
static bool is_dcp(tsr_str path)
{
    return tsr_str_equal(tsr_last_path_part(path), TSR_STR(".metadata")) || tsr_str_ends(path, TSR_STR(".distcp"));
}

bool tsr_has_deepspeed_files(const tsr_store *store)
{
    return any_path(store, is_deepspeed);
}

/* Megatron-LM can also write DCP. */
bool tsr_has_training_files(const tsr_store *store)
{
    return any_path(store, is_deepspeed) || (any_path(store, is_megatron) && !any_path(store, is_dcp));
}

static bool is_dcp_below(tsr_str path)
{
    return tsr_str_ends(path, TSR_STR("/.metadata"));
}

bool tsr_has_dcp_below(const tsr_store *store)
{
    return any_path(store, is_dcp_below);
}
