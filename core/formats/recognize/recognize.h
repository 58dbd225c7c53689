/* Recognizes the format of a store by content. Names only matter when several files must be told apart, and in messages. */
#ifndef TSR_FORMATS_RECOGNIZE_RECOGNIZE_H
#define TSR_FORMATS_RECOGNIZE_RECOGNIZE_H

#include "formats/common/reader.h"
#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/latest.h"

/* ---- format_table.c: every format, in order of precedence ---- */

/* Kinds of files that hold tensors. */
enum { TSR_FILE_KINDS = 2 };
extern const tsr_file_kind *const tsr_file_kinds[]; /* TSR_FILE_KINDS, then NULL */

/* Formats whose checkpoints are directories. */
extern const tsr_directory *const tsr_directories[]; /* ends with NULL */
/* Whether the root has the marker of a row. */
bool tsr_is_marked(const tsr_store *store);

/* A library that could load one of several files of a directory, and the names of a model in the order in which it tries them. */
enum { TSR_MODEL_NAMES = 4 };
typedef struct tsr_library {
    const char *name, *models[TSR_MODEL_NAMES];
    const char *ignored; /* what names of files begin with that it does not load, or NULL */
} tsr_library;
extern const tsr_library tsr_libraries[]; /* ends with a NULL name */

/* ---- content.c: what files are, and what other programs write ---- */

/* The content of a file, judged by its first bytes. */
typedef struct tsr_content {
    const tsr_file_kind *kind;
    const tsr_reader *reader; /* for the file alone; both NULL if it holds no tensors that can be read */
    bool document;            /* JSON */
    bool unknown;             /* none of these */
    const char *foreign;      /* another program's file, which cannot be read: "an HDF5 file, …"; or NULL */
} tsr_content;
tsr_status tsr_content_of(tsr_store *store, uint32_t file, tsr_content *content, tsr_error *err);
/* Searches an unknown file for signatures farther in, and sets *foreign, which is NULL before, if there is one. These are up to
 * twelve reads per file, so they are only made for a file that is about to be refused. */
tsr_status tsr_content_search(tsr_store *store, uint32_t file, const char **foreign, tsr_error *err);
/* The kind whose files have such names, or NULL. */
const tsr_file_kind *tsr_kind_named(tsr_str name);

/* Decides by the names of files, once nothing in the directory could be opened. NULL if no form is recognized. */
const char *tsr_foreign_directory(const tsr_store *store);
/* What a file in the root marks the directory as, whatever else is in it; *what is NULL if there is no such file. Such a
 * directory may hold files that could be opened, but they are not the model. Fails only if reading fails. */
tsr_status tsr_foreign_form(tsr_checkpoint *checkpoint, const char **what, tsr_error *err);

/* ---- recognize.c ---- */

/* Chooses the reader and sets checkpoint->files. If nothing is recognized, fails with TSR_E_UNSUPPORTED and the reason: for
 * a container of another program, its name; for a directory with several checkpoints, their list. */
