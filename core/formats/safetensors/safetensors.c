/* Opens safetensors files: reads the length and scans the header, then checks what the header can only show as a whole:
 * duplicate names, data offsets that leave gaps or overlap, and a file that is too short or too long. */
#include "formats/safetensors/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/cursor.h"
#include "base/utf8.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum { LENGTH_SIZE = 8 };

/* The bytes of a tensor, for checking that all tensors together have no gaps. */
typedef struct span {
    uint64_t begin, end;
    const tsr_safetensors_tensor *tensor;
} span;

static int compare_spans(const void *left, const void *right)
{
    const span *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

static tsr_status check_next(const tsr_safetensors_tensor *tensor, uint64_t expected, tsr_error *err)
{
    TSR_FAIL_AT(tensor->begin != expected, err, TSR_E_FORMAT, tensor->position,
                "safetensors: data_offsets of '%.*s' begin at %" PRIu64 ", but the tensors before it end at %" PRIu64,
                TSR_STR_ARG(tensor->name), tensor->begin, expected);
    return TSR_OK;
}

static tsr_status check_sorted(const tsr_safetensors *opened, const tsr_allocator *allocator, uint64_t *end, tsr_error *err)
{
    span *spans = tsr_alloc(allocator, (size_t)opened->count, sizeof *spans, err);
    if (!spans) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < opened->count; i++)
        spans[i] = (span){opened->tensors[i].begin, opened->tensors[i].end, &opened->tensors[i]};
    qsort(spans, (size_t)opened->count, sizeof *spans, compare_spans);
    tsr_status status = TSR_OK;
    *end = 0;
    for (uint64_t i = 0; i < opened->count && status == TSR_OK; i++) {
        status = check_next(spans[i].tensor, *end, err);
        *end = spans[i].end;
    }
    tsr_free(allocator, spans, (size_t)opened->count, sizeof *spans);
    return status;
}

/* Sets *end to the bytes that the data section must have. Headers usually list the tensors in the order of their data; if
 * not, they are sorted. */
static tsr_status check_offsets(const tsr_safetensors *opened, const tsr_allocator *allocator, uint64_t *end, tsr_error *err)
{
    *end = 0;
    for (uint64_t i = 0; i < opened->count; i++) {
        if (opened->tensors[i].begin != *end) return check_sorted(opened, allocator, end, err);
        *end = opened->tensors[i].end;
    }
    return TSR_OK;
}

static tsr_status check_end(const tsr_safetensors *opened, uint64_t end, tsr_str name, tsr_findings *findings,
                            tsr_error *err)
{
    tsr_place place = {name, opened->data_offset + (end < opened->data_size ? end : opened->data_size), {NULL, 0}};
    if (end == opened->data_size || !findings) return TSR_OK;
    return tsr_finding_add(findings, end > opened->data_size ? "safetensors/truncated" : "safetensors/trailing-bytes", place,
                           err, "the tensors need %" PRIu64 " bytes of data, but the file contains %" PRIu64, end,
                           opened->data_size);
}

static tsr_status note_alignment(const tsr_safetensors *opened, tsr_str name, tsr_findings *findings, tsr_error *err)
{
    const tsr_safetensors_tensor *first = NULL;
    uint64_t count = 0;
    for (uint64_t i = 0; i < opened->count; i++) {
        const tsr_safetensors_tensor *t = &opened->tensors[i];
        uint32_t unit = tsr_dtype_describe(t->dtype)->swap_bytes;
        if (t->end == t->begin || (opened->data_offset + t->begin) % unit == 0) continue;
        if (!first) first = t;
        count++;
    }
    if (!first || !findings) return TSR_OK;
    tsr_place place = {name, opened->data_offset + first->begin, first->name};
    return tsr_finding_add(findings, "safetensors/misaligned", place, err,
                           "%" PRIu64 " %s begin at a multiple of %s element's size", count,
                           count == 1 ? "tensor does not" : "tensors do not", count == 1 ? "its" : "their");
}

static tsr_status check_names(tsr_safetensors *opened, const tsr_allocator *allocator, tsr_error *err)
{
    uint64_t duplicate;
    TSR_TRY(tsr_name_index_new(allocator, TSR_NAMED_ITEMS(opened->tensors, opened->count), &opened->names, &duplicate, err));
    if (duplicate == TSR_NO_NAME) return TSR_OK;
    const tsr_safetensors_tensor *second = &opened->tensors[duplicate];
    const tsr_safetensors_tensor *first = &opened->tensors[tsr_name_index_find(opened->names, second->name)];
    return tsr_raise(err, TSR_E_FORMAT, second->position, "safetensors: duplicate name '%.*s', first at byte %" PRIu64,
                     TSR_STR_ARG(second->name), first->position);
}

