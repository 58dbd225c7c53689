/* See job_state.h. */
#include "publish/job_state.h"

#include <string.h>

#include "publish/text.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct kept_bytes {
    uint64_t offset, size;
    uint32_t file;
} kept_bytes;

static tsr_status create(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    tsr_ranked_output *o = (tsr_ranked_output *)base;
    char *added = tsr_vec_push(&o->written, err);
    if (!added) return TSR_E_NOMEM;
    *added = 0;
    return o->inner->create(o->inner, name, size, file, err);
}

/* Writes those of the bytes that belong to this rank's own files. */
static tsr_status write_own(tsr_ranked_output *o, const char *bytes, size_t size, tsr_error *err)
{
    const char *own = o->written.items;
    tsr_status status = TSR_OK;
    for (size_t at = 0; at < size && status == TSR_OK;) {
        kept_bytes head;
        memcpy(&head, bytes + at, sizeof head);
        at += sizeof head;
        if (own[head.file])
            status = o->inner->write_at(o->inner, head.file, head.offset, bytes + at, (size_t)head.size, err);
        at += (size_t)head.size;
    }
    return status;
}

/* One round: distributes what rank 0 has kept to all ranks. *size is 0 after the last round. A rank that cannot write still
 * takes part in the following rounds; *written is its own status. */
static tsr_status hand_out(tsr_ranked_output *o, size_t *size, tsr_status *written, tsr_error *err)
{
    const tsr_ranks ranks = {o->ranks, o->allocator};
    void *bytes = NULL;
    TSR_TRY(tsr_comm_broadcast_blob(ranks, (tsr_str){o->kept.items, o->kept.count}, 0, &bytes, size, err));
    o->kept.count = 0;
    if (*written == TSR_OK) *written = write_own(o, bytes, *size, err);
    tsr_free(o->allocator, bytes, *size, 1);
    return TSR_OK;
}

static tsr_status keep(tsr_ranked_output *o, kept_bytes head, const void *data, tsr_error *err)
{
    size_t size;
    tsr_status status = TSR_OK, written = TSR_OK;
    if (o->kept.count && o->kept.count + sizeof head + head.size > TSR_MOST_KEPT) status = hand_out(o, &size, &written, err);
    if (status == TSR_OK) status = written;
    if (status == TSR_OK) status = tsr_text_add(&o->kept, (tsr_str){(const char *)&head, sizeof head}, err);
    return status == TSR_OK ? tsr_text_add(&o->kept, (tsr_str){data, (size_t)head.size}, err) : status;
}

static tsr_status write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    tsr_ranked_output *o = (tsr_ranked_output *)base;
    if (o->keeps && file < o->count) return keep(o, (kept_bytes){offset, size, file}, data, err);
    if (file < o->written.count) __atomic_store_n((char *)o->written.items + file, 1, __ATOMIC_RELAXED);
    return o->inner->write_at(o->inner, file, offset, data, size, err);
}

static tsr_status sync(tsr_output *base, tsr_error *err)
{
    tsr_ranked_output *o = (tsr_ranked_output *)base;
    return o->inner->sync(o->inner, err);
}

void tsr_ranked_output_open(tsr_output *inner, tsr_comm *ranks, const tsr_allocator *allocator, tsr_ranked_output *out)
{
    *out =
        (tsr_ranked_output){.base = {.create = create, .write_at = write_at, .sync = sync, .generation = inner->generation},
                            .inner = inner,
                            .ranks = ranks,
                            .allocator = allocator,
                            .written = tsr_vec_of(allocator, 1),
                            .kept = tsr_vec_of(allocator, 1)};
}

void tsr_ranked_output_free(tsr_ranked_output *o)
{
    if (!o->inner) return;
    tsr_vec_free(&o->written);
    tsr_vec_free(&o->kept);
}

/* Sets `written` to 1 for the files that belong to this rank. */
static tsr_status divide(tsr_ranked_output *o, const tsr_comm_blobs *all, tsr_error *err)
{
    char *own = o->written.items;
    for (uint32_t f = 0; f < o->count; f++) {
        uint32_t writers = 0;
        for (uint32_t r = 0; r < all->count; r++) writers += all->blobs[r].size > f && all->blobs[r].data[f];
        if (writers > 1) return tsr_fail(err, TSR_E_USAGE, "file number %u was written by %u ranks", f, writers);
        if (!writers && o->ranks->rank == 0) own[f] = 1;
    }
    return TSR_OK;
}

