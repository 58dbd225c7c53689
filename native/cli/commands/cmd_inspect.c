/* `tessera inspect`: shows what a checkpoint contains. core makes the JSON document; the text is a summary, a
 * table or tree in which equal layers are folded (cli/text/listing.c), objects and findings. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands/commands.h"
#include "cli/text/listing.h"
#include "cli/text/report_text.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

typedef struct view {
    const cli_terminal *out;
    const cli_session *session;
    cli_listing listing;
    tsr_vec partners;                                         /* tensors, sorted by storage */
    unsigned name_width, type_width, shape_width, size_width; /* in columns */
    bool has_stored; /* a tensor is sharded or shares its storage, which needs another column */
} view;

enum { CELL = 128 };

static const cli_node *view_root(const view *v)
{
    return v->listing.nodes.items;
}

static void widen(unsigned *column, unsigned width)
{
    if (width > *column) *column = width;
}

/* ---- the summary: sizes, dtypes and sharding ---- */

typedef struct share {
    uint64_t bytes, tensors;
} share;

static int largest_share(const share *shares)
{
    int most = -1;
    for (int d = 0; d < TSR_DTYPE_COUNT; d++) {
        if (shares[d].tensors && (most < 0 || shares[d].bytes > shares[most].bytes)) most = d;
    }
    return most;
}

/* Prints "float32 98%, bfloat16 2%": the largest shares, in descending order. */
static void put_mix(const view *v)
{
    enum { MOST = 5 };
    share shares[TSR_DTYPE_COUNT] = {{0}};
    const cli_node *nodes = v->listing.nodes.items;
    unsigned left = 0;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        uint64_t bytes = 0;
        if (!nodes[i].entry || nodes[i].entry->kind != TSR_ENTRY_TENSOR) continue;
        share *s = &shares[nodes[i].entry->dtype];
        tsr_entry_bytes(nodes[i].entry, &bytes);
        left += s->tensors++ == 0;
        s->bytes += bytes;
    }
    const unsigned kinds = left;
    for (int most; (most = largest_share(shares)) >= 0; left--) {
        if (kinds - left == MOST && left > 1) {
            printf(" and %u more dtypes", left);
            break;
        }
        double percent = nodes->bytes ? 100.0 * (double)shares[most].bytes / (double)nodes->bytes : 0;
        printf("%s%s", left == kinds ? "" : ", ", tsr_dtype_describe((tsr_dtype)most)->name);
        if (kinds > 1 && percent >= 99.5) fputs(" >99%", stdout);
        else if (kinds > 1 && percent >= 0.1) printf(" %.*f%%", percent < 9.95 ? 1 : 0, percent);
        else if (kinds > 1) printf(" %s", cli_bytes(shares[most].bytes).text);
        shares[most].tensors = 0;
    }
    putchar('\n');
}

typedef struct cut {
    uint64_t chunks, tensors;
} cut;

static int cut_order(const void *a, const void *b)
{
    const cut *x = a, *y = b;
    return (x->tensors < y->tensors) - (x->tensors > y->tensors);
}

/* Prints "40 tensors in 2 chunks, 12 in 4, 26 whole": how many tensors have how many chunks. */
static void put_sharding(const view *v)
{
    enum { KINDS = 8, SHOWN = 4 };
    cut cuts[KINDS] = {{0}};
    uint64_t whole = 0, others = 0, replicated = 0;
    unsigned kinds = 0;
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        const tsr_entry *entry = nodes[i].entry;
        if (!entry || entry->kind != TSR_ENTRY_TENSOR) continue;
        replicated += entry->replica_count > 0;
        unsigned k = 0;
        while (k < kinds && cuts[k].chunks != entry->chunk_count) k++;
        if (entry->chunk_count == 1) whole++;
        else if (k < KINDS) cuts[k].chunks = entry->chunk_count, cuts[k].tensors++, kinds += k == kinds;
        else others++;
    }
    if (kinds == 0 && !replicated) {
        puts("not sharded");
        return;
    }
    qsort(cuts, kinds, sizeof *cuts, cut_order);
    const char *between = "";
    for (unsigned k = 0; k < kinds; k++) {
        if (k >= SHOWN) others += cuts[k].tensors;
        else if (k == 0)
            printf("%s in %s", cli_plural(cuts[k].tensors, "tensor").text, cli_plural(cuts[k].chunks, "chunk").text);
        else printf(", %s in %s", cli_number(cuts[k].tensors).text, cli_number(cuts[k].chunks).text);
        between = ", ";
    }
    if (others) printf("%s%s in different numbers", between, cli_number(others).text), between = ", ";
    if (whole) printf("%s%s whole", between, cli_number(whole).text);
    if (replicated) printf("; %s held more than once", cli_number(replicated).text);
    putchar('\n');
}

