/* Opens and checks every committed sample, sound or broken, as real files, while one allocation or one system call fails.
 * Each run must either report that failure, or give exactly the result of a run in which nothing fails; and it must free
 * every block. With TSR_TEST_FULL=1 every allocation and every call fails in a run of its own; otherwise only the first ones
 * and an even selection of the rest do. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "io/sys.h"
#include "native/scratch.h"
#include "support/failing_allocator.h"
#include "support/full_counts.h"
#include "tessera/check.h"
#include "tessera/compare.h"
#include "tessera/diff.h"
#include "tessera/native_host.h"
#include "tessera/sys/check.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/validate.h"

enum { PATHS = 512, PATH_CHARS = 600, FIRST_POINTS = 8, MORE_POINTS = 16 };

static char paths[PATHS][PATH_CHARS];
static size_t path_count;
static tsr_native_host native;

static const char said_text[] = "Input/output error"; /* EIO in the C locale */

/* What a run reported. `print`: checksum of every status, finding, digest and count. `said`: whether an error or a finding
 * mentions EIO. */
typedef struct outcome {
    uint32_t print;
    bool no_memory, said;
} outcome;

static void note(outcome *out, const void *data, size_t size)
{
    out->print = tsr_crc32(NULL, out->print, data, size);
}

/* False when the run must end here. */
static bool note_status(outcome *out, tsr_status status, const tsr_error *err)
{
    if (status != err->status || (status != TSR_OK) != (err->message[0] != '\0')) {
        fail_msg("status %s, error %s '%s'", tsr_status_name(status), tsr_status_name(err->status), err->message);
    }
    note(out, err->message, strlen(err->message));
    out->no_memory |= status == TSR_E_NOMEM;
    out->said |= status == TSR_E_IO && strstr(err->message, said_text);
    return status != TSR_E_NOMEM;
}

static void note_findings(outcome *out, const tsr_findings *findings)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        note(out, f->rule->id, strlen(f->rule->id));
        note(out, f->message.data, f->message.size);
        note(out, f->fqn.data, f->fqn.size);
        out->said |= strstr(f->message.data, said_text) != NULL;
    }
}

static bool note_values(outcome *out, tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring)
{
    tsr_digest digest = {{0}, 0};
    tsr_stats stats;
    tsr_difference difference;
    tsr_error errs[3] = {{0}};
    memset(&stats, 0, sizeof stats);
    memset(&difference, 0, sizeof difference);
    if (!note_status(out, tsr_tensor_digest(checkpoint, entry, TSR_DIGEST_XXH3, ring, &digest, &errs[0]), &errs[0]))
        return false;
    if (!note_status(out, tsr_tensor_stats(checkpoint, entry, ring, &stats, &errs[1]), &errs[1])) return false;
    tsr_status status = tsr_compare_tensors((tsr_stored_tensor){checkpoint, entry}, (tsr_stored_tensor){checkpoint, entry},
                                            &(tsr_tolerance){.exact = true}, ring, &difference, &errs[2]);
    if (!note_status(out, status, &errs[2])) return false;
    if (errs[0].status == TSR_OK) note(out, digest.bytes, digest.size);
    if (errs[1].status == TSR_OK) note(out, &stats.count, sizeof stats.count);
    if (errs[2].status == TSR_OK) note(out, &difference.differing, sizeof difference.differing);
    return true;
}

static void note_checks(outcome *out, tsr_checkpoint *checkpoint, const tsr_host *host, tsr_ring *ring, tsr_arena *arena)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_error errs[3] = {{0}};
    tsr_diff diff;
    bool on = note_status(out, tsr_validate_catalog(catalog, host, tsr_checkpoint_findings(checkpoint), &errs[0]), &errs[0]);
    on = on && note_status(out, tsr_diff_catalogs((tsr_catalog_pair){catalog, catalog}, NULL, host, arena, &diff, &errs[1]),
                           &errs[1]);
    if (on && errs[1].status == TSR_OK) note(out, (uint8_t[]){tsr_diff_is_same(&diff)}, 1);
    on = on && note_status(out, tsr_check_deep(checkpoint, ring, NULL, &errs[2]), &errs[2]);
    for (uint64_t i = 0; on && i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        note(out, entry->fqn.data, entry->fqn.size);
        if (entry->kind == TSR_ENTRY_TENSOR) on = note_values(out, checkpoint, entry, ring);
    }
    note_findings(out, tsr_checkpoint_findings(checkpoint));
}

static void note_checkpoint(outcome *out, tsr_store *store, const tsr_host *host)
{
    tsr_checkpoint *checkpoint = NULL;
    tsr_error errs[3] = {{0}};
    if (!note_status(out, tsr_checkpoint_open(store, host, NULL, &checkpoint, &errs[0]), &errs[0])) return;
    if (errs[0].status != TSR_OK) return;
    tsr_ring *ring = NULL;
    if (note_status(out, tsr_ring_new(host, 1, &ring, &errs[1]), &errs[1])) {
        tsr_arena *arena = tsr_arena_new(host->allocator, 0, &errs[2]);
        if (note_status(out, errs[2].status, &errs[2])) note_checks(out, checkpoint, host, ring, arena);
        tsr_arena_free(arena);
    }
    tsr_ring_free(ring);
    tsr_checkpoint_close(checkpoint);
}

