/* Groups names that differ only in their numbers. */
#include <stdlib.h>

#include "suggest/map_suggest_parts.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

/* Parses a component that is a decimal number, as in the names of lists and layers. */
static bool read_number(tsr_str component, uint64_t *out)
{
    *out = 0;
    if (!component.size || component.size > 9 || (component.size > 1 && component.data[0] == '0')) return false;
    for (size_t i = 0; i < component.size; i++) {
        if (component.data[i] < '0' || component.data[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(component.data[i] - '0');
    }
    return true;
}

/* Makes the key of a name, in which its first numbers are replaced by a mark. */
static tsr_status make_key(tsr_str name, tsr_arena *arena, tsr_pattern_member *member, tsr_name_family *like, tsr_error *err)
{
    char *key = tsr_arena_array(arena, name.size + 1, 1, err);
    size_t used = 0;
    if (!key) return TSR_E_NOMEM;
    for (size_t at = 0; at <= name.size;) {
        size_t end = at;
        while (end < name.size && name.data[end] != '.') end++;
        const tsr_str component = {name.data + at, end - at};
        uint64_t number;
        if (at) key[used++] = '.';
        if (like->numbers < TSR_MOST_NUMBERS && read_number(component, &number)) {
            member->numbers[like->numbers++] = number;
            key[used++] = TSR_NUMBER_MARK;
        } else if (component.size) {
            memcpy(key + used, component.data, component.size);
            used += component.size;
        }
        at = end + 1;
    }
    like->key = (tsr_str){key, used};
    return TSR_OK;
}

static bool same_kind(const tsr_entry *a, const tsr_entry *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
}

static tsr_status add_entry(tsr_map *index, const tsr_allocator *allocator, const tsr_entry *entry, tsr_arena *arena,
                            tsr_vec *out, tsr_error *err)
{
    tsr_pattern_member member = {.entry = entry};
    tsr_name_family like = {.uniform = true, .members = tsr_vec_of(allocator, sizeof(tsr_pattern_member))};
    uint32_t *number;
    bool inserted;
    TSR_TRY(make_key(entry->fqn, arena, &member, &like, err));
    TSR_TRY(tsr_map_put(index, like.key, (uint32_t)out->count, &number, &inserted, err));
    if (inserted) {
        tsr_name_family *added = tsr_vec_push(out, err);
        if (!added) return TSR_E_NOMEM;
        *added = like;
    }
    tsr_name_family *family = (tsr_name_family *)out->items + *number;
    tsr_pattern_member *place = tsr_vec_push(&family->members, err);
    if (!place) return TSR_E_NOMEM;
    *place = member;
    family->uniform = family->uniform && same_kind(((tsr_pattern_member *)family->members.items)->entry, entry);
    return TSR_OK;
}

static int by_numbers(const void *a, const void *b)
{
    const tsr_pattern_member *x = a, *y = b;
    for (unsigned i = 0; i < TSR_MOST_NUMBERS; i++)
        if (x->numbers[i] != y->numbers[i]) return x->numbers[i] < y->numbers[i] ? -1 : 1;
    return 0;
}

tsr_status tsr_families_find(const tsr_catalog *catalog, bool tensors, tsr_arena *arena, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = out->allocator;
    tsr_map *index = tsr_map_new(allocator, 0, err);
    tsr_status status = index ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++)
        if ((catalog->entries[i].kind == TSR_ENTRY_TENSOR) == tensors)
            status = add_entry(index, allocator, &catalog->entries[i], arena, out, err);
    tsr_name_family *families = out->items;
    for (size_t i = 0; i < out->count && status == TSR_OK; i++)
        qsort(families[i].members.items, families[i].members.count, sizeof(tsr_pattern_member), by_numbers);
    tsr_map_free(index);
    return status;
}

void tsr_families_free(tsr_vec *families)
{
    tsr_name_family *items = families->items;
    for (size_t i = 0; i < families->count; i++) tsr_vec_free(&items[i].members);
    tsr_vec_free(families);
}

/* ---- similarity of names ---- */

static size_t next_word(tsr_str name, size_t at, tsr_str *out)
{
    while (at < name.size && (name.data[at] == '.' || name.data[at] == '_' || name.data[at] == TSR_NUMBER_MARK)) at++;
    size_t end = at;
    while (end < name.size && name.data[end] != '.' && name.data[end] != '_' && name.data[end] != TSR_NUMBER_MARK) end++;
    *out = (tsr_str){name.data + at, end - at};
    return end;
}

static bool has_word(tsr_str name, tsr_str word)
{
    tsr_str other;
    for (size_t at = next_word(name, 0, &other); other.size; at = next_word(name, at, &other))
        if (tsr_str_equal(other, word)) return true;
    return false;
}

/* The component before the last one, such as "wq" of "attention.wq.weight". */
static tsr_str module_of(tsr_str name)
{
    const tsr_str last = tsr_last_component(name);
    const size_t size = name.size - last.size;
    return tsr_last_component((tsr_str){name.data, size ? size - 1 : 0});
}

/* The length of the longest common subsequence of two short texts. */
static int common_letters(tsr_str a, tsr_str b)
{
    int row[33] = {0};
    const size_t width = b.size < 32 ? b.size : 32;
    for (size_t i = 0; i < a.size && i < 32; i++) {
        int diagonal = 0;
        for (size_t j = 0; j < width; j++) {
            const int above = row[j + 1];
            if (a.data[i] == b.data[j]) row[j + 1] = diagonal + 1;
            else if (row[j] > above) row[j + 1] = row[j];
            diagonal = above;
        }
    }
    return row[width];
}

/* Whether the name ends with `ending`, preceded by a dot. */
static bool ends_with(tsr_str name, tsr_str ending)
{
    return name.size > ending.size && tsr_str_ends(name, ending) && name.data[name.size - ending.size - 1] == '.';
}

int tsr_families_likeness(const tsr_name_family *a, const tsr_name_family *b)
{
    int score = 0;
    tsr_str word;
    if (tsr_str_equal(a->key, b->key)) return 2 * TSR_SAME_NAME;
    if (ends_with(a->key, b->key) || ends_with(b->key, a->key)) return TSR_SAME_NAME;
    if (tsr_str_equal(tsr_last_component(a->key), tsr_last_component(b->key))) score += 10;
    for (size_t at = next_word(a->key, 0, &word); word.size; at = next_word(a->key, at, &word))
        score += has_word(b->key, word) ? 4 : 0;
    return score + common_letters(module_of(a->key), module_of(b->key));
}

/* Whether another part has the word. */
static bool is_shared(tsr_name_family *const *parts, uint32_t count, uint32_t index, tsr_str word)
{
    for (uint32_t i = 0; i < count; i++)
        if (i != index && has_word(parts[i]->key, word)) return true;
    return false;
}

size_t tsr_family_place(const tsr_name_family *whole, tsr_name_family *const *parts, uint32_t count, uint32_t index)
{
    const tsr_str key = parts[index]->key, name = tsr_last_component(whole->key);
    const tsr_str words =
        has_word(name, TSR_STR("weight")) || has_word(name, TSR_STR("bias")) ? module_of(whole->key) : name;
    tsr_str own, word;
    size_t at = next_word(key, 0, &own);
    while (own.size && is_shared(parts, count, index, own)) at = next_word(key, at, &own);
    for (at = next_word(words, 0, &word); own.size && word.size; at = next_word(words, at, &word))
        if (tsr_str_equal(word, own)) return at;
    return SIZE_MAX;
}
