/* Threads must not change the findings of a deep check, their order, the digests, or which failure is reported. Runs every
 * sample with one thread, with a pool, and with a loop that runs its bodies in reverse order. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/check.h"
#include "tessera/native_host.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"

static void backwards(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg)
{
    (void)ctx;
    while (count) body(arg, --count);
}

/* Everything that is reported about a sample, as lines of text. */
typedef struct answer {
    char *text;
    size_t size;
    size_t findings, digests, failures;
} answer;

static void tell_findings(FILE *f, const tsr_findings *findings, answer *a)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++, a->findings++) {
        const tsr_finding *one = tsr_findings_at(findings, i);
        fprintf(f, "%s %d %llu %.*s %.*s: %.*s\n", one->rule->id, (int)one->level, (unsigned long long)one->byte_offset,
                TSR_STR_ARG(one->file), TSR_STR_ARG(one->fqn), TSR_STR_ARG(one->message));
    }
}

/* Prints the digests. For a sample with a tensor that cannot be read, prints only the reason, because a batch fails as a
 * whole. */
static void tell_digests(FILE *f, tsr_checkpoint *checkpoint, tsr_ring *ring, answer *a)
{
    const long start = ftell(f);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    const tsr_entry **entries = calloc((size_t)catalog->entry_count + 1, sizeof *entries);
    tsr_error err = {0};
    tsr_digests *digests;
    assert_non_null(entries);
    for (uint64_t i = 0; i < catalog->entry_count; i++) entries[i] = &catalog->entries[i];
    const tsr_digest_list list = {entries, (size_t)catalog->entry_count, TSR_DIGEST_SHA256};
    assert_int_equal(tsr_digests_open(checkpoint, &list, ring, &digests, &err), TSR_OK);
    for (size_t i = 0; i < list.count; i++) {
        tsr_digest digest;
        char text[65];
        if (entries[i]->kind != TSR_ENTRY_TENSOR) continue;
        if (tsr_digests_get(digests, i, &digest, &err) != TSR_OK) {
            fseek(f, start, SEEK_SET);
            fprintf(f, "failed: %s\n", err.message);
            a->failures++;
            a->digests = 0;
            break;
        }
        fprintf(f, "%.*s %s\n", TSR_STR_ARG(entries[i]->fqn), tsr_digest_text(&digest, text));
        a->digests++;
    }
    tsr_digests_close(digests);
    free(entries);
}

static void read_back(FILE *f, answer *a)
{
    a->size = (size_t)ftell(f);
    a->text = calloc(a->size + 1, 1);
    assert_non_null(a->text);
    rewind(f);
    assert_int_equal(fread(a->text, 1, a->size, f), a->size);
    fclose(f);
}

static answer ask(const tsr_host *host, const char *name)
{
    answer a = {0};
    char path[512];
    tsr_store *store = NULL;
    tsr_checkpoint *checkpoint = NULL;
    tsr_ring *ring;
    tsr_error err = {0};
    FILE *f = tmpfile();
    assert_non_null(f);
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", TSR_TEST_DATA, name);
    assert_int_equal(tsr_ring_new(host, 0, &ring, &err), TSR_OK);
    tsr_status status = tsr_directory_store_open(NULL, host->allocator, path, &store, &err);
    if (status == TSR_OK) status = tsr_checkpoint_open(store, host, NULL, &checkpoint, &err);
    if (status == TSR_OK) {
        tell_digests(f, checkpoint, ring, &a);
        status = tsr_check_deep(checkpoint, ring, NULL, &err);
        tell_findings(f, tsr_checkpoint_findings(checkpoint), &a);
    }
    if (status != TSR_OK) fprintf(f, "not opened: %s\n", err.message);
    tsr_ring_free(ring);
    tsr_checkpoint_close(checkpoint);
    if (store) store->close(store);
    read_back(f, &a);
    return a;
}

/* The pool has one thread per core; the reverse loop pretends to have `threads`. */
static void compare(const char *name, uint32_t threads, answer *sum)
{
    tsr_native_host native;
    tsr_native_host_open(&native, 0);
    tsr_host one = native.host, back = native.host;
    one.parallel_for = NULL;
    one.threads = 1;
    back.parallel_for = backwards;
    back.threads = threads;
    answer want = ask(&one, name), pool = ask(&native.host, name), other = ask(&back, name);
    if (strcmp(want.text, pool.text) != 0) fail_msg("%s, by a pool:\n%s\nwant:\n%s", name, pool.text, want.text);
    if (strcmp(want.text, other.text) != 0) fail_msg("%s, backwards:\n%s\nwant:\n%s", name, other.text, want.text);
    sum->findings += want.findings;
    sum->digests += want.digests;
    sum->failures += want.failures;
    free(want.text);
    free(pool.text);
    free(other.text);
    tsr_native_host_close(&native);
}

static void test_check_threads__say_what_one_thread_says(void **state)
{
    (void)state;
    answer sum = {0};
    uint32_t samples = 0;
    DIR *dir = opendir(TSR_TEST_DATA "/samples/checkpoints");
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));) {
        if (item->d_name[0] == '.') continue;
        compare(item->d_name, 2 + samples++ % 17, &sum);
    }
    closedir(dir);
    print_message("%u samples, %zu findings, %zu digests, %zu failures\n", samples, sum.findings, sum.digests, sum.failures);
    assert_true(samples > 50 && sum.findings > 20 && sum.digests > 500 && sum.failures > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check_threads__say_what_one_thread_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
