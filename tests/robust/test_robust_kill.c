/* R7: runs `tessera convert`, `reshard` and `exec`, and ends the process before and after every call that changes the file
 * system, by SIGKILL or by a simulated power loss. Then the destination must be absent, or hold the old or the new
 * checkpoint, never a mixture, and the source must be unchanged. A run with --resume (for exec: the same command again) must
 * then produce exactly the bytes of an undisturbed run, and leave nothing else. Units of work are made small
 * (CMakeLists.txt), so that journals have several entries.
 *
 * The ordinary run tests an even selection of the points; with TSR_TEST_FULL=1 all of them are tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/program/session.h"
#include "robust/crash_sys.h"
#include "support/full_counts.h"

static char scratch[256];

/* ---- files ---- */

static const char *at(const char *name)
{
    static char paths[8][512];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, 512, "%s/%s", scratch, name);
    return path;
}

static void shell(const char *format, const char *a, const char *b)
{
    char command[1200];
    snprintf(command, sizeof command, format, a, b);
    if (system(command) != 0) fail_msg("%s", command);
}

static bool exists(const char *name)
{
    struct stat info;
    return lstat(at(name), &info) == 0;
}

static bool same(const char *a, const char *b)
{
    char command[1200];
    snprintf(command, sizeof command, "diff -rq '%s' '%s' >/dev/null 2>&1", at(a), at(b));
    return system(command) == 0;
}

/* Fails unless the names in the destination's directory, sorted, are `want`. */
static void expect_only(const char *want, const char *when)
{
    struct dirent **items;
    char names[4096] = "";
    const int count = scandir(at("dest"), &items, NULL, alphasort);
    assert_true(count >= 0);
    for (int i = 0; i < count; i++) {
        if (strcmp(items[i]->d_name, ".") != 0 && strcmp(items[i]->d_name, "..") != 0)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? " " : "", items[i]->d_name);
        free(items[i]);
    }
    free(items);
    if (strcmp(names, want) != 0) fail_msg("%s: left are '%s', not '%s'", when, names, want);
}

/* Writes a safetensors file of float32 tensors of different sizes, with values drawn from `seed`. Every second name begins
 * with `prefix`, so that neither of two sources has all names of the other. */
static void write_source(const char *name, unsigned seed, const char *prefix)
{
    static const unsigned rows[] = {40, 3, 1, 0, 25, 7};
    char header[2048] = "{";
    unsigned byte_at = 0;
    for (int i = 0; i < 6; i++) {
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"%s%d\":{\"dtype\":\"F32\",\"shape\":[%u,33],\"data_offsets\":[%u,%u]}", i ? "," : "",
                 i % 2 ? prefix : "t", i, rows[i], byte_at, byte_at + rows[i] * 132);
        byte_at += rows[i] * 132;
    }
    strcat(header, "}");
    while (strlen(header) % 8) strcat(header, " ");
    FILE *file = fopen(at(name), "wb");
    const uint64_t size = strlen(header);
    fwrite(&size, 8, 1, file);
    fwrite(header, 1, size, file);
    for (unsigned i = 0; i < byte_at; i++) fputc((int)((seed = seed * 1664525u + 1013904223u) >> 20 & 0x3f), file);
    fclose(file);
}

/* ---- the program ---- */

typedef struct command {
    const char *words[16];
} command;