static uint64_t count_data_files(const tsr_catalog *catalog)
{
    uint64_t count = 0;
    tsr_error ignored = {0};
    size_t room = catalog->store->file_count + 1;
    uint8_t *seen = tsr_alloc(&tsr_allocator_libc, room, 1, &ignored);
    if (!seen) return 0;
    memset(seen, 0, room);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        for (uint64_t c = 0; c < catalog->entries[i].chunk_count; c++) {
            uint32_t file = catalog->entries[i].chunks[c].file;
            if (file < catalog->store->file_count && !seen[file]) seen[file] = 1, count++;
        }
    }
    tsr_free(&tsr_allocator_libc, seen, room, 1);
    return count;
}

static bool differs_by_rank(const tsr_entry *entry)
{
    return entry->per_rank;
}

/* Whether it is a tensor of which only an index tells the name, because its file is missing. */
static bool is_missing(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_OPAQUE && !entry->value && tsr_str_equal(entry->type, TSR_STR("missing"));
}

static uint64_t count_entries(const view *v, bool (*counts)(const tsr_entry *entry))
{
    uint64_t count = 0;
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) count += nodes[i].entry && counts(nodes[i].entry);
    return count;
}

/* Prints which of the checkpoints in a directory was opened. */
static void put_step(const view *v)
{
    const char *marker;
    const tsr_str step = tsr_checkpoint_step(v->session->checkpoint, &marker);
    if (!step.size) return;
    fputs("  step ", stdout);
    cli_put(stdout, step);
    printf(marker ? ", which the file '%s' names\n" : "\n", marker);
}

/* Prints "parts: model (safetensors, 12 tensors), scheduler (torch-zip, 8 objects)". The contents of parts that were not
 * opened are unknown. */
static void put_parts(const view *v)
{
    const tsr_catalog *catalog = v->session->catalog;
    for (uint32_t p = 0; p < catalog->part_count; p++) {
        const tsr_part *part = &catalog->parts[p];
        uint64_t tensors = 0, missing = 0;
        for (uint64_t i = 0; i < part->entry_count; i++) {
            tensors += catalog->entries[part->first_entry + i].kind == TSR_ENTRY_TENSOR;
            missing += is_missing(&catalog->entries[part->first_entry + i]);
        }
        const uint64_t objects = part->entry_count - tensors - missing;
        fputs(p ? ", " : "  parts: ", stdout);
        cli_put(stdout, part->name.size ? part->name : TSR_STR("(without a name)"));
        printf(" (%s", tsr_format_name(part->format));
        if (tensors) printf(", %s", cli_plural(tensors, "tensor").text);
        if (missing) printf(", %s without a file", cli_plural(missing, "tensor").text);
        if (objects) printf(", %s", cli_plural(objects, "object").text);
        putchar(')');
    }
    if (catalog->part_count) putchar('\n');
}

