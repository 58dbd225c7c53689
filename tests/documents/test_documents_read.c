/* Documents that people and other programs write (layouts, targets, flat parameters, module trees): a valid one, and the
 * same with one text replaced by another. An error must say what was expected and where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/arena_job.h"
#include "tessera/document_read.h"
#include "tessera/modules.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/host_calls.h"

/* Functions that read a text, `ctx`. */
static tsr_status read_layout(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_contract contract;
    return tsr_contract_read(tsr_str_from(ctx), host, arena, &contract, err);
}

static tsr_status read_target(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_target_texts texts;
    return tsr_target_texts_read(tsr_str_from(ctx), host, arena, &texts, err);
}

static tsr_status read_flat_params(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_flat_params params;
    return tsr_flat_params_parse(tsr_str_from(ctx), host, arena, &params, err);
}

static tsr_status read_modules(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_modules_document document;
    return tsr_modules_parse(tsr_str_from(ctx), host, arena, &document, err);
}

/* Replaces the first `from` in a valid document with `to`. */
typedef struct edit {
    const char *from, *to;
    tsr_status status;
    const char *message;
} edit;

static void check(arena_job read, const char *sound, const edit *edits, size_t count)
{
    tsr_error none = {0};
    if (run_arena_job(read, sound, &tsr_allocator_libc, &none) != TSR_OK) fail_msg("sound: %s", none.message);
    must_bear_failed_allocations(read, sound, TSR_OK);
    for (size_t i = 0; i < count; i++) {
        static char text[4096];
        tsr_error err = {0};
        const char *at = strstr(sound, edits[i].from);
        if (!at) fail_msg("row %zu: nothing to edit", i);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sound), sound, edits[i].to, at + strlen(edits[i].from));
        const tsr_status status = run_arena_job(read, text, &tsr_allocator_libc, &err);
        if (status != edits[i].status || !strstr(err.message, edits[i].message))
            fail_msg("row %zu: status %d: %s", i, (int)status, err.message);
        must_bear_failed_allocations(read, text, status);
    }
}
#define CHECK(read, sound, edits) check(read, sound, edits, sizeof edits / sizeof edits[0])

/* One edit that makes a value null, and one that makes it a number: a missing value and one of the wrong type. */
#define NEEDED(key, value, type, where) \
    {"\"" key "\":" value, "\"" key "\":null", TSR_E_FORMAT, "'" key "'"}, \
    { \
        "\"" key "\":" value, "\"" key "\":7", TSR_E_FORMAT, "expected " type " at " where \
    }
#define OPTIONAL(key, value, type, where) \
    {"\"" key "\":" value, "\"" key "\":null", TSR_OK, ""}, \
    { \
        "\"" key "\":" value, "\"" key "\":7", TSR_E_FORMAT, "expected " type " at " where \
    }

static const char layout[] =
    "{\"schema\":\"tessera.layout/1\",\"entries\":[{\"fqn\":\"w\",\"kind\":\"tensor\",\"dtype\":\"float32\",\"shape\":[4,2],"
    "\"chunks\":[{\"offsets\":[0,0],\"sizes\":[4,2]}]},{\"fqn\":\"o\",\"kind\":\"object\",\"type\":\"int\"},"
    "{\"fqn\":\"q\",\"kind\":\"opaque\"}]}";

