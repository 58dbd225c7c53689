/* Data files of real DCP samples without their `.metadata`. With another checkpoint of the job (here the same one), every
 * item gets its name and offsets back exactly. Without one, with one of another job, and with damaged files, the test checks
 * that the missing information is reported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/faults.h"
#include "support/sample.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/salvage.h"

typedef struct salvaging {
    sample files, whole; /* without .metadata, and with it */
    tsr_host host;
    tsr_checkpoint *like;
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_salvage out;
    tsr_error err;
} salvaging;

static void begin(salvaging *s, const char *name, uint32_t files)
{
    *s = (salvaging){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    sample_add_file(&s->whole, name, ".metadata");
    for (uint32_t f = 0; f < files; f++) {
        char file[32];
        snprintf(file, sizeof file, "__%u_0.distcp", (unsigned)f);
        sample_add_file(&s->files, name, file);
        sample_add_file(&s->whole, name, file);
    }
    sample_add(&s->files, "sub/__0_0.distcp",
               (tsr_str){calloc(1, 1), 0}); /* not in the root, so not a data file of this checkpoint */
    assert_int_equal(sample_open(&s->whole, s->host.allocator), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(s->whole.store, &s->host, NULL, &s->like, NULL), TSR_OK);
    s->arena = tsr_arena_new(s->host.allocator, 0, NULL);
    s->findings = tsr_findings_new(s->host.allocator, 0, NULL);
}

static void end(salvaging *s)
{
    tsr_findings_free(s->findings);
    tsr_arena_free(s->arena);
    tsr_checkpoint_close(s->like);
    sample_close(&s->files);
    sample_close(&s->whole);
}

static tsr_status bear(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    tsr_salvage out;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_findings *findings = arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    const tsr_status status =
        findings ? tsr_salvage_dcp(store, host, &(tsr_salvage_options){.like = ctx, .findings = findings}, arena, &out, err)
                 : TSR_E_NOMEM;
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    return status;
}

static tsr_status salvage(salvaging *s, const tsr_catalog *like, bool bearing)
{
    if (!s->files.store) assert_int_equal(sample_open(&s->files, s->host.allocator), TSR_OK);
    const tsr_status status = tsr_salvage_dcp(
        s->files.store, &s->host, &(tsr_salvage_options){.like = like, .findings = s->findings}, s->arena, &s->out, &s->err);
    if (bearing) assert_int_equal(must_bear_failures(bear, (void *)(uintptr_t)like, s->files.store, &s->host), status);
    return status;
}

static size_t count_of(const salvaging *s, const char *rule)
{
    size_t count = 0;
    for (size_t i = 0; i < tsr_findings_count(s->findings); i++)
        count += strcmp(tsr_findings_at(s->findings, i)->rule->id, rule) == 0;
    return count;
}

static const tsr_entry *entry_named(const tsr_catalog *catalog, tsr_str fqn)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (tsr_str_equal(catalog->entries[i].fqn, fqn)) return &catalog->entries[i];
    fail_msg("no '%.*s'", TSR_STR_ARG(fqn));
    return NULL;
}

static bool same_box(const tsr_dcp_new_item *item, const tsr_chunk *chunk, uint32_t ndim)
{
    const size_t size = ndim * sizeof *chunk->offsets;
    return size == 0 || (memcmp(item->offsets, chunk->offsets, size) == 0 && memcmp(item->sizes, chunk->sizes, size) == 0);
}

static void assert_as_it_was(const salvaging *s)
{
    const tsr_catalog *like = tsr_checkpoint_catalog(s->like);
    uint64_t items = 0;
    for (uint64_t e = 0; e < s->out.entry_count; e++) {
        const tsr_dcp_new_entry *got = &s->out.entries[e];
        const tsr_entry *want = entry_named(like, got->fqn);
        assert_int_equal(got->tensor, want->kind == TSR_ENTRY_TENSOR);
        assert_int_equal(got->item_count, want->chunk_count);
        for (uint64_t i = 0; i < got->item_count; i++, items++) {
            bool found = false;
            for (uint64_t c = 0; c < want->chunk_count && !found; c++)
                found = got->items[i].byte_offset == want->chunks[c].byte_offset &&
                        got->items[i].byte_length == want->chunks[c].byte_length &&
                        tsr_str_equal(got->items[i].file, s->whole.store->files[want->chunks[c].file].name) &&
                        same_box(&got->items[i], &want->chunks[c], want->ndim);
            if (!found) fail_msg("'%.*s': item %d is elsewhere", TSR_STR_ARG(got->fqn), (int)i);
        }
    }
    assert_int_equal(items, s->out.items);
}

