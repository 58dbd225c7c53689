/* Formats a value tree as text: None, True, 7, 1.5, (1+2j), 'str', b'bytes', [list], (tuple), {set,}, {key:value,},
 * size(2,3,), and named things in angle brackets: <dtype float32>, <device cpu>, <tensor float32 2,3 @0>, <my.Class>,
 * my.Class<args,state,>. */
#ifndef TESTS_SUPPORT_VALUE_RENDER_H
#define TESTS_SUPPORT_VALUE_RENDER_H

#include "support/pickle_render.h"
#include "tessera/catalog.h"

static inline void render_value(rendering *r, const tsr_value *v, int depth, uint64_t base);

static inline void render_values(rendering *r, const tsr_value *v, const char *open, const char *close, int depth,
                                 uint64_t base)
{
    render_add(r, "%s", open);
    for (size_t i = 0; i < v->count; i++) {
        render_value(r, v->items[i], depth, base);
        render_add(r, v->kind == TSR_VALUE_DICT && i % 2 == 0 ? ":" : ",");
    }
    render_add(r, "%s", close);
}

static inline void render_tensor(rendering *r, const tsr_entry *entry, uint64_t base)
{
    render_add(r, "<%s %s", entry->is_parameter ? "parameter" : "tensor", tsr_dtype_describe(entry->dtype)->name);
    for (uint32_t d = 0; d < entry->ndim; d++) render_add(r, "%c%" PRIu64, d ? ',' : ' ', entry->shape[d]);
    for (uint64_t i = 0; i < entry->chunk_count; i++) render_add(r, " @%" PRIu64, entry->chunks[i].byte_offset - base);
    render_add(r, ">");
}

/* Offsets of tensors are printed relative to `base`. */
static inline void render_value(rendering *r, const tsr_value *v, int depth, uint64_t base)
{
    if (depth-- == 0) {
        render_add(r, "...");
        return;
    }
    switch (v->kind) {
    case TSR_VALUE_NONE: render_add(r, "None"); break;
    case TSR_VALUE_BOOL: render_add(r, "%s", v->as.boolean ? "True" : "False"); break;
    case TSR_VALUE_INT: render_add(r, "%" PRId64, v->as.integer); break;
    case TSR_VALUE_BIGINT: render_add(r, "<int of %zu bytes>", v->text.size); break;
    case TSR_VALUE_FLOAT: render_add(r, "%.17g", v->as.real); break;
    case TSR_VALUE_COMPLEX: render_add(r, "(%.17g%+.17gj)", v->as.complex.re, v->as.complex.im); break;
    case TSR_VALUE_BYTES: render_add(r, "b"); /* fall through */
    case TSR_VALUE_STR: render_bytes(r, v->text); break;
    case TSR_VALUE_LIST: render_values(r, v, "[", "]", depth, base); break;
    case TSR_VALUE_TUPLE: render_values(r, v, "(", ")", depth, base); break;
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT: render_values(r, v, "{", "}", depth, base); break;
    case TSR_VALUE_SIZE: render_values(r, v, "size(", ")", depth, base); break;
    case TSR_VALUE_DTYPE: render_add(r, "<dtype %s>", tsr_dtype_describe(v->as.dtype)->name); break;
    case TSR_VALUE_DEVICE: render_add(r, "<device %.*s>", TSR_STR_ARG(v->text)); break;
    case TSR_VALUE_TENSOR: render_tensor(r, v->as.tensor, base); break;
    case TSR_VALUE_GLOBAL: render_add(r, "<%.*s>", TSR_STR_ARG(v->text)); break;
    case TSR_VALUE_OBJECT:
        render_add(r, "%.*s", TSR_STR_ARG(v->text));
        render_values(r, v, "<", ">", depth, base);
        break;
    }
}

#endif
