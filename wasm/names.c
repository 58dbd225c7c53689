/* Canonical names as a document; see names.h. */
#include "names.h"

#include "tessera/document.h"

static tsr_status write_names(void *ctx, tsr_json *json, tsr_error *err)
{
    const names_request *r = ctx;
    tsr_collision *collisions;
    size_t count;
    const tsr_status status =
        tsr_fqn_collisions(r->names, r->count, r->host.allocator, r->arena, &collisions, &count, err);
    if (status != TSR_OK) return status;
    return tsr_document_fqn(&(tsr_fqn_document){.names = r->names,
                                                .count = r->count,
                                                .collisions = collisions,
                                                .collision_count = count,
                                                .by_text = r->by_text},
                            json);
}

document *tessera_finish_names(names_request *r, tsr_status status, tsr_error *err)
{
    document *made = status == TSR_OK ? tessera_make_document(write_names, r, err) : NULL;
    tsr_arena_free(r->arena);
    return made;
}
