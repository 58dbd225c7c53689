/* Entries of the source, bound to the rules that take them. */
#ifndef TSR_MAPPING_MAPPING_MATCH_H
#define TSR_MAPPING_MAPPING_MATCH_H

#include "mapping/mapped.h"
#include "tessera/sys/map.h"

/* An entry that a pattern matches. Matches of one rule with the same key are one binding. */
typedef struct tsr_name_match {
    const tsr_entry *entry;
    const tsr_str *values;
    tsr_str key;    /* the values of all captures but the folded one */
    uint64_t index; /* the folded one's */
    uint64_t order;
    uint32_t rule, pattern;
    tsr_str other; /* in an inverse: another name that the entry may come from; data NULL: none */
} tsr_name_match;

/* The tensors of one binding that a pattern folds: "layers.0.experts" and so many of them. */
typedef struct tsr_family {
    tsr_str prefix;
    const tsr_name_match *first;
    uint32_t pattern;
    uint64_t members;
} tsr_family;

typedef struct tsr_matcher {
    tsr_mapped *m;
    tsr_arena *arena;
    tsr_vec matches; /* of tsr_name_match */
    tsr_vec unmatched; /* of const tsr_entry * */
    tsr_vec families;  /* of tsr_family */
    const tsr_entry *tied; /* of dropped entries, the one that config.json ties to another; or NULL */
    tsr_map *members;  /* rule, pattern and prefix → 1 + index of a family */
    tsr_error *err;
} tsr_matcher;

/* The first rule that matches the name, from match->rule on; values[c], of TSR_MOST_CAPTURES, is set for the captures of its pattern. */
bool tsr_match_rule(const tsr_mapping_rules *rules, tsr_str name, tsr_name_match *match, tsr_str *values);
/* mapping_origin.c: which rule of an inverse goes back from the entry, where *found and `like` are the first one that matches. *found
 * becomes false for a name that the map kept. TSR_E_FORMAT naming the rules where the map makes the name in several ways that are equally
 * likely, or does not make it at all. */
tsr_status tsr_origin_choose(tsr_matcher *s, tsr_name_match *like, tsr_str *values, bool *found);
/* After all rules of an inverse are bound: that the map takes each name that the inverse made by the rule it was made by. TSR_E_FORMAT
 * naming both rules where it does not. */
tsr_status tsr_origin_check(const tsr_matcher *s);
/* TSR_E_FORMAT naming what the binding of `of` lacks: member `index` of its pattern `pattern`. */
tsr_status tsr_match_lacks(const tsr_matcher *s, const tsr_name_match *of, uint32_t pattern, uint64_t index);
/* mapping_family.c: notes the families of a binding; and then, that those of one prefix have equally many members, in every pattern
 * that begins alike ("….experts.{expert}.") and matches anything. */
tsr_status tsr_family_add(tsr_matcher *s, const tsr_name_match *first, uint64_t members);
tsr_status tsr_family_check(tsr_matcher *s);
/* mapping_family.c: after all rules are bound, that every layer has what the "layers" of rules state, and that no layer is missing between
 * others. TSR_E_FORMAT naming the tensor or the layer. */
tsr_status tsr_layers_check(tsr_matcher *s);
/* mapping_counts.c: the layers and experts of the source, and those that rules took out of stacks. TSR_E_FORMAT naming a weight that
 * one expert lacks, or the numbers where config.json states others. */
tsr_status tsr_counts_check(tsr_matcher *s);
/* mapping_used.c: that no rule gives quantized numbers another name or layout while their scale is kept or dropped. TSR_E_FORMAT naming both. */
tsr_status tsr_parted_check(const tsr_matcher *s);
/* mapping_shapes.c: after all rules are bound, that tensors have the shapes that the rules state. TSR_E_FORMAT naming the tensors, their
 * shapes and the dim. */
tsr_status tsr_shapes_check(const tsr_mapped *m, tsr_error *err);

#endif
