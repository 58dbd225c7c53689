/* Hostile and odd `.metadata` files, built field by field: what is refused, and what becomes a finding. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "tessera/checkpoint.h"

/* Pickles as text: GLOBAL, MARK … TUPLE/LIST/DICT, STRING, INT, EMPTY_TUPLE NEWOBJ, BUILD, REDUCE. */
#define MODULE                   "torch.distributed.checkpoint.metadata\n"
#define FILES                    "torch.distributed.checkpoint.filesystem\n"
#define NEW(module, name, state) "c" module name "\n)\x81" state "b"
#define STR(text)                "S'" text "'\n"
#define INT(text)                "I" text "\n"
#define SIZE0                    "ctorch\nSize\n((ttR"
#define SIZE1(a)                 "ctorch\nSize\n((" INT(a) "ttR"
#define SIZE2(a, b)              "ctorch\nSize\n((" INT(a) INT(b) "ttR"
#define CHUNK(offsets, sizes)    NEW(MODULE, "ChunkStorageMetadata", "(" STR("offsets") offsets STR("sizes") sizes "d")
#define PROPERTIES_OF(dtype)     NEW(MODULE, "TensorProperties", "(" dtype "NI00\nNI00\nt")
#define PROPERTIES               PROPERTIES_OF("ctorch\nfloat32\n")
#define TENSOR_OF(properties, size, chunks) \
    NEW(MODULE, "TensorStorageMetadata", "(" STR("properties") properties STR("size") size STR("chunks") "(" chunks "ld")
#define TENSOR(size, chunks)     TENSOR_OF(PROPERTIES, size, chunks)
#define BYTE_ITEM                "c" MODULE "BytesStorageMetadata\n)\x81"
#define INDEX(fqn, offset, hint) NEW(MODULE, "MetadataIndex", "(" STR("fqn") fqn STR("offset") offset STR("index") hint "d")
#define STORAGE(path, offset, length) \
    NEW(FILES, "_StorageInfo", "(" STR("relative_path") path STR("offset") offset STR("length") length "d")
#define METADATA(tensors, paths, storage) \
    NEW(MODULE, "Metadata", \
        "(" STR("state_dict_metadata") "(" tensors "d" STR("planner_data") "(" paths "d" STR("storage_data") "(" storage \
                                                                                                             "dd") \
    "."

#define W                                       STR("w") TENSOR(SIZE2("4", "2"), CHUNK(SIZE2("0", "0"), SIZE2("2", "2")) CHUNK(SIZE2("2", "0"), SIZE2("2", "2")))
#define AT(fqn, offset, hint, path, at, length) INDEX(STR(fqn), offset, hint) STORAGE(STR(path), INT(at), INT(length))
#define W_FIRST                                 AT("w", SIZE2("0", "0"), INT("0"), "d", "0", "100")
#define W_SECOND                                AT("w", SIZE2("2", "0"), INT("1"), "d", "100", "100")
#define W_PLACED                                W_FIRST W_SECOND

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_error err;
    tsr_status status;
} opened;

static void open_metadata(opened *o, tsr_str metadata)
{
    static char data[1000];
    const tsr_memory_file files[] = {{TSR_STR(".metadata"), metadata}, {TSR_STR("d"), {data, sizeof data}}};
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, files, 2, &o->store, NULL), TSR_OK);
    o->status = tsr_checkpoint_open(o->store, &o->host, &(tsr_open_options){.skip_objects = true}, &o->checkpoint, &o->err);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
}

