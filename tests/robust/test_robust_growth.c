/* Hostile checkpoints that grow: each is built twice, the second of twice the size, and opened, validated and walked. Twice
 * the input may take at most 2.3 times the work, and a bounded multiple of the input in memory; what is refused must be
 * refused in both sizes. The work is counted (work.h), not timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "robust/work.h"

typedef struct text {
    char *data;
    size_t size, capacity;
} text;

static void put(text *t, const void *data, size_t size)
{
    if (t->size + size > t->capacity) {
        t->capacity = 2 * (t->size + size);
        t->data = realloc(t->data, t->capacity);
    }
    memcpy(t->data + t->size, data, size);
    t->size += size;
}

static void put_le(text *t, unsigned width, uint64_t value)
{
    for (unsigned i = 0; i < width; i++) put(t, &(char){(char)(value >> (8 * i))}, 1);
}

/* `pattern` once for every i in [0, count): %% is i as six digits. Patterns may hold NUL bytes. */
static void put_each(text *t, tsr_str pattern, size_t count)
{
    char digits[32];
    for (size_t i = 0; i < count; i++) {
        snprintf(digits, sizeof digits, "%06zu", i);
        for (const char *p = pattern.data, *end = p + pattern.size; p < end; p++) {
            const bool here = p + 1 < end && p[0] == '%' && p[1] == '%';
            put(t, here ? digits : p, here ? 6 : 1);
            p += here;
        }
    }
}

#define BYTES(literal) {literal, sizeof(literal) - 1}

/* CAPPED: what it stands for is longer than the input by nature (names that repeat the whole way to them), and grows until
 * limits.expansion ends it; then the bounds are absolute. */
typedef enum verdict { ACCEPTED, REFUSED, CAPPED } verdict;

/* head, unit × n, middle, turn × n, tail */
typedef struct shape {
    const char *name;
    tsr_str head, unit, middle, turn, tail;
    verdict verdict;
} shape;

static text text_of(const shape *s, size_t n)
{
    text t = {NULL, 0, 0};
    put(&t, s->head.data, s->head.size);
    put_each(&t, s->unit, n);
    put(&t, s->middle.data, s->middle.size);
    put_each(&t, s->turn, n);
    put(&t, s->tail.data, s->tail.size);
    return t;
}

/* ---- one archive of so many members, the first of them data.pkl ---- */

static void put_member(text *t, text *directory, const char *name, const void *data, size_t size)
{
    const uint32_t crc = tsr_crc32(NULL, 0, data, size);
    const size_t at = t->size;
    for (int central = 0; central < 2; central++) {
        text *to = central ? directory : t;
        put_le(to, 4, central ? 0x02014b50 : 0x04034b50);
        put_le(to, central ? 4 : 2, 0);
        put_le(to, 8, 0);
        put_le(to, 4, crc);
        put_le(to, 4, size);
        put_le(to, 4, size);
        put_le(to, 4, strlen(name));
        if (central) put_le(to, 8, 0), put_le(to, 2, 0), put_le(to, 4, at);
        put(to, name, strlen(name));
    }
    put(t, data, size);
}

static void put_end(text *t, text *directory, size_t members)
{
    const size_t at = t->size;
    put(t, directory->data, directory->size);
    put_le(t, 4, 0x06054b50);
    put_le(t, 4, 0);
    put_le(t, 2, members);
    put_le(t, 2, members);
    put_le(t, 4, directory->size);
    put_le(t, 4, at);
    put_le(t, 2, 0);
    free(directory->data);
}

static text archive_of(text pickle, size_t storages)
{
    text t = {NULL, 0, 0}, directory = {NULL, 0, 0};
    char name[32];
    put_member(&t, &directory, "a/data.pkl", pickle.data, pickle.size);
    for (size_t i = 0; i < storages; i++) {
        snprintf(name, sizeof name, "a/data/%06zu", i);
        put_member(&t, &directory, name, "0123456789abcdef", 16);
    }
    put_end(&t, &directory, storages + 1);
    free(pickle.data);
    return t;
}

static text safetensors_of(text header)
{
    text t = {NULL, 0, 0};
    put_le(&t, 8, header.size);
    put(&t, header.data, header.size);
    free(header.data);
    return t;
}

