/* Reads any bytes as a module tree document. They must be rejected with a message, or give a tree whose every state has at
 * least one name. */
#include <assert.h>

#include "tessera/fqn.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/names.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void visit(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena)
{
    tsr_state_item *items;
    size_t count;
    tsr_params *params = NULL;
    assert(tsr_fqn_iterate(modules, host, arena, &items, &count, NULL) == TSR_OK);
    for (size_t i = 0; i < count && i < 64; i++) {
        tsr_name name;
        tsr_error err = {0};
        if (tsr_fqn_resolve(modules, items[i].raw, NULL, arena, &name, &err) != TSR_OK) assert(*err.message);
    }
    assert(tsr_fqn_named_parameters(modules, host, arena, &items, &count, NULL) == TSR_OK);
    if (tsr_params_new(modules, host, &params, NULL) == TSR_OK) {
        for (size_t i = 0; i < tsr_params_count(params); i++) assert(tsr_params_at(params, i)->tensor);
    }
    tsr_params_free(params);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(host.allocator, 1u << 26, NULL);
    tsr_modules_document document;
    tsr_modules *modules = NULL;
    tsr_status status = tsr_modules_parse((tsr_str){(const char *)data, size}, &host, arena, &document, &err);
    if (status == TSR_OK) status = tsr_modules_new(document.root, &host, &modules, &err);
    if (status == TSR_OK) visit(modules, &host, arena);
    else assert(err.status == status && *err.message);
    tsr_modules_free(modules);
    tsr_arena_free(arena);
    return 0;
}