static const struct {
    const char *metadata;
    tsr_status status;
    const char *part;
} refused[] = {
    {"N.", TSR_E_FORMAT, "no torch.distributed.checkpoint Metadata"},
    {NEW(MODULE, "Metadata", "N") ".", TSR_E_FORMAT, "Metadata without its state"},
    {NEW(MODULE, "Metadata", "(" STR("state_dict_metadata") "(ld") ".", TSR_E_FORMAT, "'state_dict_metadata' is not a dict"},
    {METADATA(INT("1") BYTE_ITEM, "", ""), TSR_E_FORMAT, "a key of state_dict_metadata is not a string"},
    {METADATA(STR("w") "N", "", ""), TSR_E_FORMAT, "'w' is neither a TensorStorageMetadata nor a BytesStorageMetadata"},
    {METADATA(STR("w") CHUNK(SIZE0, SIZE0), "", ""), TSR_E_FORMAT, "'w' is neither"},
    {METADATA(STR("w") BYTE_ITEM STR("w") BYTE_ITEM, "", ""), TSR_E_FORMAT, "the same key twice"},
    {METADATA(STR("w") TENSOR(SIZE1("-1"), ""), "", ""), TSR_E_FORMAT, "the negative value -1"},
    {METADATA(STR("w") TENSOR("ctorch\nSize\n(" STR("x") "tR", ""), "", ""), TSR_E_FORMAT,
     "a torch.Size that is not made of"},
    {METADATA(STR("w") TENSOR("(" STR("x") "t", ""), "", ""), TSR_E_FORMAT, "sizes or offsets that are not made of"},
    {METADATA(STR("w") TENSOR(PROPERTIES, ""), "", ""), TSR_E_FORMAT, "an object stands where sizes or offsets belong"},
    {METADATA(STR("w") TENSOR_OF("N", SIZE0, ""), "", ""), TSR_E_FORMAT, "are no TensorProperties"},
    {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("N"), SIZE0, ""), "", ""), TSR_E_FORMAT, "is no torch dtype"},
    {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("ctorch\nfloat31\n"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "'torch.float31' is no torch dtype"},
    {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("cos\nfloat32\n"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "'os.float32' is no torch dtype"},
    {METADATA(STR("w") TENSOR_OF(NEW(MODULE, "TensorProperties", "(t"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "no tuple of five items"},
    {METADATA(STR("w") NEW(MODULE, "TensorStorageMetadata", "(" STR("size") SIZE0 "d"), "", ""), TSR_E_FORMAT,
     "without 'properties'"},
    {METADATA(STR("w") TENSOR(SIZE0, "N"), "", ""), TSR_E_FORMAT,
     "item 0 of the chunks of a tensor is no ChunkStorageMetadata"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE2("0", "0"), SIZE2("1", "1"))), "", ""), TSR_E_FORMAT,
     "chunk 0 of 'w' has 2 dimensions, the tensor has 1"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE1("0"), SIZE2("1", "1"))), "", ""), TSR_E_FORMAT,
     "a chunk with 1 offsets and 2 sizes"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata", "(" STR("sizes") SIZE0 "d")), "", ""),
     TSR_E_FORMAT, "without 'offsets'"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata", "N")), "", ""), TSR_E_FORMAT,
     "state of a ChunkStorageMetadata is not a dict"},
    {METADATA("", "", STR("w") "N"), TSR_E_FORMAT, "storage_data holds something other than"},
    {METADATA("", "", INDEX("N", SIZE0, "N") "N"), TSR_E_FORMAT, "without a string 'fqn'"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE("N", INT("0"), INT("0"))), TSR_E_FORMAT,
     "without a string 'relative_path'"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE(STR("d"), "N", INT("0"))), TSR_E_FORMAT,
     "'offset' or 'length' is no 64-bit integer"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE(STR("d"), INT("99999999999999999999"), INT("0"))), TSR_E_FORMAT,
     "no 64-bit integer"},
    {METADATA("", "",
              INDEX(STR("w"), SIZE0, "N") NEW(FILES, "_StorageInfo",
                                              "(" STR("relative_path") STR("d") STR("offset") INT("0") STR("length") INT("0")
                                                  STR("transform_descriptors") "(" STR("stream.lz4/1") "ld")),
     TSR_E_UNSUPPORTED, "transform 0 of an item is 'stream.lz4/1'"},
};

