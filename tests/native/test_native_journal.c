/* Journals: what they keep, what is accepted of a truncated or foreign one, locks, and what is found and removed next to a
 * destination. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "native/scratch.h"
#include "publish/journal.h"
#include "tessera/sys/directory.h"

static const char text[] = TSR_JOURNAL_MAGIC "to dcp\ngeneration 3\nfile data\nfile .metadata\n";

typedef struct place {
    tsr_journals journals;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_arena *arena;
    tsr_leftover *found;
    size_t count;
} place;

static void start(place *p)
{
    *p = (place){.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    tsr_journal_tag(tsr_str_from(text), p->tag);
    assert_int_equal(tsr_journals_open(NULL, &tsr_allocator_libc, scratch_path("out/"), &p->journals, NULL), TSR_OK);
}

static void end(place *p)
{
    tsr_journals_close(&p->journals);
    tsr_arena_free(p->arena);
}

static void list(place *p)
{
    assert_int_equal(tsr_journals_list(&p->journals, p->arena, &p->found, &p->count, NULL), TSR_OK);
}

static tsr_journal *begin(place *p, uint64_t part, const char *given)
{
    tsr_journal *journal;
    tsr_error err = {0};
    if (tsr_journal_begin(&p->journals, p->tag, (tsr_journal_share){part, 3, false}, tsr_str_from(given), &journal, &err))
        fail_msg("%s", err.message);
    return journal;
}

static void expect_records(const tsr_journal *journal, const char *want)
{
    assert_true(tsr_str_equal(tsr_journal_records(journal), tsr_str_from(want)));
}

static void test_native_journal__records_are_found_again(void **state)
{
    (void)state;
    place p;
    start(&p);
    tsr_journal *journal = begin(&p, 2, text);
    expect_records(journal, "");
    assert_true(tsr_journal_is_empty(journal));
    assert_int_equal(tsr_journal_append(journal, TSR_STR("one"), NULL), TSR_OK);
    assert_int_equal(tsr_journal_append(journal, TSR_STR("two"), NULL), TSR_OK);
    tsr_journal_close(journal);
    journal = begin(&p, 2, text);
    expect_records(journal, "onetwo");
    assert_int_equal(tsr_journal_cut(journal, 4, NULL), TSR_OK);
    assert_int_equal(tsr_journal_append(journal, TSR_STR("!"), NULL), TSR_OK);
    tsr_journal_close(journal);
    journal = begin(&p, 2, text);
    expect_records(journal, "onet!");
    tsr_journal_close(journal);
    tsr_error err = {0};
    assert_int_equal(tsr_journal_begin(&p.journals, p.tag, (tsr_journal_share){2, 3, false},
                                       TSR_STR(TSR_JOURNAL_MAGIC "to torch\n"), &journal, &err),
                     TSR_E_EXISTS); /* other work with the same tag */
    journal = begin(&p, 2, text);
    expect_records(journal, "onet!");
    tsr_journal_close(journal);
    uint32_t generation = 0;
    assert_true(tsr_journal_is_of(tsr_str_from(text), TSR_STR(TSR_JOURNAL_MAGIC "to dcp\n"), &generation) &&
                generation == 3);
    assert_false(tsr_journal_is_of(tsr_str_from(text), TSR_STR(TSR_JOURNAL_MAGIC "to torch\n"), &generation));
    end(&p);
}

static void test_native_journal__a_process_at_work_is_told_from_a_killed_one(void **state)
{
    (void)state;
    place p;
    tsr_journal *second;
    tsr_error err = {0};
    start(&p);
    tsr_journal *journal = begin(&p, 1, text);
    assert_int_equal(
        tsr_journal_begin(&p.journals, p.tag, (tsr_journal_share){1, 3, false}, tsr_str_from(text), &second, &err),
        TSR_E_EXISTS);
    assert_non_null(strstr(err.message, "another process"));
    list(&p);
    assert_int_equal(p.count, 1);
    assert_true(p.found[0].busy && p.found[0].share == 1 && p.found[0].shares == 3);
    assert_true(tsr_str_equal(p.found[0].text, tsr_str_from(text)));
    tsr_journal_close(journal);
    list(&p);
    assert_false(p.found[0].busy);
    end(&p);
}

