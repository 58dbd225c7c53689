/* Headers: the real library's verdicts, the positions in errors, and the contents of an opened file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "formats/safetensors/safetensors.h"
#include "support/faults.h"
#include "support/st_image.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_safetensors file;
    tsr_error err;
    tsr_status status;
} opened;

static void open_bytes(opened *o, tsr_str bytes)
{
    memset(o, 0, sizeof *o);
    o->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    o->arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    o->findings = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
    tsr_memory_file file = {TSR_STR("m.safetensors"), bytes};
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, &file, 1, &o->store, NULL), TSR_OK);
    o->status =
        tsr_safetensors_open((tsr_range){o->store, 0, 0, bytes.size}, &o->host, o->arena, o->findings, &o->file, &o->err);
}

static void close_bytes(opened *o)
{
    tsr_safetensors_close(&o->file);
    tsr_findings_free(o->findings);
    tsr_arena_free(o->arena);
    o->store->close(o->store);
}

static bool has_finding(const tsr_findings *findings, const char *rule)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++)
        if (strcmp(tsr_findings_at(findings, i)->rule->id, rule) == 0) return true;
    return false;
}

static int hex_digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* One line: name, theirs, ours, error, hex. */
static void check_verdict(char *line)
{
    char *cell[5];
    for (int i = 0; i < 5; i++) {
        cell[i] = line;
        line += strcspn(line, "\t\n");
        *line++ = 0;
    }
    size_t size = strlen(cell[4]) / 2;
    char *bytes = malloc(size + 1);
    for (size_t i = 0; i < size; i++) bytes[i] = (char)(hex_digit(cell[4][2 * i]) << 4 | hex_digit(cell[4][2 * i + 1]));
    opened o;
    open_bytes(&o, (tsr_str){bytes, size});
    bool refused = o.status != TSR_OK || tsr_findings_total(o.findings, TSR_ERROR) > 0;
    if (refused != (strcmp(cell[2], "refuse") == 0)) fail_msg("%s: %s", cell[0], refused ? o.err.message : "not refused");
    if (strcmp(cell[1], "refuse") == 0 && !refused) fail_msg("%s: the library refuses it: %s", cell[0], cell[3]);
    if (o.status != TSR_OK && (o.err.byte_position > size || !strstr(o.err.message, ", in m.safetensors")))
        fail_msg("%s: not located: %s", cell[0], o.err.message);
    if (strchr(cell[2], '/') && !has_finding(o.findings, cell[2])) fail_msg("%s: no finding %s", cell[0], cell[2]);
    size_t expected_findings = strchr(cell[2], '/') ? 1 : 0;
    if (!refused && tsr_findings_total(o.findings, TSR_WARNING) > expected_findings)
        fail_msg("%s: unexpected findings", cell[0]);
    tsr_safetensors_close(&o.file);
    tsr_status again = tsr_safetensors_open((tsr_range){o.store, 0, 0, size}, &o.host, o.arena, NULL, &o.file, NULL);
    if (again != o.status) fail_msg("%s: the status depends on whether findings are wanted", cell[0]);
    close_bytes(&o);
    free(bytes);
}

static void test_formats_safetensors__verdicts_agree_with_the_reference_library(void **state)
{
    (void)state;
    FILE *table = fopen(TSR_TEST_DATA "/tests/golden/safetensors_verdicts.tsv", "r");
    char line[8192];
    unsigned count = 0;
    assert_non_null(table);
    while (fgets(line, sizeof line, table)) {
        if (line[0] == '#') continue;
        check_verdict(line);
        count++;
    }
    fclose(table);
    assert_in_range(count, 150, 1000);
}

typedef struct refusal {
    const char *header;
    size_t data_size;
    tsr_status status;
    uint64_t position;
    const char *message;
} refusal;

static const refusal refusals[] = {
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,512]}}", 400, TSR_E_FORMAT, 9,
     "data_offsets of 'a' span 512 bytes, its shape and dtype need 8"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":"
     "[3,4]}}",
     4, TSR_E_FORMAT, 61, "data_offsets of 'b' begin at 3, but the tensors before it end at 2"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":"
     "[1,2]}}",
     2, TSR_E_FORMAT, 61, "duplicate name 'a', first at byte 9"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, TSR_E_FORMAT, 22,
     "'a' has the unknown dtype 'F31'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1, TSR_E_FORMAT, 36, "leading zero"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, TSR_E_FORMAT, 36,
     "beyond 64 bits"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, TSR_E_FORMAT, 9, "'a' lacks data_offsets"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, TSR_E_FORMAT, 9,
     "end at 0, before they begin at 1"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1, TSR_E_FORMAT, 27, "'a' has the field 'dtype' twice"},
    {"{\"a\":{\"x\":[1,}}", 0, TSR_E_FORMAT, 21, "expected a value, found '}'"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, TSR_E_FORMAT, 9,
     "'a' has 12 bits, which is not a whole number of bytes"},
    {"{\"a", 0, TSR_E_FORMAT, 11, "the header ends inside a string"},
    {"{\"a\":{}", 0, TSR_E_FORMAT, 9, "'a' lacks dtype"},
    {"{\"__metadata__\":{\"a\":1}}", 0, TSR_E_FORMAT, 29, "expected a string in __metadata__ in the header, found '1'"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, TSR_E_FORMAT, 42, "__metadata__ occurs twice"},
    {"", 0, TSR_E_FORMAT, 8, "the header ends where '{' is expected"},
};

