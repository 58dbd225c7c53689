/* See salvage_items.h. An archive ends with its end record, 22 bytes from "PK\5\6" on (torch.save writes no comment). The
 * same four bytes may stand among a tensor's, so a candidate counts only when the bytes up to it are an archive whole. */
#include "formats/salvage_items.h"

#include "base/try.h"
#include "formats/torch_item.h"

enum { END_RECORD = 22, WINDOW = 1 << 20 };

static const char end_signature[4] = {'P', 'K', 5, 6};

typedef struct finder {
    tsr_store *store;
    const tsr_host *host;
    uint32_t file;
    uint64_t size;
    tsr_arena *arena;
    tsr_findings *findings;
    char *window; /* WINDOW bytes */
    bool (*step)(void *ctx, uint64_t byte_at);
    void *ctx;
} finder;

/* The first end record at or behind `from`, or `size`. */
static tsr_status find_end(const finder *f, uint64_t from, uint64_t *out, tsr_error *err)
{
    for (*out = f->size; from + END_RECORD <= f->size;) {
        const uint64_t left = f->size - from;
        const size_t n = left < WINDOW ? (size_t)left : WINDOW;
        TSR_FAIL_IF(f->step && !f->step(f->ctx, from), err, TSR_E_CANCELLED, TSR_NO_POSITION, "interrupted");
        TSR_TRY(tsr_store_read(f->store, f->file, from, f->window, n, err));
        for (const char *at = f->window; (at = memchr(at, 'P', n - (size_t)(at - f->window))); at++) {
            const size_t i = (size_t)(at - f->window);
            if (i + sizeof end_signature > n) break;
            if (memcmp(at, end_signature, sizeof end_signature) != 0) continue;
            *out = from + i;
            return TSR_OK;
        }
        if (n < WINDOW) return TSR_OK;
        from += n - (sizeof end_signature - 1);
    }
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
    item->rank = tensor->rank;
    item->sizes = tensor->shape;
    return TSR_OK;
}

/* The archive at `offset`; *end is `offset` where there is none. */
static tsr_status take_archive(const finder *f, uint64_t offset, tsr_vec *out, uint64_t *end, tsr_error *err)
{
    tsr_torch_item item;
    for (uint64_t at = offset; at < f->size; at++) {
        tsr_error why = {0};
        TSR_TRY(find_end(f, at, &at, err));
        if (at + END_RECORD > f->size) break;
        *end = at + END_RECORD;
        const tsr_status status = tsr_torch_item_open(f->store, f->host, f->file, offset, *end - offset, f->arena, NULL, &item, &why);
        if (status == TSR_OK) return keep(out, &item, offset, *end - offset, err);
        TSR_FAIL_IF(status == TSR_E_NOMEM || status == TSR_E_IO, err, status, why.byte_position, "%s", why.message);
    }
    *end = offset;
    return TSR_OK;
}

static tsr_status take_archives(const finder *f, tsr_vec *out, tsr_error *err)
{
    const tsr_str name = f->store->files[f->file].name;
    for (uint64_t at = 0, end; at < f->size; at = end) {
        TSR_TRY(take_archive(f, at, out, &end, err));
        if (end > at) continue;
        const tsr_place place = {name, at, {NULL, 0}};
        return tsr_find(f->findings, "repair/no-item", place, err,
                        "the last %llu bytes of '%.*s' are no whole item: they were cut off or overwritten",
                        (unsigned long long)(f->size - at), TSR_STR_ARG(name));
    }
    return TSR_OK;
}

tsr_status tsr_salvage_file(tsr_store *store, const tsr_host *host, uint32_t file, tsr_arena *arena, tsr_findings *findings,
                            bool (*step)(void *ctx, uint64_t byte_at), void *ctx, tsr_vec *out, tsr_error *err)
{
    finder f = {store, host, file, store->files[file].size, arena, findings, NULL, step, ctx};
    f.window = tsr_alloc(host->allocator, WINDOW, 1, err);
    if (!f.window) return TSR_E_NOMEM;
    const tsr_status status = take_archives(&f, out, err);
    tsr_free(host->allocator, f.window, WINDOW, 1);
    return status;
}