/* Keeps each key once, at the place of the first one of that name and with the value of the last. */
static tsr_status keep_metadata(tsr_safetensors *opened, const tsr_vec *pairs, tsr_arena *arena, tsr_str name,
                                tsr_findings *findings, tsr_error *err)
{
    uint64_t duplicate;
    tsr_name_index *index;
    const tsr_text_pair *all = pairs->items;
    tsr_text_pair *kept = tsr_arena_array(arena, pairs->count, sizeof *kept, err);
    size_t *places = tsr_alloc(pairs->allocator, pairs->count, sizeof *places, err);
    tsr_status status = kept && places ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK)
        status = tsr_name_index_new(pairs->allocator, TSR_NAMED_ITEMS(all, pairs->count), &index, &duplicate, err);
    if (status == TSR_OK) {
        for (size_t i = 0; i < pairs->count; i++) {
            const size_t first = (size_t)tsr_name_index_find(index, all[i].key);
            places[i] = first == i ? opened->metadata_count++ : places[first];
            kept[places[i]] = all[i];
        }
        opened->metadata = kept;
        tsr_name_index_free(index);
    }
    tsr_free(pairs->allocator, places, pairs->count, sizeof *places);
    if (status != TSR_OK || duplicate == TSR_NO_NAME || !findings) return status;
    return tsr_finding_add(findings, "safetensors/duplicate-metadata-key", (tsr_place){name, TSR_NO_POSITION, {NULL, 0}},
                           err, "__metadata__ has the key '%.*s' twice; the last value counts",
                           TSR_STR_ARG(all[duplicate].key));
}

bool tsr_safetensors_may_be_second(tsr_str key)
{
    return key.size && !memchr(key.data, 0, key.size) && tsr_utf8_check(key) == key.size &&
           !tsr_str_equal(key, TSR_STR("format")) && !tsr_str_equal(key, TSR_STR("__metadata__")) &&
           !tsr_str_equal(key, TSR_STR("DCP_VERSION")) && !tsr_str_equal(key, TSR_STR(TSR_SAFETENSORS_SHARDING)) &&
           !tsr_safetensors_is_own_key(key);
}

static tsr_status find_seconds(tsr_safetensors *opened, const tsr_allocator *allocator, tsr_arena *arena, tsr_error *err)
{
    tsr_vec found = tsr_vec_of(allocator, sizeof(tsr_safetensors_second));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < opened->metadata_count && status == TSR_OK; i++) {
        const tsr_text_pair *pair = &opened->metadata[i];
        const uint64_t tensor =
            tsr_safetensors_may_be_second(pair->key) ? tsr_name_index_find(opened->names, pair->value) : TSR_NO_NAME;
        if (tensor == TSR_NO_NAME || tsr_name_index_find(opened->names, pair->key) != TSR_NO_NAME) continue;
        tsr_safetensors_second *second = tsr_vec_push(&found, err);
        if (second) *second = (tsr_safetensors_second){.pair = i, .tensor = tensor};
        else status = TSR_E_NOMEM;
    }
    if (status == TSR_OK && found.count) {
        opened->seconds = tsr_arena_array(arena, found.count, sizeof *opened->seconds, err);
        if (!opened->seconds) status = TSR_E_NOMEM;
    }
    if (opened->seconds) {
        memcpy(opened->seconds, found.items, found.count * sizeof *opened->seconds);
        opened->second_count = found.count;
    }
    tsr_vec_free(&found);
    return status;
}

static tsr_status check_whole(tsr_safetensors *opened, const tsr_safetensors_scan *scan, tsr_error *err)
{
    uint64_t end;
    TSR_TRY(check_names(opened, scan->tensors.allocator, err));
    TSR_TRY(check_offsets(opened, scan->tensors.allocator, &end, err));
    TSR_TRY(check_end(opened, end, scan->file_name, scan->findings, err));
    TSR_TRY(note_alignment(opened, scan->file_name, scan->findings, err));
    if (!scan->has_metadata) return TSR_OK;
    TSR_TRY(keep_metadata(opened, &scan->metadata, scan->arena, scan->file_name, scan->findings, err));
    return find_seconds(opened, scan->tensors.allocator, scan->arena, err);
}

