/* See shards_rules.h. */
#include "formats/shards/shards_rules.h"

#include "tessera/glob.h"
#include "tessera/sys/try.h"

tsr_status tsr_shards_choose_rule(const tsr_shards *map, const tsr_shards_settings *settings, const tsr_shards_held *held,
                                  tsr_shards_choice *out, tsr_error *err)
{
    *out = (tsr_shards_choice){.equal_is_enough = !map->family};
    if (map->family) return map->family->choose(settings, held, out, err);
    for (uint32_t i = 0; i < map->rule_count && !out->known; i++) {
        out->known = tsr_glob_match(map->rules[i].match, held->fqn);
        if (out->known) out->rule = map->rules[i];
    }
    return TSR_OK;
}
