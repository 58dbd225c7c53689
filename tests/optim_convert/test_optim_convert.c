/* The optimizer conversions: the store of a result must have the same contents as the written files, in chains of
 * conversions from a real PyTorch checkpoint and back to its values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "support/arena_job.h"
#include "support/random.h"
#include "support/sample.h"
#include "tessera/optim_convert.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"

static const char flat_3[] =
    "{\"schema\": \"tessera.flat-params/1\", \"world_size\": 3, \"use_orig_params\": false, \"files\": [\"rank0.pt\", "
    "\"rank1.pt\", \"rank2.pt\"], \"units\": [{\"fsdp_module\": \"\", \"raw_name\": \"_flat_param\", \"params\": ["
    "{\"fqn\": \"emb.weight\", \"shape\": [11, 6]}, {\"fqn\": \"block.norm.weight\", \"shape\": [6]}, "
    "{\"fqn\": \"block.norm.bias\", \"shape\": [6]}, {\"fqn\": \"block.up.weight\", \"shape\": [7, 6]}, "
    "{\"fqn\": \"block.down.weight\", \"shape\": [6, 7]}, {\"fqn\": \"block.down.bias\", \"shape\": [6]}, "
    "{\"fqn\": \"few.weight\", \"shape\": [2, 6]}], \"numels_with_padding\": [66, 6, 6, 42, 42, 6, 12], "
    "\"is_padding_mask\": [false, false, false, false, false, false, false]}], \"param_groups\": [[\"_flat_param\"]]}";

static const char modules[] =
    "{\"schema\": \"tessera.modules/1\", \"root\": {\"class\": \"Net\", \"wrapper\": \"none\", \"parameters\": {}, "
    "\"buffers\": {}, \"extra_state\": false, \"children\": {}}, \"groups\": [[\"emb.weight\", \"block.norm.weight\", "
    "\"block.norm.bias\", \"block.up.weight\", \"block.down.weight\", \"block.down.bias\", \"few.weight\"]]}";

static const tsr_host host = {.allocator = &tsr_allocator_libc};

typedef struct link { /* one conversion of a chain */
    tsr_optim_job *job;
    tsr_store *store;
} link;

typedef struct chain {
    tsr_host host;
    sample source;
    tsr_ring *ring;
    link links[8];
    size_t count;
    size_t warnings;
} chain;

static void open_chain(chain *c)
{
    memset(c, 0, sizeof *c);
    c->host = host;
    c->host.limits = tsr_limits_default();
    sample_add_file(&c->source, "dcp_fsdp2", ".metadata");
    for (int rank = 0; rank < 4; rank++) {
        char name[32];
        snprintf(name, sizeof name, "__%d_0.distcp", rank);
        sample_add_file(&c->source, "dcp_fsdp2", name);
    }
    assert_int_equal(sample_open(&c->source, &tsr_allocator_libc), TSR_OK);
    assert_int_equal(tsr_ring_new(&c->host, 0, &c->ring, NULL), TSR_OK);
}

static void close_chain(chain *c)
{
    while (c->count) {
        link *last = &c->links[--c->count];
        if (last->store) last->store->close(last->store);
        tsr_optim_close(last->job);
    }
    tsr_ring_free(c->ring);
    sample_close(&c->source);
}

static void count_warning(void *ctx, tsr_str message)
{
    assert_true(message.size > 0);
    ++*(size_t *)ctx;
}

static tsr_optim_request request_of(chain *c, tsr_optim_action action)
{
    tsr_optim_request r = {.action = action, .ring = c->ring, .warn = count_warning, .warn_ctx = &c->warnings};
    r.modules.text = tsr_str_from(modules);
    r.flat_params.text = tsr_str_from(flat_3);
    return r;
}

/* ---- comparing the store with the written files ---- */

