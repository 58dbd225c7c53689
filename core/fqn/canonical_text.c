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
#include "tessera/fqn.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

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
