/* Canonical names of whole catalogs, stored for look-ups. */
#include "tessera/sys/canonical_names.h"
#include "tessera/fqn.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

struct tsr_canonical_names {
    const tsr_allocator *allocator;
    tsr_arena *arena;
    tsr_map *index; /* raw name → index in `fqns` */
    tsr_vec fqns;   /* tsr_str */
};

static tsr_status add_name(tsr_canonical_names *c, const tsr_name *name, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(c->index, name->raw, (uint32_t)c->fqns.count, NULL, &fresh, err));
    if (!fresh) return TSR_OK;
    tsr_str *fqn = tsr_vec_push(&c->fqns, err);
    if (fqn) *fqn = name->fqns[0];
    return fqn ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_catalog(tsr_canonical_names *c, const tsr_catalog *catalog, tsr_error *err)
{
    const size_t count = (size_t)catalog->entry_count;
    tsr_str *raws = tsr_arena_array(c->arena, count, sizeof *raws, err);
    tsr_name *names = raws ? tsr_arena_array(c->arena, count, sizeof *names, err) : NULL;
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) raws[i] = catalog->entries[i].fqn;
    TSR_TRY(tsr_fqn_from_text(raws, count, c->allocator, c->arena, names, err));
    for (size_t i = 0; i < count; i++) TSR_TRY(add_name(c, &names[i], err));
    return TSR_OK;
}

tsr_status tsr_canonical_names_new(const tsr_catalog *const *catalogs, size_t count, const tsr_allocator *allocator,
                                   tsr_canonical_names **out, tsr_error *err)
{
    *out = NULL;
    tsr_canonical_names *c = tsr_alloc(allocator, 1, sizeof *c, err);
    if (!c) return TSR_E_NOMEM;
    *c = (tsr_canonical_names){.allocator = allocator, .fqns = tsr_vec_of(allocator, sizeof(tsr_str))};
    c->arena = tsr_arena_new(allocator, 0, err);
    c->index = c->arena ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = c->index ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = add_catalog(c, catalogs[i], err);
    if (status == TSR_OK) *out = c;
    else tsr_canonical_names_free(c);
    return status;
}

void tsr_canonical_names_free(tsr_canonical_names *names)
{
    if (!names) return;
    tsr_map_free(names->index);
    tsr_vec_free(&names->fqns);
    tsr_arena_free(names->arena);
    tsr_free(names->allocator, names, 1, sizeof *names);
}

tsr_status tsr_canonical_names_find(void *names, tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    (void)arena, (void)err;
    const tsr_canonical_names *c = names;
    const uint32_t at = tsr_map_get(c->index, raw, UINT32_MAX);
    *out = at == UINT32_MAX ? raw : ((const tsr_str *)c->fqns.items)[at];
    return TSR_OK;
}
