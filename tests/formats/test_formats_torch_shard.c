/* Which boxes the rank of a DTensor holds. The expected boxes are torch.chunk's, computed by hand; whole meshes of real
 * ranks are in test_formats_torch (samples torch_ranks_*). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/torch_opening.h"
#include "support/torch_pickle.h"

static zip_image image;

static void open_pickle(torch_opening *o, const char *pickle, size_t storage_bytes, const uint32_t *rank)
{
    torch_image(&image, pickle, (const size_t[]){storage_bytes, SIZE_MAX});
    torch_open(o, &image, rank);
}

/* Formats each chunk as "start+size,start+size@byte", where the byte is relative to the storage's beginning. */
static void print_chunks(const tsr_entry *entry, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *c = &entry->chunks[i];
        if (i) used += (size_t)snprintf(out + used, size - used, " ");
        for (uint32_t d = 0; d < entry->ndim; d++)
            used += (size_t)snprintf(out + used, size - used, "%s%llu+%llu", d ? "," : "", (unsigned long long)c->offsets[d],
                                     (unsigned long long)c->sizes[d]);
        used +=
            (size_t)snprintf(out + used, size - used, "@%llu", (unsigned long long)(c->byte_offset - image.member[1].data));
    }
}

#define D1(n, local, mesh, placements) \
    PICKLED_DTENSOR(PICKLED_1(n), PICKLED_1("1"), PICKLED_TENSOR("0", local, PICKLED_1(local), PICKLED_1("1")), mesh, \
                    placements, "") \
    "."
#define D2(rows, columns, r, c, numel, mesh, placements, spec) \
    PICKLED_DTENSOR(PICKLED_2(rows, columns), PICKLED_2(columns, "1"), \
                    PICKLED_TENSOR("0", numel, PICKLED_2(r, c), PICKLED_2(c, "1")), mesh, placements, spec) \
    "."
#define MESH_1(n, at)            PICKLED_MESH(PICKLED_1(n), PICKLED_AT(PICKLED_1(at)))
#define MESH_2(n, m, at_n, at_m) PICKLED_MESH(PICKLED_2(n, m), PICKLED_AT(PICKLED_2(at_n, at_m)))
#define ORDER(first, second) \
    "S'shard_order'\n(ctorch.distributed.tensor._dtensor_spec\nShardOrderEntry\n(I0\n" PICKLED_2(first, second) "t\x81ts"

