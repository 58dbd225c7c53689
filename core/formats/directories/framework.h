/* Directories that training loops and libraries write, opened by a row that describes their parts. */
#ifndef TSR_FORMATS_DIRECTORIES_FRAMEWORK_H
#define TSR_FORMATS_DIRECTORIES_FRAMEWORK_H

#include "formats/parts/mount.h"

#include <cjson/cJSON.h>

/* How the files of a part are read. */
typedef enum tsr_source_form {
    TSR_SOURCE_FILE,   /* a file, or an index */
    TSR_SOURCE_DCP,    /* a directory */
    TSR_SOURCE_NAMED,  /* a directory; the names in the first one begin with the part's name already */
    TSR_SOURCE_ROOT,   /* the DCP whose .metadata this is; its names are those of the whole checkpoint */
    TSR_SOURCE_EACH,   /* a part of its own for every number, "PART_N" */
    TSR_SOURCE_RANKS,  /* one part; what rank N has is below "rank_N" */
    TSR_SOURCE_JOINED, /* one part: the files of all ranks are one checkpoint */
    TSR_SOURCE_JSON,   /* documents without tensors */
    TSR_SOURCE_PICKLE
} tsr_source_form;

/* In a pattern, '*' is a number. '#' and '~' are the number of a part that there may be several of: for the first one, '#' is 0, and
 * '~' is nothing; for the others, '~' is "_N". */
typedef struct tsr_source {
    tsr_source_form form;
    const char *pattern;
} tsr_source;

/* A part of a framework's directory. It is optional, as far as no other field says that it is required. */
typedef struct tsr_part_row {
    const char *part;    /* its name; the next ones are called "PART_1", … if a pattern has '#' or '~' */
    tsr_source from[12]; /* the first that is there counts; ends without a pattern */
    /* A name to ask a server for that cannot list its files: the next one of the part, if none was found; for TSR_SOURCE_EACH, the file
     * that the others are counted after, so that they are only asked for if it is there. */
    const char *next;
    /* Mounts what no source can describe; and then there are none. */
    tsr_status (*mounts)(tsr_checkpoint *checkpoint, tsr_error *err);
} tsr_part_row;

/* Names to ask a server for: if one of `with` is there (NULL: always), and none of `without`. All lists end with NULL. */
typedef struct tsr_implied_row {
    const char *const *with, *const *without, *const *names;
} tsr_implied_row;

/* A file without which a save is not complete if it has another one, and why. */
typedef struct tsr_needed_file {
    const char *file, *with, *because;
} tsr_needed_file;

/* A framework's directory. */
typedef struct tsr_framework {
    const tsr_implied_row *implied; /* ends without names; or NULL */
    const tsr_needed_file *needs;   /* ends without a file; or NULL */
    const char *unfinished;         /* the file that is there until a save is complete; or NULL */
    const tsr_part_row *parts[2];   /* in this order; each ends with a row of nothing; the second may be NULL */
    /* The rank that a file is from by its name; otherwise TSR_NO_NUMBER. One more than the highest of them is the number of ranks that each
     * have a file of a part with TSR_SOURCE_RANKS or TSR_SOURCE_JOINED. NULL: nothing states how many ranks there were. */
    uint64_t (*rank_of)(tsr_str name);
    /* What is reported if it looks like a checkpoint and is not among the parts. */
    enum { TSR_LEFT_IGNORED, TSR_LEFT_FILES, TSR_LEFT_ALL } left;
} tsr_framework;

enum { TSR_MOST_NUMBERED = 1024 }; /* parts of one name */

/* Opens a directory by its framework's row: mounts its parts, and reports what is missing and what is left out. */
tsr_status tsr_framework_open(tsr_checkpoint *checkpoint, const tsr_framework *of, tsr_error *err);
/* Defines a framework's row, whose fields follow, and tsr_reader_NAME for its format, which opens directories by the row. wasm/split.mjs
 * knows readers by the beginning of their names. */
#define TSR_FRAMEWORK(name, id, ...) \
    static const tsr_framework name = {__VA_ARGS__}; \
    static tsr_status open_##name(tsr_checkpoint *checkpoint, tsr_error *err) \
    { \
        return tsr_framework_open(checkpoint, &name, err); \
    } \
    static const tsr_reader tsr_reader_##name = {.format = id, .is_rare = true, .open = open_##name, TSR_MOUNTS_READER}

/* ---- for functions of rows ---- */

/* The names that a model may have in a directory, either as a file or as an index. */
#define TSR_MODEL_NAMES \
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json", \
        "adapter_model.safetensors", "adapter_model.bin"
/* clang-format off */
#define TSR_MODEL_SOURCES \
    {TSR_SOURCE_FILE, "model.safetensors"}, {TSR_SOURCE_FILE, "model.safetensors.index.json"}, \
    {TSR_SOURCE_FILE, "pytorch_model.bin"}, {TSR_SOURCE_FILE, "pytorch_model.bin.index.json"}, \
    {TSR_SOURCE_FILE, "adapter_model.safetensors"}, {TSR_SOURCE_FILE, "adapter_model.bin"}
/* clang-format on */

/* Mounts a part and those that are numbered after it. */
tsr_status tsr_part_row_mount(tsr_checkpoint *checkpoint, const tsr_part_row *row, tsr_error *err);

/* The files of ranks: their names are BEFORE, the rank, and AFTER. */
typedef struct tsr_ranks_check {
    tsr_str before, after;
    uint64_t ranks; /* 0: as many as the highest number states */
    bool by_rank;   /* the message counts ranks, instead of files */
    bool placed;    /* the finding names the first missing file as its place */
    bool implies;   /* a server is asked for them */
} tsr_ranks_check;
/* Begins `part` and mounts the files as one checkpoint, or each below "rank_N"; does nothing without any. Reports those that are
 * missing. */
tsr_status tsr_ranks_mount(tsr_checkpoint *checkpoint, tsr_str part, tsr_source_form form, tsr_ranks_check check,
                           tsr_error *err);

/* Whether there are files below a directory of the root. */
static inline bool tsr_has_directory(const tsr_store *store, tsr_str name)
{
    uint32_t at = tsr_store_find_from(store, name);
    return tsr_store_next_below(store, name, &at) != TSR_NO_FILE;
}

/* Parses a document. *out is NULL if it is not there, or is not JSON. */
tsr_status tsr_document_read(tsr_checkpoint *checkpoint, tsr_str name, cJSON **out, tsr_error *err);

/* pipelines.c: mounts the modules of a model of sentence-transformers that are not in the root, for the Trainer's row. */
tsr_status tsr_trained_modules_mount(tsr_checkpoint *checkpoint, tsr_error *err);

#endif
