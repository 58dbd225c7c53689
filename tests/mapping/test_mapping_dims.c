/* "dims" of a map: sizes that config.json states must be those of the tensors, in both directions; what it does not state is not
 * checked. */
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

#define RULES \
    "\"rules\":[{\"from\":[\"q\"],\"to\":[\"Q\"],\"shape\":[\"heads\",\"hidden\"]}," \
    "{\"from\":[\"o\"],\"to\":[\"O\"],\"do\":[{\"transpose\":[1,0]}],\"shape\":[\"heads\",\"hidden\"]}]"
#define MAP(dims)      "{\"schema\":\"tessera.map/1\",\"dims\":" dims "," RULES "}"
#define HEADS(factors) MAP("{\"heads\":[" factors "],\"hidden\":[\"$hidden_size\"]}")

/* q is [12, 5] in the map's source, and o [5, 12]. */
#define SOURCE \
    "{\"q\":{\"dtype\":\"U8\",\"shape\":[12,5],\"data_offsets\":[0,60]}," \
    "\"o\":{\"dtype\":\"U8\",\"shape\":[5,12],\"data_offsets\":[60,120]}}"
#define TARGET \
    "{\"Q\":{\"dtype\":\"U8\",\"shape\":[12,5],\"data_offsets\":[0,60]}," \
    "\"O\":{\"dtype\":\"U8\",\"shape\":[12,5],\"data_offsets\":[60,120]}}"

static tsr_host host;
static tsr_error err;

static tsr_status open_model(tsr_checkpoint *checkpoint, const tsr_mapping_rules *rules)
{
    tsr_checkpoint *mapped = NULL;
    const tsr_status status = tsr_mapping_open(checkpoint, rules, &mapped, &err);
    tsr_checkpoint_close(mapped);
    return status;
}

/* Applies the map, or its inverse, to a model with this config.json, or params.json; `err` has the message. */
static tsr_status apply_as(const char *map, bool inverse, const char *name, const char *config)
{
    char file[1024] = {0};
    const char *header = inverse ? TARGET : SOURCE;
    file[0] = (char)strlen(header);
    memcpy(file + 8, header, strlen(header));
    const tsr_memory_file files[] = {{TSR_STR("model.safetensors"), {file, 8 + strlen(header) + 120}},
                                     {tsr_str_from(name), tsr_str_from(config)}};
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    const tsr_mapping_rules *rules;
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, NULL);
    err = (tsr_error){0};
    assert_int_equal(tsr_store_from_memory(host.allocator, files, 2, &store, NULL), TSR_OK);
    if (tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    tsr_status status = tsr_mapping_parse(tsr_str_from(map), &host, arena, &rules, &err);
    if (status == TSR_OK && inverse) assert_int_equal(tsr_mapping_invert(rules, arena, &rules, &err), TSR_OK);
    if (status == TSR_OK) status = open_model(checkpoint, rules);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    tsr_arena_free(arena);
    return status;
}

static void accepted(const char *map, const char *config)
{
    for (unsigned inverse = 0; inverse < 2; inverse++)
        if (apply_as(map, inverse, "config.json", config) != TSR_OK) fail_msg("%s: %s", config, err.message);
}

static void refused(const char *map, const char *config, const char *says)
{
    char all[256];
    snprintf(all, sizeof all, "%s 'Q' [12, 5], dim 0", says); /* what the map makes, and what its inverse reads */
    for (unsigned inverse = 0; inverse < 2; inverse++) {
        if (apply_as(map, inverse, "config.json", config) != TSR_E_FORMAT) fail_msg("accepted: %s", config);
        if (!strstr(err.message, all)) fail_msg("%s is not in: %s", all, err.message);
    }
}

static void test_products(void **state)
{
    (void)state;
    static const char map[] = HEADS("\"$n\",\"$size\",2");
    accepted(map, "{\"n\":3,\"size\":2,\"hidden_size\":5}");
    refused(map, "{\"n\":3,\"size\":4,\"hidden_size\":5}",
            "the map's 'heads' is 24 in config.json (n 3, size 4), but 12 in");
    refused(map, "{\"n\":3,\"size\":9007199254740991,\"hidden_size\":5}", "(n 3, size 9007199254740991), but 12 in");
    refused(map, "{\"n\":9007199254740991,\"size\":9007199254740991}",
            "is 18446744073709551615 in config.json (n 9007199254740991, size 9007199254740991), but 12 in");
}

