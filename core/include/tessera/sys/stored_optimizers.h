/* The optimizers of a catalog, found by their structure: "state" and "param_groups" below one name.
 *
 *     optim.state.a.weight.exp_avg             optimizer_states.0.state.0.exp_avg
 *     optim.param_groups.0.params              optimizer_states.0.param_groups.0.params
 *     └ name ┘           group                 └────── name ─────┘
 *
 * The groups list FQNs or ids; in the flat form ("param_groups.a.weight.lr") each parameter has its own options.
 *
 * Example:
 *
 *     tsr_stored_optimizers optimizers;
 *     status = tsr_stored_optimizers_find(catalog, host, arena, &optimizers, &err);
 *     for (uint64_t i = 0; status == TSR_OK && i < catalog->entry_count; i++)
 *         if (optimizers.owners[i]) printf("%.*s is optimizer state\n", TSR_STR_ARG(catalog->entries[i].fqn)); */
#ifndef TESSERA_SYS_STORED_OPTIMIZERS_H
#define TESSERA_SYS_STORED_OPTIMIZERS_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/memory.h"

TSR_API_BEGIN

#define TSR_NO_STATE UINT32_MAX /* ends a list of states */

/* A value of a parameter's state, such as "exp_avg". */
typedef struct tsr_stored_optimizer_state {
    tsr_str name;
    const tsr_entry *entry; /* where it is stored */
    uint32_t next;          /* the parameter's next state */
} tsr_stored_optimizer_state;

typedef struct tsr_stored_optimizer_param {
    tsr_str key;          /* as in the names of entries: an FQN, or an id in decimal */
    tsr_str fqn;          /* the key, or what the group's "param_names" states for an id; NULL data: unknown */
    bool is_id;           /* the group lists an int */
    bool is_text;         /* `state` has the key as a str */
    uint32_t group;       /* index in tsr_stored_optimizers.groups */
    uint32_t first, last; /* states; TSR_NO_STATE if there are none */
} tsr_stored_optimizer_param;

typedef struct tsr_stored_optimizer_option {
    tsr_str name;
    const tsr_value *value; /* NULL: a tensor, or not read */
} tsr_stored_optimizer_option;

typedef struct tsr_stored_optimizer_group {
    const tsr_stored_optimizer_option *options;
    uint32_t option_count;
    const tsr_entry *list; /* the object that lists the parameters; NULL in the flat form */
} tsr_stored_optimizer_group;

typedef struct tsr_stored_optimizer {
    tsr_str name;                      /* what comes before ".state" and ".param_groups"; may be empty */
    uint32_t first_param, param_count; /* in the order of the groups */
} tsr_stored_optimizer;

typedef struct tsr_stored_optimizers {
    const tsr_stored_optimizer *items; /* in the order of the catalog */
    uint32_t count;
    const tsr_stored_optimizer_param *params;
    uint32_t param_count;
    const tsr_stored_optimizer_group *groups; /* one per tsr_stored_optimizer_param.group */
    const tsr_stored_optimizer_state *states;
    /* One number per entry of the catalog, for entries below an optimizer's "state": 1 + the index of the optimizer, and
     * 1 + the index of the parameter; 0 for others. */
    const uint32_t *owners, *owner_params;
} tsr_stored_optimizers;

/* Finds all optimizers. Everything in `out` lives in `arena` and borrows the catalog. Param groups whose values were not read
 * are passed over. TSR_E_NOMEM. */
tsr_status tsr_stored_optimizers_find(const tsr_catalog *catalog, const tsr_host *host, tsr_arena *arena,
                                      tsr_stored_optimizers *out, tsr_error *err);

/* Whether a state dict of this format keeps ints as keys. A DCP has texts in their place. */
bool tsr_format_keeps_keys(tsr_format format);
/* The format of an entry: that of its part, or of the catalog. */
tsr_format tsr_entry_format(const tsr_catalog *catalog, uint64_t entry);

/* The item of an entry's path that is its parameter's key in `state`, as an int or as its text, where `param_groups` lists that
 * int; otherwise NULL. `catalog` is the one that was searched. */
const tsr_path_item *tsr_stored_optimizers_id_of(const tsr_stored_optimizers *all, const tsr_catalog *catalog,
                                                 uint64_t entry);

/* Which tensors of a catalog are counters and settings of optimizers, such as `step`: casts would round them. Optimizers are
 * found in whatever form: by FQN, by parameter id, flattened, in a list, as a part of a framework's directory.
 *
 *   PREFIX.state.0.step, next to PREFIX.param_groups…     the state dict of an optimizer
 *   optim.state.fc.weight.step                            without its groups, under the name of an optimizer
 *   state.fc.weight.step                                  a file that holds nothing else
 *
 * Example:
 *
 *     bool *is = tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *is, &err);
 *     if (is) status = tsr_optimizer_scalars(catalog, host->allocator, is, &err); */

/* Sets is[i] for every entry of the catalog: whether it is a tensor without dims in the state or the groups of an optimizer.
 * TSR_E_NOMEM. */
tsr_status tsr_optimizer_scalars(const tsr_catalog *catalog, const tsr_allocator *allocator, bool *is, tsr_error *err);

TSR_API_END

#endif