/* Prints "metadata: format = pt, modelspec.author = A. Berg, and 3 more": the first pairs, each shortened. */
static void put_metadata(const view *v)
{
    enum { MOST = 8, KEY_COLUMNS = 40, VALUE_COLUMNS = 60 };
    const tsr_catalog *catalog = v->session->catalog;
    const size_t shown = catalog->metadata_count <= MOST + 1 ? catalog->metadata_count : MOST;
    for (size_t i = 0; i < shown; i++) {
        fputs(i ? ", " : "  metadata: ", stdout);
        cli_put_fitted(stdout, catalog->metadata[i].key, KEY_COLUMNS, false);
        fputs(" = ", stdout);
        cli_put_fitted(stdout, catalog->metadata[i].value, VALUE_COLUMNS, false);
    }
    if (shown < catalog->metadata_count)
        printf(", and %s more (--json lists all)", cli_number(catalog->metadata_count - shown).text);
    if (shown) putchar('\n');
}

/* "6.74 billion": letters are units of bytes. */
static cli_words short_number(uint64_t number)
{
    static const char *const scales[] = {"", " thousand", " million", " billion", " trillion", " quadrillion"};
    cli_words words;
    double value = (double)number;
    unsigned scale = 0;
    while (value >= 999.5 && scale < 5) {
        value /= 1000;
        scale++;
    }
    snprintf(words.text, sizeof words.text, value < 999.5 ? "%.3g%s" : "%.0f%s", value, scales[scale]);
    return words;
}

/* Prints the summary. */
static void put_head(const view *v)
{
    const cli_node *root = view_root(v);
    uint64_t files = count_data_files(v->session->catalog);
    cli_on(v->out, stdout, CLI_BOLD);
    cli_put(stdout, tsr_str_from(v->session->path));
    cli_off(v->out, stdout);
    printf("  %s", tsr_format_name(v->session->catalog->format));
    if (files > 1) printf(", %s", cli_plural(files, "data file").text);
    putchar('\n');
    put_step(v);
    put_parts(v);
    printf("  %s, %s element%s, ", cli_plural(root->tensors, "tensor").text, short_number(root->elements).text,
           root->elements == 1 ? "" : "s");
    cli_on(v->out, stdout, CLI_BOLD);
    fputs(cli_bytes(root->bytes).text, stdout);
    cli_off(v->out, stdout);
    const uint64_t per_rank = count_entries(v, differs_by_rank), missing = count_entries(v, is_missing);
    const uint64_t objects = root->others - per_rank - missing;
    if (per_rank)
        printf(", %s that %s from rank to rank", cli_plural(per_rank, "tensor").text, per_rank == 1 ? "differs" : "differ");
    if (missing) printf(", %s whose %s missing", cli_plural(missing, "tensor").text, missing == 1 ? "file is" : "files are");
    if (objects) printf(", and %s", cli_plural(objects, "object").text);
    putchar('\n');
    if (root->tensors) {
        fputs("  ", stdout);
        put_mix(v);
        fputs("  ", stdout);
        put_sharding(v);
    }
    put_metadata(v);
}

/* ---- cells ---- */

/* The dtype of a node, such as "float32"; "mixed" if there are several. */
static const char *node_dtype(const cli_node *node)
{
    return node->mixed ? "mixed" : node->tensors ? tsr_dtype_describe(node->dtype)->name : "";
}

/* The table and the tree of `inspect`. */

static void times_text(uint64_t times, char *out, size_t capacity)
{
    if (times > 1) snprintf(out, capacity, "  ×%" PRIu64, times);
    else *out = '\0';
}

/* The width of `label` followed by "  ×N", which put_name prints, padded to `width` columns. */
static unsigned name_width(tsr_str label, uint64_t times)
{
    char text[32];
    times_text(times, text, sizeof text);
    return cli_width(label) + cli_width(tsr_str_from(text));
}

static void put_name(const view *v, tsr_str label, uint64_t times, unsigned width)
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
static void fit_names(view *v, unsigned others)
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

