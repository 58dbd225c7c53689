/* Names of files in a directory: the numbers in them, and which of them are there. */
#ifndef TSR_FORMATS_COMMON_FILE_NAMES_H
#define TSR_FORMATS_COMMON_FILE_NAMES_H

#include "formats/common/reader.h"
#include "tessera/memory.h"
#include "tessera/str.h"

#include <stdint.h>

/* The part of a path after its last slash. */
tsr_str tsr_last_path_part(tsr_str path);
/* The part before it, without the slash: the directory, or the run that a step belongs to. Empty in the root. */
tsr_str tsr_path_directory(tsr_str path);
/* Whether a text contains `part`, which is not empty. */
bool tsr_name_holds(tsr_str text, tsr_str part);
/* Whether the path has two directories or more. */
bool tsr_is_deeper(tsr_str path);

#define TSR_NO_NUMBER UINT64_MAX
/* The decimal number that [from, to) of a name consists of; TSR_NO_NUMBER if it is not a number, or has more than 18 digits. */
uint64_t tsr_number_between(tsr_str name, size_t from, size_t to);
/* The number of at most nine digits between `before` and `after`, which are all the rest of the name; otherwise TSR_NO_NUMBER. */
uint64_t tsr_number_in(tsr_str name, tsr_str before, tsr_str after);
/* Lists the files in the root that have such names, sorted by their numbers. */
tsr_status tsr_list_numbered(tsr_checkpoint *checkpoint, tsr_str before, tsr_str after, tsr_numbered_files *out,
                             tsr_error *err);
/* Sorts by numbers, and files with the same number as the store does. */
void tsr_sort_numbered(tsr_numbered_files *files);
/* Makes these files, in this order, checkpoint->files. */
tsr_status tsr_choose_files(tsr_checkpoint *checkpoint, const tsr_numbered_file *files, uint32_t count, tsr_error *err);

bool tsr_has_file(const tsr_store *store, const char *name);
/* Whether the root has a file with one of the names, which end with NULL. In a name, '*' stands for a number. */
bool tsr_has_any(const tsr_store *store, const char *const *names);

/* ---- The first of many names, formatted for a message: "'a', 'b', 'c', …". ---- */

enum { TSR_NAMES_SHOWN = 8, TSR_NAMES_BYTES = 400 };

typedef struct tsr_shown_names {
    char text[TSR_NAMES_BYTES + 8]; /* NUL-terminated */
    size_t used;
    uint64_t shown, count;
} tsr_shown_names;

/* Counts a name, and appends it if there is room. The list must be zeroed before the first call. */
void tsr_shown_names_add(tsr_shown_names *list, tsr_str name);
/* ", …" when names were left out, otherwise nothing. */
const char *tsr_shown_names_rest(const tsr_shown_names *list);

/* Looks up names in an array whose items begin with a tsr_str. Needs 4 bytes per slot, so 8 MB for a million entries.
 * Borrows the array, which must not move or change while the index exists. */

typedef struct tsr_name_index tsr_name_index;

#define TSR_NO_NAME UINT64_MAX

/* An array of items, each of which begins with its name, a tsr_str. */
typedef struct tsr_named_items {
    const void *items;
    size_t stride; /* bytes */
    uint64_t count;
} tsr_named_items;
#define TSR_NAMED_ITEMS(array, size) ((tsr_named_items){(array), sizeof *(array), (size)})

/* Indexes the items. *duplicate (may be NULL) is the first item that has the same name as an earlier one, or TSR_NO_NAME;
 * the index finds the earlier of the two. Free with tsr_name_index_free. */
tsr_status tsr_name_index_new(const tsr_allocator *allocator, tsr_named_items named, tsr_name_index **out,
                              uint64_t *duplicate, tsr_error *err);
void tsr_name_index_free(tsr_name_index *index); /* accepts NULL */
/* The number of the item with this name, or TSR_NO_NAME. A NULL index has no items. Thread-safe. */
uint64_t tsr_name_index_find(const tsr_name_index *index, tsr_str name);

/* The training step in the name of a directory or a file: "step-100", "global_step100", "checkpoint-100", "iter_0000100", "100",
 * "epoch=1-step=100.ckpt". */

typedef enum tsr_step_naming {
    TSR_STEP_NONE,
    TSR_STEP_OF_RANK, /* the number at the end is that of a rank or a model: "rank_0", "pytorch_model_fsdp_0" */
    TSR_STEP_NUMBER,  /* a number at the end of a name that does not say what it counts: "run1" */
    TSR_STEP_STATED   /* the name states that the number is a step, or consists of it */
} tsr_step_naming;

/* Parses the number at the end of a text. Returns false if there is none, or if it does not fit. */
bool tsr_number_at_end(tsr_str text, uint64_t *number);
/* The step in a single component of a path: N of "step=N" anywhere in it, otherwise of "epoch=N", otherwise the number at its end,
 * before ".ckpt". A stated step that does not fit becomes UINT64_MAX. "last-v1.ckpt" has none: its number only makes it another file. */
tsr_step_naming tsr_step_of_name(tsr_str name, uint64_t *step);
/* The name before the number that tsr_step_of_name finds, and before what separates them: "run" of "run-1". */
tsr_str tsr_step_label(tsr_str name);
/* The digits of a stated step that does not fit, without zeros in front, so that longer ones are larger; otherwise empty. */
tsr_str tsr_step_beyond(tsr_str name);
/* The step in the name of a file, without its directories, that is a checkpoint of its own: with .ckpt any number counts, with
 * other endings of checkpoints only one that the name states to be a step. */
bool tsr_step_of_file(tsr_str name, uint64_t *step);
/* Whether a file may be a checkpoint and has a number at the end of its name, whatever the number counts: steps, ranks, models. */
bool tsr_is_numbered_file(tsr_str name);
/* N of "epoch=1-step=10-vN.ckpt" or "epoch=1-vN.ckpt", which Lightning writes where the name without it was taken; 0 without it. */
uint64_t tsr_step_version(tsr_str name);

#endif
