/* Canonical names of whole catalogs, and the renames that turn one set of names into another.
 *
 * Example:
 *
 *     tsr_canonical_names *names;
 *     tsr_str canonical;
 *     status = tsr_canonical_names_new(&catalog, 1, NULL, host, &names, &err);
 *     if (status == TSR_OK) status = tsr_canonical_names_find(names, TSR_STR("module.fc.weight"), arena, &canonical, &err);
 *     if (status == TSR_OK) printf("%.*s\n", TSR_STR_ARG(canonical));
 *     tsr_canonical_names_free(names); */
#ifndef TESSERA_SYS_CANONICAL_NAMES_H
#define TESSERA_SYS_CANONICAL_NAMES_H

#include "tessera/fqn.h"

TSR_API_BEGIN

/* The canonical names of all entries of several catalogs. Those of a model come from the module tree, if one is given and has them,
 * otherwise from tsr_fqn_from_text over the catalog's keys. The names of parameters in an optimizer's state and groups become what
 * the model's own become. A key that several catalogs have gets the name that the first of them gives it. Otherwise equal keys
 * could differ in a comparison. Borrows the catalogs until free. Errors: those of tsr_fqn_resolve; TSR_E_NOMEM. Read-only afterwards
 * and thread-safe. */
typedef struct tsr_canonical_names tsr_canonical_names;
tsr_status tsr_canonical_names_new(const tsr_catalog *const *catalogs, size_t count, const tsr_modules *modules,
                                   const tsr_host *host, tsr_canonical_names **out, tsr_error *err);
void tsr_canonical_names_free(tsr_canonical_names *names); /* accepts NULL */
/* The canonical name of `raw`; `raw` itself where no catalog has that key. Never fails. It has the form of
 * tsr_diff_options.canonical, whose context is the tsr_canonical_names. */
tsr_status tsr_canonical_names_find(void *names, tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err);
/* The value of an entry, with canonical names where an optimizer's groups list parameters; entry->value itself where nothing
 * changes. In `arena`. It has the form of tsr_diff_options.canonical_value. TSR_E_NOMEM. */
tsr_status tsr_canonical_names_value(void *names, const tsr_entry *entry, tsr_arena *arena, const tsr_value **out,
                                     tsr_error *err);
/* The canonical name of a dict of the state dict. `inside` is the key of an entry in it; empty data if there is none. */
tsr_status tsr_canonical_names_dict(const tsr_canonical_names *names, tsr_str fqn, tsr_str inside, tsr_arena *arena,
                                    tsr_str *out, tsr_error *err);
/* For a name that keeps an `_orig_mod` because it has siblings: the entry (by its key) whose canonical name it would have
 * without it. Such a checkpoint has a parameter twice. NULL data if there is none. */
tsr_status tsr_canonical_names_twin(const tsr_canonical_names *names, tsr_str raw, tsr_arena *arena, tsr_str *out,
                                    tsr_error *err);

/* The same by the text of each catalog's keys alone, also for the keys of optimizers. The viewer's first module has only this, because
 * its size is limited. Errors: TSR_E_NOMEM. */
typedef struct tsr_text_names tsr_text_names;
tsr_status tsr_text_names_new(const tsr_catalog *const *catalogs, size_t count, const tsr_allocator *allocator,
                              tsr_text_names **out, tsr_error *err);
void tsr_text_names_free(tsr_text_names *names); /* accepts NULL */
tsr_status tsr_text_names_find(void *names, tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* A name and what it should become: `to` may be equal (it stays), or its data NULL (it has no counterpart). */
typedef struct tsr_name_pair {
    tsr_str from, to;
} tsr_name_pair;

/* One rename as `convert --rename` takes it (glob.h), and how many pairs it settles that the ones before it did not. */
typedef struct tsr_rename_rule {
    tsr_str text; /* FROM=TO */
    size_t names;
} tsr_rename_rule;

/* Finds renames that turn names into their counterparts when they are applied in this order. No rename turns a name into a wrong
 * counterpart, or gives a name without a counterpart the name of another entry. For some pairs there may be no rename.
 * Linear in the names. Results live in `arena`. Errors: TSR_E_NOMEM. Thread rule: one arena, one thread. */
tsr_status tsr_fqn_rename_rules(const tsr_name_pair *pairs, size_t count, tsr_arena *arena, tsr_rename_rule **out,
                                size_t *out_count, tsr_error *err);

/* Names of different raw names that are one FQN. `names` are indices into the array that was searched. */
typedef struct tsr_collision {
    tsr_str fqn;
    const uint32_t *names;
    size_t count; /* ≥ 2 */
} tsr_collision;

/* Every FQN that more than one name has, in order of first appearance. A name that repeats its own FQN does not count,
 * nor does the same raw name twice. Results live in `arena`. Errors: TSR_E_NOMEM. */
tsr_status tsr_fqn_collisions(const tsr_name *names, size_t count, tsr_arena *arena, tsr_collision **out, size_t *out_count,
                              tsr_error *err);

/* The names of several raw names; with `raws` NULL those of a model's whole state (tsr_fqn_iterate), in its order. Results
 * live in `arena` or borrow `raws`. Errors: those of tsr_fqn_resolve for the first name that is refused; TSR_E_NOMEM. */
typedef struct tsr_names {
    tsr_name *names;
    size_t count;
} tsr_names;
tsr_status tsr_fqn_resolve_all(const tsr_modules *modules, const tsr_name_list *raws, const tsr_host *host, tsr_arena *arena,
                               tsr_names *out, tsr_error *err);

TSR_API_END

#endif