static tsr_status find_partners(view *v, tsr_error *err)
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
static const tsr_entry *partner_of(const view *v, const tsr_entry *entry)
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
    view *v = ctx;
    const tsr_entry *entry = row->node->entry;
    char shape[CELL];
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    cli_shape_text(entry, shape, sizeof shape);
    widen(&v->name_width, name_width(shown_name(row), row->times));
    widen(&v->type_width, (unsigned)strlen(tsr_dtype_describe(entry->dtype)->name));
    widen(&v->shape_width, (unsigned)strlen(shape));
    widen(&v->size_width, (unsigned)strlen(cli_bytes(row_bytes(row)).text));
    v->has_stored |= entry->chunk_count != 1 || entry->distribution || partner_of(v, entry);
}

static void put_stored(const view *v, const tsr_entry *entry)
{
    char layout[CELL];
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
    const view *v = ctx;
    const tsr_entry *entry = row->node->entry;
    char shape[CELL];
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    cli_shape_text(entry, shape, sizeof shape);
    put_name(v, shown_name(row), row->times, v->name_width);
    printf("  %-*s  %-*s  %*s", (int)v->type_width, tsr_dtype_describe(entry->dtype)->name, (int)v->shape_width, shape,
           (int)v->size_width, cli_bytes(row_bytes(row)).text);
    if (v->has_stored) put_stored(v, entry);
    putchar('\n');
}

/* One line per tensor; equal layers are folded. */
static tsr_status put_table(view *v, tsr_error *err)
{
    enum { STORED_WIDTH = 14 };
    v->name_width = 6, v->type_width = 5, v->shape_width = 5, v->size_width = 4;
    tsr_status status = find_partners(v, err);
    if (status == TSR_OK) status = cli_listing_rows(&v->listing, false, measure_row, v, err);
    if (status == TSR_OK) {
        fit_names(v, v->type_width + v->shape_width + v->size_width + 8 + (v->has_stored ? STORED_WIDTH : 0));
        cli_on(v->out, stdout, CLI_BOLD);
        printf("\n%-*s  %-*s  %-*s  %*s%s\n", (int)v->name_width, "TENSOR", (int)v->type_width, "DTYPE", (int)v->shape_width,
               "SHAPE", (int)v->size_width, "SIZE", v->has_stored ? "  STORED" : "");
        cli_off(v->out, stdout);
        status = cli_listing_rows(&v->listing, false, put_row, v, err);
    }
    tsr_vec_free(&v->partners);
    return status;
}

/* ---- tree ---- */

static unsigned branch_width(const cli_row *row)
{
    return 3 * row->depth;
}

static void put_branch(const view *v, const cli_row *row)
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
    char shape[CELL], layout[CELL];
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
    return entry && entry->kind != TSR_ENTRY_TENSOR ? entry->type : tsr_str_from(node_dtype(row->node));
}

static void measure_tree_row(void *ctx, const cli_row *row)
{
    view *v = ctx;
    widen(&v->name_width, branch_width(row) + name_width(shown_name(row), row->times));
    widen(&v->type_width, cli_width(type_text(row)));
    widen(&v->size_width, (unsigned)strlen(cli_bytes(row->node->bytes * row->times).text));
}

static void put_tree_row(void *ctx, const cli_row *row)
{
    const view *v = ctx;
    char details[4 * CELL];
    unsigned branch = branch_width(row), width = v->name_width > branch + 8 ? v->name_width - branch : 8;
    unsigned before = branch + width + v->size_width + v->type_width + 6;
    const char *note = row->odd ? "  unlike its siblings" : "";
    before += (unsigned)strlen(note);
    unsigned room = !v->out->is_terminal ? 200 : v->out->columns > before + 16 ? v->out->columns - before : 16;
    put_branch(v, row);
    if (!row->node->entry) cli_on(v->out, stdout, CLI_BOLD);
    put_name(v, shown_name(row), row->times, width);
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

/* One line per prefix. */
static tsr_status put_tree(view *v, tsr_error *err)
{
    enum { MOST_TYPE = 24, DETAILS_WIDTH = 24 };
    v->name_width = 6, v->type_width = 5, v->size_width = 4;
    TSR_TRY(cli_listing_rows(&v->listing, true, measure_tree_row, v, err));
    if (v->type_width > MOST_TYPE) v->type_width = MOST_TYPE;
    fit_names(v, v->type_width + v->size_width + 6 + DETAILS_WIDTH);
    putchar('\n');
    return cli_listing_rows(&v->listing, true, put_tree_row, v, err);
}

/* ---- objects ---- */

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
        char shape[CELL] = "none";
        const bool shows_dtype = held && held->dtype != dtype;
        if (held) cli_shape_text(held, shape, sizeof shape);
        if (held) dtype = held->dtype;
        used += (size_t)snprintf(out + used, capacity - used, "%s%s%s%s", r ? ", " : "",
                                 shows_dtype ? tsr_dtype_describe(dtype)->name : "", shows_dtype ? " " : "", shape);
    }
    if (alike == ranks->count && used < capacity) snprintf(out + used, capacity - used, " on %u ranks", ranks->count);
}

