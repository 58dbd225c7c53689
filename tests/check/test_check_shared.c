/* A deep check shared by ranks has the same findings as that of a single rank, whatever fails in the meantime. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/comm_call.h"
#include "support/checked.h"
#include "support/ranks.h"
#include "tessera/check.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"

/* Samples with different kinds of damage, and undamaged ones with NaN, replicas and views. */
static const char *const samples[] = {"broken_dcp_byte_flipped",
                                      "broken_dcp_blob_shape",
                                      "broken_dcp_missing_file",
                                      "dcp_crc_off",
                                      "../../tests/golden/checksums/damaged",
                                      "../../tests/golden/checksums/misspelt"};
#define SAMPLES (sizeof samples / sizeof *samples)

static tsr_status open_sample(checked *o, const char *name, tsr_error *err)
{
    char path[512];
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", TSR_TEST_DATA, name);
    return checked_open(o, path, NULL, err);
}

static bool same_str(tsr_str a, tsr_str b)
{
    return (a.data == NULL) == (b.data == NULL) && tsr_str_equal(a, b);
}

static bool same_findings(const tsr_findings *a, const tsr_findings *b)
{
    for (int level = TSR_NOTE; level <= TSR_ERROR; level++) {
        if (tsr_findings_total(a, (tsr_level)level) != tsr_findings_total(b, (tsr_level)level)) return false;
    }
    if (tsr_findings_count(a) != tsr_findings_count(b)) return false;
    for (size_t i = 0; i < tsr_findings_count(a); i++) {
        const tsr_finding *x = tsr_findings_at(a, i), *y = tsr_findings_at(b, i);
        if (x->rule != y->rule || x->level != y->level || x->byte_offset != y->byte_offset) return false;
        if (!same_str(x->message, y->message) || !same_str(x->file, y->file) || !same_str(x->fqn, y->fqn)) return false;
    }
    return true;
}

static tsr_status check_shared(const char *name, tsr_comm *comm, const tsr_findings *want, bool *same, tsr_error *err)
{
    checked mine;
    tsr_status status = open_sample(&mine, name, err);
    if (status == TSR_OK) status = tsr_check_deep_shared(mine.checkpoint, comm, mine.ring, NULL, err);
    *same = status == TSR_OK && same_findings(tsr_checkpoint_findings(mine.checkpoint), want);
    checked_close(&mine);
    return status;
}

typedef struct question {
    const char *name;
    const tsr_findings *want;
    tsr_faults faults;
} question;

static tsr_status ask(void *arg, tsr_comm *comm, tsr_error *err)
{
    const question *q = arg;
    tsr_faults faults = q->faults;
    tsr_comm *bad;
    bool same;
    tsr_status status = tsr_comm_faulty(comm, &faults, &tsr_allocator_libc, &bad, err);
    if (status != TSR_OK) return status;
    status = check_shared(q->name, bad, q->want, &same, err);
    tsr_free(&tsr_allocator_libc, bad, 0, 0); /* not closed, because `comm` belongs to the caller */
    if (status == TSR_OK) RANKS_NEED(same);
    return status;
}

static void open_and_check(checked *one, const char *name)
{
    tsr_error err = {0};
    if (open_sample(one, name, &err) || tsr_check_deep(one->checkpoint, one->ring, NULL, &err))
        fail_msg("%s: %s", name, err.message);
}

static void test_check_shared__findings_are_those_of_one_rank(void **state)
{
    (void)state;
    size_t found = 0;
    for (size_t s = 0; s < SAMPLES; s++) {
        checked one;
        open_and_check(&one, samples[s]);
        question q = {.name = samples[s], .want = tsr_checkpoint_findings(one.checkpoint)};
        found += tsr_findings_count(q.want);
        ranks_run(ask, &q);
        q.faults = (tsr_faults){.delay_seed = s + 1, .delay_microseconds = 500};
        ranks_run(ask, &q);
        checked_close(&one);
    }
    assert_true(found >= 3);
}

/* Whichever rank fails, leaves or is late, at any call: the check ends on all ranks, with an error on all of them or on
 * none. */
static void test_check_shared__a_failure_at_any_call_ends_it_everywhere(void **state)
{
    (void)state;
    checked one;
    open_and_check(&one, samples[0]);
    const uint32_t ranks = ranks_count(3);
    bool reached = true;
    for (uint64_t call = 0; reached; call++) {
        reached = false;
        for (unsigned kind = TSR_FAULT_FAIL; kind <= TSR_FAULT_LEAVE; kind++) {
            const tsr_fault fault = {(tsr_fault_kind)kind, (uint32_t)(call % ranks), call, call % 2};
            question q = {
                .name = samples[0], .want = tsr_checkpoint_findings(one.checkpoint), .faults = {.list = &fault, .count = 1}};
            tsr_error err = {0};
            tsr_status status = ranks_try(ranks, ask, &q, &err);
            if (status != TSR_OK && (status != TSR_E_IO || !strstr(err.message, "injected")))
                fail_msg("call %u: %s", (unsigned)call, err.message);
            reached = reached || status != TSR_OK;
        }
        if (call == 0) assert_true(reached);
    }
    checked_close(&one);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_shared__findings_are_those_of_one_rank),
        cmocka_unit_test(test_check_shared__a_failure_at_any_call_ends_it_everywhere),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
