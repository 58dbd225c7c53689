/* Declarations shared by the files of core/suggest. */
#ifndef TSR_SUGGEST_MAP_SUGGEST_PARTS_H
#define TSR_SUGGEST_MAP_SUGGEST_PARTS_H

#include "tessera/read.h"
#include "tessera/sys/map_suggest.h"
#include "tessera/sys/vec.h"

enum { TSR_MOST_PATTERNS = 1024, TSR_MOST_NUMBERS = 4 };
#define TSR_NUMBER_MARK '\x01' /* stands for a number in keys */

typedef struct tsr_pattern_member {
    const tsr_entry *entry;
    uint64_t numbers[TSR_MOST_NUMBERS];
} tsr_pattern_member;

/* The tensors of a checkpoint whose names differ only in their numbers. */
typedef struct tsr_name_family {
    tsr_str key;      /* the name, with TSR_NUMBER_MARK in place of each number */
    uint32_t numbers; /* how many numbers a name has */
    bool uniform;     /* all members have the same shape and dtype */
    tsr_vec members;  /* of tsr_pattern_member, sorted by their numbers */
    bool decided;
    bool noted; /* a note says what it may belong to */
} tsr_name_family;

typedef enum tsr_pairing {
    TSR_PAIR_PLAIN,
    TSR_PAIR_TRANSPOSE, /* of the last two dims: matrices, or stacks of them */
    TSR_PAIR_STACK,
    TSR_PAIR_UNSTACK,
    TSR_PAIR_TURN_AND_STACK, /* each matrix is transposed */
    TSR_PAIR_UNSTACK_AND_TURN,
    TSR_PAIR_ROPE
} tsr_pairing;

/* A family of A and a family of B that could belong together. */
typedef struct tsr_map_candidate {
    tsr_name_family *a, *b;
    tsr_pairing how;
    uint32_t folded; /* for stack and unstack: the number that only one side has */
    uint64_t heads;  /* for rope */
    int score;       /* similarity of the names */
    bool contested;  /* one of the two families also fits others */
} tsr_map_candidate;

/* map_families.c: the families of a checkpoint's tensors; `out` is a vector of tsr_name_family, freed by tsr_families_free. */
tsr_status tsr_families_find(const tsr_catalog *catalog, tsr_arena *arena, tsr_vec *out, tsr_error *err);
void tsr_families_free(tsr_vec *families);
/* Similarity of two names, from 0. TSR_SAME_NAME or more if one name ends with the whole other one. */
enum { TSR_SAME_NAME = 1000 };
int tsr_families_likeness(const tsr_name_family *a, const tsr_name_family *b);
/* Finds the first word of parts[index] that no other part has, in the whole's name. Returns where it begins there, or
 * SIZE_MAX if there is no such word. */
size_t tsr_family_place(const tsr_name_family *whole, tsr_name_family *const *parts, uint32_t count, uint32_t index);

/* map_candidates.c: collects all pairs whose numbers and shapes fit into a vector of tsr_map_candidate. With `values`,
 * includes those that only values could confirm. */
tsr_status tsr_candidates_find(const tsr_vec *a, const tsr_vec *b, bool values, tsr_vec *out, tsr_error *err);

/* map_suggest_rule.c: the candidate as a rule of a map, one JSON object. */
tsr_status tsr_candidate_rule(const tsr_map_candidate *candidate, const char *about, tsr_arena *arena, tsr_str *out,
                              tsr_error *err);
/* The family's name with captures. */
tsr_str tsr_family_pattern(const tsr_name_family *family, const char *const *captures, tsr_arena *arena, tsr_error *err);

extern const char *const tsr_captures[TSR_MOST_NUMBERS];

/* map_fused.c: a tensor and its parts, which are concatenated along `dim`. */
enum { TSR_MOST_PARTS = 8 };
typedef struct tsr_fused {
    tsr_name_family *whole, *parts[TSR_MOST_PARTS];
    uint64_t sizes[TSR_MOST_PARTS];
    uint32_t count, dim;
    bool folded; /* the last number of the parts is the first dim of the whole, before `dim` */
    bool turned; /* the last two dims of the parts are exchanged in the whole; `dim` is the whole's */
} tsr_fused;
/* Whether the part could be in the whole, where `left` is what the earlier parts leave of its size. */
bool tsr_fused_fits(const tsr_fused *f, const tsr_name_family *part, uint64_t left);
/* The size that the part has in the whole, and the size that all parts have together. */
uint64_t tsr_fused_size(const tsr_fused *f, const tsr_name_family *part);
uint64_t tsr_fused_total(const tsr_fused *f);
/* Sets *f to way number `index` in which parts may be joined, from 0. Returns false if there are no more. */
bool tsr_fused_way(tsr_name_family *whole, unsigned index, tsr_fused *f);
/* The same for patterns of names. */
typedef struct tsr_fused_rule {
    const tsr_str *parts;
    const uint64_t *sizes;
    uint32_t count, dim;
    tsr_str whole;
    bool folded, splits; /* splits: from the whole to its parts; otherwise from the parts to the whole */
    uint32_t turned;     /* the number of dims of the parts if the last two are exchanged, otherwise 0 */
    const char *about;
} tsr_fused_rule;
tsr_status tsr_fused_rule_text(const tsr_fused_rule *rule, tsr_arena *arena, tsr_str *out, tsr_error *err);
typedef struct tsr_fused_search {
    tsr_checkpoint *of_whole, *of_parts;
    const tsr_vec *parts; /* of tsr_name_family; those that are decided are ignored */
    tsr_ring *ring;
    tsr_error *err;
} tsr_fused_search;
/* Finds the parts of `whole` by comparing values bitwise. */
tsr_status tsr_fused_find(const tsr_fused_search *search, tsr_name_family *whole, tsr_fused *out, bool *found);

/* map_joined.c: finds the open families of `parts` that by their shapes may be parts of the whole. *ways is in how many ways
 * some or all of them could make it up, and `out` is the first one. *ordered is whether it is the only one, needs all of them,
 * and the whole's name shows their order, which `out` then has. */
void tsr_joined_find(tsr_name_family *whole, const tsr_vec *parts, tsr_fused *out, unsigned *ways, bool *ordered);

/* The size of all parts together, which is more than that of the whole if only some of them can be in it. */
uint64_t tsr_joined_size(const tsr_fused *f);

/* map_suggest_values.c: whether applying the candidate to A gives B's values. */
tsr_status tsr_candidate_holds(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_map_candidate *candidate, tsr_ring *ring,
                               bool *holds, tsr_error *err);

#endif
