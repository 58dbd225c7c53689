/* Converts optimizer state from one form to another. Opening a job reads the documents and the source, and converts the
 * trees. What belongs to a single rank is converted when its file is written or read. */
#include "tessera/optim_convert.h"

#include <inttypes.h>

#include "tessera/checkpoint.h"
#include "tessera/compare.h"
#include "tessera/optim.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"
#include "tessera/sys/write_tree.h"

struct tsr_optim_job {
    tsr_optim_request request;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_store *store;
    tsr_modules_document document;
    tsr_modules *modules; /* NULL if none was given */
    tsr_params *params;
    tsr_flat_params flat;
    tsr_trees trees;
    const tsr_value **ranks; /* unshard: the contents of each rank's file */
    const tsr_value *result; /* for shard: the full state, from which each file gets its part */
    uint32_t rank;           /* the rank whose state is used where ranks differ */
    uint32_t file_count;     /* 0: there is only one file, which is the destination itself */
    tsr_str *file_names;
    tsr_mesh mesh; /* with unshard and sharded: the mesh of the DTensors */
    uint64_t mesh_shape[2];
    tsr_str frozen; /* names of frozen parameters whose state is kept, for a message */
    size_t frozen_count;
    const tsr_str *carried;
    size_t carried_count;
};

/* Warns the caller about something that is converted nevertheless. */
static inline void tsr_optim_warn(const tsr_optim_job *job, tsr_str message)
{
    if (job->request.warn) job->request.warn(job->request.warn_ctx, message);
}

/* Finds the optimizer in a training state: the root itself, what `at` names, or the only dict in it that looks like one. */
typedef struct tsr_found_optimizer {
    const tsr_value *value;
    tsr_str name; /* "optimizer_states.0"; empty for the root */
} tsr_found_optimizer;

/* ---- optim tree ---- */

/* Converts one tree, using the documents of the job. */

#define FROZEN_SHOWN 5u

static bool has_ids(const tsr_value *optim)
{
    const tsr_value *groups = optim->kind == TSR_VALUE_DICT ? tsr_value_get(optim, TSR_STR("param_groups")) : NULL;
    for (size_t i = 0; groups && groups->kind == TSR_VALUE_LIST && i < groups->count; i++) {
        const tsr_value *params =
            groups->items[i]->kind == TSR_VALUE_DICT ? tsr_value_get(groups->items[i], TSR_STR("params")) : NULL;
        if (params && params->kind == TSR_VALUE_LIST && params->count) return params->items[0]->kind == TSR_VALUE_INT;
    }
    return false;
}