static const struct row {
    const char *pickle;
    size_t storage_bytes;
    const char *chunks;
    const char *placements;
} rows[] = {
    {D1("7", "3", MESH_1("3", "0"), PICKLED_SHARD("0")), 12, "0+3@0", "shard(0)"},
    {D1("7", "1", MESH_1("3", "2"), PICKLED_SHARD("0")), 4, "6+1@0", "shard(0)"},
    {D1("2", "0", MESH_1("3", "2"), PICKLED_SHARD("0")), 0, "", "shard(0)"},
    {D1("0", "0", MESH_1("3", "2"), PICKLED_SHARD("0")), 0, "0+0@0", "shard(0)"},
    {D1("5", "5", MESH_1("3", "2"), PICKLED_REPLICATE), 20, "0+5@0", "replicate"},
    {D2("2", "5", "2", "2", "4", MESH_1("3", "1"), PICKLED_SHARD("-1"), ""), 16, "0+2,2+2@0", "shard(1)"},
    {D2("6", "4", "3", "2", "6", MESH_2("2", "2", "1", "1"), PICKLED_SHARD("0") PICKLED_SHARD("1"), ""), 24, "3+3,2+2@0",
     "shard(0),shard(1)"},
    /* [7, 4] on a 3 × 2 mesh: the mesh's columns shard first (4 and 3 rows), then its rows */
    {D2("7", "4", "1", "4", "4", MESH_2("3", "2", "1", "1"), PICKLED_STRIDED("0", "2") PICKLED_SHARD("0"), ""), 16,
     "5+1,0+4@0", "strided_shard(0,2),shard(0)"},
    {D2("7", "4", "0", "4", "0", MESH_2("3", "2", "2", "0"), PICKLED_STRIDED("0", "2") PICKLED_SHARD("0"), ""), 0, "",
     "strided_shard(0,2),shard(0)"},
    /* one dimension sharded over both mesh dimensions, from left to right, and in the order that the spec states */
    {D2("8", "1", "2", "1", "2", MESH_2("2", "2", "0", "1"), PICKLED_SHARD("0") PICKLED_SHARD("0"), ""), 8, "2+2,0+1@0",
     "shard(0),shard(0)"},
    {D2("8", "1", "2", "1", "2", MESH_2("2", "2", "0", "1"), PICKLED_SHARD("0") PICKLED_SHARD("0"), ORDER("1", "0")), 8,
     "4+2,0+1@0", "shard(0),shard(0)"},
    /* a split factor that no mesh dimension explains: this rank has its part of each piece */
    {D1("12", "6", MESH_1("2", "1"), PICKLED_STRIDED("0", "2")), 24, "3+3@0 9+3@12", "strided_shard(0,2)"},
    {D1("12", "12", MESH_1("1", "0"), PICKLED_STRIDED("0", "3")), 48, "0+12@0", "strided_shard(0,3)"},
    {D2("2", "8", "2", "4", "8", MESH_1("2", "0"), PICKLED_STRIDED("1", "2"), ""), 32, "0+2,0+2@0 0+2,4+2@8",
     "strided_shard(1,2)"},
    {D2("2", "8", "2", "4", "8", MESH_2("2", "2", "0", "1"), PICKLED_STRIDED("1", "2") PICKLED_REPLICATE, ""), 32,
     "0+2,0+2@0 0+2,4+2@8", "strided_shard(1,2),replicate"},
    /* a strided part of a strided part: each piece has one run, two, or none */
    {D1("16", "4", MESH_2("2", "2", "1", "0"), PICKLED_STRIDED("0", "4") PICKLED_STRIDED("0", "4")), 16,
     "2+1@0 6+1@4 10+1@8 14+1@12", "strided_shard(0,4),strided_shard(0,4)"},
    {D1("16", "4", MESH_2("2", "2", "1", "1"), PICKLED_STRIDED("0", "4") PICKLED_STRIDED("0", "1")), 16, "10+2@0 14+2@8",
     "strided_shard(0,4),strided_shard(0,1)"},
    {D1("32", "16", MESH_1("2", "0"), PICKLED_STRIDED("0", "16")), 64,
     "0+1@0 2+1@4 4+1@8 6+1@12 8+1@16 10+1@20 12+1@24 14+1@28 16+1@32 18+1@36 20+1@40 22+1@44 24+1@48 26+1@52 28+1@56 "
     "30+1@60",
     "strided_shard(0,16)"},
    /* an axis may be a single number, and a placement may be made by a call */
    {D1("7", "3", PICKLED_MESH("I3\n", PICKLED_AT(PICKLED_1("1"))), PICKLED_SHARD("0")), 12, "3+3@0", "shard(0)"},
    {D1("7", "3", MESH_1("3", "1"), "ctorch.distributed.tensor.placement_types\nShard\n(I0\ntR"), 12, "3+3@0", "shard(0)"},
    {D1("7", "3", PICKLED_MESH("((I3\nI1\ntt", PICKLED_AT(PICKLED_1("1"))), PICKLED_SHARD("0")), 12, "3+3@0", "shard(0)"},
/* impossible orders are ignored in favour of left to right */
#define LEFT_TO_RIGHT(order) \
    { \
        D2("8", "1", "2", "1", "2", MESH_2("2", "2", "0", "1"), PICKLED_SHARD("0") PICKLED_SHARD("0"), order), 8, \
            "2+2,0+1@0", "shard(0),shard(0)" \
    }
    LEFT_TO_RIGHT("S'shard_order'\n((I0\n(I1\nttts"),
    LEFT_TO_RIGHT(ORDER("-1", "0")),
    LEFT_TO_RIGHT(ORDER("2", "0")),
    LEFT_TO_RIGHT("S'shard_order'\n(ctorch.distributed.tensor._dtensor_spec\nShardOrderEntry\n(I0\n(I1\ntt\x81ts"),
    LEFT_TO_RIGHT("S'shard_order'\n(ctorch.distributed.tensor._dtensor_spec\nShardOrderEntry\n(I1\n(I1\nI0\ntt\x81ts"),
    {D2("4", "4", "2", "2", "4", MESH_2("2", "2", "1", "1"), PICKLED_SHARD("0") PICKLED_SHARD("1"),
        "S'shard_order'\n(ctorch.distributed.tensor._dtensor_spec\nShardOrderEntry\n(I0\n(I1\ntt\x81ts"),
     16, "2+2,2+2@0", "shard(0),shard(1)"},
    /* the global size has an overflowing stride, but no elements */
    {PICKLED_DTENSOR(PICKLED_2("9223372036854775807", "0"), PICKLED_2("1", "1"),
                     PICKLED_TENSOR("0", "0", PICKLED_2("2305843009213693952", "0"), PICKLED_2("4", "1")), MESH_1("4", "0"),
                     PICKLED_SHARD("0"), "") ".",
     0, "0+9223372036854775807,0+0@0", "shard(0)"},
};

