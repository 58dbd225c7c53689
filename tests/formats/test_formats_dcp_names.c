/* Numbers of names: the same text always gets the same number, and different texts get different ones, even if their hashes
 * are equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "formats/dcp/dcp_state.h"
#include "tessera/sys/containers.h"

enum { TRIED = 400000 };

typedef struct candidate {
    uint32_t hash;
    uint32_t number;
} candidate;

static int by_hash(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

static tsr_str text_of(uint32_t number, char *out, size_t size)
{
    return (tsr_str){out, (size_t)snprintf(out, size, "layers.%u.weight", (unsigned)number)};
}

/* Finds two numbers whose texts have the same hash with `seed`. Among so many 32-bit hashes there are about twenty such
 * pairs. */
static void find_twins(uint64_t seed, uint32_t twins[2])
{
    candidate *all = malloc(TRIED * sizeof *all);
    char text[32];
    assert_non_null(all);
    for (uint32_t i = 0; i < TRIED; i++) {
        const tsr_str name = text_of(i, text, sizeof text);
        all[i] = (candidate){(uint32_t)tsr_hash_bytes(name.data, name.size, seed), i};
    }
    qsort(all, TRIED, sizeof *all, by_hash);
    size_t i = 1;
    while (i < TRIED && all[i].hash != all[i - 1].hash) i++;
    assert_true(i < TRIED);
    twins[0] = all[i - 1].number;
    twins[1] = all[i].number;
    free(all);
}

static void test_formats_dcp_names__texts_of_equal_hashes_are_two_names(void **state)
{
    (void)state;
    tsr_dcp_names names = tsr_dcp_names_of(&tsr_allocator_libc, UINT64_MAX);
    uint32_t twins[2], first, second, again;
    char a[32], b[32];
    find_twins((uintptr_t)&names, twins);
    const tsr_str one = text_of(twins[0], a, sizeof a), two = text_of(twins[1], b, sizeof b);
    assert_int_equal(tsr_dcp_names_add(&names, one, &first, NULL), TSR_OK);
    assert_int_equal(tsr_dcp_names_add(&names, two, &second, NULL), TSR_OK);
    const tsr_dcp_name *list = names.list.items;
    assert_int_equal(list[first].hash, list[second].hash);
    assert_true(first == 0 && second == 1);
    assert_int_equal(tsr_dcp_names_add(&names, two, &again, NULL), TSR_OK);
    assert_int_equal(again, second);
    assert_int_equal(tsr_dcp_names_add(&names, one, &again, NULL), TSR_OK);
    assert_int_equal(again, first);
    tsr_dcp_names_free(&names);
}

/* Many more names than the table begins with, looked up in order, in reverse order, and by equal bytes at other
 * addresses. */
static void test_formats_dcp_names__numbers_stay_as_the_table_grows(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static char texts[COUNT][32];
    tsr_dcp_names names = tsr_dcp_names_of(&tsr_allocator_libc, UINT64_MAX);
    uint32_t number;
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(tsr_dcp_names_add(&names, text_of(i, texts[i], sizeof texts[i]), &number, NULL), TSR_OK);
        assert_int_equal(number, i);
    }
    for (uint32_t i = COUNT; i-- > 0;) {
        char copy[32];
        assert_int_equal(tsr_dcp_names_add(&names, text_of(i, copy, sizeof copy), &number, NULL), TSR_OK);
        assert_int_equal(number, i);
        assert_true(tsr_dcp_name_text(&names, i).data == texts[i]);
    }
    assert_int_equal(names.list.count, COUNT);
    tsr_dcp_names_free(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_dcp_names__texts_of_equal_hashes_are_two_names),
        cmocka_unit_test(test_formats_dcp_names__numbers_stay_as_the_table_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