static void test_sums(void **state)
{
    (void)state;
    static const char map[] = HEADS("\"$n\",[\"$a\",\"$b\",1]"), first[] = HEADS("[\"$a\",\"$b\"],\"$n\"");
    accepted(map, "{\"n\":2,\"a\":2,\"b\":3}");
    refused(map, "{\"n\":2,\"a\":2,\"b\":2}", "the map's 'heads' is 10 in config.json (n 2, a 2, b 2), but 12 in");
    accepted(first, "{\"n\":2,\"a\":2,\"b\":4}");
    refused(first, "{\"n\":2,\"a\":2,\"b\":2}", "the map's 'heads' is 8 in config.json (a 2, b 2, n 2), but 12 in");
}

/* What config.json leaves out, or states as null, is not checked, nor what follows from it. */
static void test_what_is_not_stated(void **state)
{
    (void)state;
    static const char map[] = HEADS("\"$n\",\"$size\"");
    accepted(map, "{}");
    accepted(map, "{\"n\":5,\"hidden_size\":5}");
    accepted(map, "{\"n\":5,\"size\":null}");
    assert_int_equal(apply_as(map, false, "other.json", "{\"n\":5,\"size\":7}"), TSR_OK);
    assert_int_equal(apply_as(map, false, "config.json", "{\"hidden_size\":6}"), TSR_E_FORMAT);
    assert_non_null(strstr(err.message, "'hidden' is 6 in config.json (hidden_size 6), but 5 in 'Q' [12, 5], dim 1"));
}

static void test_numbers_that_follow(void **state)
{
    (void)state;
    static const char map[] = MAP("{\"heads\":[\"$n\",\"$size\"],\"$size\":[\"$width\",\"/$n\"]}");
    accepted(map, "{\"n\":3,\"width\":14}");
    refused(map, "{\"n\":5,\"width\":14}", "the map's 'heads' is 10 in config.json (n 5, width 14, n 5), but 12 in");
    accepted(map, "{\"n\":3,\"size\":4,\"width\":1}");
    refused(map, "{\"n\":3,\"size\":5,\"width\":12}", "the map's 'heads' is 15 in config.json (n 3, size 5), but 12 in");
    accepted(map, "{\"n\":0,\"width\":14}"); /* it cannot be computed */
    static const char itself[] = MAP("{\"heads\":[\"$n\"],\"$n\":[\"$n\"]}"),
                      other[] = MAP("{\"heads\":[\"$n\"],\"$n\":[\"$m\"]}");
    accepted(itself, "{}");
    refused(other, "{\"m\":3}", "the map's 'heads' is 3 in config.json (m 3), but 12 in");
}

static void test_where_settings_are(void **state)
{
    (void)state;
    static const char map[] = MAP("{\"heads\":[\"$num_attention_heads\"]}");
    accepted(map, "{\"text_config\":{\"num_attention_heads\":12}}");
    refused(map, "{\"text_config\":{\"num_attention_heads\":11}}",
            "the map's 'heads' is 11 in config.json (num_attention_heads 11), but 12 in");
    accepted(map, "{\"num_attention_heads\":12,\"text_config\":{\"num_attention_heads\":11}}");
    assert_int_equal(apply_as(map, false, "params.json", "{\"n_heads\":12}"), TSR_OK);
    assert_int_equal(apply_as(map, false, "params.json", "{\"n_heads\":11}"), TSR_E_FORMAT);
    assert_non_null(
        strstr(err.message, "the map's 'heads' is 11 in params.json (n_heads 11), but 12 in 'Q' [12, 5], dim 0"));
}

static void test_settings_that_are_not_sizes(void **state)
{
    (void)state;
    static const char *const bad[] = {"{\"n\":\"12\"}", "{\"n\":[12]}", "{\"n\":1.5}", "{\"n\":-12}", "{\"n\":true}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(apply_as(HEADS("\"$n\""), false, "config.json", bad[i]), TSR_E_FORMAT);
        if (!strstr(err.message, "config.json") || !strstr(err.message, "n")) fail_msg("%s: %s", bad[i], err.message);
    }
}

/* Tensors are compared with each other first, because a map's names may be at fault. */
static void test_order(void **state)
{
    (void)state;
    static const char turned[] = "{\"schema\":\"tessera.map/1\",\"dims\":{\"heads\":[\"$n\"]},\"rules\":["
                                 "{\"from\":[\"q\"],\"to\":[\"Q\"],\"shape\":[\"heads\",\"hidden\"]},"
                                 "{\"from\":[\"o\"],\"to\":[\"O\"],\"shape\":[\"heads\",\"hidden\"]}]}";
    assert_int_equal(apply_as(turned, false, "config.json", "{\"n\":11}"), TSR_E_FORMAT);
    assert_non_null(strstr(err.message, "the map's 'heads' is 12 in 'Q' [12, 5], dim 0, but 5 in 'O' [5, 12], dim 0"));
}

