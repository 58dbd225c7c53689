/* A checkpoint's names as a tree that can be opened, closed, folded and filtered, for lists of any length.
 *
 *   names: a.w, a.b, l.0.w, l.1.w, l.2.w        nodes, in depth-first order; [i + 1, end) is below i
 *                                                 0 (all) 1 a 2 a.w 3 a.b 4 l 5 l.0 6 l.0.w 7 l.1 8 l.1.w 9 l.2 10 l.2.w
 *
 * Three or more neighbouring siblings with numbers for names and alike below (names, dtypes, shapes) are a run: its first
 * member stands for all until it is unfolded. */
#ifndef TSR_WASM_OUTLINE_H
#define TSR_WASM_OUTLINE_H

#include "filter.h"
#include "tessera/checkpoint.h"

#define NO_ENTRY UINT32_MAX

typedef struct node {
    tsr_str name; /* the last component */
    uint32_t parent, end, entry, depth;
    uint32_t entries;      /* below, itself included */
    uint32_t run, run_end; /* number of the run's first member; where the run ends. 0: in no run */
    uint32_t run_count;    /* of the first member */
    uint8_t open, open_filtered, unfolded, level, odd; /* level: 1 + the worst finding's */
    bool matches;                                      /* the filter, or something below does */
    uint64_t elements, bytes, dtypes;                  /* below; dtypes: bit by tsr_dtype */
    uint64_t form;                                     /* hash of what is below */
} node;

typedef struct outline {
    const tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    node *nodes;
    uint32_t count;
    uint32_t *node_of; /* of an entry; 0: it was left out */
    uint32_t *shown;   /* visible nodes, from the top */
    uint32_t shown_count;
    bool filtered;
    bool objects_only; /* entries that are tensors are left out */
} outline;

/* Fills an outline that has its checkpoint, arena and `objects_only`. O(names). */
tsr_status tessera_outline_build(outline *o, tsr_error *err);
/* Which nodes are visible. O(visible). */
void tessera_outline_show(outline *o);

#endif
