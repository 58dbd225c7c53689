/* "shape" in a rule: sizes with the same name must agree in the whole map, in both directions; the number of dims must be as
 * stated; numbers must be exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tessera/store.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/store.h"

#define MAP(rules) "{\"schema\":\"tessera.map/1\",\"rules\":[" rules "]}"

static tsr_host host;
static tsr_error err;

/* A uint8 tensor, with its shape in JSON. */
typedef struct tensor {
    const char *name, *shape;
    unsigned bytes;
} tensor;

static tsr_store *store_of(const tensor *tensors, size_t count)
{
    static char file[4096];
    unsigned at = 0;
    size_t used = 8;
    memset(file, 0, sizeof file);
    for (size_t i = 0; i < count; at += tensors[i++].bytes)
        used += (size_t)snprintf(file + used, sizeof file - used,
                                 "%s\"%s\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":[%u,%u]}", i ? "," : "{",
                                 tensors[i].name, tensors[i].shape, at, at + tensors[i].bytes);
    file[used++] = '}';
    file[0] = (char)((used - 8) & 0xFF);
    file[1] = (char)((used - 8) >> 8);
    const tsr_memory_file files[] = {{TSR_STR("config.json"), TSR_STR("{\"hidden_size\":4}")},
                                     {TSR_STR("model.safetensors"), {file, used + at}}};
    tsr_store *store;
    assert_int_equal(tsr_store_from_memory(host.allocator, files, 2, &store, NULL), TSR_OK);
    return store;
}

/* Applies the map, or its inverse, to the tensors and returns the status; `err` has the message. */
static tsr_status apply(const char *map, bool inverse, const tensor *tensors, size_t count)
{
    tsr_checkpoint *checkpoint = NULL, *mapped = NULL;
    const tsr_mapping_rules *rules;
    err = (tsr_error){0};
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, NULL);
    tsr_store *store = store_of(tensors, count);
    if (tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    tsr_status status = tsr_mapping_parse(tsr_str_from(map), &host, arena, &rules, &err);
    if (status == TSR_OK && inverse) assert_int_equal(tsr_mapping_invert(rules, arena, &rules, &err), TSR_OK);
    if (status == TSR_OK) status = tsr_mapping_open(checkpoint, rules, &mapped, &err);
    tsr_checkpoint_close(mapped);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    tsr_arena_free(arena);
    return status;
}

static void says(const char *const *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strstr(err.message, parts[i])) fail_msg("%s is not in: %s", parts[i], err.message);
}

#define SAYS(...)                    says((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
#define APPLY(map, inverse, tensors) apply(map, inverse, tensors, sizeof(tensors) / sizeof *(tensors))

static const char both[] = MAP(
    "{\"from\":[\"r\"],\"to\":[\"router\"],\"shape\":[\"experts\",\"hidden\"]},"
    "{\"from\":[\"w.{n}\"],\"to\":[\"down.{n}\"],\"do\":[{\"transpose\":[0,2,1]}],\"shape\":[\"experts\",\"inner\",\"hidden\"]}");

static void test_agreement(void **state)
{
    (void)state;
    const tensor in[] = {{"r", "[2,3]", 6}, {"w.0", "[2,3,5]", 30}, {"w.1", "[2,3,5]", 30}};
    const tensor back[] = {{"router", "[2,3]", 6}, {"down.0", "[2,5,3]", 30}, {"down.1", "[2,5,3]", 30}};
    assert_int_equal(APPLY(both, false, in), TSR_OK);
    assert_int_equal(APPLY(both, true, back), TSR_OK);
}

static void test_disagreement(void **state)
{
    (void)state;
    const tensor in[] = {{"r", "[2,3]", 6}, {"w.0", "[2,3,5]", 30}, {"w.1", "[2,5,5]", 50}};
    assert_int_equal(APPLY(both, false, in), TSR_E_FORMAT);
    SAYS("'hidden' is 3 in 'router' [2, 3], dim 1", "5 in 'down.1' [2, 5, 5], dim 2");
    const tensor inner[] = {{"r", "[2,3]", 6}, {"w.0", "[2,3,5]", 30}, {"w.1", "[2,3,4]", 24}};
    assert_int_equal(APPLY(both, false, inner), TSR_E_FORMAT);
    SAYS("'inner' is 5 in 'down.0' [2, 5, 3], dim 1", "4 in 'down.1' [2, 4, 3], dim 1");
}

/* The inverse checks the tensors that it reads, not those that it makes. */
static void test_inverse(void **state)
{
    (void)state;
    const tensor turned[] = {{"router", "[2,3]", 6}, {"down.0", "[2,3,5]", 30}};
    assert_int_equal(APPLY(both, true, turned), TSR_E_FORMAT);
    SAYS("'hidden' is 3 in 'router' [2, 3], dim 1", "5 in 'down.0' [2, 3, 5], dim 2");
}