static const struct {
    const char *name;
    uint32_t files;
} samples[] = {{"dcp_fsdp2", 4}, {"dcp_hsdp", 4}, {"dcp_objects", 1}};

static void test_formats_salvage__names_and_places_come_from_a_checkpoint_of_the_job(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        salvaging s;
        begin(&s, samples[i].name, samples[i].files);
        if (salvage(&s, tsr_checkpoint_catalog(s.like), i == 1) != TSR_OK) fail_msg("%s", s.err.message);
        assert_int_equal(s.out.files, samples[i].files);
        assert_true(s.out.items > 0 && s.out.unnamed == 0 && s.out.lost == 0);
        assert_int_equal(tsr_findings_count(s.findings), 0);
        assert_as_it_was(&s);
        end(&s);
    }
}

static void test_formats_salvage__items_without_names_are_told_once(void **state)
{
    (void)state;
    salvaging s;
    begin(&s, "dcp_hsdp", 4);
    assert_int_equal(salvage(&s, NULL, true), TSR_OK);
    assert_true(s.out.items > 0 && s.out.unnamed == s.out.items && s.out.entry_count == s.out.items);
    assert_int_equal(count_of(&s, "repair/unnamed"), 1);
    assert_true(tsr_str_equal(s.out.entries[0].fqn, TSR_STR("__0_0.distcp#0")));
    assert_non_null(strstr(tsr_findings_at(s.findings, 0)->message.data, "a checkpoint of the same job"));
    end(&s);
}

/* Without the last byte of the last file, its last item is incomplete, together with the directory at its end. */
static void test_formats_salvage__a_cut_file_loses_its_last_item(void **state)
{
    (void)state;
    salvaging s;
    begin(&s, "dcp_hsdp", 4);
    s.files.files[3].content.size--;
    assert_int_equal(salvage(&s, tsr_checkpoint_catalog(s.like), true), TSR_OK);
    assert_int_equal(s.out.lost, 1);
    assert_int_equal(count_of(&s, "repair/no-item"), 1);
    assert_int_equal(count_of(&s, "repair/lost"), 1);
    end(&s);
}

static void test_formats_salvage__a_missing_file_loses_its_items(void **state)
{
    (void)state;
    salvaging s;
    begin(&s, "dcp_hsdp", 4);
    s.files.files[1].name.size--; /* "__1_0.distc" */
    assert_int_equal(salvage(&s, tsr_checkpoint_catalog(s.like), true), TSR_OK);
    assert_int_equal(s.out.files, 3);
    assert_true(s.out.lost > 0 && count_of(&s, "repair/lost") == s.out.lost);
    end(&s);
}

static void test_formats_salvage__files_of_another_save_are_unlike(void **state)
{
    (void)state;
    salvaging s, other;
    begin(&s, "dcp_fsdp2", 4);
    begin(&other, "dcp_hsdp", 4);
    assert_int_equal(salvage(&s, tsr_checkpoint_catalog(other.like), true), TSR_OK);
    assert_true(count_of(&s, "repair/unlike") > 0 && s.out.unnamed > 0);
    end(&other);
    end(&s);
}

/* `times` end records, each after `padding` bytes. */
typedef struct false_end {
    size_t padding, times;
    uint16_t count;
    uint32_t size, from;
    uint16_t comment;
} false_end;

static const false_end false_ends[] = {
    {0, 0, 0, 0, 0, 0},           /* three bytes, too few for a record */
    {0, 1, 0, 0, 0, 0},           /* no members */
    {0, 1, 1, 0, 0, 5},           /* a comment */
    {0, 1, 1, 0, 0, 0},           /* where an empty archive would end */
    {76, 1, 1, 0, 0, 0},          /* the same, with room for zip64's records before it */
    {100, 1, 1, 60, 40, 0},       /* the sizes add up */
    {100, 1, 1, 60, 41, 0},       /* the sizes do not add up */
    {76, 1, UINT16_MAX, 1, 1, 0}, /* the sizes are in zip64's records, for which there is no room */
    {77, 1, UINT16_MAX, 1, 1, 0}, /* the same, with room for them */
    {100, 1, 1, UINT32_MAX, 0, 0},
    {100, 1, 1, 0, UINT32_MAX, 0},
    {100, 70, UINT16_MAX, 0, 0, 0}, /* more than are tried */
    {(1 << 20) + 7, 1, 1, 0, 0, 0}, /* further away than is read at a time */
    {(1 << 18) - 2, 3, UINT16_MAX, 0, 0, 0},
};

