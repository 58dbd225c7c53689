/* Formats values as one line of text, much like Python: for the repr() of an object that JSON cannot represent, and for
 * listings. The buffer limits both output and work. */
#include <inttypes.h>
#include <math.h>

#include "base/line.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/value.h"

enum { MAX_DEPTH = 12 };

/* Puts a quoted text. Bytes that are not printable ASCII are escaped in bytes, but not in text. */
static void put_quoted(tsr_line *l, tsr_str text, bool is_bytes)
{
    tsr_line_put(l, is_bytes ? "b'" : "'", is_bytes ? 2 : 1);
    for (size_t i = 0; i < text.size && !l->full; i++) {
        uint8_t c = (uint8_t)text.data[i];
        if (c == '\'' || c == '\\') tsr_line_format(l, "\\%c", c);
        else if (c == '\n') tsr_line_put(l, "\\n", 2);
        else if (c < 0x20 || c == 0x7f || (is_bytes && c > 0x7f)) tsr_line_format(l, "\\x%02x", c);
        else tsr_line_put(l, text.data + i, 1);
    }
    tsr_line_put(l, "'", 1);
}

static void put_complex(tsr_line *l, double re, double im)
{
    tsr_line_put(l, "(", 1);
    tsr_line_real(l, re, false);
    if (!signbit(im) || isnan(im)) tsr_line_put(l, "+", 1);
    tsr_line_real(l, im, false);
    tsr_line_put(l, "j)", 2);
}

static void put_tensor(tsr_line *l, const tsr_entry *tensor)
{
    tsr_line_put(l, "tensor(", 7);
    if (!tensor) {
        tsr_line_put(l, "?)", 2);
        return;
    }
    tsr_line_format(l, "%s, [", tsr_dtype_describe(tensor->dtype)->name);
    for (uint32_t i = 0; i < tensor->ndim; i++) tsr_line_format(l, "%s%" PRIu64, i ? ", " : "", tensor->shape[i]);
    tsr_line_put(l, "])", 2);
}

static bool is_container(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT:
    case TSR_VALUE_SIZE:
    case TSR_VALUE_OBJECT: return true;
    default: return false;
    }
}

static void put_leaf(tsr_line *l, const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_BOOL: tsr_line_format(l, "%s", value->as.boolean ? "True" : "False"); break;
    case TSR_VALUE_INT: tsr_line_format(l, "%" PRId64, value->as.integer); break;
    case TSR_VALUE_BIGINT:
        if (!tsr_line_integer(l, value->text)) tsr_line_format(l, "<int of %zu bytes>", value->text.size);
        break;
    case TSR_VALUE_FLOAT: tsr_line_float(l, value->as.real); break;
    case TSR_VALUE_COMPLEX: put_complex(l, value->as.complex.re, value->as.complex.im); break;
    case TSR_VALUE_STR: put_quoted(l, value->text, false); break;
    case TSR_VALUE_BYTES:
        if (value->variant == TSR_VARIANT_BYTEARRAY) tsr_line_put(l, "bytearray(", 10);
        put_quoted(l, value->text, true);
        if (value->variant == TSR_VARIANT_BYTEARRAY) tsr_line_put(l, ")", 1);
        break;
    case TSR_VALUE_DTYPE: tsr_line_format(l, "torch.%s", tsr_dtype_describe(value->as.dtype)->name); break;
    case TSR_VALUE_DEVICE:
        tsr_line_put(l, "device(", 7);
        put_quoted(l, value->text, false);
        tsr_line_put(l, ")", 1);
        break;
    case TSR_VALUE_TENSOR: put_tensor(l, value->as.tensor); break;
    case TSR_VALUE_GLOBAL:
        tsr_line_put(l, "<", 1);
        tsr_line_put(l, value->text.data, value->text.size);
        tsr_line_put(l, ">", 1);
        break;
    default: tsr_line_put(l, "None", 4); break;
    }
}

