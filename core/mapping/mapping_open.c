/* Opens mapped checkpoints, which have their own catalog and store over those of another checkpoint. */
#include <stdlib.h>

#include "codec/json.h"
#include "formats/common/file_names.h"
#include "mapping/mapped.h"
#include "mapping/mapping_packed.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/try.h"

/* ---- store: the source's files, followed by those that are computed when they are read ---- */

typedef struct mapped_store {
    tsr_store base; /* must be first */
    tsr_mapped *mapped;
    tsr_store *inner;
} mapped_store;

static tsr_status read_at(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const mapped_store *s = (const mapped_store *)store;
    if (file < s->inner->file_count) return s->inner->read_at(s->inner, file, offset, buffer, size, err);
    const size_t number = file - s->inner->file_count;
    const tsr_computed *computed = (const tsr_computed *)s->mapped->computed.items + number;
    if (computed->kind != TSR_COMPUTED_CONSTANT) return tsr_computed_read(s->mapped, number, offset, buffer, size, err);
    memcpy(buffer, computed->constant + offset, size); /* tsr_store_read has compared the range with the file's size */
    return TSR_OK;
}

static tsr_status map_file(tsr_store *store, uint32_t file, tsr_str *out, tsr_error *err)
{
    const mapped_store *s = (const mapped_store *)store;
    if (file < s->inner->file_count) return s->inner->map(s->inner, file, out, err);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "a computed file cannot be mapped");
}

static void unmap_file(tsr_store *store, uint32_t file, tsr_str mapped)
{
    const mapped_store *s = (const mapped_store *)store;
    s->inner->unmap(s->inner, file, mapped);
}

static void expect(tsr_store *store, uint32_t file, uint64_t offset, uint64_t size)
{
    const mapped_store *s = (const mapped_store *)store;
    if (file < s->inner->file_count) s->inner->expect(s->inner, file, offset, size);
}

/* Reading a computed file reads ranges of the source that are not known yet, so only files of the source are prefetched. */
static void prefetch(tsr_store *store, const tsr_store_place *places, size_t count)
{
    const mapped_store *s = (const mapped_store *)store;
    for (size_t i = 0, end; i < count; i = end + 1) {
        for (end = i; end < count && places[end].file < s->inner->file_count; end++) {
        }
        if (end > i) s->inner->prefetch(s->inner, &places[i], end - i);
    }
}

static tsr_status neighbor(tsr_store *store, const tsr_host *host, tsr_str name, tsr_store **out, tsr_error *err)
{
    const mapped_store *s = (const mapped_store *)store;
    return s->inner->neighbor(s->inner, host, name, out, err);
}

static void close_nothing(tsr_store *store)
{
    (void)store; /* it is in the mapped checkpoint's arena */
}

/* The names of computed files are greater than every UTF-8 name, so the list of files stays sorted. */
static tsr_status list_files(const tsr_mapped *m, tsr_store_file *files, tsr_error *err)
{
    const tsr_store *inner = m->source->store;
    if (inner->file_count) memcpy(files, inner->files, inner->file_count * sizeof *files);
    for (size_t i = 0; i < m->computed.count; i++) {
        tsr_store_file *file = &files[inner->file_count + i];
        file->name = tsr_arena_format(m->own->arena, err,
                                      "\xf8"
                                      "computed %08zu",
                                      i);
        if (!file->name.data) return TSR_E_NOMEM;
        const tsr_computed *computed = (const tsr_computed *)m->computed.items + i;
        TSR_FAIL_IF(!tsr_dtype_bytes(computed->dtype, computed->elements, &file->size), err, TSR_E_LIMIT,
                    "a tensor has more bytes than a file can have");
    }
    return TSR_OK;
}

/* mapping_store.c: makes the store, which has the source's files followed by the computed ones. */
static tsr_status new_store(tsr_mapped *m, tsr_store **out, tsr_error *err)
{
    tsr_store *inner = m->source->store;
    TSR_FAIL_IF(m->computed.count >= UINT32_MAX - inner->file_count, err, TSR_E_LIMIT, "too many tensors to cast");
    const size_t count = inner->file_count + m->computed.count;
    mapped_store *store = TSR_ARENA_NEW(m->own->arena, mapped_store, err);
    tsr_store_file *files = tsr_arena_array(m->own->arena, count, sizeof *files, err);
    m->losses = tsr_arena_array(m->own->arena, m->computed.count, sizeof *m->losses, err);
    if (!store || !files || !m->losses) return TSR_E_NOMEM;
    TSR_TRY(list_files(m, files, err));
    *store = (mapped_store){.base = {.file_count = (uint32_t)count,
                                     .files = files,
                                     .primary = inner->primary,
                                     .read_at = read_at,
                                     .map = inner->map ? map_file : NULL,
                                     .unmap = inner->unmap ? unmap_file : NULL,
                                     .close = close_nothing,
                                     .expect = inner->expect ? expect : NULL,
                                     .prefetch = inner->prefetch ? prefetch : NULL,
                                     .neighbor = inner->neighbor ? neighbor : NULL,
                                     .unsummed = inner->unsummed},
                            .mapped = m,
                            .inner = inner};
    *out = &store->base;
    return TSR_OK;
}

/* The reader's function `input`. */
static const tsr_entry *input_of(const tsr_checkpoint *checkpoint, uint32_t file)
{
    const tsr_mapped *m = checkpoint->state;
    const uint32_t inner = m->source->store->file_count;
    if (file >= inner) return ((const tsr_computed *)m->computed.items)[file - inner].input;
    return m->source->reader->input ? m->source->reader->input(m->source, file) : NULL;
}

/* ---- opening ---- */

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
                           .input = input_of,
                           .take_losses = tsr_mapped_take_losses,
                           .crc = tsr_checkpoint_has_crcs(m->source) ? tsr_mapped_crc : NULL,
                           .find = m->source->reader->find ? tsr_mapped_find : NULL};
    m->own->state = m;
    m->own->reader = reader;
    TSR_TRY(tsr_mapped_load_config(m, err));
    TSR_TRY(scheme->fill(m, scheme->ctx, err));
    TSR_TRY(new_store(m, &m->own->store, err));
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