static void test_documents_read__layouts_are_complete_or_refused(void **state)
{
    (void)state;
    static char many[1024] = "\"shape\":[";
    for (int i = 0; i < 200; i++) strcat(many, "1,");
    strcat(many, "1]");
    const edit edits[] = {
        NEEDED("schema", "\"tessera.layout/1\"", "a string", "schema"),
        {"tessera.layout/1", "tessera.layout/2", TSR_E_FORMAT,
         "schema 'tessera.layout/2'; expected tessera.layout/1, tessera.manifest/1 or tessera.modules/1"},
        {"tessera.layout/1", "tessera.inspect/1", TSR_OK, ""},
        {"tessera.layout/1", "tessera.manifest/1", TSR_OK, ""},

        {"{\"fqn\":\"w\"", "7,{\"fqn\":\"w\"", TSR_E_FORMAT, "expected an object at entries[0]"},
        NEEDED("fqn", "\"w\"", "a string", "entries[0]"),
        NEEDED("kind", "\"tensor\"", "a string", "entries[0]"),
        {"\"tensor\"", "\"thing\"", TSR_E_FORMAT, "unknown kind 'thing' at entries[0]; expected tensor, object or opaque"},
        NEEDED("dtype", "\"float32\"", "a string", "entries[0]"),
        {"float32", "float31", TSR_E_FORMAT, "unknown dtype 'float31' at entries[0]"},
        NEEDED("shape", "[4,2]", "an array", "entries[0]"),
        {"\"shape\":[4,2]", many, TSR_E_LIMIT, "201 dimensions at entries[0]"},
        {"\"shape\":[4,2]", "\"shape\":[4,-2]", TSR_E_FORMAT, "integer"},
        OPTIONAL("chunks", "[{\"offsets\":[0,0],\"sizes\":[4,2]}]", "an array", "entries[0]"),
        {"{\"offsets\":[0,0],\"sizes\":[4,2]}", "7", TSR_E_FORMAT, "expected an object at entries[0]"},
        NEEDED("offsets", "[0,0]", "an array", "entries[0]"),
        NEEDED("sizes", "[4,2]", "an array", "entries[0]"),
        {"\"offsets\":[0,0]", "\"offsets\":[0]", TSR_E_FORMAT,
         "a chunk has 1 offsets and 2 sizes at entries[0], but the shape has 2 dimensions"},
        {"\"sizes\":[4,2]", "\"sizes\":[4]", TSR_E_FORMAT, "a chunk has 2 offsets and 1 sizes"},
        OPTIONAL("type", "\"int\"", "a string", "entries[1]"),
        {layout, "[", TSR_E_FORMAT, "the end"},
        {layout, "{\"schema\":\"tessera.layout/1\",\"entries\":null}", TSR_E_FORMAT, "'entries'"},
        {layout, "{\"schema\":\"tessera.layout/1\",\"entries\":[]}", TSR_OK, ""},
    };
    CHECK(read_layout, layout, edits);
}

static const char target[] = "{\"schema\":\"tessera.target/1\",\"mesh\":{\"shape\":[4,2],\"dim_names\":[\"dp\",\"tp\"]},"
                             "\"rules\":[{\"match\":\"**.w\",\"placements\":[\"shard(0)\",\"replicate\"]}],\"default\":["
                             "\"replicate\",\"replicate\"]}";

static void test_documents_read__targets_are_complete_or_refused(void **state)
{
    (void)state;
    static const edit edits[] = {
        NEEDED("schema", "\"tessera.target/1\"", "a string", "schema"),
        {"tessera.target/1", "tessera.target/2", TSR_E_FORMAT, "schema 'tessera.target/2'; expected tessera.target/1"},
        NEEDED("mesh", "{\"shape\":[4,2],\"dim_names\":[\"dp\",\"tp\"]}", "an object", "mesh"),
        NEEDED("shape", "[4,2]", "an array", "mesh"),
        OPTIONAL("dim_names", "[\"dp\",\"tp\"]", "an array", "mesh"),
        {"[\"dp\",\"tp\"]", "[\"dp\"]", TSR_E_FORMAT, "mesh has 2 sizes and 1 dim_names"},
        {"[\"dp\",\"tp\"]", "[\"dp\",7]", TSR_E_FORMAT, "expected a string at mesh.dim_names"},
        {"[4,2]", "[4,\"2\"]", TSR_E_FORMAT, "expected a number at mesh.shape"},
        OPTIONAL("rules", "[{\"match\":\"**.w\",\"placements\":[\"shard(0)\",\"replicate\"]}]", "an array", "rules"),
        {"{\"match\":", "7,{\"match\":", TSR_E_FORMAT, "expected an object at rules[0]"},
        NEEDED("match", "\"**.w\"", "a string", "rules[0]"),
        NEEDED("placements", "[\"shard(0)\",\"replicate\"]", "an array", "rules[0]"),
        {"\"shard(0)\"", "7", TSR_E_FORMAT, "expected a string at rules[0]"},
        OPTIONAL("default", "[\"replicate\",\"replicate\"]", "an array", "default"),
        {"\"default\":[\"replicate\"", "\"default\":[7", TSR_E_FORMAT, "expected a string at default"},
        {target, "[", TSR_E_FORMAT, "the end"},
    };
    CHECK(read_target, target, edits);
}

