/* Finds optimizers in two passes over the names of a catalog: the first reads "param_groups", which say which parameters there
 * are; the second gives each entry below "state" to the parameter whose key its name contains. Keys may contain dots, so the
 * longest one counts. One hash map answers both questions, because "optim.state" and "optim.state.a.weight" are the beginnings
 * of the names in question. */
#include "tessera/sys/stored_optimizers.h"

#include <stdlib.h>
#include <string.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#define STATE        TSR_STR("state")
#define PARAM_GROUPS TSR_STR("param_groups")
#define OPTIMIZER    0x80000000u /* in the map: the number of an optimizer, not of a parameter */

/* What follows "param_groups" in a name: "0.lr", or "a.weight.lr" in the flat form, or nothing where an object has them all. */
typedef struct setting {
    uint32_t optimizer;
    tsr_str rest;
    const tsr_entry *entry;
} setting;

typedef struct group {
    tsr_stored_optimizer_group shown;
    tsr_vec options; /* tsr_stored_optimizer_option */
} group;

typedef struct found {
    tsr_stored_optimizer shown;
    tsr_str state; /* "optim.state" */
    bool nested;   /* its groups list parameters */
} found;

typedef struct search {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_map *names;     /* "optim.state" → OPTIMIZER | its number; "optim.state.KEY" → number of the parameter */
    tsr_map *alike;     /* hash of a flat parameter's options → number of the group */
    tsr_vec optimizers; /* found */
    tsr_vec settings;   /* setting, in the order of the catalog */
    tsr_vec groups;     /* group */
    tsr_vec params;     /* tsr_stored_optimizer_param */
    tsr_vec states;     /* tsr_stored_optimizer_state */
    tsr_error *err;
} search;

bool tsr_format_keeps_keys(tsr_format format)
{
    return format != TSR_FORMAT_DCP && format != TSR_FORMAT_DCP_SAFETENSORS && format != TSR_FORMAT_MEGATRON_DIST;
}

tsr_format tsr_entry_format(const tsr_catalog *catalog, uint64_t entry)
{
    for (uint32_t i = 0; i < catalog->part_count; i++)
        if (entry - catalog->parts[i].first_entry < catalog->parts[i].entry_count) return catalog->parts[i].format;
    return catalog->format;
}

/* Finds `word` as a component of a name. */
static bool find_component(tsr_str name, tsr_str word, size_t *at)
{
    for (size_t i = 0; i + word.size <= name.size; i++) {
        const char *next = memchr(name.data + i, '.', name.size - i);
        const size_t end = next ? (size_t)(next - name.data) : name.size;
        if (tsr_str_equal((tsr_str){name.data + i, end - i}, word)) {
            *at = i;
            return true;
        }
        i = end;
    }
    return false;
}

/* ---- param_groups ---- */

static tsr_status optimizer_named(search *s, tsr_str name, uint32_t *out)
{
    const tsr_str state = tsr_arena_format(s->arena, s->err, "%.*s%sstate", TSR_STR_ARG(name), name.size ? "." : "");
    uint32_t *known;
    bool fresh;
    if (!state.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(s->names, state, OPTIMIZER | (uint32_t)s->optimizers.count, &known, &fresh, s->err));
    *out = *known & ~OPTIMIZER;
    if (!fresh) return TSR_OK;
    found *new = tsr_vec_push(&s->optimizers, s->err);
    if (!new) return TSR_E_NOMEM;
    *new = (found){.shown = {.name = name}, .state = state};
    return TSR_OK;
}

/* Splits "3.lr" into the number of a group and an option. */
static bool is_group_option(tsr_str rest, uint32_t *number, tsr_str *option)
{
    size_t at = 0;
    *number = 0;
    while (at < rest.size && at < 9 && tsr_is_digit(rest.data[at]))
        *number = 10 * *number + (uint32_t)(rest.data[at++] - '0');
    if (at == 0 || at == rest.size || rest.data[at] != '.') return false;
    *option = tsr_str_after(rest, at + 1);
    return true;
}