static void test_formats_torch_shard__boxes_follow_from_mesh_and_placements(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        torch_opening o;
        char chunks[256];
        open_pickle(&o, rows[i].pickle, rows[i].storage_bytes, NULL);
        if (o.status != TSR_OK || o.item.root->kind != TSR_VALUE_TENSOR)
            fail_msg("row %zu: status %d, %zu findings: %s", i, (int)o.status, tsr_findings_count(o.findings),
                     o.err.message);
        const tsr_entry *entry = o.item.root->as.tensor;
        print_chunks(entry, chunks, sizeof chunks);
        if (strcmp(chunks, rows[i].chunks) != 0) fail_msg("row %zu: %s, expected %s", i, chunks, rows[i].chunks);
        assert_true(tsr_str_equal(entry->distribution->placements, tsr_str_from(rows[i].placements)));
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_shard__a_box_inside_the_local_tensor_has_its_strides(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, rows[13].pickle, rows[13].storage_bytes, NULL);
    const tsr_view *view = o.item.root->as.tensor->chunks[1].view;
    assert_non_null(view);
    assert_int_equal(view->strides[0], 4);
    assert_int_equal(view->strides[1], 1);
    torch_opening_drop(&o);
}

#define I1_8 "I1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\n"

static const struct row untold[] = {
    {D1("7", "2", MESH_1("3", "0"), PICKLED_SHARD("0")), 8, "does not match its placements", NULL},
    {D1("7", "7", MESH_1("3", "0"), PICKLED_PARTIAL), 28, "partial values", NULL},
    {D1("7", "3", PICKLED_MESH(PICKLED_1("3"), ""), PICKLED_SHARD("0")), 12, "does not state which rank's shard", NULL},
    {D1("7", "3", MESH_1("3", "3"), PICKLED_SHARD("0")), 12, "does not state which rank's shard", NULL},
    {D1("7", "3", MESH_1("0", "0"), PICKLED_SHARD("0")), 12, "have an unknown form", NULL},
    {D1("7", "3", MESH_1("3", "0"), PICKLED_SHARD("0") PICKLED_SHARD("0")), 12, "have an unknown form", NULL},
    {D1("7", "3", MESH_1("3", "0"), PICKLED_SHARD("1")), 12, "have an unknown form", NULL},
    {D1("7", "3", MESH_1("3", "0"), PICKLED_STRIDED("0", "0")), 12, "have an unknown form", NULL},
    {D1("7", "3", MESH_1("3", "0"), "I1\n"), 12, "have an unknown form", NULL},
    {D1("7", "3", MESH_1("3", "0"), PICKLED_SHARD("-2")), 12, "have an unknown form", NULL},
    {D1("7", "3", MESH_1("3", "0"), "ctorch.distributed.tensor.placement_types\nShard\n)\x81(dS'dim'\nI01\nsb"), 12,
     "have an unknown form", NULL},
    {D1("7", "3", PICKLED_MESH("(S'3'\nt", ""), PICKLED_SHARD("0")), 12, "have an unknown form", NULL},
    {D1("7", "3", PICKLED_MESH("(lI3\na", ""), PICKLED_SHARD("0")), 12, "have an unknown form", NULL},
    {D1("7", "3", PICKLED_MESH("((I4611686018427387904\nI4611686018427387904\ntt", ""), PICKLED_SHARD("0")), 12,
     "have an unknown form", NULL},
    {D1("7", "3", PICKLED_MESH("(" I1_8 I1_8 I1_8 I1_8 "I1\nt", ""), PICKLED_SHARD("0")), 12, "have an unknown form", NULL},
    {D1("7", "3", PICKLED_MESH(PICKLED_1("3"), PICKLED_AT("(S'0'\nt")), PICKLED_SHARD("0")), 12,
     "does not state which rank's shard", NULL},
    {D1("7", "3", PICKLED_MESH(PICKLED_1("3"), PICKLED_AT(PICKLED_1("-1"))), PICKLED_SHARD("0")), 12,
     "does not state which rank's shard", NULL},
    {D1("7", "3", PICKLED_MESH(PICKLED_1("3"), PICKLED_AT(PICKLED_2("0", "0"))), PICKLED_SHARD("0")), 12,
     "does not state which rank's shard", NULL},
    {PICKLED_DTENSOR(PICKLED_2("4611686018427387904", "4611686018427387904"), PICKLED_2("1", "1"),
                     PICKLED_TENSOR("0", "3", PICKLED_1("3"), PICKLED_1("1")), MESH_1("3", "0"), PICKLED_SHARD("0"), "") ".",
     12, "of impossible size", NULL},
    {PICKLED_DTENSOR(PICKLED_2("7", "1"), PICKLED_2("1", "1"), PICKLED_TENSOR("0", "3", PICKLED_1("3"), PICKLED_1("1")),
                     MESH_1("3", "0"), PICKLED_SHARD("0"), "") ".",
     12, "does not match its placements", NULL},
    {PICKLED_DTENSOR(PICKLED_1("7"), PICKLED_1("1"),
                     "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nHalfStorage\nS'0'\nS'cpu'\nI3\ntQI0\n(I3\nt("
                     "I1\ntI00\nNtR",
                     MESH_1("3", "0"), PICKLED_SHARD("0"), "") ".",
     6, "does not match its placements", NULL},
    /* a split factor so large that the product of the mesh's sizes cannot be compared with it */
    {D1("7", "3", PICKLED_MESH("(I2\nI4611686018427387904\nI4611686018427387904\nt", PICKLED_AT("(I0\nI0\nI0\nt")),
        PICKLED_STRIDED("0", "3") PICKLED_SHARD("0") PICKLED_SHARD("0")),
     12, "does not match its placements", NULL},
    {D1("7", "3", "N", PICKLED_SHARD("0")), 12, "have an unknown form", NULL},
};

