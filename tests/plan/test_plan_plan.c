/* Executes plans on element numbers: every chunk holds the row-major numbers of its elements. The items must put the right
 * numbers into a rank's local tensor, and write each element once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/random_tiling.h"
#include "tessera/plan.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"

#define UNWRITTEN (-1)

static tsr_host host_with(const tsr_allocator *allocator)
{
    return (tsr_host){.allocator = allocator, .limits = tsr_limits_default()};
}

static uint64_t volume_of(uint32_t ndim, const uint64_t *sizes)
{
    uint64_t volume;
    assert_true(tsr_box_volume((tsr_box){ndim, NULL, sizes}, &volume));
    return volume;
}

/* The contents of a checkpoint: the numbers of the elements of each chunk. */
typedef struct storage {
    int64_t **chunks; /* those of the only entry */
    uint64_t count;
} storage;

static storage fill_storage(const tsr_entry *entry)
{
    storage s = {calloc(entry->chunk_count + 1, sizeof *s.chunks), entry->chunk_count};
    tsr_box tensor = {entry->ndim, NULL, entry->shape};
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        tsr_box box = {entry->ndim, entry->chunks[i].offsets, entry->chunks[i].sizes};
        s.chunks[i] = calloc(volume_of(box.ndim, box.sizes) + 1, sizeof **s.chunks);
        tsr_box_walk walk;
        for (tsr_box_walk_start(&walk, box, tensor, box); walk.runs_left; tsr_box_walk_next(&walk)) {
            for (uint64_t k = 0; k < walk.run; k++) s.chunks[i][walk.index_b + k] = (int64_t)(walk.index_a + k);
        }
    }
    return s;
}

static void free_storage(storage s)
{
    for (uint64_t i = 0; i < s.count; i++) free(s.chunks[i]);
    free(s.chunks);
}

/* Copies one item into a local tensor. No element may have been written before. */
static void carry_out(const tsr_read_item *item, const tsr_entry *entry, const int64_t *from, const uint64_t *local_shape,
                      int64_t *local)
{
    tsr_box chunk = {entry->ndim, NULL, item->chunk->sizes}, dest = {entry->ndim, NULL, local_shape};
    uint64_t at[MOST_DIMS] = {0}, there[MOST_DIMS], here[MOST_DIMS];
    assert_true(tsr_box_contains(chunk, (tsr_box){entry->ndim, item->storage_offsets, item->lengths}));
    assert_true(tsr_box_contains(dest, (tsr_box){entry->ndim, item->dest_offsets, item->lengths}));
    for (uint64_t n = volume_of(entry->ndim, item->lengths); n > 0; n--) {
        for (uint32_t d = 0; d < entry->ndim; d++) {
            assert_int_equal(item->offsets[d], item->chunk->offsets[d] + item->storage_offsets[d]);
            there[d] = item->storage_offsets[d] + at[d];
            here[d] = item->dest_offsets[d] + at[d];
        }
        int64_t *to = &local[tsr_box_index(dest, here)];
        assert_int_equal(*to, UNWRITTEN);
        *to = from[tsr_box_index(chunk, there)];
        for (uint32_t d = entry->ndim; d-- > 0;) {
            if (++at[d] < item->lengths[d]) break;
            at[d] = 0;
        }
    }
}

/* Checks the local tensor of a shard. */
static void assert_local(const tsr_entry *entry, const tsr_shard *shard, const int64_t *local)
{
    tsr_box tensor = {entry->ndim, NULL, entry->shape}, dest = {entry->ndim, NULL, shard->local_shape};
    uint64_t checked = 0;
    for (uint64_t b = 0; b < shard->box_count; b++) {
        const tsr_shard_box *box = &shard->boxes[b];
        uint64_t at[MOST_DIMS] = {0}, there[MOST_DIMS], here[MOST_DIMS];
        for (uint64_t n = volume_of(entry->ndim, box->sizes); n > 0; n--, checked++) {
            for (uint32_t d = 0; d < entry->ndim; d++) {
                there[d] = box->offsets[d] + at[d];
                here[d] = box->local_offsets[d] + at[d];
            }
            assert_int_equal(local[tsr_box_index(dest, here)], tsr_box_index(tensor, there));
            for (uint32_t d = entry->ndim; d-- > 0;) {
                if (++at[d] < box->sizes[d]) break;
                at[d] = 0;
            }
        }
    }
    assert_int_equal(checked, volume_of(entry->ndim, shard->local_shape));
}

