/* Converts optimizer state from one form to another. Opening a job reads the documents and the source, and converts the
 * trees. What belongs to a single rank is converted when its file is written or read. */
#include "tessera/optim_convert.h"

#include <inttypes.h>

#include "optim_convert/optim_job.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/suggest.h"
#include "tessera/sys/try.h"

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

static tsr_status read_document(tsr_optim_job *j, const tsr_optim_document *document,
                                tsr_status (*read)(tsr_optim_job *j, tsr_error *err), tsr_error *err)
{
    const tsr_status status = read(j, err);
    if (status != TSR_OK && document->name) tsr_error_context(err, "%s", document->name);
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
    if (r->modules.text.data) TSR_TRY(read_document(j, &r->modules, read_modules, err));
    if (is_about_shards(r)) TSR_TRY(read_document(j, &r->flat_params, read_flat_params, err));
    if (r->sharded) TSR_TRY(tsr_optim_make_mesh(j, err));
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
        TSR_TRY(tsr_optim_unshard(j, &j->result, err));
        return tsr_optim_check_joined(j, err);
    }
    TSR_TRY(tsr_optim_find(j, j->trees.roots[0], &found, err));
    TSR_TRY(tsr_optim_check_states(j, found.name, err));
    const tsr_value *optim = found.value;
    switch (j->request.action) {
    case TSR_OPTIM_FLATTEN: return tsr_optim_flatten_tree(j, optim, &j->result, err);
    case TSR_OPTIM_UNFLATTEN: return tsr_optim_unflatten_tree(j, optim, &j->result, err);
    case TSR_OPTIM_TO_FQN: return tsr_optim_tree_to_fqn(j, optim, &j->result, err);
    case TSR_OPTIM_TO_ID: return tsr_optim_to_id(optim, j->host, j->arena, &j->result, err);
    default: return tsr_optim_nest(j, optim, &j->result, err);
    }
}

/* ---- the job ---- */

static tsr_status run(tsr_optim_job *j, tsr_error *err)
{
    j->arena = tsr_arena_new(j->host->allocator, 0, err);
    if (!j->arena) return TSR_E_NOMEM;
    TSR_TRY(read_documents(j, err));
    TSR_TRY(tsr_optim_open_source(j, err));
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
    if (j->file_names) return tsr_optim_rank_tree(j, index, arena, out, err);
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