/* A callback for tsr_unflatten and tsr_fsdp_context; `ctx` is the job. */
static tsr_status optim_same_tensor(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
{
    static const tsr_tolerance exact = {.exact = true};
    const tsr_optim_job *j = ctx;
    tsr_checkpoint *checkpoint = j->trees.checkpoint;
    tsr_difference difference;
    const tsr_status status = tsr_compare_tensors((tsr_stored_tensor){checkpoint, a}, (tsr_stored_tensor){checkpoint, b},
                                                  &exact, j->request.ring, &difference, err);
    *equal = status == TSR_OK && difference.differing == 0;
    return status;
}

static tsr_status optim_tree_to_fqn(tsr_optim_job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    const tsr_group_naming how = {j->modules, {j->document.groups, j->document.group_count}};
    tsr_group_names names;
    TSR_TRY(tsr_optim_name_groups(optim, &how, j->host, j->arena, &names, err));
    return tsr_optim_to_fqn(optim, names, j->host, j->arena, out, err);
}

/* tsr_optim_flatten, and below it tsr_optim_to_fqn and tsr_optim_unflatten, with the data of the job's documents. */
static tsr_status optim_flatten_tree(tsr_optim_job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    if (j->modules && has_ids(optim)) TSR_TRY(optim_tree_to_fqn(j, optim, &optim, err));
    return tsr_optim_flatten(optim, j->host, j->arena, out, err);
}

/* Lists the names of parameters that are frozen now. */
static tsr_status note_frozen(void *ctx, tsr_str fqn, tsr_error *err)
{
    tsr_optim_job *j = ctx;
    if (j->frozen_count++ >= FROZEN_SHOWN) return TSR_OK;
    j->frozen = tsr_arena_format(j->arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(j->frozen), j->frozen.size ? ", " : "",
                                 TSR_STR_ARG(fqn));
    return j->frozen.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status optim_unflatten_tree(tsr_optim_job *j, const tsr_value *flat, const tsr_value **out, tsr_error *err)
{
    const tsr_unflatten how = {.params = j->params,
                               .groups = j->document.groups,
                               .group_count = j->document.group_count,
                               .same = optim_same_tensor,
                               .ctx = j,
                               .frozen = note_frozen};
    TSR_TRY(tsr_optim_unflatten(flat, &how, j->host, j->arena, out, err));
    if (!j->frozen_count) return TSR_OK;
    const tsr_str message =
        tsr_arena_format(j->arena, err, "%zu frozen parameter%s state, which is kept: %.*s%s", j->frozen_count,
                         j->frozen_count == 1 ? " of the module tree has" : "s of the module tree have",
                         TSR_STR_ARG(j->frozen), j->frozen_count > FROZEN_SHOWN ? ", …" : "");
    if (!message.data) return TSR_E_NOMEM;
    tsr_optim_warn(j, message);
    return TSR_OK;
}

/* ---- optim source ---- */

/* Opens the source of an optimizer conversion as value trees, and finds the optimizer in them. */

static tsr_status find_rank_files(const tsr_optim_job *j, uint32_t *files, tsr_error *err)
{
    TSR_FAIL_IF(j->flat.file_count != j->flat.world_size, err, TSR_E_USAGE,
                "the flat-params document does not list the ranks' files; list one per rank under \"files\"");
    for (uint32_t rank = 0; rank < j->flat.world_size; rank++) {
        files[rank] = tsr_store_find(j->store, j->flat.files[rank]);
        if (files[rank] != TSR_NO_FILE) continue;
        return tsr_fail(err, TSR_E_NOT_FOUND, "there is no file '%.*s' for rank %" PRIu32, TSR_STR_ARG(j->flat.files[rank]),
                        rank);
    }
    return TSR_OK;
}

/* Rejects the source if a finding is an error, such as a pickle that would call something. */
static tsr_status refuse_errors(const tsr_optim_job *j, tsr_error *err)
{
    const tsr_findings *findings = tsr_checkpoint_findings(j->trees.checkpoint);
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        TSR_FAIL_IF(f->level == TSR_ERROR, err, TSR_E_FORMAT, "%.*s", TSR_STR_ARG(f->message));
        if (f->level == TSR_WARNING) tsr_optim_warn(j, f->message);
    }
    return TSR_OK;
}

/* Opens the source (for unshard, all ranks' files), and rejects it if it has error findings. */
static tsr_status optim_open_source(tsr_optim_job *j, tsr_error *err)
{
    if (j->request.action == TSR_OPTIM_UNSHARD) {
        uint32_t *files = tsr_arena_array(j->arena, j->flat.world_size, sizeof *files, err);
        if (!files) return TSR_E_NOMEM;
        TSR_TRY(find_rank_files(j, files, err));
        TSR_TRY(tsr_trees_open(j->store, j->host, files, j->flat.world_size, &j->trees, err));
    } else {
        TSR_TRY(tsr_trees_of_part(j->store, j->host, j->request.part, j->request.action == TSR_OPTIM_SHARD, &j->trees, err));
    }
    return refuse_errors(j, err);
}

/* Whether a value is an optimizer's state dict: nested, or flat with at least one key. */
static bool is_optimizer(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_DICT) return false;
    if (tsr_value_get(value, TSR_STR("param_groups"))) return true;
    return value->count && value->items[0]->kind == TSR_VALUE_STR &&
           (tsr_str_starts(value->items[0]->text, TSR_STR("state.")) ||
            tsr_str_starts(value->items[0]->text, TSR_STR("param_groups.")));
}

/* ---- by its name ---- */

/* Removes a key or position and its dot from the beginning of `at`. False if `at` does not begin with it. */
static bool take_step(tsr_str *at, tsr_str step)
{
    if (!tsr_str_starts(*at, step) || at->size == step.size + 1) return false;
    if (at->size > step.size && at->data[step.size] != '.') return false;
    const size_t used = step.size + (at->size > step.size ? 1 : 0);
    *at = tsr_str_after(*at, used);
    return true;
}

/* The value at `at`, keys and positions joined by dots; NULL if there is none. Keys may contain dots. Every step shortens the
 * name, which bounds the depth. */