static void test_formats_safetensors__refusals_name_tensor_value_and_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        opened o;
        tsr_str bytes = st_image(r->header, r->data_size);
        open_bytes(&o, bytes);
        if (o.status != r->status || !strstr(o.err.message, r->message)) fail_msg("%s: %s", r->header, o.err.message);
        if (o.err.byte_position != r->position) fail_msg("%s: at %llu", r->header, (unsigned long long)o.err.byte_position);
        close_bytes(&o);
        free((char *)bytes.data);
    }
}

static void test_formats_safetensors__an_opened_file_tells_what_its_header_says(void **state)
{
    (void)state;
    opened o;
    tsr_str bytes = st_image("{\"__metadata__\":{\"format\":\"pt\",\"n\\u00e9\":\"\"},\"w\\n\":{\"dtype\":\"BF16\","
                             "\"shape\":[2,3],\"data_offsets\":[4,16]},"
                             "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                             16);
    open_bytes(&o, bytes);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.file.count, 2);
    assert_int_equal(o.file.data_offset, bytes.size - 16);
    const tsr_safetensors_tensor *w = tsr_safetensors_find(&o.file, TSR_STR("w\n"));
    assert_ptr_equal(w, &o.file.tensors[0]);
    assert_int_equal(w->dtype, TSR_BFLOAT16);
    assert_int_equal(w->ndim, 2);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(w->begin, 4);
    assert_int_equal(w->end, 16);
    assert_int_equal(bytes.data[w->position], '"');
    assert_int_equal(bytes.data[w->position + 1], 'w');
    assert_int_equal(o.file.tensors[1].ndim, 0);
    assert_null(tsr_safetensors_find(&o.file, TSR_STR("w")));
    assert_true(tsr_str_equal(tsr_safetensors_metadata(&o.file, TSR_STR("format")), TSR_STR("pt")));
    assert_non_null(tsr_safetensors_metadata(&o.file, TSR_STR("n\xC3\xA9")).data);
    assert_null(tsr_safetensors_metadata(&o.file, TSR_STR("absent")).data);
    assert_int_equal(tsr_findings_count(o.findings), 0);
    close_bytes(&o);
    free((char *)bytes.data);
}

static void test_formats_safetensors__a_cut_file_stays_readable_and_is_an_error_finding(void **state)
{
    (void)state;
    opened o;
    tsr_str bytes = st_image("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\","
                             "\"shape\":[4],\"data_offsets\":[4,8]}}",
                             6);
    open_bytes(&o, bytes);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.file.data_size, 6);
    assert_true(has_finding(o.findings, "safetensors/truncated"));
    const tsr_finding *f = tsr_findings_at(o.findings, 0);
    assert_int_equal(f->level, TSR_ERROR);
    assert_int_equal(f->byte_offset, bytes.size);
    assert_non_null(strstr(f->message.data, "need 8 bytes of data, but the file contains 6"));
    close_bytes(&o);
    free((char *)bytes.data);
}

static void test_formats_safetensors__limits_bound_the_header(void **state)
{
    (void)state;
    opened o;
    tsr_str bytes = st_image("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"U8\","
                             "\"shape\":[0],\"data_offsets\":[0,0]}}",
                             0);
    open_bytes(&o, bytes);
    tsr_safetensors_close(&o.file);
    o.host.limits.entries = 1;
    assert_int_equal(tsr_safetensors_open((tsr_range){o.store, 0, 0, bytes.size}, &o.host, o.arena, NULL, &o.file, &o.err),
                     TSR_E_LIMIT);
    o.err = (tsr_error){0};
    o.host.limits.metadata_bytes = 10;
    assert_int_equal(tsr_safetensors_open((tsr_range){o.store, 0, 0, bytes.size}, &o.host, o.arena, NULL, &o.file, &o.err),
                     TSR_E_LIMIT);
    close_bytes(&o);
    free((char *)bytes.data);
}

static tsr_status open_and_drop(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    (void)ctx;
    tsr_safetensors file = {0};
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_findings *findings = arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    tsr_status status =
        findings ? tsr_safetensors_open(tsr_whole_file(store, 0), host, arena, findings, &file, err) : TSR_E_NOMEM;
    tsr_safetensors_close(&file);
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    return status;
}

static void test_formats_safetensors__every_failed_allocation_and_read_ends_clean(void **state)
{
    (void)state;
    tsr_str bytes =
        st_image("{\"__metadata__\":{\"a\\t\":\"b\"},\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},"
                 "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"z\":1}}",
                 4);
    tsr_memory_file file = {TSR_STR("m"), bytes};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_store *store;
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, &file, 1, &store, NULL), TSR_OK);
    assert_int_equal(must_bear_failures(open_and_drop, NULL, store, &host), TSR_OK);
    store->close(store);
    free((char *)bytes.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_safetensors__verdicts_agree_with_the_reference_library),
        cmocka_unit_test(test_formats_safetensors__refusals_name_tensor_value_and_byte),
        cmocka_unit_test(test_formats_safetensors__an_opened_file_tells_what_its_header_says),
        cmocka_unit_test(test_formats_safetensors__a_cut_file_stays_readable_and_is_an_error_finding),
        cmocka_unit_test(test_formats_safetensors__limits_bound_the_header),
        cmocka_unit_test(test_formats_safetensors__every_failed_allocation_and_read_ends_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
