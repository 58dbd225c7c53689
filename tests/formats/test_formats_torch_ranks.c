/* Several torch.save files as one checkpoint: what is joined, and what is reported if files do not belong together. Complete
 * sets from real ranks are in test_formats_torch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/checkpoint_opening.h"
#include "support/sample.h"
#include "support/torch_pickle.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"

static zip_image image;

typedef struct opened {
    sample sample;
    tsr_host host;
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_error err;
} opened;

static void add_pickle(opened *o, const char *name, const char *pickle, size_t storage_bytes)
{
    torch_image(&image, pickle, (const size_t[]){storage_bytes, SIZE_MAX});
    char *copy = malloc(image.size);
    memcpy(copy, image.bytes, image.size);
    sample_add(&o->sample, name, (tsr_str){copy, image.size});
}

static void add_text(opened *o, const char *name, const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    memcpy(copy, text, strlen(text) + 1);
    sample_add(&o->sample, name, (tsr_str){copy, strlen(text)});
}

static tsr_status open_files(opened *o)
{
    o->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    assert_int_equal(sample_open(&o->sample, &tsr_allocator_libc), TSR_OK);
    tsr_status status = tsr_checkpoint_open(o->sample.store, &o->host, &(tsr_open_options){.purpose = TSR_FOR_NAMES},
                                            &o->checkpoint, &o->err);
    if (status == TSR_OK) o->catalog = tsr_checkpoint_catalog(o->checkpoint);
    return status;
}

static void must_open(opened *o)
{
    if (open_files(o) != TSR_OK) fail_msg("%s", o->err.message);
    assert_int_equal(must_bear_failures(open_and_walk, NULL, o->sample.store, &o->host), TSR_OK);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    sample_close(&o->sample);
}

static unsigned count_findings(const opened *o, const char *rule, const char *message)
{
    const tsr_findings *findings = tsr_checkpoint_findings(o->checkpoint);
    unsigned count = 0;
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        char text[512];
        snprintf(text, sizeof text, "%.*s", TSR_STR_ARG(f->message));
        count += strcmp(f->rule->id, rule) == 0 && strstr(text, message) != NULL;
    }
    return count;
}

#define PLAIN(size) "(dS'w'\n" PICKLED_TENSOR("0", "2", PICKLED_1(size), PICKLED_1("1")) "s."
#define EPOCH(n)    "(dS'epoch'\nI" n "\ns."

static void test_formats_torch_ranks__equal_tensors_become_replicas(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    add_pickle(&o, "rank0.pt", PLAIN("2"), 8);
    add_pickle(&o, "rank1.pt", PLAIN("2"), 8);
    add_pickle(&o, "rank2.pt", PLAIN("2"), 8);
    must_open(&o);
    const tsr_entry *w = tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"));
    assert_int_equal(w->chunk_count, 1);
    assert_int_equal(w->chunks[0].file, 0);
    assert_int_equal(w->replica_count, 2);
    assert_int_equal(w->replicas[0].file, 1);
    assert_int_equal(w->replicas[1].file, 2);
    assert_int_equal(w->storage_id, 0);
    assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(o.checkpoint)), 0);
    drop(&o);
}

static void test_formats_torch_ranks__tensors_that_differ_in_kind_are_listed_per_rank(void **state)
{
    (void)state;
    static const char *const others[] = {PLAIN("1"), "(dS'w'\nI1\ns.",
                                         "(dS'w'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nIntStorage\nS'0'"
                                         "\nS'cpu'\nI2\ntQI0\n(I2\nt(I1\ntI00\nNtRs.",
                                         "(dS'w'\n" PICKLED_TENSOR("0", "2", PICKLED_2("2", "1"), PICKLED_2("1", "1")) "s."};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        opened o = {.catalog = NULL};
        add_pickle(&o, "rank0.pt", PLAIN("2"), 8);
        add_pickle(&o, "rank1.pt", others[i], 8);
        must_open(&o);
        assert_int_equal(o.catalog->format, TSR_FORMAT_SHARDS);
        assert_int_equal(count_findings(&o, "torch/rank-differs", "1 tensor differs between the 2 ranks: 'w'"), 1);
        assert_int_equal(tsr_findings_total(tsr_checkpoint_findings(o.checkpoint), TSR_NOTE), 1);
        const tsr_entry *w = &o.catalog->entries[0];
        assert_int_equal(w->kind, TSR_ENTRY_OPAQUE);
        assert_int_equal(w->chunk_count + w->replica_count, 0);
        assert_int_equal(w->per_rank->count, 2);
        assert_int_equal(w->per_rank->tensors[0]->shape[0], 2);
        assert_int_equal(w->per_rank->tensors[1] == NULL, i == 1);
        assert_int_equal(tsr_checkpoint_require(o.checkpoint, TSR_FOR_VALUES, &o.err), TSR_E_UNSUPPORTED);
        assert_non_null(strstr(o.err.message, "1 tensor differs between ranks: 'w'"));
        drop(&o);
    }
}

static void test_formats_torch_ranks__objects_of_the_lowest_rank_stay(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    add_pickle(&o, "rank0.pt", EPOCH("3"), 0);
    add_pickle(&o, "rank1.pt", EPOCH("4"), 0);
    add_pickle(&o, "rank2.pt", EPOCH("3"), 0);
    must_open(&o);
    assert_int_equal(o.catalog->entries[0].value->as.integer, 3);
    assert_int_equal(count_findings(&o, "torch/rank-object", "'epoch' differs"), 1);
    drop(&o);
}

static void test_formats_torch_ranks__a_missing_rank_is_named(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    for (const char *const *f = (const char *const[]){"rank0.pt", "rank1.pt", "rank3.pt", NULL}; *f; f++)
        sample_add_file(&o.sample, "broken_ranks_missing", *f);
    must_open(&o);
    assert_int_equal(count_findings(&o, "torch/rank-missing", "the file of rank 2 of 4 is missing"), 1);
    drop(&o);
}

static void test_formats_torch_ranks__two_files_of_one_rank_are_reported(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    sample_add(&o.sample, "rank0.pt", sample_read("torch_ranks_replicated/rank0.pt"));
    sample_add(&o.sample, "rank1.pt", sample_read("torch_ranks_tp_fsdp2/rank2.pt"));
    sample_add(&o.sample, "rank2.pt", sample_read("torch_ranks_tp_fsdp2/rank2.pt"));
    must_open(&o);
    assert_int_equal(count_findings(&o, "torch/rank-twice", "rank 2 wrote 'rank1.pt' and 'rank2.pt'"), 1);
    assert_int_equal(count_findings(&o, "torch/rank-missing", "of 4"), 2);
    drop(&o);
}

#define SHARD_OF(rank, world) \
    "(dS'w'\n" PICKLED_SHARDED(PICKLED_1("4"), "", PICKLED_GROUP("I" rank "\n", "I" world "\n")) "s."

static void test_formats_torch_ranks__worlds_of_any_size_are_borne(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second, *message;
        unsigned findings;
    } rows[] = {
        {SHARD_OF("0", "2"), SHARD_OF("1", "2"), "the file of rank", 0},
        {SHARD_OF("0", "2"), SHARD_OF("7", "2"), "the file of rank 1 of 2 is missing", 1}, /* a rank beyond its world size */
        {SHARD_OF("0", "100"), SHARD_OF("1", "100"), "the file of rank", 16}, /* no more than these are listed */
        {SHARD_OF("0", "70000"), SHARD_OF("1", "2"), "the files were written by 70000 ranks, but there are 2 files", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o = {.catalog = NULL};
        add_pickle(&o, "rank0.pt", rows[i].first, SIZE_MAX);
        add_pickle(&o, "rank1.pt", rows[i].second, SIZE_MAX);
        must_open(&o);
        assert_int_equal(count_findings(&o, "torch/rank-missing", rows[i].message), rows[i].findings);
        assert_int_equal(count_findings(&o, "torch/rank-missing", ""), rows[i].findings);
        drop(&o);
    }
}