static const tsr_value *value_at(const tsr_value *value, tsr_str at)
{
    const bool is_dict = value->kind == TSR_VALUE_DICT;
    if (!at.size) return value;
    if (!is_dict && value->kind != TSR_VALUE_LIST && value->kind != TSR_VALUE_TUPLE) return NULL;
    for (size_t i = 0; i < value->count; i += is_dict ? 2 : 1) {
        const tsr_value *key = is_dict ? value->items[i] : NULL;
        const tsr_path_item number = {.kind = TSR_PATH_INDEX, .integer = key ? key->as.integer : (int64_t)i};
        char digits[TSR_PATH_DIGITS];
        tsr_str rest = at;
        if (key && key->kind != TSR_VALUE_STR && key->kind != TSR_VALUE_INT) continue;
        const tsr_str step = key && key->kind == TSR_VALUE_STR ? key->text : tsr_path_item_text(&number, digits);
        if (!step.size || !take_step(&rest, step)) continue;
        const tsr_value *found = value_at(value->items[is_dict ? i + 1 : i], rest);
        if (found) return found;
    }
    return NULL;
}

/* ---- by its look ---- */

enum { MOST_DEPTH = 8, MOST_CONTAINERS = 1 << 16, OPTIMIZERS_SHOWN = 5 };

typedef struct search {
    const tsr_optim_job *job;
    tsr_found_optimizer first;
    size_t count, containers;
    tsr_str names; /* of those found, for the message */
    tsr_error *err;
} search;

static tsr_status add_found(search *s, const tsr_value *value, tsr_str name)
{
    if (!s->count++) s->first = (tsr_found_optimizer){value, name};
    if (s->count > OPTIMIZERS_SHOWN) return TSR_OK;
    s->names = tsr_arena_format(s->job->arena, s->err, "%.*s%s'%.*s'", TSR_STR_ARG(s->names), s->names.size ? ", " : "",
                                TSR_STR_ARG(name));
    return s->names.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status look_into(search *s, const tsr_value *value, tsr_str name, unsigned depth)
{
    const bool is_dict = value->kind == TSR_VALUE_DICT;
    if (is_optimizer(value)) return add_found(s, value, name);
    if (depth == MOST_DEPTH || (!is_dict && value->kind != TSR_VALUE_LIST)) return TSR_OK;
    for (size_t i = 0; i < value->count && s->containers < MOST_CONTAINERS; i += is_dict ? 2 : 1) {
        const tsr_value *item = value->items[is_dict ? i + 1 : i];
        tsr_str key;
        if (item->kind != TSR_VALUE_DICT && item->kind != TSR_VALUE_LIST) continue;
        s->containers++;
        char digits[TSR_PATH_DIGITS];
        const tsr_value *named = is_dict ? value->items[i] : NULL;
        if (named && named->kind != TSR_VALUE_STR && named->kind != TSR_VALUE_INT) continue;
        const tsr_path_item number = {.kind = TSR_PATH_INDEX, .integer = named ? named->as.integer : (int64_t)i};
        key = named && named->kind == TSR_VALUE_STR ? named->text : tsr_path_item_text(&number, digits);
        const tsr_str full =
            tsr_arena_format(s->job->arena, s->err, "%.*s%s%.*s", TSR_STR_ARG(name), name.size ? "." : "", TSR_STR_ARG(key));
        if (!full.data) return TSR_E_NOMEM;
        TSR_TRY(look_into(s, item, full, depth + 1));
    }
    return TSR_OK;
}

static tsr_status optim_find(const tsr_optim_job *j, const tsr_value *root, tsr_found_optimizer *out, tsr_error *err)
{
    search s = {.job = j, .names = {"", 0}, .err = err};
    *out = (tsr_found_optimizer){root, TSR_STR("")};
    if (j->request.at.data) {
        *out = (tsr_found_optimizer){j->request.at.size ? value_at(root, j->request.at) : NULL, j->request.at};
        TSR_FAIL_IF(!out->value, err, TSR_E_NOT_FOUND, "there is no '%.*s'", TSR_STR_ARG(j->request.at));
        return TSR_OK;
    }
    TSR_TRY(look_into(&s, root, TSR_STR(""), 0));
    TSR_FAIL_IF(s.count > 1, err, TSR_E_USAGE, "there are %zu optimizers; choose one with --at: %.*s%s", s.count,
                TSR_STR_ARG(s.names), s.count > OPTIMIZERS_SHOWN ? ", …" : "");
    if (s.count) *out = s.first;
    return TSR_OK;
}

/* ---- its states ---- */

static tsr_status refuse_states(const tsr_findings *findings, tsr_str name, const char *advice, tsr_error *err)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        const bool inside =
            !name.size || (tsr_str_starts(f->fqn, name) && f->fqn.size > name.size && f->fqn.data[name.size] == '.');
        if (f->level != TSR_ERROR || !inside) continue;
        return tsr_fail(err, TSR_E_FORMAT, "%.*s: %.*s%s", TSR_STR_ARG(f->fqn), TSR_STR_ARG(f->message), advice);
    }
    return TSR_OK;
}

