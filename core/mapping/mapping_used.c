/* Which dequantized entries the layers above them use: only those may be refused. */
#include "mapping/mapped.h"
#include "tessera/sys/try.h"

/* One array per layer: the entries of its catalog that are used. */
static bool *new_marks(const tsr_mapped *layer, tsr_checkpoint *of, tsr_error *err)
{
    const uint64_t count = of->catalog.entry_count;
    bool *marks = tsr_arena_array(layer->own->arena, count, sizeof *marks, err);
    if (marks) memset(marks, 0, count * sizeof *marks);
    return marks;
}

/* Marks the sources of the used rows of `layer`. A source that is a part of an object is not in the catalog below. */
static void mark_sources(const tsr_mapped *layer, const bool *used, bool *below)
{
    const tsr_catalog *catalog = &layer->source->catalog;
    const tsr_mapped_row *rows = layer->rows.items;
    for (size_t i = 0; i < layer->rows.count; i++) {
        for (uint64_t k = 0; used[i] && k < rows[i].source_count; k++) {
            const tsr_entry *entry = tsr_checkpoint_entry(layer->source, rows[i].sources[k]->fqn);
            if (entry) below[entry - catalog->entries] = true;
        }
    }
}

tsr_status tsr_mapping_check_dequantized(tsr_checkpoint *layer, tsr_checkpoint *top, const tsr_open_options *options, tsr_error *err)
{
    const tsr_mapped *m = layer->state, *above = top->state;
    tsr_dequantized *done = m->ctx;
    bool *used = new_marks(m, top, err);
    if (!used) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < top->catalog.entry_count; i++)
        used[i] = !options || !options->selects || options->selects(options->selects_ctx, top->catalog.entries[i].fqn);
    for (; above != m; above = above->source->state) {
        bool *below = new_marks(m, above->source, err);
        if (!below) return TSR_E_NOMEM;
        mark_sources(above, used, below);
        used = below;
    }
    done->used = used;
    for (const tsr_dequantize_refusal *r = done->refused; r; r = r->next) {
        if (!tsr_mapping_uses(layer, r->fqn)) continue;
        if (err) *err = r->why;
        return r->why.status;
    }
    TSR_FAIL_IF(!done->found, err, TSR_E_UNSUPPORTED,
                "--dequantize: there are no float8, int8, MXFP4 or NVFP4 tensors with scales in the checkpoint");
    return TSR_OK;
}

bool tsr_mapping_uses(void *layer, tsr_str fqn)
{
    tsr_checkpoint *own = layer;
    const tsr_mapped *m = own->state;
    const tsr_dequantized *done = m->ctx;
    const tsr_entry *entry = tsr_checkpoint_entry(own, fqn);
    return !done->used || !entry || done->used[entry - own->catalog.entries];
}
