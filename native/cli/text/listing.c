/* See listing.h. Looks for a node on the previous entry's path first: names with the same prefix are mostly adjacent, so the
 * map of prefixes is rarely needed. */
#include "cli/text/listing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/try.h"

typedef struct builder {
    cli_listing *listing;
    tsr_map *prefixes; /* whole prefix → node */
    tsr_error *err;
    uint32_t path[CLI_MAX_DEPTH + 1]; /* nodes on the path of the previous entry */
    unsigned depth;
} builder;

static cli_node *listing_node_at(const cli_listing *listing, uint32_t index)
{
    return (cli_node *)listing->nodes.items + index;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* ---- building ---- */

static uint32_t add_node(builder *b, uint32_t parent, tsr_str name)
{
    uint32_t index = (uint32_t)b->listing->nodes.count;
    cli_node *node = tsr_vec_push(&b->listing->nodes, b->err);
    if (!node) return CLI_NO_NODE;
    *node = (cli_node){.name = name,
                       .parent = parent,
                       .first = CLI_NO_NODE,
                       .last = CLI_NO_NODE,
                       .next = CLI_NO_NODE,
                       .folded = 1,
                       .fold_next = CLI_NO_NODE};
    if (parent == CLI_NO_NODE) return index;
    cli_node *above = listing_node_at(b->listing, parent);
    if (above->last == CLI_NO_NODE) above->first = index;
    else listing_node_at(b->listing, above->last)->next = index;
    above->last = index;
    return index;
}

/* The child of `parent` for the component `name`; `prefix` is everything up to its end. */
static uint32_t child_of(builder *b, uint32_t parent, tsr_str name, tsr_str prefix, unsigned depth)
{
    if (b->depth > depth && listing_node_at(b->listing, b->path[depth])->parent == parent &&
        tsr_str_equal(listing_node_at(b->listing, b->path[depth])->name, name)) {
        return b->path[depth];
    }
    b->depth = depth;
    uint32_t *known;
    bool is_new;
    if (tsr_map_put(b->prefixes, prefix, (uint32_t)b->listing->nodes.count, &known, &is_new, b->err) != TSR_OK)
        return CLI_NO_NODE;
    return is_new ? add_node(b, parent, name) : *known;
}

static tsr_status add_entry(builder *b, const tsr_entry *entry)
{
    tsr_str fqn = entry->fqn;
    uint32_t at = 0;
    unsigned depth = 0;
    for (size_t start = 0;; depth++) {
        const char *dot =
            depth + 1 < CLI_MAX_DEPTH && start < fqn.size ? memchr(fqn.data + start, '.', fqn.size - start) : NULL;
        size_t end = dot ? (size_t)(dot - fqn.data) : fqn.size;
        at = child_of(b, at, (tsr_str){fqn.data + start, end - start}, (tsr_str){fqn.data, end}, depth);
        if (at == CLI_NO_NODE) return TSR_E_NOMEM;
        b->path[depth] = at;
        if (b->depth <= depth) b->depth = depth + 1;
        if (!dot) break;
        start = end + 1;
    }
    b->depth = depth + 1;
    listing_node_at(b->listing, at)->entry = entry;
    return TSR_OK;
}

/* ---- totals and signatures ---- */

static uint64_t hash_text(const char *text)
{
    return tsr_hash_bytes(text, strlen(text), 7);
}

static uint64_t hash_numbers(const tsr_entry *entry, const uint64_t *numbers)
{
    return tsr_hash_bytes(numbers, entry->ndim * sizeof *numbers, 5);
}

static void take_entry(cli_node *node)
{
    const tsr_entry *entry = node->entry;
    char text[160];
    uint64_t elements = 0, bytes = 0;
    node->signature = mix(node->signature, (uint64_t)entry->kind + 1);
    if (entry->kind != TSR_ENTRY_TENSOR) {
        node->others++;
        if (entry->value) node->signature = mix(node->signature, hash_text(tsr_value_text(entry->value, text, sizeof text)));
        node->signature = mix(node->signature, tsr_hash_bytes(entry->type.data, entry->type.size, 3));
        return;
    }
    tsr_entry_elements(entry, &elements);
    tsr_entry_bytes(entry, &bytes);
    node->tensors++;
    node->elements += elements;
    node->bytes += bytes;
    if (node->dtype == TSR_DTYPE_NONE) node->dtype = entry->dtype;
    else if (node->dtype != entry->dtype) node->mixed = true;
    node->signature = mix(mix(node->signature, (uint64_t)entry->dtype), hash_numbers(entry, entry->shape));
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        node->signature += mix(hash_numbers(entry, entry->chunks[c].offsets), hash_numbers(entry, entry->chunks[c].sizes));
    }
}

