/* The names of a checkpoint as a tree that can be opened, closed, folded and filtered, for lists of any length.
 *
 *   names: a.w, a.b, l.0.w, l.1.w, l.2.w        nodes in depth-first order; [i + 1, end) are below i
 *                                                 0 (all) 1 a 2 a.w 3 a.b 4 l 5 l.0 6 l.0.w 7 l.1 8 l.1.w 9 l.2 10 l.2.w
 *
 * Three or more adjacent siblings with numbers as names and the same content (names, dtypes, shapes) are a run. Its first
 * member represents all of them until the run is unfolded. */
#ifndef TSR_WASM_OUTLINE_H
#define TSR_WASM_OUTLINE_H

#include "tessera/catalog.h"
#include "tessera/checkpoint.h"

/* The filter line of the viewer. Terms are separated by spaces, and an entry must satisfy all of them:
 *
 *   text            part of the name, ignoring case; with * ? or [ a glob for the whole name
 *   dtype:bfloat16  or a glob               shape:4096x*   a glob for the sizes       file:__0_0
 *   kind:object     tensor, object, opaque  >1GB  <=64MiB  bytes of the tensor        -term  not */

enum { FILTER_TERMS = 16 };

typedef struct filter_term {
    enum { TERM_NAME, TERM_DTYPE, TERM_SHAPE, TERM_FILE, TERM_KIND, TERM_MORE, TERM_LESS } what;
    bool negated, is_glob, or_equal;
    tsr_str text;
    double bytes;
} filter_term;

typedef struct filter {
    filter_term terms[FILTER_TERMS];
    uint32_t count;
} filter;

/* Borrows `text`. Errors: TSR_E_USAGE with the byte position. */
tsr_status tessera_filter_parse(tsr_str text, filter *out, tsr_error *err);
bool tessera_filter_keeps(const filter *f, const tsr_catalog *catalog, const tsr_entry *entry);
/* Whether inspect lists the entry as a tensor: it is one, or at least one rank has a tensor with this name. */
bool tessera_is_tensor(const tsr_entry *entry);

#define NO_ENTRY UINT32_MAX

typedef struct node {
    tsr_str name; /* the last component */
    uint32_t parent, end, entry, depth;
    uint32_t entries;      /* in this node and below it */
    uint32_t run, run_end; /* the node number of the run's first member, and the end of the run; 0: not in a run */
    uint32_t run_count;    /* only for the first member */
    uint8_t open, open_filtered, unfolded, level, odd; /* level: 1 + that of the worst finding */
    bool matches;                                      /* the node, or something below it, matches the filter */
    uint64_t elements, bytes, dtypes;                  /* including what is below; dtypes has one bit per tsr_dtype */
    uint64_t form;                                     /* a hash of what is below */
} node;

typedef struct outline {
    const tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    node *nodes;
    uint32_t count;
    uint32_t *node_of; /* by entry; 0: the entry was left out */
    uint32_t *shown;   /* visible nodes, from the top */
    uint32_t shown_count;
    bool filtered;
    bool objects_only; /* tensors are left out */
} outline;

/* Builds an outline whose checkpoint, arena and `objects_only` are set. O(names). Errors: TSR_E_NOMEM. */
tsr_status tessera_outline_build(outline *o, tsr_error *err);
/* Determines the visible nodes. O(visible). */
void tessera_outline_show(outline *o);

#endif
