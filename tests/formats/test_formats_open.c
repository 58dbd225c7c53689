/* Opening: catalogs of safetensors files in every arrangement, and the findings about them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/checkpoint_opening.h"
#include "support/directory.h"

#include "tessera/sys/checkpoint.h"

static tsr_checkpoint *open_directory(directory *f, const part *parts)
{
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    make_directory(f, parts, NULL);
    if (tsr_checkpoint_open(f->store, &f->host, &(tsr_open_options){.purpose = TSR_FOR_NAMES}, &checkpoint, &err) != TSR_OK)
        fail_msg("%s", err.message);
    return checkpoint;
}

static void close_directory(directory *f, tsr_checkpoint *checkpoint)
{
    tsr_checkpoint_close(checkpoint);
    drop_directory(f);
}

/* The rules of all findings, in order, separated by spaces. */
static const char *rules_of(tsr_checkpoint *checkpoint, char *text)
{
    const tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    *text = 0;
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        sprintf(text + strlen(text), "%s%s:%c", i ? " " : "", f->rule->id, "nwe"[f->level]);
    }
    return text;
}

static void test_formats_open__one_file_gives_entries_chunks_and_views(void **state)
{
    (void)state;
    directory f;
    char rules[512];
    tsr_view view;
    tsr_checkpoint *c = open_directory(
        &f, (part[]){{"m", "{" U8("b", "2,2", "3", "7") "," U8("a", "3", "0", "3") "," U8("cut", "2", "7", "9") "}  ", 8, 0},
                     {NULL, NULL, 0, 0}});
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c);
    assert_int_equal(catalog->entry_count, 3);
    assert_int_equal(catalog->format, TSR_FORMAT_SAFETENSORS);
    const tsr_entry *b = tsr_checkpoint_entry(c, TSR_STR("b"));
    assert_ptr_equal(b, &catalog->entries[0]);
    assert_null(tsr_checkpoint_entry(c, TSR_STR("none")));
    assert_int_equal(b->chunk_count, 1);
    assert_int_equal(b->chunks[0].sizes[1], 2);
    assert_int_equal(b->chunks[0].offsets[1], 0);
    assert_int_equal(b->chunks[0].byte_length, 4);
    assert_int_equal(tsr_checkpoint_locate(c, b, b->chunks, tsr_checkpoint_arena(c), &view, NULL), TSR_OK);
    uint8_t byte;
    assert_int_equal(tsr_store_read(tsr_checkpoint_store(c), view.file, view.byte_offset, &byte, 1, NULL), TSR_OK);
    assert_int_equal(byte, 3);
    const tsr_entry *cut = tsr_checkpoint_entry(c, TSR_STR("cut"));
    tsr_error err = {0};
    assert_int_equal(tsr_checkpoint_locate(c, cut, cut->chunks, tsr_checkpoint_arena(c), &view, &err), TSR_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "'cut'"));
    assert_string_equal(rules_of(c, rules), "safetensors/truncated:e");
    close_directory(&f, c);
}

static tsr_status record_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)err;
    char *text = ctx;
    sprintf(text + strlen(text), "%.*s@%u+%u ", TSR_STR_ARG(extent->entry->fqn), (unsigned)extent->file,
            (unsigned)extent->byte_length);
    return strlen(text) > 100 ? TSR_E_CANCELLED : TSR_OK;
}

static void test_formats_open__extents_come_in_order_of_file_and_byte(void **state)
{
    (void)state;
    directory f;
    char text[200] = "";
    tsr_checkpoint *c = open_directory(
        &f, (part[]){{"x.safetensors",
                      "{" U8("b", "2", "3", "5") "," U8("a", "3", "0", "3") "," U8("empty", "0", "5", "5") "}", 5, 0},
                     {"y.safetensors", "{" U8("z", "1", "0", "1") "}", 1, 0},
                     {NULL, NULL, 0, 0}});
    assert_int_equal(tsr_checkpoint_extents(c, record_extent, text, NULL), TSR_OK);
    assert_string_equal(text, "a@0+3 b@0+2 empty@0+0 z@1+1 ");
    close_directory(&f, c);
}

static void test_formats_open__colliding_names_are_an_error_that_names_both_files(void **state)
{
    (void)state;
    directory f;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    make_directory(&f,
                   (part[]){{"x.safetensors", "{" U8("w", "1", "0", "1") "}", 1, 0},
                            {"y.safetensors", "{" U8("w", "1", "0", "1") "}", 1, 0},
                            {NULL, NULL, 0, 0}},
                   NULL);
    assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "two entries have the name 'w': one in x.safetensors, one in y.safetensors");
    drop_directory(&f);
}

