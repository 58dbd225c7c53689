/* Finds errors in a catalog without reading bytes: checks the tiling of each tensor and the byte ranges of all chunks. */
#include "tessera/validate.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/tiling.h"
#include "tessera/sys/validate.h"
#include "tessera/sys/vec.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "layout/dims_text.h"
#include "tessera/sys/try.h"

typedef struct check {
    const tsr_catalog *catalog;
    const tsr_allocator *allocator;
    tsr_findings *findings;
} check;

static tsr_place place_of(const check *c, const tsr_entry *entry, uint64_t chunk)
{
    tsr_place place = TSR_NOWHERE;
    place.fqn = entry->fqn;
    if (chunk == TSR_NO_CHUNK || entry->chunks[chunk].file == TSR_NO_FILE) return place;
    if (c->catalog->file_names) place.file = c->catalog->file_names[entry->chunks[chunk].file];
    place.byte_offset = entry->chunks[chunk].byte_offset;
    return place;
}

static tsr_status report_outside(const check *c, const tsr_entry *entry, uint64_t chunk, tsr_error *err)
{
    tsr_dims_buffer offsets, sizes, shape;
    return tsr_finding_add(c->findings, "layout/out-of-range", place_of(c, entry, chunk), err,
                           "the chunk of %s at %s of '%.*s' reaches beyond the tensor's %s",
                           tsr_dims_text(&sizes, entry->chunks[chunk].sizes, entry->ndim),
                           tsr_dims_text(&offsets, entry->chunks[chunk].offsets, entry->ndim), TSR_STR_ARG(entry->fqn),
                           tsr_dims_text(&shape, entry->shape, entry->ndim));
}

static tsr_status report_overlap(const check *c, const tsr_entry *entry, const tsr_tiling *tiling, tsr_error *err)
{
    const tsr_chunk *a = &entry->chunks[tiling->overlap[0]], *b = &entry->chunks[tiling->overlap[1]];
    tsr_dims_buffer a_at, a_size, b_at, b_size, element;
    return tsr_finding_add(c->findings, "layout/overlap", place_of(c, entry, tiling->overlap[1]), err,
                           "two chunks of '%.*s' contain the element %s: %s at %s and %s at %s", TSR_STR_ARG(entry->fqn),
                           tsr_dims_text(&element, tiling->overlap_offsets, entry->ndim),
                           tsr_dims_text(&a_size, a->sizes, entry->ndim), tsr_dims_text(&a_at, a->offsets, entry->ndim),
                           tsr_dims_text(&b_size, b->sizes, entry->ndim), tsr_dims_text(&b_at, b->offsets, entry->ndim));
}

static tsr_status report_hole(const check *c, const tsr_entry *entry, const tsr_tiling *tiling, tsr_error *err)
{
    tsr_dims_buffer at, size, shape;
    return tsr_finding_add(
        c->findings, "layout/hole", place_of(c, entry, TSR_NO_CHUNK), err,
        "%s%llu element%s of '%.*s' %s %s not covered by any chunk, such as %s at %s",
        tiling->missing_at_least ? "at least " : "", (unsigned long long)tiling->missing, TSR_PLURAL(tiling->missing),
        TSR_STR_ARG(entry->fqn), tsr_dims_text(&shape, entry->shape, entry->ndim), tiling->missing == 1 ? "is" : "are",
        tsr_dims_text(&size, tiling->hole_sizes, entry->ndim), tsr_dims_text(&at, tiling->hole_offsets, entry->ndim));
}

/* A chunk without elements belongs to a rank that got nothing. PyTorch puts its offset at the end of the sharded
 * dimension. */
static tsr_status check_empty_chunks(const check *c, const tsr_entry *entry, tsr_error *err)
{
    tsr_dims_buffer at, size, shape;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        bool odd = false;
        for (uint32_t d = 0; d < entry->ndim; d++) {
            odd = odd || (chunk->sizes[d] == 0 && entry->shape[d] > 0 && chunk->offsets[d] != entry->shape[d]);
        }
        if (!odd) continue;
        TSR_TRY(tsr_finding_add(c->findings, "layout/empty-chunk", place_of(c, entry, i), err,
                                "the chunk of %s at %s of '%.*s' %s is empty but not at an end of the tensor",
                                tsr_dims_text(&size, chunk->sizes, entry->ndim),
                                tsr_dims_text(&at, chunk->offsets, entry->ndim), TSR_STR_ARG(entry->fqn),
                                tsr_dims_text(&shape, entry->shape, entry->ndim)));
    }
    return TSR_OK;
}

