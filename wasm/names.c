/* Documents of canonical names: of a checkpoint's keys, judged by their text, and of a module tree. */
#include "tessera/sys/names.h"
#include "shim.h"
#include "tessera/fqn.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"

typedef struct names_request {
    tsr_host host;
    tsr_arena *arena;
    tsr_name *names;
    size_t count;
    bool by_text;
} names_request;

static tsr_status write_names(void *ctx, tsr_json *json, tsr_error *err)
{
    const names_request *r = ctx;
    tsr_collision *collisions;
    size_t count;
    const tsr_status status = tsr_fqn_collisions(r->names, r->count, r->arena, &collisions, &count, err);
    if (status != TSR_OK) return status;
    return tsr_document_fqn(
        &(tsr_fqn_document){
            .names = r->names, .count = r->count, .collisions = collisions, .collision_count = count, .by_text = r->by_text},
        json);
}

/* Makes the tessera.fqn/1 document of the names, or returns NULL if finding them failed with `status`. Frees the arena. */
static document *finish_names(names_request *r, tsr_status status, tsr_error *err)
{
    document *made = status == TSR_OK ? tessera_make_document(write_names, r, err) : NULL;
    tsr_arena_free(r->arena);
    return made;
}

/* ---- by text ---- */

static tsr_status name_keys(names_request *r, const tsr_catalog *catalog, tsr_str prefix, tsr_error *err)
{
    tsr_str *raws = tsr_arena_array(r->arena, (size_t)catalog->entry_count, sizeof *raws, err);
    if (!raws) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_str fqn = catalog->entries[i].fqn;
        if (tsr_str_starts(fqn, prefix)) raws[r->count++] = tsr_str_after(fqn, prefix.size);
    }
    r->names = tsr_arena_array(r->arena, r->count, sizeof *r->names, err);
    return r->names ? tsr_fqn_from_text(raws, r->count, r->host.allocator, r->arena, r->names, err) : TSR_E_NOMEM;
}

/* Returns tessera.fqn/1 of the checkpoint's keys that begin with `prefix`, which is removed. */
TSR_EXPORT(tessera_names)
document *tessera_names(uint32_t handle, const char *prefix, uint32_t prefix_size, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    if (!item || tsr_checkpoint_require(item->checkpoint, TSR_FOR_ALL_NAMES, err) != TSR_OK) return NULL;
    names_request r = {.host = item->host, .by_text = true};
    r.arena = tsr_arena_new(r.host.allocator, 0, err);
    if (!r.arena) return NULL;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(item->checkpoint);
    return finish_names(&r, name_keys(&r, catalog, (tsr_str){prefix, prefix_size}, err), err);
}

/* ---- by a module tree ---- */

static tsr_status resolve(names_request *r, tsr_str text, const tessera_text *asked, uint32_t count, tsr_error *err)
{
    tsr_modules_document tree;
    tsr_modules *modules = NULL;
    tsr_str *raws = tsr_arena_array(r->arena, count, sizeof *raws, err);
    if (!raws) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) raws[i] = (tsr_str){(const char *)(uintptr_t)asked[i].data, asked[i].size};
    tsr_status status = tsr_modules_parse(text, &r->host, r->arena, &tree, err);
    if (status == TSR_OK) status = tsr_modules_new(tree.root, &r->host, &modules, err);
    const tsr_name_list list = {raws, count};
    tsr_names names = {0};
    if (status == TSR_OK) status = tsr_fqn_resolve_all(modules, count ? &list : NULL, &r->host, r->arena, &names, err);
    r->names = names.names;
    r->count = names.count;
    tsr_modules_free(modules);
    return status;
}

/* Returns tessera.fqn/1 for a tessera.modules/1 text: of `count` names, or of the model's whole state if `count` is 0. */
TSR_EXPORT(tessera_canonicalize)
document *tessera_canonicalize(const char *modules, uint32_t modules_size, const tessera_text *names, uint32_t count,
                               tsr_error *err)
{
    names_request r = {.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    r.arena = tsr_arena_new(r.host.allocator, 0, err);
    if (!r.arena) return NULL;
    return finish_names(&r, resolve(&r, (tsr_str){modules, modules_size}, names, count, err), err);
}
