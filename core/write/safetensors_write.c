/* Writes safetensors files: the headers with formats/safetensors_header, and the tensors with write items in the order in which
 * they are stored. */
#include "write/safetensors_write.h"

#include <stdlib.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* The dtype and shape of a piece in PyTorch's elements. For float6, which a gather treats as bytes, those of its entry. */
static tsr_status describe(const tsr_safetensors_output *piece, uint64_t tag, tsr_arena *arena, tsr_safetensors_item *out,
                           tsr_error *err)
{
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(piece->entry, &packed, err));
    const bool as_entry = tsr_dtype_describe(piece->entry->dtype)->bits == 6;
    const uint32_t ndim = as_entry ? piece->entry->ndim : packed.ndim;
    uint64_t *shape = tsr_arena_array(arena, ndim, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    memcpy(shape, as_entry ? piece->entry->shape : piece->sizes ? piece->sizes : packed.shape, ndim * sizeof *shape);
    *out = (tsr_safetensors_item){.name = piece->name, .shape = shape, .ndim = ndim, .tag = tag};
    out->dtype = !as_entry && piece->dtype == piece->entry->dtype ? packed.dtype : piece->dtype;
    return TSR_OK;
}

/* Lays out file `f`, whose pieces begin at *at, and moves *at after them. */
static tsr_status lay_out_file(const tsr_safetensors_layout *layout, uint32_t f, size_t *at, const tsr_host *host,
                               tsr_arena *arena, tsr_error *err)
{
    tsr_safetensors_file *file = &layout->files[f];
    const tsr_safetensors_output *pieces = layout->pieces + *at;
    tsr_write_item *write_items = layout->write_items + *at;
    size_t count = 0;
    while (*at + count < layout->piece_count && pieces[count].file == f) count++;
    tsr_safetensors_item *items = tsr_arena_array(arena, count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) TSR_TRY(describe(&pieces[i], i, arena, &items[i], err));
    file->plan = (tsr_safetensors_plan){
        .items = items, .count = count, .pairs = file->pairs, .pair_count = file->pair_count, .unsummed = layout->unsummed};
    TSR_TRY(tsr_safetensors_plan_file(&file->plan, host->allocator, err));
    for (size_t i = 0; i < count; i++) {
        const tsr_safetensors_output *p = &pieces[items[i].tag];
        write_items[i] = (tsr_write_item){.entry = p->entry,
                                          .offsets = p->offsets,
                                          .sizes = p->sizes,
                                          .dtype = p->dtype,
                                          .file = p->file,
                                          .byte_offset = file->plan.header_size + items[i].begin};
        TSR_TRY(tsr_write_item_measure(p->entry, p->sizes, p->dtype, &write_items[i].byte_length, err));
    }
    file->size = file->plan.header_size + file->plan.data_size;
    *at += count;
    return TSR_OK;
}

tsr_status tsr_safetensors_lay_out(tsr_safetensors_layout *layout, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    size_t at = 0;
    layout->host = host;
    layout->write_items = tsr_arena_array(arena, layout->piece_count, sizeof *layout->write_items, err);
    if (!layout->write_items) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < layout->file_count; f++) TSR_TRY(lay_out_file(layout, f, &at, host, arena, err));
    return TSR_OK;
}

tsr_status tsr_safetensors_carry(tsr_text_pairs source, tsr_text_pairs more, tsr_arena *arena, tsr_safetensors_file *file,
                                 tsr_error *err)
{
    tsr_text_pair *pairs = tsr_arena_array(arena, source.count + more.count + 1, sizeof *pairs, err);
    tsr_map *replaced = tsr_map_new(tsr_arena_allocator(arena), more.count, err);
    tsr_status status = pairs && replaced ? TSR_OK : TSR_E_NOMEM;
    file->pairs = pairs;
    file->pair_count = 0;
    for (size_t i = 0; i < more.count && status == TSR_OK; i++)
        status = tsr_map_put(replaced, more.pairs[i].key, 1, NULL, NULL, err);
    for (size_t i = 0; i < source.count && status == TSR_OK; i++) {
        const tsr_str key = source.pairs[i].key;
        if (!tsr_str_equal(key, TSR_STR(TSR_SAFETENSORS_SHARDING)) && !tsr_map_get(replaced, key, 0))
            pairs[file->pair_count++] = source.pairs[i];
    }
    tsr_map_free(replaced);
    if (status != TSR_OK) return status;
    if (!file->pair_count) pairs[file->pair_count++] = (tsr_text_pair){TSR_STR("format"), TSR_STR("pt")};
    for (size_t i = 0; i < more.count; i++) pairs[file->pair_count++] = more.pairs[i];
    return TSR_OK;
}

