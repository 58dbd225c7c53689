/* Journals: what is done of an unpublished output, on disk beside it, so that a later run or other processes can go on.
 *
 *   dir/NAME                          the destination
 *   dir/.NAME.tessera-TAG             the unpublished output, or NAME/.tessera-TAG-… (folder.h)
 *   dir/.NAME.tessera-TAG.2-of-8      journal of part 2 of 8: lines of text that say what work it is, an empty line, records
 *   dir/.NAME.tessera-TAG.2-by-8      the same, of the second of 8 ranks that work together
 *   dir/.NAME.tessera-TAG.publishing  the output is complete and takes its final names
 *
 * A journal is locked by the process that writes it, so that work of killed processes can be told from work in progress.
 * TAG is TSR_JOURNAL_TAG_SIZE characters that the text determines (tsr_journal_tag). */
#ifndef TSR_NATIVE_JOURNAL_H
#define TSR_NATIVE_JOURNAL_H

#include "io/sys.h"
#include "tessera/memory.h"

#define TSR_JOURNAL_TAG_SIZE 17 /* "w" and 16 hexadecimal digits */

void tsr_journal_tag(tsr_str text, char tag[TSR_JOURNAL_TAG_SIZE + 1]);

/* Where the journals of a destination lie. */
typedef struct tsr_journals {
    const tsr_sys *sys;
    const tsr_allocator *allocator;
    int folder;     /* the destination's parent */
    char name[256]; /* of the destination in it */
} tsr_journals;
/* `sys` NULL: the real calls. TSR_E_NOT_FOUND where the parent folder is not there. */
tsr_status tsr_journals_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *destination, tsr_journals *out,
                             tsr_error *err);
void tsr_journals_close(tsr_journals *journals); /* takes a zeroed one */

/* A journal, or an unpublished output, that was found. */
typedef struct tsr_leftover {
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint64_t part, parts; /* from 1; 0 of 0: an output without a journal */
    bool by_ranks;        /* of one job, which is not there any more unless it is busy; parts may be done days apart */
    bool busy;            /* a process is writing it */
    bool publishing;      /* its output is complete */
    uint64_t identity;    /* with `publishing`: of what takes the destination's name (tsr_folder_output_identity) */
    tsr_str text;         /* without the empty line */
    tsr_str records;
} tsr_leftover;
/* All of them, by tag and part, in `arena`. Journals that are cut off within their text count as without records. */
tsr_status tsr_journals_list(const tsr_journals *journals, tsr_arena *arena, tsr_leftover **out, size_t *count,
                             tsr_error *err);
/* Removes an unpublished output and its journals. What is not there is no error. */
tsr_status tsr_journals_discard(const tsr_journals *journals, const char *tag, tsr_error *err);
/* Notes that all is written and renaming begins; `durable` where it takes several renames, so that a power loss between two
 * of them can be told. */
tsr_status tsr_journals_publishing(const tsr_journals *journals, const char *tag, uint64_t identity, bool durable,
                                   tsr_error *err);
/* The destination's own number, 0 when it is not there. */
uint64_t tsr_journals_destination(const tsr_journals *journals);

typedef struct tsr_journal tsr_journal;
/* Opens or makes the journal of a part and locks it. TSR_E_EXISTS when another process has it. One whose text differs or is
 * damaged begins anew. Borrows `journals`. */
tsr_status tsr_journal_begin(const tsr_journals *journals, const char *tag, uint64_t part, uint64_t parts, bool by_ranks,
                             tsr_str text, tsr_journal **out, tsr_error *err);
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