static const char flat_target[] =
    "{\"schema\":\"tessera.target/1\",\"mesh\":{\"shape\":[4]},\"strategy\":{\"name\":\"fsdp1\",\"units\":["
    "\"layers.*.**\",\"head.**\"],\"use_orig_params\":false}}";

static void test_documents_read__strategies_are_complete_or_refused(void **state)
{
    (void)state;
    static const edit edits[] = {
        {"\"strategy\":{", "\"strategy\":7,\"x\":{", TSR_E_FORMAT, "expected an object at strategy"},
        NEEDED("name", "\"fsdp1\"", "a string", "strategy"),
        {"fsdp1", "fsdp2", TSR_E_FORMAT, "unknown strategy 'fsdp2'; the only one is fsdp1"},
        OPTIONAL("units", "[\"layers.*.**\",\"head.**\"]", "an array", "strategy"),
        {"\"head.**\"", "7", TSR_E_FORMAT, "expected a string at strategy.units"},
        {"[\"layers.*.**\",\"head.**\"]", "[]", TSR_OK, ""},
        OPTIONAL("use_orig_params", "false", "a boolean", "strategy"),
        {"\"strategy\"", "\"default\":[\"shard(0)\"],\"strategy\"", TSR_E_FORMAT, "remove either of them"},
        {"\"strategy\"", "\"rules\":[{\"match\":\"**\",\"placements\":[]}],\"strategy\"", TSR_E_FORMAT,
         "remove either of them"},
        {"\"strategy\"", "\"rules\":[],\"strategy\"", TSR_OK, ""},
        {"[4]", "[]", TSR_OK, ""},
    };
    CHECK(read_target, flat_target, edits);
}

static void test_documents_read__a_strategy_without_use_orig_params_has_them(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        bool use_orig_params;
        uint32_t units;
    } cases[] = {{"{\"name\":\"fsdp1\"}", true, 0},
                 {"{\"name\":\"fsdp1\",\"use_orig_params\":true,\"units\":[\"a.**\"]}", true, 1},
                 {"{\"name\":\"fsdp1\",\"use_orig_params\":false,\"units\":[\"a.**\",\"b.**\"]}", false, 2}};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        tsr_target_texts texts;
        tsr_arena *arena = tsr_arena_new(host.allocator, 0, NULL);
        snprintf(text, sizeof text, "{\"schema\":\"tessera.target/1\",\"mesh\":{\"shape\":[4]},\"strategy\":%s}",
                 cases[i].strategy);
        assert_int_equal(tsr_target_texts_read(tsr_str_from(text), &host, arena, &texts, NULL), TSR_OK);
        assert_true(texts.fsdp1 && texts.use_orig_params == cases[i].use_orig_params);
        assert_int_equal(texts.unit_count, cases[i].units);
        if (texts.unit_count) assert_true(tsr_str_equal(texts.units[0], TSR_STR("a.**")));
        tsr_arena_free(arena);
    }
}

static const char flat_params[] =
    "{\"schema\":\"tessera.flat-params/1\",\"world_size\":2,\"use_orig_params\":false,\"files\":[\"r0\",\"r1\"],\"units\":["
    "{\"fsdp_module\":\"\",\"raw_name\":\"_flat\",\"sharding_strategy\":\"ShardingStrategy.FULL_SHARD\",\"params\":["
    "{\"fqn\":\"w\",\"shape\":[2,3],\"requires_grad\":true},{\"fqn\":\"b\",\"shape\":[3]}],"
    "\"numels_with_padding\":[6,2,3,1],\"is_padding_mask\":[false,true,false,true]}],\"param_groups\":[[\"_flat\"]]}";

