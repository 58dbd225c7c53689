/* Writing a value tree to a path, as torch.save would. */
#include "tessera/path.h"

#include "publish/publication.h"
#include "tessera/sys/folder.h"
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
    const tsr_folder_output_options options = {.tag = publication->tag};
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