typedef struct index_case {
    const char *index;
    const char *x, *y; /* headers of x and y, or NULL if the file does not exist; 4 data bytes each */
    const char *rules;
    const char *names; /* names of the entries; '!' marks opaque ones, '*' those with replicas */
} index_case;

#define A_IN(header) "{" U8(header, "4", "0", "4") "}"
static const index_case index_cases[] = {
    {"{\"metadata\":{\"total_size\":8},\"weight_map\":{\"b\":\"y.safetensors\",\"a\":\"x.safetensors\"}}", A_IN("a"),
     A_IN("b"), "", "b a"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", A_IN("a"), NULL, "index/missing-file:e", "a b!"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\"}}", A_IN("a"), NULL, "index/missing-key:e", "a b!"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", A_IN("a"), A_IN("s"), "index/unreferenced-file:w", "a"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", "{" U8("a", "2", "0", "2") "," U8("e", "2", "2", "4") "}", NULL,
     "index/extra-key:w", "a e"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", A_IN("a"),
     "{" U8("b", "0", "0", "0") "," U8("a", "4", "0", "4") "}", "index/key-in-two-files:w", "a* b"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", A_IN("a"),
     "{" U8("b", "1", "0", "1") "," U8("a", "3", "1", "4") "}", "index/key-in-two-files:e", "a b"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}", A_IN("a"),
     "{" U8("b", "1", "0", "1") "," U8("c", "3", "1", "4") "}", "index/missing-key:e", "a b c"},
    {"{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"x.safetensors\"}}", A_IN("a"), NULL, "index/total-size:w",
     "a"},
    {"{\"metadata\":{\"total_size\":\"4\"},\"weight_map\":{\"a\":\"x.safetensors\"}}", A_IN("a"), NULL, "index/total-size:w",
     "a"},
    {"{\"weight_map\":{}}", NULL, NULL, "safetensors/no-tensors:n", ""},
};

static void test_formats_open__an_index_and_its_files_are_checked_against_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof index_cases / sizeof index_cases[0]; i++) {
        const index_case *k = &index_cases[i];
        part parts[4] = {{"m.index.json", k->index, 0, 0}};
        size_t count = 1;
        directory f;
        char rules[512], names[128] = "";
        if (k->x) parts[count++] = (part){"x.safetensors", k->x, 4, 0};
        if (k->y) parts[count++] = (part){"y.safetensors", k->y, 4, 0};
        tsr_checkpoint *c = open_directory(&f, parts);
        const tsr_catalog *catalog = tsr_checkpoint_catalog(c);
        for (uint64_t e = 0; e < catalog->entry_count; e++) {
            const tsr_entry *entry = &catalog->entries[e];
            sprintf(names + strlen(names), "%s%.*s%s%s", e ? " " : "", TSR_STR_ARG(entry->fqn),
                    entry->kind == TSR_ENTRY_OPAQUE ? "!" : "", entry->replica_count ? "*" : "");
            assert_int_equal(entry->chunk_count, entry->kind == TSR_ENTRY_TENSOR);
        }
        assert_string_equal(rules_of(c, rules), k->rules);
        assert_string_equal(names, k->names);
        close_directory(&f, c);
    }
}

static void test_formats_open__an_index_names_bare_files_only(void **state)
{
    (void)state;
    static const char *const bad[] = {"../x.safetensors", "/etc/x", "a/b", "a\\\\b", "C:x", "..", ".", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char index[100];
        directory f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        sprintf(index, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"%s\"}}", bad[i]);
        make_directory(
            &f,
            (part[]){{"m.safetensors.index.json", index, 0, 0}, {"x.safetensors", EMPTY, SIZE_MAX, 0}, {NULL, NULL, 0, 0}},
            NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, "weight_map places 'b' in"));
        assert_non_null(strstr(
            err.message, "only the plain name of a file in the same directory is allowed, in m.safetensors.index.json"));
        drop_directory(&f);
    }
}

