/* Journals: what is done of an unpublished output, on disk beside it, so that a later run or other processes can go on, and so
 * that what a killed run left can be told from files of others: nothing is removed that no journal lists.
 *
 *   dir/NAME                          the destination; in the names below it stands for its stem (stem.h)
 *   dir/.NAME.tessera-TAG             the unpublished output, or NAME/.tessera-TAG-N (folder.h)
 *   dir/.NAME.tessera-TAG.2-of-8      journal of part 2 of 8: lines of text that say what work it is, an empty line, records
 *   dir/.NAME.tessera-TAG.2-by-8      the same, of the second of 8 ranks that work together
 *   dir/.NAME.tessera-TAG.publishing  the record of a publication that has begun (record.h)
 *
 * A journal is locked by the process that writes it, so that work of killed processes can be told from work in progress. It is
 * made before its output. TAG is "w" and 16 hexadecimal digits: random, or for the parts of a plan, which must find each other,
 * what the text determines. Files are created with O_EXCL and opened with O_NOFOLLOW; only regular files of this user with
 * one name count as journals. */
#ifndef TSR_NATIVE_JOURNAL_H
#define TSR_NATIVE_JOURNAL_H

#include <limits.h>

#include "io/sys.h"
#include "tessera/memory.h"

#define TSR_JOURNAL_TAG_SIZE 17
#define TSR_JOURNAL_MAGIC    "tessera.journal/3\n" /* how every text begins */

/* The tag that a text determines; and one that nobody can foresee. */
void tsr_journal_tag(tsr_str text, char tag[TSR_JOURNAL_TAG_SIZE + 1]);
tsr_status tsr_journal_new_tag(char tag[TSR_JOURNAL_TAG_SIZE + 1], tsr_error *err);

/* The files that a job creates in its output. */
typedef struct tsr_journal_files {
    const tsr_str *names;
    size_t count;
} tsr_journal_files;

/* The text of a journal: the lines that describe the job, then the generation of its output and its files. */
tsr_status tsr_journal_text(tsr_arena *arena, tsr_str job, uint32_t generation, tsr_journal_files files, tsr_str *out,
                            tsr_error *err);
/* Whether a journal's text is of a job; *generation is then its output's. */
bool tsr_journal_is_of(tsr_str text, tsr_str job, uint32_t *generation);

/* Whether an open file is a regular one of this user that has no other name. */
bool tsr_is_own_file(const tsr_sys *sys, int fd);

/* Where the journals of a destination lie. */
typedef struct tsr_journals {
    const tsr_sys *sys;
    const tsr_allocator *allocator;
    int folder;              /* the destination's parent */
    char name[NAME_MAX + 1]; /* of the destination in it */
    int held;                /* the destination, locked by tsr_journals_hold; or -1 */
} tsr_journals;
/* `sys` NULL: the real calls. TSR_E_NOT_FOUND where the parent folder is not there. */
tsr_status tsr_journals_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *destination, tsr_journals *out,
                             tsr_error *err);
void tsr_journals_close(tsr_journals *journals); /* takes a zeroed one */
/* Keeps other jobs from replacing an existing directory until the journals are closed. What is decided about its files from
 * then on still holds when they are replaced. TSR_E_EXISTS where another process has it for longer than a second. */
tsr_status tsr_journals_hold(tsr_journals *journals, tsr_error *err);

/* A journal, a record of a publication, or an unpublished output, that was found. */
typedef struct tsr_leftover {
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint64_t part, parts; /* of a journal, from 1; else 0 of 0 */
    bool by_ranks;        /* of one job, which is not there any more unless it is busy; parts may be done days apart */
    bool busy;            /* a process is writing it */
    bool publishing;      /* a record: its output is complete. `text` is empty where a power loss took it */
    tsr_str text;         /* without the empty line; empty: cut off before its output was begun */
    tsr_str records;
} tsr_leftover;
/* All of them, by tag and part, in `arena`. What is not ours (links, files of others, other contents) is passed over. */
tsr_status tsr_journals_list(const tsr_journals *journals, tsr_arena *arena, tsr_leftover **out, size_t *count,
                             tsr_error *err);
/* Removes an unpublished output, as far as journals of its tag list it, and these; ends a publication that the record of the
 * tag shows to be complete, and undoes one that is not. What is not there, or not listed, is no error and stays. */
tsr_status tsr_journals_discard(const tsr_journals *journals, const char *tag, tsr_error *err);
/* Keeps a record (record.h) of a publication that begins; `durable` where it takes several renames, so that a power loss
 * between two of them can be told. */
tsr_status tsr_journals_publishing(const tsr_journals *journals, const char *tag, tsr_str record, bool durable, tsr_error *err);

typedef struct tsr_journal tsr_journal;
/* Which share of a job a process does: part 1 to `parts`; of ranks that share it, or of processes that know nothing of others. */
typedef struct tsr_journal_share {
    uint64_t part, parts;
    bool by_ranks;
} tsr_journal_share;

/* Opens or makes the journal of a share and locks it; durable when it returns. TSR_E_EXISTS when another process has it, and
 * when something else has its name. Borrows `journals`. */
tsr_status tsr_journal_begin(const tsr_journals *journals, const char *tag, tsr_journal_share share, tsr_str text,
                             tsr_journal **out, tsr_error *err);
/* The records in it when it was opened. Borrowed until the journal is closed. */
tsr_str tsr_journal_records(const tsr_journal *journal);
/* Only the first `size` bytes of them count. */
tsr_status tsr_journal_cut(tsr_journal *journal, size_t size, tsr_error *err);
/* Durable when it returns. */
tsr_status tsr_journal_append(tsr_journal *journal, tsr_str records, tsr_error *err);
bool tsr_journal_is_empty(const tsr_journal *journal);
const char *tsr_journal_name(const tsr_journal *journal);
void tsr_journal_close(tsr_journal *journal); /* takes NULL */

/* Removes the journals of a tag, but for that named `except` (or NULL), and leaves their output alone. */
tsr_status tsr_journals_remove(const tsr_journals *journals, const char *tag, const char *except, tsr_error *err);

#endif
