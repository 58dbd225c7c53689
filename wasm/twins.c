/* Finds tensors with equal bytes by their digests, in steps. Only tensors that have the same size as another one are
 * read. */
#include <stdlib.h>

#include "shim.h"
#include "tessera/check.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

typedef struct twin {
    uint32_t entry;
    uint64_t bytes;
    tsr_digest digest;
} twin;

typedef struct twins {
    opened *item;
    tsr_ring *ring;
    tsr_vec list; /* of twin: the candidates, largest first */
    size_t next;
} twins;

static void free_twins(void *pointer)
{
    twins *t = pointer;
    tsr_ring_free(t->ring);
    tsr_vec_free(&t->list);
    free(t);
}

static int by_size(const void *a, const void *b)
{
    const twin *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

static int by_digest(const void *a, const void *b)
{
    const twin *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    const int order = memcmp(x->digest.bytes, y->digest.bytes, x->digest.size);
    return order ? order : (x->entry > y->entry) - (x->entry < y->entry);
}

static bool same_bytes(const twin *a, const twin *b)
{
    return a->bytes == b->bytes && memcmp(a->digest.bytes, b->digest.bytes, a->digest.size) == 0;
}

/* Sets *yes to whether the tensor's elements repeat stored ones so often that reading it would practically never end. */
static tsr_status is_endless(twins *t, const tsr_entry *entry, bool *yes, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_repeats_open(&repeats, t->item->checkpoint);
    const tsr_status status = tsr_repeats_add(&repeats, entry, NULL, NULL, yes, err);
    tsr_repeats_close(&repeats);
    return status;
}

static tsr_status list_candidates(twins *t, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(t->item->checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        uint64_t bytes;
        bool endless = false;
        if (catalog->entries[i].kind != TSR_ENTRY_TENSOR || !tsr_entry_bytes(&catalog->entries[i], &bytes) || !bytes)
            continue;
        const bool large = bytes > t->item->host.limits.repetition;
        const tsr_status status = large ? is_endless(t, &catalog->entries[i], &endless, err) : TSR_OK;
        if (status != TSR_OK) return status;
        if (endless) continue;
        twin *add = tsr_vec_push(&t->list, err);
        if (!add) return TSR_E_NOMEM;
        *add = (twin){.entry = (uint32_t)i, .bytes = bytes};
    }
    twin *list = t->list.items;
    const size_t count = t->list.count;
    size_t kept = 0;
    if (!count) return TSR_OK;
    qsort(list, count, sizeof *list, by_size);
    bool before = false; /* the previous one has this size; its place may have been overwritten */
    for (size_t i = 0; i < count; i++) {
        const bool after = i + 1 < count && list[i].bytes == list[i + 1].bytes;
        if (before || after) list[kept++] = list[i];
        before = after;
    }
    t->list.count = kept;
    return TSR_OK;
}

TSR_EXPORT(tessera_twins) uint32_t tessera_twins(uint32_t handle, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    twins *t = item ? calloc(1, sizeof *t) : NULL;
    if (!t) {
        if (item) tsr_fail(err, TSR_E_NOMEM, "out of memory");
        return 0;
    }
    t->item = item;
    t->list = tsr_vec_of(item->host.allocator, sizeof(twin));
    if (tsr_ring_new(&item->host, 0, &t->ring, err) != TSR_OK || list_candidates(t, err) != TSR_OK) {
        free_twins(t);
        return 0;
    }
    return tessera_add_handle(HANDLE_TWINS, t, free_twins, handle, 0, err);
}

/* Reads the next candidate. Returns TESSERA_MORE or TESSERA_DONE. */
TSR_EXPORT(tessera_twins_step) uint32_t tessera_twins_step(uint32_t handle, tsr_error *err)
{
    twins *t = tessera_item_of(handle, HANDLE_TWINS, err);
    if (!t) return 0;
    twin *list = t->list.items;
    if (t->next < t->list.count) {
        const tsr_entry *entry = tessera_entry_of(t->item, list[t->next].entry, err);
        if (tsr_tensor_digest(t->item->checkpoint, entry, TSR_DIGEST_XXH3, t->ring, &list[t->next].digest, err) != TSR_OK)
            return 0;
        if (++t->next == t->list.count) qsort(list, t->list.count, sizeof *list, by_digest);
    }
    return t->next == t->list.count ? TESSERA_DONE : TESSERA_MORE;
}

static tsr_status write_twins(void *ctx, tsr_json *json, tsr_error *err)
{
    const twins *t = ctx;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(t->item->checkpoint);
    const twin *list = t->list.items;
    const size_t count = t->next == t->list.count ? t->list.count : 0;
    (void)err;
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.twins/1");
    tsr_json_put_array(json, "groups");
    for (size_t i = 0; i < count; i++) {
        const bool first = i == 0 || !same_bytes(&list[i - 1], &list[i]);
        const bool last = i + 1 == count || !same_bytes(&list[i], &list[i + 1]);
        if (first && last) continue;
        if (first) {
            tsr_json_object(json);
            tsr_json_put_uint(json, "bytes", list[i].bytes);
            tsr_json_put_array(json, "fqns");
        }
        tsr_json_str(json, catalog->entries[list[i].entry].fqn);
        if (!last) continue;
        tsr_json_array_end(json);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    return json->status;
}

/* Returns tessera.twins/1 after the last step: groups of tensors with equal bytes, largest first. */
TSR_EXPORT(tessera_twins_document) document *tessera_twins_document(uint32_t handle, tsr_error *err)
{
    twins *t = tessera_item_of(handle, HANDLE_TWINS, err);
    return t ? tessera_make_document(write_twins, t, err) : NULL;
}