static tsr_status read_length(tsr_store *store, uint32_t file, uint64_t offset, uint64_t size, uint64_t *length,
                              tsr_error *err)
{
    uint8_t bytes[LENGTH_SIZE];
    TSR_FAIL_AT(size < LENGTH_SIZE, err, TSR_E_FORMAT, offset,
                "safetensors: %" PRIu64 " bytes are too few for the header's length", size);
    TSR_TRY(tsr_store_read(store, file, offset, bytes, LENGTH_SIZE, err));
    *length = tsr_load_le(bytes, LENGTH_SIZE);
    bool is_text = true;
    for (size_t i = 0; i < LENGTH_SIZE; i++) is_text = is_text && bytes[i] >= ' ' && bytes[i] <= '~';
    TSR_FAIL_AT(
        is_text, err, TSR_E_FORMAT, offset,
        "safetensors: the file begins with the text '%.*s' instead of the header's length; it may be the answer of a server "
        "to a failed download",
        LENGTH_SIZE, (const char *)bytes);
    TSR_FAIL_AT(*length > TSR_SAFETENSORS_MAX_HEADER, err, TSR_E_FORMAT, offset,
                "safetensors: the header has %" PRIu64 " bytes, but the format allows only %u", *length,
                TSR_SAFETENSORS_MAX_HEADER);
    TSR_FAIL_AT(*length > size - LENGTH_SIZE, err, TSR_E_FORMAT, offset,
                "safetensors: the header should have %" PRIu64 " bytes, but only %" PRIu64 " follow its length", *length,
                size - LENGTH_SIZE);
    return TSR_OK;
}

static tsr_status open_image(tsr_range in, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                             tsr_safetensors *out, tsr_error *err)
{
    const uint64_t offset = in.byte_offset, size = in.byte_length;
    uint64_t length = 0;
    tsr_bytes header;
    TSR_TRY(read_length(in.store, in.file, offset, size, &length, err));
    TSR_TRY(tsr_range_load((tsr_range){in.store, in.file, offset + LENGTH_SIZE, length}, host, &header, err));
    tsr_safetensors_scan scan = {.header = header.data,
                                 .byte_base = offset + LENGTH_SIZE,
                                 .file_name = in.store->files[in.file].name,
                                 .arena = arena,
                                 .findings = findings,
                                 .max_entries = host->limits.entries};
    scan.tensors = tsr_vec_of(host->allocator, sizeof(tsr_safetensors_tensor));
    scan.metadata = tsr_vec_of(host->allocator, sizeof(tsr_text_pair));
    tsr_status status = tsr_safetensors_scan_header(&scan, err);
    tsr_bytes_free(&header);
    out->list = scan.tensors;
    out->tensors = scan.tensors.items;
    out->count = scan.tensors.count;
    out->sum = scan.sum;
    out->data_offset = offset + LENGTH_SIZE + length;
    out->data_size = size - LENGTH_SIZE - length;
    if (status == TSR_OK) status = check_whole(out, &scan, err);
    tsr_vec_free(&scan.metadata);
    return status;
}

