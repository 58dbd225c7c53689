/* The state of optimizers across ranks. */
#ifndef TESSERA_SYS_OPTIMIZER_H
#define TESSERA_SYS_OPTIMIZER_H

#include "tessera/fqn.h"
#include "tessera/modules.h"
#include "tessera/optim.h"
#include "tessera/optimizer_state.h"
#include "tessera/statedict.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/optim_load.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* Finds the slices of a model's sharded state, for loading optimizer state (tessera/sharded_optimizer.h).
 *
 * Example:
 *
 *     tsr_layout_2d layout;
 *     status = tsr_state_dict_layout_2d(state, arena, &layout, &err);
 *     if (status == TSR_OK && !layout.group) printf("data parallel only\n"); */

/* The slices of all parameters, and the data-parallel group that shares this rank's slices (NULL: 1-D, nothing is
 * sliced). */
typedef struct tsr_layout_2d {
    const tsr_tp_slice *slices; /* in the order of the model's state */
    size_t count;
    tsr_comm *group;
} tsr_layout_2d;

/* Finds the layout of `model_state`, a DICT of canonical FQN → tensor such as FSDP's SHARDED state dict. A ShardedTensor
 * whose only shard is itself a ShardedTensor (tsr_tensor.nested) is a slice: the shard gives its position, and the inner
 * tensor's group has the ranks that share it. For any other tensor, and if this rank has no shard, the slice is the whole
 * tensor. Results live in `arena` and borrow from `model_state`. Does not communicate.
 *
 * Errors, as in PyTorch: TSR_E_UNSUPPORTED for a DTensor inside a ShardedTensor or a DTensor, and for a slice next to other
 * shards; TSR_E_USAGE for values that are not tensors. Slices of different groups are also TSR_E_USAGE (PyTorch uses the
 * last group). Source: _get_state_dict_2d_layout, _is_nested_tensor. */
tsr_status tsr_state_dict_layout_2d(const tsr_value *model_state, tsr_arena *arena, tsr_layout_2d *out, tsr_error *err);

/* An optimizer's own ("raw") state dict, and what FullyShardedDataParallel makes of it. tsr_get_ and
 * tsr_set_optimizer_state_dict are built on such calls; these functions are for programs that make the calls themselves.
 *
 *   tsr_optimizer_state_dict      ──▶ {"state": {0: …}, …} ── tsr_fsdp_optim_state_dict         ──▶ by name, full
 *   tsr_optimizer_load_state_dict ◀── {"state": {0: …}, …} ◀── tsr_fsdp_optim_state_dict_to_load ◀── or split by rows
 *
 * State that belongs to no parameter (tsr_model_optimizer.user_state) is kept in both directions. Where other optimizers
 * have numbers as keys, named ones (NamedOptimizer, KeyedOptimizer) have the names of model.named_parameters()
 * (tessera/sys/optimizer.h). A state dict without "param_groups", as KeyedOptimizer has it, is converted to one without.
 *
 * Source of the behavior: torch/distributed/fsdp/_optim_utils.py and fully_sharded_data_parallel.py,
 * torch/optim/optimizer.py and torch/distributed/optim/named_optimizer.py of PyTorch 2.13. Thread rule: one thread per rank.
 *
 * Example:
 *
 *     const tsr_raw_optimizer raw = {.model = model, .optimizer = optimizer};
 *     status = tsr_optimizer_state_dict(&raw, dict, &err); */

typedef struct tsr_raw_optimizer {
    const tsr_model *model;
    tsr_model_optimizer *optimizer; /* `optim` */
    /* For FSDP's calls with a FULL state: the parameters that the optimizer was made with (`optim_input`, see
     * tsr_optim_input_names). Takes precedence over `optimizer`. Without either, they are all parameters of the model.
     * Deprecated in PyTorch, hence a warning. */
    const tsr_value *input;
    tsr_comm *comm; /* all ranks; NULL: one */
    bool named;     /* is_named_optimizer: the state dicts made for the optimizer have names as keys */
} tsr_raw_optimizer;