static tsr_status read_settings(search *s, const tsr_catalog *catalog)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        size_t at;
        uint32_t number;
        tsr_str option;
        if (!find_component(entry->fqn, PARAM_GROUPS, &at)) continue;
        setting *new = tsr_vec_push(&s->settings, s->err);
        if (!new) return TSR_E_NOMEM;
        const size_t end = at + PARAM_GROUPS.size;
        *new = (setting){.entry = entry};
        if (end < entry->fqn.size) new->rest = tsr_str_after(entry->fqn, end + 1);
        TSR_TRY(optimizer_named(s, (tsr_str){entry->fqn.data, at ? at - 1 : 0}, &new->optimizer));
        found *of = (found *)s->optimizers.items + new->optimizer;
        of->nested = of->nested || new->rest.size == 0 ||
                     (is_group_option(new->rest, &number, &option) && tsr_str_equal(option, TSR_STR("params")));
    }
    return TSR_OK;
}

static tsr_status new_group(search *s, uint32_t *out)
{
    group *new = tsr_vec_push(&s->groups, s->err);
    if (!new) return TSR_E_NOMEM;
    *new = (group){.options = tsr_vec_of(s->host->allocator, sizeof(tsr_stored_optimizer_option))};
    *out = (uint32_t)s->groups.count - 1;
    return TSR_OK;
}

static tsr_status add_option(search *s, uint32_t group_number, tsr_str name, const tsr_value *value)
{
    tsr_stored_optimizer_option *new = tsr_vec_push(&((group *)s->groups.items + group_number)->options, s->err);
    if (!new) return TSR_E_NOMEM;
    *new = (tsr_stored_optimizer_option){name, value};
    return TSR_OK;
}

static const tsr_value *option_value(const group *g, tsr_str name)
{
    const tsr_stored_optimizer_option *options = g->options.items;
    for (size_t i = 0; i < g->options.count; i++)
        if (tsr_str_equal(options[i].name, name)) return options[i].value;
    return NULL;
}

/* Adds a parameter to the optimizer that was begun last. A key that is listed twice counts once. */
static tsr_status add_param(search *s, uint32_t optimizer, tsr_str key, tsr_stored_optimizer_param param)
{
    found *of = (found *)s->optimizers.items + optimizer;
    const tsr_str name = tsr_arena_format(s->arena, s->err, "%.*s.%.*s", TSR_STR_ARG(of->state), TSR_STR_ARG(key));
    bool fresh;
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(s->names, name, (uint32_t)s->params.count, NULL, &fresh, s->err));
    if (!fresh) return TSR_OK;
    tsr_stored_optimizer_param *new = tsr_vec_push(&s->params, s->err);
    if (!new) return TSR_E_NOMEM;
    *new = param;
    new->key = (tsr_str){name.data + of->state.size + 1, key.size};
    new->first = new->last = TSR_NO_STATE;
    of->shown.param_count++;
    return TSR_OK;
}

static tsr_status add_params(search *s, uint32_t optimizer, uint32_t group_number)
{
    const group *g = (const group *)s->groups.items + group_number;
    const tsr_value *params = option_value(g, TSR_STR("params")), *names = option_value(g, TSR_STR("param_names"));
    if (!params || params->kind != TSR_VALUE_LIST) return TSR_OK;
    if (names && (names->kind != TSR_VALUE_LIST || names->count != params->count)) names = NULL;
    for (size_t i = 0; i < params->count; i++) {
        const tsr_value *key = params->items[i];
        tsr_stored_optimizer_param param = {.group = group_number, .is_id = key->kind == TSR_VALUE_INT};
        char digits[TSR_PATH_DIGITS];
        tsr_str text = key->text;
        if (param.is_id)
            text = tsr_path_item_text(&(tsr_path_item){.kind = TSR_PATH_INT_KEY, .integer = key->as.integer}, digits);
        else if (key->kind != TSR_VALUE_STR) continue;
        if (!param.is_id) param.fqn = key->text;
        else if (names && names->items[i]->kind == TSR_VALUE_STR) param.fqn = names->items[i]->text;
        TSR_TRY(add_param(s, optimizer, text, param));
    }
    return TSR_OK;
}

/* A single object that has all groups, as PyTorch 2.3 writes it. */
static tsr_status add_list(search *s, uint32_t optimizer, const tsr_entry *entry)
{
    const tsr_value *list = entry->value;
    if (!list || list->kind != TSR_VALUE_LIST) return TSR_OK;
    for (size_t i = 0; i < list->count; i++) {
        const tsr_value *dict = list->items[i];
        uint32_t number;
        if (dict->kind != TSR_VALUE_DICT) continue;
        TSR_TRY(new_group(s, &number));
        ((group *)s->groups.items + number)->shown.list = entry;
        for (size_t k = 0; k < dict->count; k += 2)
            if (dict->items[k]->kind == TSR_VALUE_STR)
                TSR_TRY(add_option(s, number, dict->items[k]->text, dict->items[k + 1]));
        TSR_TRY(add_params(s, optimizer, number));
    }
    return TSR_OK;
}

