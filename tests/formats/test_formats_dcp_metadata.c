/* Malicious and odd `.metadata` files, built field by field: which are rejected, and which get findings. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "support/dcp_pickle.h"
#include "support/faults.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

#define W                          STR("w") TENSOR(SIZE2("4", "2"), CHUNK(SIZE2("0", "0"), SIZE2("2", "2")) CHUNK(SIZE2("2", "0"), SIZE2("2", "2")))
#define W_FIRST                    AT("w", SIZE2("0", "0"), INT("0"), "d", "0", "100")
#define W_SECOND                   AT("w", SIZE2("2", "0"), INT("1"), "d", "100", "100")
#define W_PLACED                   W_FIRST W_SECOND
#define NEW_METADATA_UNTIL_PLANNER "c" MODULE "Metadata\n)\x81(" STR("state_dict_metadata") "(" W "d" STR("planner_data") "("

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_error err;
    tsr_status status;
} opened;

static const tsr_open_options no_objects = {.skip_objects = true};

static tsr_status open_and_drop(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    tsr_checkpoint *checkpoint;
    (void)ctx;
    tsr_status status = tsr_checkpoint_open(store, host, &no_objects, &checkpoint, err);
    tsr_checkpoint_close(checkpoint);
    return status;
}

static void open_files(opened *o, const tsr_memory_file *files, uint32_t count)
{
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, files, count, &o->store, NULL), TSR_OK);
    o->status = tsr_checkpoint_open(o->store, &o->host, &no_objects, &o->checkpoint, &o->err);
}

static void open_metadata(opened *o, tsr_str metadata)
{
    static char data[1000];
    open_files(o, (tsr_memory_file[]){{TSR_STR(".metadata"), metadata}, {TSR_STR("d"), {data, sizeof data}}}, 2);
}

/* The same, after trying it with every allocation and every read failing. */
static void open_row(opened *o, const char *metadata)
{
    open_metadata(o, tsr_str_from(metadata));
    assert_int_equal(must_bear_failures(open_and_drop, NULL, o->store, &o->host), o->status);
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
    {"N.", TSR_E_FORMAT, "does not contain a torch.distributed.checkpoint Metadata"},
    {NEW(MODULE, "Metadata", "N") ".", TSR_E_FORMAT, "Metadata lacks its state"},
    {NEW(MODULE, "Metadata", "(" STR("state_dict_metadata") "(ld") ".", TSR_E_FORMAT, "'state_dict_metadata' is not a dict"},
    {METADATA(INT("1") BYTE_ITEM, "", ""), TSR_E_FORMAT, "a key of state_dict_metadata is not a string"},
    {METADATA(STR("w") "N", "", ""), TSR_E_FORMAT, "'w' is neither a TensorStorageMetadata nor a BytesStorageMetadata"},
    {METADATA(STR("w") CHUNK(SIZE0, SIZE0), "", ""), TSR_E_FORMAT, "'w' is neither"},
    {METADATA(STR("w") BYTE_ITEM STR("w") BYTE_ITEM, "", ""), TSR_E_FORMAT, "the same key twice"},
    {METADATA(STR("w") TENSOR(SIZE1("-1"), ""), "", ""), TSR_E_FORMAT, "the negative value -1"},
    {METADATA(STR("w") TENSOR("ctorch\nSize\n(" STR("x") "tR", ""), "", ""), TSR_E_FORMAT, "a torch.Size is not a list of"},
    {METADATA(STR("w") TENSOR("(" STR("x") "t", ""), "", ""), TSR_E_FORMAT, "sizes or offsets are not a list of"},
    {METADATA(STR("w") TENSOR(PROPERTIES, ""), "", ""), TSR_E_FORMAT, "expected sizes or offsets, found an object"},
    {METADATA(STR("w") TENSOR_OF("N", SIZE0, ""), "", ""), TSR_E_FORMAT, "are not TensorProperties"},
    {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("N"), SIZE0, ""), "", ""), TSR_E_FORMAT, "is not a known torch dtype"},
    {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("ctorch\nfloat31\n"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "'torch.float31' is not a known torch dtype"},
    {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("cos\nfloat32\n"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "'os.float32' is not a known torch dtype"},
    {METADATA(STR("w") TENSOR_OF(NEW(MODULE, "TensorProperties", "(t"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "not a tuple of five items"},
    {METADATA(STR("w") NEW(MODULE, "TensorStorageMetadata", "(" STR("size") SIZE0 "d"), "", ""), TSR_E_FORMAT,
     "lacks 'properties'"},
    {METADATA(STR("w") TENSOR(SIZE0, "N"), "", ""), TSR_E_FORMAT,
     "item 0 of the chunks of a tensor is not a ChunkStorageMetadata"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE2("0", "0"), SIZE2("1", "1"))), "", ""), TSR_E_FORMAT,
     "chunk 0 of 'w' has 2 dimensions, but the tensor has 1"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE1("0"), SIZE2("1", "1"))), "", ""), TSR_E_FORMAT,
     "a chunk has 1 offsets but 2 sizes"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata", "(" STR("sizes") SIZE0 "d")), "", ""),
     TSR_E_FORMAT, "lacks 'offsets'"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata", "N")), "", ""), TSR_E_FORMAT,
     "state of a ChunkStorageMetadata is not a dict"},
    {METADATA("", "", STR("w") "N"), TSR_E_FORMAT, "storage_data contains something other than"},
    {METADATA("", "", INDEX("N", SIZE0, "N") "N"), TSR_E_FORMAT, "lacks the string 'fqn'"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE("N", INT("0"), INT("0"))), TSR_E_FORMAT,
     "lacks the string 'relative_path'"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE(STR("d"), "N", INT("0"))), TSR_E_FORMAT,
     "'offset' or 'length' of a _StorageInfo is not a 64-bit integer"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE(STR("d"), INT("99999999999999999999"), INT("0"))), TSR_E_FORMAT,
     "not a 64-bit integer"},
    {METADATA("", "", INDEX(STR("w"), STR("x"), "N") STORAGE(STR("d"), INT("0"), INT("0"))), TSR_E_FORMAT,
     "sizes or offsets are not a list of"},
    {METADATA("", "", NEW(MODULE, "MetadataIndex", "N") "N"), TSR_E_FORMAT, "state of a MetadataIndex is not a dict"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") NEW(FILES, "_StorageInfo", "N")), TSR_E_FORMAT,
     "state of a _StorageInfo is not a dict"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") INDEX(STR("w"), SIZE0, "N")), TSR_E_FORMAT,
     "something other than MetadataIndex: _StorageInfo"},
    {METADATA("", "", INDEX(STR("w"), SIZE0, "N") STORAGE(STR("d"), INT("0"), "N")), TSR_E_FORMAT, "not a 64-bit integer"},
    {METADATA(STR("w") NEW(MODULE, "TensorStorageMetadata", "N"), "", ""), TSR_E_FORMAT,
     "state of a TensorStorageMetadata is not a dict"},
    {METADATA(STR("w") TENSOR_OF(NEW(MODULE, "TensorProperties", "N"), SIZE0, ""), "", ""), TSR_E_FORMAT,
     "not a tuple of five items"},
    {METADATA(STR("w") TENSOR_OF(SIZE0, SIZE0, ""), "", ""), TSR_E_FORMAT, "are not TensorProperties"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata", "(" STR("offsets") SIZE0 "d")), "", ""),
     TSR_E_FORMAT, "lacks 'sizes'"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK("N", SIZE1("4"))), "", ""), TSR_E_FORMAT,
     "sizes or offsets are not a list of"},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE1("0"), "(lS'x'\na")), "", ""), TSR_E_FORMAT,
     "sizes or offsets are not a list of"},
    {METADATA(STR("w") TENSOR("ctorch\nSize\n(N" SIZE0 "tR", ""), "", ""), TSR_E_FORMAT, "a torch.Size is not a list of"},
    {NEW(MODULE, "Metadata", "(" STR("state_dict_metadata") "(d" STR("storage_data") "(ld") ".", TSR_E_FORMAT,
     "'storage_data' is not a dict"},
};