/* Optimizer.state_dict(); that of NamedOptimizer if `named`. Tensors are the optimizer's own memory. Does not communicate.
 * Errors: TSR_E_USAGE for an optimizer whose parameters are not the model's; TSR_E_UNSUPPORTED for state of a named
 * optimizer that belongs to no parameter, where PyTorch also fails. */
tsr_status tsr_optimizer_state_dict(const tsr_raw_optimizer *optimizer, tsr_state_dict *out, tsr_error *err);

/* Optimizer.load_state_dict(): groups and their parameters are matched by position, and state that belongs to no parameter
 * is taken over. If `named`, that of NamedOptimizer: parameters are matched by name, and groups by the names of all their
 * parameters; values that `state` lacks stay as they are, and values are cast to the types of the optimizer's. Does not
 * communicate: each rank checks by itself that everything fits before it writes anything. Errors: TSR_E_FORMAT if the
 * numbers of groups or parameters differ or, for a named optimizer, the numbers or names of states or options; TSR_E_USAGE
 * for a named optimizer without state, and for tensors whose shapes differ from those that they replace; TSR_E_UNSUPPORTED
 * for types that cannot be cast. */
tsr_status tsr_optimizer_load_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *state, const tsr_host *host,
                                         tsr_error *err);

/* FSDP.optim_state_dict() and, depending on `settings`, full_ and sharded_optim_state_dict(): converts `raw` (NULL: the
 * optimizer's own state), keyed by number or by name, to the state by canonical names that tsr_get_optimizer_state_dict
 * returns for units (LOCAL is SHARDED, as in PyTorch). With rank0_only, ranks other than 0 get an empty dict. Does not
 * create a first state. Warns of state that belongs to no parameter. Collective. Errors: TSR_E_USAGE for a model without
 * FSDP1 units, if there is neither `raw` nor `optimizer`, and for SHARDED with `input` or rank0_only; those of
 * tsr_optim_input_names, tsr_optim_rekey, tsr_fsdp_gather, tsr_fsdp_gather_rows. */
tsr_status tsr_fsdp_optim_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *raw,
                                     const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err);

/* FSDP.optim_state_dict_to_load() and, depending on `settings`, shard_full_ (FULL), scatter_full_ (FULL and rank0_only: only
 * rank 0's `state` is used) and flatten_sharded_optim_state_dict(): returns the part of a state by canonical names that this
 * rank's optimizer holds, for tsr_optimizer_load_state_dict. "param_groups" may be missing. If `named`, a parameter that has
 * no elements on this rank (with use_orig_params) keeps the state that the optimizer has for it; if there is none, a warning
 * names the parameter. Collective. Errors: as above; also TSR_E_USAGE for `named` without `optimizer` or with `input`; those
 * of tsr_fsdp_broadcast and tsr_fsdp_spread. */
tsr_status tsr_fsdp_optim_state_dict_to_load(const tsr_raw_optimizer *optimizer, const tsr_value *state,
                                             const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err);

/* Which key of an optimizer's own state dict is which parameter.
 *
 *   torch.optim.Optimizer   {"state": {0: …, 1: …}, "param_groups": [{"params": [0, 1]}]}   numbers, through the groups
 *   NamedOptimizer          {"state": {"module.fc.weight": …}, …}                           names, of named_parameters()
 *   rekeyed                 {"state": {"fc.weight": …}, …}                                  names, without wrappers
 *
 * Results live in `arena` and share what did not change. Errors of all: TSR_E_NOMEM. Source of the behavior:
 * torch/distributed/fsdp/_optim_utils.py (_get_param_id_to_param_from_optim_input, _is_named_optimizer,
 * _get_param_key_to_param) and FullyShardedDataParallel.rekey_optim_state_dict of PyTorch 2.13.
 *
 * Example:
 *
 *     tsr_group_names names;
 *     const tsr_rekeying to_names = {.names = &names, .to_names = true};
 *     const tsr_value *by_name;
 *     status = tsr_optim_input_names(NULL, modules, host, arena, &names, &err);
 *     if (status == TSR_OK) status = tsr_optim_rekey(state, &to_names, host, arena, &by_name, &err); */

