/* A bit that changed in the source is noticed whatever format the tensor is written in, and there are no false alarms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/full_counts.h"
#include "support/made.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/store.h"
#include "tessera/sys/work.h"

#define TENSORS 4u

static const char *const names[TENSORS] = {"a", "b.weight", "b.bias", "c"};

static void fill(tsr_made *made, uint64_t seed)
{
    static const tsr_dtype dtypes[] = {TSR_FLOAT64, TSR_FLOAT32, TSR_BFLOAT16, TSR_INT8, TSR_UINT16, TSR_BOOL};
    tsr_made_start(made, seed, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) {
        uint64_t shape[8];
        const uint32_t ndim = tsr_made_shape(made, shape, 9);
        tsr_made_tensor(made, names[i], dtypes[tsr_made_random(made, 6)], ndim, shape, (unsigned)tsr_made_random(made, 4),
                        (tsr_made_how)tsr_made_random(made, 2));
    }
    made->host.threads = (uint32_t)(seed % 4);
    tsr_made_open(made);
}

/* Whether the CRCs of all chunks determine the tensor's: they must be runs of its rows, stored unchanged. */
static bool is_told(const tsr_entry *entry)
{
    bool told = true;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        told = told && !chunk->view->strides &&
               tsr_box_is_contiguous((tsr_box){entry->ndim, NULL, entry->shape},
                                     (tsr_box){entry->ndim, chunk->offsets, chunk->sizes});
    }
    return told;
}

/* Changes a bit of some tensor whose CRC is determined. */
static const tsr_entry *damage(tsr_made *made)
{
    const unsigned first = (unsigned)tsr_made_random(made, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) {
        const tsr_entry *entry = &made->entries[(first + i) % TENSORS];
        const tsr_chunk *chunk = &entry->chunks[tsr_made_random(made, entry->chunk_count)];
        if (!is_told(entry) || chunk->byte_length == 0) continue;
        uint8_t *bytes = (uint8_t *)made->file.items + chunk->byte_offset;
        bytes[tsr_made_random(made, chunk->byte_length)] ^= (uint8_t)(1u << tsr_made_random(made, 8));
        return entry;
    }
    return NULL;
}

typedef struct form {
    tsr_container to;
    const char *mesh; /* NULL for convert */
} form;

static const form forms[] = {{TSR_TO_SAFETENSORS, NULL},   {TSR_TO_TORCH, NULL},   {TSR_TO_DCP, NULL},
                             {TSR_TO_SAFETENSORS, "dp=3"}, {TSR_TO_TORCH, "dp=3"}, {TSR_TO_DCP, "dp=4"},
                             {TSR_TO_DCP, "dp=1"}};
#define FORMS (sizeof forms / sizeof *forms)

static tsr_status write_all(tsr_made *made, const form *f, const tsr_convert_options *options, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_output *output;
    tsr_conversion conversion;
    tsr_target target;
    tsr_plan *plan = NULL;
    tsr_output_to_memory(&tsr_allocator_libc, &output, NULL);
    if (f->mesh && (tsr_target_parse(tsr_str_from(f->mesh), TSR_STR("shard(0)"), arena, &target, err) ||
                    tsr_plan_new(tsr_checkpoint_catalog(&made->checkpoint), &target, NULL, &made->host, &plan, err)))
        fail_msg("%s", err->message);
    tsr_convert_options planned = *options;
    planned.plan = plan;
    const tsr_status status = tsr_convert(&made->checkpoint, output, &planned, arena, &conversion, err);
    tsr_plan_free(plan);
    output->close(output);
    tsr_arena_free(arena);
    return status;
}

static void test_convert_source_sums__one_bit_is_noticed_and_only_where_it_is(void **state)
{
    (void)state;
    const uint64_t count = full_counts() ? 50000 : 700;
    uint64_t noticed = 0;
    for (uint64_t seed = 0; seed < count; seed++) {
        const form *f = &forms[seed % FORMS];
        tsr_made made;
        tsr_error err = {0};
        fill(&made, seed);
        tsr_convert_options options = {.to = f->to, .max_memory = 1, .unit_bytes = 64 + seed % 3000};
        if (write_all(&made, f, &options, &err)) fail_msg("seed %d, sound: %s", (int)seed, err.message);
        const tsr_entry *damaged = damage(&made);
        if (damaged) {
            const tsr_status status = write_all(&made, f, &options, &err);
            if (status != TSR_E_FORMAT || !strstr(err.message, "is damaged in the source") ||
                strncmp(err.message + 1, damaged->fqn.data, damaged->fqn.size) != 0)
                fail_msg("seed %d: '%.*s' was changed: %s", (int)seed, TSR_STR_ARG(damaged->fqn), err.message);
            err = (tsr_error){0};
            options.ignore_crc = true;
            if (write_all(&made, f, &options, &err)) fail_msg("seed %d: %s", (int)seed, err.message);
            noticed++;
        }
        tsr_made_end(&made);
    }
    assert_true(noticed > count / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_source_sums__one_bit_is_noticed_and_only_where_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
