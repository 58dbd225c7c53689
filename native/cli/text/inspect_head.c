/* The summary at the top of `inspect`: sizes, dtypes and sharding. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/text/listing.h"

#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"

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
static void put_mix(const cli_view *v)
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
static void put_sharding(const cli_view *v)
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

static uint64_t count_per_rank(const cli_view *v)
{
    uint64_t count = 0;
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) count += nodes[i].entry && nodes[i].entry->per_rank;
    return count;
}

/* Prints which of the checkpoints in a directory was opened. */
static void put_step(const cli_view *v)
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
static void put_parts(const cli_view *v)
{
    const tsr_catalog *catalog = v->session->catalog;
    for (uint32_t p = 0; p < catalog->part_count; p++) {
        const tsr_part *part = &catalog->parts[p];
        uint64_t tensors = 0;
        for (uint64_t i = 0; i < part->entry_count; i++)
            tensors += catalog->entries[part->first_entry + i].kind == TSR_ENTRY_TENSOR;
        const uint64_t objects = part->entry_count - tensors;
        fputs(p ? ", " : "  parts: ", stdout);
        cli_put(stdout, part->name.size ? part->name : TSR_STR("(without a name)"));
        printf(" (%s", tsr_format_name(part->format));
        if (tensors) printf(", %s", cli_plural(tensors, "tensor").text);
        if (objects) printf(", %s", cli_plural(objects, "object").text);
        putchar(')');
    }
    if (catalog->part_count) putchar('\n');
}

/* Prints "metadata: format = pt, modelspec.author = A. Berg, and 3 more": the first pairs, each shortened. */
static void put_metadata(const cli_view *v)
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

void cli_put_head(const cli_view *v)
{
    const cli_node *root = cli_view_root(v);
    uint64_t files = count_data_files(v->session->catalog);
    cli_on(v->out, stdout, CLI_BOLD);
    cli_put(stdout, tsr_str_from(v->session->path));
    cli_off(v->out, stdout);
    printf("  %s", tsr_format_name(v->session->catalog->format));
    if (files > 1) printf(", %s of data", cli_plural(files, "file").text);
    putchar('\n');
    put_step(v);
    put_parts(v);
    printf("  %s, %s element%s, ", cli_plural(root->tensors, "tensor").text, cli_short_number(root->elements).text,
           root->elements == 1 ? "" : "s");
    cli_on(v->out, stdout, CLI_BOLD);
    fputs(cli_bytes(root->bytes).text, stdout);
    cli_off(v->out, stdout);
    const uint64_t per_rank = count_per_rank(v), objects = root->others - per_rank;
    if (per_rank)
        printf(", %s that %s from rank to rank", cli_plural(per_rank, "tensor").text, per_rank == 1 ? "differs" : "differ");
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
