#include "outline.h"

#include <stdio.h>
#include <stdlib.h>

#include "tessera/glob.h"
#include "tessera/store.h"

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

static bool contains(tsr_str text, tsr_str part)
{
    for (size_t at = 0; at + part.size <= text.size; at++) {
        size_t n = 0;
        while (n < part.size && lower((uint8_t)text.data[at + n]) == lower((uint8_t)part.data[n])) n++;
        if (n == part.size) return true;
    }
    return false;
}

static bool fits(const filter_term *term, tsr_str text)
{
    return term->is_glob ? tsr_glob_match(term->text, text) : contains(text, term->text);
}

/* ---- parsing ---- */

static bool take_prefix(tsr_str *text, const char *prefix)
{
    const size_t size = strlen(prefix);
    if (text->size < size || memcmp(text->data, prefix, size) != 0) return false;
    *text = (tsr_str){text->data + size, text->size - size};
    return true;
}

static bool parse_size(tsr_str text, double *bytes)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},    {"B", 1},   {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"K", 1e3},
                 {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
    char copy[32] = {0}, *unit;
    if (text.size == 0 || text.size >= sizeof copy) return false;
    for (size_t i = 0; i < text.size; i++)
        copy[i] = text.data[i] >= 'a' && text.data[i] <= 'z' ? (char)(text.data[i] - 32) : text.data[i];
    *bytes = strtod(copy, &unit);
    if (unit == copy) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].unit) == 0) {
            *bytes *= units[i].factor;
            return true;
        }
    }
    return false;
}

static tsr_status parse_term(tsr_str text, size_t at, filter_term *term, tsr_error *err)
{
    term->negated = text.size > 1 && take_prefix(&text, "-");
    if (take_prefix(&text, ">")) term->what = TERM_MORE;
    else if (take_prefix(&text, "<")) term->what = TERM_LESS;
    else if (take_prefix(&text, "dtype:")) term->what = TERM_DTYPE;
    else if (take_prefix(&text, "shape:")) term->what = TERM_SHAPE;
    else if (take_prefix(&text, "file:")) term->what = TERM_FILE;
    else if (take_prefix(&text, "kind:")) term->what = TERM_KIND;
    else term->what = TERM_NAME;
    if (term->what == TERM_MORE || term->what == TERM_LESS) {
        term->or_equal = take_prefix(&text, "=");
        if (parse_size(text, &term->bytes)) return TSR_OK;
        return tsr_raise(err, TSR_E_USAGE, at, "filter: '%.*s' is not a size; write it as 500MB or 1.5GiB",
                         TSR_STR_ARG(text));
    }
    term->text = text;
    for (size_t i = 0; i < text.size; i++)
        term->is_glob |= text.data[i] == '*' || text.data[i] == '?' || text.data[i] == '[';
    return TSR_OK;
}

tsr_status tessera_filter_parse(tsr_str text, filter *out, tsr_error *err)
{
    *out = (filter){0};
    for (size_t at = 0; at < text.size;) {
        size_t end = at;
        while (end < text.size && text.data[end] != ' ') end++;
        if (end > at) {
            if (out->count == FILTER_TERMS) return tsr_raise(err, TSR_E_USAGE, at, "filter: at most %d terms", FILTER_TERMS);
            tsr_status status = parse_term((tsr_str){text.data + at, end - at}, at, &out->terms[out->count++], err);
            if (status != TSR_OK) return status;
        }
        at = end + 1;
    }
    return TSR_OK;
}

/* ---- matching ---- */

/* Whether `one_fits` is true for a dense tensor of the entry: its own, or that of any rank. */
static bool any_tensor(const filter_term *term, const tsr_entry *entry,
                       bool (*one_fits)(const filter_term *, const tsr_entry *))
{
    if (entry->kind == TSR_ENTRY_TENSOR) return one_fits(term, entry);
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++) {
        const tsr_entry *held = entry->per_rank->tensors[r];
        if (held && held->kind == TSR_ENTRY_TENSOR && one_fits(term, held)) return true;
    }
    return false;
}

static bool fits_dtype(const filter_term *term, const tsr_entry *entry)
{
    return fits(term, tsr_str_from(tsr_dtype_describe(entry->dtype)->name));
}

static bool fits_shape(const filter_term *term, const tsr_entry *entry)
{
    char text[24 * 8 + 8];
    size_t size = 0;
    if (entry->ndim > 8) return false;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        size +=
            (size_t)snprintf(text + size, sizeof text - size, "%s%llu", d ? "x" : "", (unsigned long long)entry->shape[d]);
    }
    return tsr_glob_match(term->text, (tsr_str){text, size});
}

static bool fits_file(const filter_term *term, const tsr_catalog *catalog, const tsr_entry *entry)
{
    uint32_t last = TSR_NO_FILE;
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        const uint32_t file = entry->chunks[c].file;
        if (file == last || file >= catalog->store->file_count) continue;
        if (fits(term, catalog->store->files[file].name)) return true;
        last = file;
    }
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++)
        if (entry->per_rank->tensors[r] && fits_file(term, catalog, entry->per_rank->tensors[r])) return true;
    return false;
}

static bool any(const filter_term *term, const tsr_entry *entry)
{
    (void)term, (void)entry;
    return true;
}

bool tessera_is_tensor(const tsr_entry *entry)
{
    return any_tensor(NULL, entry, any);
}

static bool fits_size(const filter_term *term, const tsr_entry *entry)
{
    uint64_t bytes = 0, held;
    const bool whole = entry->kind == TSR_ENTRY_TENSOR;
    if (whole ? !tsr_entry_bytes(entry, &bytes) : !tessera_is_tensor(entry)) return false;
    for (uint32_t r = 0; !whole && r < entry->per_rank->count; r++) {
        const tsr_entry *on_rank = entry->per_rank->tensors[r];
        if (on_rank && on_rank->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(on_rank, &held)) bytes += held;
    }
    if ((double)bytes == term->bytes) return term->or_equal;
    return ((double)bytes > term->bytes) == (term->what == TERM_MORE);
}

static bool holds(const filter_term *term, const tsr_catalog *catalog, const tsr_entry *entry)
{
    static const char *const kinds[] = {"tensor", "object", "opaque"};
    switch (term->what) {
    case TERM_DTYPE: return any_tensor(term, entry, fits_dtype);
    case TERM_SHAPE: return any_tensor(term, entry, fits_shape);
    case TERM_FILE: return fits_file(term, catalog, entry);
    case TERM_KIND: return fits(term, tsr_str_from(kinds[tessera_is_tensor(entry) ? TSR_ENTRY_TENSOR : entry->kind]));
    case TERM_MORE:
    case TERM_LESS: return fits_size(term, entry);
    default: return fits(term, entry->fqn);
    }
}

bool tessera_filter_keeps(const filter *f, const tsr_catalog *catalog, const tsr_entry *entry)
{
    for (uint32_t i = 0; i < f->count; i++) {
        if (holds(&f->terms[i], catalog, entry) == f->terms[i].negated) return false;
    }
    return true;
}