static tsr_status check_states(const tsr_optim_job *j, const tsr_catalog *catalog, tsr_str name, const char *advice,
                               tsr_error *err)
{
    tsr_findings *findings = tsr_findings_new(j->host->allocator, 0, err);
    tsr_status status = findings ? tsr_validate_optimizers(catalog, j->host, findings, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = refuse_states(findings, name, advice, err);
    tsr_findings_free(findings);
    return status;
}

/* Rejects the job's result in the same way: the states of ranks are those of parameters only when they are joined. */
static tsr_status optim_check_joined(const tsr_optim_job *j, tsr_error *err)
{
    const tsr_open_options options = {.purpose = TSR_FOR_NAMES};
    const tsr_stored_tree tree = {.name = TSR_STR("optim.pt"), .root = j->result};
    tsr_store *store;
    tsr_checkpoint *checkpoint = NULL;
    TSR_TRY(tsr_tree_store_new(j->trees.checkpoint, &tree, 1, &store, err));
    tsr_status status = tsr_checkpoint_open(store, j->host, &options, &checkpoint, err);
    if (status == TSR_OK) status = check_states(j, tsr_checkpoint_catalog(checkpoint), TSR_STR(""), "", err);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    return status;
}

/* Rejects an optimizer of the source whose states tsr_validate_optimizers reports as errors. */
static tsr_status optim_check_states(const tsr_optim_job *j, tsr_str name, tsr_error *err)
{
    static const char advice[] = "; run tessera validate to list all such states";
    const tsr_open_options options = {.purpose = TSR_FOR_NAMES, .part = j->request.part};
    const tsr_catalog *catalog = tsr_checkpoint_catalog(j->trees.checkpoint);
    tsr_checkpoint *checkpoint = NULL;
    if (catalog->entry_count) return check_states(j, catalog, name, advice, err);
    TSR_TRY(tsr_checkpoint_open(j->store, j->host, &options, &checkpoint, err)); /* a pickle was opened as a tree only */
    const tsr_status status = check_states(j, tsr_checkpoint_catalog(checkpoint), name, advice, err);
    tsr_checkpoint_close(checkpoint);
    return status;
}

/* ---- optim ranks ---- */

/* Converts the optimizer state of FSDP1's ranks: all ranks' raw states to the full state, and the full state to the contents
 * of one rank's file. Handles one rank at a time, each with its own arena, so that memory does not grow with the number of
 * ranks. */

#define NAMES_SIZE 400u /* characters of names in one message */

static tsr_fsdp_context context_of(tsr_optim_job *j, tsr_arena *arena)
{
    return (tsr_fsdp_context){j->host, arena, j->trees.zeros_file, optim_same_tensor, j, true};
}

/* Makes FSDP's mesh: the ranks, or replicas × ranks per replica. */
static tsr_status optim_make_mesh(tsr_optim_job *j, tsr_error *err)
{
    static const tsr_str one[] = {{"shard", 5}}, two[] = {{"replicate", 9}, {"shard", 5}};
    const tsr_flat_params *flat = &j->flat;
    const bool hybrid = flat->shard_groups != NULL;
    for (uint32_t i = 0; hybrid && i < flat->world_size; i++)
        TSR_FAIL_IF(flat->shard_groups[i] != i, err, TSR_E_UNSUPPORTED,
                    "--sharded writes DTensors over a mesh whose replicas consist of consecutive ranks, but rank %" PRIu32
                    " is where rank %" PRIu32 " would be",
                    flat->shard_groups[i], i);
    j->mesh_shape[0] = hybrid ? flat->world_size / flat->shard_size : flat->world_size;
    j->mesh_shape[1] = flat->shard_size;
    j->mesh = (tsr_mesh){hybrid ? 2 : 1, j->mesh_shape, hybrid ? two : one};
    return TSR_OK;
}

/* Fails if ranks have different data that a single full state cannot represent, because the user must decide whose to
 * use. */
static tsr_status refuse_differences(tsr_optim_job *j, const tsr_fsdp_context *context, tsr_error *err)
{
    tsr_name_list names;
    tsr_str list = {"", 0};
    size_t listed = 0;
    TSR_TRY(tsr_fsdp_differences(&j->flat, j->ranks, j->rank, context, &names, err));
    if (names.count == 0) return TSR_OK;
    for (; listed < names.count && list.size < NAMES_SIZE; listed++) {
        list = tsr_arena_format(j->arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(list), listed ? ", " : "",
                                TSR_STR_ARG(names.names[listed]));
        if (!list.data) return TSR_E_NOMEM;
    }
    return tsr_fail(err, TSR_E_USAGE,
                    "ranks differ in optimizer state that FSDP does not shard, and one file cannot hold both: %.*s%s; "
                    "pass --rank N to use the state of rank N, or --sharded to write one file per rank",
                    TSR_STR_ARG(list), listed < names.count ? ", …" : "");
}

static bool is_listed(const tsr_optim_job *j, tsr_str name)
{
    for (size_t i = 0; i < j->carried_count; i++)
        if (tsr_str_equal(j->carried[i], name)) return true;
    return false;
}

static tsr_status warn_of_carried(const tsr_optim_job *j, tsr_str name, uint32_t rank, tsr_error *err)
{
    const tsr_str message = tsr_arena_format(
        j->arena, err, "state '%.*s' does not belong to a parameter; copied from rank %" PRIu32, TSR_STR_ARG(name), rank);
    if (!message.data) return TSR_E_NOMEM;
    tsr_optim_warn(j, message);
    return TSR_OK;
}

static tsr_status note_carried(tsr_optim_job *j, const tsr_fsdp_full *full, uint32_t rank, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(j->arena, j->carried_count + full->carried_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    if (j->carried_count) memcpy(names, j->carried, j->carried_count * sizeof *names);
    j->carried = names;
    for (size_t i = 0; i < full->carried_count; i++) {
        if (is_listed(j, full->carried[i])) continue;
        names[j->carried_count] = tsr_arena_str(j->arena, full->carried[i], err);
        if (!names[j->carried_count++].data) return TSR_E_NOMEM;
        TSR_TRY(warn_of_carried(j, full->carried[i], rank, err));
    }
    return TSR_OK;
}

/* The full state as `rank` gets it. */
static tsr_status unshard_for(tsr_optim_job *j, uint32_t rank, const tsr_fsdp_context *context, const tsr_value **out,
                              tsr_error *err)
{
    tsr_fsdp_full full;
    TSR_TRY(tsr_fsdp_unshard(&j->flat, j->ranks, rank, context, &full, err));
    *out = full.optim;
    return note_carried(j, &full, rank, err);
}

/* Finds the optimizer of each rank, and joins them unless each rank gets a separate file. */
static tsr_status optim_unshard(tsr_optim_job *j, const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_context context = context_of(j, j->arena);
    j->ranks = tsr_arena_array(j->arena, j->trees.count, sizeof *j->ranks, err);
    if (!j->ranks) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < j->trees.count; i++) {
        tsr_found_optimizer found;
        TSR_TRY(optim_find(j, j->trees.roots[i], &found, err));
        j->ranks[i] = found.value;
    }
    if (!j->request.has_rank && !j->request.sharded) TSR_TRY(refuse_differences(j, &context, err));
    return unshard_for(j, j->rank, &context, out, err);
}

static bool begins_with(const tsr_value *dict, tsr_str prefix)
{
    for (size_t i = 0; i < dict->count; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && tsr_str_starts(key->text, prefix)) return true;
    }
    return false;
}