static void test_formats_torch_shard__what_cannot_be_told_is_reported_and_opaque(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof untold / sizeof untold[0]; i++) {
        torch_opening o;
        open_pickle(&o, untold[i].pickle, untold[i].storage_bytes, NULL);
        if (o.status != TSR_OK || tsr_findings_count(o.findings) != 1)
            fail_msg("row %zu: status %d, %zu findings: %s", i, (int)o.status, tsr_findings_count(o.findings),
                     o.err.message);
        const tsr_finding *f = tsr_findings_at(o.findings, 0);
        assert_string_equal(f->rule->id, "torch/dtensor");
        if (!strstr(f->message.data, untold[i].chunks)) fail_msg("row %zu: %.*s", i, TSR_STR_ARG(f->message));
        assert_int_equal(o.item.root->kind, TSR_VALUE_OBJECT);
        assert_int_equal(tsr_value_get(o.item.root->items[0], TSR_STR("local_tensor"))->kind, TSR_VALUE_TENSOR);
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_shard__an_empty_part_of_an_unknown_rank_is_a_part_of_nothing(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, D1("2", "0", PICKLED_MESH(PICKLED_1("3"), ""), PICKLED_SHARD("0")), 0, NULL);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.item.root->kind, TSR_VALUE_TENSOR);
    assert_int_equal(o.item.root->as.tensor->chunk_count, 0);
    torch_opening_drop(&o);
}

