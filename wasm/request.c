/* Reads the options of calls. */
#include "request.h"

#include "tessera/glob.h"
#include "tessera/sys/number_text.h"

static tsr_str str_of(const tessera_text *text)
{
    return (tsr_str){(const char *)(uintptr_t)text->data, text->size};
}

static bool is_named(const tessera_option *option, const char *name)
{
    return tsr_str_equal(str_of(&option->name), tsr_str_from(name));
}

tsr_str tessera_option_text(const request *r, const char *name)
{
    for (uint32_t i = r->count; i > 0; i--)
        if (is_named(&r->items[i - 1], name)) return str_of(&r->items[i - 1].value);
    return (tsr_str){NULL, 0};
}

bool tessera_option_given(const request *r, const char *name)
{
    return tessera_option_text(r, name).data != NULL;
}

tsr_status tessera_option_list(const request *r, const char *name, tsr_arena *arena, const tsr_str **out, size_t *count,
                               tsr_error *err)
{
    tsr_str *list = tsr_arena_array(arena, r->count, sizeof *list, err);
    if (!list) return TSR_E_NOMEM;
    *out = list;
    *count = 0;
    for (uint32_t i = 0; i < r->count; i++)
        if (is_named(&r->items[i], name)) list[(*count)++] = str_of(&r->items[i].value);
    return TSR_OK;
}

static bool copy_text(const tessera_text *from, tsr_arena *arena, tessera_text *out, tsr_error *err)
{
    const tsr_str copy = tsr_arena_str(arena, str_of(from), err);
    *out = (tessera_text){(uint32_t)(uintptr_t)copy.data, from->size};
    return copy.data != NULL;
}

tsr_status tessera_request_copy(const request *from, tsr_arena *arena, request *out, tsr_error *err)
{
    tessera_option *items = tsr_arena_array(arena, from->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < from->count; i++) {
        const tessera_option *option = &from->items[i];
        if (!copy_text(&option->name, arena, &items[i].name, err) || !copy_text(&option->value, arena, &items[i].value, err))
            return TSR_E_NOMEM;
    }
    *out = (request){items, from->count};
    return TSR_OK;
}

tsr_status tessera_option_choice(const request *r, const char *name, const char *words, unsigned *out, tsr_error *err)
{
    const tsr_str value = tessera_option_text(r, name);
    unsigned number = 1;
    *out = 0;
    if (!value.data) return TSR_OK;
    for (const char *word = words; word; number++) {
        const char *bar = strchr(word, '|');
        if (tsr_str_equal(value, (tsr_str){word, bar ? (size_t)(bar - word) : strlen(word)})) {
            *out = number;
            return TSR_OK;
        }
        word = bar ? bar + 1 : NULL;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--%s takes %s, not '%.*s'", name, words, TSR_STR_ARG(value));
}

tsr_status tessera_option_size(const request *r, const char *name, uint64_t *out, tsr_error *err)
{
    const tsr_str value = tessera_option_text(r, name);
    *out = 0;
    if (!value.data || tsr_size_parse(value.data, out)) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--%s takes a size such as 512MB or 2GiB, not '%.*s'", name,
                     TSR_STR_ARG(value));
}

bool tessera_option_matches(const request *r, const char *name, tsr_str fqn)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (is_named(&r->items[i], name) && tsr_glob_match(str_of(&r->items[i].value), fqn)) return true;
    return false;
}

bool tessera_selects(const void *ctx, tsr_str fqn)
{
    const request *r = ctx;
    if (tessera_option_matches(r, "exclude", fqn)) return false;
    return !tessera_option_given(r, "include") || tessera_option_matches(r, "include", fqn);
}