/* The names in an optimizer's first argument (optim_input): a LIST (or TUPLE) of parameters, or of param groups: DICTs whose
 * "params" is such a list. NULL: all parameters of the model, as model.parameters() gives them. A parameter is a STR that
 * tsr_modules_find finds; the result has its first name in named_parameters(). Errors: TSR_E_USAGE for anything else, an
 * empty list, parameters next to groups, and a parameter twice (PyTorch takes the last); TSR_E_NOT_FOUND for one that the
 * model does not have. */
tsr_status tsr_optim_input_names(const tsr_value *input, const tsr_modules *modules, const tsr_host *host, tsr_arena *arena,
                                 tsr_group_names *out, tsr_error *err);

/* Whether the first key of the state is a string. State without any key is not. */
bool tsr_optim_is_named(const tsr_value *raw);

typedef struct tsr_rekeying {
    const tsr_group_names *names;
    bool to_names; /* otherwise to numbers */
    /* Keys are the names as they are in `names`. Otherwise without the components of FSDP and activation checkpointing. */
    bool raw_names;
    /* State under other keys is not a parameter's and stays, and numbers keep the order of "params" (names are sorted).
     * Without it "params" is sorted, other keys are TSR_E_NOT_FOUND, and a state dict whose keys are of the wanted kind
     * already, or that has none, is returned as it is. */
    bool keep_others;
} tsr_rekeying;

/* Other keys for the same parameters. Errors: TSR_E_FORMAT for a value that is not an optimizer's state dict, for names and
 * numbers in one state (unless keep_others), and a name twice in `names`; TSR_E_NOT_FOUND for a parameter in a group that
 * `names` does not have. Source: rekey_optim_state_dict. */
