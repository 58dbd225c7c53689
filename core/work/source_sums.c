#include "work/source_sums.h"

#include <stdlib.h>

#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/host_calls.h"

#define LOOKED_FOR_AT_ONCE 1024u

/* A CRC of the first bytes of a tensor, in row-major order. */
typedef struct sum {
    uint64_t bytes;
    uint32_t crc;
    bool complete; /* it covers all bytes */
} sum;

/* A part of a tensor that is a contiguous run of its rows. */
typedef struct run {
    uint64_t first; /* index of its first byte */
    uint64_t bytes;
    const tsr_chunk *chunk;
} run;

struct tsr_source_sums {
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_ahead *ahead;
    sum *written; /* per entry: what was written so far */
};

tsr_status tsr_source_sums_new(tsr_checkpoint *checkpoint, tsr_ahead *ahead, tsr_source_sums **out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_source_sums *sums = tsr_alloc(allocator, 1, sizeof *sums, err);
    if (!sums) return TSR_E_NOMEM;
    *sums =
        (tsr_source_sums){checkpoint, catalog, ahead, tsr_alloc(allocator, (size_t)catalog->entry_count, sizeof(sum), err)};
    if (!sums->written) {
        tsr_source_sums_free(sums);
        return TSR_E_NOMEM;
    }
    memset(sums->written, 0, (size_t)catalog->entry_count * sizeof(sum));
    *out = sums;
    return TSR_OK;
}

void tsr_source_sums_free(tsr_source_sums *sums)
{
    if (!sums) return;
    const tsr_allocator *allocator = tsr_checkpoint_host(sums->checkpoint)->allocator;
    tsr_free(allocator, sums->written, (size_t)sums->catalog->entry_count, sizeof(sum));
    tsr_free(allocator, sums, 1, sizeof *sums);
}

static void join(sum *s, const run *r, uint32_t crc, uint64_t all)
{
    if (r->bytes == 0 || s->complete) return;
    if (r->first == 0) *s = (sum){r->bytes, crc, false};
    else if (r->first == s->bytes) *s = (sum){s->bytes + r->bytes, tsr_crc32_join(s->crc, crc, r->bytes), false};
    s->complete = s->bytes == all;
}