static void check_chunks(const tsr_entry *a, const tsr_entry *b, const tsr_store *x, const tsr_store *y)
{
    assert_int_equal(a->chunk_count, b->chunk_count);
    for (uint64_t i = 0; i < a->chunk_count; i++) {
        const tsr_chunk *p = &a->chunks[i], *q = &b->chunks[i];
        assert_true(tsr_str_equal(x->files[p->file].name, y->files[q->file].name));
        assert_int_equal(p->byte_offset, q->byte_offset);
        assert_int_equal(p->byte_length, q->byte_length);
        for (uint32_t d = 0; d < a->ndim; d++) {
            assert_int_equal(p->offsets[d], q->offsets[d]);
            assert_int_equal(p->sizes[d], q->sizes[d]);
        }
    }
}

static void check_values(tsr_checkpoint *a, const tsr_entry *x, tsr_checkpoint *b, const tsr_entry *y)
{
    static const uint64_t zeros[TSR_MAX_NDIM] = {0};
    uint64_t bytes;
    char *buffers[2];
    assert_int_equal(tsr_tensor_bytes(x, &bytes, NULL), TSR_OK);
    for (int i = 0; i < 2; i++) {
        tsr_error err = {0};
        buffers[i] = malloc(bytes + 1);
        const tsr_status status =
            tsr_read_box(i ? b : a, i ? y : x, (tsr_box){(i ? y : x)->ndim, zeros, x->shape}, buffers[i], bytes, &err);
        if (status != TSR_OK) fail_msg("%s", err.message);
    }
    assert_memory_equal(buffers[0], buffers[1], bytes);
    free(buffers[0]);
    free(buffers[1]);
}

static void check_catalogs(tsr_checkpoint *a, tsr_checkpoint *b)
{
    const tsr_catalog *x = tsr_checkpoint_catalog(a), *y = tsr_checkpoint_catalog(b);
    const tsr_findings *f = tsr_checkpoint_findings(a), *g = tsr_checkpoint_findings(b);
    assert_int_equal(x->format, y->format);
    assert_int_equal(x->entry_count, y->entry_count);
    assert_int_equal(tsr_findings_count(f), tsr_findings_count(g));
    for (size_t i = 0; i < tsr_findings_count(f); i++)
        assert_true(tsr_str_equal(tsr_findings_at(f, i)->message, tsr_findings_at(g, i)->message));
    for (uint64_t i = 0; i < x->entry_count; i++) {
        const tsr_entry *e = &x->entries[i], *o = tsr_checkpoint_entry(b, e->fqn);
        assert_non_null(o);
        assert_true(e->kind == o->kind && e->dtype == o->dtype && e->ndim == o->ndim);
        assert_true(e->storage_id == o->storage_id && e->replica_count == o->replica_count);
        if (e->value) assert_int_equal(tsr_value_match(e->value, o->value, 64, 1 << 20), TSR_SAME);
        check_chunks(e, o, x->store, y->store);
        if (e->kind == TSR_ENTRY_TENSOR) check_values(a, e, b, o);
    }
}

/* Any part of a file must be the same whether it is read separately or with the whole file. */
static void check_ranges(tsr_store *store)
{
    random_source random = {7};
    for (uint32_t f = 0; f < store->file_count; f++) {
        const size_t size = (size_t)store->files[f].size;
        char *whole = malloc(size), *part = malloc(size);
        assert_int_equal(tsr_store_read(store, f, 0, whole, size, NULL), TSR_OK);
        for (int i = 0; i < 400; i++) {
            const size_t at = (size_t)random_in(&random, 0, size - 1), left = size - at;
            const size_t count = (size_t)random_in(&random, 1, i % 2 || left < 24 ? left : 24);
            assert_int_equal(tsr_store_read(store, f, at, part, count, NULL), TSR_OK);
            assert_memory_equal(part, whole + at, count);
        }
        assert_int_equal(tsr_store_read(store, f, size, part, 1, NULL), TSR_E_IO);
        free(whole);
        free(part);
    }
}

