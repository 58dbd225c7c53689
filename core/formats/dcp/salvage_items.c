/* See salvage_items.h. An archive ends with its end record, the 22 bytes from "PK\5\6" on (torch.save writes no comment).
 * The elements of a tensor may contain the same four bytes, so a candidate counts only if its record says that the central
 * directory ends just before it, and if the bytes up to it can be opened as an archive. */
#include "formats/dcp/salvage_items.h"

#include "base/cursor.h"
#include "formats/torch/torch_item.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/store_read.h"

enum {
    END_RECORD = 22,
    ZIP64_RECORDS = 56 + 20, /* end record and locator, between the directory and the end record */
    WINDOW = 1 << 20,
    FALSE_ENDS = 64 /* candidates tried per item; in real data, false ones fail the checks of is_end */
};

static const char end_signature[4] = {'P', 'K', 5, 6};

typedef struct finder {
    const tsr_salvage_job *job;
    uint32_t file;
    uint64_t size;
    char *window; /* WINDOW bytes; the first `held` are the file's bytes from window_at on */
    uint64_t window_at;
    size_t held;
} finder;

/* Sets *out to the bytes [offset, offset + size) of the file. Moves the window there if it does not contain them. */
static tsr_status look(finder *f, uint64_t offset, size_t size, const char **out, tsr_error *err)
{
    if (offset < f->window_at || offset + size > f->window_at + f->held) {
        const uint64_t left = f->size - offset;
        TSR_FAIL_IF(f->job->step && !f->job->step(f->job->ctx, offset), err, TSR_E_CANCELLED, "interrupted");
        f->window_at = offset;
        f->held = left < WINDOW ? (size_t)left : WINDOW;
        TSR_TRY(tsr_store_read(f->job->store, f->file, offset, f->window, f->held, err));
    }
    *out = f->window + (offset - f->window_at);
    return TSR_OK;
}

/* The position of the first end record at or after `from`, or the file's size if there is none. */
static tsr_status find_end(finder *f, uint64_t from, uint64_t *out, tsr_error *err)
{
    for (*out = f->size; from + END_RECORD <= f->size;) {
        const char *begin;
        TSR_TRY(look(f, from, END_RECORD, &begin, err));
        const size_t n = f->held - (size_t)(from - f->window_at);
        for (const char *at = begin; (at = memchr(at, 'P', n - (size_t)(at - begin))); at++) {
            const size_t i = (size_t)(at - begin);
            if (i + sizeof end_signature > n) break;
            if (memcmp(at, end_signature, sizeof end_signature) != 0) continue;
            *out = from + i;
            return TSR_OK;
        }
        if (from + n == f->size) return TSR_OK;
        from += n - (sizeof end_signature - 1);
    }
    return TSR_OK;
}

/* Whether the end record at `at` can be that of an archive that begins at `offset`. */
static tsr_status is_end(finder *f, uint64_t offset, uint64_t at, bool *out, tsr_error *err)
{
    const char *text;
    TSR_TRY(look(f, at, END_RECORD, &text, err));
    const uint8_t *record = (const uint8_t *)text;
    const uint64_t count = tsr_load_le(record + 10, 2), size = tsr_load_le(record + 12, 4),
                   from = tsr_load_le(record + 16, 4);
    const uint64_t room = at - offset;
    const bool wide = size == UINT32_MAX || from == UINT32_MAX || count == UINT16_MAX;
    const bool meets = size + from == room || size + from + ZIP64_RECORDS == room;
    *out = count > 0 && tsr_load_le(record + 20, 2) == 0 && (wide ? room > ZIP64_RECORDS : meets);
    return TSR_OK;
}

static tsr_status keep(tsr_vec *out, const tsr_torch_item *opened, uint64_t offset, uint64_t size, tsr_error *err)
{
    tsr_salvaged_item *item = tsr_vec_push(out, err);
    if (!item) return TSR_E_NOMEM;
    *item = (tsr_salvaged_item){.byte_offset = offset, .byte_length = size};
    if (opened->root->kind != TSR_VALUE_TENSOR) return TSR_OK;
    const tsr_entry *tensor = opened->root->as.tensor;
    item->tensor = true;
    item->requires_grad = tensor->requires_grad;
    item->dtype = tensor->dtype;
    item->ndim = tensor->ndim;
    item->sizes = tensor->shape;
    return TSR_OK;
}

/* Appends the item whose archive begins at `offset`, and sets *end after it. If there is none, *end is `offset`. */
static tsr_status take_archive(finder *f, uint64_t offset, tsr_vec *out, uint64_t *end, tsr_error *err)
{
    tsr_torch_item item;
    unsigned false_ends = 0;
    for (uint64_t at = offset; at < f->size && false_ends < FALSE_ENDS; at++) {
        tsr_error why = {0};
        bool likely;
        TSR_TRY(find_end(f, at, &at, err));
        if (at + END_RECORD > f->size) break;
        TSR_TRY(is_end(f, offset, at, &likely, err));
        if (!likely) continue;
        false_ends++;
        *end = at + END_RECORD;
        const tsr_torch_source from = {.range = {f->job->store, f->file, offset, *end - offset}};
        const tsr_status status = tsr_torch_item_open(&from, f->job->host, f->job->arena, NULL, &item, &why);
        if (status == TSR_OK) return keep(out, &item, offset, *end - offset, err);
        TSR_FAIL_AT(status == TSR_E_NOMEM || status == TSR_E_IO, err, status, why.byte_position, "%s", why.message);
    }
    *end = offset;
    return TSR_OK;
}

static tsr_status take_archives(finder *f, tsr_vec *out, tsr_error *err)
{
    const tsr_str name = f->job->store->files[f->file].name;
    for (uint64_t at = 0, end; at < f->size; at = end) {
        TSR_TRY(take_archive(f, at, out, &end, err));
        if (end > at) continue;
        const tsr_place place = {name, at, {NULL, 0}};
        return tsr_finding_add(f->job->findings, "repair/no-item", place, err,
                               "the last %llu bytes of '%.*s' are an incomplete item, truncated or overwritten",
                               (unsigned long long)(f->size - at), TSR_STR_ARG(name));
    }
    return TSR_OK;
}

tsr_status tsr_salvage_file(const tsr_salvage_job *job, uint32_t file, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = job->host->allocator;
    finder f = {
        .job = job, .file = file, .size = job->store->files[file].size, .window = tsr_alloc(allocator, WINDOW, 1, err)};
    if (!f.window) return TSR_E_NOMEM;
    const tsr_status status = take_archives(&f, out, err);
    tsr_free(allocator, f.window, WINDOW, 1);
    return status;
}
