/* Parses "dp=4,tp=2" and "shard(0),replicate", the syntax of --mesh, --placements and target documents. Placements are also
 * understood as PyTorch prints them. */
#include "base/cursor.h"
#include "tessera/mesh.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A text, and the current position in it. */
typedef struct reader {
    tsr_str text;
    size_t at;
    tsr_error *err;
} reader;

static void skip_spaces(reader *r)
{
    while (r->at < r->text.size && is_space(r->text.data[r->at])) r->at++;
}

static bool next_is(reader *r, char c)
{
    skip_spaces(r);
    return r->at < r->text.size && r->text.data[r->at] == c;
}

static bool take(reader *r, char c)
{
    if (!next_is(r, c)) return false;
    r->at++;
    return true;
}

static bool at_end(reader *r)
{
    skip_spaces(r);
    return r->at == r->text.size;
}

static tsr_status read_number(reader *r, uint64_t most, uint64_t *out)
{
    skip_spaces(r);
    size_t begin = r->at;
    uint64_t value = 0;
    for (; r->at < r->text.size && is_digit(r->text.data[r->at]); r->at++) {
        value = value * 10 + (uint64_t)(r->text.data[r->at] - '0'); /* `most` is far below 2^64 */
        TSR_FAIL_AT(value > most, r->err, TSR_E_USAGE, begin, "the number at byte %zu of '%.*s' is greater than %llu", begin,
                    TSR_STR_ARG(r->text), (unsigned long long)most);
    }
    TSR_FAIL_AT(r->at == begin, r->err, TSR_E_USAGE, begin, "expected a number at byte %zu of '%.*s'", begin,
                TSR_STR_ARG(r->text));
    *out = value;
    return TSR_OK;
}

static bool is_name_byte(char c)
{
    return c != ',' && c != '=' && c != '(' && c != ')' && (unsigned char)c > ' ' && c != 0x7f;
}

static tsr_str read_name(reader *r)
{
    skip_spaces(r);
    size_t begin = r->at;
    while (r->at < r->text.size && is_name_byte(r->text.data[r->at])) r->at++;
    return (tsr_str){r->text.data + begin, r->at - begin};
}

static tsr_status read_mesh_dim(reader *r, tsr_str *name, uint64_t *size)
{
    size_t begin = r->at;
    *name = read_name(r);
    if (take(r, '=')) {
        TSR_FAIL_AT(name->size == 0, r->err, TSR_E_USAGE, begin,
                    "expected the name of a mesh dim before '=' at byte %zu of '%.*s'", begin, TSR_STR_ARG(r->text));
    } else {
        *name = TSR_STR("");
        r->at = begin;
    }
    TSR_TRY(read_number(r, TSR_MESH_MAX_RANKS, size));
    TSR_FAIL_AT(*size == 0, r->err, TSR_E_USAGE, begin, "a mesh dim of '%.*s' has size 0", TSR_STR_ARG(r->text));
    return TSR_OK;
}

static tsr_status check_name(reader *r, const tsr_str *names, uint32_t count)
{
    for (uint32_t i = 0; i < count && names[count].size; i++) {
        TSR_FAIL_AT(tsr_str_equal(names[i], names[count]), r->err, TSR_E_USAGE, r->at,
                    "two mesh dims of '%.*s' are called %.*s", TSR_STR_ARG(r->text), TSR_STR_ARG(names[i]));
    }
    return TSR_OK;
}

tsr_status tsr_mesh_parse(tsr_str text, tsr_arena *arena, tsr_mesh *out, tsr_error *err)
{
    reader r = {text, 0, err};
    uint64_t *shape = tsr_arena_array(arena, TSR_MESH_MAX_DIMS, sizeof *shape, err), ranks = 1;
    tsr_str *names = tsr_arena_array(arena, TSR_MESH_MAX_DIMS, sizeof *names, err);
    uint32_t count = 0;
    if (!shape || !names) return TSR_E_NOMEM;
    do {
        TSR_FAIL_AT(count == TSR_MESH_MAX_DIMS, err, TSR_E_USAGE, r.at, "the mesh '%.*s' has more than %u dims",
                    TSR_STR_ARG(text), TSR_MESH_MAX_DIMS);
        TSR_TRY(read_mesh_dim(&r, &names[count], &shape[count]));
        TSR_TRY(check_name(&r, names, count));
        ranks *= shape[count]; /* each at most TSR_MESH_MAX_RANKS, which is 2^31 */
        TSR_FAIL_AT(ranks > TSR_MESH_MAX_RANKS, err, TSR_E_USAGE, r.at, "the mesh '%.*s' has more than %llu ranks",
                    TSR_STR_ARG(text), (unsigned long long)TSR_MESH_MAX_RANKS);
        names[count] = tsr_arena_str(arena, names[count], err);
        if (!names[count++].data) return TSR_E_NOMEM;
    } while (take(&r, ','));
    TSR_FAIL_AT(!at_end(&r), err, TSR_E_USAGE, r.at, "expected ',' or the end at byte %zu of the mesh '%.*s'", r.at,
                TSR_STR_ARG(text));
    *out = (tsr_mesh){count, shape, names};
    return TSR_OK;
}

static tsr_status expect(reader *r, char c)
{
    TSR_FAIL_AT(!take(r, c), r->err, TSR_E_USAGE, r->at, "expected '%c' at byte %zu of '%.*s'", c, r->at,
                TSR_STR_ARG(r->text));
    return TSR_OK;
}

