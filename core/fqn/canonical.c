/* Canonical names: wrapper prefixes removed, and names that then collide. */
#include "tessera/fqn.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

/* ---- canonical text ---- */

/* Finds canonical names from the keys alone, without a module tree.
 *
 * All keys go into a trie of components. Whether "module" is DDP's is then decided by looking at its parent:
 *
 *     (root) ── module ── fc ── weight        only child: a wrapper's, removed
 *     (root) ─┬ encoder ─ …
 *             └ module ── fc ── weight        has a sibling: an attribute of the model, kept
 *
 * DDP and torch.compile wrappers have nothing except the module they wrap, so a sibling proves that it is not a wrapper. An
 * only child proves nothing, which the name's `ambiguity` states. */

typedef struct wrapper {
    const char *component, *why;
    bool only_child;
    const char *removed_ambiguity, *kept_ambiguity;
} wrapper;

static const wrapper wrappers[] = {
    {"module", "DistributedDataParallel's name for the module it wraps", true,
     "'module' was assumed to be DistributedDataParallel's; a submodule of that name would look the same",
     "'module' was kept: it has siblings, which DistributedDataParallel's 'module' does not have"},
    {"_orig_mod", "torch.compile's name for the module it wraps", true, "",
     "'_orig_mod' was kept: it has siblings, which torch.compile's '_orig_mod' does not have"},
    {"_fsdp_wrapped_module", "FullyShardedDataParallel's name for the module it wraps", false, "", ""},
    {"_checkpoint_wrapped_module", "activation checkpointing's name for the module it wraps", false, "", ""},
};

#define ROOT 0u

typedef struct trie {
    tsr_arena *arena;
    tsr_map *edges;   /* {parent, component} → child */
    tsr_vec children; /* uint32_t: the number of children of each node */
} trie;

static tsr_str next_component(tsr_str name, size_t at)
{
    const char *dot = at < name.size ? memchr(name.data + at, '.', name.size - at) : NULL;
    return (tsr_str){name.data + at, dot ? (size_t)(dot - name.data) - at : name.size - at};
}

static tsr_status trie_step(trie *t, uint32_t parent, tsr_str component, uint32_t *child, tsr_error *err)
{
    char *key = tsr_arena_array(t->arena, sizeof parent + component.size, 1, err);
    if (!key) return TSR_E_NOMEM;
    memcpy(key, &parent, sizeof parent);
    if (component.size) memcpy(key + sizeof parent, component.data, component.size);
    uint32_t *value;
    bool fresh;
    TSR_TRY(tsr_map_put(t->edges, (tsr_str){key, sizeof parent + component.size}, (uint32_t)t->children.count, &value,
                        &fresh, err));
    *child = *value;
    if (!fresh) return TSR_OK;
    ((uint32_t *)t->children.items)[parent]++;
    return tsr_vec_push(&t->children, err) ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status trie_add(trie *t, tsr_str name, tsr_error *err)
{
    uint32_t node = ROOT;
    for (size_t at = 0;;) {
        tsr_str component = next_component(name, at);
        TSR_TRY(trie_step(t, node, component, &node, err));
        at += component.size + 1;
        if (at > name.size) return TSR_OK;
    }
}

static const wrapper *wrapper_of(tsr_str component)
{
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++) {
        if (tsr_str_equal(component, tsr_str_from(wrappers[i].component))) return &wrappers[i];
    }
    return NULL;
}

/* The number of components that could be those of a wrapper. */
static size_t suspects(tsr_str name)
{
    size_t count = 0;
    for (size_t at = 0; at < name.size;) {
        tsr_str component = next_component(name, at);
        at += component.size + 1;
        count += at <= name.size && wrapper_of(component);
    }
    return count;
}

