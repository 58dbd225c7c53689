/* Hostile checkpoints that grow. Each is built twice, the second time twice as large, and opened, validated and walked. An
 * input twice as large may take at most 2.3 times the work, and memory up to a fixed multiple of the input's size; what is
 * rejected must be rejected in both sizes. The work is counted (work.h), not timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "robust/hostile.h"
#include "robust/work.h"
#include "tessera/sys/store.h"

static work work_of(const char *file, const hostile_text *content)
{
    const tsr_memory_file files[] = {{tsr_str_from(file), {content->data, content->size}}};
    return work_of_open(files, 1);
}

enum { MEMORY_FACTOR = 120, MEMORY_BASE = 1 << 18, STEPS_BASE = 20000, CAPPED_MEMORY = 400 << 20, CAPPED_STEPS = 400000000 };

static unsigned compare_works(const hostile_shape *s, const work *once, const work *twice, size_t size)
{
    unsigned bad = 0;
    const bool capped = s->verdict == CAPPED;
    const double growth = (double)twice->steps / (double)(once->steps + STEPS_BASE);
    const double memory = (double)twice->byte_peak / (double)(size + MEMORY_BASE);
    if (getenv("TSR_TEST_SHOW")) {
        print_message("%-44s %9zu bytes %10llu steps ×%.2f, %6llu KiB peak ×%.1f, %llu reads %s\n", s->name, size,
                      (unsigned long long)twice->steps, growth, (unsigned long long)twice->byte_peak >> 10, memory,
                      (unsigned long long)twice->reads, twice->message);
    }
    const bool slow = capped ? twice->steps > CAPPED_STEPS : growth > 2.3;
    const bool large = capped ? twice->byte_peak > CAPPED_MEMORY : memory > MEMORY_FACTOR;
    const bool greedy = !capped && twice->byte_asked > 4 * (uint64_t)MEMORY_FACTOR * (size + MEMORY_BASE);
    if (slow) bad = 1, print_message("%s: twice the input takes %.2f times the work\n", s->name, growth);
    if (large || greedy) bad = 1, print_message("%s: memory is %.1f times the input\n", s->name, memory);
    if (twice->reads > size / 64 + 64) bad = 1, print_message("%s: %llu reads\n", s->name, (unsigned long long)twice->reads);
    const bool refused = once->status != TSR_OK || once->errors, again = twice->status != TSR_OK || twice->errors;
    if (!capped && (refused != (s->verdict == REFUSED) || again != refused)) {
        bad = 1;
        print_message("%s: %s '%s'\n", s->name, again ? "refused" : "accepted", twice->message);
    }
    return bad;
}

static void compare_all(const hostile_group *group)
{
    unsigned bad = 0;
    for (size_t i = 0; i < group->count; i++) {
        hostile_text a = hostile_build(group, &group->shapes[i], group->n),
                     b = hostile_build(group, &group->shapes[i], 2 * group->n);
        const work once = work_of(group->file, &a), twice = work_of(group->file, &b);
        bad += compare_works(&group->shapes[i], &once, &twice, b.size);
        free(a.data);
        free(b.data);
    }
    assert_int_equal(bad, 0);
}

static void test_robust_growth__torch_pickles(void **state)
{
    (void)state;
    compare_all(&hostile_groups[HOSTILE_PICKLES]);
}

static void test_robust_growth__archives_of_many_members(void **state)
{
    (void)state;
    compare_all(&hostile_groups[HOSTILE_ARCHIVES]);
}

static void test_robust_growth__dcp_metadata(void **state)
{
    (void)state;
    compare_all(&hostile_groups[HOSTILE_METADATA]);
}

static void test_robust_growth__safetensors_headers(void **state)
{
    (void)state;
    compare_all(&hostile_groups[HOSTILE_HEADERS]);
}

static void test_robust_growth__index_files(void **state)
{
    (void)state;
    compare_all(&hostile_groups[HOSTILE_INDEXES]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_robust_growth__torch_pickles), cmocka_unit_test(test_robust_growth__archives_of_many_members),
        cmocka_unit_test(test_robust_growth__dcp_metadata),  cmocka_unit_test(test_robust_growth__safetensors_headers),
        cmocka_unit_test(test_robust_growth__index_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
