/* `tessera optim ACTION PATH DEST`: optimizer state from one form to another. Trees are worked on whole, tensor bytes are
 * streamed from the source files into the new ones. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/session.h"
#include "cli/signals.h"
#include "cli/term.h"
#include "publish/publication.h"
#include "tessera/compare.h"
#include "tessera/flat_params.h"
#include "tessera/folder.h"
#include "tessera/optim.h"
#include "tessera/trees.h"
#include "tessera/write_tree.h"

#define JOB TSR_STR("optimizer state\n")

typedef struct optim_arguments {
    const char *modules, *flat_params, *world_size, *rank, *at;
    uint64_t max_memory;
    bool sharded, overwrite, json, allow_expansion;
} optim_arguments;

typedef enum action { FLATTEN, UNFLATTEN, TO_FQN, TO_ID, UNSHARD, SHARD, ACTION_COUNT } action;
static const char *const action_names[] = {"flatten", "unflatten", "to-fqn", "to-id", "unshard", "shard", NULL};

typedef struct job {
    cli *program;
    const optim_arguments *arguments;
    action action;
    const char *source, *destination;
    tsr_arena *arena;
    tsr_modules_document document;
    tsr_modules *modules; /* NULL: none given */
    tsr_params *params;
    tsr_flat_params flat;
    uint32_t world_size;     /* of the output */
    const tsr_value **ranks; /* unshard: what each rank's file has */
    uint32_t rank;           /* whose state is taken where ranks differ */
    tsr_store *store;
    tsr_trees trees;
    tsr_ring *ring;
    tsr_output *output;
    cli_cleanup cleanup; /* removes what is unfinished at a signal */
    tsr_replacement replacement;
    tsr_publication publication;
    const tsr_str *carried;
    size_t carried_count;
    bool by_rank;  /* one file a rank is written */
    tsr_mesh mesh; /* --sharded: that of the DTensors */
    uint64_t mesh_shape[2];
    uint32_t files_written;
    uint64_t bytes_written;
} job;

/* ---- what is given beside the source ---- */

/* Reads a whole document and hands its text to `parse`. */
static tsr_status with_document(job *j, const char *path, tsr_status (*parse)(job *j, tsr_str text, tsr_error *err),
                                tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_status status = cli_load_file(j->program, path, &store, &bytes, err);
    if (status == TSR_OK) status = parse(j, bytes.data, err);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    if (status != TSR_OK) tsr_error_context(err, "%s", path);
    return status;
}

static tsr_status parse_modules(job *j, tsr_str text, tsr_error *err)
{
    const tsr_host *host = cli_host(j->program);
    tsr_status status = tsr_modules_parse(text, host, j->arena, &j->document, err);
    if (status == TSR_OK) status = tsr_modules_new(j->document.root, host, &j->modules, err);
    return status == TSR_OK ? tsr_params_new(j->modules, host, &j->params, err) : status;
}

static tsr_status parse_flat(job *j, tsr_str text, tsr_error *err)
{
    return tsr_flat_params_parse(text, cli_host(j->program), j->arena, &j->flat, err);
}

static tsr_status read_world_size(job *j, tsr_error *err)
{
    char *end;
    j->world_size = j->flat.world_size;
    if (!j->arguments->world_size) return TSR_OK;
    unsigned long number = strtoul(j->arguments->world_size, &end, 10);
    if (*end || number == 0 || number > 1ul << 20)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--world-size takes a number of ranks, not '%s'",
                         j->arguments->world_size);
    j->world_size = (uint32_t)number;
    return TSR_OK;
}

static tsr_status read_rank(job *j, tsr_error *err)
{
    char *end;
    if (!j->arguments->rank) return TSR_OK;
    unsigned long number = strtoul(j->arguments->rank, &end, 10);
    if (*end || end == j->arguments->rank || *j->arguments->rank == '-' || number >= j->flat.world_size)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--rank accepts a rank from 0 to %" PRIu32 ", not '%s'",
                         j->flat.world_size - 1, j->arguments->rank);
    j->rank = (uint32_t)number;
    return TSR_OK;
}