/* Walks one name again, after all names were added. `kept` and `removed` have room for every component. */
static tsr_status walk_name(trie *t, tsr_name *name, char *kept, size_t *kept_size, tsr_removed *removed, tsr_error *err)
{
    uint32_t node = ROOT;
    for (size_t at = 0; at <= name->raw.size;) {
        tsr_str component = next_component(name->raw, at);
        bool last = at + component.size == name->raw.size;
        const wrapper *w = last ? NULL : wrapper_of(component);
        bool goes = w && (!w->only_child || ((uint32_t *)t->children.items)[node] == 1);
        const char *ambiguity = !w ? "" : goes ? w->removed_ambiguity : w->only_child ? w->kept_ambiguity : "";
        if (*ambiguity && name->ambiguity.size == 0) name->ambiguity = tsr_str_from(ambiguity);
        if (goes) {
            removed[name->removed_count++] = (tsr_removed){component, tsr_str_from(w->why)};
        } else {
            if (component.size) memcpy(kept + *kept_size, component.data, component.size);
            *kept_size += component.size;
            if (!last) kept[(*kept_size)++] = '.';
        }
        TSR_TRY(trie_step(t, node, component, &node, err));
        at += component.size + 1;
    }
    return TSR_OK;
}

static tsr_status canonicalize(trie *t, tsr_name *name, tsr_arena *arena, tsr_error *err)
{
    size_t suspect_count = suspects(name->raw);
    tsr_str *fqn = TSR_ARENA_NEW(arena, tsr_str, err);
    if (!fqn) return TSR_E_NOMEM;
    name->fqns = fqn;
    name->fqn_count = 1;
    *fqn = name->raw;
    if (suspect_count == 0) return TSR_OK;
    char *kept = tsr_arena_array(arena, name->raw.size, 1, err);
    tsr_removed *removed = tsr_arena_array(arena, suspect_count, sizeof *removed, err);
    if (!kept || !removed) return TSR_E_NOMEM;
    size_t kept_size = 0;
    name->removed = removed;
    TSR_TRY(walk_name(t, name, kept, &kept_size, removed, err));
    *fqn = (tsr_str){kept, kept_size};
    return TSR_OK;
}

static tsr_status canonicalize_all(trie *t, const tsr_str *raws, size_t count, tsr_arena *arena, tsr_name *names,
                                   tsr_error *err)
{
    if (!tsr_vec_push(&t->children, err)) return TSR_E_NOMEM; /* the root */
    for (size_t i = 0; i < count; i++) TSR_TRY(trie_add(t, raws[i], err));
    for (size_t i = 0; i < count; i++) {
        names[i] = (tsr_name){.raw = raws[i]};
        TSR_TRY(canonicalize(t, &names[i], arena, err));
    }
    return TSR_OK;
}

tsr_status tsr_fqn_from_text(const tsr_str *raws, size_t count, const tsr_allocator *allocator, tsr_arena *arena,
                             tsr_name *names, tsr_error *err)
{
    trie t = {tsr_arena_new(allocator, 0, err), tsr_map_new(allocator, count, err), tsr_vec_of(allocator, sizeof(uint32_t))};
    tsr_status status = t.arena && t.edges ? canonicalize_all(&t, raws, count, arena, names, err) : TSR_E_NOMEM;
    tsr_vec_free(&t.children);
    tsr_map_free(t.edges);
    tsr_arena_free(t.arena);
    return status;
}

/* ---- parameters with two names ---- */

#define ORIG_MOD TSR_STR("_orig_mod.")

/* The name without the components of torch.compile; the name itself where it has none. */
static tsr_status unwrap(tsr_str name, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    *out = name;
    if (!tsr_str_contains(name, ORIG_MOD)) return TSR_OK;
    char *text = tsr_arena_array(arena, name.size, 1, err);
    if (!text) return TSR_E_NOMEM;
    *out = (tsr_str){text, 0};
    for (size_t at = 0, size; at < name.size; at += size) {
        size = next_component(name, at).size + 1;
        if (size > name.size - at) size--; /* no dot comes after the last */
        if (tsr_str_equal((tsr_str){name.data + at, size}, ORIG_MOD)) continue;
        memcpy(text + out->size, name.data + at, size);
        out->size += size;
    }
    return TSR_OK;
}