static void test_formats_torch_shard__a_local_part_must_be_a_tensor_of_its_own(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o,
                PICKLED_DTENSOR(PICKLED_1("7"), PICKLED_1("1"),
                                PICKLED_DTENSOR(PICKLED_1("3"), PICKLED_1("1"),
                                                PICKLED_TENSOR("0", "3", PICKLED_1("3"), PICKLED_1("1")), MESH_1("1", "0"),
                                                PICKLED_SHARD("0"), ""),
                                MESH_1("3", "0"), PICKLED_SHARD("0"), "") ".",
                12, NULL);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.item.root->kind, TSR_VALUE_OBJECT);
    torch_opening_drop(&o);
}

static void test_formats_torch_shard__without_findings_nothing_is_said(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, untold[0].pickle, untold[0].storage_bytes, NULL);
    assert_int_equal(tsr_torch_item_open(&(tsr_torch_source){.range = {o.store, 0, 0, image.size}}, &o.host, o.arena, NULL,
                                         &o.item, &o.err),
                     TSR_OK);
    assert_int_equal(o.item.root->kind, TSR_VALUE_OBJECT);
    torch_opening_drop(&o);
}

static void test_formats_torch_shard__too_many_boxes_are_refused(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o,
                PICKLED_DTENSOR(PICKLED_2("400", "400"), PICKLED_2("400", "1"),
                                PICKLED_TENSOR("0", "1", PICKLED_2("200", "200"), PICKLED_2("0", "0")),
                                MESH_2("2", "2", "0", "0"), PICKLED_STRIDED("0", "200") PICKLED_STRIDED("1", "200"), "") ".",
                4, NULL);
    assert_int_equal(o.status, TSR_E_LIMIT);
    assert_non_null(strstr(o.err.message, "more than 4096 boxes"));
    torch_opening_drop(&o);
}

/* A few bytes request thousands of boxes, more than the pickle has bytes for. */
static void test_formats_torch_shard__boxes_are_paid_for_by_the_pickle(void **state)
{
    (void)state;
#define CUT_INTO(pieces) \
    PICKLED_DTENSOR(PICKLED_2("8000", "1"), PICKLED_2("1", "1"), \
                    PICKLED_TENSOR("0", "1", PICKLED_2("4000", "1"), PICKLED_2("0", "0")), MESH_2("2", "3", "0", "0"), \
                    PICKLED_STRIDED("0", pieces) PICKLED_REPLICATE, "") \
    "."
    torch_opening o;
    open_pickle(&o, CUT_INTO("4000"), 4, NULL);
    assert_int_equal(o.status, TSR_E_LIMIT);
    assert_non_null(strstr(o.err.message, "for each byte of the pickle"));
    torch_opening_drop(&o);
    open_pickle(&o, CUT_INTO("40"), 4, NULL);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.item.root->kind, TSR_VALUE_TENSOR);
    assert_int_equal(o.item.root->as.tensor->chunk_count, 40);
    torch_opening_drop(&o);
}

