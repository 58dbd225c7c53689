/* Journals record on disk, next to an unpublished output, which shares of the job are done. Later runs or other processes can then
 * continue the work. Journals also distinguish what killed runs left from files of others: only what a journal lists is
 * removed.
 *
 *   dir/NAME                          the destination; the names below contain its stem (destination.h)
 *   dir/.NAME.tessera-TAG             the unpublished output, or NAME/.tessera-TAG-N (directory.h)
 *   dir/.NAME.tessera-TAG.2-of-8      journal of share 2 of 8: lines of text that describe the work, an empty line, records
 *   dir/.NAME.tessera-TAG.2-by-8      the same, of the second of 8 ranks that work together
 *   dir/.NAME.tessera-TAG.publishing  the record of a publication that has begun (record.h)
 *
 * The process that writes a journal locks it, which distinguishes work in progress from that of killed processes. A
 * journal is created before its output. TAG is "w" and 16 hexadecimal digits. They are random, except for the shares of a
 * plan: these must find each other, so their tag is a hash of the text. Files are created with O_EXCL and opened with
 * O_NOFOLLOW. Only regular files that belong to this user and have one name count as journals. */
#ifndef TSR_NATIVE_JOURNAL_H
#define TSR_NATIVE_JOURNAL_H

#include <limits.h>

#include "io/sys.h"
#include "publish/destination.h"
#include "tessera/memory.h"

#define TSR_JOURNAL_TAG_SIZE 17
#define TSR_JOURNAL_MAGIC    "tessera.journal/3\n" /* the first line of every text */

/* The first derives a tag from a text; the second makes a random one that nobody can predict. */
void tsr_journal_tag(tsr_str text, char tag[TSR_JOURNAL_TAG_SIZE + 1]);
tsr_status tsr_journal_new_tag(char tag[TSR_JOURNAL_TAG_SIZE + 1], tsr_error *err);

/* The files that a job creates in its output. */
typedef struct tsr_journal_files {
    const tsr_str *names;
    size_t count;
} tsr_journal_files;

/* Makes the text of a journal: the lines that describe the job, the generation of its output, and its files. */
tsr_status tsr_journal_text(tsr_arena *arena, tsr_str job, uint32_t generation, tsr_journal_files files, tsr_str *out,
                            tsr_error *err);
/* Whether the text of a journal belongs to a job. Sets *generation to that of its output. */
bool tsr_journal_is_of(tsr_str text, tsr_str job, uint32_t *generation);

/* Whether an open file is a regular file of this user that has no other name. */
bool tsr_is_own_file(const tsr_sys *sys, int fd);

/* The directory in which the journals of a destination are. */
typedef struct tsr_journals {
    const tsr_sys *sys;
    const tsr_allocator *allocator;
    int directory;           /* descriptor of the destination's parent */
    char name[NAME_MAX + 1]; /* name of the destination in it */
    int held;                /* descriptor of the destination, locked by tsr_journals_hold; or -1 */
} tsr_journals;
/* `sys` NULL: the real calls. TSR_E_NOT_FOUND if the parent directory does not exist, TSR_E_IO if this user cannot write to it. */
tsr_status tsr_journals_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *destination, tsr_journals *out,
                             tsr_error *err);
tsr_status tsr_journals_open_at(const tsr_sys *sys, const tsr_allocator *allocator, const tsr_destination *place,
                                tsr_journals *out, tsr_error *err);
void tsr_journals_close(tsr_journals *journals); /* accepts a zeroed one */
/* Opens the destination, if it is a directory and not a symbolic link. Returns a descriptor, or -1 with errno. */
int tsr_journals_open_destination(const tsr_journals *journals);
/* For tsr_directory_output_options.parent: NULL if they were not opened, as on ranks that keep no journal. */
static inline const int *tsr_journals_parent(const tsr_journals *journals)
{
    return journals->sys ? &journals->directory : NULL;
}
/* saves.c: keeps other jobs from replacing or writing an existing directory until the journals are closed, so that decisions about its
 * files remain valid until they are replaced. Then removes what killed saves in place (saves.h) left in it; *cleared is their number.
 * `path` is that of the directory. TSR_E_EXISTS if another process holds it for more than a second. */
