/* One journal: its text, its records and its lock. */
#include "publish/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "publish/destination.h"
#include "publish/text.h"
#include "tessera/sys/try.h"

#include "tessera/sys/containers.h"

#define MOST_BYTES ((uint64_t)1 << 32) /* limit of a journal's size; enough for the records of petabytes */
#define TRIES      20                  /* attempts to lock: a process that lists journals locks each of them for a moment */

struct tsr_journal {
    const tsr_journals *journals;
    int fd;
    char name[320];
    size_t text_size; /* including the empty line */
    char *bytes;      /* the contents when it was opened */
    size_t size;
    size_t records; /* how many of these bytes are records */
    uint64_t end;   /* offset of the next record in the file */
};

int tsr_journals_open_destination(const tsr_journals *journals)
{
    return tsr_sys_open(journals->sys, journals->directory, journals->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
}

bool tsr_is_own_file(const tsr_sys *sys, int fd)
{
    struct stat info;
    return sys->stat(sys, fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1 && info.st_uid == geteuid();
}

static tsr_status put_text(tsr_vec *text, tsr_str job, uint32_t generation, tsr_journal_files files, tsr_error *err)
{
    char line[64];
    const int size = snprintf(line, sizeof line, "generation %u\n", (unsigned)generation);
    TSR_TRY(tsr_text_add(text, job, err));
    TSR_TRY(tsr_text_add(text, (tsr_str){line, (size_t)size}, err));
    for (size_t i = 0; i < files.count; i++) {
        TSR_TRY(tsr_text_add(text, TSR_STR("file "), err));
        TSR_TRY(tsr_text_add(text, files.names[i], err));
        TSR_TRY(tsr_text_add(text, TSR_STR("\n"), err));
    }
    return TSR_OK;
}

tsr_status tsr_journal_text(tsr_arena *arena, tsr_str job, uint32_t generation, tsr_journal_files files, tsr_str *out,
                            tsr_error *err)
{
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = put_text(&text, job, generation, files, err);
    if (status == TSR_OK) *out = tsr_arena_str(arena, (tsr_str){text.items, text.count}, err);
    if (status == TSR_OK && !out->data) status = TSR_E_NOMEM;
    tsr_vec_free(&text);
    return status;
}

tsr_status tsr_journal_new_tag(char tag[TSR_JOURNAL_TAG_SIZE + 1], tsr_error *err)
{
    uint64_t random;
    TSR_FAIL_IF(getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random, err, TSR_E_IO,
                "cannot get random numbers for a temporary name");
    snprintf(tag, TSR_JOURNAL_TAG_SIZE + 1, "w%016" PRIx64, random);
    return TSR_OK;
}

void tsr_journal_tag(tsr_str text, char tag[TSR_JOURNAL_TAG_SIZE + 1])
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < text.size; i++) hash = (hash ^ (uint8_t)text.data[i]) * 0x100000001b3;
    snprintf(tag, TSR_JOURNAL_TAG_SIZE + 1, "w%016" PRIx64, hash);
}

static tsr_status lock(const tsr_journal *j, tsr_error *err)
{
    const tsr_sys *sys = j->journals->sys;
    for (unsigned tries = 0; sys->lock(sys, j->fd) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) return TSR_OK; /* the file system has no locks */
        if (tries == TRIES) {
            return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "another process is writing '%s' (it has locked '%s')",
                            j->journals->name, j->name);
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return TSR_OK;
}

static tsr_status load(tsr_journal *j, tsr_error *err)
{
    const tsr_sys *sys = j->journals->sys;
    struct stat info;
    if (sys->stat(sys, j->fd, &info) != 0) return tsr_sys_raise(tsr_naming(err), "read", j->name);
    if ((uint64_t)info.st_size > MOST_BYTES)
        return tsr_fail(tsr_naming(err), TSR_E_LIMIT, "the journal '%s' is too large", j->name);
    j->size = (size_t)info.st_size;
    j->bytes = tsr_alloc(j->journals->allocator, j->size, 1, err);
    if (!j->bytes) return TSR_E_NOMEM;
    return tsr_sys_read((tsr_sys_file){sys, j->fd, j->name}, 0, j->bytes, j->size, err);
}

static bool has_text(const tsr_journal *j, tsr_str text)
{
    return j->size > text.size && memcmp(j->bytes, text.data, text.size) == 0 && j->bytes[text.size] == '\n';
}

static tsr_status put_journal(const tsr_journal *j, tsr_str text, tsr_error *err)
{
    const tsr_sys *sys = j->journals->sys;
    TSR_TRY(tsr_sys_write((tsr_sys_file){sys, j->fd, j->name}, 0, text.data, text.size, err));
    TSR_TRY(tsr_sys_write((tsr_sys_file){sys, j->fd, j->name}, text.size, "\n", 1, err));
    TSR_TRY(tsr_sys_sync(sys, j->fd, j->name, err));
    /* Before the output that the journal describes is created. */
    return tsr_sys_sync(sys, j->journals->directory, j->name, err);
}

/* A journal that cannot be written, on a full disk for example, is removed: nothing was created for it yet, and the caller,
 * who gets no journal, could not remove it. */