#define LOCAL           PICKLED_TENSOR("0", "6", PICKLED_2("2", "3"), PICKLED_2("3", "1"))
#define SHARDED(shards) PICKLED_SHARDED(PICKLED_2("4", "3"), shards, PICKLED_GROUP("I1\n", "I2\n")) "."
#define MISFIT          "does not match its metadata or reaches beyond the tensor"

static void test_formats_torch_shard__shards_of_a_sharded_tensor_must_fit(void **state)
{
    (void)state;
    static const struct {
        const char *pickle;
        const char *chunks; /* NULL if it is rejected */
        const char *message;
    } sharded[] = {
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, PICKLED_2("2", "0"), PICKLED_2("2", "3")) "a"), "2+2,0+3@0", ""},
        {SHARDED(""), "", ""},
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, PICKLED_1("2"), PICKLED_2("2", "3")) "a"), NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, PICKLED_2("2", "0"), PICKLED_1("2")) "a"), NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD(PICKLED_TENSOR("0", "6", PICKLED_1("6"), PICKLED_1("1")), PICKLED_2("2", "0"),
                                     PICKLED_2("2", "3")) "a"),
         NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD("ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nIntStorage\nS'0'\nS'cpu'"
                                     "\nI6\ntQI0\n(I2\nI3\nt(I3\nI1\ntI00\nNtR",
                                     PICKLED_2("2", "0"), PICKLED_2("2", "3")) "a"),
         NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD(
             PICKLED_DTENSOR(PICKLED_2("2", "3"), PICKLED_2("3", "1"), LOCAL, MESH_1("1", "0"), PICKLED_SHARD("0"), ""),
             PICKLED_2("2", "0"), PICKLED_2("2", "3")) "a"),
         NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, PICKLED_2("2", "0"), PICKLED_2("1", "3")) "a"), NULL, MISFIT},
        {PICKLED_SHARDED(PICKLED_2("1", "3"), PICKLED_LOCAL_SHARD(LOCAL, PICKLED_2("0", "0"), PICKLED_2("2", "3")) "a",
                         "N") ".",
         NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, PICKLED_2("3", "0"), PICKLED_2("2", "3")) "a"), NULL, MISFIT},
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, "I1\n", PICKLED_2("2", "3")) "a"), NULL, "not a list of at most 64 integers"},
        {SHARDED(PICKLED_LOCAL_SHARD(LOCAL, PICKLED_2("2", "0"), "I1\n") "a"), NULL, "not a list of at most 64 integers"},
        {PICKLED_SHARDED("I1\n", "", "N") ".", NULL, "not a list of at most 64 integers"},
    };
    for (size_t i = 0; i < sizeof sharded / sizeof sharded[0]; i++) {
        torch_opening o;
        char chunks[64];
        open_pickle(&o, sharded[i].pickle, 24, NULL);
        if (o.status != (sharded[i].chunks ? TSR_OK : TSR_E_FORMAT) || !strstr(o.err.message, sharded[i].message))
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        if (o.status == TSR_OK) {
            print_chunks(o.item.root->as.tensor, chunks, sizeof chunks);
            assert_string_equal(chunks, sharded[i].chunks);
            assert_true(o.item.rank_known && o.item.rank == 1 && o.item.world == 2);
        }
        torch_opening_drop(&o);
    }
}