tsr_status tsr_journals_hold(tsr_journals *journals, const char *path, uint64_t *cleared, tsr_error *err);

/* A journal, a record of a publication or an unpublished output that was found. */
typedef struct tsr_leftover {
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint64_t share, shares; /* of a journal, from 1; otherwise 0 of 0 */
    /* Of ranks of one job, which has ended unless this is busy; shares of a plan may be written days apart. */
    bool by_ranks;
    bool busy; /* a process is writing it */
    /* The record of a publication, whose output is complete; `text` is empty if it was lost in a power failure. */
    bool publishing;
    tsr_str text; /* without the empty line; empty: it was cut off before its output was begun */
    tsr_str records;
} tsr_leftover;
/* Lists all of them by tag and share, in `arena`. Ignores links, files of other users and other contents. */
tsr_status tsr_journals_list(const tsr_journals *journals, tsr_arena *arena, tsr_leftover **out, size_t *count,
                             tsr_error *err);
/* What was found under one tag. */
typedef struct tsr_left_job {
    size_t size;             /* how many leftovers */
    bool is_busy;            /* a process is writing one of them */
    bool has_journal;        /* or a record; without one, nothing shows whose they are */
    uint64_t shares;         /* the number of shares of a plan, of which more may be written at any time; 0: not of a plan */
    const tsr_leftover *run; /* the journal of a run, of one process or of ranks; or NULL */
} tsr_left_job;
/* Sums up the leftovers that have the tag of the first one. They must be in the order of tsr_journals_list. */
tsr_left_job tsr_journals_group(const tsr_leftover *found, size_t count);
/* Removes an unpublished output, as far as the journals of its tag list it, and these journals. If the tag has the record of
 * a publication, completes the publication if its switch was done, and undoes it otherwise. Files that are missing are not
 * an error; files that are not listed stay. */
tsr_status tsr_journals_discard(const tsr_journals *journals, const char *tag, tsr_error *err);
/* Writes the record (record.h) of a publication that begins. It must be `durable` if the publication takes several renames,
 * to be there after a power loss between two of them. */
tsr_status tsr_journals_publishing(const tsr_journals *journals, const char *tag, tsr_str record, bool durable,
                                   tsr_error *err);
/* The same for what publishing `output` is about to do, so that an interrupted publication can be completed or undone. `marker` and
 * `companion` are as for tsr_directory_output_record. */
tsr_status tsr_journals_publishing_output(const tsr_journals *journals, const char *tag, tsr_output *output, uint32_t marker,
                                          tsr_output *companion, bool durable, tsr_error *err);

typedef struct tsr_journal tsr_journal;
/* The share of a job that one process does: share 1 to `shares`, of ranks that work together or of independent processes. */
typedef struct tsr_journal_share {
    uint64_t share, shares;
    bool by_ranks;
} tsr_journal_share;

/* Opens or creates the journal of a share and locks it; it is durable on return. TSR_E_EXISTS if another process has locked
 * it, or if a file that is not this journal has its name. Borrows `journals`. */
tsr_status tsr_journal_begin(const tsr_journals *journals, const char *tag, tsr_journal_share share, tsr_str text,
                             tsr_journal **out, tsr_error *err);
/* The records that it had when it was opened. Borrowed until the journal is closed. */
tsr_str tsr_journal_records(const tsr_journal *journal);
/* Cuts these records off after `size` bytes. Must precede the first append. */
tsr_status tsr_journal_cut(tsr_journal *journal, size_t size, tsr_error *err);
/* Appends records. They are durable on return. */
tsr_status tsr_journal_append(tsr_journal *journal, tsr_str records, tsr_error *err);
bool tsr_journal_is_empty(const tsr_journal *journal);
const char *tsr_journal_name(const tsr_journal *journal);
void tsr_journal_close(tsr_journal *journal); /* accepts NULL */

/* Removes the journals of a tag, except the one named `except` (or NULL). Leaves their output alone. */
tsr_status tsr_journals_remove(const tsr_journals *journals, const char *tag, const char *except, tsr_error *err);

#endif
