/* Computes how many of a tensor's elements are stored, that is, have different places.
 *
 *   sizes [3, 4], strides [2, 1]     elements 0 1 2 3 | 2 3 4 5 | 4 5 6 7: 12 elements, 8 stored
 *
 * Strides are merged, beginning with the smallest. A dim whose step is a multiple of the step below, and ends up inside the
 * row below or directly after it, makes that row longer. Dims that cannot be merged multiply the number. The result is at
 * most the span from the first element to the last. */
#include "tessera/sys/read.h"

#include <stdlib.h>

#include "base/line.h"
#include "formats/common/reader.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

enum { LONGEST_NAME = 48 };

/* The bytes of a file from which a chunk's elements come. */
typedef struct span {
    uint32_t file;
    bool compressed; /* [begin, end) is then the stream, whose size does not show how many elements it contains */
    uint64_t begin, end;
    uint64_t stored; /* bytes of different elements */
} span;

typedef struct row {
    uint64_t step, count;
} row;

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t bytes_of(tsr_dtype dtype, uint64_t elements)
{
    const uint64_t bits = multiply(elements, tsr_dtype_describe(dtype)->bits);
    return bits / 8 + (bits % 8 != 0);
}

static int by_step(const void *a, const void *b)
{
    const row *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

/* Returns an upper limit for the number of different elements that these strides reach. *reach is the span from the first
 * element to the end of the last. */
static uint64_t count_distinct(uint32_t ndim, const uint64_t *sizes, const uint64_t *strides, uint64_t *reach)
{
    row rows[TSR_MAX_NDIM];
    uint32_t count = 0;
    uint64_t distinct = 1;
    *reach = 1;
    for (uint32_t d = 0; d < ndim && d < TSR_MAX_NDIM; d++) {
        if (sizes[d] < 2 || strides[d] == 0) continue;
        *reach = add(*reach, multiply(sizes[d] - 1, strides[d]));
        rows[count++] = (row){strides[d], sizes[d]};
    }
    qsort(rows, count, sizeof *rows, by_step);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        row *below = kept ? &rows[kept - 1] : NULL;
        const bool joins = below && rows[i].step % below->step == 0 && rows[i].step / below->step <= below->count;
        if (joins) below->count = add(below->count, multiply(rows[i].count - 1, rows[i].step / below->step));
        else rows[kept++] = rows[i];
    }
    for (uint32_t i = 0; i < kept; i++) distinct = multiply(distinct, rows[i].count);
    return distinct < *reach ? distinct : *reach;
}

static span span_at(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_view *view, const uint64_t *sizes)
{
    uint64_t elements = 1, reach, distinct;
    for (uint32_t d = 0; d < entry->ndim; d++) elements = multiply(elements, sizes[d]);
    reach = distinct = elements;
    if (view->strides) distinct = count_distinct(entry->ndim, sizes, view->strides, &reach);
    span s = {chunk->file, view->zstd, view->byte_offset, add(view->byte_offset, bytes_of(entry->dtype, reach)),
              bytes_of(entry->dtype, distinct)};
    if (view->zstd) s.begin = view->stream_offset, s.end = add(view->stream_offset, view->stream_length);
    return s;
}

/* The archive of a DCP item is a little larger than the elements. For a compressed one, the length does not show their
 * size. */
