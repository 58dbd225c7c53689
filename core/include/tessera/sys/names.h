/* Names of parameters: canonical forms, selections, and which names a command uses. */
#ifndef TESSERA_SYS_NAMES_H
#define TESSERA_SYS_NAMES_H

#include "tessera/catalog.h"
#include "tessera/fqn.h"
#include "tessera/glob.h"
#include "tessera/memory.h"
#include "tessera/sys/containers.h"

TSR_API_BEGIN

/* The modules and parameters of a module tree, in the orders in which PyTorch names them.
 *
 * Example:
 *
 *     const tsr_param *param;
 *     tsr_params *params;
 *     status = tsr_params_new(modules, host, &params, &err);
 *     if (status == TSR_OK) {
 *         for (size_t i = 0; i < tsr_params_count(params); i++) {
 *             param = tsr_params_at(params, i);
 *             printf("%.*s\n", TSR_STR_ARG(param->fqns[0]));
 *         }
 *         tsr_params_free(params);
 *     } */

/* `model.named_parameters()`: the order in which an optimizer given model.parameters() numbers them. A module comes
 * before its children; a shared parameter comes once, under its first name. As tsr_fqn_iterate otherwise. */
tsr_status tsr_fqn_named_parameters(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                                    size_t *count, tsr_error *err);

/* The keys of `model.state_dict()` with hooks of FSDP aside, in its order: a module before its children, and a shared module or
 * tensor under each of its names, as a strict load_state_dict wants them. As tsr_fqn_iterate otherwise; TSR_E_LIMIT where
 * modules inside of shared modules have more than 64 names each, and 65,536 together. */
tsr_status tsr_fqn_state_keys(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                              size_t *count, tsr_error *err);

/* `model.named_modules()`: a module comes before its children, a shared one once, under its first name; the root's is "".
 * FSDP's units (`FSDP.fsdp_modules`) are those whose wrapper is TSR_WRAPPER_FSDP1. As tsr_fqn_iterate otherwise. */
typedef struct tsr_named_module {
    tsr_str raw;
    tsr_module_ref module;
} tsr_named_module;
tsr_status tsr_fqn_named_modules(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_named_module **out,
                                 size_t *count, tsr_error *err);

/* The prefixes of the state dict keys of some submodules, "fqn." each, in the order of named_modules (`_verify_options`:
 * submodule_prefixes); that of the root is ".", as there. Errors as tsr_fqn_resolve. */
typedef struct tsr_module_refs {
    const tsr_module_ref *refs;
    size_t count;
} tsr_module_refs;
tsr_status tsr_fqn_submodule_prefixes(const tsr_modules *modules, tsr_module_refs submodules, const tsr_host *host,
                                      tsr_arena *arena, tsr_name_list *out, tsr_error *err);

/* A tensor and its names. */
typedef struct tsr_param {
    const tsr_module_tensor *tensor;
    tsr_state_kind kind; /* parameter or buffer */
    const tsr_str *fqns; /* every canonical name, in order of appearance */
    size_t fqn_count;
    bool shared; /* met under more than one raw name */
} tsr_param;

/* Iterates the state and resolves every name. Borrows `modules` and `host` until free. Errors: those of tsr_fqn_resolve;
 * TSR_E_NOMEM. Read-only afterwards and thread-safe. */
tsr_status tsr_params_new(const tsr_modules *modules, const tsr_host *host, tsr_params **out, tsr_error *err);
void tsr_params_free(tsr_params *params); /* accepts NULL */
/* As tsr_params_new, of a list that the caller made; copies names, borrows tensors. TSR_E_NOMEM. */
tsr_status tsr_params_listed(const tsr_param *list, size_t count, const tsr_host *host, tsr_params **out, tsr_error *err);
/* In order of first appearance. */
size_t tsr_params_count(const tsr_params *params);
const tsr_param *tsr_params_at(const tsr_params *params, size_t index);
/* By canonical FQN: index, or SIZE_MAX. When two tensors have one FQN the later one answers, as in PyTorch. */
size_t tsr_params_find(const tsr_params *params, tsr_str fqn);

/* Refuses the names of one checkpoint if a parameter is in it twice, once inside torch.compile's wrapper and once outside: raw names that
 * differ in nothing but `_orig_mod`, or canonical names (the first of each) that do. The wrapper's `_orig_mod` has siblings then, and would
 * be kept as if it were an attribute. Errors: TSR_E_USAGE with both raw names; TSR_E_NOMEM. `arena` is for texts that are made meanwhile. */
tsr_status tsr_fqn_refuse_twins(const tsr_name *names, size_t count, const tsr_allocator *allocator, tsr_arena *arena,
                                tsr_error *err);

