/* Sizes of catalog entries, and the names of formats in documents. */
#include "tessera/catalog.h"

#include <inttypes.h>
#include <string.h>

#include "base/cursor.h"
#include "base/line.h"
#include "tessera/sys/catalog.h"

tsr_str tsr_path_item_text(const tsr_path_item *item, char digits[TSR_PATH_DIGITS])
{
    tsr_line line = tsr_line_on(digits, TSR_PATH_DIGITS);
    if (item->kind == TSR_PATH_KEY) return item->key;
    tsr_line_format(&line, "%" PRId64, item->integer);
    return (tsr_str){digits, line.used};
}

size_t tsr_path_item_size(const tsr_path_item *item)
{
    char digits[TSR_PATH_DIGITS];
    return tsr_path_item_text(item, digits).size;
}

const tsr_path_item *tsr_path_other_type(const tsr_entry *entry, const tsr_entry *other)
{
    if (!entry->path || !other->path || entry->path_length != other->path_length) return NULL;
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const tsr_path_item *a = &entry->path[i], *b = &other->path[i];
        char a_digits[TSR_PATH_DIGITS], b_digits[TSR_PATH_DIGITS];
        if (a->kind == b->kind && !a->value == !b->value) continue;
        return tsr_str_equal(tsr_path_item_text(a, a_digits), tsr_path_item_text(b, b_digits)) ? a : NULL;
    }
    return NULL;
}

const char *tsr_path_item_repr(const tsr_path_item *item, char *out, size_t capacity)
{
    if (item->value) return tsr_value_text(item->value, out, capacity);
    if (item->kind == TSR_PATH_KEY)
        return tsr_value_text(&(tsr_value){.kind = TSR_VALUE_STR, .text = item->key}, out, capacity);
    tsr_line line = tsr_line_on(out, capacity);
    tsr_line_format(&line, item->kind == TSR_PATH_INDEX ? "[%" PRId64 "]" : "%" PRId64, item->integer);
    return out;
}

const char *tsr_entry_kind_name(tsr_entry_kind kind)
{
    static const char *const names[] = {"tensor", "object", "opaque"};
    return names[kind];
}

const char *tsr_format_name(tsr_format format)
{
    switch (format) {
    case TSR_FORMAT_DCP: return "dcp";
    case TSR_FORMAT_DCP_SAFETENSORS: return "dcp-safetensors";
    case TSR_FORMAT_SAFETENSORS: return "safetensors";
    case TSR_FORMAT_SAFETENSORS_INDEX: return "safetensors-index";
    case TSR_FORMAT_TORCH_ZIP: return "torch-zip";
    case TSR_FORMAT_TORCH_LEGACY: return "torch-legacy";
    case TSR_FORMAT_TORCH_RANKS: return "torch-ranks";
    case TSR_FORMAT_TORCH_INDEX: return "torch-index";
    case TSR_FORMAT_SHARDS: return "shards";
    case TSR_FORMAT_DEEPSPEED: return "deepspeed";
    case TSR_FORMAT_DEEPSPEED_UNIVERSAL: return "deepspeed-universal";
    case TSR_FORMAT_MEGATRON_DIST: return "megatron-dist";
    case TSR_FORMAT_VERL: return "verl";
    case TSR_FORMAT_ACCELERATE_FSDP: return "accelerate-fsdp";
    case TSR_FORMAT_LIGHTNING_DIST: return "lightning-dist";
    case TSR_FORMAT_HF_TRAINER: return "hf-trainer";
    case TSR_FORMAT_TORCH_CHECKPOINTING: return "torch-checkpointing";
    case TSR_FORMAT_JSON: return "json";
    case TSR_FORMAT_PICKLE: return "pickle";
    case TSR_FORMAT_ACCELERATE: return "accelerate";
    case TSR_FORMAT_NEMO: return "nemo";
    case TSR_FORMAT_AUTOMODEL: return "automodel";
    case TSR_FORMAT_OLMO_CORE: return "olmo-core";
    case TSR_FORMAT_PRIME_RL: return "prime-rl";
    case TSR_FORMAT_DIFFUSERS: return "diffusers";
    case TSR_FORMAT_SENTENCE_TRANSFORMERS: return "sentence-transformers";
    case TSR_FORMAT_NONE: break;
    }
    return "none";
}

bool tsr_entry_elements(const tsr_entry *entry, uint64_t *elements)
{
    uint64_t product = 1;
    bool fits = true;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        if (entry->shape[d] == 0) {
            *elements = 0;
            return true;
        }
        fits = fits && tsr_mul_u64(product, entry->shape[d], &product);
    }
    *elements = fits ? product : 0;
    return fits;
}

bool tsr_entry_bytes(const tsr_entry *entry, uint64_t *bytes)
{
    uint64_t elements;
    *bytes = 0;
    return tsr_entry_elements(entry, &elements) && tsr_dtype_bytes(entry->dtype, elements, bytes);
}

bool tsr_shape_equal(uint32_t a_ndim, const uint64_t *a, uint32_t b_ndim, const uint64_t *b)
{
    return a_ndim == b_ndim && (a_ndim == 0 || memcmp(a, b, a_ndim * sizeof *a) == 0);
}

bool tsr_entry_same_shape(const tsr_entry *a, const tsr_entry *b)
{
    return tsr_shape_equal(a->ndim, a->shape, b->ndim, b->shape);
}
