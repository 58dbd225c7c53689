/* Ranks compare what they must have in common: first digests, and the whole texts only if the digests differ.
 *
 *   an item:  | order size u64 | order | path size u64 | path | words size u64 | words | */
#include <inttypes.h>

#include "live/tensor/state_dict.h"
#include "tessera/sys/map.h"
#include "tessera/sys/vec.h"

typedef struct item {
    tsr_str order, path, words;
} item;

static tsr_status add_text(tsr_agreement *agreement, tsr_str text, tsr_error *err)
{
    const uint64_t size = text.size;
    TSR_TRY(tsr_vec_reserve(&agreement->bytes, sizeof size + text.size, err));
    char *to = (char *)agreement->bytes.items + agreement->bytes.count;
    memcpy(to, &size, sizeof size);
    if (text.size) memcpy(to + sizeof size, text.data, text.size);
    agreement->bytes.count += sizeof size + text.size;
    return TSR_OK;
}

tsr_status tsr_agreement_add(tsr_agreement *agreement, tsr_str order, tsr_str path, tsr_str words, tsr_error *err)
{
    TSR_TRY(add_text(agreement, order, err));
    TSR_TRY(add_text(agreement, path, err));
    return add_text(agreement, words, err);
}

tsr_status tsr_agreement_add_leaves(tsr_agreement *agreement, const char *kind, const tsr_leaves *leaves, tsr_error *err)
{
    for (size_t i = 0; i < leaves->count; i++) {
        const tsr_leaf_at *leaf = &leaves->items[i];
        char *room = tsr_arena_array(agreement->arena, strlen(kind) + leaf->order.size, 1, err);
        const tsr_str path = tsr_arena_format(agreement->arena, err, "%s'%.*s'", kind, TSR_STR_ARG(leaf->path));
        const tsr_str words = leaf->tensor                          ? tsr_tensor_words(leaf->tensor, agreement->arena, err)
                              : leaf->value->kind == TSR_VALUE_NONE ? TSR_STR("None")
                                                                    : TSR_STR("no tensor");
        if (!room || !path.data || !words.data) return TSR_E_NOMEM;
        memcpy(room, kind, strlen(kind));
        if (leaf->order.size) memcpy(room + strlen(kind), leaf->order.data, leaf->order.size);
        TSR_TRY(tsr_agreement_add(agreement, (tsr_str){room, strlen(kind) + leaf->order.size}, path, words, err));
    }
    return TSR_OK;
}

static bool next_item(tsr_str *blob, item *out)
{
    return tsr_take_sized(blob, &out->order) && tsr_take_sized(blob, &out->path) && tsr_take_sized(blob, &out->words);
}

/* Finds the first item in which two ranks differ, and returns it as each of them has it. words.data is NULL if a rank lacks
 * it. */
static bool first_difference(tsr_str a, tsr_str b, item *x, item *y)
{
    for (;;) {
        const bool has_a = next_item(&a, x), has_b = next_item(&b, y);
        if (!has_a && !has_b) return false;
        const int order = !has_a ? 1 : !has_b ? -1 : tsr_str_compare(x->order, y->order);
        if (order == 0 && tsr_str_equal(x->words, y->words)) continue;
        if (order < 0) *y = (item){x->order, x->path, {NULL, 0}};
        if (order > 0) *x = (item){y->order, y->path, {NULL, 0}};
        return true;
    }
}

static tsr_status raise_difference(const tsr_comm_blobs *blobs, tsr_error *err)
{
    item mine = {0}, theirs = {0}, x, y;
    uint32_t rank = 0;
    for (uint32_t r = 1; r < blobs->count; r++) {
        if (!first_difference(blobs->blobs[0], blobs->blobs[r], &x, &y)) continue;
        if (rank && tsr_str_compare(x.order, mine.order) >= 0) continue;
        mine = x;
        theirs = y;
        rank = r;
    }
    if (!rank) return TSR_OK; /* cannot happen: equal texts have equal digests */
    const tsr_str none = TSR_STR("missing");
    const tsr_str a = mine.words.data ? mine.words : none, b = theirs.words.data ? theirs.words : none;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "ranks 0 and %" PRIu32 " differ: %.*s is %.*s on rank 0, but %.*s on rank %" PRIu32, rank,
                     TSR_STR_ARG(mine.path), TSR_STR_ARG(a), TSR_STR_ARG(b), rank);
}

static tsr_status compare_in_full(tsr_comm *comm, tsr_str mine, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_comm_blobs blobs = {0};
    TSR_TRY(tsr_comm_gather_blobs((tsr_ranks){comm, allocator}, mine, &blobs, err));
    const tsr_status status = raise_difference(&blobs, err);
    tsr_comm_blobs_free(&blobs);
    return status;
}

/* Whether all ranks have the same digest. Compares the largest digest with the largest complement, which needs no memory for
 * the digests of all ranks. */
static tsr_status all_equal(tsr_comm *comm, uint64_t digest, bool *equal, tsr_error *err)
{
    uint64_t most = digest, least = ~digest;
    TSR_TRY(comm->largest(comm, &most, err));
    TSR_TRY(comm->largest(comm, &least, err));
    *equal = *equal && most == ~least;
    return TSR_OK;
}

tsr_status tsr_agreement_check(tsr_agreement *agreement, tsr_comm *comm, tsr_status mine, const tsr_allocator *allocator,
                               tsr_error *err)
{
    const tsr_str text = {agreement->bytes.items, agreement->bytes.count};
    bool equal = true;
    tsr_status status = tsr_comm_agree(comm, mine, err);
    for (uint64_t seed = 1; status == TSR_OK && seed <= 2; seed++)
        status = all_equal(comm, tsr_hash_bytes(text.data, text.size, seed), &equal, err);
    if (status == TSR_OK && !equal) status = compare_in_full(comm, text, allocator, err);
    tsr_vec_free(&agreement->bytes);
    return status;
}
