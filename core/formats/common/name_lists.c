#include "formats/common/file_names.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#include <stdlib.h>
#include <string.h>

static void append(tsr_shown_names *list, const char *text, size_t size)
{
    memcpy(list->text + list->used, text, size);
    list->used += size;
    list->text[list->used] = '\0';
}

void tsr_shown_names_add(tsr_shown_names *list, tsr_str name)
{
    const size_t most = TSR_NAMES_BYTES / 2, size = name.size < most ? name.size : most;
    /* Once a name did not fit, no later one is shown, so that the list is always the first names in order. */
    const bool full = list->shown == TSR_NAMES_SHOWN || list->shown < list->count || list->used + size + 4 > TSR_NAMES_BYTES;
    list->count++;
    if (full) return;
    append(list, ", '", list->used ? 3 : 0);
    if (list->shown++ == 0) append(list, "'", 1);
    if (size) append(list, name.data, size);
    append(list, "'", 1);
}

const char *tsr_shown_names_rest(const tsr_shown_names *list)
{
    return list->shown < list->count ? ", …" : "";
}

/* ---- file names ---- */

tsr_str tsr_last_path_part(tsr_str path)
{
    size_t at = path.size;
    while (at > 0 && path.data[at - 1] != '/') at--;
    return tsr_str_after(path, at);
}

tsr_str tsr_path_directory(tsr_str path)
{
    while (path.size && path.data[path.size - 1] != '/') path.size--;
    return (tsr_str){path.data, path.size ? path.size - 1 : 0};
}

bool tsr_name_holds(tsr_str text, tsr_str part)
{
    for (size_t at = 0; at + part.size <= text.size; at++) {
        const char *found = memchr(text.data + at, part.data[0], text.size - part.size - at + 1);
        if (!found) return false;
        at = (size_t)(found - text.data);
        if (memcmp(found, part.data, part.size) == 0) return true;
    }
    return false;
}

bool tsr_is_deeper(tsr_str path)
{
    const char *slash = memchr(path.data, '/', path.size);
    return slash && memchr(slash + 1, '/', path.size - (size_t)(slash + 1 - path.data));
}

/* ---- numbers ---- */

uint64_t tsr_number_between(tsr_str name, size_t from, size_t to)
{
    uint64_t number = 0;
    if (to <= from || to - from > 18) return TSR_NO_NUMBER;
    for (size_t i = from; i < to; i++) {
        if (!tsr_is_digit(name.data[i])) return TSR_NO_NUMBER;
        number = number * 10 + (uint64_t)(name.data[i] - '0');
    }
    return number;
}

uint64_t tsr_number_in(tsr_str name, tsr_str before, tsr_str after)
{
    const size_t around = before.size + after.size;
    if (name.size <= around || name.size - around > 9) return TSR_NO_NUMBER;
    if (!tsr_str_starts(name, before) || !tsr_str_ends(name, after)) return TSR_NO_NUMBER;
    return tsr_number_between(name, before.size, name.size - after.size);
}

static int compare_numbered(const void *left, const void *right)
{
    const tsr_numbered_file *a = left, *b = right;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return (a->file > b->file) - (a->file < b->file);
}

void tsr_sort_numbered(tsr_numbered_files *files)
{
    if (files->count) qsort(files->items, files->count, sizeof *files->items, compare_numbered);
}

tsr_status tsr_list_numbered(tsr_checkpoint *checkpoint, tsr_str before, tsr_str after, tsr_numbered_files *out,
                             tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    uint32_t count = 0;
    *out = (tsr_numbered_files){0};
    for (uint32_t f = 0; f < store->file_count; f++)
        count += tsr_number_in(store->files[f].name, before, after) != TSR_NO_NUMBER;
    out->items = tsr_arena_array(checkpoint->arena, count, sizeof *out->items, err);
    if (!out->items) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const uint64_t number = tsr_number_in(store->files[f].name, before, after);
        if (number != TSR_NO_NUMBER) out->items[out->count++] = (tsr_numbered_file){.number = number, .file = f};
    }
    tsr_sort_numbered(out);
    return TSR_OK;
}

