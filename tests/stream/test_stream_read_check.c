/* tessera/sys/read.h, with checkpoints that PyTorch wrote: a byte that changes is noticed if its chunk was read whole, in whatever
 * pieces, and not otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"

static const char *const samples[] = {"torch_plain", "dcp_fsdp2", "dcp_tp"};

/* A byte of a file that is read with another value. */
static struct damage {
    tsr_status (*read_at)(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);
    uint32_t file;
    uint64_t at; /* UINT64_MAX: none */
} damage;

static tsr_status read_damaged(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const tsr_status status = damage.read_at(store, file, offset, buffer, size, err);
    if (status == TSR_OK && file == damage.file && damage.at >= offset && damage.at - offset < size)
        ((uint8_t *)buffer)[damage.at - offset] ^= 16;
    return status;
}

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry; /* with rows, and with bytes of its own */
} opened;

/* A tensor with at least two rows. */
static const tsr_entry *find_entry(const tsr_checkpoint *checkpoint)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && entry->ndim == 2 && entry->shape[0] > 2 && entry->shape[1] > 1) return entry;
    }
    fail();
    return NULL;
}

static void start(opened *o, const char *sample, const tsr_allocator *allocator)
{
    char path[1024];
    tsr_error err = {0};
    *o = (opened){.host = {.allocator = allocator, .limits = tsr_limits_default()}};
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s%s", TSR_TEST_DATA, sample,
             strncmp(sample, "torch", 5) == 0 ? "/model.pt" : "");
    assert_int_equal(tsr_directory_store_open(NULL, &tsr_allocator_libc, path, &o->store, &err), TSR_OK);
    damage = (struct damage){o->store->read_at, 0, UINT64_MAX};
    o->store->read_at = read_damaged;
    o->store->map = NULL;
    assert_int_equal(tsr_checkpoint_open(o->store, &o->host, NULL, &o->checkpoint, &err), TSR_OK);
    o->entry = find_entry(o->checkpoint);
}

static void end(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
}

/* Damages the last element of the entry's last chunk that has elements. */
static void damage_last(opened *o)
{
    tsr_error err = {0};
    tsr_view view;
    const tsr_entry *entry = o->entry;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    const tsr_chunk *chunk = &entry->chunks[entry->chunk_count - 1];
    while (!chunk->sizes[0] || !chunk->sizes[1]) chunk--;
    assert_int_equal(tsr_checkpoint_locate(o->checkpoint, entry, chunk, arena, &view, &err), TSR_OK);
    damage.file = view.file;
    damage.at = view.byte_offset + chunk->sizes[0] * chunk->sizes[1] * tsr_dtype_size(entry->dtype) - 1;
    tsr_arena_free(arena);
}

/* Reads rows [from, to), in pieces of one row each, the last first, by two "threads". */
static tsr_status read_rows(opened *o, tsr_read_check *check, uint64_t from, uint64_t to, tsr_error *err)
{
    const tsr_entry *entry = o->entry;
    const size_t bytes = entry->shape[1] * tsr_dtype_size(entry->dtype);
    uint8_t *row = malloc(bytes);
    tsr_status status = TSR_OK;
    assert_non_null(row);
    for (uint64_t r = to; r-- > from && status == TSR_OK;) {
        const uint64_t offsets[] = {r, 0}, sizes[] = {1, entry->shape[1]};
        status = tsr_read_box_checked(check, r % 2, entry, (tsr_box){2, offsets, sizes}, row, bytes, err);
    }
    free(row);
    return status;
}

static tsr_status read_and_check(opened *o, uint64_t from, uint64_t to, tsr_error *err)
{
    tsr_read_check *check = NULL;
    tsr_status status = tsr_read_check_new(o->checkpoint, 2, &check, err);
    if (status == TSR_OK) status = read_rows(o, check, from, to, err);
    if (status == TSR_OK) status = tsr_read_check_end(check, err);
    tsr_read_check_free(check);
    return status;
}

static void test_stream_read_check__a_changed_byte_is_noticed_in_whole_chunks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        opened o;
        tsr_error err = {0};
        start(&o, samples[i], &tsr_allocator_libc);
        const uint64_t rows = o.entry->shape[0];
        if (read_and_check(&o, 0, rows, &err) != TSR_OK) fail_msg("%s: %s", samples[i], err.message);
        damage_last(&o);
        assert_int_equal(read_and_check(&o, 0, rows, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, "is damaged"));
        assert_memory_equal(err.message + 1, o.entry->fqn.data, o.entry->fqn.size);
        memset(&err, 0, sizeof err);
        assert_int_equal(read_and_check(&o, rows - 1, rows, &err), TSR_OK); /* a part of a chunk */
        end(&o);
    }
}

static void test_stream_read_check__a_whole_box_is_compared_at_once(void **state)
{
    opened o;
    tsr_error err = {0};
    tsr_read_check *check = NULL;
    (void)state;
    start(&o, "torch_plain", &tsr_allocator_libc);
    const size_t bytes = o.entry->shape[0] * o.entry->shape[1] * tsr_dtype_size(o.entry->dtype);
    uint8_t *buffer = malloc(bytes);
    const tsr_box box = {2, NULL, o.entry->shape};
    assert_non_null(buffer);
    damage_last(&o);
    assert_int_equal(tsr_read_check_new(o.checkpoint, 1, &check, &err), TSR_OK);
    assert_int_equal(tsr_read_box_checked(check, 0, o.entry, box, buffer, bytes, &err), TSR_E_FORMAT);
    memset(&err, 0, sizeof err);
    assert_int_equal(tsr_read_box_checked(check, 0, o.entry, box, buffer, bytes - 1, &err), TSR_E_USAGE);
    tsr_read_check_free(check);
    free(buffer);
    end(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_read_check__a_changed_byte_is_noticed_in_whole_chunks),
        cmocka_unit_test(test_stream_read_check__a_whole_box_is_compared_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
