#include "model/value_path.h"

#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

typedef struct frame {
    const tsr_value *value;
    size_t next; /* index of the next item */
} frame;

typedef struct search {
    tsr_vec frames; /* from the root down */
    tsr_map *seen;  /* containers that were already entered */
    const tsr_entry *tensor;
    const tsr_host *host;
    tsr_error *err;
} search;

static tsr_status enter(search *s, const tsr_value *value, bool *found)
{
    bool fresh;
    *found = value->kind == TSR_VALUE_TENSOR && value->as.tensor == s->tensor;
    if (*found || value->count == 0 || s->frames.count >= s->host->limits.depth) return TSR_OK;
    TSR_TRY(tsr_map_put(s->seen, (tsr_str){(const char *)&value->items, sizeof value->items}, 1, NULL, &fresh, s->err));
    if (!fresh) return TSR_OK;
    frame *top = tsr_vec_push(&s->frames, s->err);
    if (!top) return TSR_E_NOMEM;
    *top = (frame){value, 0};
    return TSR_OK;
}

static tsr_status descend(search *s, const tsr_value *root, bool *found)
{
    TSR_TRY(enter(s, root, found));
    while (!*found && s->frames.count) {
        frame *top = (frame *)s->frames.items + s->frames.count - 1;
        if (top->next == top->value->count) {
            s->frames.count--;
            continue;
        }
        const tsr_value *item = top->value->items[top->next++];
        if (item) TSR_TRY(enter(s, item, found));
    }
    return TSR_OK;
}

/* Appends the step that a frame took last: the key in a dict, otherwise the position. */
static tsr_str add_step(const frame *f, tsr_str path, tsr_arena *arena, tsr_error *err)
{
    const size_t at = f->next - 1;
    const tsr_value *key = f->value->kind == TSR_VALUE_DICT ? f->value->items[at & ~(size_t)1] : NULL;
    const char *dot = path.size ? "." : "";
    if (key && key->kind == TSR_VALUE_STR)
        return tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(path), dot, TSR_STR_ARG(key->text));
    const long long number = key && key->kind == TSR_VALUE_INT ? (long long)key->as.integer : (long long)(key ? at / 2 : at);
    return tsr_arena_format(arena, err, "%.*s%s%lld", TSR_STR_ARG(path), dot, number);
}

tsr_status tsr_value_path(const tsr_value *root, const tsr_entry *tensor, const tsr_host *host, tsr_arena *arena,
                          tsr_str *out, tsr_error *err)
{
    search s = {.frames = tsr_vec_of(host->allocator, sizeof(frame)), .tensor = tensor, .host = host, .err = err};
    bool found = false;
    *out = (tsr_str){"", 0};
    s.seen = tsr_map_new(host->allocator, 0, err);
    tsr_status status = s.seen ? descend(&s, root, &found) : TSR_E_NOMEM;
    for (size_t i = 0; found && status == TSR_OK && i < s.frames.count; i++) {
        *out = add_step((const frame *)s.frames.items + i, *out, arena, err);
        if (!out->data) status = TSR_E_NOMEM;
    }
    tsr_map_free(s.seen);
    tsr_vec_free(&s.frames);
    return status;
}
