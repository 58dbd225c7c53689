/* tessera.diff/1. Each side of a change states what differs: dtype and shape of tensors, the value of objects, a key of another
 * type, or the number of chunks if layouts are compared. Differences of metadata have the whole texts. */
#include <inttypes.h>

#include "base/line.h"
#include "documents/document_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { REPR_BYTES = 400 };

static void put_names(tsr_json *json, const char *key, const tsr_entry *const *entries, uint64_t count)
{
    tsr_json_put_array(json, key);
    for (uint64_t i = 0; i < count; i++) tsr_json_str(json, entries[i]->fqn);
    tsr_json_array_end(json);
}

static void put_side(tsr_json *json, const char *key, const tsr_entry *entry, const tsr_entry *other, uint32_t what)
{
    char text[REPR_BYTES];
    tsr_json_put_object(json, key);
    tsr_document_put_type(json, entry);
    if (what & TSR_DIFF_KEY)
        tsr_json_put_text(json, "key", tsr_path_item_repr(tsr_path_other_type(entry, other), text, sizeof text));
    if (entry->kind == TSR_ENTRY_TENSOR && what & TSR_DIFF_LAYOUT) tsr_json_put_uint(json, "chunks", entry->chunk_count);
    else if (entry->kind != TSR_ENTRY_TENSOR && entry->value)
        tsr_json_put_text(json, "repr", tsr_value_text(entry->value, text, sizeof text));
    tsr_json_object_end(json);
}

static void put_difference(tsr_json *json, const tsr_difference *difference)
{
    tsr_json_put_uint(json, "differing", difference->differing);
    tsr_json_put_uint(json, "first", difference->first);
    if (!difference->numeric) return;
    tsr_json_put_double(json, "max_abs", difference->max_abs);
    tsr_json_put_uint(json, "max_ulp", difference->max_ulp);
}

static void put_change(tsr_json *json, const tsr_diff_pair *pair, const tsr_difference *difference)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {{TSR_DIFF_DTYPE, "dtype"},   {TSR_DIFF_SHAPE, "shape"},   {TSR_DIFF_VALUE, "value"},
                 {TSR_DIFF_LAYOUT, "layout"}, {TSR_DIFF_OBJECT, "object"}, {TSR_DIFF_KEY, "key"}};
    tsr_json_object(json);
    tsr_json_put_str(json, "fqn", pair->a->fqn);
    if (!tsr_str_equal(pair->a->fqn, pair->b->fqn)) { /* matched under a canonical name */
        tsr_json_put_str(json, "fqn_b", pair->b->fqn);
    }
    tsr_json_put_array(json, "what");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (pair->what & names[i].bit) tsr_json_text(json, names[i].name);
    }
    tsr_json_array_end(json);
    put_side(json, "a", pair->a, pair->b, pair->what);
    put_side(json, "b", pair->b, pair->a, pair->what);
    if (pair->what & TSR_DIFF_VALUE && difference) put_difference(json, difference);
    tsr_json_object_end(json);
}