static int by_first(const void *a, const void *b)
{
    const run *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* The entry's chunks as runs in order. *count is 0 if one of them is not a run. */
static tsr_status sort_chunks(const tsr_entry *entry, tsr_arena *arena, run **out, uint64_t *count, tsr_error *err)
{
    const tsr_box whole = {entry->ndim, NULL, entry->shape};
    *count = 0;
    *out = tsr_arena_array(arena, (size_t)entry->chunk_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        (*out)[i].chunk = chunk;
        const tsr_box box = {entry->ndim, chunk->offsets, chunk->sizes};
        if (!tsr_find_run(entry->dtype, whole, box, &(*out)[i].first, &(*out)[i].bytes)) return TSR_OK;
    }
    *count = entry->chunk_count;
    if (*count) qsort(*out, (size_t)*count, sizeof **out, by_first);
    return TSR_OK;
}

/* The CRC of a whole tensor according to the source; not complete if the source does not state it. */
static tsr_status stated_sum(const tsr_source_sums *sums, const tsr_entry *entry, uint64_t all, tsr_arena *arena, sum *out,
                             tsr_error *err)
{
    run *runs;
    uint64_t count;
    tsr_stated_crc stated = {.is_stated = true};
    *out = (sum){0};
    TSR_TRY(sort_chunks(entry, arena, &runs, &count, err));
    for (uint64_t i = 0; i < count && stated.is_stated; i++) {
        if (runs[i].bytes == 0) continue;
        const tsr_found *known = tsr_ahead_find(sums->ahead, runs[i].chunk);
        if (known) stated = known->crc;
        else TSR_TRY(tsr_checkpoint_crc(sums->checkpoint, entry, runs[i].chunk, arena, &stated, err));
        if (stated.is_stated) join(out, &runs[i], stated.crc32, all);
    }
    return TSR_OK;
}

static tsr_status check_entry(const tsr_source_sums *sums, const tsr_entry *entry, const sum *written, tsr_error *err)
{
    sum stated;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(sums->checkpoint)->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_status status = stated_sum(sums, entry, written->bytes, arena, &stated, err);
    tsr_arena_free(arena);
    TSR_TRY(status);
    TSR_FAIL_IF(stated.complete && stated.crc != written->crc, err, TSR_E_FORMAT,
                "'%.*s' is damaged in the source: its bytes have CRC-32 %08x, but had %08x when they were saved; tessera "
                "validate --deep shows where, and --ignore-crc accepts the bytes as they are",
                TSR_STR_ARG(entry->fqn), (unsigned)written->crc, (unsigned)stated.crc);
    return TSR_OK;
}

/* Finds which bytes of which tensor a blit writes. *found is false if they are not a contiguous run. */
static tsr_status find_bytes(const tsr_blit *blit, const tsr_entry **entry, run *out, uint64_t *all, bool *found,
                             tsr_error *err)
{
    tsr_packed packed;
    *entry = blit->rows.entry ? blit->rows.entry : blit->entry;
    TSR_TRY(tsr_gather_pack(*entry, &packed, err));
    const tsr_box whole = {packed.ndim, NULL, packed.shape},
                  box = {packed.ndim, blit->offsets, blit->sizes ? blit->sizes : packed.shape};
    *out = (run){.first = blit->rows.byte_first, .bytes = blit->byte_length};
    *found = (blit->rows.entry || tsr_find_run(packed.dtype, whole, box, &out->first, &out->bytes)) &&
             tsr_dtype_bytes(packed.dtype, packed.elements, all);
    return TSR_OK;
}

static tsr_status add_blit(tsr_source_sums *sums, const tsr_blit *blit, tsr_error *err)
{
    const tsr_entry *entry;
    run r;
    uint64_t all;
    bool found;
    if (blit->literal || blit->dtype != blit->entry->dtype) return TSR_OK;
    TSR_TRY(find_bytes(blit, &entry, &r, &all, &found, err));
    if (!found) return TSR_OK;
    const bool listed = tsr_catalog_has(sums->catalog, entry);
    /* Or a whole storage, which is not listed. */
    sum own = {0}, *written = listed ? &sums->written[entry - sums->catalog->entries] : &own;
    join(written, &r, blit->crc, all);
    return own.complete ? check_entry(sums, entry, &own, err) : TSR_OK;
}

tsr_status tsr_source_sums_add(tsr_source_sums *sums, const tsr_blit *blits, size_t count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) TSR_TRY(add_blit(sums, &blits[i], err));
    return TSR_OK;
}

/* Looks up the stated CRCs of complete entries from *end on in one batch, which is large enough to keep the threads busy.
 * Moves *end after those entries. */
static tsr_status look_ahead(const tsr_source_sums *sums, uint64_t *end, tsr_error *err)
{
    TSR_TRY(tsr_ahead_make_room(sums->ahead, err));
    while (*end < sums->catalog->entry_count && tsr_ahead_waiting(sums->ahead) < LOOKED_FOR_AT_ONCE) {
        const tsr_entry *entry = &sums->catalog->entries[*end];
        if (sums->written[(*end)++].complete) TSR_TRY(tsr_ahead_want(sums->ahead, entry, NULL, err));
    }
    tsr_ahead_seek(sums->ahead);
    return TSR_OK;
}

tsr_status tsr_source_sums_check(const tsr_source_sums *sums, tsr_error *err)
{
    for (uint64_t i = 0, end = 0; i < sums->catalog->entry_count; i++) {
        if (i == end) TSR_TRY(look_ahead(sums, &end, err));
        if (sums->written[i].complete) TSR_TRY(check_entry(sums, &sums->catalog->entries[i], &sums->written[i], err));
    }
    return TSR_OK;
}
