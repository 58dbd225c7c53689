#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/arena_job.h"
#include "tessera/diff.h"
#include "tessera/sys/host_calls.h"

#define BOX(...) ((const uint64_t[]){__VA_ARGS__})
#define TENSOR(name, type, dims, ...) \
    .fqn = {name, sizeof name - 1}, .kind = TSR_ENTRY_TENSOR, .dtype = type, .ndim = dims, .shape = BOX(__VA_ARGS__)
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static tsr_host host_with(const tsr_allocator *allocator)
{
    return (tsr_host){.allocator = allocator, .limits = tsr_limits_default()};
}

static tsr_catalog catalog_of(const tsr_entry *entries, size_t count)
{
    return (tsr_catalog){.entries = entries, .entry_count = count};
}

/* Formats added, removed, renamed and changed entries as "+b -a a~b:why w:3 ". */
static void summarize(const tsr_diff *diff, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint64_t i = 0; i < diff->added_count; i++) {
        used += (size_t)snprintf(out + used, size - used, "+%.*s ", TSR_STR_ARG(diff->added[i]->fqn));
    }
    for (uint64_t i = 0; i < diff->removed_count; i++) {
        used += (size_t)snprintf(out + used, size - used, "-%.*s ", TSR_STR_ARG(diff->removed[i]->fqn));
    }
    for (uint64_t i = 0; i < diff->renamed_count; i++) {
        used += (size_t)snprintf(out + used, size - used, "%.*s~%.*s ", TSR_STR_ARG(diff->renamed[i].a->fqn),
                                 TSR_STR_ARG(diff->renamed[i].b->fqn));
    }
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        if (!diff->pairs[i].what) continue;
        used +=
            (size_t)snprintf(out + used, size - used, "%.*s:%u ", TSR_STR_ARG(diff->pairs[i].a->fqn), diff->pairs[i].what);
    }
}

static void assert_diff(const tsr_catalog *a, const tsr_catalog *b, const tsr_diff_options *options, const char *want)
{
    char text[512];
    tsr_error err = {0};
    tsr_host host = host_with(&tsr_allocator_libc);
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, &err);
    tsr_diff diff;
    assert_int_equal(tsr_diff_catalogs((tsr_catalog_pair){a, b}, options, &host, arena, &diff, &err), TSR_OK);
    summarize(&diff, text, sizeof text);
    assert_string_equal(text, want);
    assert_int_equal(tsr_diff_is_same(&diff), want[0] == '\0');
    tsr_arena_free(arena);
}

static void test_layout_diff__reports_each_kind_of_change(void **state)
{
    (void)state;
    const tsr_value one = {.kind = TSR_VALUE_INT, .as.integer = 1}, two = {.kind = TSR_VALUE_INT, .as.integer = 2};
    const tsr_entry left[] = {
        {TENSOR("same", TSR_FLOAT32, 2, 3, 4)},
        {TENSOR("cast", TSR_FLOAT32, 1, 3)},
        {TENSOR("reshaped", TSR_FLOAT32, 2, 3, 4)},
        {TENSOR("both", TSR_FLOAT32, 1, 3)},
        {TENSOR("float4", TSR_FLOAT4_E2M1FN, 2, 3, 8)},
        {TENSOR("kind", TSR_INT64, 0, 0)},
        {TENSOR("gone", TSR_INT64, 1, 1)},
        {.fqn = {"step", 4}, .kind = TSR_ENTRY_OBJECT, .value = &one},
        {.fqn = {"seed", 4}, .kind = TSR_ENTRY_OBJECT, .value = &one},
        {.fqn = {"odd", 3}, .kind = TSR_ENTRY_OPAQUE, .type = {"A", 1}},
    };
    const tsr_entry right[] = {
        {TENSOR("new", TSR_FLOAT32, 1, 7)},
        {.fqn = {"odd", 3}, .kind = TSR_ENTRY_OPAQUE, .type = {"B", 1}},
        {.fqn = {"seed", 4}, .kind = TSR_ENTRY_OBJECT, .value = &one},
        {.fqn = {"step", 4}, .kind = TSR_ENTRY_OBJECT, .value = &two},
        {.fqn = {"kind", 4}, .kind = TSR_ENTRY_OBJECT, .value = &one},
        {TENSOR("float4", TSR_FLOAT4_E2M1FN_X2, 2, 3, 4)},
        {TENSOR("both", TSR_INT8, 1, 4)},
        {TENSOR("reshaped", TSR_FLOAT32, 2, 4, 3)},
        {TENSOR("cast", TSR_BFLOAT16, 1, 3)},
        {TENSOR("same", TSR_FLOAT32, 2, 3, 4)},
    };
    const tsr_catalog a = catalog_of(left, COUNT(left)), b = catalog_of(right, COUNT(right));
    const tsr_diff_options skip = {.skip_objects = true};
    assert_diff(&a, &b, NULL, "+new -gone cast:1 reshaped:2 both:3 kind:16 step:16 odd:16 ");
    assert_diff(&a, &b, &skip, "+new -gone cast:1 reshaped:2 both:3 kind:16 ");
    assert_diff(&a, &a, NULL, "");
    const tsr_catalog none = catalog_of(NULL, 0);
    assert_diff(&none, &none, NULL, "");
}

