/* Formats a parsed pickle as text, to compare it with what other tools print for the same bytes. */
#ifndef TESTS_SUPPORT_PICKLE_RENDER_H
#define TESTS_SUPPORT_PICKLE_RENDER_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "codec/pickle.h"

typedef struct rendering {
    char *out;
    size_t room, used;
} rendering;

/* Text that does not fit is counted but dropped. */
static inline void render_add(rendering *r, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
static inline void render_add(rendering *r, const char *format, ...)
{
    const size_t at = r->used < r->room ? r->used : r->room - 1;
    va_list arguments;
    va_start(arguments, format);
    r->used += (size_t)vsnprintf(r->out + at, r->room - at, format, arguments);
    va_end(arguments);
}

static inline void render_bytes(rendering *r, tsr_str text)
{
    render_add(r, "'");
    for (size_t i = 0; i < text.size; i++) {
        unsigned c = (unsigned char)text.data[i];
        if (c >= 32 && c < 127 && c != '\'' && c != '\\') render_add(r, "%c", c);
        else render_add(r, "\\x%02x", c);
    }
    render_add(r, "'");
}

static inline void render_node(rendering *r, const tsr_pickle *p, tsr_ref ref, int depth);

static inline void render_run(rendering *r, const tsr_pickle *p, tsr_ref ref, const char *open, const char *close, int depth)
{
    render_add(r, "%s", open);
    for (size_t i = 0; i < tsr_pickle_count(p, ref); i++) {
        if (tsr_pickle_kind_of(p, ref) == TSR_PICKLE_DICT) {
            render_node(r, p, tsr_pickle_key(p, ref, i), depth);
            render_add(r, ":");
            render_node(r, p, tsr_pickle_value(p, ref, i), depth);
        } else {
            render_node(r, p, tsr_pickle_item(p, ref, i), depth);
        }
        render_add(r, ",");
    }
    render_add(r, "%s", close);
}

static inline void render_object(rendering *r, const tsr_pickle *p, tsr_ref ref, int depth)
{
    const char *const names[] = {"state", "appended", "set"};
    const tsr_ref parts[] = {tsr_pickle_state(p, ref), tsr_pickle_appended(p, ref), tsr_pickle_dict_items(p, ref)};
    render_add(r, "%s(", tsr_pickle_how_of(p, ref) == TSR_PICKLE_BUILT ? "new" : "call");
    render_node(r, p, tsr_pickle_class(p, ref), depth);
    render_add(r, ";");
    render_node(r, p, tsr_pickle_args(p, ref), depth);
    for (int i = 0; i < 3; i++) {
        if (!parts[i]) continue;
        render_add(r, ";%s=", names[i]);
        render_node(r, p, parts[i], depth);
    }
    render_add(r, ")");
}

static inline void render_node(rendering *r, const tsr_pickle *p, tsr_ref ref, int depth)
{
    if (depth-- == 0) {
        render_add(r, "...");
        return;
    }
    switch (tsr_pickle_kind_of(p, ref)) {
    case TSR_PICKLE_NONE: render_add(r, "None"); break;
    case TSR_PICKLE_BOOL: render_add(r, "%s", tsr_pickle_bool(p, ref) ? "True" : "False"); break;
    case TSR_PICKLE_INT: render_add(r, "%" PRId64, tsr_pickle_int(p, ref)); break;
    case TSR_PICKLE_FLOAT: render_add(r, "%.17g", tsr_pickle_float(p, ref)); break;
    case TSR_PICKLE_BYTES: render_add(r, "b"); /* fall through */
    case TSR_PICKLE_STR: render_bytes(r, tsr_pickle_text(p, ref)); break;
    case TSR_PICKLE_LIST: render_run(r, p, ref, "[", "]", depth); break;
    case TSR_PICKLE_TUPLE: render_run(r, p, ref, "(", ")", depth); break;
    case TSR_PICKLE_SET:
    case TSR_PICKLE_DICT: render_run(r, p, ref, "{", "}", depth); break;
    case TSR_PICKLE_OBJECT: render_object(r, p, ref, depth); break;
    case TSR_PICKLE_FOLDED: render_add(r, "#%u", (unsigned)tsr_pickle_folded_index(ref)); break;
    case TSR_PICKLE_BIGINT:
        render_add(r, "big:");
        for (size_t i = 0; i < tsr_pickle_text(p, ref).size; i++)
            render_add(r, "%02x", (unsigned char)tsr_pickle_text(p, ref).data[i]);
        break;
    case TSR_PICKLE_GLOBAL:
        render_add(r, "<%.*s.%.*s>", TSR_STR_ARG(tsr_pickle_module(p, ref)), TSR_STR_ARG(tsr_pickle_name_of(p, ref)));
        break;
    case TSR_PICKLE_PERSISTENT:
        render_add(r, "persistent(");
        render_node(r, p, tsr_pickle_persistent(p, ref), depth);
        render_add(r, ")");
        break;
    }
}

/* Renders the whole pickle; text that does not fit is dropped. */
static inline void render_pickle(const tsr_pickle *p, char *out, size_t room)
{
    rendering r = {out, room, 0};
    out[0] = '\0';
    render_node(&r, p, tsr_pickle_root(p), 40);
}

#endif
