/* Which file a name leads to. File systems give the inode number of a removed file to the next one, so that a number alone does
 * not tell a file of ours from one that somebody else has put in its place. */
#ifndef TSR_NATIVE_IDENTITY_H
#define TSR_NATIVE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* A file as it was; renaming it and giving it other names or permissions changes none of this. */
typedef struct tsr_identity {
    uint64_t device, inode;
    uint64_t size, seconds, nanoseconds; /* when it was last changed; of a directory, which changes with its files: 0 */
} tsr_identity;

static inline tsr_identity tsr_identity_of(const struct stat *info)
{
    tsr_identity id = {.device = (uint64_t)info->st_dev, .inode = (uint64_t)info->st_ino};
    if (S_ISDIR(info->st_mode)) return id;
    id.size = (uint64_t)info->st_size;
    id.seconds = (uint64_t)info->st_mtim.tv_sec;
    id.nanoseconds = (uint64_t)info->st_mtim.tv_nsec;
    return id;
}

/* Whether a file is the one that `then` was taken of. Devices are compared only where their numbers are still those of then:
 * after a restart a file system may have another one. */
static inline bool tsr_identity_is(const tsr_identity *then, const struct stat *info, bool compare_device)
{
    const tsr_identity now = tsr_identity_of(info);
    return now.inode == then->inode && now.size == then->size && now.seconds == then->seconds &&
           now.nanoseconds == then->nanoseconds && (!compare_device || now.device == then->device);
}

/* Whether two names lead to one file, both looked at just now. */
static inline bool tsr_is_one_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

#endif