tsr_status tsr_recognize(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);
/* Tries the rows of tsr_directories only. *reader stays NULL if the directory is none of them. Fails only if reading fails. */
tsr_status tsr_recognize_directory(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* The checkpoints below a directory that is not one itself, up to three levels down: */

enum { TSR_BELOW_BYTES = 520, TSR_BELOW_LEVELS = 3 };

typedef struct tsr_below {
    char text[TSR_BELOW_BYTES]; /* "outputs/step-1 (dcp), outputs/step-2 (dcp)": as many as fit */
    size_t used;
    unsigned shown, count;
    bool cut;    /* not everything was examined */
    bool deeper; /* there are directories below the levels that were examined */
    /* Selects the directories to examine by their paths; NULL selects all. */
    bool (*wanted)(const void *ctx, tsr_str path);
    const void *wanted_ctx;
    tsr_str first;  /* path in the store of the first one that was added */
    tsr_vec *paths; /* of tsr_str: gets the paths of all that are added; NULL: they are not needed */
} tsr_below;

/* Whether the name of a file is typical of checkpoints. Directories without such a file are not examined. */
bool tsr_is_checkpoint_name(tsr_str path);
/* Adds every directory below the root that is recognized as a checkpoint, or that contains files which are one, with its format.
 * Directories inside a checkpoint are not added. May make the store list deeper levels. Fails if reading fails, or with
 * TSR_E_NOMEM. */
tsr_status tsr_list_below(tsr_checkpoint *checkpoint, tsr_below *below, tsr_error *err);
/* The part of the error message for `deeper`; "" if there are no such directories. */
const char *tsr_below_deeper(const tsr_below *below);
/* ", …" if some were counted but not shown. */
const char *tsr_below_rest(const tsr_below *below);

/* ---- own_files.c ---- */

/* A kind of file that a framework writes in every step, however many ranks there are. Often no other file says that it exists: of
 * a pipeline's layers that are tied or frozen, of a model, an optimizer or a scheduler of accelerate, of the state of a trainer. */
typedef struct tsr_every_step {
    const char *pattern;
    const char *stem; /* what is in the names of files that take its place where the framework's settings change */
    const char *with; /* the file next to which it is always written; NULL: any */
} tsr_every_step;
/* The kind of a file by its name in the step; NULL if it is none of these. */
const tsr_every_step *tsr_in_every_step(tsr_str name);

/* ---- latest.c ---- */

/* tsr_latest_find; `opens` opens the checkpoints that it looks at. */
tsr_status tsr_latest_search(tsr_store *store, const tsr_host *host, tsr_open_fn *opens, const tsr_latest_options *options,
                             tsr_arena *arena, tsr_latest *out, tsr_error *err);
/* The same for tsr_run_list. */
tsr_status tsr_run_search(tsr_store *store, const tsr_host *host, tsr_open_fn *opens, const tsr_latest_options *options,
                          tsr_arena *arena, tsr_run_checkpoints *out, tsr_error *err);

/* Lists what may be the checkpoints of a training run, by the names of its directories and files only. */

/* A directory or a file with a step in its name. */
typedef struct tsr_run_step {
    tsr_str path; /* borrowed from the store */
    uint64_t step;
    tsr_str beyond;                  /* the digits of a step that is larger than UINT64_MAX; otherwise empty */
    uint64_t version;                /* of Lightning: a later file of the same step has a higher one */
    uint32_t file;                   /* TSR_NO_FILE for a directory */
    bool holds_checkpoint;           /* a file's name is typical of checkpoints */
    bool is_last;                    /* Lightning's last.ckpt, whose step is not in its name */
    const tsr_store_gap *empty;      /* the directory shows no files; NULL: it does */
    const tsr_store_gap *unreadable; /* the directory, or something in it, that could not be looked at; or NULL */
} tsr_run_step;

/* Whether a directory, by its path, is part of another checkpoint. */
typedef bool tsr_is_owned_fn(const void *ctx, tsr_str path);

/* Appends the steps of a store whose levels were listed, sorted: the newest first. Directories below a step are not steps of their
 * own, except that "epoch_1/step_100" is step 100. Numbers that may count something else ("run1") count only if the names of no
 * others state that they are steps. Directories without a checkpoint's files are listed only next to others that have some, or if
 * there are no others. Symbolic links to listed steps are left out. *unlisted is a directory outside all steps that could not be
 * listed, or NULL. TSR_E_NOMEM. */
tsr_status tsr_list_run_steps(const tsr_store *store, tsr_is_owned_fn *is_owned, const void *ctx, tsr_arena *arena,
                              tsr_vec *steps, const tsr_store_gap **unlisted, tsr_error *err);
/* Appends Lightning's last.ckpt and last-vN.ckpt, with step 0: which one they have is in them. */
tsr_status tsr_list_last_steps(const tsr_store *store, tsr_is_owned_fn *is_owned, const void *ctx, tsr_arena *arena,
                               tsr_vec *steps, tsr_error *err);
/* Sorts steps as tsr_list_run_steps does, one that is_last after the others of its number. */
void tsr_sort_run_steps(tsr_vec *steps);
/* Whether a part of a path is a hidden name. Nothing below it belongs to a run. */
bool tsr_is_hidden(tsr_str path);

#endif