static void test_documents_read__flat_parameters_are_complete_or_refused(void **state)
{
    (void)state;
    static const edit edits[] = {
        NEEDED("schema", "\"tessera.flat-params/1\"", "a string", "schema"),
        {"flat-params/1", "flat-params/2", TSR_E_FORMAT, "schema 'tessera.flat-params/2'"},
        {"\"world_size\":2", "\"world_size\":null", TSR_E_FORMAT, "'world_size'"},
        {"\"world_size\":2", "\"world_size\":\"2\"", TSR_E_FORMAT, "expected a number at world_size"},
        {"\"world_size\":2", "\"world_size\":0", TSR_E_FORMAT, "world_size is 0"},
        {"\"world_size\":2", "\"world_size\":16777217", TSR_E_FORMAT, "world_size is 16777217"},
        {"\"world_size\":2", "\"world_size\":1.5", TSR_E_FORMAT, "integer"},
        OPTIONAL("use_orig_params", "false", "a boolean", "use_orig_params"),
        {"\"use_orig_params\":false", "\"use_orig_params\":true", TSR_OK, ""},
        OPTIONAL("files", "[\"r0\",\"r1\"]", "an array", "files"),
        {"[\"r0\",\"r1\"]", "[\"r0\"]", TSR_E_FORMAT, "1 files are listed for 2 ranks"},
        {"[\"r0\",\"r1\"]", "[\"r0\",7]", TSR_E_FORMAT, "expected a string at files"},
        {"{\"fsdp_module\"", "7,{\"fsdp_module\"", TSR_E_FORMAT, "expected an object at units[0]"},
        NEEDED("fsdp_module", "\"\"", "a string", "units[0]"),
        {"\"raw_name\":\"_flat\"", "\"raw_name\":null", TSR_E_FORMAT, "raw_name is missing at units[0]"},
        {"\"raw_name\":\"_flat\"", "\"raw_name\":7", TSR_E_FORMAT, "expected a string at units[0]"},
        OPTIONAL("sharding_strategy", "\"ShardingStrategy.FULL_SHARD\"", "a string", "units[0]"),
        {"FULL_SHARD", "NO_SHARD", TSR_OK, ""},
        {"FULL_SHARD", "HYBRID_SHARD", TSR_E_FORMAT, "HYBRID_SHARD at units[0] needs shard_groups"},
        {"\"params\":[{\"fqn\":\"w\",", "\"params\":null,\"x\":[{\"fqn\":\"w\",", TSR_E_FORMAT, "'params'"},
        NEEDED("fqn", "\"w\"", "a string", "units[0]"),
        NEEDED("shape", "[2,3]", "an array", "units[0]"),
        {"\"shape\":[2,3]", "\"shape\":[2,\"3\"]", TSR_E_FORMAT, "expected a number at units[0]"},
        {"\"shape\":[2,3]", "\"shape\":[9007199254740991,9007199254740991]", TSR_E_FORMAT,
         "the shape of 'w' at units[0] is too large"},
        {"\"shape\":[2,3]", "\"shape\":[2,4]", TSR_E_FORMAT,
         "'w' has 8 elements by its shape, but 6 by numels_with_padding"},
        OPTIONAL("requires_grad", "true", "a boolean", "units[0]"),
        {"\"requires_grad\":true", "\"requires_grad\":false", TSR_OK, ""},
        NEEDED("numels_with_padding", "[6,2,3,1]", "an array", "units[0]"),
        NEEDED("is_padding_mask", "[false,true,false,true]", "an array", "units[0]"),
        {"[6,2,3,1]", "[6,2,\"3\",1]", TSR_E_FORMAT, "expected a number at units[0]"},
        {"[6,2,3,1]", "[6,2,3]", TSR_E_FORMAT, "do not match"},
        {"[false,true,false,true]", "[false,true,false]", TSR_E_FORMAT, "do not match"},
        {"[false,true,false,true]", "[false,true,true,true]", TSR_E_FORMAT, "do not match"},
        {"[false,true,false,true]", "[false,true,false,false]", TSR_E_FORMAT,
         "numels_with_padding has more entries than the 2 params at units[0]"},
        {"[false,true,false,true]", "[false,7,false,true]", TSR_E_FORMAT, "expected a boolean at units[0]"},
        {"\"param_groups\":[[\"_flat\"]]", "\"param_groups\":null", TSR_E_FORMAT, "'param_groups'"},
        {"[[\"_flat\"]]", "[\"_flat\"]", TSR_E_FORMAT, "expected an array at param_groups"},
        {"[[\"_flat\"]]", "[[7]]", TSR_E_FORMAT, "expected a string at param_groups"},
        {"\"param_groups\"", "\"shard_groups\":[[0,1]],\"param_groups\"", TSR_OK, ""},
        {"\"param_groups\"", "\"shard_groups\":[[0],[1]],\"param_groups\"", TSR_OK, ""},
        {"\"param_groups\"", "\"shard_groups\":7,\"param_groups\"", TSR_E_FORMAT, "expected an array at shard_groups"},
        {"\"param_groups\"", "\"shard_groups\":[7],\"param_groups\"", TSR_E_FORMAT, "expected an array at shard_groups"},
        {"\"param_groups\"", "\"shard_groups\":[[0,1],[1]],\"param_groups\"", TSR_E_FORMAT, "shard_groups of 2 and 1 ranks"},
        {"\"param_groups\"", "\"shard_groups\":[[\"0\",1]],\"param_groups\"", TSR_E_FORMAT,
         "expected a number at shard_groups"},
        {"\"param_groups\"", "\"shard_groups\":[[0,0]],\"param_groups\"", TSR_E_FORMAT, "list rank 0 twice"},
        {"\"param_groups\"", "\"shard_groups\":[[0,2]],\"param_groups\"", TSR_E_FORMAT, "or it is not one of the 2 ranks"},
        {"\"param_groups\"", "\"shard_groups\":[],\"param_groups\"", TSR_E_FORMAT, "shard_groups list only 0 of 2 ranks"},
        {flat_params, "{\"schema\":\"tessera.flat-params/1\",\"world_size\":1,\"units\":null}", TSR_E_FORMAT, "'units'"},
        {flat_params, "[", TSR_E_FORMAT, "the end"},
    };
    CHECK(read_flat_params, flat_params, edits);
}

