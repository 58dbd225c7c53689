/* A Bloom filter takes a tenth of the bytes of a list. */
#include "formats/pickle/known_names.h"

#include "formats/pickle/name_filter.h"

static uint64_t fnv(uint64_t hash, tsr_str text)
{
    for (size_t i = 0; i < text.size; i++) hash = (hash ^ (unsigned char)text.data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static bool is_listed(tsr_str module, bool core)
{
    const tsr_str package = TSR_STR("numpy._core.");
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        tsr_str listed = tsr_str_from(modules[i]);
        if (core && !tsr_str_starts(listed, package)) continue;
        if (core) listed = (tsr_str){listed.data + package.size, listed.size - package.size};
        if (tsr_str_equal(module, listed)) return true;
    }
    return false;
}

/* `core`: a module of numpy.core, which is numpy._core since numpy 2; it follows behind that name. */
static bool is_in_filter(tsr_str module, bool core, tsr_str name)
{
    const uint32_t bits = 32 * (uint32_t)(sizeof filter / sizeof filter[0]);
    const uint64_t package = fnv(UINT64_C(0xcbf29ce484222325), core ? TSR_STR("numpy._core.") : TSR_STR(""));
    const uint64_t hash = fnv(fnv(fnv(package, module), TSR_STR(" ")), name);
    for (uint32_t i = 0; i < HASHES; i++) {
        uint32_t bit = ((uint32_t)hash + i * (uint32_t)(hash >> 32)) % bits;
        if (!(filter[bit / 32] >> bit % 32 & 1)) return false;
    }
    return true;
}

static bool is_below(tsr_str module, tsr_str package)
{
    return tsr_str_starts(module, package) && (module.size == package.size || module.data[package.size] == '.');
}

tsr_name_state tsr_name_state_of(tsr_str module, tsr_str name)
{
    tsr_str first = name;
    for (size_t i = 0; i < name.size && first.size == name.size; i++)
        if (name.data[i] == '.') first.size = i;
    if (tsr_str_equal(module, TSR_STR("torch.tensor"))) module = TSR_STR("torch._tensor"); /* as torch.load renames it */
    const tsr_str old = TSR_STR("numpy.core.");
    const bool core = tsr_str_starts(module, old);
    const tsr_str bare = core ? (tsr_str){module.data + old.size, module.size - old.size} : module;
    if (is_listed(bare, core)) {
        bool dunder = first.size > 4 && tsr_str_starts(first, TSR_STR("__")) && tsr_str_ends(first, TSR_STR("__"));
        return dunder || is_in_filter(bare, core, first) ? TSR_NAME_EXISTS : TSR_NAME_MISSING;
    }
    /* Python 2's modules, which Python 3 renames in pickles of its protocols only. */
    if (tsr_str_equal(module, TSR_STR("__builtin__")) || tsr_str_equal(module, TSR_STR("copy_reg"))) return TSR_NAME_MISSING;
    return is_below(module, TSR_STR("torch")) || is_below(module, TSR_STR("numpy")) ? TSR_NAME_UNCHECKED : TSR_NAME_FOREIGN;
}
