/* The identity of a file, independent of its name. File systems reuse the inode number of a removed file for the next one,
 * so the number alone cannot distinguish our file from one that somebody else put in its place. */
#ifndef TSR_NATIVE_IDENTITY_H
#define TSR_NATIVE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* The identity of a file at one time. Renaming the file, linking it or changing its permissions does not affect it. */
typedef struct tsr_identity {
    uint64_t device, inode;
    /* Size and modification time; 0 for a directory, whose time changes with its files. */
    uint64_t size, seconds, nanoseconds;
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

/* Whether a file is the one of which `then` was taken. Device numbers must be compared only if they have not changed since:
 * after a restart, a file system may have another one. */
static inline bool tsr_identity_is(const tsr_identity *then, const struct stat *info, bool compare_device)
{
    const tsr_identity now = tsr_identity_of(info);
    return now.inode == then->inode && now.size == then->size && now.seconds == then->seconds &&
           now.nanoseconds == then->nanoseconds && (!compare_device || now.device == then->device);
}

/* Whether two names lead to the same file. Both must have been looked up just now. */
static inline bool tsr_is_one_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

#endif