/* A quantized or sparse tensor is described by what it stands for, as in `bfloat16 [32, 64]`. */
static const char *object_text(const tsr_entry *entry, char *text, size_t capacity)
{
    if (entry->per_rank) {
        per_rank_text(entry->per_rank, text, capacity);
        return text;
    }
    if (entry->kind == TSR_ENTRY_OPAQUE && entry->dtype != TSR_DTYPE_NONE) {
        const int used = snprintf(text, capacity, "%s ", tsr_dtype_describe(entry->dtype)->name);
        cli_shape_text(entry, text + used, capacity - (size_t)used);
        return text;
    }
    return entry->value ? tsr_value_text(entry->value, text, capacity) : "";
}

static uint64_t key_of(const tsr_entry *entry)
{
    char text[4 * CELL];
    uint64_t key = hash(entry->type, hash(tsr_last_component(entry->fqn), hash(first_component(entry->fqn), 1)));
    return hash(tsr_str_from(object_text(entry, text, sizeof text)), key);
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

static tsr_status collect(const view *v, tsr_vec *rows, tsr_error *err)
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

static void put_object(const view *v, const object_row *row)
{
    char text[4 * CELL], label[4 * CELL];
    const tsr_entry *entry = row->entry;
    bool opaque = entry->kind == TSR_ENTRY_OPAQUE && !entry->per_rank;
    put_name(v, label_of(row, label, sizeof label), row->times, v->name_width);
    fputs("  ", stdout);
    cli_put_fitted(stdout, entry->type, v->type_width, true);
    fputs("  ", stdout);
    cli_on(v->out, stdout, CLI_YELLOW);
    if (opaque) fputs("opaque ", stdout);
    cli_off(v->out, stdout);
    unsigned used = v->name_width + v->type_width + 4 + (opaque ? 7 : 0);
    unsigned room = v->out->columns > used + 20 ? v->out->columns - used : 20;
    cli_put_fitted(stdout, tsr_str_from(object_text(entry, text, sizeof text)), room, false);
    putchar('\n');
}

static void put_rows(view *v, const tsr_vec *rows)
{
    enum { MOST_TYPE = 32, VALUE_WIDTH = 24 };
    const object_row *items = rows->items;
    v->name_width = 6, v->type_width = 4;
    for (size_t i = 0; i < rows->count; i++) {
        char label[4 * CELL];
        widen(&v->name_width, name_width(label_of(&items[i], label, sizeof label), items[i].times));
        widen(&v->type_width, cli_width(items[i].entry->type));
    }
    if (v->type_width > MOST_TYPE) v->type_width = MOST_TYPE;
    fit_names(v, v->type_width + 4 + VALUE_WIDTH);
    cli_on(v->out, stdout, CLI_BOLD);
    printf("\n%-*s  %-*s  %s\n", (int)v->name_width, "OBJECT", (int)v->type_width, "TYPE", "VALUE");
    cli_off(v->out, stdout);
    for (size_t i = 0; i < rows->count; i++) put_object(v, &items[i]);
}

/* Prints non-tensor objects. Equal values with many names are one line. */
static tsr_status put_objects(view *v, tsr_error *err)
{
    if (view_root(v)->others == 0) return TSR_OK;
    tsr_vec rows = tsr_vec_of(&tsr_allocator_libc, sizeof(object_row));
    tsr_status status = collect(v, &rows, err);
    if (status == TSR_OK) {
        group(&rows);
        put_rows(v, &rows);
    }
    tsr_vec_free(&rows);
    return status;
}

/* ---- values ---- */

static void put_digest(const tsr_digest *digest)
{
    for (size_t i = 0; i < digest->size; i++) printf("%02x", digest->bytes[i]);
}

enum { NARROW = 12, WIDE = 20 }; /* of columns; an int64 needs up to 20 characters */

static int width_of(const cli_session *session, const tsr_command_options *arguments)
{
    for (uint64_t i = 0; i < session->catalog->entry_count; i++) {
        const tsr_entry *entry = &session->catalog->entries[i];
        const bool is_long = entry->kind == TSR_ENTRY_TENSOR && (entry->dtype == TSR_INT64 || entry->dtype == TSR_UINT64);
        if (is_long && tsr_globs_select(&arguments->selection, entry->fqn)) return WIDE;
    }
    return NARROW;
}

/* Integers are not rounded. */
static void put_extreme(tsr_extremes_kind kind, uint64_t integer, double real, bool is_whole, int width)
{
    if (kind == TSR_EXTREMES_SIGNED) printf("%*" PRId64 " ", width, (int64_t)integer);
    else if (kind == TSR_EXTREMES_UNSIGNED) printf("%*" PRIu64 " ", width, integer);
    else printf(is_whole ? "%*.0f " : "%*.5g ", width, real);
}

/* Prints the statistics and the digest that were requested, and the name. */
static tsr_status put_line(const cli_session *session, const tsr_command_options *arguments, const tsr_entry *entry,
                           int width, tsr_ring *ring, tsr_error *err)
{
    tsr_digest digest;
    tsr_stats stats;
    tsr_extremes extremes;
    const bool numeric = arguments->stats && tsr_dtype_is_numeric(entry->dtype);
    tsr_status status = TSR_OK;
    if (arguments->hash) status = tsr_tensor_digest(session->checkpoint, entry, arguments->hash, ring, &digest, err);
    if (status == TSR_OK && numeric) status = tsr_tensor_extremes(session->checkpoint, entry, ring, &stats, &extremes, err);
    if (status != TSR_OK) return status;
    if (numeric) {
        const tsr_dtype_class kind = tsr_dtype_describe(entry->dtype)->kind;
        const bool is_whole = kind == TSR_CLASS_INT || kind == TSR_CLASS_UINT || kind == TSR_CLASS_BOOL;
        put_extreme(extremes.kind, extremes.min, stats.min, is_whole, width);
        put_extreme(extremes.kind, extremes.max, stats.max, is_whole, width);
        printf("%12.5g %12.5g %8" PRIu64 " %8" PRIu64 " %8" PRIu64 "  ", stats.mean, stats.std, stats.nan, stats.inf,
               stats.zero);
    } else if (arguments->stats) {
        printf("%*s %*s %12s %12s %8s %8s %8s  ", width, "-", width, "-", "-", "-", "-", "-", "-");
    }
    if (arguments->hash) {
        put_digest(&digest);
        fputs("  ", stdout);
    }
    cli_put(stdout, entry->fqn);
    putchar('\n');
    return TSR_OK;
}

static tsr_status put_values(const cli_session *session, const tsr_command_options *arguments, tsr_ring *ring,
                             tsr_error *err)
{
    const tsr_selection selection = {tsr_globs_select, &arguments->selection};
    TSR_TRY(tsr_repeats_check_catalog(session->checkpoint, &selection, err));
    const int width = width_of(session, arguments);
    if (arguments->stats) {
        printf("%*s %*s %12s %12s %8s %8s %8s  %s\n", width, "MIN", width, "MAX", "MEAN", "STD", "NAN", "INF", "ZERO",
               "TENSOR");
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < session->catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &session->catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR || !tsr_globs_select(&arguments->selection, entry->fqn)) continue;
        status = put_line(session, arguments, entry, width, ring, err);
    }
    if (status != TSR_OK) tsr_error_context(err, "%s", session->path);
    return status;
}

