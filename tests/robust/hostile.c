/* See hostile.h. */
#include "robust/hostile.h"

#include <stdio.h>
#include <stdlib.h>

#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

typedef hostile_text text;
typedef hostile_shape shape;

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

/* Appends `pattern` once for every i in [0, count), with i as six digits in place of %%. Patterns may contain NUL bytes. */
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

#define BYTES(literal) \
    { \
        literal, sizeof(literal) - 1 \
    }

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

/* ---- one archive with a given number of members, the first of them data.pkl ---- */

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
    put_member(&t, &directory, "a/version", "3\n", 2);
    for (size_t i = 0; i < storages; i++) {
        snprintf(name, sizeof name, "a/data/%06zu", i);
        put_member(&t, &directory, name, "0123456789abcdef", 16);
    }
    put_end(&t, &directory, storages + 2);
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

/* ---- what a shape's text is wrapped in ---- */

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

/* ---- pickles of torch.save ---- */

#define TENSOR_ON(key) \
    "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'" key "'\nS'cpu'\nI4\ntQI0\n(I4\nt(I1\nt" \
    "I00\nccollections\nOrderedDict\n)RtR"

/* clang-format off */
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
    {"one object built often", BYTES("}S'k'\ncm\nC\n)\x81"), BYTES("}b"), BYTES("s"), BYTES(""), BYTES("."), REFUSED},
    {"items into one object", BYTES("}S'k'\ncm\nC\n)\x81"), BYTES("S'k%%'\nI1\ns"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"persistent ids", BYTES("}S'k'\n("), BYTES("S'p%%'\nQ"), BYTES("ls"), BYTES(""), BYTES("."), REFUSED},
    {"a long decimal", BYTES("}S'k'\nL"), BYTES("9876543210"), BYTES("L\ns"), BYTES(""), BYTES("."), REFUSED},
    {"a long string", BYTES("}S'k'\nS'"), BYTES("\\x41bc\\n"), BYTES("'\ns"), BYTES(""), BYTES("."), ACCEPTED},
    {"marks", BYTES("}"), BYTES("("), BYTES(""), BYTES(""), BYTES("."), REFUSED},
    {"memo of one list", BYTES("}S'k'\n]\x94"), BYTES("h\0a"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"text memo", BYTES("}"), BYTES("S'k%%'\np%%\nI1\ns"), BYTES(""), BYTES(""), BYTES("."), ACCEPTED},
    {"copies of the top", BYTES("}S'k'\n(N"), BYTES("2"), BYTES("ts"), BYTES(""), BYTES("."), ACCEPTED},
    {"nested modules", BYTES("}S'k'\n"), BYTES("ctorch.nn\nModule\n)\x81}S'_modules'\n}S'm'\n"), BYTES("N"), BYTES("ssb"), BYTES("s."), ACCEPTED},
    {"tuples that double", BYTES("}S'k'\nN"), BYTES("2\x86"), BYTES("s"), BYTES(""), BYTES("."), ACCEPTED},
    {"a memo slot far away", BYTES("}"), BYTES("S'k%%'\nI1\ns"), BYTES("r\xff\xff\xff\x7f"), BYTES(""), BYTES("."), ACCEPTED},
    {"a string longer than the file", BYTES("}"), BYTES("S'k%%'\nI1\ns"), BYTES("\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"), BYTES(""), BYTES("."), REFUSED},
    {"a frame longer than the file", BYTES("}"), BYTES("S'k%%'\nI1\ns"), BYTES("\x95\xff\xff\xff\xff\xff\xff\xff\x7f"), BYTES(""), BYTES("."), REFUSED},
    {"dicts that double", BYTES("}S'w'\nI1\ns"), BYTES("p0\n0}S'a'\ng0\nsS'b'\ng0\ns"), BYTES(""), BYTES(""), BYTES("."), REFUSED},
    {"lists that double", BYTES("}S'k'\n]I1\na"), BYTES("p0\n0(g0\ng0\nl"), BYTES("s."), BYTES(""), BYTES(""), ACCEPTED},
    {"lists that double, a tensor within", BYTES("}S'k'\n]" TENSOR_ON("000000") "a"), BYTES("p0\n0(g0\ng0\nl"), BYTES("s."), BYTES(""), BYTES(""), REFUSED},
    {"modules that double", BYTES("N"), BYTES("p0\n0ctorch.nn\nModule\n)\x81}(S'_parameters'\n}S'_buffers'\n}S'_modules'\n}S'a'\ng0\nsS'b'\ng0\nsub"), BYTES("p1\n0}S'k'\ng1\ns"), BYTES(""), BYTES("."), REFUSED},
    {"a dict without names, held often", BYTES("}S'v'\n}"), BYTES("I%%\nI1\ns"), BYTES("(\x91I1\nsp0\ns"), BYTES("S'k%%'\ng0\ns"), BYTES("."), ACCEPTED},
    {"a list of many entries", BYTES("}S'v'\n("), BYTES("I%%\n"), BYTES("tp0\ns"), BYTES("S'k%%'\ng0\ns"), BYTES("."), ACCEPTED},
    {"an object with attributes, listed often", BYTES("}S'v'\n(cm\nC\n)\x81}"), BYTES("S'a%%'\nI1\ns"), BYTES("bp0\n"), BYTES("g0\n"), BYTES("ls."), ACCEPTED},
    {"a long prefix of many names", BYTES("}S'"), BYTES("abcdefgh"), BYTES("'\n}"), BYTES("S'k%%'\nI1\ns"), BYTES("s."), CAPPED},
};
/* clang-format on */

static const shape stored[] = {
    {"members without use", BYTES("}S'k'\nI1\ns."), BYTES(""), BYTES(""), BYTES(""), BYTES(""), ACCEPTED},
    {"a tensor a storage", BYTES("}"), BYTES("S'k%%'\n" TENSOR_ON("%%") "s"), BYTES(""), BYTES(""), BYTES("."), ACCEPTED},
};

/* ---- .metadata ---- */

#define META              "torch.distributed.checkpoint.metadata\n"
#define SIZE(a, b)        "(I" a "\nI" b "\nt"
#define CHUNK(a, b, c, d) "c" META "ChunkStorageMetadata\n)\x81(S'offsets'\n" SIZE(a, b) "S'sizes'\n" SIZE(c, d) "db"
#define PROPERTIES        "c" META "TensorProperties\n)\x81(ctorch\nfloat32\nNI00\nNI00\ntb"
#define ENTRY(name, chunks) \
    "S'" name "'\nc" META "TensorStorageMetadata\n)\x81(S'properties'\n" PROPERTIES \
    "S'size'\n" SIZE("1000000", "2") "S'chunks'\n" chunks "db"
#define INDEX(name, a, b, hint) "c" META "MetadataIndex\n)\x81(S'fqn'\n" name "S'offset'\n" SIZE(a, b) "S'index'\n" hint "db"
#define STORAGE \
    "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81(S'relative_path'\nS'd'\nS'offset'\nI0\nS'length'\nI9\ndb"
#define OPEN    "c" META "Metadata\n)\x81(S'state_dict_metadata'\n("
#define PLANNER "dS'planner_data'\n("
#define STORED  "dS'storage_data'\n("
#define CLOSE   "ddb."

/* clang-format off */
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
/* clang-format on */

/* ---- safetensors headers ---- */

#define EMPTY_TENSOR "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}"

static const shape headers[] = {
    {"empty tensors", BYTES("{\"__metadata__\":{}"), BYTES(",\"w%%\":" EMPTY_TENSOR), BYTES("}"), BYTES(""), BYTES(""),
     ACCEPTED},
    {"one name again and again", BYTES("{\"__metadata__\":{}"), BYTES(",\"w\":" EMPTY_TENSOR), BYTES("}"), BYTES(""),
     BYTES(""), REFUSED},
    {"a long name", BYTES("{\""), BYTES("a\\u00e9\\n"), BYTES("\":" EMPTY_TENSOR "}"), BYTES(""), BYTES(""), ACCEPTED},
    {"a long shape", BYTES("{\"w\":{\"dtype\":\"F32\",\"shape\":[0"), BYTES(",1"), BYTES("],\"data_offsets\":[0,0]}}"),
     BYTES(""), BYTES(""), REFUSED},
    {"an unknown field that nests", BYTES("{\"w\":{\"x\":"), BYTES("["), BYTES("1"), BYTES("]"),
     BYTES(",\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"), REFUSED},
    {"unknown fields", BYTES("{\"w\":{"), BYTES("\"x%%\":1,"),
     BYTES("\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"), BYTES(""), BYTES(""), ACCEPTED},
    {"metadata", BYTES("{\"__metadata__\":{\"a\":\"b\""), BYTES(",\"k%%\":\"v\""), BYTES("}}"), BYTES(""), BYTES(""),
     ACCEPTED},
    {"white space", BYTES("{"), BYTES("        "), BYTES("}"), BYTES(""), BYTES(""), ACCEPTED},
    {"sharding info", BYTES("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\":{\\\"saved_offsets\\\":[0]}"),
     BYTES(",\\\"w%%\\\":{\\\"saved_offsets\\\":[0]}"), BYTES("}\",\"DCP_VERSION\":\"1.0\"}"),
     BYTES(",\"w%%\":" EMPTY_TENSOR), BYTES("}"), ACCEPTED},
};

static const shape indexes[] = {
    {"keys of one missing file", BYTES("{\"weight_map\":{\"a\":\"f\""), BYTES(",\"w%%\":\"f\""), BYTES("}}"), BYTES(""),
     BYTES(""), REFUSED},
    {"missing files", BYTES("{\"weight_map\":{\"a\":\"f\""), BYTES(",\"w%%\":\"f%%.safetensors\""), BYTES("}}"), BYTES(""),
     BYTES(""), REFUSED},
    {"one key again and again", BYTES("{\"weight_map\":{\"a\":\"f\""), BYTES(",\"a\":\"f\""), BYTES("}}"), BYTES(""),
     BYTES(""), REFUSED},
    {"nesting", BYTES("{\"weight_map\":"), BYTES("["), BYTES("1"), BYTES("]"), BYTES("}"), REFUSED},
};

#define GROUP(name, file, shapes, wrap, n) \
    { \
        name, file, shapes, sizeof(shapes) / sizeof *(shapes), wrap, n \
    }

const hostile_group hostile_groups[HOSTILE_GROUPS] = {
    [HOSTILE_PICKLES] = GROUP("pickle in a torch.save archive", "model.pt", pickles, archived, 2000),
    [HOSTILE_ARCHIVES] = GROUP("archive of many members", "model.pt", stored, archived_with_storages, 2000),
    [HOSTILE_METADATA] = GROUP(".metadata", ".metadata", metadata, plain, 1500),
    [HOSTILE_HEADERS] = GROUP("safetensors header", "model.safetensors", headers, headed, 3000),
    [HOSTILE_INDEXES] = GROUP("index file", "model.safetensors.index.json", indexes, plain, 3000),
};

hostile_text hostile_build(const hostile_group *group, const hostile_shape *made, size_t n)
{
    return group->wrap(text_of(made, n), n);
}