/* FSDP's mesh: the ranks, or replicas × ranks of one. */
static tsr_status make_mesh(job *j, tsr_error *err)
{
    static const tsr_str one[] = {{"shard", 5}}, two[] = {{"replicate", 9}, {"shard", 5}};
    const tsr_flat_params *flat = &j->flat;
    bool hybrid = flat->shard_groups != NULL;
    for (uint32_t i = 0; hybrid && i < flat->world_size; i++) {
        if (flat->shard_groups[i] != i)
            return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                             "--sharded writes DTensors over a mesh, whose replicas are ranks in a row; rank %" PRIu32
                             " stands where rank %" PRIu32 " would",
                             flat->shard_groups[i], i);
    }
    j->mesh_shape[0] = hybrid ? flat->world_size / flat->shard_size : flat->world_size;
    j->mesh_shape[1] = flat->shard_size;
    j->mesh = (tsr_mesh){hybrid ? 2 : 1, j->mesh_shape, hybrid ? two : one};
    return TSR_OK;
}

static tsr_status load_documents(job *j, tsr_error *err)
{
    bool flat = j->action == UNSHARD || j->action == SHARD;
    if (flat && !j->arguments->flat_params)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "optim %s needs --flat-params FLAT.json",
                         action_names[j->action]);
    if (j->action == TO_FQN && !j->arguments->modules)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "optim to-fqn needs --modules MODULES.json");
    tsr_status status = j->arguments->modules ? with_document(j, j->arguments->modules, parse_modules, err) : TSR_OK;
    if (status == TSR_OK && flat) status = with_document(j, j->arguments->flat_params, parse_flat, err);
    if (status == TSR_OK && j->arguments->sharded) status = make_mesh(j, err);
    if (status == TSR_OK) status = read_rank(j, err);
    return status == TSR_OK ? read_world_size(j, err) : status;
}

/* ---- the source ---- */

static tsr_status find_rank_files(job *j, uint32_t *files, tsr_error *err)
{
    if (j->flat.file_count != j->flat.world_size)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the flat-params document lists no files, one a rank");
    for (uint32_t rank = 0; rank < j->flat.world_size; rank++) {
        files[rank] = tsr_store_find(j->store, j->flat.files[rank]);
        if (files[rank] == TSR_NO_FILE) {
            return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "there is no file '%.*s' for rank %" PRIu32 " in %s",
                             TSR_STR_ARG(j->flat.files[rank]), rank, j->source);
        }
    }
    return TSR_OK;
}

/* A pickle that would call something is not converted, whatever the rest of it says. */
static tsr_status refuse_errors(job *j, tsr_error *err)
{
    const tsr_findings *findings = tsr_checkpoint_findings(j->trees.checkpoint);
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        if (f->level == TSR_ERROR) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%.*s", TSR_STR_ARG(f->message));
        if (f->level == TSR_WARNING) cli_warn(j->program, "%.*s", TSR_STR_ARG(f->message));
    }
    return TSR_OK;
}

static tsr_status open_source(job *j, tsr_error *err)
{
    const tsr_host *host = cli_host(j->program);
    uint32_t count = j->action == UNSHARD ? j->flat.world_size : 1;
    uint32_t *files = tsr_arena_array(j->arena, count, sizeof *files, err);
    if (!files) return TSR_E_NOMEM;
    tsr_status status = tsr_folder_store_open(NULL, host->allocator, j->source, &j->store, err);
    if (status != TSR_OK) return status;
    if (j->action != UNSHARD) {
        status = tsr_trees_of(j->store, host, j->action == SHARD, &j->trees, err);
    } else {
        status = find_rank_files(j, files, err);
        if (status == TSR_OK) status = tsr_trees_open(j->store, host, files, count, &j->trees, err);
    }
    return status == TSR_OK ? refuse_errors(j, err) : status;
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

/* The optimizer in a training state: the root itself, the member --at names, or the only member that looks like one. */
static tsr_status find_optimizer(job *j, const tsr_value *root, const tsr_value **out, tsr_error *err)
{
    size_t found = 0;
    *out = j->arguments->at && root->kind == TSR_VALUE_DICT ? tsr_value_get(root, tsr_str_from(j->arguments->at)) : NULL;
    if (j->arguments->at && !*out)
        return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "there is no '%s' in %s", j->arguments->at, j->source);
    if (*out) return TSR_OK;
    *out = root;
    if (is_optimizer(root) || root->kind != TSR_VALUE_DICT) return TSR_OK;
    for (size_t i = 1; i < root->count; i += 2) {
        if (!is_optimizer(root->items[i])) continue;
        *out = root->items[i];
        found++;
    }
    if (found <= 1) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "%s holds %zu optimizers: --at NAME must say which", j->source,
                     found);
}

