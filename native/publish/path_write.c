/* Writes a checkpoint to a path, by one process or by ranks that share the work:
 *
 *   rank 0 decides what is replaced and chooses temporary names ──▶ all ranks make the same plan of the work
 *   rank 0 creates the files, the others open them ──▶ each rank does its share of the units and syncs
 *   records of what is done ──▶ rank 0 writes headers, index or .metadata, and publishes
 *
 * The command line does the same as a job (job.h), which can be resumed. */
#include "publish/publication.h"
#include "tessera/path.h"
#include "tessera/sys/check_shared.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/document.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/joint_output.h"
#include "tessera/sys/options.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/trees.h"
#include "tessera/sys/try.h"
#include "tessera/sys/work.h"
#include "tessera/sys/write_tree.h"

#define JOB TSR_STR("a checkpoint that a program writes\n")

typedef struct writing {
    tsr_checkpoint *checkpoint;
    const tsr_path_write_options *options;
    tsr_comm *comm;
    tsr_arena *arena;
    const char *marker; /* NULL: the format has none */
    tsr_work *work;
    tsr_joint_output *joint;
} writing;

/* ---- the output ---- */

/* Lists the names that will be created. */
static tsr_status list_names(writing *w, const tsr_str **out, size_t *count, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(w->work);
    const char *beside = tsr_beside_marker(w->marker);
    tsr_str *names = tsr_arena_array(w->arena, (size_t)c->file_count + 2, sizeof *names, err);
    *out = names;
    *count = 0;
    if (!names) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < c->file_count; f++)
        if (c->files[f].size) names[(*count)++] = c->files[f];
    if (beside) names[(*count)++] = tsr_str_from(beside);
    if (w->marker) names[(*count)++] = tsr_str_from(w->marker);
    return TSR_OK;
}

/* Data files that stay must not be taken for the new ones. Only an index distinguishes them, and every generation after the
 * first has one. */
static tsr_status plan_work(void *ctx, tsr_joint_job *job, tsr_error *err)
{
    writing *w = ctx;
    if (job->generation == 0 && job->has_stray && job->is_folder && job->overwrite) job->generation = 1;
    TSR_TRY(tsr_work_new(w->checkpoint, w->options->convert, job->generation, w->arena, &w->work, err));
    return list_names(w, &job->names, &job->name_count, err);
}

static tsr_status open_work(void *ctx, tsr_output *output, tsr_error *err)
{
    writing *w = ctx;
    return tsr_work_open(w->work, output, err);
}

/* Ranks that opened different checkpoints would write different bytes into the same files. */
static tsr_status check_same_source(writing *w, tsr_error *err)
{
    tsr_digest_algorithm algorithm = (tsr_digest_algorithm)0;
    tsr_digest digest;
    char text[65];
    if (w->comm->size == 1) return TSR_OK;
    const tsr_status status = tsr_catalog_digest(tsr_checkpoint_catalog(w->checkpoint), tsr_checkpoint_host(w->checkpoint),
                                                 &algorithm, &digest, err);
    TSR_TRY(tsr_comm_agree(w->comm, status, err));
    return tsr_comm_same(w->comm, tsr_str_from(tsr_digest_text(&digest, text)), "the source as the ranks see it", err);
}

/* ---- the work ---- */

static tsr_status run_share(writing *w, tsr_error *err)
{
    TSR_TRY(tsr_work_run(w->work, w->comm->rank, w->comm->size, NULL, err));
    tsr_output *output = tsr_joint_output_files(w->joint);
    return w->comm->size > 1 ? output->sync(output, err) : TSR_OK; /* publishing syncs what this process wrote */
}

static tsr_status collect_records(writing *w, tsr_error *err)
{
    tsr_comm_blobs all = {0};
    tsr_vec own = tsr_vec_of(tsr_checkpoint_host(w->checkpoint)->allocator, 1);
    if (w->comm->size == 1) return TSR_OK;
    tsr_status status = tsr_comm_agree(w->comm, tsr_work_records(w->work, &own, err), err);
    if (status == TSR_OK)
        status = tsr_comm_gather_blobs((tsr_ranks){w->comm, own.allocator}, (tsr_str){own.items, own.count}, &all, err);
    for (uint32_t r = 0; r < all.count && status == TSR_OK && w->comm->rank == 0; r++)
        status = tsr_work_take(w->work, all.blobs[r], NULL, err);
    tsr_comm_blobs_free(&all);
    tsr_vec_free(&own);
    return status;
}

static tsr_status write_all(writing *w, tsr_joint_job *job, tsr_error *err)
{
    const bool first = w->comm->rank == 0;
    TSR_TRY(check_same_source(w, err));
    TSR_TRY(tsr_joint_output_open(job, &w->joint, err));
    TSR_TRY(tsr_comm_agree(w->comm, run_share(w, err), err));
    tsr_status status = collect_records(w, err);
    if (status == TSR_OK && first) status = tsr_work_finish(w->work, err);
    if (status == TSR_OK) status = tsr_folder_store_unchanged(tsr_checkpoint_store(w->checkpoint), err);
    TSR_TRY(tsr_comm_agree(w->comm, status, err));
    if (first) status = tsr_joint_output_publish(w->joint, tsr_work_conversion(w->work)->marker, err);
    return tsr_comm_agree(w->comm, status, err);
}