/* Children have higher indices than their parents, so one pass from the end adds up totals bottom-up. */
static void add_up(cli_listing *listing)
{
    for (size_t i = listing->nodes.count; i-- > 0;) {
        cli_node *node = listing_node_at(listing, (uint32_t)i);
        if (node->entry) take_entry(node);
        if (node->parent == CLI_NO_NODE) continue;
        cli_node *above = listing_node_at(listing, node->parent);
        above->tensors += node->tensors;
        above->others += node->others;
        above->elements += node->elements;
        above->bytes += node->bytes;
        above->mixed |=
            node->mixed || (above->dtype != TSR_DTYPE_NONE && node->dtype != TSR_DTYPE_NONE && above->dtype != node->dtype);
        if (above->dtype == TSR_DTYPE_NONE) above->dtype = node->dtype;
        /* A sum, so the order of children does not matter. */
        above->signature += mix(tsr_hash_bytes(node->name.data, node->name.size, 1), node->signature);
    }
}

/* ---- folding ---- */

typedef struct numbered {
    uint64_t signature;
    uint64_t number;
    uint32_t node;
} numbered;

/* Whether a component is a plain number of at most nine digits. */
static bool cli_number_of(tsr_str name, uint64_t *number)
{
    if (name.size == 0 || name.size > 9 || (name.size > 1 && name.data[0] == '0')) return false;
    *number = 0;
    for (size_t i = 0; i < name.size; i++) {
        if (name.data[i] < '0' || name.data[i] > '9') return false;
        *number = *number * 10 + (uint64_t)(name.data[i] - '0');
    }
    return true;
}

static int numbered_order(const void *a, const void *b)
{
    const numbered *x = a, *y = b;
    if (x->signature != y->signature) return x->signature < y->signature ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static void fold_group(cli_listing *listing, const numbered *items, size_t count)
{
    cli_node *head = listing_node_at(listing, items[0].node);
    head->folded = (uint32_t)count;
    for (size_t i = 1; i < count; i++) {
        listing_node_at(listing, items[i].node)->folded = 0;
        listing_node_at(listing, items[i - 1].node)->fold_next = items[i].node;
    }
}

static void fold_children(cli_listing *listing, tsr_vec *numbers)
{
    numbered *items = numbers->items;
    size_t largest = 0;
    qsort(items, numbers->count, sizeof *items, numbered_order);
    for (size_t from = 0, to; from < numbers->count; from = to) {
        for (to = from + 1; to < numbers->count && items[to].signature == items[from].signature;) to++;
        fold_group(listing, items + from, to - from);
        if (to - from > largest) largest = to - from;
    }
    if (largest < 3 || largest * 2 < numbers->count) return;
    for (size_t i = 0; i < numbers->count; i++) {
        cli_node *node = listing_node_at(listing, items[i].node);
        node->odd = node->folded == 1;
    }
}

static tsr_status fold(cli_listing *listing, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_vec numbers = tsr_vec_of(allocator, sizeof(numbered));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < listing->nodes.count && status == TSR_OK; i++) {
        numbers.count = 0;
        for (uint32_t c = listing_node_at(listing, i)->first; c != CLI_NO_NODE; c = listing_node_at(listing, c)->next) {
            uint64_t number;
            if (!cli_number_of(listing_node_at(listing, c)->name, &number)) continue;
            numbered *item = tsr_vec_push(&numbers, err);
            if (!item) status = TSR_E_NOMEM;
            else *item = (numbered){listing_node_at(listing, c)->signature, number, c};
        }
        if (status == TSR_OK && numbers.count > 1) fold_children(listing, &numbers);
    }
    tsr_vec_free(&numbers);
    return status;
}