static tsr_str with_false_ends(tsr_str sound, const false_end *f)
{
    const size_t one = f->padding + 22;
    char *bytes = malloc(sound.size + f->times * one + 3), *at = bytes + sound.size;
    memcpy(bytes, sound.data, sound.size);
    for (size_t i = 0; i < f->times; i++, at += one) {
        const uint16_t words[] = {0, 0, f->count, f->count};
        memset(at, 'P', f->padding);
        memcpy(at + f->padding, "PK\5\6", 4);
        memcpy(at + f->padding + 4, words, 8);
        memcpy(at + f->padding + 12, &f->size, 4);
        memcpy(at + f->padding + 16, &f->from, 4);
        memcpy(at + f->padding + 20, &f->comment, 2);
    }
    memcpy(at, "PK\5", 3);
    free((char *)(uintptr_t)sound.data);
    return (tsr_str){bytes, (size_t)(at - bytes) + 3};
}

static void test_formats_salvage__what_looks_like_an_end_is_no_item(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof false_ends / sizeof *false_ends; i++) {
        salvaging s;
        begin(&s, "dcp_hsdp", 4);
        const size_t sound = s.files.files[0].content.size;
        s.files.files[0].content = with_false_ends(s.files.files[0].content, &false_ends[i]);
        assert_int_equal(salvage(&s, tsr_checkpoint_catalog(s.like), i == 3), TSR_OK);
        if (s.out.unnamed || s.out.lost || tsr_findings_count(s.findings) != 1) fail_msg("row %zu", i);
        const tsr_finding *finding = tsr_findings_at(s.findings, 0);
        assert_string_equal(finding->rule->id, "repair/no-item");
        assert_int_equal(finding->byte_offset, sound);
        assert_as_it_was(&s);
        end(&s);
    }
}

/* The checkpoint itself, except for one property of one of its tensors. */
static void test_formats_salvage__an_item_of_another_kind_is_unlike(void **state)
{
    (void)state;
    for (int change = 0; change < 3; change++) {
        salvaging s;
        begin(&s, "dcp_hsdp", 4);
        tsr_catalog like = *tsr_checkpoint_catalog(s.like);
        tsr_entry *entries = tsr_arena_array(s.arena, like.entry_count, sizeof *entries, NULL);
        memcpy(entries, like.entries, like.entry_count * sizeof *entries);
        like.entries = entries;
        while (entries->kind != TSR_ENTRY_TENSOR || entries->ndim == 0) entries++;
        if (change == 0) entries->dtype = TSR_BOOL;
        else if (change == 1) entries->kind = TSR_ENTRY_OBJECT;
        else entries->ndim--;
        assert_int_equal(salvage(&s, &like, false), TSR_OK);
        assert_true(count_of(&s, "repair/unlike") > 0 && s.out.unnamed > 0);
        end(&s);
    }
}

static bool stop(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    uint64_t *seen = ctx;
    assert_true(byte_done >= *seen && byte_done <= byte_total);
    *seen = byte_done;
    return byte_done < byte_total / 2;
}

static void test_formats_salvage__can_be_stopped_and_needs_a_data_file(void **state)
{
    (void)state;
    salvaging s;
    uint64_t seen = 0;
    const tsr_salvage_progress progress = {stop, &seen};
    begin(&s, "dcp_hsdp", 4);
    assert_int_equal(sample_open(&s.files, s.host.allocator), TSR_OK);
    assert_int_equal(tsr_salvage_dcp(s.files.store, &s.host,
                                     &(tsr_salvage_options){.findings = s.findings, .progress = &progress}, s.arena, &s.out,
                                     &s.err),
                     TSR_E_CANCELLED);
    assert_true(seen > 0);
    end(&s);
    begin(&s, "dcp_hsdp", 0);
    assert_int_equal(salvage(&s, NULL, false), TSR_E_NOT_FOUND);
    assert_non_null(strstr(s.err.message, "no .distcp file"));
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_salvage__names_and_places_come_from_a_checkpoint_of_the_job),
        cmocka_unit_test(test_formats_salvage__items_without_names_are_told_once),
        cmocka_unit_test(test_formats_salvage__a_cut_file_loses_its_last_item),
        cmocka_unit_test(test_formats_salvage__a_missing_file_loses_its_items),
        cmocka_unit_test(test_formats_salvage__files_of_another_save_are_unlike),
        cmocka_unit_test(test_formats_salvage__an_item_of_another_kind_is_unlike),
        cmocka_unit_test(test_formats_salvage__what_looks_like_an_end_is_no_item),
        cmocka_unit_test(test_formats_salvage__can_be_stopped_and_needs_a_data_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
