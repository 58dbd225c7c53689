/* Keys of mappings as PyTorch's flatten_state_dict writes them: str(key). */
#include <inttypes.h>

#include "base/line.h"
#include "formats/torch/torch_flatten.h"

enum { KEY_DEPTH = 4 };

/* repr() of text that needs no escape. */
static bool put_quoted(tsr_line *line, tsr_str text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] < ' ' || text.data[i] > '~' || text.data[i] == '\'' || text.data[i] == '\\') return false;
    tsr_line_put(line, "'", 1);
    tsr_line_put(line, text.data, text.size);
    tsr_line_put(line, "'", 1);
    return true;
}

/* Of what str() and repr() write alike; a str stands in a tuple here. */
static bool put_leaf(tsr_line *line, const tsr_value *key)
{
    switch (key->kind) {
    case TSR_VALUE_NONE: tsr_line_put(line, "None", 4); return true;
    case TSR_VALUE_BOOL: tsr_line_format(line, "%s", key->as.boolean ? "True" : "False"); return true;
    case TSR_VALUE_INT: tsr_line_format(line, "%" PRId64, key->as.integer); return true;
    case TSR_VALUE_BIGINT: return tsr_line_integer(line, key->text);
    case TSR_VALUE_FLOAT: tsr_line_float(line, key->as.real); return true;
    case TSR_VALUE_STR: return put_quoted(line, key->text);
    case TSR_VALUE_BYTES: tsr_line_put(line, "b", 1); return put_quoted(line, key->text);
    case TSR_VALUE_DTYPE: tsr_line_format(line, "torch.%s", tsr_dtype_describe(key->as.dtype)->name); return true;
    default: return false;
    }
}

static void close_tuple(tsr_line *line, const tsr_value *tuple)
{
    tsr_line_format(line, "%s", tuple->count == 1 ? ",)" : ")");
}

static bool put_key(tsr_line *line, const tsr_value *key)
{
    struct {
        const tsr_value *tuple;
        size_t next;
    } stack[KEY_DEPTH];
    unsigned height = 0;
    for (;;) {
        if (line->full) return false;
        if (key->kind != TSR_VALUE_TUPLE) {
            if (!put_leaf(line, key)) return false;
        } else {
            if (height == KEY_DEPTH) return false;
            tsr_line_put(line, "(", 1);
            stack[height].tuple = key;
            stack[height++].next = 0;
        }
        while (height && stack[height - 1].next == stack[height - 1].tuple->count) close_tuple(line, stack[--height].tuple);
        if (height == 0) return !line->full;
        if (stack[height - 1].next) tsr_line_put(line, ", ", 2);
        key = stack[height - 1].tuple->items[stack[height - 1].next++];
    }
}

bool tsr_torch_key_text(const tsr_value *key, char text[TSR_TORCH_KEY])
{
    tsr_line line = tsr_line_on(text, TSR_TORCH_KEY);
    if (key->kind != TSR_VALUE_DEVICE) return put_key(&line, key);
    tsr_line_put(&line, key->text.data, key->text.size);
    return !line.full;
}
