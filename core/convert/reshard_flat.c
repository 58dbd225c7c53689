/* Makes a unit's slice on a rank a storage that is filled from ranges of the unit's parameters:
 *
 *   flat parameter   [ w0 ········· ][ w1 ············ ]
 *   storage                 [ w0 ·· ][ w1 ··· ]             blits: boxes of w0, boxes of w1 */
#include "convert/reshard_flat.h"

#include "tessera/sys/box.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/try.h"
#include "write/dtensor_value.h"

#define FLAT_PARAM "_flat_param" /* FLAT_PARAM of torch/distributed/fsdp/_common_utils.py */

/* ---- names ---- */

static bool same_item(const tsr_path_item *a, const tsr_path_item *b)
{
    return a->kind == b->kind && a->integer == b->integer && tsr_str_equal(a->key, b->key);
}

/* The path of the model's state dict: the items with which the paths of all flattened parameters begin. */
static const tsr_path_item *common_path(const tsr_plan *plan, uint32_t *length)
{
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(plan, &count);
    const tsr_path_item *path = NULL;
    bool first = true;
    *length = 0;
    for (uint64_t u = 0; u < count; u++) {
        for (uint64_t i = 0; i < units[u].count; i++, first = false) {
            const tsr_entry *entry = units[u].entries[i];
            const uint32_t own = entry->path && entry->path_length ? entry->path_length - 1 : 0;
            uint32_t same = 0;
            if (first) path = entry->path;
            if (first) *length = own;
            while (same < *length && same < own && same_item(&entry->path[same], &path[same])) same++;
            *length = same;
        }
    }
    return path;
}

