#include "write/blit_order.h"

#include <stdlib.h>

#include "tessera/sys/try.h"

#include "tessera/sys/box_walk.h"

#define MOST_GROUPS 64u /* a tensor is located once per group that it is in */

typedef struct place {
    uint32_t group; /* from 1; 0 if it is written tensor by tensor */
    uint32_t number;
} place;

static bool is_row_major(const tsr_entry *entry)
{
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        const tsr_view *view = entry->chunks[c].view;
        if (view && (view->strides || view->zstd)) return false;
    }
    return true;
}

/* Whether all blits of an entry are contiguous runs of its rows, so that processing them separately reads no byte twice. */
static tsr_status are_rows(const tsr_blit *blits, size_t count, bool *out, tsr_error *err)
{
    tsr_packed packed;
    *out = is_row_major(blits->entry);
    if (!*out) return TSR_OK;
    TSR_TRY(tsr_gather_pack(blits->entry, &packed, err));
    const tsr_box whole = {packed.ndim, NULL, packed.shape};
    for (size_t i = 0; i < count && *out; i++)
        *out = !blits[i].sizes || tsr_box_is_contiguous(whole, (tsr_box){packed.ndim, blits[i].offsets, blits[i].sizes});
    return TSR_OK;
}

/* How many blits at the beginning belong together. Literals are separate. */
static size_t row_of_blits(const tsr_blit *blits, size_t count)
{
    size_t n = 1;
    while (!blits->literal && n < count && !blits[n].literal && blits[n].entry == blits->entry) n++;
    return n;
}

static tsr_status find_places(const tsr_catalog *catalog, const tsr_blit *blits, size_t count, uint32_t group_files,
                              place *places, tsr_error *err)
{
    for (size_t i = 0, n; i < count; i += n) {
        bool rows = true;
        n = row_of_blits(blits + i, count - i);
        if (!blits[i].literal && catalog->compressed) rows = false;
        else if (!blits[i].literal) TSR_TRY(are_rows(blits + i, n, &rows, err));
        for (size_t k = i; k < i + n; k++) places[k] = (place){rows ? 1 + blits[k].file / group_files : 0, (uint32_t)k};
    }
    return TSR_OK;
}

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

tsr_status tsr_blits_order(const tsr_catalog *catalog, const tsr_blit *blits, size_t count, tsr_arena *arena,
                           tsr_blit_order *out, tsr_error *err)
{
    uint32_t last = 0;
    TSR_FAIL_IF(count >= UINT32_MAX, err, TSR_E_LIMIT, "too many boxes to write");
    for (size_t i = 0; i < count; i++) last = blits[i].file > last ? blits[i].file : last;
    *out = (tsr_blit_order){.numbers = tsr_arena_array(arena, count, sizeof *out->numbers, err),
                            .group_files = last / MOST_GROUPS + 1};
    place *places = tsr_arena_array(arena, count, sizeof *places, err);
    if (!out->numbers || !places) return TSR_E_NOMEM;
    TSR_TRY(find_places(catalog, blits, count, out->group_files, places, err));
    if (count) qsort(places, count, sizeof *places, by_place);
    for (size_t i = 0; i < count; i++) {
        out->numbers[i] = places[i].number;
        out->grouped += places[i].group == 0;
    }
    return TSR_OK;
}