/* Writes the files of a job into memory, where they stay until the output is closed. */
static tsr_store *written(chain *c, tsr_optim_job *job, tsr_output **output)
{
    static tsr_memory_file files[8];
    tsr_store *store;
    const uint32_t count = tsr_optim_file_count(job);
    assert_int_equal(tsr_output_to_memory(&tsr_allocator_libc, output, NULL), TSR_OK);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = tsr_optim_is_directory(job) ? tsr_optim_file_name(job, i) : TSR_STR("optim.pt");
        tsr_tree_file file = {.output = *output, .name = name, .ring = c->ring};
        tsr_error err = {0};
        if (tsr_optim_write(job, i, &file, &err) != TSR_OK) fail_msg("%s", err.message);
    }
    for (uint32_t i = 0; i < count; i++) {
        files[i].name = tsr_output_memory_name(*output, i);
        files[i].content = tsr_output_memory_file(*output, files[i].name);
    }
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, files, count, &store, NULL), TSR_OK);
    if (!tsr_optim_is_directory(job)) store->primary = 0;
    return store;
}

static tsr_checkpoint *opened(chain *c, tsr_store *store)
{
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    const tsr_open_options listed = {.purpose = TSR_FOR_NAMES};
    if (tsr_checkpoint_open(store, &c->host, &listed, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    return checkpoint;
}

/* Converts `from` (NULL: the sample), checks the store of the result, and returns it for the next conversion. */
static tsr_store *convert(chain *c, tsr_store *from, const tsr_optim_request *request)
{
    tsr_error err = {0};
    tsr_output *output;
    link *l = &c->links[c->count++];
    tsr_status status = tsr_optim_open(from ? from : c->source.store, &c->host, request, &l->job, &err);
    if (status == TSR_OK) status = tsr_optim_store(l->job, &l->store, &err);
    if (status != TSR_OK) fail_msg("%s", err.message);
    tsr_store *files = written(c, l->job, &output);
    tsr_checkpoint *a = opened(c, files), *b = opened(c, l->store);
    check_catalogs(a, b);
    check_ranges(l->store);
    tsr_checkpoint_close(a);
    tsr_checkpoint_close(b);
    files->close(files);
    output->close(output);
    return l->store;
}

/* Checks that the state of every parameter is the sample's. */
static void check_state(chain *c, tsr_store *store)
{
    tsr_checkpoint *a = opened(c, c->source.store), *b = opened(c, store);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(a);
    size_t compared = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        char name[128];
        const tsr_entry *entry = &catalog->entries[i];
        if (!tsr_str_starts(entry->fqn, TSR_STR("optim.state."))) continue;
        snprintf(name, sizeof name, "%.*s", (int)entry->fqn.size - 6, entry->fqn.data + 6);
        const tsr_entry *other = tsr_checkpoint_entry(b, tsr_str_from(name));
        if (!other) fail_msg("there is no %s", name);
        check_values(a, entry, b, other);
        compared++;
    }
    assert_int_equal(compared, 21);
    tsr_checkpoint_close(a);
    tsr_checkpoint_close(b);
}

static void test_optim_convert__names_and_ids_there_and_back(void **state)
{
    (void)state;
    chain c;
    open_chain(&c);
    tsr_optim_request request = request_of(&c, TSR_OPTIM_FLATTEN);
    request.at = TSR_STR("optim");
    tsr_store *store = convert(&c, NULL, &request);
    check_state(&c, store);
    static const tsr_optim_action next[] = {TSR_OPTIM_UNFLATTEN, TSR_OPTIM_TO_ID, TSR_OPTIM_TO_FQN};
    for (size_t i = 0; i < 3; i++) {
        request = request_of(&c, next[i]);
        if (next[i] == TSR_OPTIM_UNFLATTEN) request.modules.text.data = NULL; /* the tree has no parameters there */
        store = convert(&c, store, &request);
        if (next[i] != TSR_OPTIM_TO_ID) check_state(&c, store);
    }
    assert_int_equal(c.warnings, 0);
    close_chain(&c);
}

static void test_optim_convert__shards_there_and_back(void **state)
{
    (void)state;
    chain c;
    open_chain(&c);
    tsr_optim_request request = request_of(&c, TSR_OPTIM_SHARD);
    tsr_store *ranks = convert(&c, NULL, &request);
    assert_int_equal(ranks->file_count, 3);
    request = request_of(&c, TSR_OPTIM_UNSHARD);
    tsr_store *full = convert(&c, ranks, &request);
    check_state(&c, full);
    request.sharded = true;
    check_state(&c, convert(&c, ranks, &request));
    request = request_of(&c, TSR_OPTIM_SHARD);
    request.has_world_size = true;
    request.world_size = 5;
    assert_int_equal(convert(&c, full, &request)->file_count, 5);
    close_chain(&c);
}

static void refused(chain *c, tsr_store *store, const tsr_optim_request *request, tsr_status status, const char *message)
{
    tsr_optim_job *job;
    tsr_error err = {0};
    assert_int_equal(tsr_optim_open(store, &c->host, request, &job, &err), status);
    assert_null(job);
    if (!strstr(err.message, message)) fail_msg("'%s' is not about '%s'", err.message, message);
}

static void test_optim_convert__refusals_name_the_option(void **state)
{
    (void)state;
    chain c;
    open_chain(&c);
    tsr_store *store = c.source.store;
    tsr_optim_request r = request_of(&c, TSR_OPTIM_SHARD);
    r.flat_params.text.data = NULL;
    refused(&c, store, &r, TSR_E_USAGE, "needs --flat-params");
    r = request_of(&c, TSR_OPTIM_TO_FQN);
    r.modules.text.data = NULL;
    refused(&c, store, &r, TSR_E_USAGE, "needs --modules");
    r = request_of(&c, TSR_OPTIM_SHARD);
    r.sharded = true;
    refused(&c, store, &r, TSR_E_USAGE, "--sharded can only be used with");
    r = request_of(&c, TSR_OPTIM_SHARD);
    r.has_rank = true;
    refused(&c, store, &r, TSR_E_USAGE, "--rank can only be used with");
    r = request_of(&c, TSR_OPTIM_SHARD);
    r.has_world_size = true;
    refused(&c, store, &r, TSR_E_USAGE, "not '0'");
    r.world_size = UINT64_MAX;
    refused(&c, store, &r, TSR_E_USAGE, "--world-size");
    r = request_of(&c, TSR_OPTIM_UNSHARD);
    refused(&c, store, &r, TSR_E_NOT_FOUND, "'rank0.pt' for rank 0");
    r.has_rank = true;
    r.rank = 3;
    refused(&c, store, &r, TSR_E_USAGE, "from 0 to 2, not '3'");
    r = request_of(&c, TSR_OPTIM_FLATTEN);
    r.at = TSR_STR("nosuch");
    refused(&c, store, &r, TSR_E_NOT_FOUND, "there is no 'nosuch'");
    r.at = (tsr_str){NULL, 0};
    r.modules = (tsr_optim_document){TSR_STR("{\"schema\": 1}"), "m.json"};
    refused(&c, store, &r, TSR_E_FORMAT, "in --modules m.json");
    close_chain(&c);
}

static tsr_status make_store(const void *ctx, const tsr_host *lent, tsr_arena *arena, tsr_error *err)
{
    (void)arena;
    tsr_optim_job *job = NULL;
    tsr_store *store = NULL;
    tsr_ring *ring = NULL;
    tsr_optim_request request = {.action = TSR_OPTIM_SHARD, .flat_params = {.text = tsr_str_from(flat_3)}};
    tsr_status status = tsr_ring_new(lent, 0, &ring, err);
    request.ring = ring;
    if (status == TSR_OK) status = tsr_optim_open(*(tsr_store *const *)ctx, lent, &request, &job, err);
    if (status == TSR_OK) status = tsr_optim_store(job, &store, err);
    if (store) store->close(store);
    tsr_optim_close(job);
    tsr_ring_free(ring);
    return status;
}

static void test_optim_convert__failed_allocations_leak_nothing(void **state)
{
    (void)state;
    chain c;
    open_chain(&c);
    tsr_optim_request request = request_of(&c, TSR_OPTIM_FLATTEN);
    tsr_store *flat = convert(&c, NULL, &request);
    must_bear_failed_allocations(make_store, &flat, TSR_OK);
    close_chain(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_convert__names_and_ids_there_and_back),
        cmocka_unit_test(test_optim_convert__shards_there_and_back),
        cmocka_unit_test(test_optim_convert__refusals_name_the_option),
        cmocka_unit_test(test_optim_convert__failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