static void test_formats_dcp_metadata__refuses_what_makes_no_catalog(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        opened o;
        open_row(&o, refused[i].metadata);
        if (o.status != refused[i].status || !strstr(o.err.message, refused[i].part) ||
            !strstr(o.err.message, "in .metadata")) {
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        }
        drop(&o);
    }
}

#define MANY(a)  "(" EIGHT(a) EIGHT(a) EIGHT(a) EIGHT(a) "t"
#define EIGHT(a) HUGE(a) HUGE(a) HUGE(a) HUGE(a) HUGE(a) HUGE(a) HUGE(a) HUGE(a)
#define HUGE(a)  INT(a "000000000000000")

static const struct {
    const char *metadata, *rule, *fqn, *part; /* rule NULL: no finding */
} found[] = {
    {METADATA(W, "", W_PLACED), NULL, NULL, NULL},
    {METADATA(W, "", AT("w", SIZE2("2", "0"), INT("0"), "d", "100", "100") AT("w", SIZE2("0", "0"), "N", "d", "0", "100")),
     NULL, NULL, NULL}, /* hints are ignored */
    {METADATA(W, "", W_PLACED AT("w", SIZE2("2", "0"), INT("0"), "d", "0", "1")), "dcp/duplicate-record", "w",
     "two items of 'w' at offsets [2, 0]"},
    {METADATA(W, "", W_PLACED AT("w", SIZE2("1", "0"), INT("0"), "d", "0", "1")), "dcp/record-without-chunk", "w",
     "at offsets [1, 0]"},
    {METADATA(W, "", W_PLACED AT("w", SIZE1("0"), INT("0"), "d", "0", "1")), "dcp/record-without-chunk", "w",
     "at offsets [0]"},
    {METADATA(W, "", W_PLACED AT("w", "N", "N", "d", "0", "1")), "dcp/record-without-chunk", "w",
     "an item of 'w' without offsets, where"},
    {METADATA(W, "", W_PLACED AT("v", SIZE0, "N", "d", "0", "1")), "dcp/record-without-entry", "v", "an item of 'v'"},
    {METADATA(W STR("o") BYTE_ITEM, "", W_PLACED AT("o", SIZE0, "N", "d", "0", "1")), "dcp/record-without-chunk", "o",
     "'o'"},
    {METADATA(W STR("o") BYTE_ITEM, "", W_PLACED), "dcp/no-record", "o", "chunk 0 of 'o' has no item"},
    {METADATA(W, "", W_FIRST), "dcp/no-record", "w", "chunk 1 of 'w' at offsets [2, 0] has no item"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "d", "901", "100")), "dcp/beyond-end", "w",
     "at byte 901 with 100 bytes, but 'd' has only 1000"},
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
    {METADATA(W, STR("w") "cos\nsystem\n(" STR("true") "tR", W_PLACED), "pickle/unlisted-call", "", "call os.system"},
    {METADATA(W, STR("w") "cbuiltins\ngetattr\n(" STR("x") STR("y") "tR", W_PLACED), "pickle/unlisted-call", "",
     "call builtins.getattr"},
    {METADATA(W, STR("w") NEW("mine\n", "Thing", "N"), W_PLACED), "pickle/unlisted-class", "", "mine.Thing"},
    {METADATA(W, STR("w") NEW(MODULE, "StorageMeta2", "N"), W_PLACED), "pickle/unlisted-class", "", "StorageMeta2"},
    {METADATA(W, STR("w") NEW(MODULE, "Storage]eta", "N"), W_PLACED), "pickle/unloadable", "", "'Storage]eta'"},
    {METADATA(W, STR("w") NEW("torch.distributed.checkpoint.planner\n", "TansorWriteData", "N"), W_PLACED),
     "pickle/unloadable", "", "'TansorWriteData'"},
    {METADATA(W, STR("w") "cmine\nThing\n", W_PLACED), NULL, NULL, NULL}, /* a class that is named but not used */
    {METADATA(W, STR("w") "cbuiltins\ngetattr\n(c" MODULE "_MEM_FORMAT_ENCODING\n" STR("TORCH_CONTIGUOUS_FORMAT") "tR",
              W_PLACED),
     NULL, NULL, NULL},
    {METADATA(W, STR("w") "cbuiltins\ngetattr\n(c" MODULE "_MEM_FORMAT_ENCODING\ntR", W_PLACED), "pickle/unlisted-call", "",
     "call builtins.getattr"},
    /* the same without own dicts, in OrderedDicts, and with attributes that later versions may add */
    {NEW(MODULE, "Metadata",
         "(" STR("state_dict_metadata") "ccollections\nOrderedDict\n)R" W "s" STR(
             "storage_data") "ccollections\nOrderedDict\n)R" W_FIRST "s" W_SECOND "sd") ".",
     NULL, NULL, NULL},
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata",
                                              "(" INT("7") "N" STR("later") "N" STR("offsets") "(" INT("0") "t" STR(
                                                  "sizes") "(l" INT("4") "ad")),
              "", AT("w", SIZE1("0"), "N", "d", "0", "17")),
     NULL, NULL, NULL},
    {METADATA(STR("w") TENSOR(SIZE0, CHUNK(SIZE0, SIZE0)), "", AT("w", SIZE0, INT("-1"), "d", "0", "9")), NULL, NULL, NULL},
    {METADATA(STR("w") TENSOR(SIZE0, CHUNK(SIZE0, SIZE0)), "", AT("w", SIZE0, INT("99999999999"), "d", "0", "9")), NULL,
     NULL, NULL},
    /* a part of a chunk that is fetched from the memo after the chunk was folded: parsing starts over */
    {METADATA(STR("w") TENSOR(SIZE1("4"), NEW(MODULE, "ChunkStorageMetadata",
                                              "(" STR("offsets") SIZE1("0") STR("sizes") SIZE1("4") "dp7\n")),
              STR("w") "g7\n", AT("w", SIZE1("0"), INT("0"), "d", "0", "17")),
     NULL, NULL, NULL},
    {METADATA(W STR("o") BYTE_ITEM, "", W_PLACED AT("o", "N", "N", "d", "0", "1") AT("o", "N", "N", "d", "1", "1")),
     "dcp/duplicate-record", "o", "two items of 'o'"},
    {METADATA(W STR("o") BYTE_ITEM, "", W_PLACED AT("o", "N", "N", "d", "1000", "1")), "dcp/beyond-end", "o",
     "'o' is placed at byte"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "d", "-5", "10")), "dcp/beyond-end", "w", "at byte -5"},
    {METADATA(STR("w") TENSOR(SIZE2("4611686018427387904", "4"), CHUNK(SIZE2("0", "0"), SIZE2("4611686018427387904", "4"))),
              "", AT("w", SIZE2("0", "0"), "N", "d", "0", "1000")),
     NULL, NULL, NULL}, /* the number of elements overflows 64 bits, so it is not taken for safetensors */
    {METADATA(STR("w") TENSOR(SIZE1("9223372036854775807"), CHUNK(SIZE1("0"), SIZE1("9223372036854775807"))), "",
              AT("w", SIZE1("0"), "N", "d", "0", "1000")),
     NULL, NULL, NULL}, /* the number of bytes overflows 64 bits */
    {METADATA(W, "", W_FIRST INDEX(STR("w"), SIZE2("2", "0"), INT("1")) STORAGE("Va\\u0000b\n", INT("0"), INT("1"))),
     "dcp/path-outside", "w", "outside"},
    {METADATA(W, "", W_FIRST AT("w", SIZE2("2", "0"), INT("1"), "d/", "0", "1")), "dcp/missing-file", "w", "'d/'"},
    {METADATA(W, "", W_PLACED AT("w", MANY("7"), "N", "d", "0", "1")), "dcp/record-without-chunk", "w",
     "[7000000000000000, 7000000000000000, 7000000000000000, 7000000000000000, 7000000000000000, 7000000000000000, "
     "7000000000000000, "},
    {METADATA(STR("w") TENSOR(SIZE1("4"), CHUNK(SIZE1("0"), SIZE1("2")) CHUNK(SIZE1("0"), SIZE1("4"))), "",
              AT("w", SIZE1("0"), INT("0"), "d", "0", "9")),
     "dcp/no-record", "w", "chunk 1 of 'w'"}, /* the same offsets, but another size */
};