static int by_optimizer_and_group(const void *a, const void *b)
{
    const setting *x = a, *y = b;
    uint32_t p = 0, q = 0;
    tsr_str option;
    if (x->optimizer != y->optimizer) return x->optimizer < y->optimizer ? -1 : 1;
    is_group_option(x->rest, &p, &option);
    is_group_option(y->rest, &q, &option);
    if (p != q) return p < q ? -1 : 1;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

static tsr_status add_nested(search *s, uint32_t optimizer, const setting *settings, size_t count)
{
    uint32_t last = UINT32_MAX, here = 0, number;
    tsr_str option;
    for (size_t i = 0; i < count; i++) {
        if (settings[i].rest.size == 0) TSR_TRY(add_list(s, optimizer, settings[i].entry));
        if (!is_group_option(settings[i].rest, &number, &option)) continue;
        if (number != last) {
            if (last != UINT32_MAX) TSR_TRY(add_params(s, optimizer, here));
            TSR_TRY(new_group(s, &here));
        }
        last = number;
        if (tsr_str_equal(option, TSR_STR("params"))) ((group *)s->groups.items + here)->shown.list = settings[i].entry;
        TSR_TRY(add_option(s, here, option, settings[i].entry->value));
    }
    return last == UINT32_MAX ? TSR_OK : add_params(s, optimizer, here);
}

/* ---- flat groups ---- */

static tsr_str flat_fqn(tsr_str rest)
{
    const tsr_str option = tsr_last_component(rest);
    return (tsr_str){rest.data, option.size < rest.size ? rest.size - option.size - 1 : 0};
}

static int by_fqn(const void *a, const void *b)
{
    const setting *x = a, *y = b;
    const int order = tsr_str_compare(flat_fqn(x->rest), flat_fqn(y->rest));
    return order ? order : tsr_str_compare(tsr_last_component(x->rest), tsr_last_component(y->rest));
}

/* The group of the parameters with these options: those whose names and values look the same. */
static tsr_status flat_group(search *s, const setting *settings, size_t count, uint32_t optimizer, uint32_t *out)
{
    enum { MOST_TEXT = 80 };
    uint64_t *hash = TSR_ARENA_NEW(s->arena, uint64_t, s->err);
    uint32_t *known;
    bool fresh;
    if (!hash) return TSR_E_NOMEM;
    *hash = optimizer;
    for (size_t i = 0; i < count; i++) {
        const tsr_str name = tsr_last_component(settings[i].rest);
        char text[MOST_TEXT] = "";
        if (settings[i].entry->value) tsr_value_text(settings[i].entry->value, text, sizeof text);
        *hash = tsr_hash_bytes(name.data, name.size, *hash);
        *hash = tsr_hash_bytes(text, strlen(text), *hash);
    }
    TSR_TRY(tsr_map_put(s->alike, (tsr_str){(const char *)hash, sizeof *hash}, (uint32_t)s->groups.count, &known, &fresh,
                        s->err));
    *out = *known;
    if (!fresh) return TSR_OK;
    TSR_TRY(new_group(s, out));
    for (size_t i = 0; i < count; i++)
        TSR_TRY(add_option(s, *out, tsr_last_component(settings[i].rest), settings[i].entry->value));
    return TSR_OK;
}

static tsr_status add_flat(search *s, uint32_t optimizer, setting *settings, size_t count)
{
    qsort(settings, count, sizeof *settings, by_fqn);
    for (size_t i = 0, end; i < count; i = end) {
        const tsr_str fqn = flat_fqn(settings[i].rest);
        tsr_stored_optimizer_param param = {.fqn = fqn};
        for (end = i + 1; end < count && tsr_str_equal(flat_fqn(settings[end].rest), fqn);) end++;
        if (!fqn.size) continue;
        TSR_TRY(flat_group(s, settings + i, end - i, optimizer, &param.group));
        TSR_TRY(add_param(s, optimizer, fqn, param));
    }
    return TSR_OK;
}

static tsr_status read_groups(search *s)
{
    setting *settings = s->settings.items;
    const size_t count = s->settings.count;
    if (count) qsort(settings, count, sizeof *settings, by_optimizer_and_group);
    for (size_t i = 0, end; i < count; i = end) {
        const uint32_t optimizer = settings[i].optimizer;
        found *of = (found *)s->optimizers.items + optimizer;
        for (end = i + 1; end < count && settings[end].optimizer == optimizer;) end++;
        of->shown.first_param = (uint32_t)s->params.count;
        TSR_TRY(of->nested ? add_nested(s, optimizer, settings + i, end - i)
                           : add_flat(s, optimizer, settings + i, end - i));
    }
    return TSR_OK;
}

/* ---- state ---- */

static tsr_status add_state(search *s, uint32_t param_number, tsr_str name, const tsr_entry *entry)
{
    tsr_stored_optimizer_param *param = (tsr_stored_optimizer_param *)s->params.items + param_number;
    tsr_stored_optimizer_state *new = tsr_vec_push(&s->states, s->err);
    if (!new) return TSR_E_NOMEM;
    *new = (tsr_stored_optimizer_state){name, entry, TSR_NO_STATE};
    const uint32_t number = (uint32_t)s->states.count - 1;
    if (param->last == TSR_NO_STATE) param->first = number;
    else ((tsr_stored_optimizer_state *)s->states.items)[param->last].next = number;
    param->last = number;
    return TSR_OK;
}

/* The path item after those whose names together are `size` bytes, or NULL. */
static const tsr_path_item *item_after(const tsr_entry *entry, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; entry->path && i + 1 < entry->path_length; i++) {
        used += tsr_path_item_size(&entry->path[i]) + (i ? 1 : 0);
        if (used == size) return &entry->path[i + 1];
        if (used > size) break;
    }
    return NULL;
}

