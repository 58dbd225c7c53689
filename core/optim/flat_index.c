/* Finds original parameters of all units by FQN. */
#include "tessera/sys/containers.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

struct tsr_flat_index {
    const tsr_allocator *allocator;
    tsr_map *by_fqn; /* → index in `found` */
    tsr_vec found;   /* tsr_flat_found */
};

static tsr_status add(tsr_flat_index *x, tsr_str fqn, tsr_flat_found what, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(x->by_fqn, fqn, (uint32_t)x->found.count, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "flat params: '%.*s' is in two units, or twice in the same unit",
                TSR_STR_ARG(fqn));
    tsr_flat_found *slot = tsr_vec_push(&x->found, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = what;
    return TSR_OK;
}

static tsr_status fill(tsr_flat_index *x, const tsr_flat_params *flat, tsr_error *err)
{
    for (uint32_t u = 0; u < flat->unit_count; u++) {
        const tsr_flat_unit *unit = &flat->units[u];
        for (uint32_t p = 0; p < unit->param_count; p++)
            TSR_TRY(add(x, unit->params[p].fqn, (tsr_flat_found){unit, &unit->params[p]}, err));
    }
    for (uint32_t u = 0; u < flat->unit_count; u++) {
        const tsr_flat_unit *unit = &flat->units[u];
        for (size_t s = 0; s < unit->shared_count; s++) {
            tsr_flat_found of = tsr_flat_index_find(x, unit->shared[s].of);
            TSR_FAIL_IF(of.unit != unit, err, TSR_E_FORMAT,
                        "flat params: '%.*s' is tied to '%.*s', which is not in its unit", TSR_STR_ARG(unit->shared[s].fqn),
                        TSR_STR_ARG(unit->shared[s].of));
            TSR_TRY(add(x, unit->shared[s].fqn, of, err));
        }
    }
    return TSR_OK;
}

tsr_status tsr_flat_index_new(const tsr_flat_params *flat, const tsr_allocator *allocator, tsr_flat_index **out,
                              tsr_error *err)
{
    tsr_flat_index *x = tsr_alloc(allocator, 1, sizeof *x, err);
    if (!x) return TSR_E_NOMEM;
    *x = (tsr_flat_index){allocator, tsr_map_new(allocator, 0, err), tsr_vec_of(allocator, sizeof(tsr_flat_found))};
    tsr_status status = x->by_fqn ? fill(x, flat, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = x;
    else tsr_flat_index_free(x);
    return status;
}

void tsr_flat_index_free(tsr_flat_index *index)
{
    if (!index) return;
    tsr_vec_free(&index->found);
    tsr_map_free(index->by_fqn);
    tsr_free(index->allocator, index, 1, sizeof *index);
}

tsr_flat_found tsr_flat_index_find(const tsr_flat_index *index, tsr_str fqn)
{
    uint32_t at = tsr_map_get(index->by_fqn, fqn, UINT32_MAX);
    return at == UINT32_MAX ? (tsr_flat_found){NULL, NULL} : ((const tsr_flat_found *)index->found.items)[at];
}
