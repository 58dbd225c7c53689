/* Checkpoints given by their paths: any number of ranks writes the same bytes, completely or not at all.
 * tests/package/test_samples.py, whose programs write with these functions, shows that PyTorch and safetensors read the
 * result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/ranks.h"
#include "support/sample.h"
#include "tessera/native_host.h"
#include "tessera/path.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/try.h"

typedef struct job {
    const char *sample; /* name in samples/checkpoints */
    tsr_container to;
    uint64_t max_shard_size;
    const char *mesh, *placements; /* NULL: convert, without resharding */
    bool overwrite;
    const char *other_sample; /* what the last rank opens instead of `sample` */
    const char *name;         /* name of the destination; NULL: out */
    bool resume, stops;       /* `stops`: the write is cancelled as soon as it has begun */
} job;

/* ---- files ---- */

static const char *place(const char *name)
{
    static char paths[4][600];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", ranks_scratch(), name);
    return path;
}

static void sum_file(const char *path, uint32_t *sum)
{
    char bytes[4096];
    FILE *file = fopen(path, "rb");
    for (size_t size; file && (size = fread(bytes, 1, sizeof bytes, file)) > 0;) *sum = tsr_crc32(NULL, *sum, bytes, size);
    if (file) fclose(file);
}

static int is_listed(const struct dirent *e)
{
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

/* Returns a checksum of the names and contents below `path`, or 0 when nothing is there. Sets *count to the number of
 * files. */
static uint32_t sum_of(const char *path, int *count)
{
    struct dirent **entries;
    struct stat info;
    uint32_t sum = 0;
    char name[900];
    *count = 0;
    if (stat(path, &info) != 0) return 0;
    if (!S_ISDIR(info.st_mode)) {
        sum_file(path, &sum);
        *count = 1;
        return sum;
    }
    *count = scandir(path, &entries, is_listed, alphasort);
    for (int i = 0; i < *count; i++) {
        sum = tsr_crc32(NULL, sum, entries[i]->d_name, strlen(entries[i]->d_name) + 1);
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        sum_file(name, &sum);
        free(entries[i]);
    }
    free(entries);
    return sum;
}

static void remove_all(const char *path)
{
    struct dirent **entries;
    char name[900];
    if (unlink(path) == 0) return;
    const int count = scandir(path, &entries, is_listed, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        unlink(name);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    rmdir(path);
}

/* ---- jobs ---- */

static bool stop(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    (void)ctx, (void)byte_done, (void)byte_total;
    return false;
}

static tsr_status write_with(const job *j, tsr_comm *comm, tsr_checkpoint *checkpoint, const char *to, tsr_arena *arena,
                             tsr_error *err)
{
    tsr_convert_options convert = {.to = j->to, .max_shard_size = j->max_shard_size};
    const tsr_progress stopping = {.step = stop};
    tsr_path_write_options options = {.convert = &convert, .overwrite = j->overwrite, .comm = comm, .resume = j->resume};
    tsr_conversion done;
    if (j->stops) convert.progress = &stopping;
    tsr_target target;
    tsr_plan *plan = NULL;
    if (j->mesh) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
        TSR_TRY(tsr_target_parse(tsr_str_from(j->mesh), tsr_str_from(j->placements), arena, &target, err));
        TSR_TRY(tsr_plan_new(catalog, &target, NULL, tsr_checkpoint_host(checkpoint), &plan, err));
        convert.plan = plan;
    }
    const tsr_status status = tsr_path_write(checkpoint, to, &options, arena, &done, err);
    tsr_plan_free(plan);
    if (status == TSR_OK && done.row_count != tsr_checkpoint_catalog(checkpoint)->entry_count)
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "the result lists %u entries", (unsigned)done.row_count);
    return status;
}

static tsr_status carry_out(const job *j, tsr_comm *comm, const char *to, tsr_error *err)
{
    char path[700];
    tsr_native_host native;
    tsr_checkpoint *checkpoint;
    const bool other = j->other_sample && comm && comm->rank == comm->size - 1;
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", sample_root(), other ? j->other_sample : j->sample);
    tsr_native_host_open(&native, 1);
    tsr_arena *arena = tsr_arena_new(native.host.allocator, 0, err);
    tsr_status status = tsr_path_open(path, &native.host, NULL, &checkpoint, err);
    if (comm) status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = write_with(j, comm, checkpoint, to, arena, err);
    tsr_path_close(checkpoint);
    tsr_arena_free(arena);
    tsr_native_host_close(&native);
    return status;
}

static tsr_status write_out(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    char to[700];
    snprintf(to, sizeof to, "%s/%s", ranks_scratch(), j->name ? j->name : "out");
    return carry_out(j, comm, to, err);
}

