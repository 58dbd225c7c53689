/* Finds original parameters of all units by FQN. */
#include "tessera/sys/containers.h"

#include "base/cursor.h"
#include "optim/pieces.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

#include <inttypes.h>

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

/* Makes chunks of a new tensor from flat ranges of stored tensors.
 *
 * A run of the source is a flat range whose elements are in one chunk, at a constant stride in the file (the whole range for
 * contiguous sources and 1-d slices). A run of n elements at flat position p of the result becomes boxes that are runs
 * themselves:
 *
 *     shape [11, 3], p = 14, n = 14:   [4][2:3]   [5:9][0:3]   [9][0:1]        at most 2·ndim − 1 boxes */

tsr_status tsr_pieces_start(tsr_pieces *pieces, const tsr_host *host, tsr_arena *arena, const tsr_entry *of, tsr_error *err)
{
    *pieces = (tsr_pieces){host, arena, TSR_ARENA_NEW(arena, tsr_entry, err), tsr_vec_of(host->allocator, sizeof(tsr_chunk)),
                           0,    0};
    if (!pieces->entry) return TSR_E_NOMEM;
    *pieces->entry =
        (tsr_entry){.fqn = of->fqn, .kind = TSR_ENTRY_TENSOR, .dtype = of->dtype, .ndim = of->ndim, .shape = of->shape};
    TSR_FAIL_IF(
        of->ndim > TSR_MAX_NDIM || tsr_dtype_size(of->dtype) == 0 || !tsr_entry_elements(pieces->entry, &pieces->elements),
        err, TSR_E_UNSUPPORTED, "optim: '%.*s' has too many dimensions or elements, or a dtype that is not byte-aligned",
        TSR_STR_ARG(of->fqn));
    return TSR_OK;
}

void tsr_pieces_drop(tsr_pieces *pieces)
{
    tsr_vec_free(&pieces->chunks);
}

/* Adds a box of the result. Its elements begin at `view` and are `step` elements apart. */
static tsr_status add_chunk(tsr_pieces *p, tsr_box box, tsr_view view, uint64_t step, uint64_t count, tsr_error *err)
{
    const uint32_t ndim = box.ndim;
    uint64_t *numbers = tsr_arena_array(p->arena, 3 * (size_t)ndim, sizeof *numbers, err);
    tsr_view *kept = TSR_ARENA_NEW(p->arena, tsr_view, err);
    tsr_chunk *chunk = numbers && kept ? tsr_vec_push(&p->chunks, err) : NULL;
    if (!chunk) return TSR_E_NOMEM;
    uint64_t stride = step;
    for (uint32_t d = ndim; d-- > 0;) {
        numbers[d] = box.offsets[d];
        numbers[ndim + d] = box.sizes[d];
        numbers[2 * ndim + d] = stride;
        stride *= box.sizes[d];
    }
    view.strides = numbers + 2 * ndim;
    *kept = view;
    *chunk = (tsr_chunk){
        .offsets = numbers, .sizes = numbers + ndim, .byte_offset = view.byte_offset, .view = kept, .file = view.file};
    chunk->byte_length = count * tsr_dtype_size(p->entry->dtype);
    return TSR_OK;
}

