/* Directories that training loops write: each framework's own files are mounted as parts, by the rows of frameworks.c. */
#ifndef TSR_FORMATS_FOLDERS_FOLDERS_H
#define TSR_FORMATS_FOLDERS_FOLDERS_H

#include "formats/common/file_names.h"
#include "formats/parts/mount.h"

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
    /* The part must be there where this file is, and why; or NULL. */
    const char *required_with, *required_because;
    /* Mounts what no source can describe; and then there are none. */
    tsr_status (*mounts)(tsr_checkpoint *checkpoint, tsr_error *err);
} tsr_part_row;

/* Names to ask a server for: if one of `with` is there (NULL: always), and none of `without`. All lists end with NULL. */
typedef struct tsr_implied_row {
    const char *const *with, *const *without, *const *names;
} tsr_implied_row;

typedef struct tsr_framework {
    tsr_format format;
    const tsr_implied_row *implied; /* ends without names; or NULL */
    const tsr_part_row *parts[2];   /* in this order; each ends with a row of nothing; the second may be NULL */
    /* What is reported if it looks like a checkpoint and is not among the parts. */
    enum { TSR_LEFT_IGNORED, TSR_LEFT_FILES, TSR_LEFT_ALL } left;
} tsr_framework;

/* Mounts the parts of a framework's directory by its row (tsr_mounts_fill). */
tsr_status tsr_framework_mount(tsr_checkpoint *checkpoint, const tsr_framework *of, tsr_error *err);

/* For functions of rows: */

/* The rank that a file of accelerate belongs to by its name, "pytorch_model_fsdp_rank1.bin" or "optimizer_0_rank1.bin"; otherwise
 * TSR_NO_NUMBER. */
uint64_t tsr_accelerate_rank_of(tsr_str name);
/* Begins the part `name`, and mounts the files of all ranks as one checkpoint, or each below "rank_N". */
tsr_status tsr_mount_ranks(tsr_checkpoint *checkpoint, tsr_str name, tsr_source_form form, const tsr_numbered_files *ranks,
                           tsr_error *err);
/* Reports files that are missing for ranks below `ranks`; their names are BEFORE, the rank, and AFTER. */
typedef struct tsr_ranks_check {
    tsr_str before, after;
    uint64_t ranks;
    bool by_rank; /* the message counts ranks, instead of files */
    bool placed;  /* the finding names the first missing file as its place */
    bool implies; /* a server is asked for them */
} tsr_ranks_check;
tsr_status tsr_check_ranks(tsr_checkpoint *checkpoint, const tsr_numbered_files *files, const tsr_ranks_check *check,
                           tsr_error *err);

#endif