typedef struct header_sink {
    const tsr_sink *sink;
    uint32_t file;
    uint64_t at;
} header_sink;

static tsr_status write_header(void *ctx, const char *data, size_t size, tsr_error *err)
{
    header_sink *header = ctx;
    TSR_TRY(tsr_sink_write(header->sink, header->file, header->at, data, size, err));
    header->at += size;
    return TSR_OK;
}

/* ---- checksums ---- */

/* The CRCs of the data sections are those of the write items, joined in the order in which they are stored. */

static int by_place(const void *a, const void *b)
{
    const tsr_write_item *x = *(const tsr_write_item *const *)a, *y = *(const tsr_write_item *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->byte_offset > y->byte_offset) - (x->byte_offset < y->byte_offset);
}

typedef struct header_sum {
    const tsr_host *host;
    uint32_t crc;
} header_sum;

static tsr_status add_to_sum(void *ctx, const char *data, size_t size, tsr_error *err)
{
    header_sum *sum = ctx;
    (void)err;
    sum->crc = tsr_crc32(sum->host, sum->crc, data, size);
    return TSR_OK;
}

/* The checksum of a file: of its header without digits, and of its data. */
static tsr_status sum_file(const tsr_safetensors_file *file, const tsr_host *host, uint32_t data, uint32_t *out,
                           tsr_error *err)
{
    header_sum sum = {host, 0};
    TSR_TRY(tsr_safetensors_write_header(&file->plan, 0, add_to_sum, &sum, err));
    *out = tsr_crc32_join(sum.crc, data, file->plan.data_size);
    return TSR_OK;
}

static tsr_status write_sorted(const tsr_safetensors_layout *layout, const tsr_write_item *const *write_items,
                               const tsr_sink *sink, tsr_error *err)
{
    for (uint32_t f = 0, b = 0; f < layout->file_count; f++) {
        const tsr_safetensors_file *file = &layout->files[f];
        header_sink header = {sink, f, 0};
        uint32_t data = 0, crc = 0;
        for (; write_items && b < layout->piece_count && write_items[b]->file == f; b++)
            data = tsr_crc32_join(data, write_items[b]->crc, write_items[b]->byte_length);
        if (write_items) TSR_TRY(sum_file(file, layout->host, data, &crc, err));
        TSR_TRY(tsr_safetensors_write_header(&file->plan, crc, write_header, &header, err));
    }
    return TSR_OK;
}

/* The write items, whose CRCs are known unless the layout is unsummed, may be in another order. */
static tsr_status write_headers(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    const tsr_safetensors_layout *layout = stage->ctx;
    const tsr_allocator *allocator = layout->host->allocator;
    if (layout->unsummed) return write_sorted(layout, NULL, sink, err);
    const size_t count = layout->piece_count;
    const tsr_write_item **sorted = tsr_alloc(allocator, count, sizeof *sorted, err);
    if (!sorted) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) sorted[i] = &layout->write_items[i];
    if (count) qsort(sorted, count, sizeof *sorted, by_place);
    const tsr_status status = write_sorted(layout, sorted, sink, err);
    tsr_free(allocator, sorted, count, sizeof *sorted);
    return status;
}

tsr_status tsr_safetensors_stage(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    const tsr_safetensors_layout *layout = ctx;
    (void)number, (void)arena, (void)err;
    *out = (tsr_stage){.write_items = layout->write_items, .count = layout->piece_count, .rest = write_headers, .ctx = ctx};
    return TSR_OK;
}