static tsr_status span_of_item(tsr_repeats *r, const tsr_entry *entry, const tsr_chunk *chunk, const uint64_t *sizes,
                               span *out, tsr_error *err)
{
    const tsr_view whole = {.file = chunk->file, .byte_offset = chunk->byte_offset};
    *out = span_at(entry, chunk, &whole, sizes);
    out->end = add(out->begin, chunk->byte_length);
    out->compressed = r->checkpoint->catalog.compressed;
    if (out->stored / TSR_REPEATS_MOST <= chunk->byte_length && out->compressed) return TSR_OK;
    /* Items do not overlap. If they do, they are not decompressed repeatedly. */
    if (!out->compressed || chunk->byte_length > r->to_locate) {
        if (out->stored > chunk->byte_length) out->stored = chunk->byte_length;
        return TSR_OK;
    }
    r->to_locate -= chunk->byte_length;
    tsr_view view;
    tsr_arena *scratch = tsr_arena_new(tsr_checkpoint_host(r->checkpoint)->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    const tsr_status status = tsr_checkpoint_locate(r->checkpoint, entry, chunk, scratch, &view, err);
    if (status == TSR_OK) *out = span_at(entry, chunk, &view, sizes);
    tsr_arena_free(scratch);
    return status;
}

static tsr_status span_of(tsr_repeats *r, const tsr_entry *entry, const tsr_chunk *chunk, const uint64_t *sizes, span *out,
                          tsr_error *err)
{
    const tsr_view raw = {.file = chunk->file, .byte_offset = chunk->byte_offset};
    const bool listed = tsr_catalog_has(&r->checkpoint->catalog, entry) || r->checkpoint->reader->input;
    if (!chunk->view && r->checkpoint->reader->locate && listed) return span_of_item(r, entry, chunk, sizes, out, err);
    *out = span_at(entry, chunk, chunk->view ? chunk->view : &raw, sizes);
    return TSR_OK;
}

static int by_place(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Counts the stored bytes of all spans together: each place once, and at most the bytes that the files have there. Sorts the
 * spans. */
static uint64_t count_stored(span *spans, size_t count)
{
    uint64_t total = 0;
    if (count > 1) qsort(spans, count, sizeof *spans, by_place);
    for (size_t i = 0; i < count;) {
        const span *first = &spans[i];
        uint64_t end = first->end, sum = 0;
        bool compressed = false;
        for (; i < count && spans[i].file == first->file && (&spans[i] == first || spans[i].begin < end); i++) {
            const bool again = &spans[i] != first && by_place(&spans[i], &spans[i - 1]) == 0;
            if (!again) sum = add(sum, spans[i].stored);
            else if (spans[i].stored > spans[i - 1].stored) sum = add(sum, spans[i].stored - spans[i - 1].stored);
            if (spans[i].end > end) end = spans[i].end;
            compressed = compressed || spans[i].compressed;
        }
        const uint64_t length = end - first->begin;
        total = add(total, compressed || sum < length ? sum : length);
    }
    return total;
}

void tsr_repeats_open(tsr_repeats *repeats, tsr_checkpoint *checkpoint)
{
    *repeats = (tsr_repeats){.checkpoint = checkpoint,
                             .spans = tsr_vec_of(tsr_checkpoint_host(checkpoint)->allocator, sizeof(span))};
    for (uint32_t f = 0; f < checkpoint->store->file_count; f++)
        repeats->to_locate = add(repeats->to_locate, checkpoint->store->files[f].size);
}

void tsr_repeats_close(tsr_repeats *repeats)
{
    tsr_vec_free(&repeats->spans);
    tsr_map_free(repeats->seen);
}

static tsr_status add_spans(tsr_repeats *r, const tsr_entry *entry, const tsr_box *box, tsr_error *err);

static int by_number(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Adds the spans of the tensors that files are computed from, once for each file. Sorts the files. */
static tsr_status add_inputs(tsr_repeats *r, tsr_vec *computed, tsr_error *err)
{
    uint32_t *files = computed->items;
    if (computed->count > 1) qsort(files, computed->count, sizeof *files, by_number);
    for (size_t i = 0; i < computed->count; i++)
        if (i == 0 || files[i] != files[i - 1])
            TSR_TRY(add_spans(r, r->checkpoint->reader->input(r->checkpoint, files[i]), NULL, err));
    return TSR_OK;
}

static tsr_status add_chunks(tsr_repeats *r, const tsr_entry *entry, const tsr_box *box, tsr_vec *computed, tsr_error *err)
{
    const tsr_reader *reader = r->checkpoint->reader;
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        const tsr_box own = {entry->ndim, chunk->offsets, chunk->sizes};
        if (chunk->file == TSR_NO_FILE || tsr_box_is_empty(own)) continue;
        if (box && !tsr_box_intersect(own, *box, offsets, sizes)) continue;
        const bool is_computed = reader->input && reader->input(r->checkpoint, chunk->file);
        void *added = tsr_vec_push(is_computed ? computed : &r->spans, err);
        if (!added) return TSR_E_NOMEM;
        if (is_computed) *(uint32_t *)added = chunk->file;
        else TSR_TRY(span_of(r, entry, chunk, box ? sizes : chunk->sizes, added, err));
    }
    return TSR_OK;
}

/* Adds the spans of all chunks that intersect the box. A computed file has those of the tensor that it is computed from. */
static tsr_status add_spans(tsr_repeats *r, const tsr_entry *entry, const tsr_box *box, tsr_error *err)
{
    tsr_vec computed = tsr_vec_of(tsr_checkpoint_host(r->checkpoint)->allocator, sizeof(uint32_t));
    tsr_status status = add_chunks(r, entry, box, &computed, err);
    if (status == TSR_OK) status = add_inputs(r, &computed, err);
    tsr_vec_free(&computed);
    return status;
}

static void note(tsr_repeats *r, const tsr_entry *entry, uint64_t bytes, uint64_t stored)
{
    if (r->count < TSR_REPEATS_NAMED) {
        r->named[r->count].fqn = r->holder.size ? r->holder : entry->fqn;
        r->named[r->count].entry = entry;
        r->named[r->count].bytes = bytes;
        r->named[r->count].stored = stored;
    }
    r->count++;
    r->repeated = add(r->repeated, bytes);
}

tsr_status tsr_repeats_add(tsr_repeats *repeats, const tsr_entry *entry, const uint64_t *offsets, const uint64_t *sizes,
                           bool *counts, tsr_error *err)
{
    const tsr_box box = {entry->ndim, offsets, sizes};
    const size_t before = repeats->spans.count;
    uint64_t elements = 1;
    if (counts) *counts = false;
    if (entry->kind != TSR_ENTRY_TENSOR) {
        repeats->holder = entry->fqn;
        const tsr_status status = entry->value ? tsr_repeats_add_value(repeats, entry->value, err) : TSR_OK;
        repeats->holder = (tsr_str){NULL, 0};
        return status;
    }
    if (entry->ndim > TSR_MAX_NDIM) return TSR_OK; /* the caller's job will refuse it */
    for (uint32_t d = 0; d < entry->ndim; d++) elements = multiply(elements, sizes ? sizes[d] : entry->shape[d]);
    if (elements == 0) return TSR_OK;
    TSR_TRY(add_spans(repeats, entry, sizes ? &box : NULL, err));
    const uint64_t bytes = bytes_of(entry->dtype, elements);
    const uint64_t stored = count_stored((span *)repeats->spans.items + before, repeats->spans.count - before);
    repeats->total = add(repeats->total, bytes);
    const bool many = stored && bytes / TSR_REPEATS_MOST >= stored && bytes > multiply(stored, TSR_REPEATS_MOST);
    if (many) note(repeats, entry, bytes, stored);
    if (counts) *counts = many;
    return TSR_OK;
}

static tsr_status push_value(tsr_vec *stack, const tsr_value *value, tsr_error *err)
{
    if (!value || (value->kind != TSR_VALUE_TENSOR && !value->count && !tsr_value_attributes(value))) return TSR_OK;
    const tsr_value **top = tsr_vec_push(stack, err);
    if (top) *top = value;
    return top ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status visit_value(tsr_repeats *r, tsr_vec *stack, const tsr_value *value, tsr_error *err)
{
    bool fresh;
    const tsr_entry *const *of = &value->as.tensor;
    const bool tensor = value->kind == TSR_VALUE_TENSOR;
    if (tensor && !*of) return TSR_OK;
    const tsr_str key =
        tensor ? (tsr_str){(const char *)of, sizeof *of} : (tsr_str){(const char *)&value->items, sizeof value->items};
    TSR_TRY(tsr_map_put(r->seen, key, 1, NULL, &fresh, err));
    if (!fresh) return TSR_OK;
    if (tensor) return tsr_repeats_add(r, *of, NULL, NULL, NULL, err);
    TSR_TRY(push_value(stack, tsr_value_attributes(value), err));
    for (size_t i = 0; i < value->count; i++) TSR_TRY(push_value(stack, value->items[i], err));
    return TSR_OK;
}

tsr_status tsr_repeats_add_value(tsr_repeats *repeats, const tsr_value *value, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(repeats->checkpoint)->allocator;
    if (!repeats->seen) repeats->seen = tsr_map_new(allocator, 0, err);
    if (!repeats->seen) return TSR_E_NOMEM;
    tsr_vec stack = tsr_vec_of(allocator, sizeof(const tsr_value *));
    tsr_status status = push_value(&stack, value, err);
    while (status == TSR_OK && stack.count)
        status = visit_value(repeats, &stack, ((const tsr_value **)stack.items)[--stack.count], err);
    tsr_vec_free(&stack);
    return status;
}

bool tsr_repeats_too_many(tsr_repeats *repeats)
{
    const uint64_t most = tsr_checkpoint_host(repeats->checkpoint)->limits.repetition;
    if (repeats->repeated > most) return true;
    if (repeats->total <= multiply(most, 64)) return false;
    const uint64_t stored = count_stored(repeats->spans.items, repeats->spans.count);
    return stored && repeats->total > multiply(stored, TSR_REPEATS_MOST);
}

static void put_bytes(tsr_line *line, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    char text[TSR_REAL_TEXT];
    double value = (double)bytes;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1024;
    tsr_real_text(value, unit ? 2 + (value >= 10) + (value >= 100) + (value >= 1000) : 4, text); /* 1 decimal */
    tsr_line_format(line, "%s%s %s", text, unit && !strchr(text, '.') ? ".0" : "", units[unit]);
}

static void put_names(const tsr_repeats *r, tsr_line *line)
{
    for (size_t i = 0; i < r->count && i < TSR_REPEATS_NAMED; i++) {
        const tsr_str name = r->named[i].fqn;
        const bool cut = name.size > LONGEST_NAME;
        tsr_line_format(line, "%s'%.*s%s' (", i ? ", " : "", cut ? LONGEST_NAME : (int)name.size, name.data ? name.data : "",
                        cut ? "…" : "");
        put_bytes(line, r->named[i].bytes);
        tsr_line_format(line, " from ");
        put_bytes(line, r->named[i].stored);
        tsr_line_format(line, " stored)");
    }
    if (r->count > TSR_REPEATS_NAMED) tsr_line_format(line, ", …");
}

tsr_status tsr_repeats_check(tsr_repeats *repeats, tsr_error *err)
{
    char names[400], sum[40], limit[40];
    const bool one = repeats->count == 1;
    const uint64_t most = tsr_checkpoint_host(repeats->checkpoint)->limits.repetition;
    tsr_line line = tsr_line_on(names, sizeof names), of_sum = tsr_line_on(sum, sizeof sum),
             of_limit = tsr_line_on(limit, sizeof limit);
    if (!tsr_repeats_too_many(repeats)) return TSR_OK;
    const bool counted = repeats->repeated > most;
    put_bytes(&of_sum, counted ? repeats->repeated : repeats->total);
    put_bytes(&of_limit, most);
    put_names(repeats, &line);
    TSR_FAIL_IF(!counted, err, TSR_E_LIMIT,
                "the tensors overlap so much that they would expand to %s, more than %u times their stored bytes; select "
                "fewer, or pass --allow-expansion",
                sum, TSR_REPEATS_MOST);
    return tsr_fail(
        err, TSR_E_LIMIT,
        "%llu tensor%s repeat%s stored elements more than %u times and would expand to %s; at most %s is allowed: "
        "%s; leave %s out, or pass --allow-expansion",
        (unsigned long long)repeats->count, one ? "" : "s", one ? "s" : "", TSR_REPEATS_MOST, sum, limit, names,
        one ? "it" : "them");
}

tsr_status tsr_repeats_check_catalog(tsr_checkpoint *checkpoint, const tsr_selection *selection, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, checkpoint);
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && tsr_selection_keeps(selection, entry->fqn))
            status = tsr_repeats_add(&repeats, entry, NULL, NULL, NULL, err);
    }
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

tsr_status tsr_repeats_check_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, const uint64_t *offsets,
                                 const uint64_t *sizes, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_repeats_open(&repeats, checkpoint);
    tsr_status status = tsr_repeats_add(&repeats, entry, offsets, sizes, NULL, err);
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}