tsr_status cli_listing_build(const tsr_catalog *catalog, bool (*keeps)(const void *ctx, tsr_str fqn), const void *ctx,
                             const tsr_allocator *allocator, cli_listing *out, tsr_error *err)
{
    *out = (cli_listing){tsr_vec_of(allocator, sizeof(cli_node))};
    builder b = {.listing = out, .err = err, .prefixes = tsr_map_new(allocator, (size_t)catalog->entry_count, err)};
    tsr_status status = b.prefixes && add_node(&b, CLI_NO_NODE, TSR_STR("")) == 0 ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        if (!keeps || keeps(ctx, catalog->entries[i].fqn)) status = add_entry(&b, &catalog->entries[i]);
    }
    if (status == TSR_OK) {
        add_up(out);
        status = fold(out, allocator, err);
    }
    tsr_map_free(b.prefixes);
    return status;
}

void cli_listing_free(cli_listing *listing)
{
    tsr_vec_free(&listing->nodes);
}

/* ---- listing rows ---- */

/* Produces the rows of a listing, and the texts of their cells. */

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

/* Calls `each` for every row. A table has the nodes with an entry, with their whole folded names. A tree has every node
 * except those inside a node that contains only objects; a chain of single children is one row. */
static tsr_status cli_listing_rows(const cli_listing *listing, bool tree, void (*each)(void *ctx, const cli_row *row),
                                   void *ctx, const tsr_allocator *allocator, tsr_error *err)
{
    walker w = {listing, tree, each, ctx, tsr_vec_of(allocator, 1), err, false};
    walk(&w, node_at(listing, 0), 0, 1, 0);
    tsr_vec_free(&w.label);
    return w.failed ? TSR_E_NOMEM : TSR_OK;
}

/* The dtype of a node, such as "float32"; "mixed" if there are several. */
static const char *cli_node_dtype(const cli_node *node)
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

/* ---- inspect table ---- */

/* The table and the tree of `inspect`. */

static void times_text(uint64_t times, char *out, size_t capacity)
{
    if (times > 1) snprintf(out, capacity, "  ×%" PRIu64, times);
    else *out = '\0';
}

/* The width of `label` followed by "  ×N", which cli_put_name prints, padded to `width` columns. */
static unsigned cli_name_width(tsr_str label, uint64_t times)
{
    char text[32];
    times_text(times, text, sizeof text);
    return cli_width(label) + cli_width(tsr_str_from(text));
}

static void cli_put_name(const cli_view *v, tsr_str label, uint64_t times, unsigned width)
{
    char text[32];
    times_text(times, text, sizeof text);
    unsigned suffix = cli_width(tsr_str_from(text)), room = width > suffix ? width - suffix : 1, used = cli_width(label);
    cli_put_fitted(stdout, label, room, false);
    cli_on(v->out, stdout, CLI_DIM);
    fputs(text, stdout);
    cli_off(v->out, stdout);
    if (used < room) cli_pad(stdout, room - used);
}

/* On a terminal, narrows the column of names so that `others` further columns fit into the line. */
static void cli_fit_names(cli_view *v, unsigned others)
{
    enum { LEAST = 24 };
    unsigned most = v->out->columns > others + LEAST ? v->out->columns - others : LEAST;
    if (v->out->is_terminal && v->name_width > most) v->name_width = most;
}

static tsr_str shown_name(const cli_row *row)
{
    return row->label.size ? row->label : TSR_STR("(root)");
}

static uint64_t row_bytes(const cli_row *row)
{
    uint64_t bytes = 0;
    if (row->node->entry && row->node->entry->kind == TSR_ENTRY_TENSOR) tsr_entry_bytes(row->node->entry, &bytes);
    return bytes * row->times;
}

/* ---- shared storage ---- */

