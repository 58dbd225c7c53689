/* Declarations shared by the files of core/suggest. */
#ifndef TSR_SUGGEST_MAP_SUGGEST_PARTS_H
#define TSR_SUGGEST_MAP_SUGGEST_PARTS_H

#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/map_suggest.h"

enum { TSR_MOST_PATTERNS = 1024, TSR_MOST_NUMBERS = 4 };
#define TSR_NUMBER_MARK '\x01' /* stands for a number in keys */

typedef struct tsr_pattern_member {
    const tsr_entry *entry;
    uint64_t numbers[TSR_MOST_NUMBERS];
} tsr_pattern_member;

/* The tensors, or objects, of a checkpoint whose names differ only in their numbers. */
typedef struct tsr_name_family tsr_name_family;
struct tsr_name_family {
    tsr_str key;      /* the name, with TSR_NUMBER_MARK in place of each number */
    uint32_t numbers; /* how many numbers a name has */
    bool uniform;     /* all members have the same shape and dtype */
    tsr_vec members;  /* of tsr_pattern_member, sorted by their numbers */
    bool decided;
    bool noted;                         /* a note says what it may belong to */
    const tsr_name_family *begins_with; /* of the other checkpoint: the same rows, but fewer */
};

typedef enum tsr_pairing {
    TSR_PAIR_PLAIN,
    TSR_PAIR_TRANSPOSE, /* of the last two dims: matrices, or stacks of them */
    TSR_PAIR_STACK,
    TSR_PAIR_UNSTACK,
    TSR_PAIR_TURN_AND_STACK, /* each matrix is transposed */
    TSR_PAIR_UNSTACK_AND_TURN,
    TSR_PAIR_ROPE,
    TSR_PAIR_TRIM, /* of the last rows, such as those of a padded vocabulary */
    TSR_PAIR_PAD   /* with rows of zeros */
} tsr_pairing;

/* A family of A and a family of B that could belong together. */
typedef struct tsr_map_candidate {
    tsr_name_family *a, *b;
    tsr_pairing how;
    uint32_t folded; /* for stack and unstack: the number that only one side has */
    uint64_t number; /* for rope: the heads; for trim and pad: the rows of B */
    int score;       /* similarity of the names */
    bool contested;  /* one of the two families also fits others */
} tsr_map_candidate;

/* map_families.c: the families of a checkpoint's tensors, or of its objects; `out` is a vector of tsr_name_family, freed by
 * tsr_families_free. */
tsr_status tsr_families_find(const tsr_catalog *catalog, bool tensors, tsr_arena *arena, tsr_vec *out, tsr_error *err);
void tsr_families_free(tsr_vec *families);
/* Similarity of two names, from 0. TSR_SAME_NAME or more if one name ends with the whole other one. */
enum { TSR_SAME_NAME = 1000 };

/* map_families.c: collects all pairs whose numbers and shapes fit into a vector of tsr_map_candidate. With `values`,
 * includes those that only values could confirm. */
tsr_status tsr_candidates_find(const tsr_vec *a, const tsr_vec *b, bool values, tsr_vec *out, tsr_error *err);
/* Adds the pairs of open families of one tensor each, of which one may have more rows than the other. */
tsr_status tsr_candidates_find_rows(const tsr_vec *a, const tsr_vec *b, tsr_vec *out, tsr_error *err);

extern const char *const tsr_captures[TSR_MOST_NUMBERS];

/* A tensor and its parts, which are concatenated along `dim`; or, with more than one run, cut into that many
 * equal runs, of which the first ones of all parts come first, then the second ones. Sizes are those of one run. */
enum { TSR_MOST_PARTS = 8 };
typedef struct tsr_fused {
    tsr_name_family *whole, *parts[TSR_MOST_PARTS];
    uint64_t sizes[TSR_MOST_PARTS], runs;
    uint32_t count, dim;
    bool folded; /* the last number of the parts is the first dim of the whole, before `dim` */
    bool turned; /* the last two dims of the parts are exchanged in the whole; `dim` is the whole's */
} tsr_fused;
/* The same for patterns of names. */
typedef struct tsr_fused_rule {
    const tsr_str *parts;
    const uint64_t *sizes, *shape; /* shape: of the whole, without the first dim if folded */
    uint64_t runs;
    uint32_t count, dim, ndim;
    tsr_str whole;
    bool folded, turned, splits; /* splits: from the whole to its parts; otherwise from the parts to the whole */
    const char *about;
} tsr_fused_rule;
typedef struct tsr_fused_search {
    tsr_checkpoint *of_whole, *of_parts;
    const tsr_vec *parts; /* of tsr_name_family; those that are decided are ignored */
    tsr_error *err;
} tsr_fused_search;

/* map_families.c: finds the parts of `whole` by comparing values bitwise. */
tsr_status tsr_fused_find(const tsr_fused_search *search, tsr_name_family *whole, tsr_fused *out, bool *found);
/* Whether the parts together are as large as the whole, so that it needs all of them. */
bool tsr_joined_fits(const tsr_fused *f);
/* Finds the open families of `parts` that by their shapes may be parts of the whole. *ways is in how many ways
 * some or all of them could make it up, and `out` is the first one. *ordered is whether it is the only one, needs all of them,
 * and the whole's name shows their order, which `out` then has. */
void tsr_joined_find(tsr_name_family *whole, const tsr_vec *parts, tsr_fused *out, unsigned *ways, bool *ordered);

/* A suggestion in the making. */
typedef struct tsr_suggester {
    tsr_checkpoint *a, *b;
    tsr_arena *arena;
    tsr_vec of_a, of_b;   /* of tsr_name_family */
    tsr_vec candidates;   /* of tsr_map_candidate; `b` is NULL for those that were ruled out */
    tsr_vec rules, notes; /* of tsr_str */
    bool values;
    uint64_t squares;              /* chosen by shape, which does not show whether they are transposed */
    const tsr_name_family *square; /* the first one, of B */
    tsr_error *err;
} tsr_suggester;

#endif
