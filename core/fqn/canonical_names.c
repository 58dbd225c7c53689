/* Canonical names of whole catalogs, stored for look-ups.
 *
 *     model.module.fc.weight                    →  model.fc.weight                 by the module tree, or by the text of all keys
 *     optim.state.module.fc.weight.exp_avg      →  optim.state.fc.weight.exp_avg   as the model's "module.fc.weight"
 *     optim.param_groups.0.params: [module.fc…] →  [fc.weight]                     the same
 *
 * An optimizer may have no state for some parameters, so its own keys alone would not show their siblings. */
#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

#define PARAM_GROUPS TSR_STR(".param_groups.")

enum { MOST_WRAPPERS = 6, MOST_HOLDERS = 8 };

struct tsr_canonical_names {
    const tsr_host *host;
    const tsr_modules *modules; /* during tsr_canonical_names_new; or NULL */
    tsr_arena *arena;
    tsr_map *model;  /* canonical names of the module tree */
    tsr_map *index;  /* raw name of an entry → index in `fqns` */
    tsr_map *plains; /* raw name of an entry without `plain` wrappers → index in `fqns` */
    tsr_map *params; /* raw name of a parameter, as optimizers have it → index in `fqns` */
    tsr_vec fqns;    /* tsr_str */
};

static tsr_status add(tsr_canonical_names *c, tsr_map *to, tsr_str raw, tsr_str fqn, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(to, raw, (uint32_t)c->fqns.count, NULL, &fresh, err));
    if (!fresh) return TSR_OK;
    tsr_str *added = tsr_vec_push(&c->fqns, err);
    if (added) *added = fqn;
    return added ? TSR_OK : TSR_E_NOMEM;
}

static bool find(const tsr_canonical_names *c, const tsr_map *in, tsr_str raw, tsr_str *out)
{
    const uint32_t at = tsr_map_get(in, raw, UINT32_MAX);
    if (at != UINT32_MAX) *out = ((const tsr_str *)c->fqns.items)[at];
    return at != UINT32_MAX;
}

/* ---- by the module tree ---- */

static tsr_status list_model(tsr_canonical_names *c, tsr_error *err)
{
    tsr_names all;
    if (!c->modules) return TSR_OK;
    TSR_TRY(tsr_fqn_resolve_all(c->modules, NULL, c->host, c->arena, &all, err));
    for (size_t i = 0; i < all.count; i++)
        for (size_t f = 0; f < all.names[i].fqn_count; f++)
            TSR_TRY(tsr_map_put(c->model, all.names[i].fqns[f], 1, NULL, NULL, err));
    return TSR_OK;
}

static size_t component_size(tsr_str name, size_t at)
{
    const char *dot = memchr(name.data + at, '.', name.size - at);
    return dot ? (size_t)(dot - name.data) - at : name.size - at;
}

/* The wrappers from number `from` on. A model has no attributes that are called like those from PLAIN on. */
enum { ANY_WRAPPER = 0, PLAIN = 1 };
static bool is_wrapper(tsr_str component, unsigned from)
{
    static const char *const wrappers[] = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"};
    for (size_t i = from; i < sizeof wrappers / sizeof *wrappers; i++)
        if (tsr_str_equal(component, tsr_str_from(wrappers[i]))) return true;
    return false;
}

/* The name without some of the components that could be those of wrappers: the one of number i if bit i of `removed` is set.
 * Returns how many there are. */
static unsigned without(tsr_str name, unsigned from, unsigned removed, char *out, size_t *size)
{
    unsigned count = 0;
    *size = 0;
    for (size_t at = 0, length; at <= name.size; at += length + 1) {
        length = component_size(name, at);
        const bool last = at + length == name.size, is = !last && is_wrapper((tsr_str){name.data + at, length}, from);
        const bool gone = is && removed >> (count < 31 ? count : 31) & 1;
        count += is;
        if (gone) continue;
        memcpy(out + *size, name.data + at, length + !last);
        *size += length + !last;
        if (last) break;
    }
    return count;
}

/* Finds what the module tree calls the end of a name, trying the longest end and the fewest removed components first. Tied
 * tensors have one name in the list of the model's state, and are found in the tree under the others. */