/* Nests the full state, so that it can be sharded. */
static tsr_status optim_nest(tsr_optim_job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    *out = optim;
    if (optim->kind != TSR_VALUE_DICT || tsr_value_get(optim, TSR_STR("state"))) return TSR_OK;
    if (!begins_with(optim, TSR_STR("param_groups.")))
        return tsr_fsdp_nest_state(&j->flat, optim, j->host, j->arena, out, err);
    return optim_unflatten_tree(j, optim, out, err);
}

/* With --sharded, each rank's file has the state of that rank, unless --rank chooses one. */
static tsr_status rows_of_rank(tsr_optim_job *j, uint32_t rank, const tsr_fsdp_context *context, const tsr_value **out,
                               tsr_error *err)
{
    const tsr_fsdp_rows rows = {j->file_count, rank, &j->mesh};
    const tsr_value *full = j->result;
    if (!j->request.has_rank) TSR_TRY(unshard_for(j, rank, context, &full, err));
    return tsr_fsdp_shard_rows(&j->flat, full, &rows, context, out, err);
}

/* The contents of a rank's file; allocated in `arena`. */
static tsr_status optim_rank_tree(tsr_optim_job *j, uint32_t rank, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_context context = context_of(j, arena);
    if (j->request.action == TSR_OPTIM_SHARD)
        return tsr_fsdp_shard(&j->flat, j->result, (tsr_fsdp_rank){j->file_count, rank}, &context, out, err);
    return rows_of_rank(j, rank, &context, out, err);
}