static void test_formats_dcp_metadata__finds_what_does_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        opened o;
        open_row(&o, found[i].metadata);
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

static void test_formats_dcp_metadata__paths_are_strings_and_positions(void **state)
{
    (void)state;
    static const struct {
        const char *planner;
        uint32_t length;
        uint64_t errors; /* a path that does not lead to its name is one */
    } paths[] = {
        {STR("w") "(" STR("w") "t", 1, 0},         {STR("w") "(" STR("a") INT("0") "t", 0, 1},
        {STR("w") "(" STR("w") STR("") "t", 0, 1}, {STR("w") "(" STR("w") INT("0") "t", 0, 1},
        {STR("w") "(" STR("") "t", 0, 1},          {STR("w") "(" INT("0") "t", 0, 1},
        {STR("w") "(" STR("w") "F1.5\nt", 0, 1},   {STR("w") "(t", 0, 0},
        {STR("w") "(l" STR("a") "a", 0, 0},        {STR("v") "(" STR("a") "t", 0, 0},
        {INT("1") "(" STR("a") "t", 0, 0},         {STR("w") STR("a"), 0, 0},
    };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        static char text[4096];
        opened o;
        snprintf(text, sizeof text, "%s%s%s", NEW_METADATA_UNTIL_PLANNER, paths[i].planner,
                 "d" STR("storage_data") "(" W_PLACED "ddb.");
        open_row(&o, text);
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        assert_int_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"))->path_length, paths[i].length);
        assert_int_equal(tsr_findings_total(tsr_checkpoint_findings(o.checkpoint), TSR_ERROR), paths[i].errors);
        drop(&o);
    }
}

