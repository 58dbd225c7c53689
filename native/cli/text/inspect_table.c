/* The table and the tree of `inspect`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/text/inspect_view.h"
#include "tessera/sys/document.h"
#include "tessera/sys/value_walk.h"

static void times_text(uint64_t times, char *out, size_t capacity)
{
    if (times > 1) snprintf(out, capacity, "  ×%" PRIu64, times);
    else *out = '\0';
}

unsigned cli_name_width(tsr_str label, uint64_t times)
{
    char text[32];
    times_text(times, text, sizeof text);
    return cli_width(label) + cli_width(tsr_str_from(text));
}

void cli_put_name(const cli_view *v, tsr_str label, uint64_t times, unsigned width)
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

void cli_fit_names(cli_view *v, unsigned others)
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
    tsr_status status = cli_listing_rows(&v->listing, true, measure_tree_row, v, &tsr_allocator_libc, err);
    if (status != TSR_OK) return status;
    if (v->type_width > MOST_TYPE) v->type_width = MOST_TYPE;
    cli_fit_names(v, v->type_width + v->size_width + 6 + DETAILS_WIDTH);
    putchar('\n');
    return cli_listing_rows(&v->listing, true, put_tree_row, v, &tsr_allocator_libc, err);
}