/* ---- optim convert ---- */

#define MOST_RANKS (1ul << 20)

const char *const tsr_optim_action_names[] = {"flatten", "unflatten", "to-fqn", "to-id", "unshard", "shard", NULL};

tsr_status tsr_optim_action_find(const char *name, tsr_optim_action *out, tsr_error *err)
{
    unsigned action = 0;
    while (action < TSR_OPTIM_ACTION_COUNT && strcmp(tsr_optim_action_names[action], name) != 0) action++;
    *out = (tsr_optim_action)action;
    if (action < TSR_OPTIM_ACTION_COUNT) return TSR_OK;
    const char *meant = tsr_suggest(name, tsr_optim_action_names, sizeof *tsr_optim_action_names);
    TSR_FAIL_IF(meant, err, TSR_E_USAGE, "optim has no action '%s'; did you mean '%s'?", name, meant);
    return tsr_fail(err, TSR_E_USAGE, "optim has no action '%s'; choose flatten, unflatten, to-fqn, to-id, unshard or shard",
                    name);
}

/* ---- what is passed in addition to the source ---- */

static bool is_about_shards(const tsr_optim_request *r)
{
    return r->action == TSR_OPTIM_UNSHARD || r->action == TSR_OPTIM_SHARD;
}

tsr_status tsr_optim_request_check(const tsr_optim_request *r, tsr_error *err)
{
    const bool unshard = r->action == TSR_OPTIM_UNSHARD;
    TSR_FAIL_IF((unsigned)r->action >= TSR_OPTIM_ACTION_COUNT, err, TSR_E_USAGE, "there is no optimizer action number %u",
                (unsigned)r->action);
    TSR_FAIL_IF(r->sharded && !unshard, err, TSR_E_USAGE, "--sharded can only be used with optim unshard");
    TSR_FAIL_IF(r->has_rank && !unshard, err, TSR_E_USAGE, "--rank can only be used with optim unshard");
    TSR_FAIL_IF(r->part.data && unshard, err, TSR_E_USAGE,
                "--part cannot be used with optim unshard, which reads the files that FLAT.json lists");
    TSR_FAIL_IF(r->sharded && r->has_world_size, err, TSR_E_USAGE, "--sharded keeps the world size; remove --world-size");
    TSR_FAIL_IF(r->has_world_size && r->action != TSR_OPTIM_SHARD, err, TSR_E_USAGE,
                "--world-size can only be used with optim shard");
    TSR_FAIL_IF(is_about_shards(r) && !r->flat_params.text.data, err, TSR_E_USAGE,
                "optim %s needs --flat-params FLAT.json; see tessera help optim", tsr_optim_action_names[r->action]);
    TSR_FAIL_IF(r->action == TSR_OPTIM_TO_FQN && !r->modules.text.data, err, TSR_E_USAGE,
                "optim to-fqn needs --modules MODULES.json; see tessera help optim");
    TSR_FAIL_IF(r->has_world_size && (r->world_size == 0 || r->world_size > MOST_RANKS), err, TSR_E_USAGE,
                "--world-size expects a number of ranks, not '%" PRIu64 "'", r->world_size);
    return TSR_OK;
}

static tsr_status read_modules(tsr_optim_job *j, tsr_error *err)
{
    TSR_TRY(tsr_modules_parse(j->request.modules.text, j->host, j->arena, &j->document, err));
    TSR_TRY(tsr_modules_new(j->document.root, j->host, &j->modules, err));
    return tsr_params_new(j->modules, j->host, &j->params, err);
}

