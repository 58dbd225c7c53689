/* Parses and matches the names in maps, which may have captures ("layers.{layer}.attention.{rest...}"), and names the
 * steps. */
#include "mapping/mapping_rules.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

const char *tsr_step_name(tsr_step_kind kind)
{
    static const char *const names[TSR_STEP_KINDS] = {"concat",  "split",     "interleave", "stack",
                                                      "unstack", "transpose", "reshape",    "permute_rope",
                                                      "trim",    "pad",       "cast",       "dequantize"};
    return names[kind];
}

static uint32_t count_components(tsr_str text)
{
    uint32_t count = 1;
    for (size_t i = 0; i < text.size; i++) {
        /* The dots of "{rest...}" do not separate components. */
        if (text.data[i] == '{')
            while (i < text.size && text.data[i] != '}') i++;
        else count += text.data[i] == '.';
    }
    return count;
}

/* Removes the first component of *text, and returns it. */
static tsr_str next_component(tsr_str *text)
{
    size_t end = 0;
    while (end < text->size && text->data[end] != '.') {
        if (text->data[end] == '{')
            while (end < text->size && text->data[end] != '}') end++;
        if (end < text->size) end++;
    }
    const tsr_str component = {text->data, end};
    const size_t skip = end < text->size ? end + 1 : end;
    *text = tsr_str_after(*text, skip);
    return component;
}

static tsr_status find_capture(tsr_str name, tsr_captures *captures, uint32_t *out, tsr_error *err)
{
    for (*out = 0; *out < captures->count; ++*out)
        if (tsr_str_equal(captures->names[*out], name)) return TSR_OK;
    TSR_FAIL_IF(captures->count == captures->room, err, TSR_E_FORMAT, "a rule may have at most %u captures",
                (unsigned)captures->room);
    captures->names[captures->count++] = name;
    return TSR_OK;
}

static bool has_brace(tsr_str text)
{
    return memchr(text.data, '{', text.size) || memchr(text.data, '}', text.size);
}

/* Splits "layer+$num_hidden_layers" or "layer+2" into the name of the capture and the number. *fits is false if the latter is
 * neither. */