tsr_status tsr_choose_files(tsr_checkpoint *checkpoint, const tsr_numbered_file *files, uint32_t count, tsr_error *err)
{
    uint32_t *kept = tsr_arena_array(checkpoint->arena, count, sizeof *kept, err);
    if (!kept) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) kept[i] = files[i].file;
    checkpoint->files = kept;
    checkpoint->file_count = count;
    return TSR_OK;
}

/* ---- what is there ---- */

bool tsr_has_file(const tsr_store *store, const char *name)
{
    return tsr_store_find(store, tsr_str_from(name)) != TSR_NO_FILE;
}

bool tsr_has_any(const tsr_store *store, const char *const *names)
{
    for (; *names; names++) {
        const tsr_str name = tsr_str_from(*names);
        const char *star = memchr(name.data, '*', name.size);
        const size_t before = star ? (size_t)(star - name.data) : 0;
        if (!star && tsr_has_file(store, *names)) return true;
        for (uint32_t f = 0; star && f < store->file_count; f++)
            if (tsr_number_in(store->files[f].name, (tsr_str){name.data, before},
                              (tsr_str){star + 1, name.size - before - 1}) != TSR_NO_NUMBER)
                return true;
    }
    return false;
}

/* Open addressing with linear probing; the slots store item numbers, and at most half of them are used. */

struct tsr_name_index {
    const tsr_allocator *allocator;
    tsr_named_items named;
    uint64_t seed;
    uint64_t mask;    /* slots - 1 */
    uint32_t slots[]; /* item number + 1; 0 when free */
};

static tsr_str name_of(const tsr_name_index *index, uint32_t item)
{
    return *(const tsr_str *)(const void *)((const char *)index->named.items + item * index->named.stride);
}

/* The slot of the item with this name, or the free slot where it would be inserted. */
static uint32_t *find_slot(tsr_name_index *index, tsr_str name)
{
    uint64_t at = tsr_hash_bytes(name.data, name.size, index->seed) & index->mask;
    while (index->slots[at] && !tsr_str_equal(name_of(index, index->slots[at] - 1), name)) at = (at + 1) & index->mask;
    return &index->slots[at];
}

static size_t byte_size(uint64_t slots)
{
    return sizeof(tsr_name_index) + (size_t)slots * sizeof(uint32_t);
}

tsr_status tsr_name_index_new(const tsr_allocator *allocator, tsr_named_items named, tsr_name_index **out,
                              uint64_t *duplicate, tsr_error *err)
{
    uint64_t slots = 16;
    *out = NULL;
    if (duplicate) *duplicate = TSR_NO_NAME;
    TSR_FAIL_IF(named.count >= UINT32_MAX / 4, err, TSR_E_LIMIT, "%llu names are too many", (unsigned long long)named.count);
    while (slots < 2 * named.count) slots *= 2;
    tsr_name_index *index = tsr_alloc(allocator, 1, byte_size(slots), err);
    if (!index) return TSR_E_NOMEM;
    memset(index, 0, byte_size(slots));
    index->allocator = allocator;
    index->named = named;
    index->seed =
        (uintptr_t)index ^ (uintptr_t)named.items; /* addresses differ between runs, so collisions cannot be planned */
    index->mask = slots - 1;
    for (uint32_t i = 0; i < named.count; i++) {
        uint32_t *slot = find_slot(index, name_of(index, i));
        if (*slot == 0) *slot = i + 1;
        else if (duplicate && *duplicate == TSR_NO_NAME) *duplicate = i;
    }
    *out = index;
    return TSR_OK;
}

void tsr_name_index_free(tsr_name_index *index)
{
    if (index) tsr_free(index->allocator, index, 1, byte_size(index->mask + 1));
}

uint64_t tsr_name_index_find(const tsr_name_index *index, tsr_str name)
{
    if (!index) return TSR_NO_NAME;
    uint32_t slot = *find_slot((tsr_name_index *)index, name);
    return slot ? slot - 1 : TSR_NO_NAME;
}