tsr_status tsr_safetensors_open(tsr_range in, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                                tsr_safetensors *out, tsr_error *err)
{
    *out = (tsr_safetensors){.file = in.file, .list = tsr_vec_of(host->allocator, sizeof(tsr_safetensors_tensor))};
    tsr_status status = open_image(in, host, arena, findings, out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_safetensors_close(out);
    tsr_error_context(err, "%.*s", TSR_STR_ARG(in.store->files[in.file].name));
    return status;
}

void tsr_safetensors_close(tsr_safetensors *opened)
{
    tsr_name_index_free(opened->names);
    if (opened->list.allocator) tsr_vec_free(&opened->list);
    *opened = (tsr_safetensors){0};
}

const tsr_safetensors_tensor *tsr_safetensors_find(const tsr_safetensors *opened, tsr_str name)
{
    uint64_t at = tsr_name_index_find(opened->names, name);
    return at == TSR_NO_NAME ? NULL : &opened->tensors[at];
}

tsr_str tsr_safetensors_metadata(const tsr_safetensors *opened, tsr_str key)
{
    for (size_t i = 0; i < opened->metadata_count; i++)
        if (tsr_str_equal(opened->metadata[i].key, key)) return opened->metadata[i].value;
    return (tsr_str){NULL, 0};
}

bool tsr_safetensors_is_own_key(tsr_str key)
{
    return tsr_str_starts(key, TSR_STR("tessera."));
}

bool tsr_safetensors_looks_like(tsr_str first_bytes, uint64_t size)
{
    if (first_bytes.size <= LENGTH_SIZE) return false;
    uint64_t length = tsr_load_le((const uint8_t *)first_bytes.data, LENGTH_SIZE);
    size_t at = LENGTH_SIZE;
    while (at < first_bytes.size && strchr(" \t\r\n", first_bytes.data[at]) && first_bytes.data[at]) at++;
    return length <= TSR_SAFETENSORS_MAX_HEADER && length <= size - LENGTH_SIZE && at < first_bytes.size &&
           first_bytes.data[at] == '{';
}

/* ---- header ---- */

/* Lays out a safetensors file and streams its header: once to count the bytes, and once to write them. */

enum { DATA_ALIGNMENT = 64 };

/* The reference library sorts tensors by this order, from last to first. */
static const tsr_dtype dtype_order[] = {
    TSR_BOOL,        TSR_FLOAT4_E2M1FN, TSR_FLOAT6_E2M3,    TSR_FLOAT6_E3M2,     TSR_UINT8,           TSR_INT8,
    TSR_FLOAT8_E5M2, TSR_FLOAT8_E4M3FN, TSR_FLOAT8_E8M0FNU, TSR_FLOAT8_E4M3FNUZ, TSR_FLOAT8_E5M2FNUZ, TSR_INT16,
    TSR_UINT16,      TSR_FLOAT16,       TSR_BFLOAT16,       TSR_INT32,           TSR_UINT32,          TSR_FLOAT32,
    TSR_COMPLEX64,   TSR_FLOAT64,       TSR_INT64,          TSR_UINT64,
};

static tsr_dtype written_dtype(tsr_dtype dtype)
{
    return dtype == TSR_FLOAT4_E2M1FN_X2 ? TSR_FLOAT4_E2M1FN : dtype;
}

static int dtype_place(tsr_dtype dtype)
{
    int place = 0;
    /* Always found, since safetensors can only hold these dtypes. */
    while (dtype_order[place] != written_dtype(dtype)) place++;
    return place;
}

static int compare_items(const void *left, const void *right)
{
    const tsr_safetensors_item *a = left, *b = right;
    if (a->dtype != b->dtype && written_dtype(a->dtype) != written_dtype(b->dtype))
        return dtype_place(b->dtype) - dtype_place(a->dtype);
    return tsr_str_compare(a->name, b->name);
}

static tsr_status check_name(tsr_str name, tsr_error *err)
{
    const char *wrong = name.size == 0                                 ? "an empty name"
                        : memchr(name.data, 0, name.size)              ? "a name with a NUL"
                        : tsr_utf8_check(name) != name.size            ? "a name that is not UTF-8"
                        : tsr_str_equal(name, TSR_STR("__metadata__")) ? "the name of the metadata"
                                                                       : NULL;
    TSR_FAIL_IF(wrong, err, TSR_E_UNSUPPORTED,
                "safetensors: '%.*s' is %s, which a file should not contain (--rename changes it)", TSR_STR_ARG(name),
                wrong);
    return TSR_OK;
}

static tsr_status check_item(const tsr_safetensors_item *item, uint64_t *bytes, tsr_error *err)
{
    uint64_t elements = 1;
    bool fits = true;
    const tsr_dtype_info *dtype = tsr_dtype_describe(item->dtype);
    TSR_TRY(check_name(item->name, err));
    TSR_FAIL_IF(!tsr_dtype_describe(written_dtype(item->dtype))->safetensors_name, err, TSR_E_UNSUPPORTED,
                "safetensors cannot store '%.*s': the format has no dtype %s", TSR_STR_ARG(item->name), dtype->name);
    TSR_FAIL_IF(item->dtype == TSR_FLOAT4_E2M1FN_X2 && item->ndim == 0, err, TSR_E_UNSUPPORTED,
                "safetensors cannot store '%.*s': a single pair of float4 has no dimension for its two elements",
                TSR_STR_ARG(item->name));
    for (uint32_t d = 0; d < item->ndim; d++) fits = fits && tsr_mul_u64(elements, item->shape[d], &elements);
    TSR_FAIL_IF(!fits || !tsr_dtype_bytes(item->dtype, elements, bytes), err, TSR_E_UNSUPPORTED,
                "safetensors cannot store '%.*s': its size overflows or is not a whole number of bytes",
                TSR_STR_ARG(item->name));
    return TSR_OK;
}

static void emit_item(tsr_json *json, const tsr_safetensors_item *item)
{
    tsr_json_key_str(json, item->name);
    tsr_json_object(json);
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(written_dtype(item->dtype))->safetensors_name);
    tsr_json_put_array(json, "shape");
    for (uint32_t d = 0; d < item->ndim; d++) {
        bool pairs = item->dtype == TSR_FLOAT4_E2M1FN_X2 && d + 1 == item->ndim;
        tsr_json_uint(json, pairs ? 2 * item->shape[d] : item->shape[d]);
    }
    tsr_json_array_end(json);
    tsr_json_put_u64s(json, "data_offsets", (const uint64_t[]){item->begin, item->end}, 2);
    tsr_json_object_end(json);
}

