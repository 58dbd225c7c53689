/* Objects in the form of PyTorch 2.3, with failing allocations and reads. tests/interop/test_for_torch.py checks that 2.3
 * can load them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/faults.h"
#include "support/sample.h"
#include "tessera/convert.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

/* Checks the names of the objects that the conversion wrote, and how many rows have each name. */
static tsr_status check_names(const tsr_conversion *conversion, tsr_error *err)
{
    static const struct {
        const char *name;
        unsigned rows;
    } whole[] = {{"args", 5}, {"epoch", 1}, {"optimizer.param_groups", 24}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        unsigned rows = 0;
        for (uint64_t r = 0; r < conversion->row_count; r++)
            rows += tsr_str_equal(conversion->rows[r].name, tsr_str_from(whole[i].name));
        if (rows != whole[i].rows) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%s: %u rows", whole[i].name, rows);
    }
    return TSR_OK;
}

static tsr_status convert(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    const tsr_convert_options options = {.to = TSR_TO_DCP, .for_torch = TSR_TORCH_OLDEST};
    tsr_checkpoint *checkpoint = NULL;
    tsr_output *output = NULL;
    tsr_conversion conversion;
    (void)ctx;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? tsr_output_to_memory(host->allocator, &output, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_checkpoint_open(store, host, NULL, &checkpoint, err);
    if (status == TSR_OK) status = tsr_convert(checkpoint, output, &options, arena, &conversion, err);
    if (status == TSR_OK) status = check_names(&conversion, err);
    tsr_checkpoint_close(checkpoint);
    if (output) output->close(output);
    tsr_arena_free(arena);
    return status;
}

static void test_convert_whole_objects__failing_allocations_and_reads_end_cleanly(void **state)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    sample s = {.count = 0};
    tsr_error err = {0};
    (void)state;
    sample_add_file(&s, "torch_train_state", "train.pt");
    assert_int_equal(sample_open(&s, &tsr_allocator_libc), TSR_OK);
    if (convert(NULL, s.store, &host, &err) != TSR_OK) fail_msg("%s", err.message);
    assert_int_equal(must_bear_failures(convert, NULL, s.store, &host), TSR_OK);
    sample_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_whole_objects__failing_allocations_and_reads_end_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