static void put_changes(tsr_json *json, const tsr_diff_document *document)
{
    const tsr_diff *diff = document->diff;
    tsr_json_put_array(json, "changed");
    for (uint64_t i = 0; i < diff->pair_count && json->status == TSR_OK; i++) {
        if (diff->pairs[i].what) put_change(json, &diff->pairs[i], document->differences ? &document->differences[i] : NULL);
    }
    tsr_json_array_end(json);
    tsr_json_put_array(json, "renamed");
    for (uint64_t i = 0; i < diff->renamed_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "a", diff->renamed[i].a->fqn);
        tsr_json_put_str(json, "b", diff->renamed[i].b->fqn);
        tsr_json_put_str(json, "why", diff->renamed[i].why);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

/* Of the keys that are on the sides `in_a` and `in_b`: both sides' values, or the value of the only one. */
static void put_texts(tsr_json *json, const char *name, const tsr_diff *diff, bool in_a, bool in_b)
{
    tsr_json_put_array(json, name);
    for (uint64_t i = 0; i < diff->metadata_count && json->status == TSR_OK; i++) {
        const tsr_diff_text *text = &diff->metadata[i];
        if (!text->a == in_a || !text->b == in_b) continue;
        tsr_json_object(json);
        tsr_json_put_str(json, "key", text->a ? text->a->key : text->b->key);
        if (text->a) tsr_json_put_str(json, text->b ? "a" : "value", text->a->value);
        if (text->b) tsr_json_put_str(json, text->a ? "b" : "value", text->b->value);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_metadata(tsr_json *json, const tsr_diff *diff)
{
    tsr_json_put_object(json, "metadata");
    put_texts(json, "added", diff, false, true);
    put_texts(json, "removed", diff, true, false);
    put_texts(json, "changed", diff, true, true);
    tsr_json_object_end(json);
}

static void put_summary(tsr_json *json, const tsr_diff_document *document)
{
    const tsr_diff *diff = document->diff;
    uint64_t changed = 0;
    for (uint64_t i = 0; i < diff->pair_count; i++) changed += diff->pairs[i].what != 0;
    const uint64_t left_out = document->policy ? document->policy->pairs : 0;
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"same", diff->pair_count - changed - left_out},
                  {"changed", changed},
                  {"added", diff->added_count},
                  {"removed", diff->removed_count},
                  {"renamed", diff->renamed_count}};
    tsr_json_put_object(json, "summary");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_put_bool(json, "values_compared", document->differences != NULL);
    if (document->policy) tsr_document_put_policy(json, document->policy);
    tsr_json_object_end(json);
}

tsr_status tsr_document_diff(const tsr_diff_document *document, tsr_json *json)
{
    const tsr_diff *diff = document->diff;
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.diff/1");
    tsr_json_put_str(json, "a", document->path_a);
    tsr_json_put_str(json, "b", document->path_b);
    tsr_json_put_bool(json, "same", tsr_diff_is_same(diff));
    put_names(json, "added", diff->added, diff->added_count);
    put_names(json, "removed", diff->removed, diff->removed_count);
    put_changes(json, document);
    put_metadata(json, diff);
    put_summary(json, document);
    tsr_json_object_end(json);
    return json->status;
}

/* ---- diff findings ---- */

/* Turns a diff into findings, for reports that CI systems read. */

static tsr_place place_of(const tsr_entry *entry)
{
    tsr_place place = TSR_NOWHERE;
    place.fqn = entry->fqn;
    return place;
}

/* "float32 [4, 8]", or the type of an object. */
static const char *side_text(const tsr_entry *entry, char *out, size_t capacity)
{
    tsr_line line = tsr_line_on(out, capacity);
    if (entry->kind != TSR_ENTRY_TENSOR) {
        tsr_line_put(&line, entry->type.data, entry->type.size);
        return out;
    }
    tsr_line_format(&line, "%s [", tsr_dtype_describe(entry->dtype)->name);
    for (uint32_t d = 0; d < entry->ndim; d++)
        tsr_line_format(&line, "%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
    tsr_line_put(&line, "]", 1);
    return out;
}

static tsr_status find_sides(tsr_findings *findings, const char *rule, const char *what, const tsr_diff_pair *pair,
                             tsr_error *err)
{
    char a[160], b[160];
    return tsr_finding_add(findings, rule, place_of(pair->a), err, "%s of '%.*s' differs: %s in A, %s in B", what,
                           TSR_STR_ARG(pair->a->fqn), side_text(pair->a, a, sizeof a), side_text(pair->b, b, sizeof b));
}

static tsr_status find_values(tsr_findings *findings, const tsr_diff_pair *pair, const tsr_difference *d, tsr_error *err)
{
    char most[64] = "";
    tsr_line line = tsr_line_on(most, sizeof most);
    if (d->numeric && d->max_abs > 0) {
        tsr_line_put(&line, ", by at most ", 13);
        tsr_line_real(&line, d->max_abs, false);
    } else if (d->numeric) {
        tsr_line_format(&line, ", as NaN or in the sign of zero");
    }
    return tsr_finding_add(findings, "diff/value", place_of(pair->a), err, "%llu of %llu values of '%.*s' differ%s",
                           (unsigned long long)d->differing, (unsigned long long)d->elements, TSR_STR_ARG(pair->a->fqn),
                           most);
}

static tsr_status find_pair(tsr_findings *findings, const tsr_diff_pair *pair, const tsr_difference *difference,
                            tsr_error *err)
{
    static const struct {
        uint32_t bit;
        const char *rule, *what;
    } kinds[] = {{TSR_DIFF_DTYPE, "diff/dtype", "the dtype"},
                 {TSR_DIFF_SHAPE, "diff/shape", "the shape"},
                 {TSR_DIFF_OBJECT, "diff/object", "the value"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (pair->what & kinds[i].bit) TSR_TRY(find_sides(findings, kinds[i].rule, kinds[i].what, pair, err));
    }
    if (pair->what & TSR_DIFF_KEY) {
        char a[160], b[160];
        TSR_TRY(tsr_finding_add(findings, "diff/key", place_of(pair->a), err,
                                "a key on the way to '%.*s' is of another type: %s in A, %s in B", TSR_STR_ARG(pair->a->fqn),
                                tsr_path_item_repr(tsr_path_other_type(pair->a, pair->b), a, sizeof a),
                                tsr_path_item_repr(tsr_path_other_type(pair->b, pair->a), b, sizeof b)));
    }
    if (pair->what & TSR_DIFF_LAYOUT) {
        TSR_TRY(tsr_finding_add(findings, "diff/layout", place_of(pair->a), err,
                                "'%.*s' is split into different chunks: %llu in A, %llu in B", TSR_STR_ARG(pair->a->fqn),
                                (unsigned long long)pair->a->chunk_count, (unsigned long long)pair->b->chunk_count));
    }
    return pair->what & TSR_DIFF_VALUE && difference ? find_values(findings, pair, difference, err) : TSR_OK;
}

static tsr_status find_one_sided(tsr_findings *findings, const char *rule, const char *side, const tsr_entry *const *entries,
                                 uint64_t count, tsr_error *err)
{
    char text[160];
    for (uint64_t i = 0; i < count; i++) {
        TSR_TRY(tsr_finding_add(findings, rule, place_of(entries[i]), err, "'%.*s' (%s) is only in %s",
                                TSR_STR_ARG(entries[i]->fqn), side_text(entries[i], text, sizeof text), side));
    }
    return TSR_OK;
}

static tsr_status find_texts(tsr_findings *findings, const tsr_diff *diff, tsr_error *err)
{
    for (uint64_t i = 0; i < diff->metadata_count; i++) {
        const tsr_diff_text *text = &diff->metadata[i];
        tsr_place place = TSR_NOWHERE;
        place.fqn = text->a ? text->a->key : text->b->key; /* so that a baseline can tell the keys apart */
        TSR_TRY(tsr_finding_add(findings, "diff/metadata", place, err, "the key '%.*s' of __metadata__ %s",
                                TSR_STR_ARG(place.fqn),
                                !text->a   ? "is only in B"
                                : !text->b ? "is only in A"
                                           : "has a different text in B"));
    }
    return TSR_OK;
}

static tsr_status find_differences(const tsr_diff_document *document, tsr_findings *findings, tsr_error *err)
{
    const tsr_diff *diff = document->diff;
    TSR_TRY(find_one_sided(findings, "diff/removed", "A", diff->removed, diff->removed_count, err));
    TSR_TRY(find_one_sided(findings, "diff/added", "B", diff->added, diff->added_count, err));
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        const tsr_difference *difference = document->differences ? &document->differences[i] : NULL;
        TSR_TRY(find_pair(findings, &diff->pairs[i], difference, err));
    }
    TSR_TRY(find_texts(findings, diff, err));
    for (uint64_t i = 0; i < diff->renamed_count; i++) {
        const tsr_diff_rename *r = &diff->renamed[i];
        TSR_TRY(tsr_finding_add(findings, "diff/renamed", place_of(r->a), err, "'%.*s' may be '%.*s' in B: %.*s",
                                TSR_STR_ARG(r->a->fqn), TSR_STR_ARG(r->b->fqn), TSR_STR_ARG(r->why)));
    }
    return TSR_OK;
}

tsr_status tsr_report_add_diff(tsr_report *report, const tsr_diff_document *document, const tsr_policy *policy,
                               tsr_error *err)
{
    tsr_policy_result ignored = {0};
    tsr_findings *found = tsr_findings_new(report->allocator, 0, err),
                 *leveled = tsr_findings_new(report->allocator, 0, err);
    tsr_status status = found && leveled ? find_differences(document, found, err) : TSR_E_NOMEM;
    if (status == TSR_OK && policy) status = tsr_policy_findings(policy, found, leveled, &ignored, err);
    if (status == TSR_OK)
        tsr_report_add(report, &(tsr_reported){.path = document->path_b, .findings = policy ? leveled : found});
    tsr_findings_free(found);
    tsr_findings_free(leveled);
    return status;
}

tsr_status tsr_report_diff(const tsr_report_form *form, const tsr_diff_document *document, const tsr_policy *policy,
                           tsr_json *json, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_report report;
    if (form == &tsr_report_json) return tsr_document_diff(document, json);
    tsr_report_start(&report, form, json, allocator);
    const tsr_status status = tsr_report_add_diff(&report, document, policy, err);
    const tsr_status ended = tsr_report_end(&report);
    return status == TSR_OK ? ended : status;
}