/* ---- the comparison ---- */

static work work_of(const char *file, const text *content)
{
    const tsr_memory_file files[] = {{tsr_str_from(file), {content->data, content->size}}};
    return work_of_open(files, 1);
}

enum { MEMORY_FACTOR = 120, MEMORY_BASE = 1 << 18, STEPS_BASE = 20000, CAPPED_MEMORY = 400 << 20, CAPPED_STEPS = 400000000 };

static unsigned compare_works(const shape *s, const work *once, const work *twice, size_t size)
{
    unsigned bad = 0;
    const bool capped = s->verdict == CAPPED;
    const double growth = (double)twice->steps / (double)(once->steps + STEPS_BASE);
    const double memory = (double)twice->byte_peak / (double)(size + MEMORY_BASE);
    if (getenv("TSR_TEST_SHOW")) {
        print_message("%-44s %9zu bytes %10llu steps ×%.2f, %6llu KiB peak ×%.1f, %llu reads %s\n", s->name, size,
                      (unsigned long long)twice->steps, growth, (unsigned long long)twice->byte_peak >> 10, memory,
                      (unsigned long long)twice->reads, twice->message);
    }
    const bool slow = capped ? twice->steps > CAPPED_STEPS : growth > 2.3;
    const bool large = capped ? twice->byte_peak > CAPPED_MEMORY : memory > MEMORY_FACTOR;
    const bool greedy = !capped && twice->byte_asked > 4 * (uint64_t)MEMORY_FACTOR * (size + MEMORY_BASE);
    if (slow) bad = 1, print_message("%s: twice the input takes %.2f times the work\n", s->name, growth);
    if (large || greedy) bad = 1, print_message("%s: memory is %.1f times the input\n", s->name, memory);
    if (twice->reads > size / 64 + 64) bad = 1, print_message("%s: %llu reads\n", s->name, (unsigned long long)twice->reads);
    const bool refused = once->status != TSR_OK || once->errors, again = twice->status != TSR_OK || twice->errors;
    if (!capped && (refused != (s->verdict == REFUSED) || again != refused)) {
        bad = 1;
        print_message("%s: %s '%s'\n", s->name, again ? "refused" : "accepted", twice->message);
    }
    return bad;
}

typedef text (*wrap)(text content, size_t n);

static text plain(text content, size_t n)
{
    (void)n;
    return content;
}
static text archived(text content, size_t n)
{
    (void)n;
    return archive_of(content, 1);
}
static text archived_with_storages(text content, size_t n)
{
    return archive_of(content, n);
}
static text headed(text content, size_t n)
{
    (void)n;
    return safetensors_of(content);
}

static void compare_all(const shape *shapes, size_t count, const char *file, wrap wrapped, size_t n)
{
    unsigned bad = 0;
    for (size_t i = 0; i < count; i++) {
        text a = wrapped(text_of(&shapes[i], n), n), b = wrapped(text_of(&shapes[i], 2 * n), 2 * n);
        const work once = work_of(file, &a), twice = work_of(file, &b);
        bad += compare_works(&shapes[i], &once, &twice, b.size);
        free(a.data);
        free(b.data);
    }
    assert_int_equal(bad, 0);
}
#define COMPARE_ALL(shapes, file, wrapped, n) compare_all(shapes, sizeof(shapes) / sizeof *(shapes), file, wrapped, n)

/* ---- pickles of torch.save ---- */

#define TENSOR_ON(key) \
    "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'" key "'\nS'cpu'\nI4\ntQI0\n(I4\nt(I1\nt" \
    "I00\nccollections\nOrderedDict\n)RtR"