/* The local tensor of one rank, filled by the plan; NULL if the rank holds nothing. */
static int64_t *load_rank(const tsr_plan *plan, uint64_t rank, const storage *from, tsr_shard *shard, tsr_arena *arena)
{
    const tsr_planned planned = tsr_plan_tensor_at(plan, 0);
    const tsr_read_item *items;
    uint64_t count;
    assert_int_equal(tsr_layout_shard(planned.layout, rank, arena, shard, NULL), TSR_OK);
    assert_int_equal(tsr_plan_rank(plan, rank, arena, &items, &count, NULL), TSR_OK);
    uint64_t elements = volume_of(shard->ndim, shard->local_shape);
    assert_int_equal(elements, tsr_layout_elements(planned.layout, rank));
    int64_t *local = malloc((elements + 1) * sizeof *local);
    for (uint64_t k = 0; k < elements; k++) local[k] = UNWRITTEN;
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(items[i].dest_rank, rank);
        if (i) assert_true(items[i - 1].chunk->byte_offset <= items[i].chunk->byte_offset);
        carry_out(&items[i], planned.entry, from->chunks[items[i].chunk - planned.entry->chunks], shard->local_shape, local);
    }
    return local;
}

typedef struct random_target {
    tsr_target target;
    uint64_t shape[3];
    tsr_placement placements[3];
} random_target;

static void make_target(random_source *random, random_target *out, uint32_t ndim)
{
    static const tsr_str names[3];
    memset(out, 0, sizeof *out);
    uint32_t dims = (uint32_t)random_in(random, 1, 3);
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t kind = ndim ? random_in(random, 0, 3) : 0;
        out->shape[i] = random_in(random, 1, 4);
        out->placements[i].kind = kind == 0 ? TSR_REPLICATE : kind == 3 ? TSR_STRIDED_SHARD : TSR_SHARD;
        out->placements[i].dim = ndim ? (int32_t)random_in(random, 0, ndim - 1) : 0;
        out->placements[i].split_factor = random_in(random, 1, 4);
    }
    out->target = (tsr_target){.mesh = {dims, out->shape, names}, .default_placements = out->placements};
    out->target.strided = random_in(random, 0, 1) ? TSR_STRIDED_FSDP : TSR_STRIDED_DTENSOR;
}

static void make_entry(random_source *random, box_list *list, tsr_entry *entry)
{
    make_tiling(random, list);
    if (list->ndim && random_in(random, 0, 9) == 0) { /* a tensor without elements */
        list->shape[0] = 0;
        list->count = random_in(random, 0, 1);
        memset(list->offsets[0], 0, sizeof list->offsets[0]);
        memcpy(list->sizes[0], list->shape, sizeof list->shape);
    } else if (list->ndim && random_in(random, 0, 4) == 0) { /* an empty chunk of a rank that holds nothing */
        memcpy(list->offsets[list->count], list->shape, sizeof list->shape);
        memset(list->sizes[list->count++], 0, sizeof list->shape);
    }
    for (uint64_t i = 0; i < list->count; i++) {
        list->chunks[i] = (tsr_chunk){list->offsets[i], list->sizes[i], random_in(random, 0, 9) * 100, 100, NULL, 0};
    }
    *entry = (tsr_entry){.fqn = {"w", 1},
                         .kind = TSR_ENTRY_TENSOR,
                         .dtype = TSR_FLOAT32,
                         .ndim = list->ndim,
                         .shape = list->shape,
                         .chunks = list->chunks,
                         .chunk_count = list->count};
}

/* The chunks that the plan's owners write. */
typedef struct written {
    tsr_chunk chunks[MOST_BOXES];
    int64_t *values[MOST_BOXES];
    uint64_t count;
    uint64_t elements;
    const tsr_plan *plan;
    const storage *from;
    tsr_arena *arena;
} written;