typedef struct partner {
    uint32_t storage_id;
    const tsr_entry *entry;
} partner;

static int partner_order(const void *a, const void *b)
{
    const partner *x = a, *y = b;
    if (x->storage_id != y->storage_id) return x->storage_id < y->storage_id ? -1 : 1;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

static tsr_status find_partners(cli_view *v, tsr_error *err)
{
    const tsr_catalog *catalog = v->session->catalog;
    v->partners = tsr_vec_of(&tsr_allocator_libc, sizeof(partner));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (!catalog->entries[i].storage_id) continue;
        partner *item = tsr_vec_push(&v->partners, err);
        if (!item) return TSR_E_NOMEM;
        *item = (partner){catalog->entries[i].storage_id, &catalog->entries[i]};
    }
    if (v->partners.count) qsort(v->partners.items, v->partners.count, sizeof(partner), partner_order);
    return TSR_OK;
}

/* The first other tensor that uses the entry's storage; NULL if there is none. */
static const tsr_entry *partner_of(const cli_view *v, const tsr_entry *entry)
{
    const partner *items = v->partners.items;
    size_t low = 0, high = v->partners.count;
    if (!entry->storage_id) return NULL;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (items[middle].storage_id < entry->storage_id) low = middle + 1;
        else high = middle;
    }
    if (low < v->partners.count && items[low].entry == entry) low++;
    return low < v->partners.count && items[low].storage_id == entry->storage_id ? items[low].entry : NULL;
}

/* ---- table ---- */

static void measure_row(void *ctx, const cli_row *row)
{
    cli_view *v = ctx;
    const tsr_entry *entry = row->node->entry;
    char shape[CLI_CELL];
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    cli_shape_text(entry, shape, sizeof shape);
    cli_widen(&v->name_width, cli_name_width(shown_name(row), row->times));
    cli_widen(&v->type_width, (unsigned)strlen(tsr_dtype_describe(entry->dtype)->name));
    cli_widen(&v->shape_width, (unsigned)strlen(shape));
    cli_widen(&v->size_width, (unsigned)strlen(cli_bytes(row_bytes(row)).text));
    v->has_stored |= entry->chunk_count != 1 || entry->distribution || partner_of(v, entry);
}

static void put_stored(const cli_view *v, const tsr_entry *entry)
{
    char layout[CLI_CELL];
    const tsr_entry *other = partner_of(v, entry);
    cli_layout_text(entry, layout, sizeof layout);
    cli_on(v->out, stdout, CLI_DIM);
    fputs("  ", stdout);
    cli_put(stdout, tsr_str_from(layout));
    if (other) {
        fputs(", shares ", stdout);
        cli_put(stdout, other->fqn);
    }
    cli_off(v->out, stdout);
}

static void put_row(void *ctx, const cli_row *row)
{
    const cli_view *v = ctx;
    const tsr_entry *entry = row->node->entry;
    char shape[CLI_CELL];
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    cli_shape_text(entry, shape, sizeof shape);
    cli_put_name(v, shown_name(row), row->times, v->name_width);
    printf("  %-*s  %-*s  %*s", (int)v->type_width, tsr_dtype_describe(entry->dtype)->name, (int)v->shape_width, shape,
           (int)v->size_width, cli_bytes(row_bytes(row)).text);
    if (v->has_stored) put_stored(v, entry);
    putchar('\n');
}

tsr_status cli_put_table(cli_view *v, tsr_error *err)
{
    enum { STORED_WIDTH = 14 };
    v->name_width = 6, v->type_width = 5, v->shape_width = 5, v->size_width = 4;
    tsr_status status = find_partners(v, err);
    if (status == TSR_OK) status = cli_listing_rows(&v->listing, false, measure_row, v, &tsr_allocator_libc, err);
    if (status == TSR_OK) {
        cli_fit_names(v, v->type_width + v->shape_width + v->size_width + 8 + (v->has_stored ? STORED_WIDTH : 0));
        cli_on(v->out, stdout, CLI_BOLD);
        printf("\n%-*s  %-*s  %-*s  %*s%s\n", (int)v->name_width, "TENSOR", (int)v->type_width, "DTYPE", (int)v->shape_width,
               "SHAPE", (int)v->size_width, "SIZE", v->has_stored ? "  STORED" : "");
        cli_off(v->out, stdout);
        status = cli_listing_rows(&v->listing, false, put_row, v, &tsr_allocator_libc, err);
    }
    tsr_vec_free(&v->partners);
    return status;
}

