/* Any byte that changes in any file of an output is reported as an error by a deep check.
 *
 *   test_check_flips                 the forms below; 100,000 flips with TSR_TEST_FULL=1
 *   test_check_flips COUNT PATH…     prints what is missed of COUNT flips of each checkpoint (0: each byte once) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/full_counts.h"
#include "support/random.h"
#include "support/sample.h"
#include "tessera/check.h"
#include "tessera/native_host.h"
#include "tessera/plan.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/store.h"
#include "tessera/sys/work.h"

enum { MOST_FILES = 64, MOST_SHOWN = 400 };

/* The files of a checkpoint, which a flip changes and restores. */
typedef struct files {
    tsr_memory_file items[MOST_FILES];
    uint32_t count;
    uint64_t bytes;
} files;

static void add_file(files *f, tsr_str name, tsr_str content)
{
    assert_true(f->count < MOST_FILES);
    char *copy = malloc(name.size + content.size + 1);
    memcpy(copy, name.data, name.size);
    if (content.size) memcpy(copy + name.size, content.data, content.size);
    f->items[f->count++] = (tsr_memory_file){{copy, name.size}, {copy + name.size, content.size}};
    f->bytes += content.size;
}

static void free_files(files *f)
{
    for (uint32_t i = 0; i < f->count; i++) free((char *)f->items[i].name.data);
    f->count = 0;
}

typedef struct answer {
    bool error, warning;
    char text[1024];
} answer;

static answer check(const files *f, const tsr_host *host)
{
    const tsr_open_options options = {.purpose = TSR_FOR_FINDINGS};
    const tsr_validate_options deep = {.deep = true};
    tsr_error err = {0};
    tsr_store *store;
    tsr_checkpoint *checkpoint = NULL;
    answer out = {.error = false};
    assert_int_equal(tsr_store_from_memory(host->allocator, f->items, f->count, &store, NULL), TSR_OK);
    tsr_status status = tsr_checkpoint_open(store, host, &options, &checkpoint, &err);
    if (status == TSR_OK) status = tsr_validate(checkpoint, &deep, &err);
    if (status != TSR_OK) {
        out.error = true;
        snprintf(out.text, sizeof out.text, "%s", err.message);
    }
    const tsr_findings *findings = checkpoint ? tsr_checkpoint_findings(checkpoint) : NULL;
    for (uint64_t i = 0; findings && i < tsr_findings_count(findings); i++) {
        const tsr_finding *found = tsr_findings_at(findings, i);
        out.error |= found->level == TSR_ERROR;
        out.warning |= found->level == TSR_WARNING;
        if (found->level != TSR_NOTE)
            snprintf(out.text, sizeof out.text, "%s %.*s", found->rule->id, (int)found->message.size, found->message.data);
    }
    if (checkpoint) tsr_checkpoint_close(checkpoint);
    store->close(store);
    return out;
}

/* Flips the byte at `at` of all files. Returns whether it is missed. */
static bool misses(files *f, uint64_t at, uint8_t bits, const tsr_host *host, bool shows)
{
    uint32_t i = 0;
    while (at >= f->items[i].content.size) at -= f->items[i++].content.size;
    uint8_t *byte = (uint8_t *)f->items[i].content.data + at;
    *byte ^= bits;
    const answer after = check(f, host);
    if (!after.error && shows)
        printf("  missed: %.*s byte %llu of %zu: %02x to %02x%s %s\n", (int)f->items[i].name.size, f->items[i].name.data,
               (unsigned long long)at, f->items[i].content.size, *byte ^ bits, *byte, after.warning ? " (a warning)" : "",
               after.text);
    *byte ^= bits;
    return !after.error;
}

static uint64_t flip_all(files *f, uint64_t count, uint64_t seed, const tsr_host *host, const char *name)
{
    uint64_t missed = 0;
    random_source random = {seed};
    const uint64_t tried = count ? count : f->bytes;
    for (uint64_t n = 0; n < tried; n++) {
        const uint64_t at = count ? random_next(&random) % f->bytes : n;
        const uint8_t bits = (uint8_t)(1 + random_next(&random) % 255);
        missed += misses(f, at, bits, host, missed < MOST_SHOWN);
    }
    printf("%-40s %8llu flips in %8llu bytes, %llu missed\n", name, (unsigned long long)tried, (unsigned long long)f->bytes,
           (unsigned long long)missed);
    return missed;
}

static tsr_checkpoint *open_path(const char *path, const tsr_host *host, tsr_store **store)
{
    tsr_error err = {0};
    tsr_checkpoint *checkpoint;
    if (tsr_directory_store_open(NULL, host->allocator, path, store, &err) != TSR_OK ||
        tsr_checkpoint_open(*store, host, NULL, &checkpoint, &err) != TSR_OK)
        fail_msg("%s: %s", path, err.message);
    return checkpoint;
}

typedef struct form {
    const char *source;
    tsr_container to;
    const char *mesh;
    uint64_t max_shard_size;
} form;