static tsr_status read_flat_params(tsr_optim_job *j, tsr_error *err)
{
    return tsr_flat_params_parse(j->request.flat_params.text, j->host, j->arena, &j->flat, err);
}

static tsr_status read_document(tsr_optim_job *j, const char *option, const tsr_optim_document *document,
                                tsr_status (*read)(tsr_optim_job *j, tsr_error *err), tsr_error *err)
{
    const tsr_status status = read(j, err);
    if (status != TSR_OK && document->name) tsr_error_subject(err, "--%s %s", option, document->name);
    return status;
}

static tsr_status name_files(tsr_optim_job *j, tsr_error *err)
{
    const bool shard = j->request.action == TSR_OPTIM_SHARD;
    if (!shard && !j->request.sharded) return TSR_OK;
    const uint32_t count = j->request.has_world_size ? (uint32_t)j->request.world_size : j->flat.world_size;
    const bool named = j->flat.file_count && count == j->flat.world_size;
    j->file_names = tsr_arena_array(j->arena, count, sizeof *j->file_names, err);
    if (!j->file_names) return TSR_E_NOMEM;
    for (uint32_t rank = 0; rank < count; rank++) {
        j->file_names[rank] =
            named ? j->flat.files[rank] : tsr_arena_format(j->arena, err, "rank%" PRIu32 ".optim.pt", rank);
        if (!j->file_names[rank].data) return TSR_E_NOMEM;
    }
    j->file_count = count;
    return TSR_OK;
}

static tsr_status read_documents(tsr_optim_job *j, tsr_error *err)
{
    const tsr_optim_request *r = &j->request;
    if (r->modules.text.data) TSR_TRY(read_document(j, "modules", &r->modules, read_modules, err));
    if (is_about_shards(r)) TSR_TRY(read_document(j, "flat-params", &r->flat_params, read_flat_params, err));
    if (r->sharded) TSR_TRY(optim_make_mesh(j, err));
    TSR_FAIL_IF(r->has_rank && r->rank >= j->flat.world_size, err, TSR_E_USAGE,
                "--rank expects a rank from 0 to %" PRIu32 ", not '%" PRIu64 "'", j->flat.world_size - 1, r->rank);
    j->rank = (uint32_t)r->rank;
    return name_files(j, err);
}

/* ---- work on trees ---- */

static tsr_status convert(tsr_optim_job *j, tsr_error *err)
{
    tsr_found_optimizer found;
    if (j->request.action == TSR_OPTIM_UNSHARD) {
        TSR_TRY(optim_unshard(j, &j->result, err));
        return optim_check_joined(j, err);
    }
    TSR_TRY(optim_find(j, j->trees.roots[0], &found, err));
    TSR_TRY(optim_check_states(j, found.name, err));
    const tsr_value *optim = found.value;
    switch (j->request.action) {
    case TSR_OPTIM_FLATTEN: return optim_flatten_tree(j, optim, &j->result, err);
    case TSR_OPTIM_UNFLATTEN: return optim_unflatten_tree(j, optim, &j->result, err);
    case TSR_OPTIM_TO_FQN: return optim_tree_to_fqn(j, optim, &j->result, err);
    case TSR_OPTIM_TO_ID: return tsr_optim_to_id(optim, j->host, j->arena, &j->result, err);
    default: return optim_nest(j, optim, &j->result, err);
    }
}

/* ---- the job ---- */

static tsr_status run(tsr_optim_job *j, tsr_error *err)
{
    j->arena = tsr_arena_new(j->host->allocator, 0, err);
    if (!j->arena) return TSR_E_NOMEM;
    TSR_TRY(read_documents(j, err));
    TSR_TRY(optim_open_source(j, err));
    return convert(j, err);
}

tsr_status tsr_optim_open(tsr_store *store, const tsr_host *host, const tsr_optim_request *request, tsr_optim_job **out,
                          tsr_error *err)
{
    *out = NULL;
    TSR_TRY(tsr_optim_request_check(request, err));
    tsr_optim_job *j = tsr_alloc(host->allocator, 1, sizeof *j, err);
    if (!j) return TSR_E_NOMEM;
    *j = (tsr_optim_job){.request = *request, .host = host, .store = store};
    const tsr_status status = run(j, err);
    if (status == TSR_OK) *out = j;
    else tsr_optim_close(j);
    return status;
}