static tsr_status cut_plus(tsr_str *name, tsr_arena *arena, tsr_map_number *plus, bool *fits, tsr_error *err)
{
    const char *at = memchr(name->data, '+', name->size);
    if (!at) return TSR_OK;
    const tsr_str text = {at + 1, (size_t)(name->data + name->size - at) - 1};
    name->size = (size_t)(at - name->data);
    if (text.size < 2 || text.data[0] != '$') {
        *fits = tsr_component_number(text, &plus->value);
        return TSR_OK;
    }
    plus->config = tsr_arena_str(arena, tsr_str_after(text, 1), err);
    return plus->config.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status parse_component(tsr_str text, tsr_arena *arena, tsr_captures *captures, struct tsr_name_component *out,
                                  tsr_error *err)
{
    *out = (struct tsr_name_component){.literal = text, .capture = TSR_NO_CAPTURE};
    if (!text.size || !has_brace(text)) return TSR_OK;
    tsr_str name = {text.data + 1, text.size >= 2 ? text.size - 2 : 0};
    bool whole = text.data[0] == '{' && text.data[text.size - 1] == '}';
    if (whole && tsr_str_ends(name, TSR_STR("..."))) {
        out->rest = true;
        name.size -= 3;
    } else if (whole) {
        TSR_TRY(cut_plus(&name, arena, &out->plus, &whole, err));
    }
    TSR_FAIL_IF(
        !whole || !name.size || has_brace(name) || memchr(name.data, '.', name.size), err, TSR_E_FORMAT,
        "'%.*s' is not a component of a name: a capture such as {layer}, {layer+1} or {rest...} must be a whole component between dots",
        TSR_STR_ARG(text));
    return find_capture(name, captures, &out->capture, err);
}

static tsr_status check_repeats(const tsr_name_pattern *pattern, tsr_error *err)
{
    uint32_t rests = 0;
    for (uint32_t i = 0; i < pattern->count; i++) {
        rests += pattern->components[i].rest;
        for (uint32_t j = 0; j < i && pattern->components[i].capture != TSR_NO_CAPTURE; j++)
            TSR_FAIL_IF(pattern->components[j].capture == pattern->components[i].capture, err, TSR_E_FORMAT,
                        "'%.*s' has the same capture twice", TSR_STR_ARG(pattern->text));
    }
    TSR_FAIL_IF(rests > 1, err, TSR_E_FORMAT, "'%.*s' has more than one {name...}", TSR_STR_ARG(pattern->text));
    return TSR_OK;
}

tsr_status tsr_pattern_parse(tsr_str text, tsr_arena *arena, tsr_captures *captures, tsr_name_pattern *out, tsr_error *err)
{
    *out = (tsr_name_pattern){.text = text, .count = count_components(text)};
    out->components = tsr_arena_array(arena, out->count, sizeof *out->components, err);
    if (!out->components) return TSR_E_NOMEM;
    tsr_str left = text;
    for (uint32_t i = 0; i < out->count; i++)
        TSR_TRY(parse_component(next_component(&left), arena, captures, &out->components[i], err));
    return check_repeats(out, err);
}

const tsr_map_number *tsr_pattern_plus(const tsr_name_pattern *pattern, uint32_t capture)
{
    for (uint32_t i = 0; i < pattern->count; i++)
        if (pattern->components[i].capture == capture) return &pattern->components[i].plus;
    return NULL;
}

/* Returns the component of `name` that begins at *at. *at becomes the position after its dot, or SIZE_MAX after the last
 * component. */
static tsr_str component_at(tsr_str name, size_t *at)
{
    size_t end = *at;
    while (end < name.size && name.data[end] != '.') end++;
    const tsr_str component = {name.data + *at, end - *at};
    *at = end < name.size ? end + 1 : SIZE_MAX;
    return component;
}

static uint32_t count_dots(tsr_str name, size_t from)
{
    uint32_t dots = 0;
    for (size_t i = from; i < name.size; i++) dots += name.data[i] == '.';
    return dots;
}

bool tsr_pattern_match(const tsr_name_pattern *pattern, tsr_str name, tsr_str *values)
{
    size_t at = 0;
    for (uint32_t i = 0; i < pattern->count; i++) {
        const struct tsr_name_component *component = &pattern->components[i];
        if (at == SIZE_MAX) return false;
        const size_t begin = at;
        tsr_str text = component_at(name, &at);
        for (uint32_t left = pattern->count - i - 1; component->rest && at != SIZE_MAX && count_dots(name, at) + 1 > left;) {
            const tsr_str more = component_at(name, &at);
            text = (tsr_str){name.data + begin, (size_t)(more.data + more.size - (name.data + begin))};
        }
        if (component->capture == TSR_NO_CAPTURE ? !tsr_str_equal(text, component->literal) : !text.size) return false;
        if (component->capture != TSR_NO_CAPTURE) values[component->capture] = text;
    }
    return at == SIZE_MAX;
}

tsr_str tsr_pattern_expand(const tsr_name_pattern *pattern, const tsr_str *values, uint32_t components, tsr_arena *arena,
                           tsr_error *err)
{
    size_t size = 0;
    for (uint32_t i = 0; i < components; i++) {
        const struct tsr_name_component *c = &pattern->components[i];
        size += 1 + (c->capture == TSR_NO_CAPTURE ? c->literal : values[c->capture]).size;
    }
    char *text = tsr_arena_array(arena, size + 1, 1, err);
    if (!text) return (tsr_str){NULL, 0};
    size_t used = 0;
    for (uint32_t i = 0; i < components; i++) {
        const struct tsr_name_component *c = &pattern->components[i];
        const tsr_str part = c->capture == TSR_NO_CAPTURE ? c->literal : values[c->capture];
        if (i) text[used++] = '.';
        if (part.size) memcpy(text + used, part.data, part.size);
        used += part.size;
    }
    return (tsr_str){text, used};
}

/* ---- components ---- */

bool tsr_is_among(tsr_str component, const char *names)
{
    for (; *names; names += strlen(names) + 1)
        if (tsr_str_equal(component, tsr_str_from(names))) return true;
    return false;
}

tsr_str tsr_name_without(tsr_arena *arena, tsr_str name, const char *names, tsr_error *err)
{
    char *text = tsr_arena_array(arena, name.size + 1, 1, err);
    size_t size = 0;
    for (size_t at = 0; text && at <= name.size;) {
        const char *dot = at < name.size ? memchr(name.data + at, '.', name.size - at) : NULL;
        const tsr_str component = {name.data + at, dot ? (size_t)(dot - name.data) - at : name.size - at};
        at += component.size + 1;
        if (tsr_is_among(component, names)) continue;
        if (size) text[size++] = '.';
        if (component.size) memcpy(text + size, component.data, component.size);
        size += component.size;
    }
    return (tsr_str){text, size};
}