static bool is_text_key(const tsr_entry *entry, size_t state_size, tsr_str key)
{
    const tsr_path_item *item = item_after(entry, state_size);
    return item && item->kind == TSR_PATH_KEY && !item->value && tsr_str_equal(item->key, key);
}

/* Gives an entry whose name begins with a parameter's key to that parameter. */
static tsr_status place_state(search *s, uint32_t number, size_t key_end, const tsr_entry *entry)
{
    tsr_stored_optimizer_param *param = (tsr_stored_optimizer_param *)s->params.items + number;
    const tsr_value *dict = entry->value;
    if (is_text_key(entry, key_end - param->key.size - 1, param->key)) param->is_text = true;
    if (key_end < entry->fqn.size) return add_state(s, number, tsr_str_after(entry->fqn, key_end + 1), entry);
    if (!dict || dict->kind != TSR_VALUE_DICT) return TSR_OK;
    for (size_t i = 0; i < dict->count; i += 2) /* a state without tensors, as PyTorch 2.3 writes it */
        if (dict->items[i]->kind == TSR_VALUE_STR) TSR_TRY(add_state(s, number, dict->items[i]->text, entry));
    return TSR_OK;
}

static tsr_status read_states(search *s, const tsr_catalog *catalog, uint32_t *owners, uint32_t *owner_params)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_str fqn = catalog->entries[i].fqn;
        size_t end = fqn.size, least;
        if (!find_component(fqn, STATE, &least)) continue;
        for (least += STATE.size; end >= least; end--) {
            if (end < fqn.size && fqn.data[end] != '.') continue;
            const uint32_t number = tsr_map_get(s->names, (tsr_str){fqn.data, end}, UINT32_MAX);
            if (number == UINT32_MAX) continue;
            if (number & OPTIMIZER) {
                owners[i] = 1 + (number & ~OPTIMIZER);
                break;
            }
            if (owner_params[i]) continue; /* a longer key was found */
            owner_params[i] = 1 + number;
            TSR_TRY(place_state(s, number, end, &catalog->entries[i]));
        }
    }
    return TSR_OK;
}

/* ---- result ---- */

static tsr_status copy_items(search *s, const tsr_vec *vec, const void **out)
{
    void *items = tsr_arena_array(s->arena, vec->count, vec->item_size, s->err);
    if (!items) return TSR_E_NOMEM;
    if (vec->count) memcpy(items, vec->items, vec->count * vec->item_size);
    *out = items;
    return TSR_OK;
}