/* A mesh that does not say which rank wrote the file, so that the file's name decides. */
static void test_formats_torch_ranks__ranks_come_from_names_where_files_do_not_tell(void **state)
{
    (void)state;
    static const char pickle[] = "(dS'w'\n" PICKLED_DTENSOR(
        PICKLED_1("2"), PICKLED_1("1"), PICKLED_TENSOR("0", "1", PICKLED_1("1"), PICKLED_1("1")),
        PICKLED_MESH(PICKLED_1("2"), "S'_flatten_mesh_list'\n(I0\nI1\nts"), PICKLED_SHARD("0"), "") "s.";
    static const struct {
        const char *names[2];
        size_t chunks;
        unsigned untold;
    } rows[] = {{{"rank0.pt", "rank1.pt"}, 2, 0},
                {{"0.pt", "1.pt"}, 2, 0},
                {{"rank1", "rank10"}, 1, 1},
                {{"rank1.pt", "rank99999999999.pt"}, 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o = {.catalog = NULL};
        for (size_t k = 0; k < 2; k++) add_pickle(&o, rows[i].names[k], pickle, 4);
        must_open(&o);
        assert_int_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"))->chunk_count, rows[i].chunks);
        assert_int_equal(count_findings(&o, "torch/dtensor", "which rank's shard"), rows[i].untold);
        drop(&o);
    }
}

static void test_formats_torch_ranks__entries_are_bounded_by_limits(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    add_pickle(&o, "rank0.pt", EPOCH("3"), SIZE_MAX);
    add_pickle(&o, "rank1.pt", "(dS'step'\nI1\ns.", SIZE_MAX);
    must_open(&o);
    o.host.limits.entries = 1;
    tsr_error err = {0};
    assert_int_equal(open_and_walk(NULL, o.sample.store, &o.host, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "torch: more than 1 entries"));
    drop(&o);
}

static void test_formats_torch_ranks__no_entries_at_all_are_a_checkpoint(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    add_pickle(&o, "rank0.pt", "(d.", SIZE_MAX);
    add_pickle(&o, "rank1.pt", "(d.", SIZE_MAX);
    must_open(&o);
    assert_int_equal(o.catalog->entry_count, 0);
    drop(&o);
}

/* More names than a table has room for at first. */
static void test_formats_torch_ranks__many_entries_come_together(void **state)
{
    (void)state;
    static char pickle[8192];
    opened o = {.catalog = NULL};
    size_t used = (size_t)snprintf(pickle, sizeof pickle, "(d");
    for (int i = 0; i < 20; i++) {
        used += (size_t)snprintf(pickle + used, sizeof pickle - used,
                                 "S'k%d'\n" PICKLED_TENSOR("0", "1", PICKLED_1("1"), PICKLED_1("1")) "s", i);
    }
    snprintf(pickle + used, sizeof pickle - used, ".");
    add_pickle(&o, "rank0.pt", pickle, 4);
    add_pickle(&o, "rank1.pt", pickle, 4);
    must_open(&o);
    assert_int_equal(o.catalog->entry_count, 20);
    assert_int_equal(o.catalog->entries[19].replica_count, 1);
    drop(&o);
}

static void test_formats_torch_ranks__a_broken_file_is_named(void **state)
{
    (void)state;
    opened o = {.catalog = NULL};
    add_pickle(&o, "rank0.pt", PLAIN("2"), 8);
    add_pickle(&o, "rank1.pt", PLAIN("2"), 4);
    assert_int_equal(open_files(&o), TSR_E_FORMAT);
    assert_non_null(strstr(o.err.message, "in rank1.pt"));
    drop(&o);
}

/* ---- index ---- */

#define INDEX(map) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" map "}}"

static void test_formats_torch_index__what_index_and_files_say_differently_is_reported(void **state)
{
    (void)state;
    static const struct {
        const char *index, *rule;
        tsr_entry_kind kind; /* that of 'w' */
    } rows[] = {
        {INDEX("\"w\":\"a.bin\",\"epoch\":\"b.bin\""), NULL, TSR_ENTRY_TENSOR},
        {INDEX("\"w\":\"a.bin\""), "index/unreferenced-file", TSR_ENTRY_TENSOR},
        {INDEX("\"w\":\"b.bin\",\"epoch\":\"b.bin\""), "index/missing-key", TSR_ENTRY_OPAQUE},
        {INDEX("\"w\":\"gone.bin\",\"epoch\":\"b.bin\",\"x\":\"a.bin\""), "index/missing-file", TSR_ENTRY_OPAQUE},
        {INDEX("\"epoch\":\"b.bin\",\"x\":\"a.bin\""), "index/extra-key", TSR_ENTRY_TENSOR},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o = {.catalog = NULL};
        add_pickle(&o, "a.bin", PLAIN("2"), 8);
        add_pickle(&o, "b.bin", EPOCH("3"), 0);
        add_text(&o, "pytorch_model.bin.index.json", rows[i].index);
        must_open(&o);
        assert_int_equal(o.catalog->format, TSR_FORMAT_TORCH_INDEX);
        assert_int_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"))->kind, rows[i].kind);
        if (rows[i].rule && !count_findings(&o, rows[i].rule, "")) fail_msg("row %zu: no %s", i, rows[i].rule);
        if (!rows[i].rule) assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(o.checkpoint)), 0);
        drop(&o);
    }
}

