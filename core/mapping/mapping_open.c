/* Opens mapped checkpoints, which have their own catalog and store over those of another checkpoint. */
#include <stdlib.h>

#include "codec/json.h"
#include "formats/common/file_names.h"
#include "mapping/mapped.h"
#include "mapping/mapping_packed.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/try.h"

static void close_mapped(tsr_checkpoint *own)
{
    tsr_mapped *m = own->state;
    cJSON_Delete(m->config);
    tsr_vec_free(&m->rows);
    tsr_vec_free(&m->computed);
    tsr_vec_free(&m->dropped);
    if (TSR_PRODUCTS_BUILT) tsr_packed_close(m);
    tsr_checkpoint_close(m->below);
}

/* The extents of files are those of the source. */
static tsr_status source_extents(tsr_checkpoint *own,
                                 tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                 tsr_error *err)
{
    const tsr_mapped *m = own->state;
    return tsr_checkpoint_extents(m->source, each, ctx, err);
}

static int by_order(const void *a, const void *b)
{
    const tsr_mapped_row *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return tsr_str_compare(x->entry.fqn, y->entry.fqn);
}

/* Fails because `second` has the same name as another row. */
static tsr_status refuse_twice(const tsr_mapped *m, const tsr_mapped_row *second, tsr_error *err)
{
    const tsr_mapped_row *first = m->rows.items;
    while (first == second || !tsr_str_equal(first->entry.fqn, second->entry.fqn)) first++;
    return tsr_fail(err, TSR_E_FORMAT, "'%.*s' would be written twice: from '%.*s' and from '%.*s'",
                    TSR_STR_ARG(second->entry.fqn), TSR_STR_ARG(first->sources[0]->fqn),
                    TSR_STR_ARG(second->sources[0]->fqn));
}

/* Leaves the pairs out in which torchao states the classes of weights, which they do not have any more. */
static tsr_status drop_flattened(tsr_mapped *m, tsr_error *err)
{
    tsr_catalog *own = &m->own->catalog;
    tsr_text_pair *kept = tsr_arena_array(m->own->arena, own->metadata_count, sizeof *kept, err);
    size_t count = 0;
    if (!kept) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->metadata_count; i++) {
        const tsr_text_pair *pair = &own->metadata[i];
        if (!tsr_str_equal(pair->key, TSR_STR(TSR_FLATTENED_NAMES)) && !tsr_str_starts(pair->value, TSR_STR("{\"_type\"")))
            kept[count++] = *pair;
    }
    own->metadata = kept;
    own->metadata_count = count;
    return TSR_OK;
}