/* Emits the JSON object and the newline that the emitter adds, which is valid white space here. */
static tsr_status emit(const tsr_safetensors_plan *plan, uint32_t crc32, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    tsr_json json;
    char digits[] = TSR_SAFETENSORS_NO_SUM;
    for (size_t i = 0; i + 1 < sizeof digits; i++) digits[i] = "0123456789abcdef"[crc32 >> (28 - 4 * i) & 15];
    tsr_json_start(&json, write, ctx, 0, err);
    tsr_json_object(&json);
    for (uint64_t i = 0; i < plan->count && json.status == TSR_OK; i++) emit_item(&json, &plan->items[i]);
    tsr_json_put_object(&json, "__metadata__");
    if (!plan->pair_count) tsr_json_put_text(&json, "format", "pt");
    for (size_t i = 0; i < plan->pair_count; i++) {
        tsr_json_key_str(&json, plan->pairs[i].key);
        tsr_json_str(&json, plan->pairs[i].value);
    }
    if (!plan->unsummed) tsr_json_put_text(&json, TSR_SAFETENSORS_SUM, digits);
    tsr_json_object_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static tsr_status count_bytes(void *ctx, const char *data, size_t size, tsr_error *err)
{
    (void)data;
    (void)err;
    *(uint64_t *)ctx += size;
    return TSR_OK;
}

static tsr_status check_duplicates(const tsr_safetensors_item *items, uint64_t count, const tsr_allocator *allocator,
                                   tsr_error *err)
{
    tsr_name_index *index;
    uint64_t duplicate;
    TSR_TRY(tsr_name_index_new(allocator, TSR_NAMED_ITEMS(items, count), &index, &duplicate, err));
    tsr_name_index_free(index);
    TSR_FAIL_IF(duplicate != TSR_NO_NAME, err, TSR_E_UNSUPPORTED, "safetensors: two tensors are called '%.*s'",
                TSR_STR_ARG(items[duplicate].name));
    return TSR_OK;
}

tsr_status tsr_safetensors_plan_file(tsr_safetensors_plan *plan, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_safetensors_item *items = plan->items;
    const uint64_t count = plan->count;
    uint64_t bytes = 0, at = 0, size = LENGTH_SIZE;
    for (uint64_t i = 0; i < count; i++) TSR_TRY(check_item(&items[i], &bytes, err));
    TSR_TRY(check_duplicates(items, count, allocator, err));
    if (count) qsort(items, (size_t)count, sizeof *items, compare_items);
    for (uint64_t i = 0; i < count; i++) {
        TSR_TRY(check_item(&items[i], &bytes, err));
        items[i].begin = at;
        TSR_FAIL_IF(!tsr_add_u64(at, bytes, &at), err, TSR_E_UNSUPPORTED, "safetensors: the tensors overflow 64 bits");
        items[i].end = at;
    }
    TSR_TRY(emit(plan, 0, count_bytes, &size, err));
    plan->data_size = at;
    plan->header_size = (size + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    TSR_FAIL_IF(plan->header_size - LENGTH_SIZE > TSR_SAFETENSORS_MAX_HEADER, err, TSR_E_LIMIT,
                "safetensors: %" PRIu64 " tensors need a header of %" PRIu64
                " bytes, but the format allows only %u; write several files",
                count, plan->header_size - LENGTH_SIZE, TSR_SAFETENSORS_MAX_HEADER);
    return TSR_OK;
}

/* Counts the bytes that pass through, so that the header can be padded. */
typedef struct counted {
    tsr_write_fn *write;
    void *ctx;
    uint64_t size;
} counted;

static tsr_status write_counted(void *ctx, const char *data, size_t size, tsr_error *err)
{
    counted *out = ctx;
    out->size += size;
    return out->write(out->ctx, data, size, err);
}

tsr_status tsr_safetensors_write_header(const tsr_safetensors_plan *plan, uint32_t crc32, tsr_write_fn *write, void *ctx,
                                        tsr_error *err)
{
    counted out = {write, ctx, 0};
    char length[LENGTH_SIZE], spaces[DATA_ALIGNMENT];
    tsr_store_le(length, plan->header_size - LENGTH_SIZE, LENGTH_SIZE);
    memset(spaces, ' ', sizeof spaces);
    TSR_TRY(write_counted(&out, length, sizeof length, err));
    TSR_TRY(emit(plan, crc32, write_counted, &out, err));
    return out.size < plan->header_size ? write(ctx, spaces, (size_t)(plan->header_size - out.size), err) : TSR_OK;
}