static tsr_status write_text(const tsr_journal *j, tsr_str text, tsr_error *err)
{
    const tsr_status status = put_journal(j, text, err);
    if (status != TSR_OK) j->journals->sys->unlink(j->journals->sys, j->journals->directory, j->name, false);
    return status;
}

/* Whether the journal is empty or ends within its text. Nothing was created for it yet, so it can be written again. */
static bool is_torn(const tsr_journal *j, tsr_str text)
{
    return j->size <= text.size && memcmp(j->bytes, text.data, j->size) == 0;
}

static bool was_removed(const tsr_journal *j)
{
    struct stat info;
    const tsr_sys *sys = j->journals->sys;
    return sys->stat(sys, j->fd, &info) == 0 && info.st_nlink == 0;
}

static tsr_status open_journal(tsr_journal *j, bool *made, tsr_error *err)
{
    const tsr_journals *all = j->journals;
    *made = false;
    j->fd = tsr_sys_open(all->sys, all->directory, j->name, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (j->fd < 0 && errno == ENOENT) {
        j->fd = tsr_sys_open(all->sys, all->directory, j->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
        *made = j->fd >= 0;
    }
    if (j->fd < 0 && errno != ELOOP) return tsr_sys_raise(tsr_naming(err), "create", j->name);
    if (j->fd >= 0 && (tsr_is_own_file(all->sys, j->fd) || was_removed(j))) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "'%s' blocks the write: it is not a journal that this program wrote; remove it", j->name);
}

/* Opens the journal and locks it. Between the two, another job may take it for the journal of a killed run and remove it; a
 * new one is then created. */
static tsr_status open_locked(tsr_journal *j, bool *made, tsr_error *err)
{
    for (unsigned tries = 0; tries < TRIES; tries++) {
        TSR_TRY(open_journal(j, made, err));
        TSR_TRY(lock(j, err));
        if (!was_removed(j)) return TSR_OK;
        j->journals->sys->close(j->journals->sys, j->fd);
        j->fd = -1;
    }
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "another process is writing '%s': it keeps removing '%s'",
                    j->journals->name, j->name);
}

static tsr_status begin(tsr_journal *j, tsr_str text, tsr_error *err)
{
    bool made;
    TSR_TRY(open_locked(j, &made, err));
    TSR_TRY(load(j, err));
    j->text_size = text.size + 1;
    if (has_text(j, text)) j->records = j->size - j->text_size;
    else if (made || is_torn(j, text)) TSR_TRY(write_text(j, text, err));
    else
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "'%s' blocks the write: it is the journal of another job; remove it",
                        j->name);
    j->end = j->text_size + j->records;
    return TSR_OK;
}

tsr_status tsr_journal_begin(const tsr_journals *journals, const char *tag, tsr_journal_share share, tsr_str text,
                             tsr_journal **out, tsr_error *err)
{
    tsr_journal *j = tsr_alloc(journals->allocator, 1, sizeof *j, err);
    if (!j) return TSR_E_NOMEM;
    char stem[TSR_STEM_SIZE + 1];
    *j = (tsr_journal){.journals = journals, .fd = -1};
    snprintf(j->name, sizeof j->name, ".%s.tessera-%s.%" PRIu64 "-%s-%" PRIu64, tsr_stem_of(journals->name, stem), tag,
             share.share, share.by_ranks ? "by" : "of", share.shares);
    tsr_status status = begin(j, text, err);
    if (status == TSR_OK) *out = j;
    else tsr_journal_close(j);
    return status;
}

tsr_str tsr_journal_records(const tsr_journal *j)
{
    return (tsr_str){j->records ? j->bytes + j->text_size : NULL, j->records};
}

tsr_status tsr_journal_cut(tsr_journal *j, size_t size, tsr_error *err)
{
    const tsr_sys *sys = j->journals->sys;
    assert(j->fd >= 0 && j->end == j->text_size + j->records); /* nothing was appended yet */
    if (size >= j->records) return TSR_OK;
    j->records = size;
    j->end = j->text_size + size;
    return sys->truncate(sys, j->fd, j->end) == 0 ? TSR_OK : tsr_sys_raise(tsr_naming(err), "shorten", j->name);
}

tsr_status tsr_journal_append(tsr_journal *j, tsr_str records, tsr_error *err)
{
    const tsr_sys *sys = j->journals->sys;
    assert(j->fd >= 0 && j->end >= j->text_size);
    TSR_TRY(tsr_sys_write((tsr_sys_file){sys, j->fd, j->name}, j->end, records.data, records.size, err));
    j->end += records.size;
    return tsr_sys_sync(sys, j->fd, j->name, err);
}

bool tsr_journal_is_empty(const tsr_journal *j)
{
    return j->end == j->text_size;
}

const char *tsr_journal_name(const tsr_journal *j)
{
    return j->name;
}

void tsr_journal_close(tsr_journal *j)
{
    if (!j) return;
    if (j->fd >= 0) j->journals->sys->close(j->journals->sys, j->fd);
    tsr_free(j->journals->allocator, j->bytes, j->size, 1);
    tsr_free(j->journals->allocator, j, 1, sizeof *j);
}