/* Refuses two names that become one without `_orig_mod`, of which at least one has it. `seen` is an empty map. */
static tsr_status refuse_twins(const tsr_name *names, size_t count, bool by_fqn, tsr_map *seen, tsr_arena *arena,
                               tsr_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str text = by_fqn ? names[i].fqns[0] : names[i].raw;
        tsr_str plain;
        uint32_t *first;
        bool fresh;
        TSR_TRY(unwrap(text, arena, &plain, err));
        TSR_TRY(tsr_map_put(seen, plain, i, &first, &fresh, err));
        const bool is_wrapped = plain.size < text.size;
        if (fresh || (!is_wrapped && (by_fqn ? names[*first].fqns[0] : names[*first].raw).size == plain.size)) continue;
        return tsr_fail(err, TSR_E_USAGE, "'%.*s' and '%.*s' would both be named '%.*s'",
                        TSR_STR_ARG(names[is_wrapped ? i : *first].raw), TSR_STR_ARG(names[is_wrapped ? *first : i].raw),
                        TSR_STR_ARG(plain));
    }
    return TSR_OK;
}

tsr_status tsr_fqn_refuse_twins(const tsr_name *names, size_t count, const tsr_allocator *allocator, tsr_arena *arena,
                                tsr_error *err)
{
    tsr_status status = TSR_OK;
    size_t wrapped = 0;
    while (wrapped < count && !tsr_str_contains(names[wrapped].raw, ORIG_MOD)) wrapped++;
    for (int by_fqn = 0; by_fqn < 2 && wrapped < count && status == TSR_OK; by_fqn++) {
        tsr_map *seen = tsr_map_new(allocator, count, err);
        status = seen ? refuse_twins(names, count, by_fqn, seen, arena, err) : TSR_E_NOMEM;
        tsr_map_free(seen);
    }
    return status;
}

/* ---- names by text, for look-ups ---- */

struct tsr_text_names {
    const tsr_allocator *allocator;
    tsr_arena *arena;
    tsr_map *index; /* raw name → index in `fqns` */
    tsr_vec fqns;   /* tsr_str */
};

static tsr_status add_name(tsr_text_names *c, const tsr_name *name, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(c->index, name->raw, (uint32_t)c->fqns.count, NULL, &fresh, err));
    if (!fresh) return TSR_OK;
    tsr_str *fqn = tsr_vec_push(&c->fqns, err);
    if (fqn) *fqn = name->fqns[0];
    return fqn ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_catalog(tsr_text_names *c, const tsr_catalog *catalog, tsr_error *err)
{
    const size_t count = (size_t)catalog->entry_count;
    tsr_str *raws = tsr_arena_array(c->arena, count, sizeof *raws, err);
    tsr_name *names = raws ? tsr_arena_array(c->arena, count, sizeof *names, err) : NULL;
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) raws[i] = catalog->entries[i].fqn;
    TSR_TRY(tsr_fqn_from_text(raws, count, c->allocator, c->arena, names, err));
    for (size_t i = 0; i < count; i++) TSR_TRY(add_name(c, &names[i], err));
    return tsr_fqn_refuse_twins(names, count, c->allocator, c->arena, err);
}

tsr_status tsr_text_names_new(const tsr_catalog *const *catalogs, size_t count, const tsr_allocator *allocator,
                              tsr_text_names **out, tsr_error *err)
{
    *out = NULL;
    tsr_text_names *c = tsr_alloc(allocator, 1, sizeof *c, err);
    if (!c) return TSR_E_NOMEM;
    *c = (tsr_text_names){.allocator = allocator, .fqns = tsr_vec_of(allocator, sizeof(tsr_str))};
    c->arena = tsr_arena_new(allocator, 0, err);
    c->index = c->arena ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = c->index ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = add_catalog(c, catalogs[i], err);
    if (status == TSR_OK) *out = c;
    else tsr_text_names_free(c);
    return status;
}