tsr_status tsr_optim_rekey(const tsr_value *state_dict, const tsr_rekeying *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

/* FSDP1's optimizer state between live ranks, whose tensors are in memory. Ranks first exchange the structure and the
 * description of every tensor. All ranks then compute the same plan, and so find the same errors. Finally each element is
 * sent directly from the rank that has it to the ranks that keep it.
 *
 *   gather        every rank's raw state ──▶ the full state, on all ranks or one
 *   gather_rows   every rank's raw state ──▶ its rows of the full state
 *   broadcast     rank 0's full state ──▶ every rank's raw state, of any number of ranks
 *   spread        every rank's own full state, or rows of it ──▶ every rank's raw state
 *
 * Collective: every rank of call->comm calls. An error of one rank (memory, a tensor that cannot be sent) or of the states
 * (flat_params.h lists them) is the same error on all. Source of the behavior: _optim_state_dict, _allgather_state_info,
 * _convert_all_state_info, _all_gather_optim_state, _broadcast_processed_state and _broadcast_state of
 * torch/distributed/fsdp/_optim_utils.py, PyTorch 2.13. Thread rule: one thread a rank.
 *
 * Example:
 *
 *     const tsr_live_call call = {comm, host, arena, live};
 *     tsr_live_state full = {0};
 *     status = tsr_fsdp_gather(&call, flat, state, 0, &full, &err);
 *     if (status == TSR_OK && full.tree) printf("rank 0 has the full state in %zu buffers\n", full.buffer_count);
 *     tsr_live_state_free(&full); */

/* How the bytes of a live tree's tensors are found. */
typedef struct tsr_live {
    /* All of a tensor's elements (of an entry with one chunk: the chunk's), contiguous, row-major, in the machine's order;
     * valid until the call below returns. */
    const void *(*bytes)(void *ctx, const tsr_entry *entry);
    void *ctx;
} tsr_live;

/* A tree whose tensors were received: the entry of a tensor has one chunk, in "file" i: its elements are buffers[i].data,
 * contiguous. The tree lives in the arena, the buffers until free. */
typedef struct tsr_live_buffer {
    void *data;
    size_t size;
} tsr_live_buffer;
typedef struct tsr_live_state {
    const tsr_value *tree; /* NULL: nothing is kept on this rank */
    tsr_live_buffer *buffers;
    size_t buffer_count;
    const tsr_str *carried; /* as in tsr_fsdp_full */
    size_t carried_count;
    const tsr_allocator *allocator;
} tsr_live_state;
void tsr_live_state_free(tsr_live_state *state); /* accepts a zeroed one */

#define TSR_ALL_RANKS UINT32_MAX

/* The environment of the calls below; their results live in `arena`. */
typedef struct tsr_live_call {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_live live;
} tsr_live_call;

/* `raw` is the rank's `optimizer.state_dict()`; comm->size must be the description's world size. Ranks may have other param
 * groups (flat->groups is the rank's own) and other state of parameters that FSDP does not shard; each rank gets what
 * tsr_fsdp_unshard returns for it. The state is kept on `target`, a rank (rank0_only) or TSR_ALL_RANKS. Memory: the full
 * state on ranks that keep it, nothing of it elsewhere. */
tsr_status tsr_fsdp_gather(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw, uint32_t target,
                           tsr_live_state *out, tsr_error *err);

/* `full` and call->live are rank 0's (ignored elsewhere). Each rank receives its part of the state as tsr_fsdp_shard cuts
 * it, for a world of comm->size ranks. Memory: that part. */
tsr_status tsr_fsdp_broadcast(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *full,
                              tsr_live_state *out, tsr_error *err);

/* As tsr_fsdp_gather, but each rank gets only its rows, as tsr_fsdp_shard_rows cuts them (`mesh` may be NULL). A tensor's
 * chunk states which rows of the whole its buffer holds. Memory: these rows. */
tsr_status tsr_fsdp_gather_rows(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw,
                                const tsr_mesh *mesh, tsr_live_state *out, tsr_error *err);

/* Each rank's `state` is keyed by FQN; its tensors are whole, or have one chunk with the rows that this rank holds; the
 * other rows come from other ranks. Results as those of tsr_fsdp_broadcast. Errors: also TSR_E_FORMAT for rows that no rank
 * has, and ranks whose tensors differ in shape or dtype. */
tsr_status tsr_fsdp_spread(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *state,
                           tsr_live_state *out, tsr_error *err);

/* Around getting and loading the state of live optimizers: what one of several wants, and the state after a first step.
 *
 * Example:
 *
 *     const tsr_first_step first = {.algorithm = TSR_ADAM, .options = state};
 *     tsr_state_spec specs[TSR_STATE_SPECS];
 *     size_t count;
 *     status = tsr_optim_first_state(&first, &(tsr_module_tensor){.dtype = TSR_FLOAT32}, specs, &count, &err);
 *     if (status == TSR_OK) printf("%zu tensors\n", count); */

/* A live optimizer as far as names go: groups of parameters, by index into a tsr_params. */
typedef struct tsr_optimizer_group {
    const size_t *params;
    size_t count;
} tsr_optimizer_group;
typedef struct tsr_optimizer {
    const tsr_optimizer_group *groups;
    size_t group_count;
} tsr_optimizer;

/* The part of a nested state dict that one optimizer wants (`_split_optim_state_dict`): groups are matched by FQN; of a
 * shared parameter the saved name is taken; frozen parameters have no state; a state dict keyed by ids (or without any
 * state) is passed through. Errors: TSR_E_NOT_FOUND for a parameter without saved state when `strict`; TSR_E_FORMAT when a
 * group without parameters has not exactly one counterpart. (PyTorch 2.13 gives such a group the options of the last
 * saved group, whichever is empty: here it gets its own.) */
typedef struct tsr_split {
    const tsr_params *params;
    const tsr_optimizer *optimizer;
    bool strict;
} tsr_split;
tsr_status tsr_optim_split(const tsr_value *saved, const tsr_split *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

/* What an optimizer holds for a parameter after one step with zero gradients and learning rate 0, of which
 * `_init_optim_state` makes sure before state is loaded. At most TSR_STATE_SPECS entries. Without weight decay all elements
 * are `value`. Weight decay pulls the parameter's elements p into the state, and each operation rounds as PyTorch's kernels
 * on the CPU do. They compute in float64 for float64, otherwise in float32 (op), and round to the parameter's dtype; complex
 * numbers are pairs of real ones:
 *
 *   gradient   g = (dtype)((dtype)decay × p); for the others with `fused` g = decay × p, which stays in op
 *   mean       |weight| < 0.5: weight × g; otherwise fma(weight − 1, g, g)
 *   square     (weight × g) × g
 */
#define TSR_STATE_SPECS 4u
typedef enum tsr_state_source {
    TSR_STATE_FILLED = 0, /* with `value` */
    TSR_STATE_GRADIENT,
    TSR_STATE_MEAN,
    TSR_STATE_SQUARE
} tsr_state_source;
typedef struct tsr_state_spec {
    tsr_str name;
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    double value;
    tsr_state_source source;
    double decay, weight;
    double beta; /* 1 - weight */
    bool fused;
    bool
        beta_cast; /* the beta was a tensor: it, and then 1 - beta in place of weight, are rounded to the state's real type */
    bool scalar;   /* not of the parameter's shape: "step" */
    bool on_device; /* a scalar on the parameter's device; otherwise on the host */
} tsr_state_spec;
typedef struct tsr_first_step {
    tsr_algorithm algorithm;
    const tsr_value *options; /* the param group */
    tsr_dtype default_dtype;  /* torch.get_default_dtype(): TSR_FLOAT64, or any other for float32 */
    bool tensor_betas;        /* the betas in `options` are elements of tensors, which are rounded in other places */
    double second_weight;     /* then: 1 - the second of them, rounded to its type */
} tsr_first_step;
/* A frozen parameter has none. TSR_E_USAGE for algorithms not listed; TSR_E_UNSUPPORTED for a weight decay, or with it
 * betas, that are tensors: a caller that can read them gives their elements. */
tsr_status tsr_optim_first_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out,
                                 size_t *count, tsr_error *err);

/* A live optimizer, as its program lends it. Parameters are named by group and place in it. */
typedef struct tsr_live_group {
    const tsr_value *options; /* the param group's dict; without "lr" none is touched */
    const tsr_module_tensor *const *params;
    size_t count;
    bool tensor_betas;    /* as in tsr_first_step */
    double second_weight; /* as there */
} tsr_live_group;
typedef struct tsr_live_optimizer {
    tsr_algorithm algorithm;
    tsr_dtype default_dtype; /* as in tsr_first_step */
    const tsr_live_group *groups;
    size_t group_count;
    void *ctx;
    bool (*has_state)(void *ctx); /* of any parameter */
    bool (*has_gradient)(void *ctx, size_t group, size_t param);
    /* SGD, Adam, AdamW: makes a parameter's state as `specs` say. Not called where there is none. */
    tsr_status (*create)(void *ctx, size_t group, size_t param, const tsr_state_spec *specs, size_t count, tsr_error *err);
    /* TSR_OTHER_ALGORITHM and those after it: the parts of one step. `lr` NULL is 0; gradients are zeros for all parameters
     * that require them, or (`zeros` false) gone. */
    tsr_status (*set_lr)(void *ctx, size_t group, const tsr_value *lr, tsr_error *err);
    tsr_status (*set_gradients)(void *ctx, bool zeros, tsr_error *err);
    tsr_status (*step)(void *ctx, tsr_error *err);
} tsr_live_optimizer;
/* `_init_optim_state`: does nothing, without an error, if there is already state or a gradient. Parameters do not change,
 * and learning rates and gradients are as before afterwards, also when a callback fails (its error is returned). TSR_E_USAGE
 * for any other algorithm without its callbacks. */
tsr_status tsr_optim_init(const tsr_live_optimizer *optimizer, tsr_error *err);

/* The state dict type that the options give FSDP modules (`_verify_options`): FULL_STATE_DICT or SHARDED_STATE_DICT, and
 * settings. */
typedef struct tsr_fsdp_choice {
    bool full;
    bool offload_to_cpu;
    bool model_rank0_only, optimizer_rank0_only; /* full: only rank 0 keeps it */
} tsr_fsdp_choice;
tsr_fsdp_choice tsr_state_fsdp_choice(const tsr_state_options *options);

/* The refusals of `_verify_options`: TSR_E_USAGE. */
tsr_status tsr_state_options_check(const tsr_state_options *options, size_t optimizer_count, bool optimizers_only,
                                   tsr_error *err);

/* A request to save or load, before it starts. */
typedef struct tsr_state_request {
    bool handle_model, handle_optimizer;
    bool submodules; /* only some submodules are asked for */
    const tsr_str *model_keys;
    size_t model_key_count;
    bool optimizer_is_empty;
} tsr_state_request;
/* `_verify_state_dict`: state that must be there is not empty, and no model key holds "_flat_param". TSR_E_FORMAT. */
tsr_status tsr_state_dict_check(const tsr_state_options *options, const tsr_state_request *request, tsr_error *err);

/* Several nested state dicts as one: states side by side, groups one after another. Two states of one parameter are an
 * error. */
tsr_status tsr_optim_merge(const tsr_value *const *parts, size_t count, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

/* Flat parameters between live ranks, whose slices are in memory. `comm` has one rank for each slice.
 *
 * Example:
 *
 *     float slice[16], whole[64];
 *     if (tsr_flat_shard_numel(&flat->units[0], comm->size) <= 16 && flat->units[0].numel <= 64)
 *         status = tsr_flat_gather((tsr_ranks){comm, host->allocator}, &flat->units[0], sizeof(float), slice, whole, &err);
 */

/* Every rank's slice of a flat tensor (tsr_flat_shard_numel elements, padding last) → the whole one on all ranks (`full`:
 * unit->numel elements). Padding is not sent. Errors: those of the communicator, TSR_E_NOMEM. */
tsr_status tsr_flat_gather(tsr_ranks ranks, const tsr_flat_unit *unit, uint32_t itemsize, const void *slice, void *full,
                           tsr_error *err);
/* The inverse: rank 0's `full` (ignored elsewhere) → every rank's slice, padded with zeros. */
tsr_status tsr_flat_scatter(tsr_ranks ranks, const tsr_flat_unit *unit, uint32_t itemsize, const void *full, void *slice,
                            tsr_error *err);

/* One original of a unit, with the bytes of an element. */
typedef struct tsr_unit_original {
    const tsr_flat_unit *unit;
    uint32_t param; /* index in unit->params */
    uint32_t itemsize;
} tsr_unit_original;
/* Convert one original between slices of the flat tensor and rows of the original (tsr_rows_of_rank, clamped). Each rank
 * sends only the elements that another rank needs. `rows` holds the rank's rows; in `slice` only the original's elements are
 * read or written. TSR_E_UNSUPPORTED for an original without dimensions. */
tsr_status tsr_flat_to_rows(tsr_ranks ranks, const tsr_unit_original *original, const void *slice, void *rows,
                            tsr_error *err);
tsr_status tsr_rows_to_flat(tsr_ranks ranks, const tsr_unit_original *original, const void *rows, void *slice,
                            tsr_error *err);
/* All ranks' rows of a tensor with `row_count` rows → the whole on every rank. */
tsr_status tsr_rows_gather(tsr_ranks ranks, uint64_t row_count, uint64_t row_bytes, const void *rows, void *full,
                           tsr_error *err);

/* The parameters whose state is to be converted, the same on all ranks (`_map_param_key_to_optim_keys`). With `merge`
 * (use_orig_params): those of any rank, sorted. Without: rank 0's, in its order; TSR_E_FORMAT on all ranks, naming the
 * rank and the first parameter, when a rank lacks one of them. `names` are this rank's. Results live in `arena`. */
tsr_status tsr_flat_agree_on_keys(tsr_ranks ranks, tsr_name_list names, bool merge, tsr_arena *arena, tsr_name_list *out,
                                  tsr_error *err);

TSR_API_END

#endif
