/* What the parts of `inspect`'s text share. */
#ifndef TSR_CLI_TEXT_INSPECT_VIEW_H
#define TSR_CLI_TEXT_INSPECT_VIEW_H

#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/text/listing.h"

typedef struct inspect_arguments {
    bool json, tree, stats, allow_expansion;
    unsigned hash; /* a tsr_digest_algorithm */
    cli_selection selection;
} inspect_arguments;

typedef struct cli_view {
    const cli_terminal *out;
    const cli_session *session;
    const inspect_arguments *arguments;
    cli_listing listing;
    tsr_vec partners;                                         /* tensors by storage */
    unsigned name_width, type_width, shape_width, size_width; /* columns */
    bool has_stored; /* some tensor is sharded or shares its storage: worth a column */
} cli_view;

enum { CLI_CELL = 128 };

static inline const cli_node *cli_view_root(const cli_view *view)
{
    return view->listing.nodes.items;
}

/* A few lines that answer the first questions. */
void cli_put_head(const cli_view *view);
/* One line a tensor, or a line a prefix; equal layers folded. */
tsr_status cli_put_table(cli_view *view, tsr_error *err);
tsr_status cli_put_tree(cli_view *view, tsr_error *err);
/* What is no tensor; equal values under many names are one line. */
tsr_status cli_put_objects(cli_view *view, tsr_error *err);

/* For the columns: `label` with "  ×N" behind it, in `width` columns. */
unsigned cli_name_width(tsr_str label, uint64_t times);
void cli_put_name(const cli_view *view, tsr_str label, uint64_t times, unsigned width);
/* On a terminal the name column gives way, so that `others` columns stay in view. */
void cli_fit_names(cli_view *view, unsigned others);

static inline void cli_widen(unsigned *column, unsigned width)
{
    if (width > *column) *column = width;
}

#endif