static tsr_status fill_catalog(tsr_mapped *m, tsr_error *err)
{
    tsr_checkpoint *own = m->own;
    uint64_t duplicate;
    tsr_mapped_row *rows = m->rows.items;
    tsr_entry *entries = tsr_arena_array(own->arena, m->rows.count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    if (m->rows.count > 1) qsort(rows, m->rows.count, sizeof *rows, by_order);
    for (size_t i = 0; i < m->rows.count; i++) entries[i] = rows[i].entry;
    own->catalog = (tsr_catalog){.format = m->source->catalog.format,
                                 .entries = entries,
                                 .entry_count = m->rows.count,
                                 .compressed = m->source->catalog.compressed,
                                 .mapped = true,
                                 .store = own->store,
                                 .metadata = m->source->catalog.metadata,
                                 .metadata_count = m->source->catalog.metadata_count,
                                 .differing_keys = m->source->catalog.differing_keys,
                                 .differing_count = m->source->catalog.differing_count};
    if (m->drops_flattened) TSR_TRY(drop_flattened(m, err));
    tsr_str *names = tsr_arena_array(own->arena, own->store->file_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < own->store->file_count; f++) names[f] = own->store->files[f].name;
    own->catalog.file_names = names;
    TSR_TRY(tsr_name_index_new(own->host->allocator, TSR_NAMED_ITEMS(entries, own->catalog.entry_count), &own->index,
                               &duplicate, err));
    return duplicate == TSR_NO_NAME ? TSR_OK : refuse_twice(m, &rows[duplicate], err);
}

/* Copies the source's missing files, which validation and messages need. */
static tsr_status copy_missing(tsr_mapped *m, tsr_error *err)
{
    size_t count;
    const tsr_str *missing = tsr_checkpoint_missing(m->source, &count);
    for (size_t i = 0; i < count; i++) TSR_TRY(tsr_checkpoint_lacks(m->own, missing[i], err));
    return TSR_OK;
}

/* Keeps the nesting and the parts of the source, because the rows are its entries. */
static void keep_nesting(tsr_mapped *m)
{
    const tsr_catalog *from = &m->source->catalog;
    tsr_catalog *to = &m->own->catalog;
    to->mappings = from->mappings;
    to->mapping_count = from->mapping_count;
    to->parts = from->parts;
    to->part_count = from->part_count;
}

static tsr_status open_mapped(tsr_mapped *m, const tsr_mapped_scheme *scheme, tsr_error *err)
{
    const tsr_host *host = m->own->host;
    m->maker =
        (tsr_box_maker){.arena = m->own->arena, .allocator = host->allocator, .left = host->limits.entries, .err = err};
    tsr_reader *reader = TSR_ARENA_NEW(m->own->arena, tsr_reader, err);
    if (!reader) return TSR_E_NOMEM;
    *reader = (tsr_reader){.format = m->source->catalog.format,
                           .locate = tsr_mapped_locate,
                           .extents = source_extents,
                           .close = close_mapped,
                           .input = tsr_mapped_input,
                           .take_losses = tsr_mapped_take_losses,
                           .crc = tsr_checkpoint_has_crcs(m->source) ? tsr_mapped_crc : NULL,
                           .find = m->source->reader->find ? tsr_mapped_find : NULL};
    m->own->state = m;
    m->own->reader = reader;
    TSR_TRY(tsr_mapped_load_config(m, err));
    TSR_TRY(scheme->fill(m, scheme->ctx, err));
    TSR_TRY(tsr_mapped_store_new(m, &m->own->store, err));
    TSR_TRY(copy_missing(m, err));
    TSR_TRY(fill_catalog(m, err));
    if (scheme->keeps_names) keep_nesting(m);
    m->maker.err = NULL;
    return TSR_OK;
}

tsr_status tsr_mapped_open(tsr_checkpoint *source, const tsr_mapped_scheme *scheme, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_host *host = source->host;
    *out = NULL;
    tsr_checkpoint *own = tsr_alloc(host->allocator, 1, sizeof *own, err);
    if (!own) return TSR_E_NOMEM;
    *own = (tsr_checkpoint){.store = source->store,
                            .host = host,
                            .given_host = source->given_host,
                            .options = source->options,
                            .missing = tsr_vec_of(host->allocator, sizeof(tsr_str))};
    own->arena = tsr_arena_new(host->allocator,
                               host->limits.memory_bytes < SIZE_MAX ? (size_t)host->limits.memory_bytes : SIZE_MAX, err);
    own->findings = own->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    tsr_mapped *m = own->findings ? TSR_ARENA_NEW(own->arena, tsr_mapped, err) : NULL;
    if (m) {
        *m = (tsr_mapped){.source = source,
                          .own = own,
                          .step = scheme->step,
                          .rows = tsr_vec_of(host->allocator, sizeof(tsr_mapped_row)),
                          .computed = tsr_vec_of(host->allocator, sizeof(tsr_computed)),
                          .dropped = tsr_vec_of(host->allocator, sizeof(tsr_entry *))};
    }
    const tsr_status status = m ? open_mapped(m, scheme, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = own;
    else tsr_checkpoint_close(own);
    return status;
}

static tsr_status fill_by_rules(tsr_mapped *m, void *ctx, tsr_error *err)
{
    m->rules = ctx;
    return tsr_mapped_apply(m, err);
}

tsr_status tsr_mapping_open(tsr_checkpoint *source, const tsr_mapping_rules *rules, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = fill_by_rules, .ctx = (void *)(uintptr_t)rules};
    tsr_checkpoint *below = NULL;
    *out = NULL;
    if (rules->before) TSR_TRY(tsr_mapping_open(source, rules->before, &below, err));
    const tsr_status status = tsr_mapped_open(below ? below : source, &scheme, out, err);
    if (status == TSR_OK) ((tsr_mapped *)(*out)->state)->below = below;
    else tsr_checkpoint_close(below);
    return status;
}

static tsr_status fill_by_scales(tsr_mapped *m, void *ctx, tsr_error *err)
{
    tsr_dtype *dtype = ctx;
    const bool given = *dtype != TSR_DTYPE_NONE;
    if (!given) *dtype = tsr_mapped_product_dtype(m);
    TSR_TRY(tsr_mapped_dequantize(m, *dtype, given, err));
    m->drops_flattened = ((tsr_dequantized *)m->ctx)->unflattened;
    return TSR_OK;
}

tsr_status tsr_mapping_dequantize(tsr_checkpoint *source, tsr_dtype dtype, tsr_dtype *used, tsr_checkpoint **out,
                                  tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = fill_by_scales, .ctx = used, .step = tsr_step_name(TSR_STEP_DEQUANTIZE)};
    *used = dtype;
    return tsr_mapped_open(source, &scheme, out, err);
}