static tsr_status inspect_json(cli *program, const cli_session *session, const tsr_command_options *arguments,
                               tsr_ring *ring, tsr_error *err)
{
    tsr_json json;
    cli_progress progress;
    cli_progress_start(&progress, program, "reading");
    const tsr_inspect_options options = {
        .path = tsr_str_from(session->path),
        .selection = {tsr_globs_select, &arguments->selection},
        .hash = (tsr_digest_algorithm)arguments->hash,
        .stats = arguments->stats,
        .ring = ring,
        .progress = ring ? &progress.base : NULL,
    };
    cli_document_start(program, &json, err);
    tsr_status status = tsr_document_inspect(session->checkpoint, &options, &json, err);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    cli_progress_end(&progress);
    return status;
}

static tsr_status inspect_text(cli *program, const cli_session *session, const tsr_command_options *arguments,
                               tsr_ring *ring, tsr_error *err)
{
    view v = {.out = &program->out, .session = session};
    if (ring) return put_values(session, arguments, ring, err);
    tsr_status status = cli_listing_build(session->catalog, &arguments->selection, &v.listing, err);
    if (status == TSR_OK) {
        put_head(&v);
        if (arguments->tree) status = put_tree(&v, err);
        else if (view_root(&v)->tensors) status = put_table(&v, err);
    }
    if (status == TSR_OK) status = put_objects(&v, err);
    const tsr_findings *findings = tsr_checkpoint_findings(session->checkpoint);
    if (status == TSR_OK && tsr_findings_count(findings)) {
        putchar('\n');
        cli_put_findings(&program->out, findings, 20);
    }
    cli_listing_free(&v.listing);
    return status;
}

