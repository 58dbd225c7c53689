/* Finds the built-in maps by name. */
#include "mapping/mapping_builtin.h"

#include "formats/common/shown_names.h"
#include "tessera/mapping.h"
#include "tessera/sys/mapping.h"

tsr_str tsr_mapping_builtin_name(size_t index)
{
    return index < tsr_builtin_map_count ? tsr_str_from(tsr_builtin_maps[index].name) : (tsr_str){NULL, 0};
}

tsr_status tsr_mapping_unknown(tsr_str name, tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    for (size_t i = 0; i < tsr_builtin_map_count; i++) tsr_shown_names_add(&names, tsr_mapping_builtin_name(i));
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--map '%.*s' is neither a file nor a built-in map (%s%s)",
                     TSR_STR_ARG(name), names.text, tsr_shown_names_rest(&names));
}

tsr_str tsr_mapping_builtin(tsr_str name)
{
    for (size_t i = 0; i < tsr_builtin_map_count; i++) {
        const struct tsr_builtin_map *map = &tsr_builtin_maps[i];
        if (tsr_str_equal(tsr_str_from(map->name), name)) return (tsr_str){(const char *)map->text, map->size};
    }
    return (tsr_str){NULL, 0};
}