/* Divides a run of `count` elements into boxes of the result, beginning at `flat_filled`. */
static tsr_status add_run(tsr_pieces *p, tsr_view view, uint64_t step, uint64_t count, tsr_error *err)
{
    const tsr_entry *e = p->entry;
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM] = {0}, itemsize = tsr_dtype_size(e->dtype);
    TSR_FAIL_IF(count > p->elements - p->flat_filled, err, TSR_E_FORMAT,
                "optim: '%.*s' has %" PRIu64 " elements, but more were found", TSR_STR_ARG(e->fqn), p->elements);
    while (count) {
        uint64_t at = p->flat_filled, row = 1, taken = 1;
        uint32_t block = e->ndim; /* the outermost dimension in which whole rows fit into the run */
        for (uint32_t d = e->ndim; d-- > 0;) {
            uint64_t index = at / row % e->shape[d],
                     fits = count / row < e->shape[d] - index ? count / row : e->shape[d] - index;
            offsets[d] = index;
            if (at % row == 0 && fits) {
                block = d;
                taken = fits * row;
            }
            row *= e->shape[d];
        }
        for (uint32_t d = 0; d < e->ndim; d++) sizes[d] = d < block ? 1 : e->shape[d];
        if (block < e->ndim) {
            uint64_t inner = 1;
            for (uint32_t d = block + 1; d < e->ndim; d++) inner *= e->shape[d];
            sizes[block] = taken / inner;
        }
        TSR_TRY(add_chunk(p, (tsr_box){e->ndim, offsets, sizes}, view, step, taken, err));
        view.byte_offset += taken * step * itemsize;
        p->flat_filled += taken;
        count -= taken;
    }
    return TSR_OK;
}

/* One chunk of a source: where its elements are, and how many at the end of its row-major order form one run. */
typedef struct source_chunk {
    const tsr_chunk *chunk;
    tsr_view view;
    uint64_t strides[TSR_MAX_NDIM];
    uint64_t run, step; /* elements in a complete run, and the distance between them */
    uint32_t run_dims;  /* number of trailing dims that a run covers */
    uint64_t hint;      /* index of the chunk where the search for the next element begins */
} source_chunk;

static void open_chunk(const tsr_entry *source, const tsr_chunk *chunk, source_chunk *out)
{
    out->chunk = chunk;
    out->view = chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    uint64_t row = 1;
    for (uint32_t d = source->ndim; d-- > 0;) {
        out->strides[d] = out->view.strides ? out->view.strides[d] : row;
        row *= chunk->sizes[d];
    }
    out->run = out->step = 1;
    out->run_dims = 0;
    for (uint32_t d = source->ndim; d-- > 0;) {
        if (chunk->sizes[d] != 1) {
            if (out->run == 1) out->step = out->strides[d];
            else if (out->strides[d] != out->step * out->run) return;
        }
        out->run *= chunk->sizes[d];
        out->run_dims++;
        if (chunk->sizes[d] != source->shape[d]) return; /* the next row begins in a different chunk */
    }
}

static bool holds(const tsr_entry *source, const tsr_chunk *chunk, const uint64_t *index)
{
    for (uint32_t d = 0; d < source->ndim; d++) {
        if (index[d] < chunk->offsets[d] || index[d] - chunk->offsets[d] >= chunk->sizes[d]) return false;
    }
    return true;
}

/* The chunk that contains an element. The search begins after the chunk found last, because consecutive rows often go
 * through the chunks in a cycle. */
static const tsr_chunk *find_chunk(const tsr_entry *source, const uint64_t *index, uint64_t *hint)
{
    for (uint64_t i = 0; i < source->chunk_count; i++) {
        uint64_t at = *hint + i < source->chunk_count ? *hint + i : *hint + i - source->chunk_count;
        if (!holds(source, &source->chunks[at], index)) continue;
        *hint = at + 1 < source->chunk_count ? at + 1 : 0;
        return &source->chunks[at];
    }
    return NULL;
}

