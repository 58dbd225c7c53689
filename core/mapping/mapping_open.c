/* Opens mapped checkpoints, which have their own catalog and store over those of another checkpoint: their entries are boxes of the
 * source's chunks, and files that are computed when they are read. */
#include "codec/json.h"
#include "formats/common/file_names.h"
#include "mapping/mapped.h"
#include "mapping/mapping_packed.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

/* ---- entry ---- */

/* Turns boxes into chunks, and finds where in the source's files the elements of a mapped tensor are. */

static tsr_chunk_origin *origin_of(const tsr_chunk *chunk)
{
    return (tsr_chunk_origin *)((char *)(uintptr_t)chunk->offsets - offsetof(tsr_chunk_origin, numbers));
}

/* A dim of a source chunk. Adjacent dims whose elements are evenly spaced count as one. */
typedef struct source_dim {
    uint64_t size, index_step, place_step; /* in elements: in row-major order, and in the file */
    uint64_t first, reach;                 /* the box's first index in this dim, and the distance to its last */
} source_dim;

static uint32_t source_dims(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_view *view, source_dim *dims)
{
    uint32_t count = 0;
    uint64_t step = 1;
    for (uint32_t d = entry->ndim; d-- > 0;) { /* innermost first */
        const uint64_t size = chunk->sizes[d];
        source_dim *inner = count ? &dims[count - 1] : NULL;
        if (size == 1) continue;
        if (inner && view->strides[d] == inner->place_step * inner->size) inner->size *= size;
        else dims[count++] = (source_dim){.size = size, .index_step = step, .place_step = view->strides[d]};
        step *= size;
    }
    return count;
}

/* Computes the box's strides in the file if the source's strides are not row-major. Returns false if no strides describe
 * it. */
static bool translate(const tsr_source_box *box, uint32_t ndim, const tsr_view *view, uint64_t *first, uint64_t *strides)
{
    source_dim dims[TSR_MAX_NDIM];
    const uint32_t count = source_dims(box->entry, box->chunk, view, dims);
    *first = 0;
    for (uint32_t k = 0; k < count; k++) {
        dims[k].first = box->base / dims[k].index_step % dims[k].size;
        *first += dims[k].first * dims[k].place_step;
    }
    for (uint32_t d = 0; d < ndim; d++) {
        if (box->sizes[d] < 2) continue;
        uint32_t k = count;
        while (k > 0 && dims[k - 1].index_step > box->strides[d]) k--;
        if (!k || box->strides[d] % dims[k - 1].index_step) return false;
        source_dim *dim = &dims[k - 1];
        const uint64_t steps = box->strides[d] / dim->index_step;
        dim->reach += steps * (box->sizes[d] - 1);
        if (dim->first + dim->reach >= dim->size) return false;
        strides[d] = steps * dim->place_step;
    }
    return true;
}

static bool is_row_major(const tsr_source_box *box, uint32_t ndim, const uint64_t *strides)
{
    uint64_t step = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        if (box->sizes[d] != 1 && strides[d] != step) return false;
        step *= box->sizes[d];
    }
    return true;
}

static tsr_status locate_box(const tsr_mapped *m, const tsr_entry *entry, const tsr_chunk_origin *origin, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err)
{
    const tsr_source_box *box = &origin->box;
    uint64_t first = box->base;
    uint64_t *strides = tsr_arena_array(scratch, origin->ndim, sizeof *strides, err);
    if (!strides) return TSR_E_NOMEM;
    *out = (tsr_view){.file = box->file};
    if (box->entry) TSR_TRY(tsr_checkpoint_locate(m->source, box->entry, box->chunk, scratch, out, err));
    if (out->strides) {
        TSR_FAIL_IF(!translate(box, origin->ndim, out, &first, strides), err, TSR_E_UNSUPPORTED,
                    "'%.*s': the map reshapes '%.*s', which is stored with strides that do not allow it; convert the "
                    "checkpoint first, "
                    "without the map",
                    TSR_STR_ARG(entry->fqn), TSR_STR_ARG(box->entry->fqn));
    } else if (origin->ndim) {
        memcpy(strides, box->strides, origin->ndim * sizeof *strides);
    }
    out->byte_offset += first * tsr_dtype_size(box->entry ? box->entry->dtype : entry->dtype);
    out->strides = is_row_major(box, origin->ndim, strides) ? NULL : strides;
    return TSR_OK;
}

