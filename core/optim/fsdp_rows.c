/* Divides the full optimizer state into what one rank holds of it: every tensor is split along dim 0 as by torch.chunk, as
 * ShardedTensors or, if FSDP has a mesh, as DTensors (`_ext_chunk_tensor`, `_ext_chunk_dtensor`, called for `shard_state` in
 * PyTorch 2.13).
 *
 *   emb.weight [11, 3] on 3 ranks     rank 0: rows [0, 4)    rank 1: [4, 8)    rank 2: [8, 11) */
#include <inttypes.h>

#include "optim/pieces.h"
#include "tessera/sys/flat_index.h"
#include "tessera/sys/flat_keys.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/optim_tree.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

typedef struct cutting {
    const tsr_flat_params *flat;
    const tsr_fsdp_rows *options;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_flat_keys keys;
    const tsr_distribution *distribution; /* that of the DTensors; NULL for ShardedTensors */
    tsr_tree state;                       /* the resulting state */
} cutting;

/* Makes rows [begin, end) of a tensor a shard of it: tsr_pieces makes the chunks of the rows, which are then moved to their
 * offsets. */
static tsr_status take_rows(const cutting *c, const tsr_entry *source, uint64_t begin, uint64_t end, tsr_entry *out,
                            tsr_error *err)
{
    uint64_t elements, *shape = tsr_arena_array(c->arena, source->ndim, sizeof *shape, err);
    tsr_pieces pieces;
    const tsr_value *rows = NULL;
    if (!shape) return TSR_E_NOMEM;
    memcpy(shape, source->shape, source->ndim * sizeof *shape);
    shape[0] = end - begin;
    TSR_FAIL_IF(!tsr_entry_elements(source, &elements), err, TSR_E_FORMAT, "optim: '%.*s' is too large",
                TSR_STR_ARG(source->fqn));
    uint64_t row = source->shape[0] ? elements / source->shape[0] : 0;
    const tsr_entry of = {.fqn = source->fqn, .dtype = source->dtype, .ndim = source->ndim, .shape = shape};
    TSR_TRY(tsr_pieces_start(&pieces, c->host, c->arena, &of, err));
    tsr_status status = tsr_pieces_add(&pieces, source, begin * row, end * row, err);
    if (status == TSR_OK) status = tsr_pieces_finish(&pieces, &rows, err);
    tsr_pieces_drop(&pieces);
    if (status != TSR_OK) return status;
    *out = *rows->as.tensor;
    tsr_chunk *chunks = tsr_arena_array(c->arena, (size_t)out->chunk_count, sizeof *chunks, err);
    uint64_t *offsets = tsr_arena_array(c->arena, (size_t)out->chunk_count * out->ndim, sizeof *offsets, err);
    if (!chunks || !offsets) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < out->chunk_count; i++, offsets += out->ndim) {
        chunks[i] = out->chunks[i];
        memcpy(offsets, chunks[i].offsets, out->ndim * sizeof *offsets);
        offsets[0] += begin;
        chunks[i].offsets = offsets;
    }
    out->chunks = chunks;
    out->shape = source->shape;
    return TSR_OK;
}

static tsr_status cut_tensor(const cutting *c, const tsr_entry *source, tsr_flat_place place, const tsr_value **out,
                             tsr_error *err)
{
    uint64_t begin, end;
    tsr_entry *entry = TSR_ARENA_NEW(c->arena, tsr_entry, err);
    tsr_value *value = entry ? tsr_value_tensor(c->arena, entry, err) : NULL;
    if (!value) return TSR_E_NOMEM;
    tsr_rows_of_rank(source->shape[0], place.slices, place.slice, true, &begin, &end);
    TSR_TRY(take_rows(c, source, begin, end, entry, err));
    entry->distribution = c->distribution;
    *out = value;
    return TSR_OK;
}

static tsr_status cut_state(cutting *c, const tsr_value *key, const tsr_value *state, tsr_flat_place place, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(c->arena, state->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        items[i] = state->items[i];
        items[i + 1] = state->items[i + 1];
        if (tsr_form_of(items[i + 1]) == TSR_FORM_TENSOR)
            TSR_TRY(cut_tensor(c, items[i + 1]->as.tensor, place, &items[i + 1], err));
    }
    return tsr_tree_put_key(&c->state, key, tsr_value_items(c->arena, TSR_VALUE_DICT, items, state->count, err), err);
}