static tsr_status check_tiling(const check *c, const tsr_entry *entry, tsr_error *err)
{
    tsr_tiling tiling;
    tsr_dims_buffer shape;
    uint64_t elements;
    if (entry->ndim > TSR_MAX_NDIM || !tsr_entry_elements(entry, &elements)) {
        return tsr_finding_add(c->findings, "layout/too-large", place_of(c, entry, TSR_NO_CHUNK), err,
                               "'%.*s' %s has more than %u dimensions or 2^64 elements", TSR_STR_ARG(entry->fqn),
                               tsr_dims_text(&shape, entry->shape, entry->ndim), TSR_MAX_NDIM);
    }
    TSR_TRY(tsr_tiling_check(c->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count,
                             &tiling, err));
    if (tiling.outside != TSR_NO_CHUNK) TSR_TRY(report_outside(c, entry, tiling.outside, err));
    if (tiling.overlap[0] != TSR_NO_CHUNK) TSR_TRY(report_overlap(c, entry, &tiling, err));
    if (tiling.missing > 0) TSR_TRY(report_hole(c, entry, &tiling, err));
    return tiling.empty_chunks && elements ? check_empty_chunks(c, entry, err) : TSR_OK;
}

/* The bytes of one chunk in its file. */
typedef struct range {
    uint64_t begin, end;
    const tsr_entry *entry;
    uint32_t file;
} range;

static int compare_ranges(const void *left, const void *right)
{
    const range *a = left, *b = right;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

/* Whether a chunk is a further box of the same item as the chunk before it. */
static bool continues_item(const tsr_entry *entry, uint64_t chunk)
{
    const tsr_chunk *c = &entry->chunks[chunk];
    return chunk && !c->view && c[-1].file == c->file && c[-1].byte_offset == c->byte_offset &&
           c[-1].byte_length == c->byte_length;
}

/* `boxes`: whether one item may contain several boxes of a tensor. */
static tsr_status gather_ranges(const tsr_entry *entry, bool boxes, tsr_vec *ranges, bool *sorted, tsr_error *err)
{
    for (uint64_t i = 0; i < entry->chunk_count && !entry->is_second_name; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        uint64_t begin = chunk->view && !chunk->view->zstd ? chunk->view->byte_offset : chunk->byte_offset, end;
        if (chunk->file == TSR_NO_FILE || chunk->byte_length == 0 || (boxes && continues_item(entry, i))) continue;
        if (!tsr_add_u64(begin, chunk->byte_length, &end)) end = UINT64_MAX;
        range *last = tsr_vec_push(ranges, err);
        if (!last) return TSR_E_NOMEM;
        *last = (range){begin, end, entry, chunk->file};
        if (ranges->count > 1 && compare_ranges(last - 1, last) > 0) *sorted = false;
    }
    return TSR_OK;
}

static tsr_status report_shared(const check *c, const range *list, size_t count, tsr_error *err)
{
    const range *widest = list; /* of the ranges so far, the one with the highest end */
    for (size_t i = 1; i < count; i++) {
        const range *r = &list[i];
        if (r->file == widest->file && r->begin < widest->end) {
            tsr_place place = {.byte_offset = r->begin, .fqn = r->entry->fqn};
            if (c->catalog->file_names) place.file = c->catalog->file_names[r->file];
            TSR_TRY(tsr_finding_add(c->findings, "layout/bytes-shared", place, err,
                                    "bytes [%llu, %llu) of '%.*s' and [%llu, %llu) of '%.*s' are the same bytes of one file",
                                    (unsigned long long)r->begin, (unsigned long long)r->end, TSR_STR_ARG(r->entry->fqn),
                                    (unsigned long long)widest->begin, (unsigned long long)widest->end,
                                    TSR_STR_ARG(widest->entry->fqn)));
        }
        if (r->file != widest->file || r->end > widest->end) widest = r;
    }
    return TSR_OK;
}

/* Whether shared bytes are damage, because every item is written separately. In torch.save files, tensors may share
 * storage. A map may take several entries from one item, such as experts from a stack. */
static bool bytes_are_exclusive(const tsr_catalog *catalog)
{
    const tsr_format format = catalog->format;
    if (catalog->mapped) return false;
    return format == TSR_FORMAT_DCP || format == TSR_FORMAT_MEGATRON_DIST || format == TSR_FORMAT_DCP_SAFETENSORS ||
           format == TSR_FORMAT_SAFETENSORS || format == TSR_FORMAT_SAFETENSORS_INDEX;
}

static tsr_status check_shared_bytes(const check *c, tsr_error *err)
{
    tsr_vec ranges = tsr_vec_of(c->allocator, sizeof(range));
    tsr_status status = TSR_OK;
    bool sorted = true, boxes = c->catalog->format == TSR_FORMAT_MEGATRON_DIST;
    for (uint64_t i = 0; i < c->catalog->entry_count && status == TSR_OK; i++) {
        status = gather_ranges(&c->catalog->entries[i], boxes, &ranges, &sorted, err);
    }
    if (!sorted && status == TSR_OK) qsort(ranges.items, ranges.count, sizeof(range), compare_ranges);
    if (status == TSR_OK) status = report_shared(c, ranges.items, ranges.count, err);
    tsr_vec_free(&ranges);
    return status;
}

tsr_status tsr_validate_catalog(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err)
{
    const check c = {catalog, host->allocator, findings};
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(check_tiling(&c, entry, err));
    }
    if (bytes_are_exclusive(catalog)) TSR_TRY(check_shared_bytes(&c, err));
    return tsr_validate_optimizers(catalog, host, findings, err);
}