/* Where this build cannot read the objects, the rest is listed all the same. */
static tsr_status open_listed(cli *program, const char *path, cli_session *session, tsr_error *err)
{
    tsr_open_options options = {.purpose = TSR_FOR_NAMES};
    tsr_error why = {0};
    tsr_status status = cli_open(program, path, &options, session, err);
    if (status != TSR_E_NOT_BUILT) return status;
    options.skip_objects = true;
    if (cli_open(program, path, &options, session, &why) != TSR_OK) return status;
    cli_warn(program, "the objects are listed without their values: %s", err->message);
    *err = (tsr_error){0};
    return TSR_OK;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    cli_session session;
    tsr_ring *ring = NULL;
    const char *path = program->operands.items[0];
    cli_allow_expansion(program, arguments->allow_expansion);
    tsr_status status = open_listed(program, path, &session, &err);
    if (status == TSR_OK) {
        status = tsr_validate_catalog(session.catalog, cli_host(program), tsr_checkpoint_findings(session.checkpoint), &err);
    }
    if (status == TSR_OK) status = cli_check_selection(program, &session, arguments, NULL, false, &err);
    if (status == TSR_OK && (arguments->hash || arguments->stats))
        status = tsr_ring_new(tsr_checkpoint_host(session.checkpoint), 0, &ring, &err);
    if (status == TSR_OK) status = (arguments->json ? inspect_json : inspect_text)(program, &session, arguments, ring, &err);
    if (status == TSR_OK) status = cli_unchanged(&session, &err);
    tsr_ring_free(ring);
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

const cli_command cli_inspect = {
    .name = "inspect",
    .examples = "tessera inspect ckpt/\nPrint a table; identical layers share a line\n"
                "tessera inspect model.safetensors --tree\nPrint a tree with totals per module\n"
                "tessera inspect ckpt/ --include '**.weight' --json\nPrint the weights as JSON, for scripts\n"
                "tessera inspect run.pt --hash sha256\nAdd digests that do not depend on sharding or format\n",
    .run = run,
};
