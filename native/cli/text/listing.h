/* A catalog as a tree of dotted names for people: totals per prefix, and numbered siblings of equal content folded into
 * one ("layers.{0-31}"). Rows are produced one at a time, so that a million of them need no memory of their own. */
#ifndef TSR_CLI_TEXT_LISTING_H
#define TSR_CLI_TEXT_LISTING_H

#include "tessera/catalog.h"
#include "tessera/memory.h"
#include "tessera/sys/vec.h"

#define CLI_NO_NODE   UINT32_MAX
#define CLI_MAX_DEPTH 64 /* deeper components stay in one name */

typedef struct cli_node {
    tsr_str name; /* one component */
    const tsr_entry *entry;
    uint32_t parent, first, last, next; /* children in order of appearance */
    uint64_t tensors, others, elements, bytes;
    tsr_dtype dtype;    /* of all tensors below; TSR_DTYPE_NONE: none */
    bool mixed;         /* several dtypes below */
    uint64_t signature; /* equal content below, names included, but this node's own */
    uint32_t folded;    /* siblings this stands for, itself included; 0: hidden behind another */
    uint32_t fold_next; /* the next of them, by number */
    bool odd;           /* numbered like siblings that are all equal, but differs from them */
} cli_node;

typedef struct cli_listing {
    tsr_vec nodes; /* of cli_node; 0 is the root; a child's index is above its parent's */
} cli_listing;

typedef struct cli_row {
    tsr_str label; /* table: the whole name; tree: the components this line adds */
    const cli_node *node;
    uint64_t times;   /* how many names the row stands for, folded ancestors included */
    unsigned depth;   /* tree: 0 for the top level */
    uint64_t last_at; /* tree: bit d: the ancestor at depth d is the last of its siblings */
    bool odd;         /* a component of the label is numbered like siblings that are all equal, but differs from them */
} cli_row;

/* `keeps` chooses entries. Borrows the catalog. */
tsr_status cli_listing_build(const tsr_catalog *catalog, bool (*keeps)(const void *ctx, tsr_str fqn), const void *ctx,
                             const tsr_allocator *allocator, cli_listing *out, tsr_error *err);
void cli_listing_free(cli_listing *listing);

/* Rows of a table: nodes with an entry, whole folded names. Of a tree: every node but those inside a node that holds only
 * objects, chains of single children as one. */
tsr_status cli_listing_rows(const cli_listing *listing, bool tree, void (*each)(void *ctx, const cli_row *row), void *ctx,
                            const tsr_allocator *allocator, tsr_error *err);

/* Whether a component is a plain number of at most nine digits. */
bool cli_number_of(tsr_str name, uint64_t *number);

/* "float32", "float32, int64" is not told apart: "mixed". */
const char *cli_node_dtype(const cli_node *node);
/* How a tensor is cut: "whole", "4 on dim 0", "2 on dim 0, 2 on dim 1", "7 chunks", or its placements. */
void cli_layout_text(const tsr_entry *entry, char *out, size_t capacity);
/* "[4096, 4096]" */
void cli_shape_text(const tsr_entry *entry, char *out, size_t capacity);

#endif
