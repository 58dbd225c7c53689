/* tessera.diff/1. Each side of a change states what differs: dtype and shape of tensors, the value of objects, a key of another
 * type, or the number of chunks if layouts are compared. Differences of metadata have the whole texts. */
#include "documents/document_parts.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/value_walk.h"

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