static tsr_status keep_write(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    written *w = ctx;
    (void)err;
    assert_int_equal(tensor, 0);
    if (volume_of(shard->ndim, shard->local_shape) == 0) { /* the tensor has no elements */
        assert_true(owner == 0 && shard->box_count == 1);
        assert_memory_equal(shard->local_shape, shard->boxes[0].sizes, shard->ndim * sizeof *shard->local_shape);
        return TSR_OK;
    }
    tsr_shard own;
    int64_t *local = load_rank(w->plan, owner, w->from, &own, w->arena);
    assert_memory_equal(own.local_shape, shard->local_shape, shard->ndim * sizeof *own.local_shape);
    for (uint64_t b = 0; b < own.box_count; b++, w->count++) {
        const tsr_shard_box *box = &own.boxes[b];
        uint64_t volume = volume_of(own.ndim, box->sizes);
        assert_true(w->count < MOST_BOXES);
        w->chunks[w->count] = (tsr_chunk){box->offsets, box->sizes, w->count, 1, NULL, 0};
        w->values[w->count] = calloc(volume + 1, sizeof *local);
        tsr_box_walk walk;
        tsr_box in_local = {own.ndim, box->local_offsets, box->sizes}, whole = {own.ndim, NULL, own.local_shape};
        for (tsr_box_walk_start(&walk, in_local, whole, in_local); walk.runs_left; tsr_box_walk_next(&walk)) {
            memcpy(w->values[w->count] + walk.index_b, local + walk.index_a, walk.run * sizeof *local);
        }
        w->elements += volume;
    }
    free(local);
    return TSR_OK;
}

static void assert_totals(const tsr_plan *plan, const tsr_entry *entry, uint64_t held)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_plan_totals totals;
    uint64_t read = 0, received = 0, sum = 0, bytes = volume_of(entry->ndim, entry->shape) * 4;
    assert_int_equal(tsr_plan_count_totals(plan, arena, &totals, NULL), TSR_OK);
    for (uint64_t r = 0; r < totals.ranks; r++) {
        assert_int_equal(totals.per_rank[r].held, 4 * tsr_layout_elements(tsr_plan_tensor_at(plan, 0).layout, r));
        sum += totals.per_rank[r].held;
        read += totals.per_rank[r].read;
        received += totals.per_rank[r].received;
    }
    assert_int_equal(read, bytes);
    assert_int_equal(totals.bytes, bytes);
    assert_int_equal(received, sum - bytes);
    assert_int_equal(sum, held * 4);
    assert_true(totals.span_bytes >= totals.bytes && totals.largest_read <= totals.bytes);
    if (totals.file_count) assert_true(totals.per_file[0].bytes == bytes && totals.per_file[0].reads == totals.reads);
    if (held) assert_true(totals.imbalance > 0.999 && totals.imbalance < (double)totals.ranks + 0.001);
    tsr_arena_free(arena);
}

/* Reshards a random checkpoint for a random target with all ranks, and then what the owners wrote for a single rank. */
static void reshard_and_back(random_source *random, const tsr_allocator *allocator)
{
    static box_list list;
    static written w;
    static const uint64_t one[] = {1};
    static const tsr_str no_name[1];
    const tsr_placement whole = {TSR_REPLICATE, 0, 0};
    tsr_host host = host_with(allocator);
    tsr_entry entry;
    random_target target;
    make_entry(random, &list, &entry);
    make_target(random, &target, entry.ndim);
    tsr_catalog catalog = {.entries = &entry, .entry_count = 1};
    tsr_plan *plan, *back;
    assert_int_equal(tsr_plan_new(&catalog, &target.target, NULL, &host, &plan, NULL), TSR_OK);
    storage from = fill_storage(&entry);
    tsr_arena *arena = tsr_arena_new(allocator, 0, NULL);
    uint64_t held = 0;
    for (uint64_t r = 0; r < tsr_plan_ranks(plan); r++) {
        tsr_shard shard;
        int64_t *local = load_rank(plan, r, &from, &shard, arena);
        assert_local(&entry, &shard, local);
        held += volume_of(shard.ndim, shard.local_shape);
        free(local);
    }
    assert_totals(plan, &entry, held);

    w = (written){.plan = plan, .from = &from, .arena = arena};
    assert_int_equal(tsr_plan_each_write(plan, keep_write, &w, NULL), TSR_OK);
    assert_int_equal(w.elements, volume_of(entry.ndim, entry.shape));
    tsr_entry again = entry;
    again.chunks = w.chunks;
    again.chunk_count = w.count;
    tsr_catalog catalog_again = {.entries = &again, .entry_count = 1};
    tsr_target single = {.mesh = {1, one, no_name}, .default_placements = &whole};
    assert_int_equal(tsr_plan_new(&catalog_again, &single, NULL, &host, &back, NULL), TSR_OK);
    storage rewritten = {w.values, w.count};
    tsr_shard shard;
    int64_t *full = load_rank(back, 0, &rewritten, &shard, arena);
    for (uint64_t k = 0; k < w.elements; k++) assert_int_equal(full[k], k);
    free(full);
    for (uint64_t i = 0; i < w.count; i++) free(w.values[i]);
    tsr_plan_free(back);
    tsr_plan_free(plan);
    tsr_arena_free(arena);
    free_storage(from);
}