static void test_layout_diff__layout_counts_only_when_asked(void **state)
{
    (void)state;
    const tsr_chunk whole[] = {{BOX(0, 0), BOX(4, 4), 0, 0, NULL, 0}};
    const tsr_chunk rows[] = {{BOX(2, 0), BOX(2, 4), 0, 0, NULL, 0}, {BOX(0, 0), BOX(2, 4), 0, 0, NULL, 0}};
    const tsr_chunk sorted[] = {{BOX(0, 0), BOX(2, 4), 0, 0, NULL, 1}, {BOX(2, 0), BOX(2, 4), 9, 9, NULL, 2}};
    const tsr_entry left[] = {{TENSOR("w", TSR_FLOAT32, 2, 4, 4), .chunks = rows, .chunk_count = 2},
                              {TENSOR("v", TSR_FLOAT32, 2, 4, 4), .chunks = rows, .chunk_count = 2}};
    const tsr_entry right[] = {{TENSOR("w", TSR_FLOAT32, 2, 4, 4), .chunks = whole, .chunk_count = 1},
                               {TENSOR("v", TSR_FLOAT32, 2, 4, 4), .chunks = sorted, .chunk_count = 2}};
    const tsr_catalog a = catalog_of(left, 2), b = catalog_of(right, 2);
    const tsr_diff_options layout = {.layout = true};
    assert_diff(&a, &b, NULL, "");
    assert_diff(&a, &b, &layout, "w:8 ");
}

/* Makes float32 [2, 2] entries with up to three names. */
static size_t name_entries(const char *const names[3], tsr_entry *out)
{
    static const uint64_t shape[] = {2, 2};
    size_t count = 0;
    for (; count < 3 && names[count]; count++) {
        out[count] = (tsr_entry){
            .fqn = tsr_str_from(names[count]), .kind = TSR_ENTRY_TENSOR, .dtype = TSR_FLOAT32, .ndim = 2, .shape = shape};
    }
    return count;
}

static void test_layout_diff__suggests_renames_that_are_unique(void **state)
{
    (void)state;
    const struct {
        const char *a[3];
        const char *b[3];
        const char *want;
    } cases[] = {
        /* all float32 [2, 2] */
        {{"module.fc.w"}, {"fc.w"}, "+fc.w -module.fc.w module.fc.w~fc.w "},
        {{"fc.w"}, {"model.fc.w"}, "+model.fc.w -fc.w fc.w~model.fc.w "},
        {{"h.0.attn.w", "h.1.attn.w"},
         {"h.1.att.w", "h.0.att.w"},
         "+h.1.att.w +h.0.att.w -h.0.attn.w -h.1.attn.w h.0.attn.w~h.0.att.w h.1.attn.w~h.1.att.w "},
        {{"m.a.w", "m.b.w", "m.c.w"},
         {"c.w", "a.w", "b.w"},
         "+c.w +a.w +b.w -m.a.w -m.b.w -m.c.w m.a.w~a.w m.b.w~b.w m.c.w~c.w "}, /* in A's order */
        {{"m.b.w", "m.a.w", "x.w"}, {"x.v", "a.w", "b.w"}, "+x.v +a.w +b.w -m.b.w -m.a.w -x.w m.b.w~b.w m.a.w~a.w x.w~x.v "},
        {{"a.w", "b.w"}, {"c.w"}, "+c.w -a.w -b.w "}, /* ambiguous */
        {{"fc.weight"}, {"fc.kernel"}, "+fc.kernel -fc.weight fc.weight~fc.kernel "},
        {{"tok.emb.w"}, {"model.embed.tokens.w"}, "+model.embed.tokens.w -tok.emb.w tok.emb.w~model.embed.tokens.w "},
        {{"tok.w"}, {"a.new.name"}, "+a.new.name -tok.w "},
        {{"x"}, {"y"}, "+y -x x~y "}, /* the only ones of their dtype and shape, with one component */
        {{"m.x", "x.x"}, {"x"}, "+x -m.x -x.x "},
        {{""}, {"w"}, "+w - ~w "},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        tsr_entry left[3], right[3];
        size_t left_count = name_entries(cases[i].a, left), right_count = name_entries(cases[i].b, right);
        const tsr_catalog a = catalog_of(left, left_count), b = catalog_of(right, right_count);
        char text[512];
        tsr_host host = host_with(&tsr_allocator_libc);
        tsr_arena *arena = tsr_arena_new(host.allocator, 0, NULL);
        tsr_diff diff;
        assert_int_equal(tsr_diff_catalogs((tsr_catalog_pair){&a, &b}, NULL, &host, arena, &diff, NULL), TSR_OK);
        summarize(&diff, text, sizeof text);
        assert_string_equal(text, cases[i].want);
        for (uint64_t k = 0; k < diff.renamed_count; k++) assert_true(diff.renamed[k].why.size > 10);
        tsr_arena_free(arena);
    }
}