/* ---- work on trees ---- */

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

static tsr_status to_fqn(job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    const tsr_host *host = cli_host(j->program);
    const tsr_name_list *names;
    size_t count;
    tsr_status status = tsr_optim_name_groups(optim, j->modules, j->document.groups, j->document.group_count, host, j->arena,
                                              &names, &count, err);
    return status == TSR_OK ? tsr_optim_to_fqn(optim, names, count, host, j->arena, out, err) : status;
}

static tsr_status flatten(job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    tsr_status status = j->modules && has_ids(optim) ? to_fqn(j, optim, &optim, err) : TSR_OK;
    return status == TSR_OK ? tsr_optim_flatten(optim, cli_host(j->program), j->arena, out, err) : status;
}

static bool begins_with(const tsr_value *dict, const char *prefix)
{
    for (size_t i = 0; i < dict->count; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && tsr_str_starts(key->text, tsr_str_from(prefix))) return true;
    }
    return false;
}

static tsr_status same_tensor(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
{
    static const tsr_tolerance exact = {.exact = true};
    job *j = ctx;
    tsr_difference difference;
    const tsr_status status =
        tsr_compare_tensors(j->trees.checkpoint, a, j->trees.checkpoint, b, &exact, j->ring, &difference, err);
    *equal = status == TSR_OK && difference.differing == 0;
    return status;
}

static tsr_status unflatten(job *j, const tsr_value *flat, const tsr_value **out, tsr_error *err)
{
    const tsr_unflatten how = {j->params, j->document.groups, j->document.group_count, same_tensor, j};
    return tsr_optim_unflatten(flat, &how, cli_host(j->program), j->arena, out, err);
}

/* What is to be sharded: the nested state itself, or what flat keys spell. */
static tsr_status nest(job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    const tsr_host *host = cli_host(j->program);
    *out = optim;
    if (optim->kind != TSR_VALUE_DICT || tsr_value_get(optim, TSR_STR("state"))) return TSR_OK;
    return begins_with(optim, "param_groups.") ? unflatten(j, optim, out, err)
                                               : tsr_fsdp_nest_state(&j->flat, optim, host, j->arena, out, err);
}

static tsr_fsdp_context fsdp_context(job *j, tsr_arena *arena)
{
    return (tsr_fsdp_context){cli_host(j->program), arena, j->trees.zeros_file, same_tensor, j, true};
}

#define NAMES_SIZE 400u /* characters of names in one message */

/* One full state cannot hold what ranks have in different ways: whose to take is for the user to say. */
static tsr_status refuse_differences(job *j, const tsr_fsdp_context *context, tsr_error *err)
{
    tsr_name_list names;
    tsr_str list = {"", 0};
    size_t listed = 0;
    tsr_status status = tsr_fsdp_differences(&j->flat, j->ranks, j->rank, context, &names, err);
    if (status != TSR_OK || names.count == 0) return status;
    for (; listed < names.count && list.size < NAMES_SIZE; listed++) {
        list = tsr_arena_format(j->arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(list), listed ? ", " : "",
                                TSR_STR_ARG(names.names[listed]));
        if (!list.data) return TSR_E_NOMEM;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "ranks differ in optimizer state that FSDP does not shard, and one file cannot hold both: %.*s%s; "
                     "pass --rank N to take rank N's, or --sharded to write one file per rank",
                     TSR_STR_ARG(list), listed < names.count ? ", …" : "");
}

static tsr_status warn_of_carried(job *j, const tsr_fsdp_full *full, uint32_t rank, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(j->arena, j->carried_count + full->carried_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    if (j->carried_count) memcpy(names, j->carried, j->carried_count * sizeof *names);
    j->carried = names;
    for (size_t i = 0; i < full->carried_count; i++) {
        bool known = false;
        for (size_t k = 0; k < j->carried_count && !known; k++) known = tsr_str_equal(names[k], full->carried[i]);
        if (known) continue;
        names[j->carried_count] = tsr_arena_str(j->arena, full->carried[i], err);
        if (!names[j->carried_count++].data) return TSR_E_NOMEM;
        cli_warn(j->program, "state '%.*s' belongs to no parameter: carried over from rank %" PRIu32,
                 TSR_STR_ARG(full->carried[i]), rank);
    }
    return TSR_OK;
}

/* The full state as `rank` gets it. */
static tsr_status unshard_for(job *j, uint32_t rank, const tsr_fsdp_context *context, const tsr_value **out, tsr_error *err)
{
    tsr_fsdp_full full;
    tsr_status status = tsr_fsdp_unshard(&j->flat, j->ranks, rank, context, &full, err);
    if (status == TSR_OK) status = warn_of_carried(j, &full, rank, err);
    *out = full.optim;
    return status;
}

/* With --sharded each rank's file has that rank's own state, unless --rank chooses one: see cut_rows. */
static tsr_status unshard(job *j, const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_context context = fsdp_context(j, j->arena);
    j->ranks = tsr_arena_array(j->arena, j->trees.count, sizeof *j->ranks, err);
    if (!j->ranks) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < j->trees.count && status == TSR_OK; i++)
        status = find_optimizer(j, j->trees.roots[i], &j->ranks[i], err);
    if (status == TSR_OK && !j->arguments->rank && !j->arguments->sharded) status = refuse_differences(j, &context, err);
    return status == TSR_OK ? unshard_for(j, j->rank, &context, out, err) : status;
}

/* ---- output ---- */

static tsr_status write_one(job *j, const tsr_value *root, uint32_t rank, tsr_str name, const tsr_progress *progress,
                            uint32_t *file, tsr_error *err)
{
    static const tsr_placement placements[] = {{.kind = TSR_REPLICATE}, {.kind = TSR_SHARD}};
    const tsr_mesh_rank of = {&j->mesh, placements + 2 - j->mesh.dim_count, rank};
    tsr_tree_file written = {.output = j->output, .name = name, .ring = j->ring, .progress = progress};
    const tsr_status status = tsr_write_tree(j->trees.checkpoint, root, j->arguments->sharded ? &of : NULL, &written, err);
    if (status != TSR_OK) return status;
    *file = written.number;
    j->bytes_written += written.bytes;
    j->files_written++;
    return TSR_OK;
}

static tsr_status cut_rows(job *j, const tsr_value *full, uint32_t rank, const tsr_fsdp_context *context,
                           const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_rows rows = {j->world_size, rank, &j->mesh};
    if (!j->arguments->rank) {
        const tsr_status status = unshard_for(j, rank, context, &full, err);
        if (status != TSR_OK) return status;
    }
    return tsr_fsdp_shard_rows(&j->flat, full, &rows, context, out, err);
}

static tsr_str rank_name(const job *j, uint32_t rank, tsr_arena *arena, tsr_error *err)
{
    const bool named = j->flat.file_count && j->world_size == j->flat.world_size;
    return named ? j->flat.files[rank] : tsr_arena_format(arena, err, "rank%" PRIu32 ".optim.pt", rank);
}

static tsr_status write_rank(job *j, const tsr_value *full, uint32_t rank, const tsr_progress *progress, uint32_t *file,
                             tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(cli_host(j->program)->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_str name = rank_name(j, rank, arena, err);
    tsr_fsdp_context context = fsdp_context(j, arena);
    const tsr_value *part;
    tsr_status status = !name.data           ? TSR_E_NOMEM
                        : j->action == SHARD ? tsr_fsdp_shard(&j->flat, full, j->world_size, rank, &context, &part, err)
                                             : cut_rows(j, full, rank, &context, &part, err);
    if (status == TSR_OK) status = write_one(j, part, rank, name, progress, file, err);
    tsr_arena_free(arena);
    return status;
}

static void remove_unfinished(void *ctx)
{
    const job *j = ctx;
    tsr_error ignored = {0};
    tsr_sys_stop_naming();
    if (j->publication.journal) tsr_journals_discard(&j->publication.journals, j->publication.tag, &ignored);
}

static tsr_status list_inputs(const job *j, tsr_inputs *inputs, tsr_error *err)
{
    tsr_status status = tsr_inputs_add(inputs, j->store, NULL, err);
    if (status == TSR_OK) status = tsr_inputs_add_path(inputs, j->arguments->modules, err);
    return status == TSR_OK ? tsr_inputs_add_path(inputs, j->arguments->flat_params, err) : status;
}

static tsr_status list_names(const job *j, const tsr_str **out, size_t *count, tsr_error *err)
{
    *count = j->by_rank ? j->world_size : 0;
    tsr_str *names = tsr_arena_array(j->arena, *count, sizeof *names, err);
    *out = names;
    for (uint32_t rank = 0; names && rank < *count; rank++) {
        names[rank] = rank_name(j, rank, j->arena, err);
        if (!names[rank].data) return TSR_E_NOMEM;
    }
    return names ? TSR_OK : TSR_E_NOMEM;
}

/* What becomes of the files that are at the destination now. */
static tsr_status decide_replacement(job *j, const tsr_str *names, size_t count, tsr_error *err)
{
    tsr_replacement *out = &j->replacement;
    tsr_inputs inputs = tsr_inputs_of(cli_host(j->program)->allocator);
    const tsr_replacement_request request = {.host = cli_host(j->program),
                                             .path = j->destination,
                                             .is_folder = j->by_rank,
                                             .overwrite = j->arguments->overwrite,
                                             .inputs = &inputs};
    tsr_status status = list_inputs(j, &inputs, err);
    if (status == TSR_OK) status = tsr_replacement_decide(&request, j->arena, out, err);
    tsr_inputs_free(&inputs);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        status = tsr_replacement_check_name(out, j->destination, names[i], err);
    for (size_t i = 0; i < out->kept_count && status == TSR_OK; i++)
        cli_warn(j->program, "'%.*s' in '%s' is not listed by the replaced checkpoint; it stays",
                 TSR_STR_ARG(out->kept[i].name), j->destination);
    return status;
}

static tsr_status open_output(job *j, tsr_error *err)
{
    const tsr_allocator *allocator = cli_host(j->program)->allocator;
    const tsr_str *names;
    size_t count;
    tsr_status status = list_names(j, &names, &count, err);
    if (status == TSR_OK) status = tsr_publication_open(allocator, j->destination, JOB, &j->publication, err);
    if (status == TSR_OK && j->arguments->overwrite) status = tsr_journals_hold(&j->publication.journals, err);
    if (status == TSR_OK) status = decide_replacement(j, names, count, err);
    if (status != TSR_OK) return status;
    const tsr_folder_output_options options = {.is_folder = j->by_rank,
                                               .overwrite = j->arguments->overwrite,
                                               .absent = j->by_rank && j->arguments->overwrite && !j->replacement.exists,
                                               .source = j->source,
                                               .tag = j->publication.tag,
                                               .swap = j->replacement.swap,
                                               .obsolete = j->replacement.obsolete,
                                               .obsolete_count = j->replacement.obsolete_count};
    j->cleanup = (cli_cleanup){.remove = remove_unfinished, .ctx = j};
    cli_cleanup_add(&j->cleanup);
    cli_signals_hold();
    status = tsr_publication_begin(&j->publication, JOB, 0, names, count, err);
    if (status == TSR_OK) status = tsr_folder_output_open(NULL, allocator, j->destination, &options, &j->output, err);
    cli_signals_release();
    return status;
}

static tsr_status write_output(job *j, const tsr_value *result, const tsr_progress *progress, tsr_error *err)
{
    uint32_t file = TSR_NO_FILE;
    tsr_status status = open_output(j, err);
    if (status == TSR_OK && !j->by_rank) status = write_one(j, result, 0, TSR_STR(""), progress, &file, err);
    for (uint32_t rank = 0; j->by_rank && rank < j->world_size && status == TSR_OK; rank++)
        status = write_rank(j, result, rank, progress, &file, err);
    if (status == TSR_OK) status = tsr_folder_store_unchanged(j->store, err);
    if (status == TSR_OK) status = j->output->sync(j->output, err); /* before signals have to wait */
    if (status != TSR_OK) return status;
    cli_signals_hold();
    status = tsr_publication_publish(&j->publication, j->output, j->by_rank ? TSR_NO_FILE : file, j->replacement.swap, err);
    cli_signals_release();
    return status;
}

/* ---- all of it ---- */

static tsr_status convert(job *j, const tsr_value **out, tsr_error *err)
{
    const tsr_value *optim;
    if (j->action == UNSHARD) return unshard(j, out, err);
    tsr_status status = find_optimizer(j, j->trees.roots[0], &optim, err);
    if (status != TSR_OK) return status;
    switch (j->action) {
    case FLATTEN: return flatten(j, optim, out, err);
    case UNFLATTEN: return unflatten(j, optim, out, err);
    case TO_FQN: return to_fqn(j, optim, out, err);
    case TO_ID: return tsr_optim_to_id(optim, cli_host(j->program), j->arena, out, err);
    default: return nest(j, optim, out, err); /* shard: rank by rank, while it is written */
    }
}

static tsr_status run_job(job *j, tsr_error *err)
{
    const tsr_value *result;
    cli_progress progress;
    j->arena = tsr_arena_new(cli_host(j->program)->allocator, 0, err);
    tsr_status status = j->arena ? load_documents(j, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_source(j, err);
    if (status == TSR_OK) status = tsr_ring_new(cli_host(j->program), (size_t)j->arguments->max_memory, &j->ring, err);
    if (status == TSR_OK) status = convert(j, &result, err);
    if (status != TSR_OK) return status;
    cli_progress_start(&progress, j->program, action_names[j->action]);
    status = write_output(j, result, &progress.base, err);
    cli_progress_end(&progress);
    return status;
}

static tsr_status report(const job *j, double seconds, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, cli_write_file, stdout, 1, err);
    tsr_json_object(&json);
    tsr_json_key(&json, "schema");
    tsr_json_text(&json, "tessera.optim/1");
    tsr_json_key(&json, "action");
    tsr_json_text(&json, action_names[j->action]);
    tsr_json_key(&json, "source");
    tsr_json_text(&json, j->source);
    tsr_json_key(&json, "destination");
    tsr_json_text(&json, j->destination);
    tsr_json_key(&json, "files");
    tsr_json_uint(&json, j->files_written);
    tsr_json_key(&json, "bytes");
    tsr_json_uint(&json, j->bytes_written);
    tsr_json_key(&json, "seconds");
    tsr_json_double(&json, seconds);
    tsr_json_key(&json, "carried");
    tsr_json_array(&json);
    for (size_t i = 0; i < j->carried_count; i++) tsr_json_str(&json, j->carried[i]);
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static void close_job(job *j)
{
    cli_signals_hold();
    if (j->output) j->output->close(j->output);
    j->output = NULL;
    tsr_publication_close(&j->publication);
    cli_signals_release();
    cli_cleanup_drop(&j->cleanup);
    tsr_ring_free(j->ring);
    tsr_trees_close(&j->trees);
    if (j->store) j->store->close(j->store);
    tsr_params_free(j->params);
    tsr_modules_free(j->modules);
    tsr_arena_free(j->arena);
}

static int run(cli *program, const void *arguments)
{
    const char *name = program->operands.items[0];
    unsigned chosen = 0;
    while (chosen < ACTION_COUNT && strcmp(action_names[chosen], name) != 0) chosen++;
    if (chosen == ACTION_COUNT) {
        const char *meant = tsr_suggest(name, action_names, sizeof *action_names);
        if (meant) return cli_fail(program, "optim has no action '%s'; did you mean '%s'?", name, meant);
        return cli_fail(program, "optim has no action '%s'; flatten, unflatten, to-fqn, to-id, unshard or shard", name);
    }
    const optim_arguments *given = arguments;
    if (given->sharded && chosen != UNSHARD) return cli_fail(program, "--sharded is for optim unshard");
    if (given->rank && chosen != UNSHARD) return cli_fail(program, "--rank is for optim unshard");
    if (given->sharded && given->world_size) return cli_fail(program, "--sharded keeps the world size of the ranks");
    tsr_error err = {0};
    job j = {.program = program,
             .arguments = arguments,
             .action = (action)chosen,
             .by_rank = chosen == SHARD || given->sharded,
             .source = program->operands.items[1],
             .destination = program->operands.items[2]};
    double started = cli_seconds();
    cli_allow_expansion(program, given->allow_expansion);
    tsr_status status = run_job(&j, &err);
    if (status == TSR_OK && j.arguments->json) status = report(&j, cli_seconds() - started, &err);
    close_job(&j);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
}

static const cli_option options[] = {
    {"modules", 0, CLI_TEXT, "MODULES.json", "the module tree (tessera.modules/1): names, frozen parameters, groups",
     offsetof(optim_arguments, modules)},
    {"flat-params", 0, CLI_TEXT, "FLAT.json", "FSDP1's flat parameters (tessera.flat-params/1)",
     offsetof(optim_arguments, flat_params)},
    {"world-size", 0, CLI_TEXT, "N", "shard: ranks to write for (default: the document's)",
     offsetof(optim_arguments, world_size)},
    {"sharded", 0, CLI_FLAG, NULL, "unshard: one file a rank with DTensors cut by rows, instead of the full state",
     offsetof(optim_arguments, sharded)},
    {"rank", 0, CLI_TEXT, "N", "unshard: take rank N's where ranks differ in state that FSDP does not shard",
     offsetof(optim_arguments, rank)},
    {"at", 0, CLI_TEXT, "NAME", "the member of the file that is the optimizer (default: found by its form)",
     offsetof(optim_arguments, at)},
    {"max-mem", 0, CLI_BYTES, "SIZE", "buffers for tensor bytes (default 16MiB)", offsetof(optim_arguments, max_memory)},
    {"overwrite", 0, CLI_FLAG, NULL, "replace the checkpoint at DEST; files that it does not list stay",
     offsetof(optim_arguments, overwrite)},
    {"json", 0, CLI_FLAG, NULL, "report as a tessera.optim/1 document", offsetof(optim_arguments, json)},
    CLI_EXPANSION_OPTION(optim_arguments, allow_expansion),
    {0},
};

const cli_command cli_optim = {
    .name = "optim",
    .summary = "optimizer state from one form to another: names, ids, flat keys, FSDP1 shards",
    .operands = "flatten|unflatten|to-fqn|to-id|unshard|shard PATH DEST",
    .least = 3,
    .most = 3,
    .examples =
        "tessera optim flatten optim.pt flat.pt --modules modules.json\n{\"state\": …, \"param_groups\": …} to "
        "\"state.fc.weight.exp_avg\", …\n"
        "tessera optim to-fqn optim.pt named.pt --modules modules.json\nparameter numbers to names\n"
        "tessera optim unshard ranks/ full.pt --flat-params flat.json\none raw state a rank of FSDP1 to the full state\n"
        "tessera optim unshard ranks/ sharded/ --flat-params flat.json --sharded\nto FSDP's sharded state, one file a rank\n"
        "tessera optim shard full.pt ranks/ --flat-params flat.json --world-size 8\nand back, for any number of ranks\n",
    .options = options,
    .arguments_size = sizeof(optim_arguments),
    .run = run,
};
