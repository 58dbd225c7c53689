#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/arena_job.h"
#include "tessera/mesh.h"
#include "tessera/sys/layout.h"

#define GOLDEN(name) TSR_TEST_DATA "/tests/golden/" name

static tsr_arena *new_arena(void)
{
    return tsr_arena_new(&tsr_allocator_libc, 0, NULL);
}

static void test_layout_mesh__texts_round_trip(void **state)
{
    (void)state;
    const char *meshes[][2] = {{"dp=4,tp=2", "dp=4,tp=2"}, {" dp = 4 , 2 ", "dp=4,2"}, {"1", "1"}, {"a.b-c=7", "a.b-c=7"}};
    const char *placements[][2] = {{"shard(0),replicate", "shard(0),replicate"},
                                   {" shard( -1 ) , partial ", "shard(-1),partial"},
                                   {"strided_shard(0,2),shard(1)", "strided_shard(0, 2),shard(1)"},
                                   /* repr() and str() of PyTorch 2.13, and its classes */
                                   {"(Shard(dim=0), Replicate())", "shard(0),replicate"},
                                   {"(Shard(dim=-1),)", "shard(-1)"},
                                   {"S(1),R,P(sum)", "shard(1),replicate,partial"},
                                   {"Partial(avg),_StridedShard(dim=0, sf=2)", "partial,strided_shard(0, 2)"},
                                   {"_S(0, 2),Shard(3)", "strided_shard(0, 2),shard(3)"}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        tsr_arena *arena = new_arena();
        tsr_mesh mesh;
        assert_int_equal(tsr_mesh_parse(tsr_str_from(meshes[i][0]), arena, &mesh, NULL), TSR_OK);
        assert_string_equal(tsr_mesh_text(&mesh, arena, NULL).data, meshes[i][1]);
        tsr_arena_free(arena);
    }
    for (size_t i = 0; i < sizeof placements / sizeof placements[0]; i++) {
        tsr_arena *arena = new_arena();
        tsr_placement *list;
        uint32_t count;
        assert_int_equal(tsr_placements_parse(tsr_str_from(placements[i][0]), arena, &list, &count, NULL), TSR_OK);
        assert_string_equal(tsr_placements_text(list, count, arena, NULL).data, placements[i][1]);
        tsr_arena_free(arena);
    }
}

