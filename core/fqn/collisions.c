/* Finds FQNs that several raw names share. Saving all of these names would lose all but one. */
#include "tessera/fqn.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/canonical_names.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

typedef struct slot {
    tsr_str fqn;
    size_t count;    /* names that have this FQN */
    uint32_t last;   /* the last of those names */
    uint32_t *names; /* in the arena; filled by the second walk */
} slot;

typedef struct search {
    const tsr_name *names;
    size_t count;
    tsr_map *raws;   /* raw name → its first index */
    tsr_map *by_fqn; /* FQN → slot */
    tsr_vec slots;
} search;

#define NOBODY UINT32_MAX

/* Counts the names of every FQN, each raw name once. With `fill`, also stores them. */
static tsr_status walk(search *s, bool fill, tsr_error *err)
{
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t *first;
        TSR_TRY(tsr_map_put(s->raws, s->names[i].raw, i, &first, NULL, err));
        if (*first != i) continue;
        for (size_t f = 0; f < s->names[i].fqn_count; f++) {
            uint32_t *at;
            bool fresh;
            TSR_TRY(tsr_map_put(s->by_fqn, s->names[i].fqns[f], (uint32_t)s->slots.count, &at, &fresh, err));
            slot *one = fresh ? tsr_vec_push(&s->slots, err) : (slot *)s->slots.items + *at;
            if (!one) return TSR_E_NOMEM;
            if (fresh) *one = (slot){s->names[i].fqns[f], 0, NOBODY, NULL};
            if (one->last == i) continue;
            if (fill && one->names) one->names[one->count] = i;
            one->count++;
            one->last = i;
        }
    }
    return TSR_OK;
}

static tsr_status collect(search *s, tsr_arena *arena, tsr_collision **out, size_t *out_count, tsr_error *err)
{
    TSR_TRY(walk(s, false, err));
    slot *slots = s->slots.items;
    *out_count = 0;
    for (size_t i = 0; i < s->slots.count; i++) *out_count += slots[i].count > 1;
    *out = tsr_arena_array(arena, *out_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0, at = 0; i < s->slots.count; i++) {
        if (slots[i].count > 1) {
            slots[i].names = tsr_arena_array(arena, slots[i].count, sizeof *slots[i].names, err);
            if (!slots[i].names) return TSR_E_NOMEM;
            (*out)[at++] = (tsr_collision){slots[i].fqn, slots[i].names, slots[i].count};
        }
        slots[i].count = 0;
        slots[i].last = NOBODY;
    }
    return *out_count ? walk(s, true, err) : TSR_OK;
}

tsr_status tsr_fqn_collisions(const tsr_name *names, size_t count, tsr_arena *arena, tsr_collision **out, size_t *out_count,
                              tsr_error *err)
{
    const tsr_allocator *allocator = tsr_arena_allocator(arena);
    search s = {names, count, tsr_map_new(allocator, count, err), tsr_map_new(allocator, count, err),
                tsr_vec_of(allocator, sizeof(slot))};
    tsr_status status = s.raws && s.by_fqn ? collect(&s, arena, out, out_count, err) : TSR_E_NOMEM;
    tsr_vec_free(&s.slots);
    tsr_map_free(s.by_fqn);
    tsr_map_free(s.raws);
    return status;
}