/* Whether the map made the entry's chunks. Objects keep the source's, and so do the tensors inside them, which no catalog lists. */
static bool is_mapped(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && tsr_catalog_has(tsr_checkpoint_catalog(checkpoint), entry);
}

static tsr_status mapped_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                tsr_arena *scratch, tsr_view *out, tsr_error *err)
{
    const tsr_mapped *m = checkpoint->state;
    if (!is_mapped(checkpoint, entry)) return tsr_checkpoint_locate(m->source, entry, chunk, scratch, out, err);
    const tsr_chunk_origin *origin = origin_of(chunk);
    if (origin->box.whole) return tsr_checkpoint_locate(m->source, origin->box.entry, origin->box.chunk, scratch, out, err);
    return locate_box(m, entry, origin, scratch, out, err);
}

/* ---- what casts lost ---- */

static bool is_lossy(const tsr_checkpoint *checkpoint)
{
    const tsr_mapped *m = tsr_mapped_state(checkpoint);
    if (!m) return false;
    if (atomic_load_explicit(&m->lossy, memory_order_relaxed) || is_lossy(m->source)) return true;
    for (uint32_t i = 0; i < m->other_count; i++)
        if (is_lossy(m->others[i])) return true;
    return false;
}

static void take_entry(tsr_mapped *m, const tsr_entry *entry, tsr_cast_losses *losses);

/* Takes the losses of a computed file, and of the tensors that it is computed from. `entry` is made from it. */
static void take_file(tsr_mapped *m, uint32_t number, const tsr_entry *entry, tsr_cast_losses *losses)
{
    tsr_lossy_file *lost = &m->losses[number];
    const tsr_computed *file = (const tsr_computed *)m->computed.items + number;
    losses->zeros += atomic_exchange_explicit(&lost->zeros, 0, memory_order_relaxed);
    losses->overflows += atomic_exchange_explicit(&lost->overflows, 0, memory_order_relaxed);
    if (file->input && file->kind != TSR_COMPUTED_BY) take_entry(m, file->input, losses);
    else if (file->input) tsr_checkpoint_take_losses(m->source, file->input, losses);
    for (uint32_t i = 0; i < m->other_count; i++) {
        const tsr_entry *other = tsr_checkpoint_entry(m->others[i], entry->fqn);
        if (other) tsr_checkpoint_take_losses(m->others[i], other, losses);
    }
}

static void take_entry(tsr_mapped *m, const tsr_entry *entry, tsr_cast_losses *losses)
{
    const uint32_t inner = m->source->store->file_count;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_source_box *box = &origin_of(&entry->chunks[i])->box;
        if (box->entry) tsr_checkpoint_take_losses(m->source, box->entry, losses);
        else if (box->file >= inner) take_file(m, box->file - inner, entry, losses);
    }
}

static void mapped_take_losses(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_cast_losses *losses)
{
    tsr_mapped *m = checkpoint->state;
    if (!is_lossy(checkpoint)) return;
    if (is_mapped(checkpoint, entry)) take_entry(m, entry, losses);
    else tsr_checkpoint_take_losses(m->source, entry, losses);
}

static tsr_status mapped_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_stated_crc *out, tsr_error *err)
{
    const tsr_mapped *m = checkpoint->state;
    if (!is_mapped(checkpoint, entry)) return tsr_checkpoint_crc(m->source, entry, chunk, scratch, out, err);
    const tsr_source_box *box = &origin_of(chunk)->box;
    if (!box->whole) return TSR_OK;
    return tsr_checkpoint_crc(m->source, box->entry, box->chunk, scratch, out, err);
}

static tsr_status mapped_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                              tsr_found *out, tsr_error *err)
{
    const tsr_mapped *m = checkpoint->state;
    if (!is_mapped(checkpoint, entry)) return tsr_checkpoint_find(m->source, entry, chunk, scratch, out, err);
    const tsr_source_box *box = &origin_of(chunk)->box;
    if (box->whole) return tsr_checkpoint_find(m->source, box->entry, box->chunk, scratch, out, err);
    *out = (tsr_found){0};
    return locate_box(m, entry, origin_of(chunk), scratch, &out->view, err);
}