/* The metadata of two ranks, with the same names. */
static void test_formats_dcp_metadata__ranks_must_agree(void **state)
{
    (void)state;
    static const char first[] =
        METADATA(STR("w") TENSOR(SIZE2("4", "2"), CHUNK(SIZE2("0", "0"), SIZE2("4", "2"))) STR("o") BYTE_ITEM, "", "");
    static const struct {
        const char *second;
        tsr_status status;
        const char *part;
    } rows[] = {
        {METADATA(STR("w") TENSOR(SIZE2("4", "2"), CHUNK(SIZE2("0", "0"), SIZE2("4", "2"))) STR("o") BYTE_ITEM, "", ""),
         TSR_OK, ""},
        {METADATA(STR("w") TENSOR(SIZE2("4", "2"), "") STR("v") TENSOR(SIZE0, CHUNK(SIZE0, SIZE0)),
                  STR("w") "(" STR("a") "t", ""),
         TSR_OK, ""},
        {METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("ctorch\nint32\n"), SIZE2("4", "2"), ""), "", ""), TSR_E_FORMAT,
         "a different dtype, size or kind"},
        {METADATA(STR("w") TENSOR(SIZE1("8"), ""), "", ""), TSR_E_FORMAT, "a different dtype, size or kind"},
        {METADATA(STR("w") TENSOR(SIZE2("2", "4"), ""), "", ""), TSR_E_FORMAT, "a different dtype, size or kind"},
        {METADATA(STR("o") TENSOR(SIZE0, ""), "", ""), TSR_E_FORMAT, "a different dtype, size or kind"},
        {METADATA(STR("w") BYTE_ITEM, "", ""), TSR_E_FORMAT,
         "a tensor in the metadata of one rank and an object in that of another"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o;
        open_files(&o,
                   (tsr_memory_file[]){{TSR_STR("__0.metadata"), TSR_STR(first)},
                                       {TSR_STR("__1.metadata"), tsr_str_from(rows[i].second)}},
                   2);
        if (o.status != rows[i].status || !strstr(o.err.message, rows[i].part))
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        if (o.status != TSR_OK) assert_non_null(strstr(o.err.message, "in __1.metadata"));
        assert_int_equal(must_bear_failures(open_and_drop, NULL, o.store, &o.host), rows[i].status);
        drop(&o);
    }
}