/* One process writes first, then all ranks, who must leave the same files. */
static tsr_status write_twice(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    char alone[700], shared[700];
    int files, files_shared;
    snprintf(alone, sizeof alone, "%s/alone", ranks_scratch());
    snprintf(shared, sizeof shared, "%s/shared", ranks_scratch());
    tsr_status status = comm->rank == 0 ? carry_out(j, NULL, alone, err) : TSR_OK;
    TSR_TRY(tsr_comm_agree(comm, status, err));
    TSR_TRY(carry_out(j, comm, shared, err));
    if (comm->rank == 0) {
        RANKS_NEED(sum_of(alone, &files) == sum_of(shared, &files_shared) && files && files == files_shared);
        remove_all(alone);
        remove_all(shared);
        struct dirent **left;
        const int count = scandir(ranks_scratch(), &left, is_listed, alphasort);
        for (int i = 0; i < count; i++) free(left[i]);
        free(left);
        RANKS_NEED(count == 0); /* no journal and no temporary name is left */
    }
    return tsr_comm_barrier(comm, err);
}

static void test_native_path__any_number_of_ranks_writes_the_same_files(void **state)
{
    (void)state;
    const job jobs[] = {
        {.sample = "dcp_fsdp2", .to = TSR_TO_TORCH},
        {.sample = "dcp_fsdp2", .to = TSR_TO_DCP},
        {.sample = "safetensors_index", .to = TSR_TO_SAFETENSORS, .max_shard_size = 2000},
        {.sample = "safetensors_model", .to = TSR_TO_SAFETENSORS},
        {.sample = "torch_ranks_fsdp2", .to = TSR_TO_DCP},
        {.sample = "dcp_fsdp2", .to = TSR_TO_DCP, .mesh = "dp=3", .placements = "shard(0)"},
        {.sample = "dcp_fsdp2", .to = TSR_TO_TORCH, .mesh = "dp=2,tp=2", .placements = "replicate,shard(1)"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) ranks_run(write_twice, (void *)(uintptr_t)&jobs[i]);
}

/* Rank 0 looks at the destination while the others wait. On the other ranks `sum` and `files` are 0. */
static tsr_status look(tsr_comm *comm, const char *path, uint32_t *sum, int *files, tsr_error *err)
{
    *sum = 0;
    *files = 0;
    if (comm->rank == 0) *sum = sum_of(path, files);
    return tsr_comm_barrier(comm, err);
}

static tsr_status replace(void *arg, tsr_comm *comm, tsr_error *err)
{
    char path[700];
    const job first = {.sample = "dcp_fsdp2", .to = TSR_TO_DCP}, other = {.sample = "dcp_small", .to = TSR_TO_DCP};
    job again = first, replacing = other;
    tsr_error refused = {0};
    uint32_t before, after;
    int files, files_after;
    (void)arg;
    snprintf(path, sizeof path, "%s/out", ranks_scratch());
    again.overwrite = replacing.overwrite = true;
    TSR_TRY(carry_out(&first, comm, path, err));
    TSR_TRY(look(comm, path, &before, &files, err));
    RANKS_NEED(carry_out(&other, comm, path, &refused) == TSR_E_EXISTS && strstr(refused.message, "exists"));
    TSR_TRY(look(comm, path, &after, &files_after, err));
    RANKS_NEED(after == before);
    TSR_TRY(carry_out(&replacing, comm, path, err));
    TSR_TRY(look(comm, path, &after, &files_after, err));
    RANKS_NEED(comm->rank != 0 || after != before);
    TSR_TRY(carry_out(&again, comm, path, err)); /* writes the first checkpoint again, with the names of another
                                                  * generation */
    TSR_TRY(look(comm, path, &after, &files_after, err));
    RANKS_NEED(files_after == files); /* nothing of the checkpoint in between is left */
    if (comm->rank == 0) remove_all(path);
    return tsr_comm_barrier(comm, err);
}

/* A path that ends in '/' is a directory, and so is an output of one file; a plan or a map of files is one in any case. */
static tsr_status write_below(void *arg, tsr_comm *comm, tsr_error *err)
{
    static const struct {
        tsr_container to;
        const char *file;
    } cases[] = {{TSR_TO_SAFETENSORS, "model.safetensors"}, {TSR_TO_TORCH, "pytorch_model.bin"}};
    (void)arg;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const job j = {.sample = "safetensors_model", .to = cases[i].to};
        char single[700], slash[700], below[700];
        int files, below_files;
        snprintf(single, sizeof single, "%s/single", ranks_scratch());
        snprintf(slash, sizeof slash, "%s/below/", ranks_scratch());
        snprintf(below, sizeof below, "%s%s", slash, cases[i].file);
        TSR_TRY(carry_out(&j, comm, single, err));
        TSR_TRY(carry_out(&j, comm, slash, err));
        if (comm->rank == 0) {
            RANKS_NEED(access(below, F_OK) == 0 && access(single, F_OK) == 0);
            RANKS_NEED(sum_of(slash, &below_files) && below_files == 1 && sum_of(below, &files) == sum_of(single, &files));
            remove_all(single);
            remove_all(slash);
        }
        TSR_TRY(tsr_comm_barrier(comm, err));
    }
    return TSR_OK;
}

