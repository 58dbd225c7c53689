/* See metadata.h. */
#include "formats/common/metadata.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct common {
    tsr_text_pair pair; /* as the first list with this key has it */
    uint32_t lists;     /* that have the key */
    bool differs;       /* their values are not all equal */
} common;

static tsr_status add_pair(tsr_vec *found, tsr_map *numbers, const tsr_text_pair *pair, tsr_error *err)
{
    uint32_t *number;
    bool inserted;
    TSR_TRY(tsr_map_put(numbers, pair->key, (uint32_t)found->count, &number, &inserted, err));
    common *item = inserted ? tsr_vec_push(found, err) : (common *)found->items + *number;
    if (!item) return TSR_E_NOMEM;
    if (inserted) item->pair = *pair;
    item->lists++;
    item->differs = item->differs || !tsr_str_equal(item->pair.value, pair->value);
    return TSR_OK;
}

static tsr_status settle(tsr_checkpoint *checkpoint, const tsr_vec *found, uint32_t count, const char *what, tsr_error *err)
{
    const common *items = found->items;
    tsr_text_pair *kept = tsr_arena_array(checkpoint->arena, found->count, sizeof *kept, err);
    tsr_str *differing = tsr_arena_array(checkpoint->arena, found->count, sizeof *differing, err);
    size_t used = 0, left = 0;
    if (!kept || !differing) return TSR_E_NOMEM;
    for (size_t i = 0; i < found->count; i++) {
        if (items[i].lists == count && !items[i].differs) {
            kept[used++] = items[i].pair;
            continue;
        }
        differing[left++] = items[i].pair.key;
        TSR_TRY(tsr_finding_add(checkpoint->findings, "safetensors/metadata-differs", TSR_NOWHERE, err,
                                "the key '%.*s' of __metadata__ %s the %s", TSR_STR_ARG(items[i].pair.key),
                                items[i].differs ? "has different values in" : "is not in all of", what));
    }
    checkpoint->catalog.metadata = kept;
    checkpoint->catalog.metadata_count = used;
    checkpoint->catalog.differing_keys = differing;
    checkpoint->catalog.differing_count = left;
    return TSR_OK;
}

bool tsr_text_pairs_equal(tsr_text_pairs a, tsr_text_pairs b)
{
    bool equal = a.count == b.count;
    for (size_t i = 0; equal && i < a.count; i++)
        equal = tsr_str_equal(a.pairs[i].key, b.pairs[i].key) && tsr_str_equal(a.pairs[i].value, b.pairs[i].value);
    return equal;
}

tsr_status tsr_metadata_join(tsr_checkpoint *checkpoint, const tsr_text_pairs *lists, uint32_t count, const char *what,
                             tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_vec found = tsr_vec_of(allocator, sizeof(common));
    tsr_map *numbers = tsr_map_new(allocator, 0, err);
    tsr_status status = numbers ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t l = 0; l < count; l++)
        for (size_t i = 0; i < lists[l].count && status == TSR_OK; i++)
            status = add_pair(&found, numbers, &lists[l].pairs[i], err);
    if (status == TSR_OK) status = settle(checkpoint, &found, count, what, err);
    tsr_map_free(numbers);
    tsr_vec_free(&found);
    return status;
}