/* Whether the box can be located without reading a file. */
static bool is_near(const tsr_mapped *m, const tsr_source_box *box)
{
    if (box->whole || (box->chunk && box->chunk->file == TSR_NO_FILE)) return false;
    return !box->entry || box->chunk->view || !m->source->reader->locate;
}

static tsr_status fill_chunk(tsr_mapped *m, const tsr_mapped_tensor *tensor, const tsr_source_box *box, tsr_chunk *out,
                             tsr_error *err)
{
    const uint32_t ndim = tensor->ndim;
    const size_t row = ndim * sizeof(uint64_t);
    tsr_chunk_origin *origin = tsr_arena_array(m->own->arena, sizeof *origin + 3 * row, 1, err);
    if (!origin) return TSR_E_NOMEM;
    origin->box = *box;
    origin->ndim = ndim;
    origin->box.offsets = origin->numbers;
    origin->box.sizes = origin->numbers + ndim;
    origin->box.strides = origin->numbers + 2 * (size_t)ndim;
    if (row) memcpy(origin->box.offsets, box->offsets, row);
    if (row) memcpy(origin->box.sizes, box->sizes, row);
    if (row) memcpy(origin->box.strides, box->strides, row);
    *out = (tsr_chunk){.file = box->file};
    if (box->entry) *out = *box->chunk;
    if (!box->whole) out->view = NULL;
    out->offsets = origin->box.offsets;
    out->sizes = origin->box.sizes;
    if (!is_near(m, box)) return TSR_OK;
    tsr_view *view = TSR_ARENA_NEW(m->own->arena, tsr_view, err);
    const tsr_entry shown = {.fqn = tensor->name, .dtype = tensor->dtype};
    uint64_t elements;
    if (!view) return TSR_E_NOMEM;
    TSR_TRY(locate_box(m, &shown, origin, m->own->arena, view, err));
    out->view = view;
    out->byte_offset = view->byte_offset;
    if (tsr_box_volume((tsr_box){ndim, NULL, out->sizes}, &elements))
        out->byte_length = elements * tsr_dtype_size(tensor->dtype);
    return TSR_OK;
}

tsr_status tsr_mapped_entry(tsr_mapped *m, const tsr_mapped_tensor *tensor, const tsr_entry *like, tsr_str fqn,
                            tsr_entry *out, tsr_error *err)
{
    tsr_chunk *chunks = tsr_arena_array(m->own->arena, tensor->box_count, sizeof *chunks, err);
    if (!chunks) return TSR_E_NOMEM;
    *out = (tsr_entry){.fqn = fqn,
                       .kind = TSR_ENTRY_TENSOR,
                       .dtype = tensor->dtype,
                       .shape = tensor->shape,
                       .ndim = tensor->ndim,
                       .chunks = chunks,
                       .requires_grad = like->requires_grad,
                       .is_parameter = like->is_parameter,
                       .is_sharded = like->is_sharded};
    for (unsigned replicas = 0; replicas < 2; replicas++) {
        for (size_t i = 0; i < tensor->box_count; i++) {
            if (tensor->boxes[i].replica != replicas) continue;
            TSR_TRY(fill_chunk(m, tensor, &tensor->boxes[i], &chunks[out->chunk_count + out->replica_count], err));
            if (replicas) out->replica_count++;
            else out->chunk_count++;
        }
    }
    out->replicas = chunks + out->chunk_count;
    return TSR_OK;
}

/* ---- computed files ---- */

tsr_computed *tsr_mapped_add_file(tsr_mapped *m, tsr_dtype dtype, uint32_t *file, tsr_error *err)
{
    *file = m->source->store->file_count + (uint32_t)m->computed.count;
    tsr_computed *computed = tsr_vec_push(&m->computed, err);
    if (computed) computed->dtype = dtype, computed->elements = 1;
    return computed;
}