static tsr_status root_name(const tsr_plan *plan, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    uint32_t length;
    const tsr_path_item *path = common_path(plan, &length);
    *out = TSR_STR("");
    for (uint32_t i = 0; i < length; i++) {
        *out = path[i].kind == TSR_PATH_KEY
                   ? tsr_arena_format(arena, err, "%.*s%.*s.", TSR_STR_ARG(*out), TSR_STR_ARG(path[i].key))
                   : tsr_arena_format(arena, err, "%.*s%lld.", TSR_STR_ARG(*out), (long long)path[i].integer);
        if (!out->data) return TSR_E_NOMEM;
    }
    *out = tsr_arena_format(arena, err, "%.*s" FLAT_PARAM, TSR_STR_ARG(*out));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status unit_name(const tsr_fsdp1_unit *unit, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_str module = unit->match;
    while (module.size && module.data[module.size - 1] == '*') module.size--;
    const bool starred = module.size < unit->match.size && module.size > 1 && module.data[module.size - 1] == '.';
    bool literal = starred;
    for (size_t i = 0; i < module.size; i++) literal = literal && !memchr("*?[", module.data[i], 3);
    TSR_FAIL_IF(!literal, err, TSR_E_USAGE,
                "the unit '%.*s' does not name a single module, so its flat parameter has no name in a torch.save file; "
                "units must have the form MODULE.**",
                TSR_STR_ARG(unit->match));
    *out = tsr_arena_format(arena, err, "%.*s" FLAT_PARAM, TSR_STR_ARG(module));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status check_loadable(const tsr_fsdp1_unit *unit, tsr_error *err)
{
    TSR_FAIL_IF(unit->use_orig_params, err, TSR_E_UNSUPPORTED,
                "'%.*s' would be part of a flat parameter, which FSDP1 with use_orig_params does not load from a rank's "
                "file; set \"use_orig_params\": false in the strategy, or reshard to dcp",
                TSR_STR_ARG(unit->entries[0]->fqn));
    return TSR_OK;
}

tsr_status tsr_flat_rows_name(const tsr_chosen *chosen, const tsr_plan *plan, tsr_arena *arena, tsr_error *err)
{
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(plan, &count);
    for (uint64_t u = 0; u < count; u++) {
        tsr_str name;
        if (units[u].count == 0) continue;
        TSR_TRY(check_loadable(&units[u], err));
        if (units[u].match.size) {
            TSR_TRY(unit_name(&units[u], arena, &name, err));
        } else {
            TSR_TRY(root_name(plan, arena, &name, err));
        }
        for (uint64_t i = 0; i < units[u].count; i++) {
            tsr_converted *row = tsr_row_of(chosen, units[u].entries[i]);
            row->name = name;
        }
    }
    return TSR_OK;
}

/* ---- values ---- */

tsr_status tsr_flat_values(const tsr_flat_rank *of, const tsr_value **values, tsr_arena *arena, tsr_error *err)
{
    const tsr_entry *first = tsr_checkpoint_catalog(of->chosen->checkpoint)->entries;
    tsr_entry *locals = of->locals;
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(of->plan, &count);
    for (uint64_t u = 0; u < count; u++) {
        const tsr_flat_layout *flat = &units[u].flat;
        uint64_t *shape = tsr_arena_array(arena, 1, sizeof *shape, err);
        if (!shape) return TSR_E_NOMEM;
        if (units[u].count == 0) continue;
        const tsr_converted *row = tsr_row_of(of->chosen, units[u].entries[0]);
        const tsr_dtype_class kind = tsr_dtype_describe(row->dtype)->kind;
        tsr_sharded sharded = {.dtype = row->dtype,
                               .numel = flat->flat_numel,
                               .slice_numel = flat->slice_numel,
                               .ranks = flat->ranks,
                               .rank = of->rank,
                               .requires_grad = kind == TSR_CLASS_FLOAT || kind == TSR_CLASS_COMPLEX};
        *shape = tsr_sharded_size(&sharded, of->rank);
        locals[u] = (tsr_entry){.fqn = row->name, .dtype = units[u].dtype, .ndim = 1, .shape = shape};
        if (*shape) sharded.local = &locals[u];
        for (uint64_t i = 0; i < units[u].count; i++) values[units[u].entries[i] - first] = NULL;
        values[units[u].entries[0] - first] = tsr_sharded_value(&sharded, arena, err);
        if (!values[units[u].entries[0] - first]) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

void tsr_flat_casts(const tsr_flat_rank *of, tsr_torch_plan *file)
{
    uint64_t count;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(of->plan, &count);
    for (uint64_t u = 0; u < count; u++) {
        tsr_torch_tensor *source = tsr_torch_plan_source(file, &of->locals[u]);
        if (source) source->dtype = tsr_row_of(of->chosen, units[u].entries[0])->dtype;
    }
}

/* ---- bytes ---- */

typedef struct flat_stage {
    tsr_torch_plan *file;
    tsr_blit *blits;
    size_t *ends; /* where the blits of each storage end */
} flat_stage;

/* A storage that is being filled. */
typedef struct filling {
    tsr_arena *arena;
    tsr_vec *blits;
    tsr_blit at; /* position of the next blit */
    uint32_t itemsize;
} filling;

static tsr_status add_range(filling *f, const tsr_entry *entry, tsr_span range, tsr_error *err)
{
    const uint32_t ndim = entry->ndim;
    const size_t most = ndim ? (2 * (size_t)ndim - 1) * ndim : 1;
    uint64_t elements, *offsets = tsr_arena_array(f->arena, 2 * most, sizeof *offsets, err), *sizes = offsets + most;
    if (!offsets) return TSR_E_NOMEM;
    const uint32_t count = tsr_range_boxes(ndim, entry->shape, range, offsets, sizes);
    for (uint32_t b = 0; b < count; b++) {
        tsr_blit *blit = tsr_vec_push(f->blits, err);
        if (!blit) return TSR_E_NOMEM;
        tsr_box_volume((tsr_box){ndim, NULL, sizes + b * ndim}, &elements); /* cannot overflow: it is part of the tensor */
        f->at.byte_length = elements * f->itemsize;
        *blit = f->at;
        blit->entry = entry;
        if (ndim) blit->offsets = offsets + b * ndim;
        if (ndim) blit->sizes = sizes + b * ndim;
        f->at.byte_offset += f->at.byte_length;
    }
    return TSR_OK;
}

static tsr_status fill_slice(filling *f, const tsr_fsdp1_unit *unit, uint64_t rank, tsr_error *err)
{
    for (uint64_t i = 0; i < unit->count; i++) {
        const tsr_span range = tsr_flat_layout_range(&unit->flat, i, rank);
        if (range.size) TSR_TRY(add_range(f, unit->entries[i], range, err));
    }
    return TSR_OK;
}

static tsr_status write_all(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    const flat_stage *f = stage->ctx;
    size_t at = 0;
    for (uint32_t s = 0; s < f->file->storage_count; s++) {
        uint32_t crc = 0;
        for (; at < f->ends[s]; at++) crc = tsr_crc32_join(crc, f->blits[at].crc, f->blits[at].byte_length);
        f->file->blits[s].crc = crc;
    }
    for (uint32_t i = 0; i <= f->file->storage_count; i++)
        TSR_TRY(tsr_torch_plan_write_piece(f->file, i, sink, f->file->file, 0, err));
    return TSR_OK;
}

/* By storage: the unit whose slice it contains, or `count`. */
static tsr_status match_units(const tsr_torch_plan *file, const tsr_entry *locals, uint64_t count, uint64_t **out,
                              tsr_error *err)
{
    const uintptr_t from = (uintptr_t)locals, to = (uintptr_t)(locals + count);
    *out = tsr_arena_array(file->arena, file->storage_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t s = 0; s < file->storage_count; s++) (*out)[s] = count;
    for (size_t t = 0; t < file->source_count; t++) {
        const uintptr_t at = (uintptr_t)file->tensors[t].entry;
        if (at >= from && at < to) (*out)[file->tensors[t].storage] = (uint64_t)(file->tensors[t].entry - locals);
    }
    return TSR_OK;
}

static tsr_status fill_storages(flat_stage *f, const tsr_flat_rank *of, tsr_vec *blits, tsr_error *err)
{
    uint64_t count, *unit_of;
    const tsr_fsdp1_unit *units = tsr_plan_flat_units(of->plan, &count);
    TSR_TRY(match_units(f->file, of->locals, count, &unit_of, err));
    for (uint32_t s = 0; s < f->file->storage_count; s++) {
        const uint64_t u = unit_of[s];
        filling slice = {f->file->arena, blits, f->file->blits[s], 0};
        if (u < count) {
            slice.itemsize = tsr_dtype_size(slice.at.dtype);
            TSR_TRY(fill_slice(&slice, &units[u], of->rank, err));
        } else {
            tsr_blit *blit = tsr_vec_push(blits, err);
            if (!blit) return TSR_E_NOMEM;
            *blit = f->file->blits[s];
        }
        f->ends[s] = blits->count;
    }
    return TSR_OK;
}

tsr_status tsr_flat_stage(const tsr_flat_rank *of, tsr_torch_plan *file, uint32_t number, tsr_stage *out, tsr_error *err)
{
    flat_stage *f = TSR_ARENA_NEW(file->arena, flat_stage, err);
    size_t *ends = tsr_arena_array(file->arena, file->storage_count, sizeof *ends, err);
    if (!f || !ends) return TSR_E_NOMEM;
    *f = (flat_stage){.file = file, .ends = ends};
    tsr_torch_plan_stage(file, number);
    tsr_vec blits = tsr_vec_of(tsr_checkpoint_host(of->chosen->checkpoint)->allocator, sizeof(tsr_blit));
    tsr_status status = fill_storages(f, of, &blits, err);
    f->blits = status == TSR_OK ? tsr_arena_array(file->arena, blits.count, sizeof *f->blits, err) : NULL;
    if (status == TSR_OK && !f->blits) status = TSR_E_NOMEM;
    if (status == TSR_OK && blits.count) memcpy(f->blits, blits.items, blits.count * sizeof *f->blits);
    *out = (tsr_stage){.blits = f->blits, .count = blits.count, .rest = write_all, .ctx = f};
    tsr_vec_free(&blits);
    return status;
}
