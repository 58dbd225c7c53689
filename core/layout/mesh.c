/* Computes what a rank holds, one tensor dim at a time: a list of runs along the dim, of which every mesh dim that shards it
 * selects a part.
 *
 *   size 7, strided_shard(0, 2) over 3, then shard(0) over 2 (left to right):
 *   0 1 2 3 | 4 5 6        cut into 2        0 1|2 3|  ‖ 4|5|6     each into 3
 *   the first of 3 holds 0 1 4; the first of 2 then holds 0 1: one run; the second holds 4 */
#include "tessera/mesh.h"

#include <string.h>

#include "base/cursor.h"
#include "layout/shard.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

uint64_t tsr_mesh_ranks(const tsr_mesh *mesh)
{
    uint64_t ranks = 1;
    for (uint32_t i = 0; i < mesh->dim_count; i++) ranks *= mesh->shape[i];
    return ranks;
}

void tsr_mesh_coordinate(const tsr_mesh *mesh, uint64_t rank, uint64_t *coordinate)
{
    for (uint32_t i = mesh->dim_count; i-- > 0; rank /= mesh->shape[i]) coordinate[i] = rank % mesh->shape[i];
}

uint64_t tsr_mesh_rank_at(const tsr_mesh *mesh, const uint64_t *coordinate)
{
    uint64_t rank = 0;
    for (uint32_t i = 0; i < mesh->dim_count; i++) rank = rank * mesh->shape[i] + coordinate[i];
    return rank;
}

bool tsr_placement_dim(const tsr_placement *placement, uint32_t ndim, uint32_t *dim)
{
    if (placement->kind != TSR_SHARD && placement->kind != TSR_STRIDED_SHARD) return false;
    int64_t d = placement->dim < 0 ? (int64_t)ndim + placement->dim : placement->dim;
    if (d < 0 || d >= (int64_t)ndim) return false;
    *dim = (uint32_t)d;
    return true;
}

/* The index-th of `count` parts of [0, size), split as by torch.chunk. */
static tsr_span part_of(uint64_t size, uint64_t count, uint64_t index)
{
    uint64_t step = size / count + (size % count != 0), begin = 0;
    if (!tsr_mul_u64(step, index, &begin) || begin > size) begin = size;
    return (tsr_span){begin, size - begin < step ? size - begin : step};
}

/* Appends the positions in `part` of the concatenation of the runs from[0, count). */
static tsr_status append_part(tsr_vec *to, const tsr_span *from, size_t count, tsr_span part, tsr_error *err)
{
    for (size_t i = 0; i < count && part.size > 0; i++) {
        if (part.offset >= from[i].size) {
            part.offset -= from[i].size;
            continue;
        }
        tsr_span run = {from[i].offset + part.offset, from[i].size - part.offset};
        if (run.size > part.size) run.size = part.size;
        part.offset = 0;
        part.size -= run.size;
        tsr_span *last = to->count ? (tsr_span *)to->items + (to->count - 1) : NULL;
        if (last && last->offset + last->size == run.offset) {
            last->size += run.size;
            continue;
        }
        tsr_span *added = tsr_vec_push(to, err);
        if (!added) return TSR_E_NOMEM;
        *added = run;
    }
    return TSR_OK;
}

static uint64_t total_size(const tsr_vec *spans)
{
    uint64_t total = 0;
    for (size_t i = 0; i < spans->count; i++) total += ((const tsr_span *)spans->items)[i].size;
    return total;
}

/* Makes one cut: replaces `runs` with the index-th of `count` parts of each of its `split_factor` pieces. */
static tsr_status cut(tsr_vec *runs, tsr_vec *scratch, uint64_t split_factor, uint64_t count, uint64_t index, tsr_error *err)
{
    uint64_t size = total_size(runs);
    scratch->count = 0;
    for (uint64_t i = 0; i < split_factor; i++) {
        tsr_span piece = part_of(size, split_factor, i);
        if (piece.size == 0) break; /* only trailing pieces are empty */
        tsr_span part = part_of(piece.size, count, index);
        part.offset += piece.offset;
        TSR_TRY(append_part(scratch, runs->items, runs->count, part, err));
    }
    tsr_vec swap = *runs;
    *runs = *scratch;
    *scratch = swap;
    return TSR_OK;
}

