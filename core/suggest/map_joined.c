/* Finds, by shapes alone, tensors that may be several tensors of the other checkpoint joined: gate and up, for example. Shapes
 * do not show the order of the parts, but the name of the whole may: "gate_up_proj". */
#include "suggest/map_suggest_parts.h"

uint64_t tsr_joined_size(const tsr_fused *f)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < f->count; i++) total += f->sizes[i];
    return total;
}

/* Adds the families that fit. Returns whether these, or some of them, may make up the whole. */
static bool collect(tsr_fused *f, const tsr_vec *parts)
{
    tsr_name_family *families = parts->items;
    for (size_t i = 0; i < parts->count && f->count < TSR_MOST_PARTS; i++) {
        if (!tsr_fused_fits(f, &families[i], tsr_fused_total(f))) continue;
        f->sizes[f->count] = tsr_fused_size(f, &families[i]);
        f->parts[f->count++] = &families[i];
    }
    return f->count > 1 && tsr_joined_size(f) >= tsr_fused_total(f);
}

static void exchange(tsr_fused *f, size_t *places, uint32_t i)
{
    tsr_name_family *part = f->parts[i];
    const uint64_t size = f->sizes[i];
    const size_t place = places[i];
    f->parts[i] = f->parts[i - 1], f->sizes[i] = f->sizes[i - 1], places[i] = places[i - 1];
    f->parts[i - 1] = part, f->sizes[i - 1] = size, places[i - 1] = place;
}

/* Puts the parts into the order in which the whole's name has their words. Returns whether it has all of them. */
static bool order(tsr_fused *f)
{
    size_t places[TSR_MOST_PARTS];
    for (uint32_t i = 0; i < f->count; i++) {
        places[i] = tsr_family_place(f->whole, f->parts, f->count, i);
        if (places[i] == SIZE_MAX) return false;
    }
    for (uint32_t n = 1; n < f->count; n++)
        for (uint32_t i = n; i && places[i] < places[i - 1]; i--) exchange(f, places, i);
    return true;
}

void tsr_joined_find(tsr_name_family *whole, const tsr_vec *parts, tsr_fused *out, unsigned *ways, bool *ordered)
{
    tsr_fused f;
    *ways = 0;
    for (unsigned way = 0; tsr_fused_way(whole, way, &f); way++) {
        if (!collect(&f, parts)) continue;
        if (!(*ways)++) *out = f;
    }
    *ordered = *ways == 1 && tsr_joined_size(out) == tsr_fused_total(out) && order(out);
}
