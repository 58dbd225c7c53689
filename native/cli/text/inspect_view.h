/* What the parts of `inspect`'s text share. */
#ifndef TSR_CLI_TEXT_INSPECT_VIEW_H
#define TSR_CLI_TEXT_INSPECT_VIEW_H

#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/text/listing.h"

typedef struct cli_view {
    const cli_terminal *out;
    const cli_session *session;
    const tsr_command_options *arguments;
    cli_listing listing;
    tsr_vec partners;                                         /* tensors, sorted by storage */
    unsigned name_width, type_width, shape_width, size_width; /* in columns */
    bool has_stored; /* a tensor is sharded or shares its storage, which needs another column */
} cli_view;

enum { CLI_CELL = 128 };

static inline const cli_node *cli_view_root(const cli_view *view)
{
    return view->listing.nodes.items;
}

/* Prints the summary. */
void cli_put_head(const cli_view *view);
/* One line per tensor, or one per prefix; equal layers are folded. */
tsr_status cli_put_table(cli_view *view, tsr_error *err);
tsr_status cli_put_tree(cli_view *view, tsr_error *err);
/* Prints non-tensor objects. Equal values with many names are one line. */
tsr_status cli_put_objects(cli_view *view, tsr_error *err);

static inline void cli_widen(unsigned *column, unsigned width)
{
    if (width > *column) *column = width;
}

#endif
