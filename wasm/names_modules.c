/* Canonical names by a module tree. */
#include "names.h"

static tsr_status resolve(names_request *r, tsr_str text, const tessera_text *asked, uint32_t count, tsr_error *err)
{
    tsr_modules_document tree;
    tsr_modules *modules = NULL;
    tsr_str *raws = tsr_arena_array(r->arena, count, sizeof *raws, err);
    if (!raws) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) raws[i] = (tsr_str){(const char *)(uintptr_t)asked[i].data, asked[i].size};
    tsr_status status = tsr_modules_parse(text, &r->host, r->arena, &tree, err);
    if (status == TSR_OK) status = tsr_modules_new(tree.root, &r->host, &modules, err);
    if (status == TSR_OK)
        status = tsr_fqn_resolve_all(modules, count ? raws : NULL, count, &r->host, r->arena, &r->names, &r->count, err);
    tsr_modules_free(modules);
    return status;
}

/* tessera.fqn/1 of a tessera.modules/1 text: of `count` names, or without any of the model's whole state. */
TSR_EXPORT(tessera_canonicalize)
document *tessera_canonicalize(const char *modules, uint32_t modules_size, const tessera_text *names, uint32_t count,
                               tsr_error *err)
{
    names_request r = {.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    r.arena = tsr_arena_new(r.host.allocator, 0, err);
    if (!r.arena) return NULL;
    return tessera_finish_names(&r, resolve(&r, (tsr_str){modules, modules_size}, names, count, err), err);
}