/* ---- tree ---- */

static unsigned branch_width(const cli_row *row)
{
    return 3 * row->depth;
}

static void put_branch(const cli_view *v, const cli_row *row)
{
    cli_on(v->out, stdout, CLI_DIM);
    for (unsigned d = 1; d < row->depth; d++) fputs(row->last_at >> d & 1 ? "   " : "│  ", stdout);
    if (row->depth) fputs(row->last_at >> row->depth & 1 ? "└─ " : "├─ ", stdout);
    cli_off(v->out, stdout);
}

static void count_text(const cli_row *row, char *out, size_t capacity)
{
    const cli_node *node = row->node;
    cli_words tensors = cli_plural(node->tensors * row->times, "tensor"),
              objects = cli_plural(node->others * row->times, "object");
    snprintf(out, capacity, "%s%s%s", node->tensors ? tensors.text : "", node->tensors && node->others ? ", " : "",
             node->others ? objects.text : "");
}

static void details_text(const cli_row *row, char *out, size_t capacity)
{
    const tsr_entry *entry = row->node->entry;
    char shape[CLI_CELL], layout[CLI_CELL];
    *out = '\0';
    if (!entry) {
        count_text(row, out, capacity);
    } else if (entry->kind == TSR_ENTRY_TENSOR) {
        cli_shape_text(entry, shape, sizeof shape);
        cli_layout_text(entry, layout, sizeof layout);
        snprintf(out, capacity, "%s%s%s", shape, entry->chunk_count == 1 && !entry->distribution ? "" : "  ",
                 entry->chunk_count == 1 && !entry->distribution ? "" : layout);
    } else if (entry->value) {
        tsr_value_text(entry->value, out, capacity);
    }
}

static tsr_str type_text(const cli_row *row)
{
    const tsr_entry *entry = row->node->entry;
    return entry && entry->kind != TSR_ENTRY_TENSOR ? entry->type : tsr_str_from(cli_node_dtype(row->node));
}

static void measure_tree_row(void *ctx, const cli_row *row)
{
    cli_view *v = ctx;
    cli_widen(&v->name_width, branch_width(row) + cli_name_width(shown_name(row), row->times));
    cli_widen(&v->type_width, cli_width(type_text(row)));
    cli_widen(&v->size_width, (unsigned)strlen(cli_bytes(row->node->bytes * row->times).text));
}

static void put_tree_row(void *ctx, const cli_row *row)
{
    const cli_view *v = ctx;
    char details[4 * CLI_CELL];
    unsigned branch = branch_width(row), width = v->name_width > branch + 8 ? v->name_width - branch : 8;
    unsigned before = branch + width + v->size_width + v->type_width + 6;
    const char *note = row->odd ? "  unlike its siblings" : "";
    before += (unsigned)strlen(note);
    unsigned room = !v->out->is_terminal ? 200 : v->out->columns > before + 16 ? v->out->columns - before : 16;
    put_branch(v, row);
    if (!row->node->entry) cli_on(v->out, stdout, CLI_BOLD);
    cli_put_name(v, shown_name(row), row->times, width);
    cli_off(v->out, stdout);
    printf("  %*s  ", (int)v->size_width, row->node->tensors ? cli_bytes(row->node->bytes * row->times).text : "");
    cli_put_fitted(stdout, type_text(row), v->type_width, true);
    fputs("  ", stdout);
    details_text(row, details, sizeof details);
    cli_put_fitted(stdout, tsr_str_from(details), room, false);
    cli_on(v->out, stdout, CLI_YELLOW);
    fputs(note, stdout);
    cli_off(v->out, stdout);
    putchar('\n');
}

