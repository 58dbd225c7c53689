/* Writes a checkpoint to a path, by one process or by ranks that share the work:
 *
 *   rank 0 decides what is replaced and chooses temporary names ──▶ all ranks make the same plan of the work
 *   rank 0 creates the files, the others open them ──▶ each rank does its share of the units and syncs
 *   records of what is done ──▶ rank 0 writes headers, index or .metadata, and publishes
 *
 * The command line does the same with journals, so that an interrupted run can be resumed
 * (native/cli/writing/writing_work.c). */
#include "publish/publication.h"
#include "tessera/path.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/document.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/options.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/trees.h"
#include "tessera/sys/try.h"
#include "tessera/sys/work.h"
#include "tessera/sys/write_tree.h"

#define JOB TSR_STR("a checkpoint that a program writes\n")

/* The decisions of rank 0 that all ranks need. */
typedef struct place {
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint32_t generation;
    bool swap;
} place;

typedef struct writing {
    tsr_checkpoint *checkpoint;
    const char *path;
    const tsr_path_write_options *options;
    tsr_comm *comm;
    tsr_arena *arena;
    const char *marker; /* NULL: the format has none */
    tsr_str file_name;  /* of a single file, if the path is a directory all the same */
    bool is_directory;
    place place;
    tsr_work *work;
    tsr_output *output;
    /* only on rank 0 */
    tsr_replacement replacement;
    tsr_publication publication;
} writing;

/* ---- the place ---- */

static tsr_status decide_replacement(writing *w, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_of(&tsr_allocator_libc);
    const tsr_replacement_request request = {.host = tsr_checkpoint_host(w->checkpoint),
                                             .path = w->path,
                                             .is_folder = w->is_directory,
                                             .overwrite = w->options->overwrite,
                                             .marker = w->marker,
                                             .file_name = w->file_name,
                                             .inputs = &inputs};
    tsr_status status = TSR_OK;
    if (w->options->overwrite) status = tsr_inputs_add(&inputs, tsr_checkpoint_store(w->checkpoint), w->checkpoint, err);
    if (status == TSR_OK) status = tsr_replacement_decide(&request, w->arena, &w->replacement, err);
    if (status == TSR_OK) status = tsr_replacement_check_readers(&request, &w->replacement, err);
    tsr_inputs_free(&inputs);
    return status;
}

/* Data files that stay must not be taken for the new ones. Only an index distinguishes them, and every generation after the
 * first has one. */
static tsr_status choose_generation(writing *w, tsr_error *err)
{
    if (!w->is_directory || !w->options->overwrite) return TSR_OK;
    TSR_TRY(tsr_folder_next_generation(NULL, w->path, &w->place.generation, err));
    if (w->place.generation == 0 && w->replacement.has_stray) w->place.generation = 1;
    return TSR_OK;
}

static tsr_status plan_work(writing *w, tsr_error *err)
{
    return tsr_work_new(w->checkpoint, w->options->convert, w->place.generation, w->arena, &w->work, err);
}

/* Lists the names that will be created in a directory. They go into the journal, which shows that these files belong to this
 * job. */
static tsr_status list_names(writing *w, tsr_str **names, size_t *count, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(w->work);
    *count = 0;
    const char *beside = tsr_beside_marker(w->marker);
    *names = tsr_arena_array(w->arena, (size_t)c->file_count + 2, sizeof **names, err);
    if (!*names) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < c->file_count; f++)
        if (c->files[f].size) (*names)[(*count)++] = c->files[f];
    if (beside) (*names)[(*count)++] = tsr_str_from(beside);
    if (w->marker) (*names)[(*count)++] = tsr_str_from(w->marker);
    for (size_t i = 0; i < *count && w->is_directory; i++)
        TSR_TRY(tsr_replacement_check_name(&w->replacement, w->path, (*names)[i], err));
    return TSR_OK;
}

static tsr_status choose_place(writing *w, tsr_error *err)
{
    tsr_str *names;
    size_t count;
    TSR_TRY(tsr_publication_open(&tsr_allocator_libc, w->path, JOB, &w->publication, err));
    if (w->options->overwrite) TSR_TRY(tsr_journals_hold(&w->publication.journals, err));
    TSR_TRY(decide_replacement(w, err));
    TSR_TRY(choose_generation(w, err));
    TSR_TRY(plan_work(w, err));
    TSR_TRY(list_names(w, &names, &count, err));
    TSR_TRY(tsr_publication_begin(&w->publication, JOB, w->place.generation, names, count, err));
    memcpy(w->place.tag, w->publication.tag, sizeof w->place.tag);
    w->place.swap = w->replacement.swap;
    return TSR_OK;
}