static tsr_status by_tree(const tsr_canonical_names *c, tsr_str name, tsr_str *out, bool *found, tsr_error *err)
{
    char *text = tsr_arena_array(c->arena, name.size + 1, 1, err);
    if (!text) return TSR_E_NOMEM;
    *found = false;
    for (size_t at = 0; at < name.size; at += component_size(name, at) + 1) {
        const tsr_str end = {name.data + at, name.size - at};
        size_t size;
        memcpy(text, name.data, at);
        const unsigned wrappers = without(end, ANY_WRAPPER, ~0u, text + at, &size);
        const unsigned tries = 1u << (wrappers < MOST_WRAPPERS ? wrappers : MOST_WRAPPERS);
        for (unsigned removed = 0; removed < tries && !*found; removed++) {
            without(end, ANY_WRAPPER, removed == tries - 1 ? ~0u : removed, text + at, &size);
            *found = tsr_map_get(c->model, (tsr_str){text + at, size}, 0);
        }
        text[at + size] = 0;
        *found = *found || tsr_modules_find(c->modules, text + at);
        *out = (tsr_str){text, at + size};
        if (*found) return TSR_OK;
    }
    return TSR_OK;
}

/* ---- parameters of optimizers ---- */

static tsr_str before(tsr_str name, tsr_str component)
{
    const size_t size = name.size - component.size;
    return (tsr_str){name.data, size ? size - 1 : 0};
}

/* The end of `fqn` that is what became of `raw`, where `fqn` is the canonical name of something that ends in `raw`. */
static tsr_str end_of(tsr_str fqn, tsr_str raw)
{
    size_t start = fqn.size;
    tsr_str rest = fqn;
    while (raw.size && rest.size) {
        const tsr_str component = tsr_last_component(raw), kept = tsr_last_component(rest);
        raw = before(raw, component);
        if (!tsr_str_equal(component, kept)) continue;
        start = (size_t)(kept.data - fqn.data);
        rest = before(rest, kept);
    }
    return tsr_str_after(fqn, start);
}

/* The name without the components that are a wrapper's wherever they are. Some state dicts have them and others, of the same model,
 * do not: CheckpointWrapper removes its own from those of models. */
static tsr_status plain(const tsr_canonical_names *c, tsr_str name, tsr_str *out, tsr_error *err)
{
    char *text = tsr_arena_array(c->arena, name.size, 1, err);
    if (!text) return TSR_E_NOMEM;
    out->data = text;
    without(name, PLAIN, ~0u, text, &out->size);
    return TSR_OK;
}

typedef struct optimizer_names {
    tsr_canonical_names *c;
    const tsr_str *models; /* plain names of the entries that are not an optimizer's */
    size_t model_count;
    tsr_str *raws, *plains; /* of the parameters that have names */
    tsr_name *texts;        /* their canonical names by text */
    size_t count;
} optimizer_names;

/* What a parameter of the optimizer is called in the model below `holder`, such as "model.". */
static tsr_status find_in(const optimizer_names *o, tsr_str holder, tsr_str name, tsr_str *fqn, bool *found, tsr_error *err)
{
    const tsr_str key = tsr_arena_format(o->c->arena, err, "%.*s%.*s", TSR_STR_ARG(holder), TSR_STR_ARG(name));
    if (!key.data) return TSR_E_NOMEM;
    *found = find(o->c, o->c->plains, key, fqn);
    return TSR_OK;
}

/* Finds what comes before the names of the optimizer's parameters in those of the model: the holder that has the most of them. */
static tsr_status find_holder(const optimizer_names *o, tsr_str *holder, bool *found, tsr_error *err)
{
    const tsr_str first = o->plains[0];
    size_t most = 0, tried = 0;
    *found = false;
    for (size_t i = 0; i < o->model_count && tried < MOST_HOLDERS; i++) {
        const tsr_str name = o->models[i];
        const size_t size = name.size - first.size;
        if (!tsr_str_ends(name, first) || (size && name.data[size - 1] != '.')) continue;
        size_t count = 0;
        tried++;
        for (size_t k = 0; k < o->count; k++) {
            tsr_str fqn;
            bool is;
            TSR_TRY(find_in(o, (tsr_str){name.data, size}, o->plains[k], &fqn, &is, err));
            count += is;
        }
        if (count <= most) continue;
        most = count;
        *holder = (tsr_str){name.data, size};
        *found = true;
    }
    return TSR_OK;
}