/* Runs the program in a process of its own. Returns its exit status, or minus the number of the signal that ended it. */
static int run(const command *c, const char *extra, crash_kind kind, unsigned long point, bool after, unsigned long *calls)
{
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        char *argv[24] = {"tessera"};
        int argc = 1;
        for (int i = 0; c->words[i]; i++)
            argv[argc++] = (char *)(strncmp(c->words[i], "@", 1) == 0 ? at(c->words[i] + 1) : c->words[i]);
        if (extra) argv[argc++] = (char *)extra;
        int log = open(at("log"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(log, STDERR_FILENO);
        dup2(log, STDOUT_FILENO);
        crash_arm(kind, point, after, (unsigned)point * 2 + after, at("stash"));
        const int status = cli_main(argc, argv, NULL, 0);
        const unsigned long made = crash_calls();
        const ssize_t written = write(pipe_ends[1], &made, sizeof made);
        fflush(NULL);
        _exit(written == sizeof made ? status : 99);
    }
    int status;
    close(pipe_ends[1]);
    unsigned long made = 0;
    if (read(pipe_ends[0], &made, sizeof made) != sizeof made) made = 0;
    if (calls) *calls = made;
    close(pipe_ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void run_well(const command *c, const char *extra, const char *when)
{
    const int status = run(c, extra, CRASH_NEVER, 0, false, NULL);
    if (status != 0) {
        char text[600] = "";
        FILE *log = fopen(at("log"), "rb");
        const size_t size = log ? fread(text, 1, sizeof text - 1, log) : 0;
        if (log) fclose(log);
        text[size] = '\0';
        fail_msg("%s: ended with %d: %s", when, status, text);
    }
}

/* ---- cases ---- */

typedef struct job {
    const char *name;
    command work;    /* creates dest/NAME */
    command before;  /* creates the old dest/NAME; with NULL words there is no old checkpoint */
    bool goes_on;    /* exec: continues without --resume */
    bool one_rename; /* the destination is replaced in one step, so it is the old or the new one, byte for byte */
    bool notes;      /* the old checkpoint's directory holds a file that is not part of it */
    bool stays;      /* nothing replaces the checkpoint once it is published */
} job;

static const job jobs[] = {
    {"m.safetensors",
     {{"convert", "@source", "@dest/m.safetensors", "-q", "--threads", "1"}},
     {{NULL}},
     false,
     true,
     false,
     false},
    {"m.pt", {{"convert", "@source", "@dest/m.pt", "-q", "--threads", "1"}}, {{NULL}}, false, true, false, false},
    {"d", {{"convert", "@source", "@dest/d", "--to", "dcp", "-q", "--threads", "1"}}, {{NULL}}, false, true, false, false},
    {"r",
     {{"reshard", "@source", "@dest/r", "--mesh", "dp=3", "--placements", "shard(0)", "--to", "torch", "-q", "--threads",
       "1"}},
     {{NULL}},
     false,
     true,
     false,
     false},
    {"s",
     {{"convert", "@source", "@dest/s", "--to", "safetensors", "--max-shard-size", "6KB", "-q", "--threads", "1"}},
     {{NULL}},
     false,
     true,
     false,
     false},
    {"u",
     {{"convert", "@zero", "@dest/u", "--to", "deepspeed-universal", "-q", "--threads", "1"}},
     {{NULL}},
     false,
     true,
     false,
     false},
    {"e", {{"exec", "@plan.json", "@dest/e", "-q", "--threads", "1"}}, {{NULL}}, true, true, false, false},
    /* overwriting */
    {"m.safetensors",
     {{"convert", "@source", "@dest/m.safetensors", "-q", "--overwrite", "--threads", "1"}},
     {{"convert", "@old", "@dest/m.safetensors", "-q"}},
     false,
     true,
     false,
     false},
    {"d",
     {{"reshard", "@source", "@dest/d", "--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp", "-q", "--overwrite",
       "--threads", "1"}},
     {{"convert", "@old", "@dest/d", "--to", "dcp", "-q"}},
     false,
     false,
     false,
     false},
    {"s",
     {{"convert", "@source", "@dest/s", "--to", "safetensors", "--max-shard-size", "6KB", "-q", "--overwrite", "--threads",
       "1"}},
     {{"convert", "@old", "@dest/s", "--to", "safetensors", "--max-shard-size", "9KB", "-q"}},
     false,
     false,
     false,
     false},
    {"r",
     {{"reshard", "@source", "@dest/r", "--mesh", "dp=3", "--placements", "shard(0)", "--to", "torch", "-q", "--overwrite",
       "--threads", "1"}},
     {{"reshard", "@old", "@dest/r", "--mesh", "dp=4", "--placements", "shard(0)", "--to", "torch", "-q"}},
     false,
     true,
     false,
     false},
};
#define JOBS (sizeof jobs / sizeof *jobs)

static const char shards[] =
    "{\"schema\":\"tessera.shards/1\",\"ranks\":\"shard.{tp}.pt\",\"rules\":[{\"match\":\"**\",\"replicate\":true}]}";

static int setup(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/tessera-kill-XXXXXX", parent && *parent ? parent : "/tmp");
    assert_non_null(mkdtemp(scratch));
    write_source("source", 1, "renamed");
    write_source("old", 2, "t");
    shell("cp -p '%s' '%s'", at("source"), at("source-kept"));
    shell("cp -r '%s' '%s'", GOLDEN "/deepspeed/zero1_bf16", at("zero"));
    shell("cp -r '%s' '%s'", GOLDEN "/deepspeed/zero2_fp16", at("zero-old"));
    shell("cp -r '%s' '%s'", GOLDEN "/megatron/layers", at("megatron"));
    shell("cp -r '%s' '%s'", GOLDEN "/megatron/fragments", at("megatron-old"));
    shell("printf '%%s' '%s' > '%s'", shards, at("shards.json"));
    shell("mkdir '%s' '%s'", at("dest"), at("stash"));
    const command plan = {{"plan", "@source", "--mesh", "dp=4", "--placements", "shard(0)", "--to", "dcp", "--json"}};
    run_well(&plan, NULL, "plan");
    shell("mv '%s' '%s'", at("log"), at("plan.json"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    shell("rm -rf '%s'%s", scratch, "");
    return 0;
}

static void empty(const char *name)
{
    shell("rm -rf '%s' && mkdir '%s'", at(name), at(name));
}

/* Puts the destination back to the state before the job. */
static void restore(const job *j)
{
    empty("dest");
    empty("stash");
    if (j->before.words[0]) shell("cp -rp '%s' '%s/'", at("dest-old/."), at("dest"));
}

static bool holds(const char *destination, const char *want)
{
    const command c = {{"diff", destination, want, "--values", "-q"}};
    return run(&c, NULL, CRASH_NEVER, 0, false, NULL) == 0;
}

/* Returns 'n' for the new checkpoint, 'o' for the old one, or 0 when there is none. Fails for anything else. */
static char verdict(const job *j, const char *when)
{
    char path[64], dest[64], old[64], new[64];
    snprintf(path, sizeof path, "dest/%s", j->name);
    snprintf(old, sizeof old, "dest-old/%s", j->name);
    snprintf(new, sizeof new, "dest-new/%s", j->name);
    if (!exists(path)) {
        if (j->before.words[0]) fail_msg("%s: the old checkpoint is gone", when);
        return 0;
    }
    if (j->one_rename) {
        if (same(path, new)) return 'n';
        if (j->before.words[0] && same(path, old)) return 'o';
        fail_msg("%s: neither the old nor the new checkpoint", when);
    }
    snprintf(dest, sizeof dest, "@dest/%s", j->name);
    snprintf(old, sizeof old, "@dest-old/%s", j->name);
    snprintf(new, sizeof new, "@dest-new/%s", j->name);
    if (holds(dest, new)) return 'n';
    if (!holds(dest, old)) fail_msg("%s: neither the old nor the new checkpoint", when);
    return 'o';
}

static void expect_source(const char *when)
{
    struct stat a, b;
    assert_true(stat(at("source"), &a) == 0 && stat(at("source-kept"), &b) == 0);
    if (!same("source", "source-kept") || a.st_mtim.tv_sec != b.st_mtim.tv_sec || a.st_mtim.tv_nsec != b.st_mtim.tv_nsec)
        fail_msg("%s: the source was touched", when);
}

/* Fails when a file that is not part of the checkpoint has disappeared. */
static void expect_notes(const job *j, const char *when)
{
    char path[64];
    snprintf(path, sizeof path, "dest/%s/notes.txt", j->name);
    if (j->notes && !exists(path)) fail_msg("%s: a file of somebody else is gone", when);
}

/* Expects exactly the files of an undisturbed run. Only when the new checkpoint was in place `before` may bytes differ:
 * overwriting it again creates a later generation. */
static void expect_end(const job *j, char before, const char *when)
{
    char path[64], new[64];
    snprintf(path, sizeof path, "dest/%s", j->name);
    snprintf(new, sizeof new, "dest-new/%s", j->name);
    expect_only(j->name, when);
    if (!same(path, new) && !(before == 'n' && verdict(j, when) == 'n')) fail_msg("%s: other bytes", when);
    expect_source(when);
}

static void resume(const job *j, char before, const char *when)
{
    const int status = run(&j->work, j->goes_on ? NULL : "--resume", CRASH_NEVER, 0, false, NULL);
    const bool was_complete = before == 'n' && j->one_rename && !j->before.words[0];
    if (status != 0 && !(status == 2 && was_complete)) run_well(&j->work, j->goes_on ? NULL : "--resume", when);
    expect_end(j, before, when);
}

static int count_files(const char *directory)
{
    struct dirent **items;
    const int count = scandir(at(directory), &items, NULL, NULL);
    assert_true(count >= 0);
    for (int i = 0; i < count; i++) free(items[i]);
    free(items);
    return count;
}

/* Runs the job again without --resume: it must remove what the killed run left in the destination and next to it. */
static void run_again(const job *j, const char *when)
{
    char path[64], new[64];
    snprintf(path, sizeof path, "dest/%s", j->name);
    snprintf(new, sizeof new, "dest-new/%s", j->name);
    run_well(&j->work, NULL, when);
    expect_only(j->name, when);
    expect_source(when);
    if (verdict(j, when) != 'n') fail_msg("%s: not the new checkpoint", when);
    if (count_files(path) != count_files(new)) fail_msg("%s: files of a killed run are left", when);
}

/* A checkpoint that was published whole is not replaced; the run may report that it is complete already. */
static void expect_refusal(const job *j, const char *when)
{
    const int status = run(&j->work, j->goes_on ? NULL : "--resume", CRASH_NEVER, 0, false, NULL);
    if (status != 0 && status != 2) fail_msg("%s: ended with %d", when, status);
    if (verdict(j, when) != 'n') fail_msg("%s: the new checkpoint is gone", when);
    expect_source(when);
}

/* Ends the job at a point, checks the result, and resumes; or starts from the beginning, which must work as well. */
static void crash_at(const job *j, crash_kind kind, unsigned long point, bool after)
{
    char when[160];
    snprintf(when, sizeof when, "%s %s%s: crash %d %s call %lu", j->work.words[0], j->name,
             j->before.words[0] ? " over an old one" : "", (int)kind, after ? "behind" : "before", point);
    restore(j);
    const int status = run(&j->work, NULL, kind, point, after, NULL);
    if (status != -SIGKILL) fail_msg("%s: ended with %d", when, status);
    const char found = verdict(j, when);
    expect_source(when);
    expect_notes(j, when);
    if (j->stays && found == 'n') expect_refusal(j, when);
    else if (j->notes && point % 2) run_again(j, when);
    else resume(j, found, when);
    expect_notes(j, when);
}

enum { LAST = 28, LAST_EVERY = 3 };

static void crash_everywhere(const job *j, crash_kind kind, unsigned long most)
{
    unsigned long calls;
    empty("dest");
    empty("dest-old");
    empty("dest-new");
    if (j->before.words[0]) run_well(&j->before, NULL, "old");
    if (j->notes) shell("echo mine > '%s/%s/notes.txt'", at("dest"), j->name);
    shell("cp -rp '%s' '%s/'", at("dest/."), at("dest-old"));
    assert_int_equal(run(&j->work, NULL, CRASH_NEVER, 0, false, &calls), 0);
    shell("cp -rp '%s' '%s/'", at("dest/."), at("dest-new"));
    assert_true(calls > 8);
    const unsigned long every = full_counts() ? 1 : calls / most + 1;
    unsigned points = 0;
    const char *only = getenv("TSR_TEST_KILL"); /* name of the only job to run, for debugging */
    if (only && *only && strcmp(only, j->name) != 0) return;
    for (unsigned long point = 1 + calls % every; point <= calls; point += every) {
        crash_at(j, kind, point, false);
        crash_at(j, kind, point, true);
        points += 2;
    }
    /* The last calls are the publication and what follows it. */
    const unsigned long from = calls > LAST ? calls - LAST + calls % LAST_EVERY : 1;
    for (unsigned long point = from; j->notes && every > 1 && point <= calls; point += LAST_EVERY, points++)
        crash_at(j, kind, point, point % 2);
    print_message("%s %s%s: %u points\n", j->work.words[0], j->name, j->before.words[0] ? " over an old one" : "", points);
}

static void test_robust_kill__killed_anywhere_old_or_new_and_resumable(void **state)
{
    (void)state;
    for (size_t i = 0; i < JOBS; i++) crash_everywhere(&jobs[i], CRASH_KILL, 6);
}

static void test_robust_kill__nothing_unsynced_survives_a_power_loss_and_none_is_missed(void **state)
{
    (void)state;
    for (size_t i = 0; i < JOBS; i++) crash_everywhere(&jobs[i], CRASH_POWER_ALL, 6);
}

static void test_robust_kill__any_of_the_unsynced_may_be_lost(void **state)
{
    (void)state;
    for (size_t i = 0; i < JOBS; i++) crash_everywhere(&jobs[i], CRASH_POWER_SOME, 6);
}

/* ---- every form over every form ---- */

#define WORDS(...) \
    { \
        __VA_ARGS__, "-q", "--overwrite", "--threads", "1" \
    }

typedef struct form {
    command work;
    const char *old; /* source of an old checkpoint of this form */
} form;

#define CUT "--mesh", "dp=3", "--placements", "shard(0)"
static const form forms[] = {
    {{WORDS("convert", "@source", "@dest/p", "--to", "dcp")}, "@old"},
    {{WORDS("convert", "@source", "@dest/p", "--to", "safetensors", "--max-shard-size", "6KB")}, "@old"},
    {{WORDS("reshard", "@source", "@dest/p", CUT, "--to", "dcp")}, "@old"},
    {{WORDS("reshard", "@source", "@dest/p", CUT, "--to", "torch")}, "@old"},
    {{WORDS("reshard", "@source", "@dest/p", CUT, "--to", "safetensors")}, "@old"},
    {{WORDS("convert", "@megatron", "@dest/p", "--to", "megatron-dist")}, "@megatron-old"},
    {{WORDS("convert", "@source", "@dest/p", "--to", "ranks", "--shards", "@shards.json", "--world-size", "2")}, "@old"},
    /* One file per part, which no file lists, so nothing replaces them. The part whose names also occur in another part is
     * excluded. */
    {{WORDS("convert", "@zero", "@dest/p", "--to", "safetensors", "--objects", "sidecar", "--exclude", "module.**")}, NULL},
    {{WORDS("exec", "@plan.json", "@dest/p")}, NULL}, /* a plan names its own source */
};
enum { FORMS = sizeof forms / sizeof *forms, OLD_FORMS = FORMS - 2 };

/* Unless full counts are asked for, tests a third of the pairs, a different third for each kind. Every form occurs in it as
 * the old one and as the new one. */
static void replace_every_form(crash_kind kind)
{
    for (size_t old = 0; old < OLD_FORMS; old++) {
        for (size_t new = 0; new < FORMS; new ++) {
            if (!full_counts() && (old + new + (size_t)kind) % 3) continue;
            job j = {.name = "p", .work = forms[new].work, .before = forms[old].work, .notes = true};
            j.goes_on = new == FORMS - 1 || new == FORMS - 3; /* a run that writes one file per rank does not resume, but
                                                               * starts again */
            j.stays = new == FORMS - 2;
            j.before.words[1] = forms[old].old;
            print_message("%zu over %zu: ", new, old);
            crash_everywhere(&j, kind, 5);
        }
    }
}

static void test_robust_kill__every_form_over_every_form_is_old_or_new_when_killed(void **state)
{
    (void)state;
    replace_every_form(CRASH_KILL);
}

static void test_robust_kill__every_form_over_every_form_is_old_or_new_after_a_power_loss(void **state)
{
    (void)state;
    replace_every_form(CRASH_POWER_SOME);
}

/* ---- changes between a kill and --resume ---- */

/* Flips a bit in the middle of the largest unpublished file. */
static bool alter_output(void)
{
    char line[700];
    snprintf(
        line, sizeof line,
        "f=$(find '%s' -path '*.tessera-*' -type f ! -name '*-of-1' ! -name '*.publishing' -size +1k | sort | tail -1); "
        "[ -n \"$f\" ] && python3 -c \"import sys; f=open(sys.argv[1],'r+b'); f.seek(0,2); n=f.tell()//2; f.seek(n); "
        "b=f.read(1); f.seek(n); f.write(bytes([b[0]^1]))\" \"$f\"",
        at("dest"));
    return system(line) == 0;
}

/* What a journal records as done is used only when the bytes are still those that were written. */
static void test_robust_kill__changed_bytes_are_not_believed(void **state)
{
    (void)state;
    const job *j = &jobs[4]; /* shards */
    unsigned long calls, refused = 0;
    empty("dest");
    empty("dest-new");
    assert_int_equal(run(&j->work, NULL, CRASH_NEVER, 0, false, &calls), 0);
    shell("cp -rp '%s' '%s/'", at("dest/."), at("dest-new"));
    for (unsigned long point = calls / 3; point < calls; point += calls / 12) {
        empty("dest");
        assert_int_equal(run(&j->work, "--resume", CRASH_KILL, point, false, NULL), -SIGKILL);
        if (!alter_output()) continue;
        const int status = run(&j->work, "--resume", CRASH_NEVER, 0, false, NULL);
        if (status == 0 && !same("dest/s", "dest-new/s")) fail_msg("call %lu: changed bytes were published", point);
        refused += status == 2;
    }
    assert_true(refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_robust_kill__killed_anywhere_old_or_new_and_resumable),
        cmocka_unit_test(test_robust_kill__nothing_unsynced_survives_a_power_loss_and_none_is_missed),
        cmocka_unit_test(test_robust_kill__any_of_the_unsynced_may_be_lost),
        cmocka_unit_test(test_robust_kill__changed_bytes_are_not_believed),
        cmocka_unit_test(test_robust_kill__every_form_over_every_form_is_old_or_new_when_killed),
        cmocka_unit_test(test_robust_kill__every_form_over_every_form_is_old_or_new_after_a_power_loss),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
