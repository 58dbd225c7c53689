/* Lays out a safetensors file and streams its header: once to count the bytes, and once to write them. */
#include "formats/safetensors/safetensors_header.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/cursor.h"
#include "base/utf8.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

enum { LENGTH_SIZE = 8, DATA_ALIGNMENT = 64 };

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
static tsr_status emit(const tsr_safetensors_plan *plan, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, write, ctx, 0, err);
    tsr_json_object(&json);
    tsr_json_put_object(&json, "__metadata__");
    if (!plan->pair_count) tsr_json_put_text(&json, "format", "pt");
    for (size_t i = 0; i < plan->pair_count; i++) {
        tsr_json_key_str(&json, plan->pairs[i].key);
        tsr_json_str(&json, plan->pairs[i].value);
    }
    tsr_json_object_end(&json);
    for (uint64_t i = 0; i < plan->count && json.status == TSR_OK; i++) emit_item(&json, &plan->items[i]);
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
    TSR_TRY(emit(plan, count_bytes, &size, err));
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

tsr_status tsr_safetensors_write_header(const tsr_safetensors_plan *plan, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    counted out = {write, ctx, 0};
    char length[LENGTH_SIZE], spaces[DATA_ALIGNMENT];
    tsr_store_le(length, plan->header_size - LENGTH_SIZE, LENGTH_SIZE);
    memset(spaces, ' ', sizeof spaces);
    TSR_TRY(write_counted(&out, length, sizeof length, err));
    TSR_TRY(emit(plan, write_counted, &out, err));
    return out.size < plan->header_size ? write(ctx, spaces, (size_t)(plan->header_size - out.size), err) : TSR_OK;
}