/* The names of placements: ours, the class in PyTorch, and what str() prints of it ("S(0)", "_S(0, 2)"). */
static const struct {
    const char *names[4];
    tsr_placement_kind kind;
} kinds[] = {
    {{"replicate", "Replicate", "R"}, TSR_REPLICATE},
    {{"partial", "Partial", "P"}, TSR_PARTIAL},
    {{"shard", "Shard", "S"}, TSR_SHARD},
    {{"strided_shard", "_StridedShard", "StridedShard", "_S"}, TSR_STRIDED_SHARD},
};

static bool find_kind(tsr_str name, tsr_placement_kind *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t n = 0; n < 4 && kinds[i].names[n]; n++) {
            if (!tsr_str_equal(name, tsr_str_from(kinds[i].names[n]))) continue;
            *out = kinds[i].kind;
            return true;
        }
    }
    return false;
}

/* Skips the name of an argument, as repr() prints it: "dim=". */
static void skip_keyword(reader *r, const char *keyword)
{
    const size_t begin = r->at;
    if (!tsr_str_equal(read_name(r), tsr_str_from(keyword)) || !take(r, '=')) r->at = begin;
}

static tsr_status read_placement(reader *r, tsr_placement *out)
{
    skip_spaces(r);
    const size_t begin = r->at;
    const tsr_str name = read_name(r);
    uint64_t dim;
    *out = (tsr_placement){.dim = 0};
    TSR_FAIL_AT(!find_kind(name, &out->kind), r->err, TSR_E_USAGE, begin,
                "unknown placement '%.*s' at byte %zu of '%.*s'; choose replicate, shard(d), strided_shard(d, f) or partial",
                TSR_STR_ARG(name), begin, TSR_STR_ARG(r->text));
    if (out->kind == TSR_REPLICATE || out->kind == TSR_PARTIAL) {
        if (!take(r, '(')) return TSR_OK;
        if (out->kind == TSR_PARTIAL) read_name(r); /* the reduction, which no file states */
        return expect(r, ')');
    }
    TSR_TRY(expect(r, '('));
    skip_keyword(r, "dim");
    const bool negative = take(r, '-');
    TSR_TRY(read_number(r, TSR_MAX_NDIM, &dim));
    out->dim = negative ? -(int32_t)dim : (int32_t)dim;
    if (out->kind == TSR_STRIDED_SHARD) {
        TSR_TRY(expect(r, ','));
        skip_keyword(r, "sf");
        TSR_TRY(read_number(r, TSR_SPLIT_FACTOR_MAX, &out->split_factor));
        TSR_FAIL_AT(out->split_factor == 0, r->err, TSR_E_USAGE, r->at, "a split factor in '%.*s' is 0",
                    TSR_STR_ARG(r->text));
    }
    return expect(r, ')');
}

tsr_status tsr_placements_parse(tsr_str text, tsr_arena *arena, tsr_placement **out, uint32_t *count, tsr_error *err)
{
    reader r = {text, 0, err};
    *out = tsr_arena_array(arena, TSR_MESH_MAX_DIMS, sizeof **out, err);
    *count = 0;
    if (!*out) return TSR_E_NOMEM;
    const bool is_tuple = take(&r, '('); /* as PyTorch prints DTensor.placements */
    do {
        TSR_FAIL_AT(*count == TSR_MESH_MAX_DIMS, err, TSR_E_USAGE, r.at, "'%.*s' has more than %u placements",
                    TSR_STR_ARG(text), TSR_MESH_MAX_DIMS);
        TSR_TRY(read_placement(&r, &(*out)[(*count)++]));
    } while (take(&r, ',') && !(is_tuple && next_is(&r, ')')));
    if (is_tuple) TSR_TRY(expect(&r, ')'));
    TSR_FAIL_AT(!at_end(&r), err, TSR_E_USAGE, r.at, "expected ',' or the end at byte %zu of the placements '%.*s'", r.at,
                TSR_STR_ARG(text));
    return TSR_OK;
}

tsr_str tsr_mesh_text(const tsr_mesh *mesh, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("");
    for (uint32_t i = 0; i < mesh->dim_count && text.data; i++) {
        tsr_str name = mesh->names[i];
        text = tsr_arena_format(arena, err, "%.*s%s%.*s%s%llu", TSR_STR_ARG(text), i ? "," : "", TSR_STR_ARG(name),
                                name.size ? "=" : "", (unsigned long long)mesh->shape[i]);
    }
    return text;
}

tsr_str tsr_placements_text(const tsr_placement *placements, uint32_t count, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("");
    for (uint32_t i = 0; i < count && text.data; i++) {
        const tsr_placement *p = &placements[i];
        const char *comma = i ? "," : "";
        if (p->kind == TSR_REPLICATE || p->kind == TSR_PARTIAL) {
            text = tsr_arena_format(arena, err, "%.*s%s%s", TSR_STR_ARG(text), comma,
                                    p->kind == TSR_PARTIAL ? "partial" : "replicate");
        } else if (p->kind == TSR_SHARD) {
            text = tsr_arena_format(arena, err, "%.*s%sshard(%d)", TSR_STR_ARG(text), comma, (int)p->dim);
        } else {
            text = tsr_arena_format(arena, err, "%.*s%sstrided_shard(%d, %llu)", TSR_STR_ARG(text), comma, (int)p->dim,
                                    (unsigned long long)p->split_factor);
        }
    }
    return text;
}