static tsr_status put_result(search *s, tsr_stored_optimizers *out)
{
    tsr_stored_optimizer *items = tsr_arena_array(s->arena, s->optimizers.count, sizeof *items, s->err);
    tsr_stored_optimizer_group *groups = tsr_arena_array(s->arena, s->groups.count, sizeof *groups, s->err);
    if (!items || !groups) return TSR_E_NOMEM;
    for (size_t i = 0; i < s->optimizers.count; i++) items[i] = ((found *)s->optimizers.items)[i].shown;
    for (size_t i = 0; i < s->groups.count; i++) {
        const group *from = (const group *)s->groups.items + i;
        groups[i] = from->shown;
        groups[i].option_count = (uint32_t)from->options.count;
        TSR_TRY(copy_items(s, &from->options, (const void **)&groups[i].options));
    }
    out->items = items;
    out->count = (uint32_t)s->optimizers.count;
    out->groups = groups;
    out->param_count = (uint32_t)s->params.count;
    TSR_TRY(copy_items(s, &s->params, (const void **)&out->params));
    return copy_items(s, &s->states, (const void **)&out->states);
}

static tsr_status run(search *s, const tsr_catalog *catalog, tsr_stored_optimizers *out)
{
    uint32_t *owners = tsr_arena_array(s->arena, (size_t)catalog->entry_count, sizeof *owners, s->err);
    uint32_t *owner_params = tsr_arena_array(s->arena, (size_t)catalog->entry_count, sizeof *owner_params, s->err);
    if (!owners || !owner_params || !s->names || !s->alike) return TSR_E_NOMEM;
    *out = (tsr_stored_optimizers){.owners = owners, .owner_params = owner_params};
    TSR_TRY(read_settings(s, catalog));
    TSR_TRY(read_groups(s));
    if (s->optimizers.count) TSR_TRY(read_states(s, catalog, owners, owner_params));
    return put_result(s, out);
}

tsr_status tsr_stored_optimizers_find(const tsr_catalog *catalog, const tsr_host *host, tsr_arena *arena,
                                      tsr_stored_optimizers *out, tsr_error *err)
{
    const tsr_allocator *a = host->allocator;
    search s = {.host = host,
                .arena = arena,
                .names = tsr_map_new(a, 0, err),
                .alike = tsr_map_new(a, 0, err),
                .optimizers = tsr_vec_of(a, sizeof(found)),
                .settings = tsr_vec_of(a, sizeof(setting)),
                .groups = tsr_vec_of(a, sizeof(group)),
                .params = tsr_vec_of(a, sizeof(tsr_stored_optimizer_param)),
                .states = tsr_vec_of(a, sizeof(tsr_stored_optimizer_state)),
                .err = err};
    const tsr_status status = run(&s, catalog, out);
    for (size_t i = 0; i < s.groups.count; i++) tsr_vec_free(&((group *)s.groups.items + i)->options);
    tsr_map_free(s.names);
    tsr_map_free(s.alike);
    tsr_vec_free(&s.optimizers);
    tsr_vec_free(&s.settings);
    tsr_vec_free(&s.groups);
    tsr_vec_free(&s.params);
    tsr_vec_free(&s.states);
    return status;
}

/* ---- ids that became texts ---- */

const tsr_path_item *tsr_stored_optimizers_id_of(const tsr_stored_optimizers *all, const tsr_catalog *catalog,
                                                 uint64_t entry)
{
    if (!all->owner_params[entry]) return NULL;
    const tsr_stored_optimizer_param *param = &all->params[all->owner_params[entry] - 1];
    const tsr_str name = all->items[all->owners[entry] - 1].name;
    const tsr_path_item *item = item_after(&catalog->entries[entry], name.size + (name.size ? 1 : 0) + STATE.size);
    char digits[TSR_PATH_DIGITS];
    if (!param->is_id || !item || item->kind == TSR_PATH_INDEX || item->value) return NULL;
    return tsr_str_equal(tsr_path_item_text(item, digits), param->key) ? item : NULL;
}

/* ---- optimizer scalars ---- */

/* Recognizes the state of optimizers by where it is. The name of a value alone, such as "step", decides nothing: models have
 * buffers with such names. */