/* ---- the output ---- */

static tsr_status open_output(writing *w, tsr_error *err)
{
    const bool first = w->comm->rank == 0;
    const tsr_folder_output_options options = {.is_folder = w->is_directory,
                                               .overwrite = w->options->overwrite,
                                               .absent = w->is_directory && w->options->overwrite && first &&
                                                         !w->replacement.exists,
                                               .tag = w->place.tag,
                                               .join = !first,
                                               .keep = !first,
                                               .chosen = true,
                                               .generation = w->place.generation,
                                               .holes = tsr_folder_store_has_holes(tsr_checkpoint_store(w->checkpoint)),
                                               .swap = w->place.swap,
                                               .obsolete = w->replacement.obsolete,
                                               .obsolete_count = w->replacement.obsolete_count,
                                               .parent = tsr_journals_parent(&w->publication.journals)};
    const tsr_allocator *allocator = tsr_checkpoint_host(w->checkpoint)->allocator;
    TSR_TRY(tsr_folder_output_open(NULL, allocator, w->path, &options, &w->output, err));
    return tsr_work_open(w->work, w->output, err);
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

/* Rank 0 opens the output first: it refuses an existing destination, and creates the files that the others open. */
static tsr_status open_all(writing *w, tsr_error *err)
{
    const bool first = w->comm->rank == 0;
    TSR_TRY(check_same_source(w, err));
    TSR_TRY(tsr_comm_agree(w->comm, first ? choose_place(w, err) : TSR_OK, err));
    TSR_TRY(w->comm->broadcast(w->comm, &w->place, sizeof w->place, 0, err));
    TSR_TRY(tsr_comm_agree(w->comm, first ? open_output(w, err) : plan_work(w, err), err));
    return tsr_comm_agree(w->comm, first ? TSR_OK : open_output(w, err), err);
}

/* ---- the work ---- */

static tsr_status run_share(writing *w, tsr_error *err)
{
    TSR_TRY(tsr_work_run(w->work, w->comm->rank, w->comm->size, NULL, err));
    return w->comm->size > 1 ? w->output->sync(w->output, err) : TSR_OK; /* publishing syncs what this process wrote */
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

static tsr_status publish(writing *w, tsr_error *err)
{
    return tsr_publication_publish(&w->publication, w->output, tsr_work_conversion(w->work)->marker, w->place.swap, err);
}

static tsr_status write_all(writing *w, tsr_error *err)
{
    const bool first = w->comm->rank == 0;
    TSR_TRY(open_all(w, err));
    TSR_TRY(tsr_comm_agree(w->comm, run_share(w, err), err));
    tsr_status status = collect_records(w, err);
    if (status == TSR_OK && first) status = tsr_work_finish(w->work, err);
    if (status == TSR_OK) status = tsr_folder_store_unchanged(tsr_checkpoint_store(w->checkpoint), err);
    TSR_TRY(tsr_comm_agree(w->comm, status, err));
    return tsr_comm_agree(w->comm, first ? publish(w, err) : TSR_OK, err);
}

/* Rank 0 removes what was not published, after the other ranks have closed it. */
static void close_all(writing *w, tsr_status status)
{
    tsr_error ignored = {0};
    if (w->output && w->comm->rank != 0) w->output->close(w->output);
    if (status != TSR_OK) tsr_comm_barrier(w->comm, &ignored);
    if (w->output && w->comm->rank == 0) w->output->close(w->output);
    tsr_publication_close(&w->publication);
    tsr_work_free(w->work);
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
    writing w = {.checkpoint = checkpoint, .path = path, .options = &own, .arena = arena, .comm = own.comm};
    tsr_comm *self = NULL;
    const tsr_container to = convert.to;
    w.marker = marker_of(&own);
    w.is_directory = w.marker || convert.plan || convert.per_part || to == TSR_TO_DEEPSPEED_UNIVERSAL || to == TSR_TO_RANKS;
    if (!w.is_directory && tsr_str_ends(tsr_str_from(path), TSR_STR("/"))) {
        convert.file_name = w.file_name = tsr_str_from(tsr_file_of(to));
        w.is_directory = true;
    }
    if (!w.comm) TSR_TRY(tsr_comm_self(tsr_checkpoint_host(checkpoint)->allocator, &self, err));
    if (self) w.comm = self;
    const tsr_status status = own.convert->dry_run ? tsr_comm_agree(w.comm, plan_work(&w, err), err) : write_all(&w, err);
    if (status == TSR_OK && out) *out = *tsr_work_conversion(w.work);
    close_all(&w, status);
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
