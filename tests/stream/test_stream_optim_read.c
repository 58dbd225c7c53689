/* Reads sharded optimizer state from real checkpoints, and compares it with what the ranks of real PyTorch loaded
 * (tests/golden/optim_load.json and optim_load/, made by tests/golden/make_optim_load.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* cmocka.h needs the headers above. */
#include <cjson/cJSON.h>
#include <cmocka.h>
#include <stdio.h>

#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"

/* What a rank received: one buffer per read. */
typedef struct received {
    const tsr_optim_read *reads;
    void *buffers[32];
    size_t poor; /* index of the buffer that is not provided; SIZE_MAX: all are */
} received;

static void *give(void *ctx, const tsr_optim_read *read, size_t bytes)
{
    received *r = ctx;
    size_t at = (size_t)(read - r->reads);
    return at == r->poor ? NULL : (r->buffers[at] = malloc(bytes));
}

static cJSON *read_golden(void)
{
    static char text[1 << 20];
    FILE *f = fopen(TSR_TEST_DATA "/tests/golden/optim_load.json", "rb");
    if (!f) fail_msg("no golden");
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return cJSON_Parse(text);
}

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static double element(tsr_dtype dtype, const char *from, size_t at)
{
    float single = 0;
    if (dtype == TSR_FLOAT32) memcpy(&single, from + 4 * at, 4);
    else memcpy((char *)&single + 2, from + 2 * at, 2); /* bfloat16 */
    return (double)single;
}

static size_t slices_of(const cJSON *json, tsr_tp_slice *slices, uint64_t numbers[8][4])
{
    size_t count = 0;
    for (const cJSON *s = json->child; s; s = s->next, count++) {
        uint32_t ndim = 0;
        for (const cJSON *o = s->child->child, *z = s->child->next->child; o; o = o->next, z = z->next, ndim++) {
            numbers[count][ndim] = (uint64_t)o->valuedouble;
            numbers[count][2 + ndim] = (uint64_t)z->valuedouble;
        }
        slices[count] = (tsr_tp_slice){tsr_str_from(s->string), ndim, numbers[count], numbers[count] + 2, NULL};
    }
    return count;
}

static void check_numbers(const char *where, const tsr_optim_read *read, const void *buffer, const cJSON *numbers)
{
    size_t at = 0;
    for (const cJSON *n = numbers->child; n; n = n->next, at++)
        if (element(read->entry->dtype, buffer, at) != n->valuedouble)
            fail_msg("%s, '%.*s': element %zu is not %g", where, TSR_STR_ARG(read->entry->fqn), at, n->valuedouble);
}

/* Compares a read with `want`: [key, kind, dtype, offsets, sizes, numbers]. */
static void check_read(const char *where, const tsr_optim_read *read, const void *buffer, const cJSON *want)
{
    const cJSON *kind = want->child->next, *dtype = kind->next, *offsets = dtype->next, *sizes = offsets->next;
    static const char *const kinds[] = {"object", "whole", "box"};
    assert_string_equal(kinds[read->kind], kind->valuestring);
    if (read->kind == TSR_READ_OBJECT) return;
    assert_string_equal(tsr_dtype_describe(read->entry->dtype)->name, dtype->valuestring);
    if (cJSON_IsNull(sizes)) { /* PyTorch has no shard on this rank */
        assert_int_equal(read->sizes[0], 0);
        return;
    }
    uint32_t d = 0;
    for (const cJSON *s = sizes->child; s && read->kind == TSR_READ_BOX; s = s->next, d++) {
        assert_int_equal(read->sizes[d], (uint64_t)s->valuedouble);
        assert_int_equal(read->dest_offsets[d], (uint64_t)cJSON_GetArrayItem(offsets, (int)d)->valuedouble);
    }
    check_numbers(where, read, buffer, sizes->next);
}