/* Appends the run that begins at an element. `*count` is the number of elements wanted, and then the number appended. */
static tsr_status add_source_run(tsr_pieces *pieces, const tsr_entry *source, uint64_t flat, source_chunk *open,
                                 uint64_t *count, tsr_error *err)
{
    uint64_t index[TSR_MAX_NDIM], rest = flat, element = 0, inside = 0, row = 1;
    for (uint32_t d = source->ndim; d-- > 0; rest /= source->shape[d]) index[d] = rest % source->shape[d];
    const tsr_chunk *chunk = find_chunk(source, index, &open->hint);
    TSR_FAIL_IF(!chunk, err, TSR_E_FORMAT, "optim: element %" PRIu64 " of '%.*s' is not covered by any chunk", flat,
                TSR_STR_ARG(source->fqn));
    TSR_FAIL_IF(chunk->file == TSR_NO_FILE, err, TSR_E_NOT_FOUND, "optim: the file of a chunk of '%.*s' is missing",
                TSR_STR_ARG(source->fqn));
    if (chunk != open->chunk) open_chunk(source, chunk, open);
    for (uint32_t d = source->ndim; d-- > 0;) {
        element += (index[d] - chunk->offsets[d]) * open->strides[d];
        if (source->ndim - d > open->run_dims) continue;
        inside += (index[d] - chunk->offsets[d]) * row;
        row *= chunk->sizes[d];
    }
    if (*count > open->run - inside) *count = open->run - inside;
    tsr_view view = open->view;
    view.byte_offset += element * tsr_dtype_size(source->dtype);
    TSR_FAIL_IF(pieces->chunks.count >= pieces->host->limits.entries, err, TSR_E_LIMIT,
                "optim: the strides of '%.*s' result in too many runs", TSR_STR_ARG(source->fqn));
    return add_run(pieces, view, open->step, *count, err);
}

tsr_status tsr_pieces_add(tsr_pieces *pieces, const tsr_entry *source, uint64_t flat_begin, uint64_t flat_end,
                          tsr_error *err)
{
    if (flat_begin == flat_end) return TSR_OK;
    uint64_t elements;
    TSR_FAIL_IF(source->ndim > TSR_MAX_NDIM || tsr_dtype_size(source->dtype) == 0, err, TSR_E_UNSUPPORTED,
                "optim: '%.*s' has too many dimensions, or a dtype that is not byte-aligned", TSR_STR_ARG(source->fqn));
    TSR_FAIL_IF(!tsr_entry_elements(source, &elements) || flat_end > elements, err, TSR_E_FORMAT,
                "optim: elements up to %" PRIu64 " of '%.*s' are requested, beyond its end", flat_end,
                TSR_STR_ARG(source->fqn));
    source_chunk open = {.chunk = NULL};
    for (uint64_t at = flat_begin, count; at < flat_end; at += count) {
        count = flat_end - at;
        TSR_TRY(add_source_run(pieces, source, at, &open, &count, err));
    }
    return TSR_OK;
}

tsr_status tsr_pieces_add_zeros(tsr_pieces *pieces, uint32_t file, uint64_t count, tsr_error *err)
{
    return add_run(pieces, (tsr_view){.file = file}, 0, count, err);
}

tsr_status tsr_pieces_finish(tsr_pieces *pieces, const tsr_value **out, tsr_error *err)
{
    tsr_entry *entry = pieces->entry;
    static const uint64_t none[TSR_MAX_NDIM] = {0};
    TSR_FAIL_IF(pieces->elements != pieces->flat_filled, err, TSR_E_FORMAT,
                "optim: '%.*s' has %" PRIu64 " elements, but %" PRIu64 " were found", TSR_STR_ARG(entry->fqn),
                pieces->elements, pieces->flat_filled);
    tsr_chunk *chunks = tsr_arena_array(pieces->arena, pieces->chunks.count + 1, sizeof *chunks, err);
    tsr_value *value = chunks ? tsr_value_tensor(pieces->arena, entry, err) : NULL;
    if (!value) return TSR_E_NOMEM;
    if (pieces->chunks.count) memcpy(chunks, pieces->chunks.items, pieces->chunks.count * sizeof *chunks);
    else chunks[0] = (tsr_chunk){.offsets = none, .sizes = entry->shape, .file = TSR_NO_FILE}; /* no elements */
    entry->chunks = chunks;
    entry->chunk_count = pieces->chunks.count ? pieces->chunks.count : 1;
    *out = value;
    return TSR_OK;
}
