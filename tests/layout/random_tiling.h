/* Makes random exact tilings of small tensors, for tests that compare every element. */
#ifndef TESTS_LAYOUT_RANDOM_TILING_H
#define TESTS_LAYOUT_RANDOM_TILING_H

#include "support/random.h"
#include "tessera/catalog.h"

#define MOST_DIMS  4u
#define MOST_BOXES 400u

typedef struct box_list {
    uint32_t ndim;
    uint64_t shape[MOST_DIMS];
    uint64_t count;
    uint64_t offsets[MOST_BOXES][MOST_DIMS];
    uint64_t sizes[MOST_BOXES][MOST_DIMS];
    tsr_chunk chunks[MOST_BOXES];
} box_list;

/* Appends a random tiling of the box by repeatedly splitting it. The result may be a grid or irregular. */
static void cut_up(random_source *random, box_list *list, const uint64_t *offsets, const uint64_t *sizes, int depth)
{
    uint32_t d = list->ndim ? (uint32_t)random_in(random, 0, list->ndim - 1) : 0;
    if (depth == 0 || list->ndim == 0 || sizes[d] < 2 || list->count > MOST_BOXES - 40) {
        for (uint32_t k = 0; k < list->ndim; k++) {
            list->offsets[list->count][k] = offsets[k];
            list->sizes[list->count][k] = sizes[k];
        }
        list->count++;
        return;
    }
    uint64_t cut = random_in(random, 1, sizes[d] - 1), at[MOST_DIMS], part[MOST_DIMS];
    for (int upper = 0; upper < 2; upper++) {
        for (uint32_t k = 0; k < list->ndim; k++) {
            at[k] = offsets[k];
            part[k] = sizes[k];
        }
        at[d] += upper ? cut : 0;
        part[d] = upper ? sizes[d] - cut : cut;
        cut_up(random, list, at, part, depth - 1);
    }
}

static void swap_boxes(box_list *list, uint64_t i, uint64_t j)
{
    for (uint32_t d = 0; d < list->ndim; d++) {
        uint64_t t = list->offsets[i][d];
        list->offsets[i][d] = list->offsets[j][d];
        list->offsets[j][d] = t;
        t = list->sizes[i][d];
        list->sizes[i][d] = list->sizes[j][d];
        list->sizes[j][d] = t;
    }
}

static void make_tiling(random_source *random, box_list *list)
{
    uint64_t zero[MOST_DIMS] = {0};
    list->ndim = (uint32_t)random_in(random, 0, MOST_DIMS);
    list->count = 0;
    for (uint32_t d = 0; d < list->ndim; d++) list->shape[d] = random_in(random, 1, 7);
    cut_up(random, list, zero, list->shape, (int)random_in(random, 0, 6));
    for (uint64_t i = list->count; i > 1; i--) swap_boxes(list, i - 1, random_in(random, 0, i - 1));
}

#endif