static void test_plan_plan__every_rank_gets_every_element_once_and_back(void **state)
{
    (void)state;
    random_source random = {11};
    for (int i = 0; i < 1500; i++) reshard_and_back(&random, &tsr_allocator_libc);
}

static const tsr_layout *own_layout(void *ctx, const tsr_entry *entry)
{
    (void)entry;
    return ctx;
}

/* A rank may request any box, as a model with a different kind of parallelism does, and gets exactly that. */
static void test_plan_plan__a_layout_of_its_own_is_read_as_it_is(void **state)
{
    (void)state;
    static box_list list;
    static const uint64_t two[] = {2};
    static const tsr_str no_name[1];
    const tsr_placement whole = {TSR_REPLICATE, 0, 0};
    const tsr_target target = {.mesh = {1, two, no_name}, .default_placements = &whole};
    tsr_host host = host_with(&tsr_allocator_libc);
    random_source random = {12};
    for (int i = 0; i < 500; i++) {
        uint64_t offsets[2][MOST_DIMS] = {{0}}, sizes[2][MOST_DIMS] = {{0}}, zeros[MOST_DIMS] = {0}, held = 0;
        tsr_entry entry;
        do make_entry(&random, &list, &entry);
        while (volume_of(entry.ndim, entry.shape) == 0);
        tsr_shard_box boxes[2];
        tsr_shard shards[2];
        for (int r = 0; r < 2; r++) {
            for (uint32_t d = 0; d < entry.ndim; d++) {
                offsets[r][d] = random_in(&random, 0, entry.shape[d] - 1);
                sizes[r][d] = random_in(&random, 1, entry.shape[d] - offsets[r][d]);
            }
            boxes[r] = (tsr_shard_box){offsets[r], sizes[r], zeros};
            shards[r] = (tsr_shard){entry.ndim, sizes[r], offsets[r], &boxes[r], 1};
            held += volume_of(entry.ndim, sizes[r]);
        }
        tsr_layout layout = tsr_layout_explicit(2, shards, entry.ndim, entry.shape);
        const tsr_plan_options options = {.layout = own_layout, .layout_ctx = &layout};
        tsr_catalog catalog = {.entries = &entry, .entry_count = 1};
        tsr_plan *plan;
        tsr_plan_totals totals;
        assert_int_equal(tsr_plan_new(&catalog, &target, &options, &host, &plan, NULL), TSR_OK);
        storage from = fill_storage(&entry);
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        for (uint64_t r = 0; r < 2; r++) {
            tsr_shard shard;
            int64_t *local = load_rank(plan, r, &from, &shard, arena);
            assert_local(&entry, &shard, local);
            free(local);
        }
        assert_int_equal(tsr_plan_count_totals(plan, arena, &totals, NULL), TSR_OK);
        assert_int_equal(totals.bytes, held * 4);
        tsr_plan_free(plan);
        layout.ranks = 3;
        assert_int_equal(tsr_plan_new(&catalog, &target, &options, &host, &plan, NULL), TSR_E_USAGE);
        tsr_arena_free(arena);
        free_storage(from);
    }
}

