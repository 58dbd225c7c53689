/* Reads any bytes as a pickle. They must be rejected with a position inside them, or give a graph whose every node can be
 * read. With a sink that folds, no pickle may be accepted that is rejected without one. */
#include <assert.h>

#include "codec/pickle.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES_MAX = 2000 };

static void touch(const tsr_pickle *p, tsr_ref root)
{
    tsr_ref todo[NODES_MAX];
    size_t count = 1, seen = 0;
    volatile uint64_t sum = 0;
    todo[0] = root;
    while (count && seen++ < NODES_MAX) {
        tsr_ref ref = todo[--count];
        size_t items;
        const tsr_ref *run = tsr_pickle_items(p, ref, &items);
        tsr_str text = tsr_pickle_text(p, ref), module = tsr_pickle_module(p, ref), name = tsr_pickle_name_of(p, ref);
        const tsr_ref parts[] = {tsr_pickle_class(p, ref),    tsr_pickle_args(p, ref),       tsr_pickle_state(p, ref),
                                 tsr_pickle_appended(p, ref), tsr_pickle_dict_items(p, ref), tsr_pickle_persistent(p, ref)};
        if (text.size) sum += (uint8_t)text.data[0] + (uint8_t)text.data[text.size - 1];
        sum += module.size + name.size + tsr_pickle_position(p, ref) + (uint64_t)tsr_pickle_int(p, ref) +
               (uint64_t)tsr_pickle_id(p, ref);
        for (size_t i = 0; i < items && count < NODES_MAX; i++) todo[count++] = run[i];
        for (size_t i = 0; i < sizeof parts / sizeof *parts && count < NODES_MAX; i++) {
            if (parts[i]) todo[count++] = parts[i];
        }
    }
}

static tsr_status fold(void *ctx, const tsr_pickle *p, const tsr_pickle_parts *parts, tsr_ref *out, tsr_error *err)
{
    uint32_t *records = ctx;
    (void)err;
    if (!parts->ints) {
        for (size_t i = 0; i < parts->count; i++) touch(p, parts->items[i]);
    }
    if (parts->count % 4 != 3) *out = tsr_pickle_folded(++*records);
    return TSR_OK;
}

static void restart(void *ctx)
{
    *(uint32_t *)ctx = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const tsr_pickle_name names[] = {
        {"torch", "Size", 1 | TSR_PICKLE_FOLD_MADE},
        {"m", "S", 1 | TSR_PICKLE_FOLD_MADE},
        {"m", "P", 2 | TSR_PICKLE_FOLD_BUILT},
        {"torch.distributed.checkpoint.metadata", "MetadataIndex", 2 | TSR_PICKLE_FOLD_BUILT},
        {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata", 2 | TSR_PICKLE_FOLD_BUILT}};
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    uint32_t records = 0;
    const tsr_pickle_sink sink = {
        .names = names, .count = sizeof names / sizeof *names, .fold = fold, .restart = restart, .ctx = &records};
    tsr_str bytes = {(const char *)data, size};
    host.limits.memory_bytes = 64 * size + (1 << 16);
    tsr_error plain_err = {0}, folded_err = {0};
    tsr_pickle *plain, *folded;
    size_t plain_size = 0, folded_size = 0;
    tsr_status plain_status = tsr_pickle_parse(bytes, &host, NULL, &plain, &plain_size, &plain_err);
    tsr_status folded_status = tsr_pickle_parse(bytes, &host, &sink, &folded, &folded_size, &folded_err);
    assert(plain_status == TSR_OK ? plain_size <= size : plain_status == TSR_E_LIMIT || plain_err.byte_position <= size);
    /* With the sink, a pickle that changes a record, or builds on one, is rejected. Nothing else differs. */
    assert(folded_status != TSR_OK || (plain_status == TSR_OK && plain_size == folded_size));
    if (plain) touch(plain, tsr_pickle_root(plain));
    if (folded) touch(folded, tsr_pickle_root(folded));
    tsr_pickle_free(plain);
    tsr_pickle_free(folded);
    return 0;
}