static void test_native_path__a_path_with_a_slash_at_its_end_is_a_directory(void **state)
{
    (void)state;
    ranks_run(write_below, NULL);
}

static void test_native_path__an_existing_destination_stays_unless_it_is_overwritten(void **state)
{
    (void)state;
    ranks_run(replace, NULL);
}

static void test_native_path__ranks_that_opened_different_checkpoints_are_refused(void **state)
{
    (void)state;
    job j = {.sample = "dcp_fsdp2", .other_sample = "dcp_small", .to = TSR_TO_SAFETENSORS, .name = "differ"};
    tsr_error err = {0};
    if (ranks_count(3) < 2) return; /* a single process has no other rank to differ from */
    assert_int_equal(ranks_try(3, write_out, &j, &err), TSR_E_USAGE);
    assert_non_null(strstr(err.message, "the source as the ranks see it"));
    assert_int_not_equal(access(place("differ"), F_OK), 0);
}

static tsr_status fail_and_leave_nothing(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_error why = {0};
    struct dirent **left;
    RANKS_NEED(write_out(arg, comm, &why) != TSR_OK && why.message[0]);
    const int count = scandir(ranks_scratch(), &left, is_listed, alphasort);
    for (int k = 0; k < count; k++) free(left[k]);
    free(left);
    RANKS_NEED(count == 0);
    return TSR_OK;
}

static void test_native_path__a_failed_write_leaves_nothing(void **state)
{
    (void)state;
    const job jobs[] = {
        {.sample = "dcp_objects", .to = TSR_TO_SAFETENSORS, .name = "fails"}, /* safetensors cannot hold objects */
        {.sample = "dcp_fsdp2", .to = TSR_TO_DCP, .name = "absent/fails"},    /* no such directory */
        {.sample = "broken_dcp_byte_flipped", .to = TSR_TO_DCP, .name = "fails", .mesh = "dp=2", .placements = "shard(0)"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        tsr_error err = {0};
        if (ranks_try(3, fail_and_leave_nothing, (void *)(uintptr_t)&jobs[i], &err) != TSR_OK) fail_msg("%s", err.message);
    }
}

/* The inode of the only file of the scratch directory that is not published yet and is not a journal, or 0. */
static ino_t unpublished(int *count)
{
    struct dirent **names;
    ino_t found = 0;
    *count = scandir(ranks_scratch(), &names, is_listed, alphasort);
    for (int i = 0; i < *count; i++) {
        const char *tag = strstr(names[i]->d_name, ".tessera-w");
        if (tag && !strchr(tag + 1, '.')) found = names[i]->d_ino;
        free(names[i]);
    }
    free(names);
    return found;
}

/* One process writes by itself. */
static tsr_status interrupt_and_resume(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    if (comm->rank != 0) return TSR_OK;
    const job whole = {.sample = "safetensors_model", .to = TSR_TO_SAFETENSORS, .resume = true};
    job stopped = whole, other = whole, again = whole;
    struct stat info;
    tsr_error cancelled = {0}, changed = {0}, exists = {0};
    int count, files;
    stopped.stops = true;
    other.to = TSR_TO_TORCH;
    again.resume = false;
    RANKS_NEED(carry_out(&whole, NULL, place("fresh"), NULL) == TSR_OK);
    const uint32_t fresh = sum_of(place("fresh"), &files);
    RANKS_NEED(unlink(place("fresh")) == 0);
    RANKS_NEED(carry_out(&stopped, NULL, place("resumed"), &cancelled) == TSR_E_CANCELLED);
    const ino_t begun = unpublished(&count);
    RANKS_NEED(begun && count == 2); /* and its journal */
    RANKS_NEED(carry_out(&other, NULL, place("resumed"), &changed) == TSR_E_CHANGED);
    RANKS_NEED(strstr(changed.message, "cannot resume"));
    RANKS_NEED(carry_out(&whole, NULL, place("resumed"), NULL) == TSR_OK);
    RANKS_NEED(stat(place("resumed"), &info) == 0);
    RANKS_NEED(info.st_ino == begun);
    RANKS_NEED(sum_of(place("resumed"), &files) == fresh);
    RANKS_NEED(!unpublished(&count) && count == 1);
    RANKS_NEED(carry_out(&whole, NULL, place("resumed"), NULL) == TSR_OK); /* it is complete */
    RANKS_NEED(carry_out(&again, NULL, place("resumed"), &exists) == TSR_E_EXISTS);
    RANKS_NEED(unlink(place("resumed")) == 0);
    return TSR_OK;
}

static void test_native_path__an_interrupted_write_is_resumed(void **state)
{
    (void)state;
    tsr_error err = {0};
    if (ranks_try(1, interrupt_and_resume, NULL, &err) != TSR_OK) fail_msg("%s", err.message);
}

static void test_native_path__what_is_not_there_is_named(void **state)
{
    (void)state;
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_checkpoint *checkpoint = (tsr_checkpoint *)&host;
    tsr_error err = {0};
    assert_int_equal(tsr_path_open(place("absent"), &host, NULL, &checkpoint, &err), TSR_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "absent"));
    assert_null(checkpoint);
    tsr_path_close(NULL);
}