static const shape pickles[] = {
    {"distinct keys", BYTES("}"), BYTES("S'k%%'\nI1\ns"), BYTES(""), BYTES(""), BYTES("."), ACCEPTED},
    {"one key again and again", BYTES("}"), BYTES("S'k'\nI1\ns"), BYTES(""), BYTES(""), BYTES("."), REFUSED},
    {"lists in lists", BYTES("}S'k'\n]"), BYTES("]"), BYTES(""), BYTES("a"), BYTES("s."), ACCEPTED},
    {"lists in lists, a tensor within", BYTES("}S'k'\n]"), BYTES("]"), BYTES(TENSOR_ON("000000") "a"), BYTES("a"), BYTES("s."), ACCEPTED},
    {"tuples in tuples", BYTES("}S'k'\nN"), BYTES("\x85"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"dicts in dicts", BYTES("}"), BYTES("S'k'\n}"), BYTES(""), BYTES("s"), BYTES("."), ACCEPTED},
    {"dicts in dicts, a value within", BYTES("}"), BYTES("S'k'\n}"), BYTES("S'v'\nI1\ns"), BYTES("s"), BYTES("."), ACCEPTED},
    {"dicts in dicts, a value at each level", BYTES("}"), BYTES("S'v'\nI1\nsS'k'\n}"), BYTES(""), BYTES("s"), BYTES("."), CAPPED},
    {"sets in tuples in sets", BYTES("}S'k'\nN"), BYTES("\x85\x8f\x94(\x85\x90"), BYTES(""), BYTES(""), BYTES("."), REFUSED},
    {"tensors on one storage", BYTES("}"), BYTES("S'k%%'\n" TENSOR_ON("000000") "s"), BYTES(""), BYTES(""), BYTES("."), ACCEPTED},
    {"tensors on storages that are not there", BYTES("}"), BYTES("S'k%%'\n" TENSOR_ON("x%%") "s"), BYTES(""), BYTES(""), BYTES("."), REFUSED},
    {"unlisted names", BYTES("}S'k'\n("), BYTES("cevil\nf%%\n"), BYTES("ls"), BYTES(""), BYTES("."), ACCEPTED},
    {"unlisted calls", BYTES("}S'k'\n("), BYTES("cevil\nf%%\n)R"), BYTES("ls"), BYTES(""), BYTES("."), REFUSED},
    {"calls of calls", BYTES("}S'k'\ncevil\nf\n"), BYTES(")R"), BYTES("s"), BYTES(""), BYTES("."), REFUSED},
    {"one object built often", BYTES("}S'k'\ncm\nC\n)\x81"), BYTES("}b"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"items into one object", BYTES("}S'k'\ncm\nC\n)\x81"), BYTES("S'k%%'\nI1\ns"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"persistent ids", BYTES("}S'k'\n("), BYTES("S'p%%'\nQ"), BYTES("ls"), BYTES(""), BYTES("."), REFUSED},
    {"a long decimal", BYTES("}S'k'\nL"), BYTES("9876543210"), BYTES("L\ns"), BYTES(""), BYTES("."), REFUSED},
    {"a long string", BYTES("}S'k'\nS'"), BYTES("\\x41bc\\n"), BYTES("'\ns"), BYTES(""), BYTES("."), ACCEPTED},
    {"marks", BYTES("}"), BYTES("("), BYTES(""), BYTES(""), BYTES("."), REFUSED},
    {"memo of one list", BYTES("}S'k'\n]\x94"), BYTES("h\0a"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"text memo", BYTES("}"), BYTES("S'k%%'\np%%\nI1\ns"), BYTES(""), BYTES(""), BYTES("."), ACCEPTED},
    {"copies of the top", BYTES("}S'k'\n(N"), BYTES("2"), BYTES("ts"), BYTES(""), BYTES("."), ACCEPTED},
    {"nested modules", BYTES("}S'k'\n"), BYTES("ctorch.nn\nModule\n)\x81}S'_modules'\n}S'm'\n"), BYTES("N"), BYTES("ssb"), BYTES("s."), ACCEPTED},
    {"a long prefix of many names", BYTES("}S'"), BYTES("abcdefgh"), BYTES("'\n}"), BYTES("S'k%%'\nI1\ns"), BYTES("s."), CAPPED},
};

static void test_robust_growth__torch_pickles(void **state)
{
    (void)state;
    COMPARE_ALL(pickles, "model.pt", archived, 2000);
}

static const shape stored[] = {
    {"members without use", BYTES("}S'k'\nI1\ns."), BYTES(""), BYTES(""), BYTES(""), BYTES(""), ACCEPTED},
    {"a tensor a storage", BYTES("}"), BYTES("S'k%%'\n" TENSOR_ON("%%") "s"), BYTES(""), BYTES(""), BYTES("."), ACCEPTED},
};

static void test_robust_growth__archives_of_many_members(void **state)
{
    (void)state;
    COMPARE_ALL(stored, "model.pt", archived_with_storages, 2000);
}

/* ---- .metadata ---- */

#define META "torch.distributed.checkpoint.metadata\n"
#define SIZE(a, b) "(I" a "\nI" b "\nt"
#define CHUNK(a, b, c, d) "c" META "ChunkStorageMetadata\n)\x81(S'offsets'\n" SIZE(a, b) "S'sizes'\n" SIZE(c, d) "db"
#define PROPERTIES "c" META "TensorProperties\n)\x81(ctorch\nfloat32\nNI00\nNI00\ntb"
#define ENTRY(name, chunks) "S'" name "'\nc" META "TensorStorageMetadata\n)\x81(S'properties'\n" PROPERTIES \
    "S'size'\n" SIZE("1000000", "2") "S'chunks'\n" chunks "db"
#define INDEX(name, a, b, hint) "c" META "MetadataIndex\n)\x81(S'fqn'\n" name "S'offset'\n" SIZE(a, b) "S'index'\n" hint "db"
#define STORAGE "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81(S'relative_path'\nS'd'\nS'offset'\nI0\nS'length'\nI9\ndb"
#define OPEN "c" META "Metadata\n)\x81(S'state_dict_metadata'\n("
#define PLANNER "dS'planner_data'\n("
#define STORED "dS'storage_data'\n("
#define CLOSE "ddb."

static const shape metadata[] = {
    {"tensors", BYTES(OPEN), BYTES(ENTRY("w%%", "(" CHUNK("0", "0", "1000000", "2") "l")), BYTES(PLANNER STORED), BYTES(INDEX("S'w%%'\n", "0", "0", "N") STORAGE), BYTES(CLOSE), REFUSED},
    {"chunks of one tensor", BYTES(OPEN "S'w'\nc" META "TensorStorageMetadata\n)\x81(S'properties'\n" PROPERTIES "S'size'\n" SIZE("1000000", "2") "S'chunks'\n("), BYTES(CHUNK("%%", "0", "1", "2")), BYTES("ldb" PLANNER STORED), BYTES(INDEX("S'w'\n", "%%", "0", "N") STORAGE), BYTES(CLOSE), REFUSED},
    {"chunks with lying hints", BYTES(OPEN "S'w'\nc" META "TensorStorageMetadata\n)\x81(S'properties'\n" PROPERTIES "S'size'\n" SIZE("1000000", "2") "S'chunks'\n("), BYTES(CHUNK("%%", "0", "1", "2")), BYTES("ldb" PLANNER STORED), BYTES(INDEX("S'w'\n", "%%", "0", "I0\n") STORAGE), BYTES(CLOSE), REFUSED},
    {"one chunk again and again", BYTES(OPEN "S'w'\nc" META "TensorStorageMetadata\n)\x81(S'properties'\n" PROPERTIES "S'size'\n" SIZE("1000000", "2") "S'chunks'\n("), BYTES(CHUNK("0", "0", "1000000", "2")), BYTES("ldb" PLANNER STORED), BYTES(INDEX("S'w'\n", "0", "0", "I%%\n") STORAGE), BYTES(CLOSE), REFUSED},
    {"overlapping chunks", BYTES(OPEN "S'w'\nc" META "TensorStorageMetadata\n)\x81(S'properties'\n" PROPERTIES "S'size'\n" SIZE("1000000", "2") "S'chunks'\n("), BYTES(CHUNK("%%", "0", "999", "2")), BYTES("ldb" PLANNER STORED), BYTES(""), BYTES(CLOSE), REFUSED},
    {"storage of nothing", BYTES(OPEN PLANNER STORED), BYTES(INDEX("S'w%%'\n", "0", "0", "N") STORAGE), BYTES(""), BYTES(""), BYTES(CLOSE), REFUSED},
    {"paths of nothing", BYTES(OPEN PLANNER), BYTES("S'w%%'\n(S'a'\nI%%\nt"), BYTES(STORED), BYTES(""), BYTES(CLOSE), ACCEPTED},
    {"a long name, fetched often", BYTES(OPEN "S'"), BYTES("abcdefgh"), BYTES("'\n\x94" "c" META "BytesStorageMetadata\n)\x81" PLANNER STORED), BYTES(INDEX("h\0", "0", "%%", "N") STORAGE), BYTES(CLOSE), REFUSED},
    {"a list of chunks, fetched often", BYTES(OPEN "("), BYTES(CHUNK("%%", "0", "1", "2")), BYTES("l\x94" "0"), BYTES(ENTRY("w%%", "h\0")), BYTES(PLANNER STORED CLOSE), REFUSED},
};

static void test_robust_growth__dcp_metadata(void **state)
{
    (void)state;
    COMPARE_ALL(metadata, ".metadata", plain, 1500);
}

/* ---- safetensors headers ---- */

#define EMPTY_TENSOR "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}"

static const shape headers[] = {
    {"empty tensors", BYTES("{\"__metadata__\":{}"), BYTES(",\"w%%\":" EMPTY_TENSOR), BYTES("}"), BYTES(""), BYTES(""), ACCEPTED},
    {"one name again and again", BYTES("{\"__metadata__\":{}"), BYTES(",\"w\":" EMPTY_TENSOR), BYTES("}"), BYTES(""), BYTES(""), REFUSED},
    {"a long name", BYTES("{\""), BYTES("a\\u00e9\\n"), BYTES("\":" EMPTY_TENSOR "}"), BYTES(""), BYTES(""), ACCEPTED},
    {"a long shape", BYTES("{\"w\":{\"dtype\":\"F32\",\"shape\":[0"), BYTES(",1"), BYTES("],\"data_offsets\":[0,0]}}"), BYTES(""), BYTES(""), REFUSED},
    {"an unknown field that nests", BYTES("{\"w\":{\"x\":"), BYTES("["), BYTES("1"), BYTES("]"), BYTES(",\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"), REFUSED},
    {"unknown fields", BYTES("{\"w\":{"), BYTES("\"x%%\":1,"), BYTES("\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"), BYTES(""), BYTES(""), ACCEPTED},
    {"metadata", BYTES("{\"__metadata__\":{\"a\":\"b\""), BYTES(",\"k%%\":\"v\""), BYTES("}}"), BYTES(""), BYTES(""), ACCEPTED},
    {"white space", BYTES("{"), BYTES("        "), BYTES("}"), BYTES(""), BYTES(""), ACCEPTED},
    {"sharding info", BYTES("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\":{\\\"saved_offsets\\\":[0]}"), BYTES(",\\\"w%%\\\":{\\\"saved_offsets\\\":[0]}"), BYTES("}\",\"DCP_VERSION\":\"1.0\"}"), BYTES(",\"w%%\":" EMPTY_TENSOR), BYTES("}"), ACCEPTED},
};

static void test_robust_growth__safetensors_headers(void **state)
{
    (void)state;
    COMPARE_ALL(headers, "model.safetensors", headed, 3000);
}

static const shape indexes[] = {
    {"keys of one missing file", BYTES("{\"weight_map\":{\"a\":\"f\""), BYTES(",\"w%%\":\"f\""), BYTES("}}"), BYTES(""), BYTES(""), REFUSED},
    {"missing files", BYTES("{\"weight_map\":{\"a\":\"f\""), BYTES(",\"w%%\":\"f%%.safetensors\""), BYTES("}}"), BYTES(""), BYTES(""), REFUSED},
    {"one key again and again", BYTES("{\"weight_map\":{\"a\":\"f\""), BYTES(",\"a\":\"f\""), BYTES("}}"), BYTES(""), BYTES(""), REFUSED},
    {"nesting", BYTES("{\"weight_map\":"), BYTES("["), BYTES("1"), BYTES("]"), BYTES("}"), REFUSED},
};

static void test_robust_growth__index_files(void **state)
{
    (void)state;
    COMPARE_ALL(indexes, "model.safetensors.index.json", plain, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_robust_growth__torch_pickles),
        cmocka_unit_test(test_robust_growth__archives_of_many_members),
        cmocka_unit_test(test_robust_growth__dcp_metadata),
        cmocka_unit_test(test_robust_growth__safetensors_headers),
        cmocka_unit_test(test_robust_growth__index_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