/* 2^40 pieces of a tensor whose elements are all the same one: they take no memory, but much time. */
static void test_formats_torch_shard__endless_strides_are_refused(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o,
                PICKLED_DTENSOR(PICKLED_1("2199023255552"), PICKLED_1("1"),
                                PICKLED_TENSOR("0", "1", PICKLED_1("1099511627776"), PICKLED_1("0")), MESH_1("2", "0"),
                                PICKLED_STRIDED("0", "1099511627776"), "") ".",
                4, NULL);
    assert_int_equal(o.status, TSR_E_LIMIT);
    torch_opening_drop(&o);
}

static void test_formats_torch_shard__a_rank_is_taken_from_the_mesh_or_else_the_hint(void **state)
{
    (void)state;
    static const uint32_t six = 6;
    torch_opening o;
    char chunks[64];
    open_pickle(&o, D1("7", "3", PICKLED_MESH(PICKLED_1("3"), "S'_flatten_mesh_list'\n(I4\nI6\nI8\nts"), PICKLED_SHARD("0")),
                12, &six);
    assert_int_equal(o.item.root->kind, TSR_VALUE_TENSOR);
    print_chunks(o.item.root->as.tensor, chunks, sizeof chunks);
    assert_string_equal(chunks, "3+3@0");
    assert_true(o.item.rank_known);
    assert_int_equal(o.item.rank, 6);
    torch_opening_drop(&o);
    open_pickle(&o,
                D1("7", "3",
                   PICKLED_MESH(PICKLED_1("3"), PICKLED_AT(PICKLED_1("0")) "S'_flatten_mesh_list'\n(I4\nI6\nI8\nts"),
                   PICKLED_SHARD("0")),
                12, &six);
    assert_int_equal(o.item.rank, 4); /* the file's own statement takes precedence */
    torch_opening_drop(&o);
}

#define RANKS "S'_flatten_mesh_list'\n(I4\nI6\nI8\nts"
#define HALF(attributes) \
    PICKLED_DTENSOR(PICKLED_1("7"), PICKLED_1("1"), PICKLED_TENSOR("0", "3", PICKLED_1("3"), PICKLED_1("1")), \
                    PICKLED_MESH(PICKLED_1("3"), attributes), PICKLED_SHARD("0"), "")