static void test_layout_mesh__refuses_what_makes_no_sense(void **state)
{
    (void)state;
    const struct {
        bool is_mesh;
        const char *text;
        uint64_t position;
        const char *message_part;
    } cases[] = {
        {true, "", 0, "expected a number"},
        {true, "dp=", 3, "expected a number at byte 3 of 'dp='"},
        {true, "=3", 0, "expected the name"},
        {true, "dp=0", 0, "size 0"},
        {true, "dp=2,dp=3", 9, "called dp"},
        {true, "d\tp=2", 0, "expected a number at byte 0"},
        {true, "d\x01=2", 0, "expected a number at byte 0"},
        {true, "a(b=2", 0, "expected a number at byte 0"},
        {true, "a)b=2", 0, "expected a number at byte 0"},
        {true,
         "a\x7f"
         "b=2",
         0, "expected a number at byte 0"},
        {false,
         "replicate,replicate,replicate,replicate,replicate,replicate,replicate,replicate,replicate,replicate,replicate,"
         "replicate,replicate,replicate,replicate,replicate,replicate",
         160, "has more than 16 placements"},
        {true, "dp=2;tp=3", 4, "expected ',' or the end at byte 4"},
        {true, "dp=2,", 5, "expected a number"},
        {true, "a=65536,b=65536", 15, "more than 2147483648 ranks"},
        {true, "99999999999999999999", 0, "greater than 2147483648"},
        {true, "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 32, "more than 16 dims"},
        {false, "", 0, "unknown placement '' at byte 0 of ''"},
        {false, "shard", 5, "expected '(' at byte 5"},
        {false, "shard()", 6, "expected a number"},
        {false, "shard(0", 7, "expected ')'"},
        {false, "shard(65)", 6, "greater than 64"},
        {false, "SHARD(0)", 0, "unknown placement 'SHARD' at byte 0 of 'SHARD(0)'"},
        {false, "(shard(0)", 9, "expected ')' at byte 9"},
        {false, "shard(axis=0)", 6, "expected a number"},
        {false, "shard(0) replicate", 9, "',' or the end"},
        {false, "strided_shard(0)", 15, "expected ','"},
        {false, "strided_shard(0,0)", 17, "split factor"},
        {false, "strided_shard(0,1048577)", 16, "greater than 1048576"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsr_error err = {0};
        tsr_arena *arena = new_arena();
        tsr_mesh mesh;
        tsr_placement *list;
        uint32_t count;
        tsr_str text = tsr_str_from(cases[i].text);
        tsr_status status = cases[i].is_mesh ? tsr_mesh_parse(text, arena, &mesh, &err)
                                             : tsr_placements_parse(text, arena, &list, &count, &err);
        assert_int_equal(status, TSR_E_USAGE);
        if (!strstr(err.message, cases[i].message_part)) fail_msg("'%s': %s", cases[i].text, err.message);
        if (err.byte_position != cases[i].position) fail_msg("'%s': byte %d", cases[i].text, (int)err.byte_position);
        tsr_arena_free(arena);
    }
}

static void test_layout_mesh__ranks_are_row_major(void **state)
{
    (void)state;
    const uint64_t shape[] = {3, 2, 4};
    const tsr_mesh mesh = {3, shape, NULL};
    uint64_t rank = 0;
    for (uint64_t a = 0; a < 3; a++) {
        for (uint64_t b = 0; b < 2; b++) {
            for (uint64_t c = 0; c < 4; c++, rank++) {
                uint64_t at[3];
                tsr_mesh_coordinate(&mesh, rank, at);
                assert_true(at[0] == a && at[1] == b && at[2] == c);
                assert_int_equal(tsr_mesh_rank_at(&mesh, at), rank);
            }
        }
    }
    assert_int_equal(tsr_mesh_ranks(&mesh), rank);
}

static void test_layout_mesh__a_dim_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    const uint64_t two[] = {2}, shape[] = {4, 4};
    const tsr_mesh mesh = {1, two, NULL};
    const struct {
        tsr_placement placement;
        uint32_t ndim;
        bool fits;
    } cases[] = {
        {{TSR_SHARD, 0, 0}, 0, false},         {{TSR_SHARD, 2, 0}, 2, false},
        {{TSR_SHARD, -3, 0}, 2, false},        {{TSR_SHARD, -2, 0}, 2, true},
        {{TSR_STRIDED_SHARD, 0, 0}, 2, false}, {{TSR_STRIDED_SHARD, 0, 1u << 21}, 2, false},
        {{TSR_REPLICATE, 9, 0}, 0, true},      {{TSR_PARTIAL, 9, 0}, 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsr_arena *arena = new_arena();
        tsr_shard shard;
        tsr_status status = tsr_mesh_shard(&(tsr_sharding){&mesh, &cases[i].placement, TSR_STRIDED_FSDP},
                                           (tsr_shape){cases[i].ndim, shape}, 1, arena, &shard, NULL);
        assert_int_equal(status, cases[i].fits ? TSR_OK : TSR_E_USAGE);
        tsr_arena_free(arena);
    }
}

/* Parses "4x2" or "." into numbers. */
static uint32_t read_dims(const char *text, uint64_t *out)
{
    uint32_t count = 0;
    if (*text == '.') return 0;
    for (char *end;; text = end + 1) {
        out[count++] = strtoull(text, &end, 10);
        if (*end != 'x') return count;
    }
}

/* Formats a shard as in the golden file: its local shape, then the runs of every dim as its boxes have them. */
static void shard_text(const tsr_shard *shard, char *out, size_t size)
{
    size_t used = 0;
    for (uint32_t d = 0; d < shard->ndim; d++) {
        used += (size_t)snprintf(out + used, size - used, "%s%llu", d ? "x" : "", (unsigned long long)shard->local_shape[d]);
    }
    if (shard->ndim == 0) used += (size_t)snprintf(out, size, ".");
    if (shard->box_count == 0 || shard->ndim == 0) return;
    used += (size_t)snprintf(out + used, size - used, "=");
    for (uint32_t d = 0; d < shard->ndim; d++) {
        uint64_t next = 0; /* local position at which the next run of this dim must begin */
        for (uint64_t b = 0; b < shard->box_count; b++) {
            const tsr_shard_box *box = &shard->boxes[b];
            if (box->local_offsets[d] != next) continue;
            used +=
                (size_t)snprintf(out + used, size - used, "%s%llu-%llu",
                                 next ? ","
                                 : d  ? "x"
                                      : "",
                                 (unsigned long long)box->offsets[d], (unsigned long long)(box->offsets[d] + box->sizes[d]));
            next += box->sizes[d];
        }
        assert_int_equal(next, shard->local_shape[d]);
    }
}

typedef struct golden_case {
    tsr_strided strided;
    tsr_mesh mesh;
    tsr_placement *placements;
    uint32_t ndim;
    uint64_t shape[8];
    char *rest; /* the rest of the line */
} golden_case;

static bool next_case(FILE *file, char *line, int size, tsr_arena *arena, golden_case *out)
{
    do {
        if (!fgets(line, size, file)) return false;
    } while (line[0] == '#');
    uint32_t count;
    char *order = strtok(line, " \n"), *mesh = strtok(NULL, " \n"), *placements = strtok(NULL, " \n"),
         *shape = strtok(NULL, " \n");
    out->strided = strcmp(order, "fsdp") == 0 ? TSR_STRIDED_FSDP : TSR_STRIDED_DTENSOR;
    assert_int_equal(tsr_mesh_parse(tsr_str_from(mesh), arena, &out->mesh, NULL), TSR_OK);
    assert_int_equal(tsr_placements_parse(tsr_str_from(placements), arena, &out->placements, &count, NULL), TSR_OK);
    assert_int_equal(count, out->mesh.dim_count);
    out->ndim = read_dims(shape, out->shape);
    return true;
}

static void shard_of(const golden_case *c, uint64_t mesh_rank, tsr_arena *arena, tsr_shard *out)
{
    tsr_error err = {0};
    assert_int_equal(tsr_mesh_shard(&(tsr_sharding){&c->mesh, c->placements, c->strided}, (tsr_shape){c->ndim, c->shape},
                                    mesh_rank, arena, out, &err),
                     TSR_OK);
}

/* Without strided shards, both interpretations must give the same answer. */
static bool readings_must_agree(const golden_case *c)
{
    for (uint32_t i = 0; i < c->mesh.dim_count; i++) {
        if (c->placements[i].kind == TSR_STRIDED_SHARD) return false;
    }
    return true;
}

static void test_layout_mesh__every_rank_holds_what_pytorch_gives_it(void **state)
{
    (void)state;
    static char line[1 << 16];
    FILE *file = fopen(GOLDEN("placements.txt"), "r");
    golden_case c;
    unsigned cases = 0, several = 0, empty = 0;
    assert_non_null(file);
    for (tsr_arena *arena = new_arena();; tsr_arena_free(arena), arena = new_arena()) {
        if (!next_case(file, line, sizeof line, arena, &c)) {
            tsr_arena_free(arena);
            break;
        }
        for (uint64_t r = 0; r < tsr_mesh_ranks(&c.mesh); r++) {
            char text[512];
            const char *want = strtok(NULL, " \n");
            tsr_shard shard;
            for (int reading = readings_must_agree(&c) ? 0 : 1; reading < 2; reading++) {
                golden_case other = c;
                if (reading == 0) other.strided = c.strided == TSR_STRIDED_FSDP ? TSR_STRIDED_DTENSOR : TSR_STRIDED_FSDP;
                shard_of(&other, r, arena, &shard);
                shard_text(&shard, text, sizeof text);
                if (strcmp(text, want) != 0) fail_msg("case %u, rank %d: '%s', PyTorch '%s'", cases, (int)r, text, want);
            }
            several += shard.box_count > 1;
            empty += shard.box_count == 0;
        }
        cases++;
    }
    fclose(file);
    if (cases < 1600 || several < 300 || empty < 300) fail_msg("%u cases, %u several, %u empty", cases, several, empty);
}

/* In these cases, PyTorch's compute_local_shape_and_global_offset contradicts what its ranks hold; we follow the ranks. */
static void test_layout_mesh__follows_the_ranks_where_pytorch_disagrees_with_itself(void **state)
{
    (void)state;
    char line[512], text[512];
    FILE *file = fopen(GOLDEN("placements_divergences.txt"), "r");
    golden_case c;
    unsigned cases = 0;
    assert_non_null(file);
    for (tsr_arena *arena = new_arena();; tsr_arena_free(arena), arena = new_arena(), cases++) {
        if (!next_case(file, line, sizeof line, arena, &c)) {
            tsr_arena_free(arena);
            break;
        }
        uint64_t rank = strtoull(strtok(NULL, " \n"), NULL, 10), said_shape[8], said_offsets[8];
        const char *held = strtok(NULL, " \n"), *said = strtok(NULL, "\n");
        tsr_shard shard;
        shard_of(&c, rank, arena, &shard);
        shard_text(&shard, text, sizeof text);
        assert_string_equal(text, held);
        c.strided = TSR_STRIDED_DTENSOR; /* the function's interpretation */
        shard_of(&c, rank, arena, &shard);
        assert_int_equal(read_dims(said, said_shape), shard.ndim);
        assert_int_equal(read_dims(strchr(said, '@') + 1, said_offsets), shard.ndim);
        assert_memory_equal(shard.local_shape, said_shape, shard.ndim * sizeof *said_shape);
        assert_memory_equal(shard.global_offsets, said_offsets, shard.ndim * sizeof *said_offsets);
    }
    fclose(file);
    assert_true(cases > 10);
}

static tsr_status parse_and_print(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    const uint64_t shape[] = {9, 4};
    tsr_mesh mesh;
    tsr_placement *placements;
    tsr_shard shard;
    uint32_t count;
    (void)ctx;
    (void)host;
    tsr_status status = tsr_mesh_parse(TSR_STR("dp=2,tp=2"), arena, &mesh, err);
    if (status == TSR_OK)
        status = tsr_placements_parse(TSR_STR("strided_shard(0,3),shard(1)"), arena, &placements, &count, err);
    if (status == TSR_OK)
        status = tsr_mesh_shard(&(tsr_sharding){&mesh, placements, TSR_STRIDED_FSDP}, (tsr_shape){2, shape}, 3, arena,
                                &shard, err);
    if (status != TSR_OK) return status;
    assert_int_equal(shard.box_count, 3);
    return tsr_mesh_text(&mesh, arena, err).data && tsr_placements_text(placements, count, arena, err).data ? TSR_OK
                                                                                                            : TSR_E_NOMEM;
}

static void test_layout_mesh__survives_every_allocation_failure(void **state)
{
    (void)state;
    must_bear_failed_allocations(parse_and_print, NULL, TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_mesh__texts_round_trip),
        cmocka_unit_test(test_layout_mesh__refuses_what_makes_no_sense),
        cmocka_unit_test(test_layout_mesh__ranks_are_row_major),
        cmocka_unit_test(test_layout_mesh__a_dim_that_is_not_there_is_an_error),
        cmocka_unit_test(test_layout_mesh__every_rank_holds_what_pytorch_gives_it),
        cmocka_unit_test(test_layout_mesh__follows_the_ranks_where_pytorch_disagrees_with_itself),
        cmocka_unit_test(test_layout_mesh__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