static tsr_status name_params(const optimizer_names *o, tsr_error *err)
{
    tsr_canonical_names *c = o->c;
    tsr_str holder = {NULL, 0};
    bool held;
    TSR_TRY(find_holder(o, &holder, &held, err));
    TSR_TRY(tsr_fqn_from_text(o->raws, o->count, c->host->allocator, c->arena, o->texts, err));
    for (size_t i = 0; i < o->count; i++) {
        tsr_str fqn = o->raws[i], whole;
        bool found = false;
        if (c->modules) TSR_TRY(by_tree(c, o->raws[i], &fqn, &found, err));
        if (!found) {
            fqn = o->texts[i].fqns[0];
            bool is = false;
            if (held) TSR_TRY(find_in(o, holder, o->plains[i], &whole, &is, err));
            if (is) fqn = end_of(whole, o->raws[i]);
        }
        TSR_TRY(add(c, c->params, o->raws[i], fqn, err));
    }
    return TSR_OK;
}

static tsr_status name_optimizers(tsr_canonical_names *c, const tsr_stored_optimizers *all, const tsr_str *models,
                                  size_t model_count, tsr_error *err)
{
    optimizer_names o = {.c = c,
                         .models = models,
                         .model_count = model_count,
                         .raws = tsr_arena_array(c->arena, all->param_count, sizeof *o.raws, err),
                         .plains = tsr_arena_array(c->arena, all->param_count, sizeof *o.plains, err),
                         .texts = tsr_arena_array(c->arena, all->param_count, sizeof *o.texts, err)};
    if (!o.raws || !o.plains || !o.texts) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < all->count; i++) {
        const tsr_stored_optimizer *optimizer = &all->items[i];
        o.count = 0;
        for (uint32_t p = 0; p < optimizer->param_count; p++) {
            const tsr_str fqn = all->params[optimizer->first_param + p].fqn;
            if (!fqn.size) continue;
            o.raws[o.count] = fqn;
            TSR_TRY(plain(c, fqn, &o.plains[o.count++], err));
        }
        if (o.count) TSR_TRY(name_params(&o, err));
    }
    return TSR_OK;
}