/* Canonical names of whole catalogs, and the renames that turn one set of names into another.
 *
 * Example:
 *
 *     tsr_canonical_names *names;
 *     tsr_str canonical;
 *     status = tsr_canonical_names_new(&catalog, NULL, 1, NULL, host, &names, &err);
 *     if (status == TSR_OK) status = tsr_canonical_names_find(names, TSR_STR("module.fc.weight"), arena, &canonical, &err);
 *     if (status == TSR_OK) printf("%.*s\n", TSR_STR_ARG(canonical));
 *     tsr_canonical_names_free(names); */

/* The canonical names of all entries of several catalogs. Those of a model come from the module tree, if one is given and has them,
 * otherwise from tsr_fqn_from_text over the catalog's keys. The names of parameters in an optimizer's state and groups become what
 * the model's own become. A key that several catalogs have gets the name that the first of them gives it. Otherwise equal keys
 * could differ in a comparison. `called` is what messages call the catalogs; NULL: nothing, because there is one. Borrows the catalogs
 * until free. Errors: those of tsr_fqn_resolve and tsr_fqn_refuse_twins; TSR_E_NOMEM. Read-only afterwards and thread-safe. */
typedef struct tsr_canonical_names tsr_canonical_names;
tsr_status tsr_canonical_names_new(const tsr_catalog *const *catalogs, const char *const *called, size_t count,
                                   const tsr_modules *modules, const tsr_host *host, tsr_canonical_names **out,
                                   tsr_error *err);
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

/* The same by the text of each catalog's keys alone, also for the keys of optimizers. The viewer's first module has only this, because
 * its size is limited. Errors: those of tsr_fqn_refuse_twins. */
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

/* Renames as `convert --rename FROM=TO` takes them. Programs give tsr_convert a function of their own (tsr_convert_options.rename).
 * All functions here are pure and thread-safe.
 *
 * Example:
 *
 *     tsr_rename rename;
 *     tsr_str name;
 *     status = tsr_rename_parse(TSR_STR("model.=encoder."), &rename, &err);
 *     if (status == TSR_OK) status = tsr_rename_apply(&rename, 1, TSR_STR("model.fc.weight"), arena, &name, &err);
 *     if (status == TSR_OK) printf("%.*s\n", TSR_STR_ARG(name)); */

/* --rename FROM=TO. Without "*", FROM is a literal prefix of the name that TO replaces (an empty FROM: TO comes before
 * every name). With one "*" in each, FROM is the whole name and what its "*" stood for (dots included) goes where TO has
 * its own. */
typedef struct tsr_rename {
    tsr_str from_head, from_tail; /* around the "*"; without one the tail is unused */
    tsr_str to_head, to_tail;
    bool starred;
} tsr_rename;

/* Splits at the first "="; the parts borrow `text`. TSR_E_USAGE when there is no "=", or the stars do not
 * pair up. */
tsr_status tsr_rename_parse(tsr_str text, tsr_rename *out, tsr_error *err);

/* The name after all renames that fit it: they apply in order, each to the result of those before it. It is in the arena, or the name
 * itself (borrowed) where none fits. Several names may become one; checking that is up to the caller. TSR_E_NOMEM. */
tsr_status tsr_rename_apply(const tsr_rename *renames, size_t count, tsr_str name, tsr_arena *arena, tsr_str *out,
                            tsr_error *err);

/* Options that choose or rename entries by name (--include, --exclude, --rename, --no-quantize, the rules of --target) and have no
 * effect. A mistyped pattern would otherwise go unnoticed.
 *
 * Example:
 *
 *     const tsr_str include = TSR_STR("modle.**");
 *     const tsr_name_choice choice = {.catalog = catalog, .include = &include, .include_count = 1};
 *     status = tsr_name_choice_check(&choice, arena, &err);
 *     if (status == TSR_E_USAGE) printf("%s\n", err.message); */

/* The options that were given. Everything is borrowed. */
typedef struct tsr_name_choice {
    const tsr_catalog *catalog;
    const tsr_str *include, *exclude, *no_quantize;
    size_t include_count, exclude_count, no_quantize_count;
    const tsr_rename *renames;
    size_t rename_count;
    const tsr_str *rules; /* the patterns of a target */
    size_t rule_count;
} tsr_name_choice;

/* Appends a warning to `warnings`, a vec of tsr_str in `arena`, for each option that has no effect (for many rules
 * of a target, one about the rest). It shows a pattern or a name that may have been meant. Errors: TSR_E_NOMEM. */
tsr_status tsr_name_choice_warnings(const tsr_name_choice *choice, tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

/* Fails with TSR_E_USAGE if the catalog has entries and no pattern of `include` matches any: an output without entries is then not
 * what is wanted. Otherwise TSR_E_NOMEM. */
tsr_status tsr_name_choice_check(const tsr_name_choice *choice, tsr_arena *arena, tsr_error *err);

/* The name in the catalog that has the longest beginning and end in common with `wrong`, and *common, the length of both. Borrowed;
 * data NULL if no name has anything in common. */
tsr_str tsr_name_most_similar(const tsr_catalog *catalog, tsr_str wrong, size_t *common);

TSR_API_END

#endif