static const char *marker_of(const tsr_path_write_options *options)
{
    const bool is_indexed = options->convert->to == TSR_TO_SAFETENSORS && options->convert->max_shard_size;
    return !options->convert->plan && is_indexed ? TSR_INDEX_MARKER : tsr_marker_of(options->convert->to);
}

tsr_status tsr_path_write(tsr_checkpoint *checkpoint, const char *path, const tsr_path_write_options *options,
                          tsr_arena *arena, tsr_conversion *out, tsr_error *err)
{
    tsr_path_write_options own;
    tsr_convert_options convert;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_path_write_options, err));
    TSR_FAIL_IF(!own.convert, err, TSR_E_USAGE, "tsr_path_write_options.convert is required");
    TSR_TRY(TSR_OPTIONS_COPY(&convert, own.convert, tsr_convert_options, err));
    own.convert = &convert;
    const tsr_container to = convert.to;
    writing w = {.checkpoint = checkpoint, .options = &own, .arena = arena, .comm = own.comm, .marker = marker_of(&own)};
    tsr_joint_job job = {.host = tsr_checkpoint_host(checkpoint),
                         .path = path,
                         .line = JOB,
                         .is_folder = w.marker || convert.plan || convert.per_part || to == TSR_TO_DEEPSPEED_UNIVERSAL ||
                                      to == TSR_TO_RANKS,
                         .overwrite = own.overwrite,
                         .marker = w.marker,
                         .source = checkpoint,
                         .plan = plan_work,
                         .create = open_work,
                         .ctx = &w};
    tsr_comm *self = NULL;
    if (!job.is_folder && tsr_str_ends(tsr_str_from(path), TSR_STR("/"))) {
        convert.file_name = job.file_name = tsr_str_from(tsr_file_of(to));
        job.is_folder = true;
    }
    if (!w.comm) TSR_TRY(tsr_comm_self(tsr_checkpoint_host(checkpoint)->allocator, &self, err));
    if (self) w.comm = self;
    job.comm = w.comm;
    const tsr_status status =
        own.convert->dry_run ? tsr_comm_agree(w.comm, plan_work(&w, &job, err), err) : write_all(&w, &job, err);
    if (status == TSR_OK && out) *out = *tsr_work_conversion(w.work);
    tsr_joint_output_close(w.joint, status);
    tsr_work_free(w.work);
    if (self) self->close(self);
    return status;
}

/* ---- path tree ---- */

/* Value trees by path: loads a checkpoint as one tree, and writes a tree as torch.save would. */

static tsr_status write_file(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_output *output, uint32_t *number,
                             tsr_error *err)
{
    tsr_tree_file file = {.output = output, .name = TSR_STR("")};
    TSR_TRY(tsr_ring_new(tsr_checkpoint_host(checkpoint), 0, &file.ring, err));
    const tsr_status status = tsr_write_tree(checkpoint, root, NULL, &file, err);
    tsr_ring_free(file.ring);
    *number = file.number;
    return status;
}

static tsr_status write_and_publish(tsr_checkpoint *checkpoint, const tsr_value *root, const char *path,
                                    tsr_publication *publication, tsr_error *err)
{
    const tsr_folder_output_options options = {.tag = publication->tag,
                                               .parent = tsr_journals_parent(&publication->journals)};
    tsr_output *output;
    uint32_t number;
    TSR_TRY(tsr_publication_begin(publication, JOB, 0, NULL, 0, err));
    TSR_TRY(tsr_folder_output_open(NULL, tsr_checkpoint_host(checkpoint)->allocator, path, &options, &output, err));
    tsr_status status = write_file(checkpoint, root, output, &number, err);
    if (status == TSR_OK) status = tsr_folder_store_unchanged(tsr_checkpoint_store(checkpoint), err);
    if (status == TSR_OK) status = tsr_publication_publish(publication, output, number, false, err);
    output->close(output);
    return status;
}

tsr_status tsr_path_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const char *path, tsr_error *err)
{
    tsr_publication publication = {0};
    tsr_status status = tsr_publication_open(&tsr_allocator_libc, path, JOB, &publication, err);
    if (status == TSR_OK) status = write_and_publish(checkpoint, root, path, &publication, err);
    tsr_publication_close(&publication);
    return status;
}

/* What a tsr_path_tree keeps open. */
struct tsr_path_tree_files {
    tsr_store *store;
    tsr_trees trees;
};

tsr_status tsr_path_tree_open(const char *path, const tsr_host *host, tsr_arena *arena, tsr_path_tree *out, tsr_error *err)
{
    *out = (tsr_path_tree){.files = TSR_ARENA_NEW(arena, tsr_path_tree_files, err)};
    if (!out->files) return TSR_E_NOMEM;
    TSR_TRY(tsr_path_store_open(host, path, &out->files->store, err));
    const tsr_status status = tsr_trees_of(out->files->store, host, false, &out->files->trees, err);
    if (status != TSR_OK) {
        tsr_path_tree_close(out);
        return status;
    }
    out->checkpoint = out->files->trees.checkpoint;
    out->root = out->files->trees.roots[0];
    return TSR_OK;
}

void tsr_path_tree_close(tsr_path_tree *tree)
{
    if (tree->files) {
        tsr_trees_close(&tree->files->trees);
        if (tree->files->store) tree->files->store->close(tree->files->store);
    }
    *tree = (tsr_path_tree){0};
}