static void test_formats_dcp_metadata__entries_are_bounded_by_limits(void **state)
{
    (void)state;
    opened o;
    tsr_error err = {0};
    open_metadata(&o, TSR_STR(METADATA(STR("a") BYTE_ITEM STR("b") BYTE_ITEM, "", "")));
    o.host.limits.entries = 1;
    assert_int_equal(open_and_drop(NULL, o.store, &o.host, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "dcp: more than 1 entries"));
    drop(&o);
}

/* More names, chunks and paths than the tables have room for at first. */
static void test_formats_dcp_metadata__many_entries_bear_failures(void **state)
{
    (void)state;
    static char text[1 << 16];
    size_t used = (size_t)snprintf(text, sizeof text, "c" MODULE "Metadata\n)\x81(" STR("state_dict_metadata") "(");
    for (int i = 0; i < 20; i++) {
        used +=
            (size_t)snprintf(text + used, sizeof text - used,
                             "S'k%d'\n" TENSOR(SIZE1("4"), CHUNK(SIZE1("0"), SIZE1("2")) CHUNK(SIZE1("0"), SIZE1("2"))), i);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "d" STR("storage_data") "(");
    for (int i = 0; i < 20; i++) {
        used +=
            (size_t)snprintf(text + used, sizeof text - used,
                             "c" MODULE "MetadataIndex\n)\x81(" STR("fqn") "S'k%d'\n" STR("offset")
                                 SIZE1("0") "dbc" FILES "_StorageInfo\n)\x81(" STR("relative_path") "S'f%d'\n" STR("offset")
                                     INT("0") STR("length") INT("8") "db",
                             i, i);
    }
    snprintf(text + used, sizeof text - used, "ddb.");
    opened o;
    open_row(&o, text);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR("k19"))->replica_count, 1);
    drop(&o);
}

/* A list of chunks that many tensors share through the memo: there may be at most as many chunks as bytes. */
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
    assert_non_null(strstr(o.err.message, "more chunks in total than the file has bytes"));
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
        cmocka_unit_test(test_formats_dcp_metadata__paths_are_strings_and_positions),
        cmocka_unit_test(test_formats_dcp_metadata__ranks_must_agree),
        cmocka_unit_test(test_formats_dcp_metadata__entries_are_bounded_by_limits),
        cmocka_unit_test(test_formats_dcp_metadata__many_entries_bear_failures),
        cmocka_unit_test(test_formats_dcp_metadata__shared_lists_of_chunks_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