/* Parses "2x0" into numbers, and returns where it ends. */
static const char *read_numbers(const char *text, uint64_t *out, uint32_t *count)
{
    char *end;
    for (*count = 0;; text = end + 1) {
        out[(*count)++] = strtoull(text, &end, 10);
        if (*end != 'x') return end;
    }
}

/* Parses the chunks "0x0:2x3;2x0:1x3", which are stored in a file in this order. */
static void read_chunks(const char *text, box_list *list)
{
    uint32_t ndim;
    for (list->count = 0;; text++) {
        uint64_t i = list->count++;
        text = read_numbers(text, list->offsets[i], &ndim);
        text = read_numbers(text + 1, list->sizes[i], &ndim);
        list->chunks[i] = (tsr_chunk){list->offsets[i], list->sizes[i], i, 1, NULL, 0};
        if (*text != ';') return;
    }
}

static void print_numbers(char *out, const uint64_t *numbers, uint32_t count, char first)
{
    for (uint32_t d = 0; d < count; d++) sprintf(out + strlen(out), "%c%d", d ? 'x' : first, (int)numbers[d]);
}

static void test_plan_plan__items_are_those_of_pytorchs_planner(void **state)
{
    (void)state;
    static char line[1 << 14], text[1 << 14];
    static box_list list;
    static const uint64_t one[] = {1}, zeros[MOST_DIMS];
    static const tsr_str no_name[1];
    const tsr_placement whole = {TSR_REPLICATE, 0, 0};
    const tsr_target target = {.mesh = {1, one, no_name}, .default_placements = &whole};
    tsr_host host = host_with(&tsr_allocator_libc);
    unsigned cases = 0;
    FILE *file = fopen(TSR_TEST_DATA "/tests/golden/read_items.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        uint64_t offsets[MOST_DIMS], sizes[MOST_DIMS], count;
        uint32_t ndim;
        if (line[0] == '#') continue;
        read_numbers(strtok(line, " "), list.shape, &list.ndim);
        read_numbers(read_numbers(strtok(NULL, " "), offsets, &ndim) + 1, sizes, &ndim);
        read_chunks(strtok(NULL, " "), &list);
        const tsr_shard_box box = {offsets, sizes, zeros};
        const tsr_shard shard = {ndim, sizes, offsets, &box, 1};
        tsr_layout layout = tsr_layout_explicit(1, &shard, ndim, list.shape);
        const tsr_entry entry = {.fqn = {"w", 1},
                                 .dtype = TSR_FLOAT32,
                                 .ndim = ndim,
                                 .shape = list.shape,
                                 .chunks = list.chunks,
                                 .chunk_count = list.count};
        const tsr_catalog catalog = {.entries = &entry, .entry_count = 1};
        const tsr_plan_options options = {.layout = own_layout, .layout_ctx = &layout};
        const tsr_read_item *items;
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        tsr_plan *plan;
        assert_int_equal(tsr_plan_new(&catalog, &target, &options, &host, &plan, NULL), TSR_OK);
        assert_int_equal(tsr_plan_rank(plan, 0, arena, &items, &count, NULL), TSR_OK);
        text[0] = '\0';
        for (uint64_t i = 0; i < count; i++) {
            sprintf(text + strlen(text), "%s%d", i ? ";" : "", (int)(items[i].chunk - list.chunks));
            print_numbers(text, items[i].dest_offsets, ndim, ':');
            print_numbers(text, items[i].storage_offsets, ndim, ':');
            print_numbers(text, items[i].lengths, ndim, ':');
        }
        assert_string_equal(text, strtok(NULL, " \n"));
        tsr_plan_free(plan);
        tsr_arena_free(arena);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 500);
}