static void check_rank(tsr_checkpoint *checkpoint, const cJSON *one, uint32_t rank, const cJSON *want)
{
    char where[64];
    tsr_tp_slice slices[8];
    uint64_t numbers[8][4];
    uint32_t tp = get(one, "tp") ? (uint32_t)get(one, "tp")->valuedouble : 1, dp = (uint32_t)get(one, "dp")->valuedouble;
    const bool tensor_parallel = get(one, "tp") != NULL;
    const size_t slice_count = tensor_parallel ? slices_of(get(want, "slices"), slices, numbers) : 0;
    const tsr_optim_mesh mesh = {rank / tp, dp, tensor_parallel, slices, slice_count};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_optim_reads plan;
    tsr_error err = {0};
    snprintf(where, sizeof where, "%s on tp %u, dp %u, rank %u", get(one, "saved")->valuestring, tp, dp, rank);
    if (tsr_optim_load(tsr_checkpoint_catalog(checkpoint), TSR_STR("optim"), &mesh, arena, &plan, &err) != TSR_OK)
        fail_msg("%s: %s", where, err.message);
    const tsr_optim_read *reads = plan.reads;
    const size_t count = plan.count;
    received got = {.reads = reads, .poor = SIZE_MAX};
    const tsr_optim_sink sink = {give, &got};
    if (tsr_optim_read_all(checkpoint, reads, count, &sink, NULL, &err) != TSR_OK) fail_msg("%s: %s", where, err.message);
    assert_int_equal(cJSON_GetArraySize(get(want, "entries")), count);
    for (const cJSON *w = get(want, "entries")->child; w; w = w->next) {
        size_t at = 0;
        while (at < count && !tsr_str_equal(reads[at].entry->fqn, tsr_str_from(w->child->valuestring))) at++;
        if (at == count) fail_msg("%s: no read of '%s'", where, w->child->valuestring);
        check_read(where, &reads[at], got.buffers[at], w);
    }
    for (size_t i = 0; i < count; i++) free(got.buffers[i]);
    tsr_arena_free(arena);
}

static tsr_checkpoint *open_saved(const char *name, const tsr_host *host, tsr_store **store)
{
    char path[512];
    tsr_checkpoint *checkpoint;
    snprintf(path, sizeof path, "%s/tests/golden/optim_load/%s", TSR_TEST_DATA, name);
    assert_int_equal(tsr_directory_store_open(NULL, &tsr_allocator_libc, path, store, NULL), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(*store, host, NULL, &checkpoint, NULL), TSR_OK);
    return checkpoint;
}

static void in_order(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg)
{
    (void)ctx;
    while (count-- > 0) body(arg, count);
}

static void test_stream_optim_read__E4_what_pytorch_loads_in_any_world(void **state)
{
    (void)state;
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default(), .parallel_for = in_order};
    cJSON *golden = read_golden();
    for (const cJSON *one = get(golden, "cases")->child; one; one = one->next) {
        tsr_store *store;
        tsr_checkpoint *checkpoint = open_saved(get(one, "saved")->valuestring, &host, &store);
        uint32_t rank = 0;
        for (const cJSON *want = get(one, "ranks")->child; want; want = want->next)
            check_rank(checkpoint, one, rank++, want);
        tsr_checkpoint_close(checkpoint);
        store->close(store);
    }
    cJSON_Delete(golden);
}

static bool stop(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    (void)ctx, (void)byte_done, (void)byte_total;
    return false;
}

static void test_stream_optim_read__what_goes_wrong_is_said(void **state)
{
    (void)state;
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    const tsr_optim_mesh mesh = {.data_world = 1};
    tsr_store *store;
    tsr_checkpoint *checkpoint = open_saved("w1", &host, &store);
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_optim_reads plan;
    assert_int_equal(tsr_optim_load(tsr_checkpoint_catalog(checkpoint), TSR_STR("optim"), &mesh, arena, &plan, NULL),
                     TSR_OK);
    tsr_optim_read *reads = plan.reads;
    const size_t count = plan.count;
    for (size_t i = 0; i < 3; i++) {
        received got = {.reads = reads, .poor = i == 0 ? 1 : SIZE_MAX};
        const tsr_optim_sink sink = {give, &got};
        const tsr_progress progress = {stop, NULL};
        tsr_error err = {0};
        tsr_chunk lost = reads[0].entry->chunks[0];
        tsr_entry entry = *reads[0].entry;
        lost.file = TSR_NO_FILE;
        entry.chunks = &lost;
        if (i == 2) reads[0].entry = &entry;
        tsr_status status = tsr_optim_read_all(checkpoint, reads, count, &sink, i == 1 ? &progress : NULL, &err);
        assert_int_equal(status, i == 0 ? TSR_E_NOMEM : i == 1 ? TSR_E_CANCELLED : TSR_E_NOT_FOUND);
        assert_non_null(strstr(err.message, i == 0 ? "the buffer is missing" : i == 1 ? "interrupted" : "are missing"));
        for (size_t b = 0; b < count; b++) free(got.buffers[b]);
    }
    tsr_arena_free(arena);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_optim_read__E4_what_pytorch_loads_in_any_world),
        cmocka_unit_test(test_stream_optim_read__what_goes_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
