/* A ribbon filter takes a tenth of the bytes of a list, and three quarters of a Bloom filter's, which gzip cannot make smaller
 * (Dillinger and Walzer, "Ribbon filter: practically smaller than Bloom and Xor", 2021). It holds the solution of a system of
 * linear equations over bits: for each name that exists, the exclusive or of the rows that the name's hash selects is a number
 * that the hash gives as well. Other names have that number by chance only. */
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

static uint64_t mix(uint64_t x)
{
    for (int i = 0; i < 2; i++) x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static uint32_t filter_row(uint32_t index)
{
    const uint32_t bit = ROW_BITS * index; /* even, so that a row lies in two bytes */
    return (uint32_t)(filter[bit / 8] | filter[bit / 8 + 1] << 8) >> bit % 8;
}

/* `core`: a module of numpy.core, which is numpy._core since numpy 2; it follows behind that name. */
static bool is_in_filter(tsr_str module, bool core, tsr_str name)
{
    const uint64_t package = fnv(UINT64_C(0xcbf29ce484222325), core ? TSR_STR("numpy._core.") : TSR_STR(""));
    const uint64_t selects = mix(fnv(fnv(fnv(package, module), TSR_STR(" ")), name) + SEED), gives = mix(selects);
    uint32_t row = (uint32_t)((gives >> 32) * (ROWS - 63) >> 32),
             sum = (uint32_t)gives; /* 64 rows from here may be selected */
    for (uint64_t left = selects | 1; left; left >>= 1, row++)
        if (left & 1) sum ^= filter_row(row);
    return (sum & ((1u << ROW_BITS) - 1)) == 0;
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