static void test_formats_dcp_metadata__refuses_what_makes_no_catalog(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        opened o;
        open_metadata(&o, tsr_str_from(refused[i].metadata));
        if (o.status != refused[i].status || !strstr(o.err.message, refused[i].part) ||
            !strstr(o.err.message, "in .metadata")) {
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        }
        drop(&o);
    }
}

static const struct {
    const char *metadata, *rule, *fqn, *part; /* rule NULL: no finding at all */
} found[] = {
    {METADATA(W, "", W_PLACED), NULL, NULL, NULL},
    {METADATA(W, "", AT("w", SIZE2("2", "0"), INT("0"), "d", "100", "100") AT("w", SIZE2("0", "0"), "N", "d", "0", "100")),
     NULL, NULL, NULL}, /* hints do not count */
    {METADATA(W, "", W_PLACED AT("w", SIZE2("2", "0"), INT("0"), "d", "0", "1")), "dcp/duplicate-record", "w",
     "two items of 'w' at offsets [2, 0]"},
    {METADATA(W, "", W_PLACED AT("w", SIZE2("1", "0"), INT("0"), "d", "0", "1")), "dcp/record-without-chunk", "w",
     "at offsets [1, 0]"},
    {METADATA(W, "", W_PLACED AT("w", SIZE1("0"), INT("0"), "d", "0", "1")), "dcp/record-without-chunk", "w",
     "at offsets [0]"},
    {METADATA(W, "", W_PLACED AT("w", "N", "N", "d", "0", "1")), "dcp/record-without-chunk", "w", "at offsets none"},
    {METADATA(W, "", W_PLACED AT("v", SIZE0, "N", "d", "0", "1")), "dcp/record-without-entry", "v", "an item of 'v'"},
    {METADATA(W STR("o") BYTE_ITEM, "", W_PLACED AT("o", SIZE0, "N", "d", "0", "1")), "dcp/record-without-chunk", "o",
     "'o'"},
    {METADATA(W STR("o") BYTE_ITEM, "", W_PLACED), "dcp/no-record", "o", "chunk 0 of 'o' (offsets none)"},
    {METADATA(W, "", W_FIRST), "dcp/no-record", "w", "chunk 1 of 'w' (offsets [2, 0])"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "d", "901", "100")), "dcp/beyond-end", "w",
     "at byte 901 with 100 bytes; 'd' has 1000"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "d", "0", "-1")), "dcp/beyond-end", "w", "with -1 bytes"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "d", "9223372036854775807", "9223372036854775807")),
     "dcp/beyond-end", "w", "9223372036854775807"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "e", "0", "1")), "dcp/missing-file", "w", "'e'"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "", "0", "1")), "dcp/path-outside", "w", "''"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "/d", "0", "1")), "dcp/path-outside", "w", "'/d'"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "a/../../d", "0", "1")), "dcp/path-outside", "w",
     "'a/../../d'"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "a/..", "0", "1")), "dcp/path-outside", "w", "'a/..'"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "C:d", "0", "1")), "dcp/path-outside", "w", "'C:d'"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "..\\\\d", "0", "1")), "dcp/path-outside", "w", "outside"},
    {METADATA("", "", ""), "dcp/unreferenced-file", "", "'d'"},
    {METADATA(W, STR("w") "cos\nsystem\n(" STR("true") "tR", W_PLACED), "pickle/unlisted-call", "", "'os.system'"},
    {METADATA(W, STR("w") "cbuiltins\ngetattr\n(" STR("x") STR("y") "tR", W_PLACED), "pickle/unlisted-call", "",
     "'builtins.getattr'"},
    {METADATA(W, STR("w") NEW("mine\n", "Thing", "N"), W_PLACED), "pickle/unlisted-class", "", "'mine.Thing'"},
};

