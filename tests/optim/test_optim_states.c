/* Which state each parameter has: in a checkpoint that PyTorch wrote, and in catalogs in which something is missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/sample.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/optim.h"

enum { MOST = 16, DEEP = 8 };

typedef struct made {
    tsr_entry entries[MOST];
    tsr_path_item paths[MOST][DEEP];
    char names[MOST][64];
    tsr_catalog catalog;
} made;

/* Makes entries from paths whose items are separated by '/'; "#3" is a position, "=3" an integer key. */
static void make(made *m, const char *const *paths)
{
    *m = (made){.catalog = {.entries = m->entries}};
    for (uint64_t e = 0; paths[e]; e++) {
        tsr_entry *entry = &m->entries[m->catalog.entry_count++];
        const char *at = paths[e];
        size_t used = 0;
        for (uint32_t i = 0; at; i++) {
            const char *end = strchr(at, '/');
            const size_t size = end ? (size_t)(end - at) : strlen(at);
            const bool number = *at == '#' || *at == '=';
            m->paths[e][i] = (tsr_path_item){*at == '#'   ? TSR_PATH_INDEX
                                             : *at == '=' ? TSR_PATH_INT_KEY
                                                          : TSR_PATH_KEY,
                                             {at, size},
                                             number ? atoi(at + 1) : 0,
                                             NULL};
            used += (size_t)snprintf(m->names[e] + used, sizeof m->names[e] - used, "%s%.*s", i ? "." : "",
                                     (int)(size - number), at + number);
            entry->path_length = i + 1;
            at = end ? end + 1 : NULL;
        }
        entry->fqn = (tsr_str){m->names[e], used};
        entry->path = m->paths[e];
        entry->kind = TSR_ENTRY_TENSOR;
    }
}

/* Formats the states as "optim: a.w[exp_avg,-] b.w?[-,step]", where ? marks a parameter that is in no group, ! one without
 * values, and "-" a missing state. */
static const char *render(const tsr_optim_states *list, uint32_t count, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t o = 0; o < count; o++) {
        used += (size_t)snprintf(out + used, capacity - used, "%s%.*s:", o ? "; " : "", TSR_STR_ARG(list[o].optimizer));
        for (uint32_t r = 0; r < list[o].row_count; r++) {
            const tsr_param_states *row = &list[o].rows[r];
            uint32_t there = 0;
            used += (size_t)snprintf(out + used, capacity - used, " %.*s%s%s[", TSR_STR_ARG(row->parameter),
                                     row->in_group ? "" : "?", row->entry ? "" : "!");
            for (uint32_t n = 0; n < list[o].name_count; n++) {
                const tsr_str name = row->states[n] ? list[o].names[n] : TSR_STR("-");
                used += (size_t)snprintf(out + used, capacity - used, "%s%.*s", n ? "," : "", TSR_STR_ARG(name));
                there += row->states[n] != NULL;
            }
            used += (size_t)snprintf(out + used, capacity - used, "]");
            assert_int_equal(there, row->state_count);
        }
    }
    return out;
}

static const char *states_of(const tsr_catalog *catalog, char *out, size_t capacity)
{
    tsr_error err = {0};
    tsr_optim_states *list;
    uint32_t count;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    if (tsr_optim_states_of(catalog, &tsr_allocator_libc, arena, &list, &count, &err) != TSR_OK) fail_msg("%s", err.message);
    render(list, count, out, capacity);
    tsr_arena_free(arena);
    return out;
}

static const struct {
    const char *paths[MOST];
    const char *expected;
} cases[] = {
    /* flattened, with state.FQN.name and param_groups.FQN.key in one key */
    {{"model/a.w", "model/b.w", "optim/state.a.w.exp_avg", "optim/state.a.w.step", "optim/state.b.w.step",
      "optim/param_groups.a.w.lr", "optim/param_groups.b.w.lr"},
     "optim: a.w[exp_avg,step] b.w[-,step]"},
    /* a frozen parameter, which is in a group and has no state; and state of a parameter that is in no group */
    {{"m/a.w", "o/param_groups.a.w.lr", "o/param_groups.c.w.lr", "o/state/a.w/momentum", "o/state/x/momentum"},
     "o: a.w[momentum] c.w![-] x?![momentum]"},
    /* two optimizers, one of which is at the root of the state dict */
    {{"param_groups.a.lr", "state.a.step", "second/param_groups.a.lr", "a"}, ": a[step]; second: a[]"},
    /* ids are integer keys */
    {{"o/param_groups.7.lr", "o/state/=7/step"}, "o: 7![step]"},
    /* a module named state is not an optimizer, because there are no groups */
    {{"model/state/layer/weight", "state.x.weight"}, ""},
    /* keys that only have the right beginning */
    {{"o/state.", "o/state.x", "o/param_groups.", "o/state..x"}, ""},
};

static void test_optim_states__what_is_there_and_what_is_not(void **state)
{
    (void)state;
    char out[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made m;
        make(&m, cases[i].paths);
        assert_string_equal(states_of(&m.catalog, out, sizeof out), cases[i].expected);
    }
}

static void test_optim_states__a_training_state_of_pytorch(void **state)
{
    (void)state;
    char out[512];
    sample s = {0};
    tsr_error err = {0};
    tsr_checkpoint *checkpoint = NULL;
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    sample_add_file(&s, "torch_train_state", "train.pt");
    assert_int_equal(sample_open(&s, host.allocator), TSR_OK);
    if (tsr_checkpoint_open(s.store, &host, NULL, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    assert_string_equal(states_of(tsr_checkpoint_catalog(checkpoint), out, sizeof out),
                        "optimizer: 0![step,exp_avg,exp_avg_sq] 1![step,exp_avg,exp_avg_sq] 2![step,exp_avg,exp_avg_sq]");
    tsr_checkpoint_close(checkpoint);
    sample_close(&s);
}

static void test_optim_states__every_allocation_failure_is_clean(void **state)
{
    (void)state;
    made m;
    make(&m, cases[1].paths);
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_error err = {0};
        tsr_optim_states *list;
        uint32_t count;
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, &err);
        if (arena) {
            const tsr_status status = tsr_optim_states_of(&m.catalog, &failing.allocator, arena, &list, &count, &err);
            assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        }
        tsr_arena_free(arena);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_states__what_is_there_and_what_is_not),
        cmocka_unit_test(test_optim_states__a_training_state_of_pytorch),
        cmocka_unit_test(test_optim_states__every_allocation_failure_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