/* The ranks that divide the state of a unit: those that divide its flat parameter, or all ranks with NO_SHARD. */
static tsr_status place_of(const cutting *c, const tsr_flat_key *key, tsr_flat_place *out, tsr_error *err)
{
    const tsr_fsdp_rows *o = c->options;
    TSR_TRY(tsr_flat_place_of(c->flat, key->unit, o->world_size, o->rank, out, err));
    if (!key->unit->is_sharded) *out = (tsr_flat_place){o->world_size, o->rank};
    return TSR_OK;
}

static tsr_status put_state(cutting *c, const tsr_value *key, const tsr_value *state, tsr_error *err)
{
    uint32_t id = key->kind == TSR_VALUE_STR ? tsr_map_get(c->keys.by_fqn, key->text, UINT32_MAX) : UINT32_MAX;
    const tsr_flat_key *known = id == UINT32_MAX ? NULL : &c->keys.keys[id];
    tsr_flat_place place;
    if (!known || !known->unit || state->kind != TSR_VALUE_DICT) return tsr_tree_put_key(&c->state, key, state, err);
    TSR_TRY(place_of(c, known, &place, err));
    bool whole = known->param != TSR_NO_PARAM && (!known->unit->is_sharded || place.slices == 1);
    return whole ? tsr_tree_put_key(&c->state, key, state, err) : cut_state(c, key, state, place, err);
}

/* Sets the texts that describe the DTensors, such as "2,2" and "replicate,shard(0)". */
static tsr_status tell_mesh(cutting *c, tsr_error *err)
{
    static const tsr_placement placements[] = {{.kind = TSR_REPLICATE}, {.kind = TSR_SHARD, .dim = 0}};
    const tsr_mesh *mesh = c->options->mesh;
    if (!mesh) return TSR_OK;
    TSR_FAIL_IF(
        mesh->dim_count == 0 || mesh->dim_count > 2 || tsr_mesh_ranks(mesh) != c->options->world_size, err, TSR_E_USAGE,
        "optim: FSDP needs a mesh with one dim (two for hybrid strategies) and as many ranks as the world (%" PRIu32 ")",
        c->options->world_size);
    tsr_distribution *d = TSR_ARENA_NEW(c->arena, tsr_distribution, err);
    if (!d) return TSR_E_NOMEM;
    d->mesh = tsr_mesh_text(mesh, c->arena, err);
    d->placements = tsr_placements_text(placements + 2 - mesh->dim_count, mesh->dim_count, c->arena, err);
    c->distribution = d;
    return d->mesh.data && d->placements.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status run(cutting *c, const tsr_optim_parts *full, const tsr_value **out, tsr_error *err)
{
    const tsr_value *state;
    TSR_TRY(tell_mesh(c, err));
    TSR_TRY(tsr_flat_keys_open(c->flat, c->host, c->arena, &c->keys, err));
    for (size_t i = 0; i < full->state->count; i += 2)
        TSR_TRY(put_state(c, full->state->items[i], full->state->items[i + 1], err));
    TSR_TRY(tsr_tree_finish(&c->state, TSR_VALUE_DICT, &state, err));
    return tsr_tree_optim(state, full->groups, c->arena, out, err);
}

tsr_status tsr_fsdp_shard_rows(const tsr_flat_params *flat, const tsr_value *full, const tsr_fsdp_rows *options,
                               const tsr_fsdp_context *context, const tsr_value **out, tsr_error *err)
{
    TSR_FAIL_IF(options->rank >= options->world_size, err, TSR_E_USAGE,
                "optim: rank %" PRIu32 " is not one of the %" PRIu32 " ranks", options->rank, options->world_size);
    cutting c = {.flat = flat,
                 .options = options,
                 .host = context->host,
                 .arena = context->arena,
                 .state = tsr_tree_on(context->host, context->arena)};
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(full, false, &parts, err));
    tsr_status status = run(&c, &parts, out, err);
    tsr_tree_drop(&c.state);
    tsr_flat_keys_close(&c.keys);
    return status;
}