/* Copies an item, whose elements are contiguous, into a 1-d local tensor. */
static void carry_out_flat(const tsr_read_item *item, const tsr_entry *entry, const int64_t *from, uint64_t numel,
                           int64_t *local)
{
    tsr_box chunk = {entry->ndim, NULL, item->chunk->sizes};
    uint64_t at[MOST_DIMS] = {0}, there[MOST_DIMS], to = entry->ndim ? item->dest_offsets[0] : 0;
    for (uint32_t d = 1; d < entry->ndim; d++) assert_int_equal(item->dest_offsets[d], 0);
    for (uint64_t n = volume_of(entry->ndim, item->lengths); n > 0; n--, to++) {
        for (uint32_t d = 0; d < entry->ndim; d++) there[d] = item->storage_offsets[d] + at[d];
        assert_true(to < numel);
        assert_int_equal(local[to], UNWRITTEN);
        local[to] = from[tsr_box_index(chunk, there)];
        for (uint32_t d = entry->ndim; d-- > 0;) {
            if (++at[d] < item->lengths[d]) break;
            at[d] = 0;
        }
    }
}

/* FSDP1: a parameter between two others, divided into flat slices. The items of each rank must put its range into place, in
 * order. */
static void test_plan_plan__flat_ranges_are_read_in_order(void **state)
{
    (void)state;
    static box_list list;
    static const tsr_str no_name[1];
    const tsr_placement whole = {TSR_REPLICATE, 0, 0};
    tsr_host host = host_with(&tsr_allocator_libc);
    random_source random = {21};
    uint64_t split = 0;
    for (int i = 0; i < 1500; i++) {
        const uint64_t world = random_in(&random, 1, 5);
        const tsr_target target = {.mesh = {1, &world, no_name}, .default_placements = &whole};
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        tsr_entry entry;
        make_entry(&random, &list, &entry);
        const uint64_t numels[] = {random_in(&random, 0, 50), volume_of(entry.ndim, entry.shape), random_in(&random, 0, 50)};
        tsr_flat_layout flat;
        tsr_layout layout;
        tsr_plan *plan;
        tsr_plan_totals totals;
        assert_int_equal(
            tsr_flat_layout_make((tsr_flat_numels){numels, 3, random_in(&random, 0, 4)}, world, arena, &flat, NULL), TSR_OK);
        assert_int_equal(tsr_layout_flat(&flat, 1, (tsr_shape){entry.ndim, entry.shape}, arena, &layout, NULL), TSR_OK);
        const tsr_plan_options options = {.layout = own_layout, .layout_ctx = &layout};
        tsr_catalog catalog = {.entries = &entry, .entry_count = 1};
        assert_int_equal(tsr_plan_new(&catalog, &target, &options, &host, &plan, NULL), TSR_OK);
        storage from = fill_storage(&entry);
        uint64_t items_of_all = 0, held = 0;
        for (uint64_t r = 0; r < world; r++) {
            const tsr_span range = tsr_flat_layout_range(&flat, 1, r);
            const tsr_read_item *items;
            uint64_t count;
            int64_t *local = malloc((range.size + 1) * sizeof *local);
            for (uint64_t k = 0; k < range.size; k++) local[k] = UNWRITTEN;
            assert_int_equal(tsr_plan_rank(plan, r, arena, &items, &count, NULL), TSR_OK);
            for (uint64_t k = 0; k < count; k++)
                carry_out_flat(&items[k], &entry, from.chunks[items[k].chunk - entry.chunks], range.size, local);
            for (uint64_t k = 0; k < range.size; k++) assert_int_equal(local[k], range.offset + k);
            assert_int_equal(tsr_layout_elements(&layout, r), entry.ndim || range.size ? range.size : 1);
            items_of_all += count;
            held += range.size;
            free(local);
        }
        assert_int_equal(tsr_plan_count_totals(plan, arena, &totals, NULL), TSR_OK);
        assert_int_equal(totals.reads, items_of_all);
        assert_int_equal(held, numels[1]);
        split += items_of_all > entry.chunk_count + 3 * world;
        free_storage(from);
        tsr_plan_free(plan);
        tsr_arena_free(arena);
    }
    assert_true(split > 50); /* chunks that span several ranges */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_plan__every_rank_gets_every_element_once_and_back),
        cmocka_unit_test(test_plan_plan__a_layout_of_its_own_is_read_as_it_is),
        cmocka_unit_test(test_plan_plan__items_are_those_of_pytorchs_planner),
        cmocka_unit_test(test_plan_plan__flat_ranges_are_read_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
