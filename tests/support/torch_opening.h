/* Opens a torch.save archive in memory with formats/torch/torch_file.h, after trying it with every allocation and every read
 * failing. */
#ifndef TESTS_SUPPORT_TORCH_OPENING_H
#define TESTS_SUPPORT_TORCH_OPENING_H

#include "formats/torch/torch_file.h"
#include "support/faults.h"
#include "support/zip_image.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

typedef struct torch_opening {
    tsr_host host;
    tsr_store *store;
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_torch_item item;
    tsr_error err;
    tsr_status status;
} torch_opening;

/* `rank` is the one in the file's name, or NULL. */
static inline tsr_status torch_open_in(tsr_store *store, const tsr_host *host, const uint32_t *rank, tsr_arena *arena,
                                       tsr_findings *findings, tsr_torch_item *item, tsr_error *err)
{
    const tsr_torch_source from = {.range = tsr_whole_file(store, 0), .has_rank = rank != NULL, .rank = rank ? *rank : 0};
    return tsr_torch_item_open(&from, host, arena, findings, item, err);
}

static tsr_status torch_open_and_drop(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    tsr_torch_item item;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_findings *findings = arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    tsr_status status = findings ? torch_open_in(store, host, ctx, arena, findings, &item, err) : TSR_E_NOMEM;
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    return status;
}

static inline void torch_open(torch_opening *o, const zip_image *image, const uint32_t *rank)
{
    tsr_memory_file file = {TSR_STR("x.pt"), {(const char *)image->bytes, image->size}};
    *o = (torch_opening){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, &file, 1, &o->store, NULL), TSR_OK);
    o->arena = tsr_arena_new(o->host.allocator, 0, NULL);
    o->findings = tsr_findings_new(o->host.allocator, 0, NULL);
    o->status = torch_open_in(o->store, &o->host, rank, o->arena, o->findings, &o->item, &o->err);
    assert_int_equal(must_bear_failures(torch_open_and_drop, (void *)rank, o->store, &o->host), o->status);
}

static inline void torch_opening_drop(torch_opening *o)
{
    tsr_findings_free(o->findings);
    tsr_arena_free(o->arena);
    o->store->close(o->store);
}

#endif