static void test_formats_torch_index__files_that_are_none_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {{"K\1.K\1.K\1.K\1.K\1.", "does not begin with torch.save's magic number"},
                {"K\1.", "too few for a torch.save file"}};
    for (size_t i = 0; i < 2; i++) {
        opened o = {.catalog = NULL};
        add_pickle(&o, "a.bin", PLAIN("2"), 8);
        add_text(&o, "b.bin", rows[i].text);
        add_text(&o, "pytorch_model.bin.index.json", INDEX("\"w\":\"a.bin\",\"epoch\":\"b.bin\""));
        assert_int_equal(open_files(&o), TSR_E_FORMAT);
        if (!strstr(o.err.message, rows[i].message)) fail_msg("%s", o.err.message);
        drop(&o);
    }
}

static void test_formats_torch_index__a_copy_in_another_file_is_kept_for_comparison(void **state)
{
    (void)state;
    static const char *const copies[] = {PLAIN("2"), PLAIN("1")};
    for (size_t i = 0; i < 2; i++) {
        opened o = {.catalog = NULL};
        add_pickle(&o, "a.bin", PLAIN("2"), 8);
        add_pickle(&o, "b.bin", copies[i], 8);
        add_text(&o, "pytorch_model.bin.index.json", INDEX("\"w\":\"a.bin\",\"x\":\"b.bin\""));
        must_open(&o);
        const tsr_entry *w = tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"));
        assert_int_equal(w->replica_count, i == 0);
        assert_int_equal(count_findings(&o, "index/key-in-two-files", i == 0 ? "" : "a different kind, dtype or shape"), 1);
        assert_int_equal(tsr_findings_total(tsr_checkpoint_findings(o.checkpoint), TSR_ERROR), i == 0 ? 1 : 2);
        drop(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_ranks__equal_tensors_become_replicas),
        cmocka_unit_test(test_formats_torch_ranks__tensors_that_differ_in_kind_are_listed_per_rank),
        cmocka_unit_test(test_formats_torch_ranks__objects_of_the_lowest_rank_stay),
        cmocka_unit_test(test_formats_torch_ranks__a_missing_rank_is_named),
        cmocka_unit_test(test_formats_torch_ranks__two_files_of_one_rank_are_reported),
        cmocka_unit_test(test_formats_torch_ranks__worlds_of_any_size_are_borne),
        cmocka_unit_test(test_formats_torch_ranks__ranks_come_from_names_where_files_do_not_tell),
        cmocka_unit_test(test_formats_torch_ranks__entries_are_bounded_by_limits),
        cmocka_unit_test(test_formats_torch_ranks__no_entries_at_all_are_a_checkpoint),
        cmocka_unit_test(test_formats_torch_ranks__many_entries_come_together),
        cmocka_unit_test(test_formats_torch_ranks__a_broken_file_is_named),
        cmocka_unit_test(test_formats_torch_index__what_index_and_files_say_differently_is_reported),
        cmocka_unit_test(test_formats_torch_index__files_that_are_none_are_refused),
        cmocka_unit_test(test_formats_torch_index__a_copy_in_another_file_is_kept_for_comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