/* A pickled value that is written again must be the same value: dtypes, shapes, nesting and numbers. */
static tsr_status write_tree_again(void *arg, tsr_comm *comm, tsr_error *err)
{
    char from[700], to[700];
    tsr_path_tree tree, again;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error refused = {0};
    (void)arg;
    snprintf(from, sizeof from, "%s/samples/checkpoints/torch_train_state/train.pt", sample_root());
    snprintf(to, sizeof to, "%s/tree%u.pt", ranks_scratch(), (unsigned)comm->rank);
    if (!arena) return TSR_E_NOMEM;
    TSR_TRY(tsr_path_tree_open(from, &host, arena, &tree, err));
    TSR_TRY(tsr_path_write_tree(tree.checkpoint, tree.root, to, err));
    TSR_TRY(tsr_path_tree_open(to, &host, arena, &again, err));
    RANKS_NEED(tsr_value_pairs(again.root) > 0);
    RANKS_NEED(tsr_value_match(tree.root, again.root, 64, 1000000) == TSR_SAME);
    RANKS_NEED(tsr_path_write_tree(tree.checkpoint, tree.root, to, &refused) == TSR_E_EXISTS);
    tsr_path_tree_close(&again);
    tsr_path_tree_close(&tree);
    tsr_path_tree_close(&tree);
    RANKS_NEED(tsr_path_tree_open(sample_root(), &host, arena, &tree, &refused) != TSR_OK && !tree.root);
    tsr_path_tree_close(&tree);
    tsr_arena_free(arena);
    unlink(to);
    return TSR_OK;
}

static void test_native_path__a_tree_is_written_as_it_was_read(void **state)
{
    (void)state;
    ranks_run(write_tree_again, NULL);
}

static void test_native_path__a_document_is_loaded_whole(void **state)
{
    (void)state;
    char path[700];
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, NULL);
    tsr_error err = {0};
    tsr_str text;
    const tsr_str want = sample_read("dcp_small.expect.json");
    snprintf(path, sizeof path, "%s/samples/checkpoints/dcp_small.expect.json", sample_root());
    assert_int_equal(tsr_path_load(path, &host, arena, &text, &err), TSR_OK);
    assert_true(want.size > 100 && tsr_str_equal(text, want));
    host.limits.metadata_bytes = want.size - 1;
    assert_int_equal(tsr_path_load(path, &host, arena, &text, &err), TSR_E_LIMIT);
    err = (tsr_error){0};
    snprintf(path, sizeof path, "%s/samples/checkpoints/dcp_small", sample_root());
    assert_int_equal(tsr_path_load(path, &host, arena, &text, &err), TSR_E_USAGE);
    assert_non_null(strstr(err.message, "is a directory"));
    free((char *)(uintptr_t)want.data);
    tsr_arena_free(arena);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_path__any_number_of_ranks_writes_the_same_files),
        cmocka_unit_test(test_native_path__a_path_with_a_slash_at_its_end_is_a_directory),
        cmocka_unit_test(test_native_path__an_existing_destination_stays_unless_it_is_overwritten),
        cmocka_unit_test(test_native_path__ranks_that_opened_different_checkpoints_are_refused),
        cmocka_unit_test(test_native_path__a_failed_write_leaves_nothing),
        cmocka_unit_test(test_native_path__an_interrupted_write_is_resumed),
        cmocka_unit_test(test_native_path__a_tree_is_written_as_it_was_read),
        cmocka_unit_test(test_native_path__a_document_is_loaded_whole),
        cmocka_unit_test(test_native_path__what_is_not_there_is_named),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