static void test_native_journal__leftovers_are_listed_and_removed_by_tag(void **state)
{
    (void)state;
    place p;
    char name[128], kept[128];
    start(&p);
    tsr_journal_close(begin(&p, 1, text));
    tsr_journal_close(begin(&p, 3, text));
    snprintf(name, sizeof name, ".out.tessera-%s/data", p.tag);
    scratch_write(name, "x", 1);
    snprintf(name, sizeof name, "out/.tessera-%s-0", p.tag);
    scratch_write(name, "x", 1);
    snprintf(kept, sizeof kept, ".out.tessera-w0123456789abcdef.1-of-1");
    scratch_write(kept, "tess", 4);
    scratch_write(".out.tessera-w1123456789abcdef.1-of-1", "not a journal", 13);
    scratch_write(".out.tessera-4711", "a process's", 4);
    scratch_write(".other.tessera-w0123456789abcdef", "x", 1);
    scratch_write("out/mine", "x", 1);
    assert_int_equal(tsr_journals_publishing(&p.journals, p.tag,
                                             TSR_STR("tessera.publishing/2\nnew \nbeside 1\nidentity 1 1 0 0 0\n\n"), true,
                                             NULL),
                     TSR_OK);
    list(&p);
    assert_int_equal(p.count, 6);
    unsigned parts = 0, outputs = 0, notes = 0, torn = 0;
    for (size_t i = 0; i < p.count; i++) {
        const tsr_leftover *l = &p.found[i];
        notes += l->publishing && l->text.size;
        outputs += !l->share && !l->publishing;
        parts += l->share && l->text.size;
        torn += l->share && !l->text.size;
    }
    assert_true(parts == 2 && outputs == 2 && notes == 1 && torn == 1);
    assert_int_equal(tsr_journals_discard(&p.journals, p.tag, NULL), TSR_OK);
    assert_string_equal(scratch_list(""),
                        ".other.tessera-w0123456789abcdef .out.tessera-4711 .out.tessera-w0123456789abcdef.1-of-1 "
                        ".out.tessera-w1123456789abcdef.1-of-1 out");
    assert_string_equal(scratch_list("out"), "mine");
    assert_int_equal(tsr_journals_discard(&p.journals, p.tag, NULL), TSR_OK); /* it is not an error if nothing is there */
    end(&p);
}

/* Files that no journal lists stay, whatever their names are and whatever links to them. */
static void test_native_journal__what_is_not_listed_stays(void **state)
{
    (void)state;
    place p;
    char name[128];
    start(&p);
    scratch_write("victim/data", "precious", 8);
    snprintf(name, sizeof name, ".out.tessera-%s", p.tag);
    assert_int_equal(symlink("victim", scratch_path(name)), 0);
    assert_int_equal(tsr_journals_discard(&p.journals, p.tag, NULL), TSR_OK); /* there is no journal */
    tsr_journal_close(begin(&p, 1, text));
    assert_int_equal(tsr_journals_discard(&p.journals, p.tag, NULL), TSR_OK); /* a link is not followed */
    assert_int_equal(scratch_read("victim/data", NULL, 0), 8);
    assert_int_equal(unlink(scratch_path(name)), 0);
    tsr_journal_close(begin(&p, 1, text));
    char inner[160];
    snprintf(inner, sizeof inner, "%s/foreign", name);
    scratch_write(inner, "precious", 8);
    snprintf(inner, sizeof inner, "%s/data", name);
    scratch_write(inner, "ours", 4);
    assert_int_equal(tsr_journals_discard(&p.journals, p.tag, NULL), TSR_OK);
    assert_string_equal(scratch_list(name), "foreign");
    end(&p);
}

