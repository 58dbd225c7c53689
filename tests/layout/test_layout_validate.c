#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/validate.h"

#define BOX(...) ((const uint64_t[]){__VA_ARGS__})
#define CHUNKS(...) \
    .chunks = (const tsr_chunk[]){__VA_ARGS__}, .chunk_count = sizeof((const tsr_chunk[]){__VA_ARGS__}) / sizeof(tsr_chunk)
#define TENSOR(name, type, dims, ...) \
    .fqn = {name, sizeof name - 1}, .kind = TSR_ENTRY_TENSOR, .dtype = type, .ndim = dims, .shape = BOX(__VA_ARGS__)

static const tsr_str file_names[] = {{"__0_0.distcp", 12}, {"__1_0.distcp", 12}};

static tsr_host host_with(const tsr_allocator *allocator)
{
    return (tsr_host){.allocator = allocator, .limits = tsr_limits_default()};
}

typedef struct expected {
    const char *rule;
    const char *fqn;
    const char *message_part;
    const char *file;
} expected;

static void assert_findings(const tsr_findings *findings, const expected *want, size_t count)
{
    assert_int_equal(tsr_findings_count(findings), count);
    for (size_t i = 0; i < count; i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        assert_string_equal(f->rule->id, want[i].rule);
        assert_true(tsr_str_equal(f->fqn, tsr_str_from(want[i].fqn)));
        assert_non_null(strstr(f->message.data, want[i].message_part));
        assert_true(tsr_str_equal(f->file, tsr_str_from(want[i].file)));
    }
}

static void validate(tsr_format format, const tsr_entry *entries, size_t entry_count, const expected *want, size_t count)
{
    tsr_error err = {0};
    tsr_host host = host_with(&tsr_allocator_libc);
    tsr_catalog catalog = {.format = format, .entries = entries, .entry_count = entry_count, .file_names = file_names};
    tsr_findings *findings = tsr_findings_new(host.allocator, 0, &err);
    assert_int_equal(tsr_validate_catalog(&catalog, &host, findings, &err), TSR_OK);
    assert_findings(findings, want, count);
    tsr_findings_free(findings);
}

static void test_layout_validate__a_sound_catalog_has_no_findings(void **state)
{
    (void)state;
    const tsr_entry entries[] = {
        {TENSOR("w", TSR_FLOAT32, 2, 3, 4),
         CHUNKS({BOX(0, 0), BOX(2, 4), 0, 100, NULL, 0}, {BOX(2, 0), BOX(1, 4), 0, 100, NULL, 1},
                {BOX(3, 0), BOX(0, 4), 200, 50, NULL, 1})},
        {TENSOR("s", TSR_FLOAT32, 0, 0), CHUNKS({BOX(0), BOX(0), 100, 10, NULL, 0})},
        {TENSOR("none", TSR_FLOAT32, 2, 0, 5), CHUNKS({BOX(0, 0), BOX(0, 5), 300, 50, NULL, 1})},
        {TENSOR("lost", TSR_FLOAT32, 1, 2), CHUNKS({BOX(0), BOX(2), 0, 8, NULL, TSR_NO_FILE})},
        {.fqn = {"o", 1}, .kind = TSR_ENTRY_OBJECT},
    };
    validate(TSR_FORMAT_DCP, entries, 5, NULL, 0);
}

static void test_layout_validate__each_fault_names_its_place(void **state)
{
    (void)state;
    const uint64_t huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 40};
    const tsr_entry entries[] = {
        {TENSOR("hole", TSR_FLOAT32, 2, 6, 4), CHUNKS({BOX(0, 0), BOX(3, 4), 0, 10, NULL, 0})},
        {TENSOR("twice", TSR_FLOAT32, 1, 4), CHUNKS({BOX(0), BOX(3), 10, 10, NULL, 0}, {BOX(2), BOX(2), 20, 10, NULL, 1})},
        {TENSOR("beyond", TSR_FLOAT32, 1, 4), CHUNKS({BOX(0), BOX(5), 30, 10, NULL, 1})},
        {TENSOR("odd", TSR_FLOAT32, 1, 4), CHUNKS({BOX(0), BOX(4), 40, 10, NULL, 1}, {BOX(1), BOX(0), 50, 10, NULL, 1})},
        {.fqn = {"huge", 4}, .kind = TSR_ENTRY_TENSOR, .dtype = TSR_INT8, .ndim = 2, .shape = huge},
        {TENSOR("bytes", TSR_FLOAT32, 1, 1), CHUNKS({BOX(0), BOX(1), 8, 4, NULL, 0})},
    };
    const expected want[] = {
        {"layout/hole", "hole", "12 elements of 'hole' [6, 4] are not covered by any chunk, such as [3, 4] at [3, 0]", NULL},
        {"layout/overlap", "twice", "contain the element [2]: [3] at [0] and [2] at [2]", "__1_0.distcp"},
        {"layout/out-of-range", "beyond", "the chunk of [5] at [0] of 'beyond' reaches beyond the tensor's [4]",
         "__1_0.distcp"},
        {"layout/empty-chunk", "odd", "[0] at [1]", "__1_0.distcp"},
        {"layout/too-large", "huge", "'huge' [1099511627776, 1099511627776]", NULL},
        {"layout/bytes-shared", "bytes", "bytes [8, 12) of 'bytes' and [0, 10) of 'hole'", "__0_0.distcp"},
        {"layout/bytes-shared", "twice", "bytes [10, 20) of 'twice' and [8, 12) of 'bytes'", "__0_0.distcp"},
    };
    validate(TSR_FORMAT_DCP, entries, 6, want, 7);
    validate(TSR_FORMAT_TORCH_ZIP, entries, 6, want, 5); /* in this format, tensors may share storage */
}

