/* Produces the rows of a listing, and the texts of their cells. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/text/listing.h"

typedef struct walker {
    const cli_listing *listing;
    bool tree;
    void (*each)(void *ctx, const cli_row *row);
    void *ctx;
    tsr_vec label; /* of char */
    tsr_error *err;
    bool failed;
} walker;

static const cli_node *node_at(const cli_listing *listing, uint32_t index)
{
    return (const cli_node *)listing->nodes.items + index;
}

static void append(walker *w, const char *data, size_t size)
{
    if (size == 0) return;
    if (w->failed || tsr_vec_reserve(&w->label, size, w->err) != TSR_OK) {
        w->failed = true;
        return;
    }
    memcpy((char *)w->label.items + w->label.count, data, size);
    w->label.count += size;
}

static bool follows(tsr_str a, tsr_str b)
{
    uint64_t x, y;
    return cli_number_of(a, &x) && cli_number_of(b, &y) && y == x + 1;
}

/* Appends "name", or "{0-4,6-31}". After a few ranges, "…" replaces the rest. */
static void append_label(walker *w, const cli_node *node)
{
    enum { MAX_RANGES = 6 };
    if (node->folded < 2) {
        append(w, node->name.data, node->name.size);
        return;
    }
    append(w, "{", 1);
    unsigned ranges = 0;
    for (const cli_node *from = node; from;) {
        const cli_node *to = from;
        while (to->fold_next != CLI_NO_NODE && follows(to->name, node_at(w->listing, to->fold_next)->name))
            to = node_at(w->listing, to->fold_next);
        if (ranges++) append(w, ",", 1);
        if (ranges > MAX_RANGES) {
            append(w, "…", sizeof "…" - 1);
            break;
        }
        append(w, from->name.data, from->name.size);
        if (to != from) append(w, follows(from->name, to->name) ? "," : "-", 1);
        if (to != from) append(w, to->name.data, to->name.size);
        from = to->fold_next == CLI_NO_NODE ? NULL : node_at(w->listing, to->fold_next);
    }
    append(w, "}", 1);
}

static const cli_node *shown(const walker *w, uint32_t index)
{
    while (index != CLI_NO_NODE && node_at(w->listing, index)->folded == 0) index = node_at(w->listing, index)->next;
    return index == CLI_NO_NODE ? NULL : node_at(w->listing, index);
}

/* Recursive; the depth is limited to CLI_MAX_DEPTH. */
static void walk(walker *w, const cli_node *parent, unsigned depth, uint64_t times, uint64_t last_at)
{
    size_t start = w->label.count;
    for (const cli_node *node = shown(w, parent->first); node && !w->failed;) {
        const cli_node *next = shown(w, node->next);
        bool odd = node->odd;
        uint64_t count = times * node->folded, last = next ? last_at : last_at | (uint64_t)1 << depth;
        if (w->tree) w->label.count = 0;
        else if (start) append(w, ".", 1);
        append_label(w, node);
        while (w->tree && !node->entry && node->tensors) { /* a chain of single children is one line */
            const cli_node *child = shown(w, node->first);
            if (shown(w, child->next)) break;
            count *= child->folded;
            odd |= child->odd;
            append(w, ".", 1);
            append_label(w, child);
            node = child;
        }
        cli_row row = {{w->label.items, w->label.count}, node, count, depth, last, odd};
        if (!w->failed && (w->tree || node->entry)) w->each(w->ctx, &row);
        if (!w->tree || node->tensors) walk(w, node, depth + 1, count, last);
        w->label.count = start;
        node = next;
    }
}

tsr_status cli_listing_rows(const cli_listing *listing, bool tree, void (*each)(void *ctx, const cli_row *row), void *ctx,
                            const tsr_allocator *allocator, tsr_error *err)
{
    walker w = {listing, tree, each, ctx, tsr_vec_of(allocator, 1), err, false};
    walk(&w, node_at(listing, 0), 0, 1, 0);
    tsr_vec_free(&w.label);
    return w.failed ? TSR_E_NOMEM : TSR_OK;
}

const char *cli_node_dtype(const cli_node *node)
{
    return node->mixed ? "mixed" : node->tensors ? tsr_dtype_describe(node->dtype)->name : "";
}

void cli_shape_text(const tsr_entry *entry, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (uint32_t d = 0; d < entry->ndim && used < capacity; d++) {
        used += (size_t)snprintf(out + used, capacity - used, "%s%" PRIu64, d ? ", " : "", entry->shape[d]);
    }
    if (used < capacity) used += (size_t)snprintf(out + used, capacity - used, "]");
    if (used >= capacity) snprintf(out, capacity, "[%u dims]", entry->ndim);
}

/* The number of chunks along one dim if the chunks form a grid: those whose other offsets are all 0. */
static uint64_t cuts_along(const tsr_entry *entry, uint32_t dim)
{
    uint64_t count = 0;
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        bool on_edge = true;
        for (uint32_t d = 0; d < entry->ndim && on_edge; d++) on_edge = d == dim || entry->chunks[c].offsets[d] == 0;
        count += on_edge;
    }
    return count;
}

static bool grid_text(const tsr_entry *entry, char *out, size_t capacity)
{
    uint64_t product = 1;
    size_t used = 0;
    for (uint32_t d = 0; d < entry->ndim && used < capacity; d++) {
        uint64_t cuts = cuts_along(entry, d);
        if (cuts == 0 || cuts > entry->chunk_count / product) return false;
        product *= cuts;
        if (cuts > 1)
            used += (size_t)snprintf(out + used, capacity - used, "%s%" PRIu64 " on dim %u", used ? ", " : "", cuts, d);
    }
    return product == entry->chunk_count && used < capacity;
}

static bool is_whole(const tsr_entry *entry)
{
    for (uint32_t d = 0; d < entry->ndim; d++) {
        if (entry->chunks[0].sizes[d] != entry->shape[d]) return false;
    }
    return true;
}

void cli_layout_text(const tsr_entry *entry, char *out, size_t capacity)
{
    const tsr_distribution *known = entry->distribution;
    if (known && known->placements.size) {
        snprintf(out, capacity, "%.*s%s%.*s", TSR_STR_ARG(known->placements), known->mesh.size ? " over " : "",
                 TSR_STR_ARG(known->mesh));
    } else if (entry->chunk_count == 1) {
        snprintf(out, capacity, "%s", is_whole(entry) ? "whole" : "1 chunk, not the whole tensor");
    } else if (entry->chunk_count == 0) {
        snprintf(out, capacity, "no chunks");
    } else if (entry->chunk_count > 4096 || !grid_text(entry, out, capacity)) {
        snprintf(out, capacity, "%" PRIu64 " chunks", entry->chunk_count);
    }
}