tsr_status tsr_mapped_compute(tsr_mapped *m, const tsr_entry *like, uint64_t order, const tsr_computed *by, uint32_t *file,
                              tsr_error *err)
{
    tsr_computed *added = tsr_mapped_add_file(m, by->dtype, file, err);
    if (!added) return TSR_E_NOMEM;
    *added = *by;
    added->kind = TSR_COMPUTED_BY;
    TSR_FAIL_IF(!tsr_entry_elements(like, &added->elements), err, TSR_E_LIMIT, "'%.*s' has too many elements",
                TSR_STR_ARG(like->fqn));
    return tsr_mapped_share(m, like, order, by->dtype, *file, err);
}

tsr_status tsr_mapped_share(tsr_mapped *m, const tsr_entry *like, uint64_t order, tsr_dtype dtype, uint32_t file,
                            tsr_error *err)
{
    tsr_mapped_tensor tensor = {
        .name = like->fqn, .dtype = dtype, .ndim = like->ndim, .shape = (uint64_t *)(uintptr_t)like->shape};
    const tsr_entry **sources = TSR_ARENA_NEW(m->own->arena, const tsr_entry *, err);
    tsr_mapped_row *row = sources ? tsr_vec_push(&m->rows, err) : NULL;
    if (!row) return TSR_E_NOMEM;
    *sources = like;
    *row = (tsr_mapped_row){.order = order, .step = m->step, .sources = sources, .source_count = 1};
    TSR_TRY(tsr_boxes_of_file(&m->maker, file, false, &tensor));
    TSR_TRY(tsr_mapped_entry(m, &tensor, like, like->fqn, &row->entry, err));
    row->entry.path = like->path;
    row->entry.path_length = like->path_length;
    return TSR_OK;
}

tsr_status tsr_mapped_cast(tsr_mapped *m, const tsr_mapped_tensor *in, tsr_dtype dtype, tsr_mapped_tensor *out,
                           tsr_error *err)
{
    uint32_t file;
    TSR_FAIL_IF(!tsr_cast_possible(in->dtype, dtype), err, TSR_E_UNSUPPORTED, "'%.*s' is %s and cannot be cast to %s",
                TSR_STR_ARG(in->name), tsr_dtype_describe(in->dtype)->name, tsr_dtype_describe(dtype)->name);
    tsr_entry *input = TSR_ARENA_NEW(m->own->arena, tsr_entry, err);
    tsr_computed *computed = input ? tsr_mapped_add_file(m, dtype, &file, err) : NULL;
    if (!computed) return TSR_E_NOMEM;
    const tsr_entry like = {0};
    computed->kind = TSR_COMPUTED_CAST;
    computed->input = input;
    TSR_TRY(tsr_mapped_entry(m, in, &like, in->name, input, err));
    TSR_FAIL_IF(!tsr_entry_elements(input, &computed->elements), err, TSR_E_LIMIT, "'%.*s' has too many elements",
                TSR_STR_ARG(in->name));
    *out = *in;
    out->dtype = dtype;
    return tsr_boxes_of_file(&m->maker, file, false, out);
}

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

/* Makes the store, which has the source's files followed by the computed ones. */
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

/* Leaves the pairs out in which torchao states the classes of weights, and ComfyUI how layers are quantized, which they are not any more. */
static tsr_status drop_flattened(tsr_mapped *m, tsr_error *err)
{
    tsr_catalog *own = &m->own->catalog;
    tsr_text_pair *kept = tsr_arena_array(m->own->arena, own->metadata_count, sizeof *kept, err);
    size_t count = 0;
    if (!kept) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->metadata_count; i++) {
        const tsr_text_pair *pair = &own->metadata[i];
        if (!tsr_str_equal(pair->key, TSR_STR(TSR_FLATTENED_NAMES)) &&
            !tsr_str_equal(pair->key, TSR_STR(TSR_COMFY_LAYERS)) && !tsr_str_starts(pair->value, TSR_STR("{\"_type\"")))
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
                           .is_mapped = true,
                           .locate = mapped_locate,
                           .extents = source_extents,
                           .close = close_mapped,
                           .input = input_of,
                           .take_losses = mapped_take_losses,
                           .crc = tsr_checkpoint_has_crcs(m->source) ? mapped_crc : NULL,
                           .find = m->source->reader->find ? mapped_find : NULL};
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
