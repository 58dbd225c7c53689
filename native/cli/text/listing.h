/* A catalog as a tree of dotted names, for people: has totals per prefix, and folds numbered siblings of equal content into
 * one ("layers.{0-31}"). Rows are produced one at a time, so they need no memory even if there are a million. */
#ifndef TSR_CLI_TEXT_LISTING_H
#define TSR_CLI_TEXT_LISTING_H

#include "cli/program/session.h"
#include "cli/program/term.h"
#include "tessera/catalog.h"
#include "tessera/memory.h"
#include "tessera/sys/containers.h"

#define CLI_NO_NODE   UINT32_MAX
#define CLI_MAX_DEPTH 64 /* components below this depth are joined into one name */

typedef struct cli_node {
    tsr_str name; /* one component */
    const tsr_entry *entry;
    uint32_t parent, first, last, next; /* children are in order of appearance */
    uint64_t tensors, others, elements, bytes;
    tsr_dtype dtype;    /* of the tensors below; TSR_DTYPE_NONE: none */
    bool mixed;         /* the tensors below have several dtypes */
    uint64_t signature; /* equal if the contents below are equal, including names, except for this node's own name */
    uint32_t folded;    /* number of siblings that this node stands for, including itself; 0: another node stands for it */
    uint32_t fold_next; /* the next of these siblings, by number */
    bool odd;           /* its siblings are numbered and equal to each other, but this one differs */
} cli_node;

typedef struct cli_listing {
    tsr_vec nodes; /* of cli_node; 0 is the root; a child's index is greater than its parent's */
} cli_listing;

typedef struct cli_row {
    tsr_str label; /* in a table, the whole name; in a tree, the components that this line adds */
    const cli_node *node;
    uint64_t times;   /* number of names that the row stands for, including folded ancestors */
    unsigned depth;   /* in a tree: 0 for the top level */
    uint64_t last_at; /* in a tree, bit d: the ancestor at depth d is the last of its siblings */
    /* The siblings of a component of the label are numbered and equal to each other, but this one differs. */
    bool odd;
} cli_row;

/* Borrows the catalog. */
tsr_status cli_listing_build(const tsr_catalog *catalog, const tsr_name_globs *selection, cli_listing *out, tsr_error *err);
void cli_listing_free(cli_listing *listing);

/* Calls `each` for every row. A table has the nodes with an entry, with their whole folded names. A tree has every node
 * except those inside a node that contains only objects; a chain of single children is one row. */
tsr_status cli_listing_rows(const cli_listing *listing, bool tree, void (*each)(void *ctx, const cli_row *row), void *ctx,
                            tsr_error *err);

/* Describes how a tensor is sharded: "whole", "4 on dim 0", "2 on dim 0, 2 on dim 1", "7 chunks", or its placements. */
void cli_layout_text(const tsr_entry *entry, char *out, size_t capacity);
/* Prints a shape into `out`: "[4096, 4096]". */
void cli_shape_text(const tsr_entry *entry, char *out, size_t capacity);

#endif
