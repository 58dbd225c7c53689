/* Canonical names of a checkpoint's keys, by their text. */
#include "names.h"

static tsr_status name_keys(names_request *r, const tsr_catalog *catalog, tsr_str prefix, tsr_error *err)
{
    tsr_str *raws = tsr_arena_array(r->arena, (size_t)catalog->entry_count, sizeof *raws, err);
    if (!raws) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_str fqn = catalog->entries[i].fqn;
        if (tsr_str_starts(fqn, prefix)) raws[r->count++] = (tsr_str){fqn.data + prefix.size, fqn.size - prefix.size};
    }
    r->names = tsr_arena_array(r->arena, r->count, sizeof *r->names, err);
    return r->names ? tsr_fqn_from_text(raws, r->count, r->host.allocator, r->arena, r->names, err) : TSR_E_NOMEM;
}

/* tessera.fqn/1 of the keys of a checkpoint that begin with `prefix`, without it. */
TSR_EXPORT(tessera_names)
document *tessera_names(uint32_t handle, const char *prefix, uint32_t prefix_size, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    if (!item || tsr_checkpoint_require(item->checkpoint, TSR_FOR_NAMES, err) != TSR_OK) return NULL;
    names_request r = {.host = item->host, .by_text = true};
    r.arena = tsr_arena_new(r.host.allocator, 0, err);
    if (!r.arena) return NULL;
    return tessera_finish_names(&r, name_keys(&r, tsr_checkpoint_catalog(item->checkpoint), (tsr_str){prefix, prefix_size}, err), err);
}
