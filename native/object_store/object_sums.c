/* See service.h. */
#include "object_store/service.h"

#include <pthread.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* Bytes that have arrived, with their checksum. */
typedef struct piece {
    uint64_t begin, end;
    uint64_t sum;
} piece;

typedef struct object_sum {
    tsr_vec pieces; /* sorted; neighbours are joined */
} object_sum;

struct tsr_object_sums {
    const tsr_allocator *allocator;
    pthread_mutex_t lock;
    tsr_vec objects; /* of object_sum, those that have arrived in part */
    tsr_map *places; /* by key, the place in `objects` */
};

tsr_status tsr_object_sums_new(const tsr_allocator *allocator, tsr_object_sums **out, tsr_error *err)
{
    tsr_object_sums *sums = tsr_alloc(allocator, 1, sizeof *sums, err);
    if (!sums) return TSR_E_NOMEM;
    *sums = (tsr_object_sums){.allocator = allocator, .objects = tsr_vec_of(allocator, sizeof(object_sum))};
    pthread_mutex_init(&sums->lock, NULL);
    sums->places = tsr_map_new(allocator, 0, err);
    *out = sums;
    return sums->places ? TSR_OK : TSR_E_NOMEM;
}

void tsr_object_sums_free(tsr_object_sums *sums)
{
    if (!sums) return;
    object_sum *objects = sums->objects.items;
    for (size_t i = 0; i < sums->objects.count; i++) tsr_vec_free(&objects[i].pieces);
    tsr_vec_free(&sums->objects);
    tsr_map_free(sums->places);
    pthread_mutex_destroy(&sums->lock);
    tsr_free(sums->allocator, sums, 1, sizeof *sums);
}

static object_sum *find(tsr_object_sums *sums, const tsr_object *object, tsr_error *err)
{
    uint32_t at = tsr_map_get(sums->places, object->key, UINT32_MAX);
    if (at == UINT32_MAX) {
        at = (uint32_t)sums->objects.count;
        object_sum *added = tsr_vec_push(&sums->objects, err);
        if (!added) return NULL;
        *added = (object_sum){tsr_vec_of(sums->allocator, sizeof(piece))};
        if (tsr_map_put(sums->places, object->key, at, NULL, NULL, err) != TSR_OK) return NULL;
    }
    return (object_sum *)sums->objects.items + at;
}

/* Joins the piece at `i` with the next one if that begins where it ends. */
static void join(tsr_vec *pieces, tsr_checksum_kind kind, size_t i)
{
    piece *p = (piece *)pieces->items + i;
    if (i + 1 >= pieces->count || p[0].end != p[1].begin) return;
    p[0].sum = tsr_checksum_join(kind, p[0].sum, p[1].sum, p[1].end - p[1].begin);
    p[0].end = p[1].end;
    pieces->count--;
    memmove(p + 1, p + 2, (pieces->count - i - 1) * sizeof *p);
}

/* Puts a piece before the one at `i`, and returns the place of what it became. */
static tsr_status insert(tsr_vec *pieces, tsr_checksum_kind kind, size_t *i, piece added, tsr_error *err)
{
    if (!tsr_vec_push(pieces, err)) return TSR_E_NOMEM;
    piece *p = (piece *)pieces->items + *i;
    memmove(p + 1, p, (pieces->count - *i - 1) * sizeof *p);
    *p = added;
    join(pieces, kind, *i);
    if (*i > 0) {
        const size_t count = pieces->count;
        join(pieces, kind, *i - 1);
        *i -= pieces->count < count;
    }
    return TSR_OK;
}

static tsr_status add(object_sum *one, const tsr_arrived *bytes, tsr_error *err)
{
    const uint64_t end = bytes->offset + bytes->size;
    size_t i = 0;
    for (uint64_t at = bytes->offset; at < end;) {
        const piece *p = (const piece *)one->pieces.items + i;
        if (i < one->pieces.count && p->end <= at) {
            i++;
        } else if (i < one->pieces.count && p->begin <= at) {
            at = p->end;
        } else {
            const uint64_t until = i < one->pieces.count && p->begin < end ? p->begin : end;
            const uint8_t *data = (const uint8_t *)bytes->data + (at - bytes->offset);
            const piece added = {at, until, tsr_checksum_of(bytes->kind, data, (size_t)(until - at))};
            TSR_TRY(insert(&one->pieces, bytes->kind, &i, added, err));
        }
    }
    return TSR_OK;
}

tsr_status tsr_object_sums_add(tsr_object_sums *sums, const tsr_arrived *bytes, bool *whole, char sum[TSR_CHECKSUM_TEXT],
                               tsr_error *err)
{
    const uint64_t size = bytes->object->size;
    pthread_mutex_lock(&sums->lock);
    object_sum *one = find(sums, bytes->object, err);
    const piece *first = one ? one->pieces.items : NULL;
    const bool was_whole = one && one->pieces.count && first->begin == 0 && first->end == size;
    const tsr_status status = !one ? TSR_E_NOMEM : was_whole ? TSR_OK : add(one, bytes, err);
    first = one ? one->pieces.items : NULL;
    *whole = status == TSR_OK && !was_whole && one->pieces.count && first->begin == 0 && first->end == size;
    if (*whole) tsr_checksum_spell(bytes->kind, first->sum, sum);
    pthread_mutex_unlock(&sums->lock);
    return status;
}