void tsr_text_names_free(tsr_text_names *names)
{
    if (!names) return;
    tsr_map_free(names->index);
    tsr_vec_free(&names->fqns);
    tsr_arena_free(names->arena);
    tsr_free(names->allocator, names, 1, sizeof *names);
}

tsr_status tsr_text_names_find(void *names, tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    (void)arena, (void)err;
    const tsr_text_names *c = names;
    const uint32_t at = tsr_map_get(c->index, raw, UINT32_MAX);
    *out = at == UINT32_MAX ? raw : ((const tsr_str *)c->fqns.items)[at];
    return TSR_OK;
}

/* ---- collisions ---- */

/* Finds FQNs that several raw names share. Saving all of these names would lose all but one. */

typedef struct slot {
    tsr_str fqn;
    size_t count;    /* names that have this FQN */
    uint32_t last;   /* the last of those names */
    uint32_t *names; /* in the arena; filled by the second walk */
} slot;

typedef struct search {
    const tsr_name *names;
    size_t count;
    tsr_map *raws;   /* raw name → its first index */
    tsr_map *by_fqn; /* FQN → slot */
    tsr_vec slots;
} search;

#define NOBODY UINT32_MAX

/* Counts the names of every FQN, each raw name once. With `fill`, also stores them. */
static tsr_status walk(search *s, bool fill, tsr_error *err)
{
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t *first;
        TSR_TRY(tsr_map_put(s->raws, s->names[i].raw, i, &first, NULL, err));
        if (*first != i) continue;
        for (size_t f = 0; f < s->names[i].fqn_count; f++) {
            uint32_t *at;
            bool fresh;
            TSR_TRY(tsr_map_put(s->by_fqn, s->names[i].fqns[f], (uint32_t)s->slots.count, &at, &fresh, err));
            slot *one = fresh ? tsr_vec_push(&s->slots, err) : (slot *)s->slots.items + *at;
            if (!one) return TSR_E_NOMEM;
            if (fresh) *one = (slot){s->names[i].fqns[f], 0, NOBODY, NULL};
            if (one->last == i) continue;
            if (fill && one->names) one->names[one->count] = i;
            one->count++;
            one->last = i;
        }
    }
    return TSR_OK;
}

static tsr_status collect(search *s, tsr_arena *arena, tsr_collision **out, size_t *out_count, tsr_error *err)
{
    TSR_TRY(walk(s, false, err));
    slot *slots = s->slots.items;
    *out_count = 0;
    for (size_t i = 0; i < s->slots.count; i++) *out_count += slots[i].count > 1;
    *out = tsr_arena_array(arena, *out_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0, at = 0; i < s->slots.count; i++) {
        if (slots[i].count > 1) {
            slots[i].names = tsr_arena_array(arena, slots[i].count, sizeof *slots[i].names, err);
            if (!slots[i].names) return TSR_E_NOMEM;
            (*out)[at++] = (tsr_collision){slots[i].fqn, slots[i].names, slots[i].count};
        }
        slots[i].count = 0;
        slots[i].last = NOBODY;
    }
    return *out_count ? walk(s, true, err) : TSR_OK;
}

tsr_status tsr_fqn_collisions(const tsr_name *names, size_t count, tsr_arena *arena, tsr_collision **out, size_t *out_count,
                              tsr_error *err)
{
    const tsr_allocator *allocator = tsr_arena_allocator(arena);
    search s = {names, count, tsr_map_new(allocator, count, err), tsr_map_new(allocator, count, err),
                tsr_vec_of(allocator, sizeof(slot))};
    tsr_status status = s.raws && s.by_fqn ? collect(&s, arena, out, out_count, err) : TSR_E_NOMEM;
    tsr_vec_free(&s.slots);
    tsr_map_free(s.by_fqn);
    tsr_map_free(s.raws);
    return status;
}