/* The dims are those of "rules"; shapes in "before" are of what these rules take. */
static void test_before(void **state)
{
    (void)state;
#define BEFORE(shape) \
    "{\"schema\":\"tessera.map/1\",\"dims\":{\"rows\":[\"$n\"]},\"unmatched\":\"keep\",\"before\":[" \
    "{\"from\":[\"q\"],\"to\":[\"p\"],\"shape\":[\"rows\",5]}],\"rules\":[{\"from\":[\"p\"],\"to\":[\"Q\"]" shape "}," \
    "{\"from\":[\"o\"],\"to\":[\"O\"],\"do\":[{\"transpose\":[1,0]}]}]}"
    accepted(BEFORE(",\"shape\":[\"rows\",5]"), "{\"n\":12}");
    refused(BEFORE(",\"shape\":[\"rows\",5]"), "{\"n\":11}", "the map's 'rows' is 11 in config.json (n 11), but 12 in");
    assert_int_equal(apply_as(BEFORE(""), false, "config.json", "{}"), TSR_E_FORMAT);
    assert_non_null(strstr(err.message, "dims.rows is not used by any \"shape\" or other dim"));
}

static void test_documents(void **state)
{
    (void)state;
    static const struct {
        const char *map, *says;
    } bad[] = {
        {MAP("[]"), "dims"},
        {MAP("{\"heads\":\"$n\"}"), "dims.heads"},
        {MAP("{\"heads\":[]}"), "dims.heads must have 1 to 8 numbers"},
        {MAP("{\"heads\":[[]]}"), "dims.heads must have 1 to 8 numbers"},
        {MAP("{\"heads\":[\"$n\",[]]}"), "dims.heads must have 1 to 8 numbers"},
        {MAP("{\"heads\":[\"$n\",[[\"$m\"]]]}"), "dims.heads"},
        {MAP("{\"heads\":[true]}"), "dims.heads"},
        {MAP("{\"heads\":[2]}"), "dims.heads"},
        {MAP("{\"heads\":[[2,\"$n\"]]}"), "dims.heads"},
        {MAP("{\"heads\":[\"$n\",-1]}"), "dims.heads"},
        {MAP("{\"heads\":[\"$n\",1.5]}"), "dims.heads"},
        {MAP("{\"heads\":[\"\"]}"), "dims.heads: '' is not a number"},
        {MAP("{\"heads\":[\"$\"]}"), "dims.heads: '$' is not a number"},
        {MAP("{\"heads\":[\"hidden\"]}"), "dims.heads: 'hidden' is not a number"},
        {MAP("{\"heads\":[\"/$n\"]}"), "dims.heads: '/$n' is not a number"},
        {MAP("{\"heads\":[\"$n\",\"/\"]}"), "dims.heads: '/' is not a number"},
        {MAP("{\"heads\":[\"$n\",\"/n\"]}"), "dims.heads: '/n' is not a number"},
        {MAP("{\"heads\":[\"$n\",[\"$n\",\"/$n\"]]}"), "dims.heads: '/$n' is not a number"},
        {MAP("{\"head\":[\"$n\"]}"), "dims.head is not used by any \"shape\" or other dim"},
        {MAP("{\"\":[\"$n\"]}"), "dims. is not used"},
        {"{\"schema\":\"tessera.map/1\",\"dims\":{\"\":[\"$n\",2]},\"rules\":[{\"from\":[\"q\"],\"to\":[\"q\"],\"shape\":[12,5]}]}",
         "dims. is not"},
        {MAP("{\"heads\":[\"$n\"],\"$m\":[\"$n\"]}"), "dims.$m is not used by any"},
        {MAP("{\"heads\":[\"$n\"],\"$n\":[\"$m\"],\"$m\":[\"$k\"]}"), "dims.$m is not used"},
        {MAP("{\"heads\":[\"$n\",2],\"$\":[\"$n\"]}"), "dims.$ is not used"},
        {MAP("{\"heads\":[\"$n\",1,1,1,1,1,1,1,1]}"), "dims.heads must have 1 to 8 numbers"},
        {MAP("{\"heads\":[\"$n\",[1,1,1,1,1,1,1,1]]}"), "dims.heads must have 1 to 8 numbers"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (apply_as(bad[i].map, false, "config.json", "{}") != TSR_E_FORMAT) fail_msg("accepted: %s", bad[i].map);
        if (!strstr(err.message, bad[i].says)) fail_msg("%s is not in: %s", bad[i].says, err.message);
    }
    accepted(MAP("{}"), "{}");
    accepted(HEADS("\"$n\",1,1,1,1,1,1,1"), "{\"n\":12}");
    accepted(MAP("null"), "{}");
}

int main(void)
{
    host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_what_is_not_stated),
        cmocka_unit_test(test_numbers_that_follow),
        cmocka_unit_test(test_where_settings_are),
        cmocka_unit_test(test_settings_that_are_not_sizes),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_before),
        cmocka_unit_test(test_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