static void test_formats_torch_shard__ranks_that_cannot_be_are_not_learned(void **state)
{
    (void)state;
    static const struct {
        const char *pickle;
        bool hinted, known;
        uint32_t hint, rank, world;
    } told[] = {
        {HALF(PICKLED_AT(PICKLED_1("1")) RANKS) ".", false, true, 0, 6, 3},
        {"(" HALF(PICKLED_AT(PICKLED_1("1")) RANKS) HALF(RANKS) "t.", false, true, 0, 6,
         3}, /* the second mesh uses the rank of the first */
        {HALF(PICKLED_AT(PICKLED_1("1")) "S'_rank'\nI2\ns") ".", false, true, 0, 2, 0},
        {HALF(PICKLED_AT(PICKLED_1("1")) "S'_rank'\nI4294967296\ns") ".", false, false, 0, 0, 0},
        {HALF(PICKLED_AT(PICKLED_1("1")) "S'_flatten_mesh_list'\n(I4\nI6\nts") ".", false, false, 0, 0, 2},
        {HALF(PICKLED_AT(PICKLED_1("1")) "S'_flatten_mesh_list'\n(I4\nS'6'\nI8\nts") ".", false, false, 0, 0, 3},
        {HALF(RANKS) ".", true, false, 5, 0, 3},                                /* not in the list */
        {HALF("S'_flatten_mesh_list'\n(I4\nI6\nts") ".", true, false, 6, 0, 2}, /* the list is too short */
        {PICKLED_DTENSOR(PICKLED_1("7"), PICKLED_1("1"), PICKLED_TENSOR("0", "3", PICKLED_1("3"), PICKLED_1("1")),
                         PICKLED_MESH(PICKLED_2("4611686018427387904", "4611686018427387904"), RANKS),
                         PICKLED_SHARD("0") PICKLED_REPLICATE, "") ".",
         true, false, 4, 0, 3},
        {PICKLED_DTENSOR(
             PICKLED_1("7"), PICKLED_1("1"), PICKLED_TENSOR("0", "3", PICKLED_1("3"), PICKLED_1("1")),
             PICKLED_MESH(PICKLED_2("4611686018427387904", "4611686018427387904"), PICKLED_AT(PICKLED_2("0", "0")) RANKS),
             PICKLED_SHARD("0") PICKLED_REPLICATE, "") ".",
         false, false, 0, 0, 3},
        {PICKLED_SHARDED(PICKLED_2("4", "3"), "", PICKLED_GROUP("I1\n", "I4294967296\n")) ".", false, true, 0, 1, 0},
        {PICKLED_SHARDED(PICKLED_2("4", "3"), "", PICKLED_GROUP("N", "I2\n")) ".", false, false, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        torch_opening o;
        open_pickle(&o, told[i].pickle, strstr(told[i].pickle, "Sharded") ? SIZE_MAX : 12,
                    told[i].hinted ? &told[i].hint : NULL);
        if (o.status != TSR_OK || o.item.rank_known != told[i].known || o.item.rank != told[i].rank ||
            o.item.world != told[i].world)
            fail_msg("row %zu: status %d, known %d, rank %u of %u: %s", i, (int)o.status, o.item.rank_known, o.item.rank,
                     o.item.world, o.err.message);
        torch_opening_drop(&o);
    }
}

/* Before PyTorch 2.9, a mesh was a tensor of ranks. */
static void test_formats_torch_shard__meshes_of_older_versions_are_read(void **state)
{
    (void)state;
    torch_opening o;
    char chunks[64];
    open_pickle(
        &o,
        D1("7", "3",
           "ctorch.distributed._tensor.device_mesh\nDeviceMesh\n)\x81(dS'mesh'\n" PICKLED_TENSOR(
               "0", "3", PICKLED_1("3"), PICKLED_1("1")) "sS'mesh_dim_names'\n(S'dp'\ntsS'_coordinate_on_dim'\n(lI1\nasb",
           PICKLED_SHARD("0")),
        12, NULL);
    if (o.status != TSR_OK) fail_msg("%s", o.err.message);
    assert_int_equal(o.item.root->kind, TSR_VALUE_TENSOR);
    print_chunks(o.item.root->as.tensor, chunks, sizeof chunks);
    assert_string_equal(chunks, "3+3@0");
    assert_true(tsr_str_equal(o.item.root->as.tensor->distribution->mesh, TSR_STR("dp=3")));
    torch_opening_drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_shard__boxes_follow_from_mesh_and_placements),
        cmocka_unit_test(test_formats_torch_shard__a_box_inside_the_local_tensor_has_its_strides),
        cmocka_unit_test(test_formats_torch_shard__what_cannot_be_told_is_reported_and_opaque),
        cmocka_unit_test(test_formats_torch_shard__an_empty_part_of_an_unknown_rank_is_a_part_of_nothing),
        cmocka_unit_test(test_formats_torch_shard__a_local_part_must_be_a_tensor_of_its_own),
        cmocka_unit_test(test_formats_torch_shard__without_findings_nothing_is_said),
        cmocka_unit_test(test_formats_torch_shard__too_many_boxes_are_refused),
        cmocka_unit_test(test_formats_torch_shard__boxes_are_paid_for_by_the_pickle),
        cmocka_unit_test(test_formats_torch_shard__shards_of_a_sharded_tensor_must_fit),
        cmocka_unit_test(test_formats_torch_shard__ranks_that_cannot_be_are_not_learned),
        cmocka_unit_test(test_formats_torch_shard__endless_strides_are_refused),
        cmocka_unit_test(test_formats_torch_shard__a_rank_is_taken_from_the_mesh_or_else_the_hint),
        cmocka_unit_test(test_formats_torch_shard__meshes_of_older_versions_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