tsr_status cli_put_tree(cli_view *v, tsr_error *err)
{
    enum { MOST_TYPE = 24, DETAILS_WIDTH = 24 };
    v->name_width = 6, v->type_width = 5, v->size_width = 4;
    TSR_TRY(cli_listing_rows(&v->listing, true, measure_tree_row, v, &tsr_allocator_libc, err));
    if (v->type_width > MOST_TYPE) v->type_width = MOST_TYPE;
    cli_fit_names(v, v->type_width + v->size_width + 6 + DETAILS_WIDTH);
    putchar('\n');
    return cli_listing_rows(&v->listing, true, put_tree_row, v, &tsr_allocator_libc, err);
}

/* ---- inspect objects ---- */

/* The objects of `inspect`. Optimizers repeat their options for every parameter. Equal values whose names have the same
 * beginning and end are therefore printed as one line, "optim.param_groups.**.lr  ×17". */

typedef struct object_row {
    const tsr_entry *entry; /* the first of the group */
    uint64_t times;
    uint64_t key;
    uint64_t order;
    tsr_str prefix; /* common beginning of all names: whole components, and the dot after them */
} object_row;

static uint64_t hash(tsr_str text, uint64_t seed)
{
    return tsr_hash_bytes(text.data, text.size, seed);
}

static tsr_str first_component(tsr_str name)
{
    const char *dot = name.size ? memchr(name.data, '.', name.size) : NULL;
    return (tsr_str){name.data, dot ? (size_t)(dot - name.data) : name.size};
}

static bool hold_alike(const tsr_entry *a, const tsr_entry *b)
{
    return a && b && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
}

/* Describes what the ranks hold: "bfloat16 [4, 8] on 2 ranks", or "float32 [4], [3], none". */
static void per_rank_text(const tsr_per_rank *ranks, char *out, size_t capacity)
{
    size_t used = 0;
    uint32_t alike = 1;
    tsr_dtype dtype = TSR_DTYPE_NONE;
    while (alike < ranks->count && hold_alike(ranks->tensors[0], ranks->tensors[alike])) alike++;
    for (uint32_t r = 0; r < (alike == ranks->count ? 1 : ranks->count) && used < capacity; r++) {
        const tsr_entry *held = ranks->tensors[r];
        char shape[CLI_CELL] = "none";
        const bool shows_dtype = held && held->dtype != dtype;
        if (held) cli_shape_text(held, shape, sizeof shape);
        if (held) dtype = held->dtype;
        used += (size_t)snprintf(out + used, capacity - used, "%s%s%s%s", r ? ", " : "",
                                 shows_dtype ? tsr_dtype_describe(dtype)->name : "", shows_dtype ? " " : "", shape);
    }
    if (alike == ranks->count && used < capacity) snprintf(out + used, capacity - used, " on %u ranks", ranks->count);
}

static uint64_t key_of(const tsr_entry *entry)
{
    char text[4 * CLI_CELL];
    uint64_t key = hash(entry->type, hash(tsr_last_component(entry->fqn), hash(first_component(entry->fqn), 1)));
    if (entry->per_rank) {
        per_rank_text(entry->per_rank, text, sizeof text);
        return hash(tsr_str_from(text), key);
    }
    return entry->value ? hash(tsr_str_from(tsr_value_text(entry->value, text, sizeof text)), key) : key;
}

