/* See joint_output.h. */
#include "tessera/sys/joint_output.h"

#include "publish/publication.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/try.h"

/* The decisions of rank 0 that all ranks need. */
typedef struct place {
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint32_t generation;
    bool swap; /* the old directory is replaced as a whole */
} place;

struct tsr_joint_output {
    tsr_joint_job *job;
    tsr_arena *arena;
    place place;
    tsr_output *output;
    /* only on rank 0 */
    tsr_replacement replacement;
    tsr_publication publication;
};

/* Decides what is replaced: only files that the old checkpoint lists. */
static tsr_status decide_replacement(tsr_joint_output *j, tsr_error *err)
{
    const tsr_joint_job *job = j->job;
    const tsr_replacement_request request = {
        .host = job->host,
        .path = job->path,
        .is_folder = true,
        .overwrite = job->overwrite,
        .marker = job->marker,
    };
    TSR_TRY(tsr_replacement_decide(&request, j->arena, &j->replacement, err));
    return tsr_replacement_check_readers(&request, &j->replacement, err);
}

static tsr_status plan(tsr_joint_output *j, tsr_error *err)
{
    return j->job->plan ? j->job->plan(j->job->ctx, j->job, err) : TSR_OK;
}

static tsr_status choose_place(tsr_joint_output *j, tsr_error *err)
{
    tsr_joint_job *job = j->job;
    uint64_t cleared;
    /* Uses libc's allocator, so that files can be removed even if the caller's allocator has run out of memory. */
    TSR_TRY(tsr_publication_open(&tsr_allocator_libc, job->path, job->line, &j->publication, err));
    if (job->overwrite) TSR_TRY(tsr_journals_hold(&j->publication.journals, job->path, &cleared, err));
    TSR_TRY(decide_replacement(j, err));
    if (job->overwrite) TSR_TRY(tsr_folder_next_generation(NULL, job->path, &job->generation, err));
    TSR_TRY(plan(j, err));
    for (size_t i = 0; i < job->name_count; i++)
        TSR_TRY(tsr_replacement_check_name(&j->replacement, job->path, job->names[i], err));
    TSR_TRY(tsr_publication_begin(&j->publication, job->line, job->generation, job->names, job->name_count, err));
    memcpy(j->place.tag, j->publication.tag, sizeof j->place.tag);
    j->place.generation = job->generation;
    j->place.swap = j->replacement.swap;
    return TSR_OK;
}

/* Creates or opens the same files in the same order on every rank, so that their numbers are the same everywhere. */
static tsr_status open_output(tsr_joint_output *j, tsr_error *err)
{
    const tsr_joint_job *job = j->job;
    const bool first = job->comm->rank == 0;
    const tsr_folder_output_options options = {.is_folder = true,
                                               .existing = tsr_replacement_mode(&j->replacement, job->overwrite, first),
                                               .tag = j->place.tag,
                                               .begun = first ? TSR_BEGUN_REFUSED : TSR_BEGUN_JOINED,
                                               .keep = !first,
                                               .chosen = true,
                                               .generation = j->place.generation,
                                               .obsolete = j->replacement.obsolete,
                                               .obsolete_count = j->replacement.obsolete_count,
                                               .parent = tsr_journals_parent(&j->publication.journals)};
    TSR_TRY(tsr_folder_output_open(NULL, job->host->allocator, job->path, &options, &j->output, err));
    return job->create ? job->create(job->ctx, j->output, err) : TSR_OK;
}

/* Rank 0 opens the output first: it refuses an existing destination, and creates the files that the others open. */
static tsr_status open_all(tsr_joint_output *j, tsr_error *err)
{
    tsr_comm *comm = j->job->comm;
    const bool first = comm->rank == 0;
    TSR_TRY(tsr_comm_agree(comm, first ? choose_place(j, err) : TSR_OK, err));
    TSR_TRY(comm->broadcast(comm, &j->place, sizeof j->place, 0, err));
    j->job->generation = j->place.generation;
    j->replacement.swap = j->place.swap;
    TSR_TRY(tsr_comm_agree(comm, first ? open_output(j, err) : plan(j, err), err));
    return tsr_comm_agree(comm, first ? TSR_OK : open_output(j, err), err);
}

tsr_status tsr_joint_output_open(tsr_joint_job *job, tsr_joint_output **out, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(job->host->allocator, 0, err);
    tsr_joint_output *j = *out = arena ? TSR_ARENA_NEW(arena, tsr_joint_output, err) : NULL;
    if (j) *j = (tsr_joint_output){.job = job, .arena = arena};
    job->generation = 0;
    const tsr_status status = tsr_comm_agree(job->comm, j ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK) return open_all(j, err);
    *out = NULL; /* on all ranks, because closing it is collective */
    tsr_arena_free(arena);
    return status;
}

tsr_output *tsr_joint_output_files(tsr_joint_output *joint)
{
    return joint->output;
}

bool tsr_joint_output_replaces(const tsr_joint_output *joint)
{
    return joint->place.swap || joint->replacement.obsolete_count > 0;
}

tsr_status tsr_joint_output_publish(tsr_joint_output *joint, uint32_t marker, tsr_error *err)
{
    return tsr_publication_publish(&joint->publication, joint->output, marker, joint->place.swap, err);
}

void tsr_joint_output_close(tsr_joint_output *joint, tsr_status status)
{
    if (!joint) return;
    tsr_comm *comm = joint->job->comm;
    tsr_error ignored = {0};
    if (joint->output && comm->rank != 0) joint->output->close(joint->output);
    if (status != TSR_OK) tsr_comm_barrier(comm, &ignored);
    if (joint->output && comm->rank == 0) joint->output->close(joint->output);
    tsr_publication_close(&joint->publication);
    tsr_arena_free(joint->arena);
}
