/* Value trees by path: loads a checkpoint as one tree, and writes a tree as torch.save would. */
#include "tessera/path.h"

#include "publish/publication.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/trees.h"
#include "tessera/sys/try.h"
#include "tessera/sys/write_tree.h"

#define JOB TSR_STR("a value tree that a program writes\n")

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