/* Sources with several tensors, objects, and parts, as little as they can be. */
static const form forms[] = {{"torch_plain", TSR_TO_SAFETENSORS, NULL, 0},
                             {"safetensors_dtypes", TSR_TO_SAFETENSORS, NULL, 0},
                             {"safetensors_model", TSR_TO_SAFETENSORS, NULL, 300},
                             {"torch_plain", TSR_TO_SAFETENSORS, "dp=3", 0},
                             {"torch_train_state", TSR_TO_TORCH, NULL, 0},
                             {"torch_plain", TSR_TO_TORCH, "dp=2", 0},
                             {"dcp_small", TSR_TO_DCP, NULL, 0},
                             {"torch_train_state", TSR_TO_DCP, NULL, 0},
                             {"torch_plain", TSR_TO_DCP, "dp=2", 0},
                             {"megatron_dist", TSR_TO_MEGATRON, NULL, 0},
                             {"deepspeed_zero3", TSR_TO_DEEPSPEED_UNIVERSAL, NULL, 0}};

static void make(const form *f, const tsr_host *host, files *out)
{
    char path[1024];
    tsr_error err = {0};
    tsr_store *store;
    tsr_output *output;
    tsr_conversion conversion;
    tsr_target target;
    tsr_plan *plan = NULL;
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", sample_root(), f->source);
    tsr_checkpoint *source = open_path(path, host, &store);
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, NULL);
    assert_int_equal(tsr_output_to_memory(host->allocator, &output, NULL), TSR_OK);
    if (f->mesh && (tsr_target_parse(tsr_str_from(f->mesh), TSR_STR("shard(0)"), arena, &target, &err) ||
                    tsr_plan_new(tsr_checkpoint_catalog(source), &target, NULL, host, &plan, &err)))
        fail_msg("%s", err.message);
    const tsr_convert_options options = {.to = f->to,
                                         .objects = f->to == TSR_TO_SAFETENSORS ? TSR_OBJECTS_DROP : TSR_OBJECTS_DEFAULT,
                                         .max_shard_size = f->max_shard_size,
                                         .plan = plan};
    if (tsr_convert(source, output, &options, arena, &conversion, &err) != TSR_OK) fail_msg("%s: %s", path, err.message);
    for (uint32_t i = 0; i < tsr_output_memory_count(output); i++) {
        const tsr_str name = tsr_output_memory_name(output, i);
        add_file(out, name.size ? name : TSR_STR("output"), tsr_output_memory_file(output, name));
    }
    output->close(output);
    tsr_plan_free(plan);
    tsr_arena_free(arena);
    tsr_checkpoint_close(source);
    store->close(store);
}

static void test_flips(void **state)
{
    const size_t count = sizeof forms / sizeof *forms;
    const tsr_host *host = *state;
    uint64_t missed = 0;
    for (size_t i = 0; i < count; i++) {
        char name[256];
        files f = {.count = 0};
        make(&forms[i], host, &f);
        snprintf(name, sizeof name, "%s to form %d%s%s", forms[i].source, (int)forms[i].to, forms[i].mesh ? " on " : "",
                 forms[i].mesh ? forms[i].mesh : "");
        const answer before = check(&f, host);
        if (before.error) fail_msg("%s: %s", name, before.text);
        missed += flip_all(&f, (full_counts() ? 100000 : 1600) / count + 1, i + 1, host, name);
        free_files(&f);
    }
    assert_int_equal(missed, 0);
}

/* ---- measuring ---- */

static void load(const char *path, const tsr_host *host, files *out)
{
    tsr_error err = {0};
    tsr_store *store;
    if (tsr_directory_store_open(NULL, host->allocator, path, &store, &err) != TSR_OK) fail_msg("%s: %s", path, err.message);
    for (uint32_t i = 0; i < store->file_count; i++) {
        const size_t size = (size_t)store->files[i].size;
        char *bytes = malloc(size + 1);
        if (store->primary == TSR_NO_FILE || store->primary == i) {
            assert_int_equal(store->read_at(store, i, 0, bytes, size, &err), TSR_OK);
            add_file(out, store->files[i].name, (tsr_str){bytes, size});
        }
        free(bytes);
    }
    store->close(store);
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_native_host_open(&native, 1);
    const tsr_host *host = &native.host;
    const struct CMUnitTest tests[] = {{"test_flips", test_flips, NULL, NULL, &native.host}};
    if (argc < 3) {
        const int failed = cmocka_run_group_tests(tests, NULL, NULL);
        tsr_native_host_close(&native);
        return failed;
    }
    for (int i = 2; i < argc; i++) {
        files f = {.count = 0};
        load(argv[i], host, &f);
        const answer before = check(&f, host);
        if (before.error) printf("%s has errors: %s\n", argv[i], before.text);
        flip_all(&f, strtoull(argv[1], NULL, 10), 1, host, argv[i]);
        free_files(&f);
    }
    tsr_native_host_close(&native);
    return 0;
}