/* The journal's name leads to another user's file, by a link of either kind. */
static void test_native_journal__links_are_not_followed(void **state)
{
    (void)state;
    place p;
    char name[128], bytes[16] = "";
    start(&p);
    scratch_write("victim", "precious", 8);
    snprintf(name, sizeof name, ".out.tessera-%s.1-of-3", p.tag);
    for (int hard = 0; hard < 2; hard++) {
        tsr_journal *journal;
        tsr_error err = {0};
        if (hard) assert_int_equal(link(scratch_path("victim"), scratch_path(name)), 0);
        else assert_int_equal(symlink("victim", scratch_path(name)), 0);
        assert_int_equal(
            tsr_journal_begin(&p.journals, p.tag, (tsr_journal_share){1, 3, false}, tsr_str_from(text), &journal, &err),
            TSR_E_EXISTS);
        assert_non_null(strstr(err.message, name));
        list(&p);
        assert_int_equal(p.count, 0);
        assert_int_equal(tsr_journals_discard(&p.journals, p.tag, NULL), TSR_OK);
        assert_int_equal(unlink(scratch_path(name)), 0); /* the link is still there */
    }
    assert_int_equal(scratch_read("victim", bytes, sizeof bytes), 8);
    assert_string_equal(bytes, "precious");
    end(&p);
}

static void test_native_journal__one_journal_can_be_kept(void **state)
{
    (void)state;
    place p;
    start(&p);
    tsr_journal *journal = begin(&p, 1, text);
    tsr_journal_close(begin(&p, 2, text));
    assert_int_equal(tsr_journals_remove(&p.journals, p.tag, tsr_journal_name(journal), NULL), TSR_OK);
    assert_string_equal(scratch_list(""), tsr_journal_name(journal));
    tsr_journal_close(journal);
    end(&p);
}

static ssize_t full_write(const tsr_sys *sys, int fd, const void *data, size_t size, uint64_t offset)
{
    if (offset == 0 && size > 5) return tsr_sys_posix.write_at(&tsr_sys_posix, fd, data, 5, offset);
    (void)sys;
    errno = ENOSPC;
    return -1;
}

/* On a full disk, the journal can be created but not written. */
static void test_native_journal__one_that_cannot_be_written_is_removed(void **state)
{
    (void)state;
    place p;
    tsr_sys full = tsr_sys_posix;
    tsr_journal *journal;
    tsr_error err = {0};
    start(&p);
    full.write_at = full_write;
    p.journals.sys = &full;
    assert_int_equal(
        tsr_journal_begin(&p.journals, p.tag, (tsr_journal_share){1, 3, false}, tsr_str_from(text), &journal, &err),
        TSR_E_IO);
    assert_non_null(strstr(err.message, "No space left on device"));
    assert_string_equal(scratch_list(""), "");
    p.journals.sys = &tsr_sys_posix;
    tsr_journal_close(begin(&p, 1, text));
    end(&p);
}

/* The records may be used only when every file exists with its full size. */
static void test_native_journal__an_output_tells_whether_it_goes_on(void **state)
{
    (void)state;
    const tsr_directory_output_options options = {
        .is_directory = true, .tag = "w0", .begun = TSR_BEGUN_JOINED, .unfinished = TSR_UNFINISHED_KEPT};
    static const uint64_t sizes[] = {0, 3, 8, 9};
    for (size_t i = 0; i < 4; i++) {
        tsr_output *output;
        uint32_t file;
        if (i) scratch_write(".out.tessera-w0/data", "ABCDEFGHI", (size_t)sizes[i]);
        assert_int_equal(tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path("out"), &options, &output, NULL),
                         TSR_OK);
        assert_int_equal(output->create(output, TSR_STR("data"), 8, &file, NULL), TSR_OK);
        assert_int_equal(tsr_directory_output_continues(output), sizes[i] == 8);
        output->close(output);
        assert_int_equal(scratch_read(".out.tessera-w0/data", NULL, 0), 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_journal__records_are_found_again),
        SCRATCH_TEST(test_native_journal__a_process_at_work_is_told_from_a_killed_one),
        SCRATCH_TEST(test_native_journal__leftovers_are_listed_and_removed_by_tag),
        SCRATCH_TEST(test_native_journal__what_is_not_listed_stays),
        SCRATCH_TEST(test_native_journal__links_are_not_followed),
        SCRATCH_TEST(test_native_journal__one_journal_can_be_kept),
        SCRATCH_TEST(test_native_journal__one_that_cannot_be_written_is_removed),
        SCRATCH_TEST(test_native_journal__an_output_tells_whether_it_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
