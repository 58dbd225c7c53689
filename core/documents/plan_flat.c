/* Plans for FSDP1: every tensor's flat ranges become its own layout. */
#include "documents/document_parts.h"
#include "tessera/sys/try.h"

#include "tessera/sys/layout.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/target_fsdp1.h"

typedef struct flat_layouts {
    const tsr_catalog *catalog;
    tsr_layout *layouts; /* one per entry; without ranks if it is not a parameter */
} flat_layouts;

static const tsr_layout *layout_of(void *ctx, const tsr_entry *entry)
{
    const flat_layouts *flat = ctx;
    const tsr_layout *layout = &flat->layouts[entry - flat->catalog->entries];
    return layout->ranks ? layout : NULL;
}

/* Decides which tensors are flattened. */
typedef struct flattened {
    const tsr_target_texts *texts;
    const tsr_target *target;
    const tsr_plan_options *options;
} flattened;

static bool is_flattened(void *ctx, tsr_str fqn)
{
    const flattened *f = ctx;
    if (f->options && f->options->want && !f->options->want(f->options->want_ctx, fqn)) return false;
    for (uint32_t i = 0; i < f->texts->ignored_count; i++) {
        if (f->target->match(f->texts->ignored[i], fqn)) return false;
    }
    return true;
}

static tsr_status lay_out_unit(const flat_layouts *flat, const tsr_fsdp1_unit *unit, tsr_arena *arena, tsr_error *err)
{
    for (uint64_t i = 0; i < unit->count; i++) {
        const tsr_entry *entry = unit->entries[i];
        tsr_layout *layout = &flat->layouts[entry - flat->catalog->entries];
        TSR_TRY(tsr_layout_flat(&unit->flat, i, (tsr_shape){entry->ndim, entry->shape}, arena, layout, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_for_texts(const tsr_catalog *catalog, const tsr_planning *what, const tsr_host *host, tsr_arena *arena,
                              tsr_plan **out, tsr_error *err)
{
    const tsr_target_texts *texts = what->texts;
    const tsr_target *target = what->target;
    tsr_plan_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, what->options, tsr_plan_options, err));
    if (!texts->fsdp1) return tsr_plan_new(catalog, target, &own, host, out, err);
    flattened choice = {texts, target, &own};
    const tsr_fsdp1 fsdp1 = {.units = texts->units,
                             .unit_count = texts->unit_count,
                             .match = target->match,
                             .want = is_flattened,
                             .want_ctx = &choice,
                             .use_orig_params = texts->use_orig_params,
                             .ranks = tsr_mesh_ranks(&target->mesh)};
    const tsr_fsdp1_unit *units;
    flat_layouts flat = {catalog, tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *flat.layouts, err)};
    if (!flat.layouts) return TSR_E_NOMEM;
    TSR_TRY(tsr_target_fsdp1(catalog, &fsdp1, arena, &units, err));
    for (uint32_t u = 0; u <= texts->unit_count; u++) TSR_TRY(lay_out_unit(&flat, &units[u], arena, err));
    tsr_plan_options with_layouts = own;
    with_layouts.layout = layout_of;
    with_layouts.layout_ctx = &flat;
    with_layouts.flat_units = units;
    with_layouts.flat_unit_count = (uint64_t)texts->unit_count + 1;
    return tsr_plan_new(catalog, target, &with_layouts, host, out, err);
}