/* The mesh dims that shard tensor dim `dim`, in the order in which they are applied, and the split factor of each. */
typedef struct cut_order {
    uint32_t count;
    uint32_t mesh_dims[TSR_MESH_MAX_DIMS];
    uint64_t split_factors[TSR_MESH_MAX_DIMS];
} cut_order;

static cut_order order_cuts(const tsr_mesh *mesh, const tsr_placement *placements, tsr_strided strided, uint32_t ndim,
                            uint32_t dim)
{
    cut_order order = {0};
    uint64_t parts = 1; /* the number of parts made by the later mesh dims */
    for (uint32_t i = mesh->dim_count; i-- > 0;) {
        uint32_t d;
        if (!tsr_placement_dim(&placements[i], ndim, &d) || d != dim) continue;
        bool is_strided = placements[i].kind == TSR_STRIDED_SHARD;
        bool after = strided == TSR_STRIDED_FSDP && is_strided && placements[i].split_factor == parts;
        uint32_t at = after ? order.count : 0;
        for (uint32_t k = order.count; k > at; k--) {
            order.mesh_dims[k] = order.mesh_dims[k - 1];
            order.split_factors[k] = order.split_factors[k - 1];
        }
        order.mesh_dims[at] = i;
        order.split_factors[at] = is_strided && !after ? placements[i].split_factor : 1;
        order.count++;
        parts *= mesh->shape[i];
    }
    return order;
}

tsr_status tsr_mesh_spans(const tsr_sharding *how, tsr_shape shape, uint32_t dim, const uint64_t *coordinate, tsr_vec *spans,
                          tsr_error *err)
{
    const cut_order order = order_cuts(how->mesh, how->placements, how->strided, shape.ndim, dim);
    tsr_vec runs = tsr_vec_of(spans->allocator, sizeof(tsr_span)), scratch = runs;
    tsr_span whole = {0, shape.sizes[dim]};
    tsr_status status = append_part(&runs, &whole, 1, whole, err);
    for (uint32_t i = 0; i < order.count && status == TSR_OK; i++) {
        uint32_t m = order.mesh_dims[i];
        status = cut(&runs, &scratch, order.split_factors[i], how->mesh->shape[m], coordinate[m], err);
    }
    if (status == TSR_OK) status = tsr_vec_append(spans, runs.items, runs.count, err);
    tsr_vec_free(&runs);
    tsr_vec_free(&scratch);
    return status;
}

/* ---- mesh text ---- */

/* Parses "dp=4,tp=2" and "shard(0),replicate", the syntax of --mesh, --placements and target documents. Placements are also
 * understood as PyTorch prints them. */

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
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
    for (; r->at < r->text.size && tsr_is_digit(r->text.data[r->at]); r->at++) {
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

/* ---- dims text ---- */

/* Formats lists of decimal numbers without stdio, into a buffer on the caller's stack. */

#define LONGEST_NUMBER 20u
static const char clipped[] = "…]";

const char *tsr_dims_text(tsr_dims_buffer *buffer, const uint64_t *values, uint32_t ndim)
{
    char *out = buffer->text;
    const char *limit = buffer->text + sizeof buffer->text - LONGEST_NUMBER - 2 - sizeof clipped;
    *out++ = '[';
    for (uint32_t d = 0; d < ndim; d++) {
        char digits[LONGEST_NUMBER];
        uint64_t value = values ? values[d] : 0;
        uint32_t count = 0;
        if (out > limit) {
            memcpy(out, clipped, sizeof clipped);
            return buffer->text;
        }
        do digits[count++] = (char)('0' + value % 10);
        while (value /= 10);
        while (count) *out++ = digits[--count];
        if (d + 1 < ndim) {
            *out++ = ',';
            *out++ = ' ';
        }
    }
    memcpy(out, "]", 2);
    return buffer->text;
}
