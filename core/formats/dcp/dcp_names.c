/* Open addressing with linear probing over name numbers; at most half of the slots are taken. */
#include "formats/dcp/dcp_state.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#define MOST_NAMES (1u << 28)

tsr_dcp_names tsr_dcp_names_of(const tsr_allocator *allocator, uint64_t room)
{
    return (tsr_dcp_names){
        .list = tsr_vec_of(allocator, sizeof(tsr_dcp_name)), .slots = tsr_vec_of(allocator, sizeof(uint32_t)), .room = room};
}

void tsr_dcp_names_free(tsr_dcp_names *names)
{
    if (!names->list.allocator) return;
    tsr_vec_free(&names->list);
    tsr_vec_free(&names->slots);
    names->last = 0;
}

static tsr_status rehash(tsr_dcp_names *names, tsr_error *err)
{
    const tsr_dcp_name *list = names->list.items;
    size_t wanted = names->slots.count ? 2 * names->slots.count : 64;
    tsr_vec slots = tsr_vec_of(names->slots.allocator, sizeof(uint32_t));
    TSR_TRY(tsr_vec_reserve(&slots, wanted, err));
    uint32_t *table = slots.items;
    memset(table, 0, wanted * sizeof *table);
    slots.count = wanted;
    for (uint32_t i = 0; i < names->list.count; i++) {
        size_t slot = list[i].hash & (wanted - 1);
        while (table[slot]) slot = (slot + 1) & (wanted - 1);
        table[slot] = i + 1;
    }
    tsr_vec_free(&names->slots);
    names->slots = slots;
    return TSR_OK;
}

/* The texts are usually the same bytes of the input, fetched from the pickle's memo, so that comparing the pointers saves
 * comparing long names. */
static bool same_text(tsr_str a, tsr_str b)
{
    return a.size == b.size && (a.data == b.data || tsr_str_equal(a, b));
}

static tsr_status look_up(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err)
{
    if (2 * (names->list.count + 1) > names->slots.count) TSR_TRY(rehash(names, err));
    TSR_FAIL_IF(text.size > names->room, err, TSR_E_LIMIT,
                "dcp: long names are repeated so often that reading them would exceed the limit for shared parts");
    names->room -= text.size;
    const tsr_dcp_name *list = names->list.items;
    uint32_t *table = names->slots.items, hash = (uint32_t)tsr_hash_bytes(text.data, text.size, (uintptr_t)names);
    size_t mask = names->slots.count - 1, slot = hash & mask;
    for (; table[slot]; slot = (slot + 1) & mask) {
        *number = table[slot] - 1;
        if (list[*number].hash == hash && same_text(list[*number].text, text)) return TSR_OK;
    }
    TSR_FAIL_IF(names->list.count >= MOST_NAMES, err, TSR_E_LIMIT, "dcp: more than %u names", MOST_NAMES);
    tsr_dcp_name *added = tsr_vec_push(&names->list, err);
    if (!added) return TSR_E_NOMEM;
    *added = (tsr_dcp_name){text, 0, hash};
    *number = (uint32_t)names->list.count - 1;
    table[slot] = *number + 1;
    return TSR_OK;
}

tsr_status tsr_dcp_names_add(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err)
{
    tsr_dcp_name *list = names->list.items;
    if (names->list.count) {
        *number = list[names->last].follower;
        if (!same_text(list[*number].text, text)) TSR_TRY(look_up(names, text, number, err));
        list = names->list.items;
        list[names->last].follower = *number;
    } else {
        TSR_TRY(look_up(names, text, number, err));
    }
    names->last = *number;
    return TSR_OK;
}