/* The name of an entry that has a parameter's name in it, between `start` and `end`. */
static tsr_status put_param(const tsr_canonical_names *c, tsr_str name, size_t start, size_t end, tsr_arena *arena,
                            tsr_str *out, tsr_error *err)
{
    tsr_str fqn;
    if (!find(c, c->params, (tsr_str){name.data + start, end - start}, &fqn)) return TSR_OK;
    *out = tsr_arena_format(arena, err, "%.*s%.*s%.*s", (int)start, name.data, TSR_STR_ARG(fqn), (int)(name.size - end),
                            name.data + end);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static bool find_groups(tsr_str name, size_t *start)
{
    const tsr_str word = {PARAM_GROUPS.data + 1, PARAM_GROUPS.size - 1};
    for (size_t at = 0; at + word.size <= name.size; at++) {
        if ((at && name.data[at - 1] != '.') || memcmp(name.data + at, word.data, word.size) != 0) continue;
        *start = at + word.size;
        return true;
    }
    return false;
}

/* What an entry of an optimizer becomes: of its state, or "param_groups.fc.weight.lr" of the flat form. */
static tsr_status optimizer_entry(const tsr_canonical_names *c, const tsr_catalog *catalog, const tsr_stored_optimizers *all,
                                  uint64_t entry, tsr_str *out, tsr_error *err)
{
    const tsr_str name = catalog->entries[entry].fqn;
    size_t start;
    if (all->owner_params[entry]) {
        const tsr_stored_optimizer_param *param = &all->params[all->owner_params[entry] - 1];
        const tsr_str owner = all->items[all->owners[entry] - 1].name;
        start = owner.size + (owner.size ? 1 : 0) + TSR_STR("state.").size;
        return param->is_id ? TSR_OK : put_param(c, name, start, start + param->key.size, c->arena, out, err);
    }
    const tsr_str option = tsr_last_component(name);
    if (!find_groups(name, &start) || option.size + 1 >= name.size - start) return TSR_OK;
    return put_param(c, name, start, name.size - option.size - 1, c->arena, out, err);
}

/* ---- catalogs ---- */

static tsr_status name_model(tsr_canonical_names *c, const tsr_name *name, tsr_str *models, size_t *count, tsr_error *err)
{
    tsr_str fqn = name->fqns[0];
    bool found = false;
    if (c->modules) TSR_TRY(by_tree(c, name->raw, &fqn, &found, err));
    if (!found) fqn = name->fqns[0];
    TSR_TRY(add(c, c->index, name->raw, fqn, err));
    TSR_TRY(plain(c, name->raw, &models[*count], err));
    return add(c, c->plains, models[(*count)++], fqn, err);
}

static tsr_status add_catalog(tsr_canonical_names *c, const tsr_catalog *catalog, tsr_error *err)
{
    const size_t count = (size_t)catalog->entry_count;
    tsr_stored_optimizers all;
    tsr_str *raws = tsr_arena_array(c->arena, count, sizeof *raws, err);
    tsr_str *fqns = tsr_arena_array(c->arena, count, sizeof *fqns, err);
    tsr_str *models = tsr_arena_array(c->arena, count, sizeof *models, err);
    tsr_name *names = tsr_arena_array(c->arena, count, sizeof *names, err);
    size_t model_count = 0, start;
    if (!raws || !fqns || !models || !names) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) raws[i] = catalog->entries[i].fqn;
    TSR_TRY(tsr_fqn_from_text(raws, count, c->host->allocator, c->arena, names, err));
    TSR_TRY(tsr_stored_optimizers_find(catalog, c->host, c->arena, &all, err));
    for (size_t i = 0; i < count; i++)
        if (!all.count || (!all.owners[i] && !find_groups(raws[i], &start)))
            TSR_TRY(name_model(c, &names[i], models, &model_count, err));
    TSR_TRY(name_optimizers(c, &all, models, model_count, err));
    for (size_t i = 0; i < count; i++) { /* those that were added are not added again */
        tsr_str fqn = names[i].fqns[0];
        TSR_TRY(optimizer_entry(c, catalog, &all, i, &fqn, err));
        TSR_TRY(add(c, c->index, raws[i], fqn, err));
        find(c, c->index, raws[i], &fqns[i]);
        names[i].fqns = &fqns[i];
    }
    return tsr_fqn_refuse_twins(names, count, c->host->allocator, c->arena, err);
}

static tsr_status fill(tsr_canonical_names *c, const tsr_catalog *const *catalogs, const char *const *called, size_t count,
                       tsr_error *err)
{
    const tsr_allocator *a = c->host->allocator;
    c->arena = tsr_arena_new(a, 0, err);
    c->model = tsr_map_new(a, 0, err);
    c->index = tsr_map_new(a, 0, err);
    c->plains = tsr_map_new(a, 0, err);
    c->params = tsr_map_new(a, 0, err);
    if (!c->arena || !c->model || !c->index || !c->plains || !c->params) return TSR_E_NOMEM;
    TSR_TRY(list_model(c, err));
    for (size_t i = 0; i < count; i++) {
        const tsr_status status = add_catalog(c, catalogs[i], err);
        if (status != TSR_OK && called) tsr_error_context(err, "%s", called[i]);
        TSR_TRY(status);
    }
    return TSR_OK;
}

tsr_status tsr_canonical_names_new(const tsr_catalog *const *catalogs, const char *const *called, size_t count,
                                   const tsr_modules *modules, const tsr_host *host, tsr_canonical_names **out,
                                   tsr_error *err)
{
    *out = NULL;
    tsr_canonical_names *c = tsr_alloc(host->allocator, 1, sizeof *c, err);
    if (!c) return TSR_E_NOMEM;
    *c = (tsr_canonical_names){.host = host, .modules = modules, .fqns = tsr_vec_of(host->allocator, sizeof(tsr_str))};
    const tsr_status status = fill(c, catalogs, called, count, err);
    if (status == TSR_OK) *out = c;
    else tsr_canonical_names_free(c);
    return status;
}