static int by_key(const void *a, const void *b)
{
    const object_row *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static int by_order(const void *a, const void *b)
{
    const object_row *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_str common_prefix(tsr_str a, tsr_str b)
{
    size_t size = 0, dot = 0;
    while (size < a.size && size < b.size && a.data[size] == b.data[size]) {
        if (a.data[size++] == '.') dot = size;
    }
    return (tsr_str){a.data, dot};
}

static tsr_status collect(const cli_view *v, tsr_vec *rows, tsr_error *err)
{
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        const tsr_entry *entry = nodes[i].entry;
        if (!entry || entry->kind == TSR_ENTRY_TENSOR) continue;
        object_row *row = tsr_vec_push(rows, err);
        if (!row) return TSR_E_NOMEM;
        *row = (object_row){entry, 1, key_of(entry), (uint64_t)(entry - v->session->catalog->entries), entry->fqn};
    }
    return TSR_OK;
}

/* Turns groups of three or more into one row, at the position of their first member. */
static void group(tsr_vec *rows)
{
    object_row *items = rows->items;
    size_t kept = 0;
    qsort(items, rows->count, sizeof *items, by_key);
    for (size_t from = 0, to; from < rows->count; from = to) {
        for (to = from + 1; to < rows->count && items[to].key == items[from].key;) to++;
        if (to - from < 3) {
            for (size_t i = from; i < to; i++) items[kept++] = items[i];
            continue;
        }
        object_row folded = items[from];
        folded.times = to - from;
        for (size_t i = from + 1; i < to; i++) folded.prefix = common_prefix(folded.prefix, items[i].entry->fqn);
        items[kept++] = folded;
    }
    rows->count = kept;
    qsort(items, kept, sizeof *items, by_order);
}

static tsr_str label_of(const object_row *row, char *buffer, size_t capacity)
{
    if (row->times == 1) return row->entry->fqn.size ? row->entry->fqn : TSR_STR("(root)");
    tsr_str last = tsr_last_component(row->entry->fqn);
    snprintf(buffer, capacity, "%.*s**.%.*s", TSR_STR_ARG(row->prefix), TSR_STR_ARG(last));
    return tsr_str_from(buffer);
}

static void put_object(const cli_view *v, const object_row *row)
{
    char text[4 * CLI_CELL], label[4 * CLI_CELL];
    const tsr_entry *entry = row->entry;
    bool opaque = entry->kind == TSR_ENTRY_OPAQUE && !entry->per_rank;
    cli_put_name(v, label_of(row, label, sizeof label), row->times, v->name_width);
    fputs("  ", stdout);
    cli_put_fitted(stdout, entry->type, v->type_width, true);
    fputs("  ", stdout);
    cli_on(v->out, stdout, CLI_YELLOW);
    if (opaque) fputs("opaque ", stdout);
    cli_off(v->out, stdout);
    unsigned used = v->name_width + v->type_width + 4 + (opaque ? 7 : 0);
    unsigned room = v->out->columns > used + 20 ? v->out->columns - used : 20;
    if (entry->per_rank) {
        per_rank_text(entry->per_rank, text, sizeof text);
        cli_put_fitted(stdout, tsr_str_from(text), room, false);
    }
    if (entry->value) cli_put_fitted(stdout, tsr_str_from(tsr_value_text(entry->value, text, sizeof text)), room, false);
    putchar('\n');
}

static void put_rows(cli_view *v, const tsr_vec *rows)
{
    enum { MOST_TYPE = 32, VALUE_WIDTH = 24 };
    const object_row *items = rows->items;
    v->name_width = 6, v->type_width = 4;
    for (size_t i = 0; i < rows->count; i++) {
        char label[4 * CLI_CELL];
        cli_widen(&v->name_width, cli_name_width(label_of(&items[i], label, sizeof label), items[i].times));
        cli_widen(&v->type_width, cli_width(items[i].entry->type));
    }
    if (v->type_width > MOST_TYPE) v->type_width = MOST_TYPE;
    cli_fit_names(v, v->type_width + 4 + VALUE_WIDTH);
    cli_on(v->out, stdout, CLI_BOLD);
    printf("\n%-*s  %-*s  %s\n", (int)v->name_width, "OBJECT", (int)v->type_width, "TYPE", "VALUE");
    cli_off(v->out, stdout);
    for (size_t i = 0; i < rows->count; i++) put_object(v, &items[i]);
}

tsr_status cli_put_objects(cli_view *v, tsr_error *err)
{
    if (cli_view_root(v)->others == 0) return TSR_OK;
    tsr_vec rows = tsr_vec_of(&tsr_allocator_libc, sizeof(object_row));
    tsr_status status = collect(v, &rows, err);
    if (status == TSR_OK) {
        group(&rows);
        put_rows(v, &rows);
    }
    tsr_vec_free(&rows);
    return status;
}