tsr_status tsr_ranked_output_divide(tsr_ranked_output *o, tsr_error *err)
{
    tsr_comm_blobs all = {0};
    o->count = (uint32_t)o->written.count;
    tsr_status status =
        tsr_comm_gather_blobs((tsr_ranks){o->ranks, o->allocator}, (tsr_str){o->written.items, o->written.count}, &all, err);
    if (status == TSR_OK) status = divide(o, &all, err);
    tsr_comm_blobs_free(&all);
    o->keeps = true;
    return tsr_comm_agree(o->ranks, status, err);
}

tsr_status tsr_ranked_output_hand_out(tsr_ranked_output *o, tsr_status status, tsr_error *err)
{
    size_t size = 0;
    tsr_status round = TSR_OK;
    o->keeps = false;
    if (status != TSR_OK) o->kept.count = 0;
    do round = hand_out(o, &size, &status, err);
    while (round == TSR_OK && size);
    return round == TSR_OK ? tsr_comm_agree(o->ranks, status, err) : round;
}

/* Publishes the markers: first those of the other ranks, then those of rank 0. */
static tsr_status make_markers(tsr_ranked_output *o, uint32_t marker, tsr_error *err)
{
    const bool leads = o->ranks->rank == 0;
    const tsr_status status =
        tsr_comm_agree(o->ranks, leads ? TSR_OK : tsr_object_output_step(o->inner, TSR_OBJECT_MARKER, marker, err), err);
    if (status != TSR_OK) return status;
    return tsr_comm_agree(o->ranks, leads ? tsr_object_output_step(o->inner, TSR_OBJECT_MARKER, marker, err) : TSR_OK, err);
}

tsr_status tsr_ranked_output_publish(tsr_ranked_output *o, uint32_t marker, tsr_error *err)
{
    const bool leads = o->ranks->rank == 0;
    tsr_status status = o->ranks->broadcast(o->ranks, &marker, sizeof marker, 0, err);
    if (status != TSR_OK) return status;
    status = tsr_object_output_share(o->inner, o->written.items, o->count, leads, err);
    if (status == TSR_OK) status = tsr_object_output_step(o->inner, TSR_OBJECT_SEND, marker, err);
    status = tsr_comm_agree(o->ranks, status, err);
    if (status == TSR_OK)
        status =
            tsr_comm_agree(o->ranks, leads ? tsr_object_output_step(o->inner, TSR_OBJECT_CLEAR, marker, err) : TSR_OK, err);
    if (status == TSR_OK)
        status = tsr_comm_agree(o->ranks, tsr_object_output_step(o->inner, TSR_OBJECT_DATA, marker, err), err);
    if (status == TSR_OK) status = make_markers(o, marker, err);
    return status == TSR_OK ? tsr_comm_agree(o->ranks, tsr_object_output_step(o->inner, TSR_OBJECT_END, marker, err), err)
                            : status;
}

tsr_status tsr_ranked_output_resumed(tsr_ranked_output *o, tsr_object_resumed *out, tsr_error *err)
{
    const tsr_object_resumed own = tsr_object_output_resumed(o->inner);
    tsr_comm_blobs all = {0};
    const tsr_status status =
        tsr_comm_gather_blobs((tsr_ranks){o->ranks, o->allocator}, (tsr_str){(const char *)&own, sizeof own}, &all, err);
    *out = (tsr_object_resumed){0};
    for (uint32_t r = 0; r < all.count && status == TSR_OK; r++) {
        tsr_object_resumed one;
        memcpy(&one, all.blobs[r].data, sizeof one);
        out->objects += one.objects;
        out->parts += one.parts;
        out->bytes += one.bytes;
        out->differing += one.differing;
        out->uploads_given_up += one.uploads_given_up;
        out->uploads_left += one.uploads_left;
    }
    tsr_comm_blobs_free(&all);
    return status;
}