void tsr_optim_close(tsr_optim_job *job)
{
    if (!job) return;
    tsr_trees_close(&job->trees);
    tsr_params_free(job->params);
    tsr_modules_free(job->modules);
    tsr_arena_free(job->arena);
    tsr_free(job->host->allocator, job, 1, sizeof *job);
}

/* ---- the result ---- */

bool tsr_optim_is_directory(const tsr_optim_job *job)
{
    return job->file_names != NULL;
}

uint32_t tsr_optim_file_count(const tsr_optim_job *job)
{
    return job->file_names ? job->file_count : 1;
}

tsr_str tsr_optim_file_name(const tsr_optim_job *job, uint32_t index)
{
    return job->file_names ? job->file_names[index] : TSR_STR("");
}

const tsr_str *tsr_optim_carried(const tsr_optim_job *job, size_t *count)
{
    *count = job->carried_count;
    return job->carried;
}

/* The mesh of the DTensors in a rank's file. Tensors of the sharded state are split over the last dim of the mesh; replicas
 * have the same data. */
static const tsr_mesh_rank *mesh_rank_of(const tsr_optim_job *j, uint32_t rank, tsr_mesh_rank *out)
{
    static const tsr_placement placements[] = {{.kind = TSR_REPLICATE}, {.kind = TSR_SHARD}};
    *out = (tsr_mesh_rank){&j->mesh, placements + 2 - j->mesh.dim_count, rank};
    return j->request.sharded ? out : NULL;
}

/* The contents of file `index`. New values are allocated in `arena`. */
static tsr_status tree_of(tsr_optim_job *j, uint32_t index, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    if (j->file_names) return optim_rank_tree(j, index, arena, out, err);
    *out = j->result;
    return TSR_OK;
}

tsr_status tsr_optim_write(tsr_optim_job *j, uint32_t index, tsr_tree_file *file, tsr_error *err)
{
    tsr_mesh_rank of;
    const tsr_value *root;
    tsr_arena *arena = tsr_arena_new(j->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tree_of(j, index, arena, &root, err);
    if (status == TSR_OK) status = tsr_write_tree(j->trees.checkpoint, root, mesh_rank_of(j, index, &of), file, err);
    tsr_arena_free(arena);
    return status;
}

/* ---- the result as a store ---- */

typedef struct result_store {
    tsr_store base; /* must be first; its files and its reading are those of `trees` */
    tsr_store *trees;
    tsr_arena *arena;
    const tsr_allocator *allocator;
} result_store;

static tsr_status read_result(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    tsr_store *trees = ((result_store *)store)->trees;
    return trees->read_at(trees, file, offset, buffer, size, err);
}

static void close_result(tsr_store *store)
{
    result_store *s = (result_store *)store;
    if (s->trees) s->trees->close(s->trees);
    tsr_arena_free(s->arena);
    tsr_free(s->allocator, s, 1, sizeof *s);
}

static tsr_status make_trees(tsr_optim_job *j, result_store *s, tsr_error *err)
{
    const uint32_t count = tsr_optim_file_count(j);
    s->arena = tsr_arena_new(j->host->allocator, (size_t)j->host->limits.memory_bytes, err);
    tsr_stored_tree *trees = s->arena ? tsr_arena_array(s->arena, count, sizeof *trees, err) : NULL;
    tsr_mesh_rank *ranks = trees ? tsr_arena_array(s->arena, count, sizeof *ranks, err) : NULL;
    if (!ranks) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        trees[i] = (tsr_stored_tree){.name = j->file_names ? j->file_names[i] : TSR_STR("optim.pt"),
                                     .of = mesh_rank_of(j, i, &ranks[i])};
        TSR_TRY(tree_of(j, i, s->arena, &trees[i].root, err));
    }
    return tsr_tree_store_new(j->trees.checkpoint, trees, count, &s->trees, err);
}

tsr_status tsr_optim_store(tsr_optim_job *j, tsr_store **out, tsr_error *err)
{
    *out = NULL;
    result_store *s = tsr_alloc(j->host->allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (result_store){.allocator = j->host->allocator};
    const tsr_status status = make_trees(j, s, err);
    if (status != TSR_OK) {
        close_result(&s->base);
        return status;
    }
    s->base = *s->trees;
    s->base.read_at = read_result;
    s->base.close = close_result;
    if (j->file_names) s->base.primary = TSR_NO_FILE;
    *out = &s->base;
    return TSR_OK;
}