static void test_formats_dcp_metadata__finds_what_does_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        opened o;
        open_metadata(&o, tsr_str_from(found[i].metadata));
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        const tsr_findings *findings = tsr_checkpoint_findings(o.checkpoint);
        const tsr_finding *match = NULL;
        for (size_t f = 0; f < tsr_findings_count(findings); f++) {
            const tsr_finding *finding = tsr_findings_at(findings, f);
            if (!found[i].rule) fail_msg("row %zu: %s", i, finding->message.data);
            if (strcmp(finding->rule->id, found[i].rule) == 0) match = finding;
        }
        if (found[i].rule && (!match || !strstr(match->message.data, found[i].part) ||
                              !tsr_str_equal(match->fqn, tsr_str_from(found[i].fqn)))) {
            fail_msg("row %zu: %s", i, match ? match->message.data : "no such finding");
        }
        drop(&o);
    }
}

static void test_formats_dcp_metadata__places_chunks_whatever_their_hints(void **state)
{
    opened o;
    (void)state;
    open_metadata(&o, tsr_str_from(found[1].metadata));
    const tsr_entry *w = tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"));
    assert_int_equal(w->chunk_count, 2);
    assert_int_equal(w->chunks[0].byte_offset, 0);
    assert_int_equal(w->chunks[1].byte_offset, 100);
    assert_int_equal(w->chunks[1].offsets[0], 2);
    assert_int_equal(w->chunks[1].byte_length, 100);
    drop(&o);
}

static void test_formats_dcp_metadata__equal_boxes_are_replicas_of_one_chunk(void **state)
{
    opened o;
    (void)state;
    open_metadata(&o, TSR_STR(METADATA(
                          STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE1("2"), SIZE1("2")) CHUNK(SIZE1("0"), SIZE1("2"))
                                                          CHUNK(SIZE1("2"), SIZE1("2"))),
                          "", AT("w", SIZE1("2"), INT("2"), "d", "5", "7") AT("w", SIZE1("0"), INT("1"), "d", "0", "5"))));
    assert_int_equal(o.status, TSR_OK);
    const tsr_entry *w = tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"));
    assert_int_equal(w->chunk_count, 2);
    assert_int_equal(w->replica_count, 1);
    assert_int_equal(w->chunks[0].byte_offset, 5);
    assert_int_equal(w->replicas[0].byte_offset, 5);
    assert_int_equal(tsr_findings_total(tsr_checkpoint_findings(o.checkpoint), TSR_ERROR), 0);
    drop(&o);
}

/* A list of chunks that many tensors share through the memo: as many chunks as bytes, and no more. */
static void test_formats_dcp_metadata__shared_lists_of_chunks_are_bounded(void **state)
{
    enum { COUNT = 3000 };
    size_t room = 1 << 20, size = 0;
    char *text = malloc(room);
    (void)state;
    size += (size_t)snprintf(text, room, "%s", PROPERTIES "p0\n0(" CHUNK(SIZE0, SIZE0) "p1\n");
    for (int i = 0; i < COUNT; i++) size += (size_t)snprintf(text + size, room - size, "g1\n");
    size += (size_t)snprintf(text + size, room - size, "lp2\n0c" MODULE "Metadata\n)\x81(" STR("state_dict_metadata") "(");
    for (int i = 0; i < COUNT; i++) {
        size += (size_t)snprintf(text + size, room - size,
                                 "S'%d'\n" NEW(MODULE, "TensorStorageMetadata",
                                               "(" STR("properties") "g0\n" STR("size") SIZE0 STR("chunks") "g2\nd"),
                                 i);
    }
    size += (size_t)snprintf(text + size, room - size, "ddb.");
    opened o;
    open_metadata(&o, (tsr_str){text, size});
    assert_int_equal(o.status, TSR_E_LIMIT);
    assert_non_null(strstr(o.err.message, "more chunks than the file has bytes"));
    drop(&o);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_dcp_metadata__refuses_what_makes_no_catalog),
        cmocka_unit_test(test_formats_dcp_metadata__finds_what_does_not_fit),
        cmocka_unit_test(test_formats_dcp_metadata__places_chunks_whatever_their_hints),
        cmocka_unit_test(test_formats_dcp_metadata__equal_boxes_are_replicas_of_one_chunk),
        cmocka_unit_test(test_formats_dcp_metadata__shared_lists_of_chunks_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