static const char modules[] =
    "{\"schema\":\"tessera.modules/"
    "1\",\"root\":{\"class\":\"Net\",\"wrapper\":\"ddp\",\"extra_state\":true,\"fqn_modifiers\":{\"m\":\"child\"},"
    "\"parameters\":{\"w\":{\"shape\":[2,3],\"dtype\":\"float32\",\"requires_grad\":true,\"id\":7}},"
    "\"buffers\":{\"b\":{\"shape\":[],\"persistent\":false}},"
    "\"flat_param\":{\"params\":[{\"fqn\":\"w\",\"shape\":[2]}],\"shared\":[{\"fqn\":\"v\",\"of\":\"w\"}],\"alignment\":8,"
    "\"use_orig_params\":true},"
    "\"children\":{\"c\":{\"class\":\"Sub\",\"children\":{\"g\":{\"class\":\"Leaf\"}}},\"d\":{\"same_as\":\"c\"}}},"
    "\"groups\":[[\"w\"],{\"params\":[\"b\"]}]}";

static void test_documents_read__module_trees_are_complete_or_refused(void **state)
{
    (void)state;
    static const edit edits[] = {
        NEEDED("schema", "\"tessera.modules/1\"", "a string", "schema"),
        {"modules/1", "modules/2", TSR_E_FORMAT, "schema 'tessera.modules/2'"},
        {"\"root\":", "\"root\":null,\"x\":", TSR_E_FORMAT, "'root'"},
        NEEDED("class", "\"Net\"", "a string", "module ''"),
        OPTIONAL("wrapper", "\"ddp\"", "a string", "module ''"),
        {"\"ddp\"", "\"dpp\"", TSR_E_FORMAT, "unknown wrapper 'dpp' at module ''; expected"},
        OPTIONAL("extra_state", "true", "a boolean", "module ''"),
        OPTIONAL("fqn_modifiers", "{\"m\":\"child\"}", "an object", "module ''"),
        {"\"child\"", "7", TSR_E_FORMAT, "expected a string at module ''"},
        {"\"parameters\":{\"w\":", "\"parameters\":{\"z\":7,\"w\":", TSR_E_FORMAT,
         "expected an object at module ''.parameters.z"},
        {"\"parameters\":{", "\"parameters\":null,\"x\":{", TSR_OK, ""},
        {"\"parameters\":{", "\"parameters\":7,\"x\":{", TSR_E_FORMAT, "expected an object at module ''"},
        {"\"buffers\":{", "\"buffers\":7,\"x\":{", TSR_E_FORMAT, "expected an object at module ''"},
        NEEDED("shape", "[2,3]", "an array", "module ''.parameters.w"),
        {"[2,3]", "[2,\"3\"]", TSR_E_FORMAT, "expected a number at module ''.parameters.w"},
        OPTIONAL("dtype", "\"float32\"", "a string", "module ''.parameters.w"),
        {"float32", "float31", TSR_E_FORMAT, "'float31' at module ''.parameters.w is not a PyTorch dtype"},
        OPTIONAL("requires_grad", "true", "a boolean", "module ''.parameters.w"),
        OPTIONAL("persistent", "false", "a boolean", "module ''.buffers.b"),
        {"\"id\":7", "\"id\":null", TSR_OK, ""},
        {"\"id\":7", "\"id\":\"seven\"", TSR_OK, ""},
        {"\"id\":7", "\"id\":true", TSR_OK, ""},
        {"\"id\":7", "\"id\":false", TSR_OK, ""},
        {"\"id\":7", "\"id\":[7]", TSR_E_FORMAT, "expected a number or a string as id at module ''.parameters.w"},
        {"\"flat_param\":{", "\"flat_param\":7,\"x\":{", TSR_E_FORMAT, "expected an object at module ''"},
        NEEDED("params", "[{\"fqn\":\"w\",\"shape\":[2]}]", "an array", "module ''.flat_param"),
        OPTIONAL("shared", "[{\"fqn\":\"v\",\"of\":\"w\"}]", "an array", "module ''.flat_param"),
        {"\"alignment\":8", "\"alignment\":null", TSR_OK, ""},
        {"\"alignment\":8", "\"alignment\":\"8\"", TSR_E_FORMAT, "expected a number at module ''.flat_param"},
        {"\"alignment\":8", "\"alignment\":-8", TSR_E_FORMAT, "module ''.flat_param"},
        OPTIONAL("use_orig_params", "true", "a boolean", "module ''.flat_param"),
        NEEDED("fqn", "\"w\"", "a string", "module ''.flat_param"),
        NEEDED("shape", "[2]", "an array", "module ''.flat_param"),
        NEEDED("fqn", "\"v\"", "a string", "module ''.flat_param"),
        NEEDED("of", "\"w\"", "a string", "module ''.flat_param"),
        {"\"children\":{\"c\"", "\"children\":7,\"x\":{\"c\"", TSR_E_FORMAT, "expected an object at module ''"},
        {"{\"class\":\"Leaf\"}", "7", TSR_E_FORMAT, "expected an object at module 'c.g'"},
        {"{\"class\":\"Leaf\"}", "{\"class\":7}", TSR_E_FORMAT, "expected a string at module 'c.g'"},
        {"\"same_as\":\"c\"", "\"same_as\":7", TSR_E_FORMAT, "expected a string at d"},
        {"\"same_as\":\"c\"", "\"same_as\":\"e\"", TSR_E_FORMAT, "'d' is the same as 'e', which does not describe a module"},
        {"\"root\":{\"class\":\"Net\"", "\"root\":{\"same_as\":\"\",\"class\":\"Net\"", TSR_E_FORMAT, "the same as"},
        {"\"groups\":[[\"w\"],{\"params\":[\"b\"]}]", "\"groups\":null", TSR_OK, ""},
        {"\"groups\":[[\"w\"],{\"params\":[\"b\"]}]", "\"groups\":7", TSR_E_FORMAT, "expected an array at groups"},
        {"[\"w\"],{\"params\":[\"b\"]}", "7", TSR_E_FORMAT, "expected an array at groups"},
        {"[\"w\"],{\"params\":[\"b\"]}", "[7]", TSR_E_FORMAT, "expected a string at groups"},
        {"[\"w\"],{\"params\":[\"b\"]}", "{\"params\":7}", TSR_E_FORMAT, "expected an array at groups"},
        {modules, "[", TSR_E_FORMAT, "the end"},
    };
    CHECK(read_modules, modules, edits);
}

/* More children, entries and keys than the tables have room for at first. */
static void test_documents_read__long_ones_bear_failures(void **state)
{
    (void)state;
    static char text[4096];
    size_t used =
        (size_t)snprintf(text, sizeof text, "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"Net\",\"children\":{");
    for (int i = 0; i < 40; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 i % 2 ? "%s\"c%d\":{\"same_as\":\"c0\"}" : "%s\"c%d\":{\"class\":\"C\"}", i ? "," : "", i);
    snprintf(text + used, sizeof text - used, "}}}");
    must_bear_failed_allocations(read_modules, text, TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_read__layouts_are_complete_or_refused),
        cmocka_unit_test(test_documents_read__targets_are_complete_or_refused),
        cmocka_unit_test(test_documents_read__strategies_are_complete_or_refused),
        cmocka_unit_test(test_documents_read__a_strategy_without_use_orig_params_has_them),
        cmocka_unit_test(test_documents_read__flat_parameters_are_complete_or_refused),
        cmocka_unit_test(test_documents_read__module_trees_are_complete_or_refused),
        cmocka_unit_test(test_documents_read__long_ones_bear_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