static void test_formats_open__a_malformed_index_says_where(void **state)
{
    (void)state;
    static const struct {
        const char *index, *message;
    } bad[] = {
        {"{\"weight_map\":[]}", "expected an object at weight_map, found an array"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":7}}", "expected a string at weight_map.b, found a number"},
        {"{\"weight_map\":{\"a\":null}}", "expected a string at weight_map.a, found null"},
        {"{\"metadata\":[],\"weight_map\":{}}", "expected an object at metadata, found an array"},
        {"{\"weight_map\":{}}", "weight_map does not name any tensor, although 'x.safetensors' exists"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}", "duplicate key 'a'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        directory f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        part parts[] = {{"m.index.json", bad[i].index, 0, 0}, {"x.safetensors", A_IN("a"), 4, 0}, {NULL, NULL, 0, 0}};
        make_directory(&f, parts, NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        if (!strstr(err.message, bad[i].message) || !strstr(err.message, ", in m.index.json")) fail_msg("%s", err.message);
        drop_directory(&f);
    }
}

#define SHARD(info, tensor) "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"" info "\"}," tensor "}"
#define AT(name, offsets)   "{\\\"" name "\\\":{\\\"saved_offsets\\\":[" offsets "]}}"

static void test_formats_open__shards_join_by_their_saved_offsets(void **state)
{
    (void)state;
    directory f;
    char rules[512];
    tsr_checkpoint *c = open_directory(
        &f, (part[]){{"shard-00001-model-00001-of-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "1,2", "0", "2")), 2, 0},
                     {"shard-00002-model-00001-of-00001.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0},
                     {"shard-00003-model-00001-of-00001.safetensors", SHARD(AT("w", "3,0"), U8("w", "0,2", "0", "0")),
                      SIZE_MAX, 0},
                     {"shard-00005-model-00001-of-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "1,2", "0", "2")), 2, 0},
                     {NULL, NULL, 0, 0}});
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c);
    assert_int_equal(catalog->format, TSR_FORMAT_DCP_SAFETENSORS);
    assert_int_equal(catalog->entry_count, 1);
    const tsr_entry *w = &catalog->entries[0];
    assert_int_equal(w->shape[0], 3);
    assert_int_equal(w->shape[1], 2);
    assert_int_equal(w->chunk_count, 3); /* the empty shard of the third rank is listed unchanged */
    assert_int_equal(w->replica_count, 1);
    assert_int_equal(w->chunks[0].offsets[0], 0);
    assert_int_equal(w->chunks[0].file, 1);
    assert_int_equal(w->chunks[1].offsets[0], 2);
    assert_int_equal(w->chunks[1].file, 0);
    assert_int_equal(w->replicas[0].file, 3);
    assert_string_equal(rules_of(c, rules), "dcp-safetensors/shard-gap:w dcp-safetensors/no-global-shape:w");
    close_directory(&f, c);
}

/* Scalars are copies of each other. Two boxes that begin at the same offsets are two chunks, even though the layout check
 * will object. */
static void test_formats_open__shards_of_several_tensors_are_told_apart(void **state)
{
    (void)state;
    directory f;
#define SAVED(name, offsets) "\\\"" name "\\\":{\\\"saved_offsets\\\":[" offsets "]}"
    part parts[] = {
        {"shard-00001.safetensors",
         SHARD("{" SAVED("w", "0") "," SAVED("s", "") "}", U8("w", "2", "0", "2") "," U8("s", "", "2", "3")), 3, 0},
        {"shard-00002.safetensors",
         SHARD("{" SAVED("s", "") "," SAVED("w", "0") "}", U8("s", "", "0", "1") "," U8("w", "1", "1", "2")), 2, 0},
        {"shard-00003.safetensors", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0},
        {NULL, NULL, 0, 0}};
    tsr_checkpoint *c = open_directory(&f, parts);
    const tsr_entry *w = tsr_checkpoint_entry(c, TSR_STR("w")), *s = tsr_checkpoint_entry(c, TSR_STR("s"));
    assert_int_equal(w->chunk_count, 2);
    assert_int_equal(w->chunks[0].sizes[0], 1);
    assert_int_equal(w->chunks[1].sizes[0], 2);
    assert_int_equal(w->replica_count, 0);
    assert_int_equal(s->chunk_count, 1);
    assert_int_equal(s->chunks[0].file, 0);
    assert_int_equal(s->replica_count, 1);
    assert_int_equal(s->replicas[0].file, 1);
    close_directory(&f, c);
}

static void test_formats_open__sharding_info_must_fit_the_header(void **state)
{
    (void)state;
    static const struct {
        const char *header, *message;
    } bad[] = {
        {SHARD(AT("w", "0"), U8("w", "2,2", "0", "4")), "'w' has 2 dimensions but 1 saved_offsets"},
        {SHARD(AT("w", "0,0,0"), U8("w", "2,2", "0", "4")), "'w' has 2 dimensions but 3 saved_offsets"},
        {SHARD(AT("w", "0,-1"), U8("w", "2,2", "0", "4")), "at least 0"},
        {SHARD(AT("w", "0,0.5"), U8("w", "2,2", "0", "4")), "an integer below 2^53"},
        {SHARD(AT("v", "0,0"), U8("w", "2,2", "0", "4")), "names 'v', which is not in the file"},
        {SHARD("{}", U8("w", "2,2", "0", "4")), "names only 0 of 1 tensors"},
        {SHARD("[]", U8("w", "2,2", "0", "4")), "expected an object at DCP_SHARDING_INFO"},
        {SHARD("{\\\"w\\\":{}}", U8("w", "2,2", "0", "4")), "lacks 'saved_offsets'"},
        {SHARD("{", U8("w", "2,2", "0", "4")), "found the end"},
        {SHARD(AT("w", "0,9007199254740991"),
               "\"w\":{\"dtype\":\"U8\",\"shape\":[0,18446744073709551615],\"data_offsets\":[0,0]}"),
         "a shard of 'w' ends beyond 64 bits"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        directory f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        make_directory(&f,
                       (part[]){{"shard-00001-model-00001-of-00001.safetensors", bad[i].header, 4, 0},
                                {"README", "x", 0, 0},
                                {NULL, NULL, 0, 0}},
                       NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        if (!strstr(err.message, bad[i].message) || !strstr(err.message, ", in shard-00001"))
            fail_msg("%s: %s", bad[i].message, err.message);
        drop_directory(&f);
    }
}

static void test_formats_open__shards_of_one_tensor_must_agree(void **state)
{
    (void)state;
    static const char *const others[] = {
        SHARD(AT("w", "0"), U8("w", "4", "0", "4")),
        SHARD(AT("w", "0,0"), "\"w\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[0,4]}"), A_IN("w")};
    static const char *const messages[] = {
        "this shard of 'w' is uint8 with 1 dimensions, but an earlier one is uint8 with 2",
        "this shard of 'w' is int8 with 2 dimensions, but an earlier one is uint8 with 2", "no DCP_SHARDING_INFO"};
    for (size_t i = 0; i < 3; i++) {
        directory f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        part parts[] = {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0},
                        {"shard-00002.safetensors", others[i], 4, 0},
                        {NULL, NULL, 0, 0}};
        make_directory(&f, parts, NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, messages[i]));
        assert_non_null(strstr(err.message, ", in shard-00002.safetensors"));
        drop_directory(&f);
    }
}

/* PyTorch and saved_offsets count float4 in pairs; headers count single elements. */
static void test_formats_open__saved_offsets_of_float4_count_pairs(void **state)
{
    (void)state;
    directory f;
#define F4_SHARD(offsets) SHARD(AT("q", offsets), "\"q\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[0,4]}")
    part parts[] = {{"shard-00001.safetensors", F4_SHARD("0,0"), 4, 0},
                    {"shard-00002.safetensors", F4_SHARD("0,2"), 4, 0},
                    {NULL, NULL, 0, 0}};
    tsr_checkpoint *c = open_directory(&f, parts);
    const tsr_entry *q = tsr_checkpoint_entry(c, TSR_STR("q"));
    uint64_t bytes;
    assert_int_equal(q->shape[0], 2);
    assert_int_equal(q->shape[1], 8);
    assert_int_equal(q->chunks[1].offsets[1], 4);
    assert_true(tsr_entry_bytes(q, &bytes) && bytes == 8);
    close_directory(&f, c);
}

static void test_formats_open__one_shard_alone_is_a_warning(void **state)
{
    (void)state;
    directory f;
    char rules[200];
    part parts[] = {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0}, {NULL, NULL, 0, 0}};
    tsr_checkpoint *c = open_directory(&f, parts);
    assert_int_equal(tsr_checkpoint_catalog(c)->format, TSR_FORMAT_SAFETENSORS);
    assert_string_equal(rules_of(c, rules), "dcp-safetensors/lone-shard:w");
    close_directory(&f, c);
}

/* Arrangements that cover every path of the readers, including findings of every kind. */
static const part sets[][5] = {
    {{"m.index.json", "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"z\"}}", 0, 0},
     {"x.safetensors", A_IN("a"), 4, 0},
     {"y.safetensors", A_IN("a"), 4, 0}},
    {{"m.index.json",
      "{\"metadata\":{\"total_size\":\"9\"},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"y."
      "safetensors\"}}",
      0, 0},
     {"x.safetensors", "{" U8("a", "", "0", "1") "," U8("new", "3", "1", "4") "}", 4, 0},
     {"y.safetensors", "{" U8("a", "", "0", "1") "," U8("c", "3", "1", "4") "}", 4, 0},
     {"w.safetensors", "{" U8("a", "", "0", "1") "}", 1, 0}},
    {{"m.index.json", "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"z.safetensors\"}}", 0, 0},
     {"x.safetensors", A_IN("a"), 4, 0},
     {"y.safetensors", "{" U8("a", "4", "0", "4") "," U8("b", "0", "4", "4") "}", 4, 0},
     {"z.safetensors", "{" U8("a", "4", "0", "4") "," U8("c", "0", "4", "4") "}", 4, 0}},
    {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0},
     {"shard-00002.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0},
     {"shard-00004.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0}},
    {{"x.safetensors", A_IN("a"), 4, 0},
     {"y.safetensors",
      " {\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}," U8("\\u0000b", "2", "2", "4") "," U8("", "2", "0", "2") "}", 5, 0}},
    {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0}},
    {{"shard-00001.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0},
     {"shard-00002.safetensors", SHARD(AT("w", "0,0"), U8("w", "4,1", "0", "4")), 4, 0},
     {"shard-99999999999.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0}},
    {{"x", SHARD(AT("s", ""), U8("s", "", "0", "1")), 1, 0}, {"shard-2", SHARD(AT("s", ""), U8("s", "", "0", "1")), 1, 0}},
    {{"x", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0},
     {"y", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0}},
    {{"m.index.json", "{\"weight_map\":{\"a\":\"gone\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}", 0, 0},
     {"x.safetensors", "{" U8("a", "4", "0", "4") "," U8("b", "0", "4", "4") "}", 4, 0},
     {"y.safetensors", "{" U8("a", "2,2", "0", "4") "," U8("b", "0,1", "4", "4") "," U8("c", "0", "4", "4") "}", 4, 0}},
    {{"rank0.pt", TORCH, 0, TORCH_SIZE}, {"notes.txt", "x", 0, 0}, {"rank0x.pt", TORCH, 0, TORCH_SIZE}},
};

static void test_formats_open__every_failed_allocation_and_read_ends_clean(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        directory f;
        make_directory(&f, sets[i], NULL);
        must_bear_failures(open_and_walk, NULL, f.store, &f.host);
        drop_directory(&f);
    }
}

static void test_formats_open__limits_bound_the_entries(void **state)
{
    (void)state;
    static const size_t counts[] = {2, 2, 3, 1, 3};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        directory f;
        make_directory(&f, sets[i], NULL);
        f.host.limits.entries = counts[i] - 1;
        assert_int_equal(open_and_walk(NULL, f.store, &f.host, NULL), TSR_E_LIMIT);
        drop_directory(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_open__one_file_gives_entries_chunks_and_views),
        cmocka_unit_test(test_formats_open__extents_come_in_order_of_file_and_byte),
        cmocka_unit_test(test_formats_open__colliding_names_are_an_error_that_names_both_files),
        cmocka_unit_test(test_formats_open__an_index_and_its_files_are_checked_against_each_other),
        cmocka_unit_test(test_formats_open__an_index_names_bare_files_only),
        cmocka_unit_test(test_formats_open__a_malformed_index_says_where),
        cmocka_unit_test(test_formats_open__shards_join_by_their_saved_offsets),
        cmocka_unit_test(test_formats_open__shards_of_several_tensors_are_told_apart),
        cmocka_unit_test(test_formats_open__sharding_info_must_fit_the_header),
        cmocka_unit_test(test_formats_open__shards_of_one_tensor_must_agree),
        cmocka_unit_test(test_formats_open__saved_offsets_of_float4_count_pairs),
        cmocka_unit_test(test_formats_open__one_shard_alone_is_a_warning),
        cmocka_unit_test(test_formats_open__every_failed_allocation_and_read_ends_clean),
        cmocka_unit_test(test_formats_open__limits_bound_the_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