/* Puts what Python writes before the brackets of a container of a less common class. */
static void put_class(tsr_line *l, const tsr_value *value)
{
    switch (value->variant) {
    case TSR_VARIANT_FROZENSET: tsr_line_format(l, "frozenset("); break;
    case TSR_VARIANT_COUNTER: tsr_line_format(l, "Counter("); break;
    case TSR_VARIANT_DEFAULTDICT:
        tsr_line_format(l, "defaultdict(");
        if (value->text.size) tsr_line_put(l, value->text.data, value->text.size);
        else tsr_line_format(l, "None");
        tsr_line_format(l, ", ");
        break;
    case TSR_VARIANT_SUBCLASS:
        tsr_line_put(l, value->text.data, value->text.size);
        tsr_line_put(l, "(", 1);
        break;
    default: break;
    }
}

static void put_bracket(tsr_line *l, const tsr_value *value, bool opens)
{
    static const struct {
        const char *open, *close;
    } brackets[] = {[TSR_VALUE_LIST] = {"[", "]"},
                    [TSR_VALUE_TUPLE] = {"(", ")"},
                    [TSR_VALUE_SET] = {"{", "}"},
                    [TSR_VALUE_DICT] = {"{", "}"},
                    [TSR_VALUE_SIZE] = {"torch.Size([", "])"},
                    [TSR_VALUE_OBJECT] = {"(", ")"}};
    if (opens) put_class(l, value);
    if (opens && value->kind == TSR_VALUE_OBJECT) tsr_line_put(l, value->text.data, value->text.size);
    if (!opens && value->kind == TSR_VALUE_TUPLE && value->count == 1) tsr_line_put(l, ",", 1);
    const bool is_frozen = value->variant == TSR_VARIANT_FROZENSET;
    if (value->kind == TSR_VALUE_SET && value->count == 0) tsr_line_format(l, "%s", is_frozen ? "" : opens ? "set(" : ")");
    else tsr_line_format(l, "%s", opens ? brackets[value->kind].open : brackets[value->kind].close);
    if (!opens && value->kind != TSR_VALUE_BYTES && value->variant != TSR_VARIANT_NONE) tsr_line_put(l, ")", 1);
}

static const char *separator(const tsr_value *container, size_t next)
{
    if (next == 0) return "";
    return container->kind == TSR_VALUE_DICT && next % 2 ? ": " : ", ";
}

const char *tsr_value_text(const tsr_value *value, char *out, size_t capacity)
{
    static const char more[] = "…";
    static const tsr_value none = {.kind = TSR_VALUE_NONE};
    struct {
        const tsr_value *container;
        size_t next;
    } stack[MAX_DEPTH];
    unsigned height = 0;
    tsr_line l = tsr_line_on(out, capacity);
    while (!l.full) {
        if (value && is_container(value) && height < MAX_DEPTH) {
            put_bracket(&l, value, true);
            stack[height].container = value;
            stack[height++].next = 0;
        } else if (value && is_container(value)) {
            tsr_line_put(&l, more, sizeof more - 1);
        } else {
            put_leaf(&l, value ? value : &none);
        }
        while (height && stack[height - 1].next == stack[height - 1].container->count) {
            put_bracket(&l, stack[--height].container, false);
        }
        if (height == 0) break;
        const tsr_value *container = stack[height - 1].container;
        size_t next = stack[height - 1].next++;
        const char *between = separator(container, next);
        tsr_line_put(&l, between, strlen(between));
        value = container->items[next];
    }
    if (l.full && capacity > sizeof more) {
        l.used = capacity - sizeof more;
        while (l.used && ((uint8_t)out[l.used] & 0xc0) == 0x80) l.used--; /* do not cut inside a character */
        memcpy(out + l.used, more, sizeof more - 1);
        out[l.used + sizeof more - 1] = '\0';
    }
    return out;
}