void tsr_canonical_names_free(tsr_canonical_names *names)
{
    if (!names) return;
    tsr_map_free(names->model);
    tsr_map_free(names->index);
    tsr_map_free(names->plains);
    tsr_map_free(names->params);
    tsr_vec_free(&names->fqns);
    tsr_arena_free(names->arena);
    tsr_free(names->host->allocator, names, 1, sizeof *names);
}

tsr_status tsr_canonical_names_find(void *names, tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    (void)arena, (void)err;
    const tsr_canonical_names *c = names;
    *out = raw;
    find(c, c->index, raw, out);
    return TSR_OK;
}

tsr_status tsr_canonical_names_dict(const tsr_canonical_names *c, tsr_str fqn, tsr_str inside, tsr_arena *arena,
                                    tsr_str *out, tsr_error *err)
{
    tsr_str whole;
    *out = fqn;
    if (inside.size > fqn.size + 1 && find(c, c->index, inside, &whole)) {
        const tsr_str rest = end_of(whole, tsr_str_after(inside, fqn.size + 1));
        *out = before(whole, rest);
        return TSR_OK;
    }
    for (size_t at = 0; at < fqn.size; at += component_size(fqn, at) + 1) { /* the empty state of a parameter */
        const tsr_str state = TSR_STR("state.");
        if (!tsr_str_starts(tsr_str_after(fqn, at), state)) continue;
        TSR_TRY(put_param(c, fqn, at + state.size, fqn.size, arena, out, err));
    }
    return TSR_OK;
}

/* ---- values ---- */

/* Lists of parameters are three containers deep: param_groups, a group, params. */
enum { DEEPEST = 3 };

static tsr_status rename_in(const tsr_canonical_names *c, const tsr_value *value, bool lists, unsigned depth,
                            tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const bool is_list = value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE;
    tsr_str fqn;
    *out = value;
    if (lists && value->kind == TSR_VALUE_STR && find(c, c->params, value->text, &fqn) && !tsr_str_equal(fqn, value->text)) {
        fqn = tsr_arena_str(arena, fqn, err);
        *out = fqn.data ? tsr_value_str(arena, fqn, err) : NULL;
        return *out ? TSR_OK : TSR_E_NOMEM;
    }
    if ((!is_list && value->kind != TSR_VALUE_DICT) || depth == DEEPEST) return TSR_OK;
    const tsr_value **items = tsr_arena_array(arena, value->count, sizeof *items, err);
    bool changed = false;
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < value->count; i++) {
        const tsr_value *key = is_list || i % 2 == 0 ? NULL : value->items[i - 1];
        const bool names = key && key->kind == TSR_VALUE_STR &&
                           (tsr_str_equal(key->text, TSR_STR("params")) || tsr_str_equal(key->text, TSR_STR("param_names")));
        items[i] = value->items[i];
        if (is_list || key)
            TSR_TRY(rename_in(c, value->items[i], is_list ? lists : names, depth + 1, arena, &items[i], err));
        changed = changed || items[i] != value->items[i];
    }
    tsr_value *copy = changed ? tsr_value_new(arena, value->kind, err) : NULL;
    if (!changed) return TSR_OK;
    if (!copy) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    *out = copy;
    return TSR_OK;
}

tsr_status tsr_canonical_names_value(void *names, const tsr_entry *entry, tsr_arena *arena, const tsr_value **out,
                                     tsr_error *err)
{
    const tsr_str last = tsr_last_component(entry->fqn);
    const bool lists = tsr_str_equal(last, TSR_STR("params")) || tsr_str_equal(last, TSR_STR("param_names"));
    size_t start;
    *out = entry->value;
    if (entry->kind != TSR_ENTRY_OBJECT || !entry->value) return TSR_OK;
    if (!tsr_str_equal(last, TSR_STR("param_groups")) && !find_groups(entry->fqn, &start)) return TSR_OK;
    return rename_in(names, entry->value, lists, 0, arena, out, err);
}