typedef struct survey {
    const tsr_catalog *catalog;
    tsr_map *owners; /* what is before "param_groups" in names, with its dot */
    bool only_state; /* the root has nothing but "state" and "param_groups", and there are moments of parameters in it */
    tsr_error *err;
} survey;

/* Takes the next component of a name and its dot off *rest. Returns false after the last one. */
static bool next_component(tsr_str *rest, tsr_str *out)
{
    if (!rest->size) return false;
    const char *dot = memchr(rest->data, '.', rest->size);
    out->data = rest->data;
    out->size = dot ? (size_t)(dot - rest->data) : rest->size;
    const size_t taken = out->size + (dot != NULL);
    rest->data += taken, rest->size -= taken;
    return true;
}

static bool is_groups(tsr_str component)
{
    return tsr_str_equal(component, TSR_STR("param_groups"));
}

static bool is_state(tsr_str component)
{
    return tsr_str_equal(component, TSR_STR("state"));
}

/* Megatron-Core's distributed optimizer keeps its state apart from that of the optimizer inside it. */
static bool is_any_state(tsr_str component)
{
    return is_state(component) || is_groups(component) || tsr_str_equal(component, TSR_STR("param_state"));
}

/* Whether this is what frameworks call an optimizer: "optim", or "optimizer_0" of several. */
static bool names_optimizer(tsr_str component)
{
    static const char *const names[] = {
        "optim",           "optimizer",        "optimizers",       "optim_state",         "optim_states",
        "optimizer_state", "optimizer_states", "optim_state_dict", "optimizer_state_dict"};
    while (component.size && tsr_is_digit(component.data[component.size - 1])) component.size--;
    if (component.size && component.data[component.size - 1] == '_') component.size--;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(component, tsr_str_from(names[i]))) return true;
    return false;
}

/* Whether this is a name that PyTorch's optimizers give to what they remember of a parameter. */
static bool is_moment(tsr_str fqn)
{
    static const char *const names[] = {"exp_avg", "momentum_buffer", "square_avg"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(tsr_last_component(fqn), tsr_str_from(names[i]))) return true;
    return false;
}

static tsr_status find_owners(survey *s)
{
    bool moments = false;
    s->only_state = true;
    for (uint64_t i = 0; i < s->catalog->entry_count; i++) {
        const tsr_str fqn = s->catalog->entries[i].fqn;
        tsr_str rest = fqn, component = {NULL, 0};
        for (bool first = true; next_component(&rest, &component); first = false) {
            if (first && !is_state(component) && !is_groups(component)) s->only_state = false;
            if (!is_groups(component)) continue;
            const tsr_str owner = {fqn.data, (size_t)(component.data - fqn.data)};
            TSR_TRY(tsr_map_put(s->owners, owner, 0, NULL, NULL, s->err));
        }
        moments |= is_moment(fqn);
    }
    s->only_state &= moments;
    return TSR_OK;
}

static bool belongs_to_optimizer(const survey *s, tsr_str fqn)
{
    tsr_str rest = fqn, component;
    bool inside = s->only_state;
    while (next_component(&rest, &component)) {
        const tsr_str before = {fqn.data, (size_t)(component.data - fqn.data)};
        if (inside && is_any_state(component)) return true;
        if ((is_state(component) || is_groups(component)) && tsr_map_get(s->owners, before, UINT32_MAX) != UINT32_MAX)
            return true;
        inside |= names_optimizer(component);
    }
    return false;
}

static tsr_status mark(survey *s, bool *is)
{
    TSR_TRY(find_owners(s));
    for (uint64_t i = 0; i < s->catalog->entry_count; i++)
        is[i] = is[i] && belongs_to_optimizer(s, s->catalog->entries[i].fqn);
    return TSR_OK;
}

tsr_status tsr_optimizer_scalars(const tsr_catalog *catalog, const tsr_allocator *allocator, bool *is, tsr_error *err)
{
    survey s = {.catalog = catalog, .err = err};
    bool any = false;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        is[i] = catalog->entries[i].kind == TSR_ENTRY_TENSOR && !catalog->entries[i].ndim;
        any |= is[i];
    }
    if (!any) return TSR_OK;
    s.owners = tsr_map_new(allocator, 0, err);
    const tsr_status status = s.owners ? mark(&s, is) : TSR_E_NOMEM;
    tsr_map_free(s.owners);
    return status;
}