static void test_count_of_dims(void **state)
{
    (void)state;
    const tensor in[] = {{"r", "[2,3,1]", 6}, {"w.0", "[2,3,5]", 30}};
    assert_int_equal(APPLY(both, false, in), TSR_E_FORMAT);
    SAYS("'router' [2, 3, 1] must be a tensor of 2 dims");
    const tensor back[] = {{"router", "[6]", 6}, {"down.0", "[2,5,3]", 30}};
    assert_int_equal(APPLY(both, true, back), TSR_E_FORMAT);
    SAYS("'router' [6] must be a tensor of 2 dims");
}

/* Each of several targets is checked, and so is each of several sources of the inverse. */
static void test_several_targets(void **state)
{
    (void)state;
    static const char map[] =
        MAP("{\"from\":[\"kv\"],\"to\":[\"k\",\"v\"],\"do\":[{\"split\":0,\"sizes\":[2,3]}],\"shape\":[\"heads\",4]}");
    const tensor in[] = {{"kv", "[5,4]", 20}}, back[] = {{"k", "[2,4]", 8}, {"v", "[3,4]", 12}};
    assert_int_equal(APPLY(map, false, in), TSR_E_FORMAT);
    SAYS("'heads' is 2 in 'k' [2, 4], dim 0", "3 in 'v' [3, 4], dim 0");
    assert_int_equal(APPLY(map, true, back), TSR_E_FORMAT);
    SAYS("'heads' is 2 in 'k' [2, 4], dim 0", "3 in 'v' [3, 4], dim 0");
}

static void test_numbers(void **state)
{
    (void)state;
    static const char written[] = MAP("{\"from\":[\"a\"],\"to\":[\"b\"],\"shape\":[3,4]}");
    static const char config[] = MAP("{\"from\":[\"a\"],\"to\":[\"b\"],\"shape\":[3,\"$hidden_size\"]}");
    const tensor fits[] = {{"a", "[3,4]", 12}}, other[] = {{"a", "[3,5]", 15}};
    assert_int_equal(APPLY(written, false, fits), TSR_OK);
    assert_int_equal(APPLY(config, false, fits), TSR_OK);
    assert_int_equal(APPLY(written, false, other), TSR_E_FORMAT);
    SAYS("dim 1 of 'b' [3, 5] must be 4");
    assert_int_equal(APPLY(config, false, other), TSR_E_FORMAT);
    SAYS("dim 1 of 'b' [3, 5] must be 4");
}

#define EIGHT(n) \
    "{\"from\":[\"" n "\"],\"to\":[\"" n "\"],\"shape\":[\"" n "1\",\"" n "2\",\"" n "3\",\"" n "4\",\"" n "5\",\"" n \
    "6\",\"" n "7\",\"" n "8\"]}"

static void test_many_names(void **state)
{
    (void)state;
#define ONES "[1,1,1,1,1,1,1,1]"
    const tensor in[] = {{"a", ONES, 1}, {"b", ONES, 1}, {"c", ONES, 1}, {"d", ONES, 1}, {"e", "[1]", 1}};
    static const char most[] = MAP(EIGHT("a") "," EIGHT("b") "," EIGHT("c") "," EIGHT("d"));
    static const char more[] =
        MAP(EIGHT("a") "," EIGHT("b") "," EIGHT("c") "," EIGHT("d") ",{\"from\":[\"e\"],\"to\":[\"e\"],\"shape\":[\"n\"]}");
    assert_int_equal(apply(most, false, in, 4), TSR_OK);
    assert_int_equal(APPLY(more, false, in), TSR_E_FORMAT);
    SAYS("more than 32 dims");
}

static void test_documents(void **state)
{
    (void)state;
    const tensor in[] = {{"a", "[3,4]", 12}};
    static const char *const bad[] = {MAP("{\"from\":[\"a\"],\"to\":[],\"shape\":[3,4]}"),
                                      MAP("{\"from\":[\"a\"],\"to\":[\"b\"],\"shape\":3}"),
                                      MAP("{\"from\":[\"a\"],\"to\":[\"b\"],\"shape\":[3,\"\"]}"),
                                      MAP("{\"from\":[\"a\"],\"to\":[\"b\"],\"shape\":[3,-4]}"),
                                      MAP("{\"from\":[\"a\"],\"to\":[\"b\"],\"shape\":[3,\"$\"]}")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (APPLY(bad[i], false, in) == TSR_OK) fail_msg("accepted: %s", bad[i]);
        assert_true(err.message[0]);
    }
}

int main(void)
{
    host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agreement),     cmocka_unit_test(test_disagreement),    cmocka_unit_test(test_inverse),
        cmocka_unit_test(test_count_of_dims), cmocka_unit_test(test_several_targets), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_many_names),    cmocka_unit_test(test_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