static void test_layout_validate__compares_with_a_layout_document(void **state)
{
    (void)state;
    const tsr_chunk halves[] = {{BOX(0), BOX(2), 0, 0, NULL, 0}, {BOX(2), BOX(2), 0, 0, NULL, 0}};
    const tsr_chunk turned[] = {
        {BOX(4), BOX(0), 0, 0, NULL, 0}, {BOX(2), BOX(2), 0, 0, NULL, 0}, {BOX(0), BOX(2), 0, 0, NULL, 0}};
    const tsr_chunk thirds[] = {{BOX(0), BOX(1), 0, 0, NULL, 0}, {BOX(1), BOX(3), 0, 0, NULL, 0}};
    const tsr_entry here[] = {
        {TENSOR("same", TSR_FLOAT32, 1, 4), .chunks = halves, .chunk_count = 2},
        {TENSOR("cut", TSR_FLOAT32, 1, 4), .chunks = halves, .chunk_count = 2},
        {TENSOR("cast", TSR_FLOAT16, 1, 4), .chunks = halves, .chunk_count = 2},
        {TENSOR("grown", TSR_FLOAT32, 2, 4, 1)},
        {TENSOR("new", TSR_FLOAT32, 1, 4)},
        {.fqn = {"step", 4}, .kind = TSR_ENTRY_OBJECT},
        {TENSOR("half", TSR_FLOAT4_E2M1FN, 1, 4), .chunks = halves, .chunk_count = 2},
    };
    const tsr_entry there[] = {
        {TENSOR("same", TSR_FLOAT32, 1, 4), .chunks = turned, .chunk_count = 3},
        {TENSOR("step", TSR_INT64, 0, 0)},
        {TENSOR("old", TSR_FLOAT32, 1, 4)},
        {TENSOR("cut", TSR_FLOAT32, 1, 4), .chunks = thirds, .chunk_count = 2},
        {TENSOR("cast", TSR_FLOAT32, 1, 4)},
        {TENSOR("grown", TSR_FLOAT32, 1, 4)},
        {TENSOR("half", TSR_FLOAT4_E2M1FN_X2, 1, 4)},
    };
    const expected want[] = {
        {"layout/kind", "step", "'step' is an object, but the layout has a tensor", NULL},
        {"layout/missing-entry", "old", "'old'", NULL},
        {"layout/chunks", "cut", "'cut' is split into other chunks (2)", NULL},
        {"layout/dtype", "cast", "'cast' is float16, but the layout has float32", NULL},
        {"layout/shape", "grown", "shape [4, 1], but the layout has [4]", NULL},
        {"layout/unexpected-entry", "new", "'new'", NULL},
    };
    tsr_catalog a = {.entries = here, .entry_count = 7}, b = {.entries = there, .entry_count = 7};
    const tsr_contract contract = {.expected = b, .called = "the layout"};
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_host host = host_with(&failing.allocator);
        tsr_findings *findings = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
        tsr_status status = tsr_validate_contract(&a, &contract, &host, findings, NULL);
        if (status == TSR_OK) assert_findings(findings, want, 6);
        tsr_findings_free(findings);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

static void test_layout_validate__long_shapes_are_clipped_in_messages(void **state)
{
    (void)state;
    uint64_t shape[TSR_MAX_NDIM];
    for (uint32_t d = 0; d < TSR_MAX_NDIM; d++) shape[d] = 1;
    shape[3] = UINT64_MAX;
    const tsr_entry entry = {
        .fqn = {"w", 1}, .kind = TSR_ENTRY_TENSOR, .dtype = TSR_INT8, .ndim = TSR_MAX_NDIM, .shape = shape};
    const expected want[] = {{"layout/hole", "w", "[1, 1, 1, 18446744073709551615, 1, 1", NULL}};
    validate(TSR_FORMAT_DCP, &entry, 1, want, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_validate__a_sound_catalog_has_no_findings),
        cmocka_unit_test(test_layout_validate__each_fault_names_its_place),
        cmocka_unit_test(test_layout_validate__compares_with_a_layout_document),
        cmocka_unit_test(test_layout_validate__long_shapes_are_clipped_in_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