static outcome run(const char *path, const tsr_sys *sys, const tsr_allocator *allocator)
{
    outcome out = {0};
    tsr_host host = native.host;
    tsr_store *store = NULL;
    tsr_error err = {0};
    host.allocator = allocator;
    if (!note_status(&out, tsr_directory_store_open(sys, allocator, path, &store, &err), &err) || !store) return out;
    note_checkpoint(&out, store, &host);
    store->close(store);
    return out;
}

/* Returns the next point to test after `n`, out of about `total`. */
static size_t next_point(size_t n, size_t total)
{
    if (full_counts() || n < FIRST_POINTS) return n + 1;
    return n + 1 + total / MORE_POINTS;
}

static outcome run_sound(const char *path, size_t *allocations)
{
    failing_allocator failing;
    failing_start(&failing, SIZE_MAX);
    outcome sound = run(path, NULL, &failing.allocator);
    *allocations = failing.calls;
    if (failing.live != 0) fail_msg("%s: %zu blocks leak", path, failing.live);
    return sound;
}

static void test_robust_faults__every_failed_allocation_is_said_and_leaks_nothing(void **state)
{
    (void)state;
    size_t points = 0;
    for (size_t p = 0; p < path_count; p++) {
        size_t total;
        const outcome sound = run_sound(paths[p], &total);
        assert_false(sound.no_memory);
        for (size_t n = 0; n < total; n = next_point(n, total), points++) {
            failing_allocator failing;
            failing_start(&failing, n);
            outcome out = run(paths[p], NULL, &failing.allocator);
            if (failing.live != 0) fail_msg("%s, allocation %zu: %zu blocks leak", paths[p], n, failing.live);
            if (failing.failed && !out.no_memory && out.print != sound.print) {
                fail_msg("%s, allocation %zu: neither out of memory nor the sound result", paths[p], n);
            }
        }
    }
    print_message("%zu samples, %zu failed allocations\n", path_count, points);
    assert_true(points > path_count);
}

static size_t fail_calls(const char *path, const outcome *sound, bool stays)
{
    size_t points = 0;
    faulty_sys faulty = faulty_sys_make();
    run(path, &faulty.sys, &tsr_allocator_libc);
    const size_t total = faulty.calls;
    for (size_t n = 1; n <= total; n = next_point(n, total), points++) {
        failing_allocator counting;
        failing_start(&counting, SIZE_MAX);
        faulty = faulty_sys_make();
        faulty.fail_at = n;
        faulty.error = EIO;
        faulty.stays = stays;
        const outcome out = run(path, &faulty.sys, &counting.allocator);
        if (counting.live != 0) fail_msg("%s, call %zu: %zu blocks leak", path, n, counting.live);
        if (!out.said && out.print != sound->print) fail_msg("%s, call %zu: neither said nor the sound result", path, n);
    }
    return points;
}

static void test_robust_faults__every_failed_call_is_said_and_leaks_nothing(void **state)
{
    (void)state;
    size_t points = 0;
    for (size_t p = 0; p < path_count; p++) {
        size_t total;
        const outcome sound = run_sound(paths[p], &total);
        points += fail_calls(paths[p], &sound, false);
        points += fail_calls(paths[p], &sound, true);
    }
    print_message("%zu samples, %zu failed calls\n", path_count, points);
    assert_true(points > path_count);
}

static void test_robust_faults__short_reads_change_nothing(void **state)
{
    (void)state;
    for (size_t p = 0; p < path_count; p++) {
        size_t total;
        const outcome sound = run_sound(paths[p], &total);
        faulty_sys faulty = faulty_sys_make();
        faulty.short_transfers = 1021;
        if (run(paths[p], &faulty.sys, &tsr_allocator_libc).print != sound.print) fail_msg("%s differs", paths[p]);
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Lists every sample directory, and the samples that are an index or a single file. */
static int list_samples(void **state)
{
    (void)state;
    static const char root[] = TSR_TEST_DATA "/samples/checkpoints";
    DIR *directory = opendir(root);
    if (!directory) return -1;
    for (struct dirent *item; (item = readdir(directory)) && path_count < PATHS;) {
        if (item->d_name[0] == '.' || strchr(item->d_name, '.')) continue;
        snprintf(paths[path_count++], PATH_CHARS, "%s/%s", root, item->d_name);
    }
    closedir(directory);
    qsort(paths, path_count, sizeof *paths, by_text);
    tsr_native_host_open(&native, 1);
    return path_count > 100 ? 0 : -1;
}

static int end_samples(void **state)
{
    (void)state;
    tsr_native_host_close(&native);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_robust_faults__short_reads_change_nothing),
        cmocka_unit_test(test_robust_faults__every_failed_call_is_said_and_leaks_nothing),
        cmocka_unit_test(test_robust_faults__every_failed_allocation_is_said_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, list_samples, end_samples);
}