static void test_layout_diff__renames_need_equal_dtype_and_shape(void **state)
{
    (void)state;
    const tsr_entry left[] = {{TENSOR("m.w", TSR_FLOAT32, 2, 2, 3)}, {TENSOR("m.v", TSR_FLOAT32, 1, 6)}};
    const tsr_entry right[] = {{TENSOR("w", TSR_FLOAT32, 2, 3, 2)}, {TENSOR("v", TSR_FLOAT16, 1, 6)}};
    const tsr_catalog a = catalog_of(left, 2), b = catalog_of(right, 2);
    assert_diff(&a, &b, NULL, "+w +v -m.w -m.v ");
}

static tsr_status drop_module(void *ctx, tsr_str name, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    (void)ctx;
    (void)arena;
    (void)err;
    if (tsr_str_starts(name, TSR_STR("module."))) name = (tsr_str){name.data + 7, name.size - 7};
    *out = name;
    return TSR_OK;
}

static void test_layout_diff__canonical_names_match_and_collide(void **state)
{
    (void)state;
    const tsr_entry left[] = {{TENSOR("module.w", TSR_FLOAT32, 1, 2)}, {TENSOR("v", TSR_FLOAT32, 1, 2)}};
    const tsr_entry right[] = {{TENSOR("module.v", TSR_FLOAT32, 1, 2)}, {TENSOR("w", TSR_FLOAT32, 1, 2)}};
    const tsr_entry twice[] = {{TENSOR("w", TSR_FLOAT32, 1, 2)}, {TENSOR("module.w", TSR_FLOAT32, 1, 2)}};
    const tsr_catalog a = catalog_of(left, 2), b = catalog_of(right, 2), c = catalog_of(twice, 2);
    const tsr_diff_options canonical = {.canonical = drop_module};
    assert_diff(&a, &b, &canonical, "");
    tsr_error err = {0};
    tsr_host host = host_with(&tsr_allocator_libc);
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, &err);
    tsr_diff diff;
    assert_int_equal(tsr_diff_catalogs((tsr_catalog_pair){&a, &c}, &canonical, &host, arena, &diff, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "'w' and 'module.w' both become 'w'");
    tsr_arena_free(arena);
}

static tsr_status diff_two(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    const tsr_chunk rows[] = {{BOX(2), BOX(2), 0, 0, NULL, 0}, {BOX(0), BOX(2), 0, 0, NULL, 0}};
    const tsr_chunk whole[] = {{BOX(0), BOX(4), 0, 0, NULL, 0}};
    const tsr_entry left[] = {{TENSOR("m.w", TSR_FLOAT32, 1, 4)},
                              {TENSOR("v", TSR_FLOAT32, 1, 4), .chunks = rows, .chunk_count = 2}};
    const tsr_entry right[] = {{TENSOR("w", TSR_FLOAT32, 1, 4)},
                               {TENSOR("v", TSR_FLOAT32, 1, 4), .chunks = whole, .chunk_count = 1}};
    const tsr_catalog a = catalog_of(left, 2), b = catalog_of(right, 2);
    const tsr_diff_options layout = {.layout = true};
    tsr_diff diff;
    (void)ctx;
    return tsr_diff_catalogs((tsr_catalog_pair){&a, &b}, &layout, host, arena, &diff, err);
}

static void test_layout_diff__survives_every_allocation_failure(void **state)
{
    (void)state;
    must_bear_failed_allocations(diff_two, NULL, TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_diff__reports_each_kind_of_change),
        cmocka_unit_test(test_layout_diff__layout_counts_only_when_asked),
        cmocka_unit_test(test_layout_diff__suggests_renames_that_are_unique),
        cmocka_unit_test(test_layout_diff__renames_need_equal_dtype_and_shape),
        cmocka_unit_test(test_layout_diff__canonical_names_match_and_collide),
        cmocka_unit_test(test_layout_diff__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
