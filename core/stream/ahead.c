/* See ahead.h. */
#include "stream/ahead.h"

#include "formats/common/reader.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/box.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

#define MOST_KEPT 8192u /* in chunks; they take less than 2 MiB */
enum { PREFETCHED_AT_ONCE = 32, WHOLE_ARCHIVE = 64 << 10, TAIL_OF_ARCHIVE = 16 << 10 };

typedef struct place {
    const tsr_chunk *chunk; /* the key */
    const tsr_entry *entry;
    bool is_found;
    tsr_found found;
    uint64_t *strides; /* place for the strides of the entry's dims */
} place;

struct tsr_ahead {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    tsr_map *by_chunk; /* chunk → index in `places` */
    tsr_vec places;    /* of place * */
    size_t sought;     /* how many of them have been looked for */
};

static tsr_str key_of(const tsr_chunk *const *chunk)
{
    return (tsr_str){(const char *)chunk, sizeof *chunk};
}

static place *place_at(const tsr_ahead *ahead, size_t i)
{
    return ((place **)ahead->places.items)[i];
}

static tsr_status clear(tsr_ahead *ahead, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(ahead->checkpoint)->allocator;
    tsr_arena_free(ahead->arena);
    tsr_map_free(ahead->by_chunk);
    ahead->places.count = ahead->sought = 0;
    ahead->by_chunk = NULL; /* in case there is no memory for a new one */
    ahead->arena = tsr_arena_new(allocator, 0, err);
    if (ahead->arena) ahead->by_chunk = tsr_map_new(allocator, 0, err);
    return ahead->by_chunk ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ahead_make_room(tsr_ahead *ahead, tsr_error *err)
{
    return ahead && ahead->places.count >= MOST_KEPT ? clear(ahead, err) : TSR_OK;
}

tsr_status tsr_ahead_new(tsr_checkpoint *checkpoint, tsr_ahead **out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    *out = NULL;
    if (!checkpoint->reader->find) return TSR_OK;
    tsr_ahead *ahead = tsr_alloc(allocator, 1, sizeof *ahead, err);
    if (!ahead) return TSR_E_NOMEM;
    *ahead = (tsr_ahead){.checkpoint = checkpoint, .places = tsr_vec_of(allocator, sizeof(place *))};
    if (clear(ahead, err) != TSR_OK) {
        tsr_ahead_free(ahead);
        return TSR_E_NOMEM;
    }
    *out = ahead;
    return TSR_OK;
}

void tsr_ahead_free(tsr_ahead *ahead)
{
    if (!ahead) return;
    tsr_vec_free(&ahead->places);
    tsr_map_free(ahead->by_chunk);
    tsr_arena_free(ahead->arena);
    tsr_free(tsr_checkpoint_host(ahead->checkpoint)->allocator, ahead, 1, sizeof *ahead);
}

tsr_status tsr_ahead_want_chunk(tsr_ahead *ahead, const tsr_entry *entry, const tsr_chunk *chunk, tsr_error *err)
{
    if (tsr_map_get(ahead->by_chunk, key_of(&chunk), UINT32_MAX) != UINT32_MAX) return TSR_OK;
    place *own = TSR_ARENA_NEW(ahead->arena, place, err);
    place **slot = own ? tsr_vec_push(&ahead->places, err) : NULL;
    if (!slot) return TSR_E_NOMEM;
    *own = (place){.chunk = chunk, .entry = entry};
    *slot = own;
    own->strides = tsr_arena_array(ahead->arena, entry->ndim ? entry->ndim : 1, sizeof *own->strides, err);
    if (!own->strides) return TSR_E_NOMEM;
    return tsr_map_put(ahead->by_chunk, key_of(&own->chunk), (uint32_t)(ahead->places.count - 1), NULL, NULL, err);
}

tsr_status tsr_ahead_want(tsr_ahead *ahead, const tsr_entry *entry, const tsr_box *box, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    if (!ahead || entry->kind != TSR_ENTRY_TENSOR || entry->ndim > TSR_MAX_NDIM) return TSR_OK;
    if (!tsr_catalog_has(tsr_checkpoint_catalog(ahead->checkpoint), entry)) return TSR_OK;
    const bool by_box = box && box->ndim == entry->ndim;
    for (uint64_t i = 0; i < entry->chunk_count && ahead->places.count < MOST_KEPT; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        const tsr_box own = {entry->ndim, chunk->offsets, chunk->sizes};
        const bool is_there = chunk->file < tsr_checkpoint_store(ahead->checkpoint)->file_count && chunk->byte_length;
        if (chunk->view || !is_there || (by_box && !tsr_box_intersect(own, *box, offsets, sizes))) continue;
        TSR_TRY(tsr_ahead_want_chunk(ahead, entry, chunk, err));
    }
    return TSR_OK;
}

/* Finds one chunk. Called by tsr_parallel. */
static void seek_one(void *arg, size_t index)
{
    const tsr_ahead *ahead = arg;
    place *p = place_at(ahead, ahead->sought + index);
    tsr_error why = {0};
    tsr_arena *scratch = tsr_arena_new(tsr_checkpoint_host(ahead->checkpoint)->allocator, 0, &why);
    if (!scratch) return;
    p->is_found = tsr_checkpoint_find(ahead->checkpoint, p->entry, p->chunk, scratch, &p->found, &why) == TSR_OK;
    if (p->is_found && p->found.view.strides) {
        memcpy(p->strides, p->found.view.strides, p->entry->ndim * sizeof *p->strides);
        p->found.view.strides = p->strides;
    }
    tsr_arena_free(scratch);
}

/* To find a tensor in a DCP item, both ends of the item are read (codec/zip.c). This tells a store that fetches ahead about
 * the ends of the next `count` chunks, at most PREFETCHED_AT_ONCE. */
static void prefetch_ends(const tsr_ahead *ahead, size_t count)
{
    tsr_store *store = tsr_checkpoint_store(ahead->checkpoint);
    tsr_store_place places[2 * PREFETCHED_AT_ONCE];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_chunk *c = place_at(ahead, ahead->sought + i)->chunk;
        const bool is_small = c->byte_length <= WHOLE_ARCHIVE;
        places[used++] = (tsr_store_place){c->file, c->byte_offset, is_small ? c->byte_length : 1};
        if (!is_small)
            places[used++] = (tsr_store_place){c->file, c->byte_offset + c->byte_length - TAIL_OF_ARCHIVE, TAIL_OF_ARCHIVE};
    }
    if (used > 1) store->prefetch(store, places, used);
}

void tsr_ahead_seek(tsr_ahead *ahead)
{
    if (!ahead) return;
    const bool fetches = tsr_checkpoint_store(ahead->checkpoint)->prefetch;
    for (size_t count; (count = tsr_ahead_waiting(ahead)) > 0; ahead->sought += count) {
        if (fetches && count > PREFETCHED_AT_ONCE) count = PREFETCHED_AT_ONCE;
        if (fetches) prefetch_ends(ahead, count);
        tsr_parallel(tsr_checkpoint_host(ahead->checkpoint), count, seek_one, ahead);
    }
}

size_t tsr_ahead_waiting(const tsr_ahead *ahead)
{
    return ahead ? ahead->places.count - ahead->sought : 0;
}

const tsr_found *tsr_ahead_find(const tsr_ahead *ahead, const tsr_chunk *chunk)
{
    const uint32_t i = ahead ? tsr_map_get(ahead->by_chunk, key_of(&chunk), UINT32_MAX) : UINT32_MAX;
    return i < (ahead ? ahead->sought : 0) && place_at(ahead, i)->is_found ? &place_at(ahead, i)->found : NULL;
}
