/* See folders.h. */
#include <stdlib.h>

#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

bool tsr_folder_has(const tsr_store *store, const char *name)
{
    return tsr_store_find(store, tsr_str_from(name)) != TSR_NO_FILE;
}

bool tsr_folder_has_directory(const tsr_store *store, const char *name)
{
    const tsr_str wanted = tsr_str_from(name);
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str file = store->files[f].name;
        if (file.size > wanted.size && file.data[wanted.size] == '/' && tsr_str_starts(file, wanted)) return true;
    }
    return false;
}

uint32_t tsr_folder_first(const tsr_store *store, const char *const *names)
{
    for (; *names; names++) {
        const uint32_t file = tsr_store_find(store, tsr_str_from(*names));
        if (file != TSR_NO_FILE) return file;
    }
    return TSR_NO_FILE;
}

/* Parses a text that is a decimal number of at most nine digits. */
static bool is_number(tsr_str text, uint64_t *number)
{
    *number = 0;
    if (text.size == 0 || text.size > 9) return false;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        *number = *number * 10 + (uint64_t)(text.data[i] - '0');
    }
    return true;
}

static bool number_in(tsr_str name, tsr_str before, tsr_str after, uint64_t *number)
{
    if (name.size <= before.size + after.size || !tsr_str_starts(name, before) || !tsr_str_ends(name, after)) return false;
    return is_number((tsr_str){name.data + before.size, name.size - before.size - after.size}, number);
}

uint64_t tsr_folder_number_in(tsr_str name, const char *before, const char *after)
{
    uint64_t number;
    return number_in(name, tsr_str_from(before), tsr_str_from(after), &number) ? number : TSR_NO_NUMBER;
}

uint64_t tsr_folder_rank_of(tsr_str name)
{
    const tsr_str mark = TSR_STR("_rank");
    const bool is_accelerates =
        tsr_str_starts(name, TSR_STR("pytorch_model_fsdp_")) || tsr_str_starts(name, TSR_STR("optimizer_"));
    for (size_t at = name.size; is_accelerates && at > mark.size; at--)
        if (memcmp(name.data + at - mark.size, mark.data, mark.size) == 0)
            return tsr_folder_number_in((tsr_str){name.data + at, name.size - at}, "", ".bin");
    return TSR_NO_NUMBER;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = ((const tsr_numbered_file *)a)->number, y = ((const tsr_numbered_file *)b)->number;
    return (x > y) - (x < y);
}

tsr_status tsr_folder_numbered(tsr_checkpoint *checkpoint, const char *before, const char *after, tsr_numbered_files *out,
                               tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const tsr_str head = tsr_str_from(before), tail = tsr_str_from(after);
    uint64_t number;
    uint32_t count = 0;
    *out = (tsr_numbered_files){0};
    for (uint32_t f = 0; f < store->file_count; f++) count += number_in(store->files[f].name, head, tail, &number);
    out->items = tsr_arena_array(checkpoint->arena, count, sizeof *out->items, err);
    if (!out->items) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (number_in(store->files[f].name, head, tail, &number)) out->items[out->count++] = (tsr_numbered_file){number, f};
    if (out->count) qsort(out->items, out->count, sizeof *out->items, by_number);
    return TSR_OK;
}

tsr_status tsr_folder_mount_file(tsr_checkpoint *checkpoint, const char *name, uint32_t file, tsr_error *err)
{
    TSR_TRY(tsr_part_begin(checkpoint, tsr_str_from(name), false, err));
    return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = file}, err);
}

tsr_status tsr_folder_mount_ranks(tsr_checkpoint *checkpoint, const tsr_numbered_files *ranks, tsr_error *err)
{
    for (uint32_t i = 0; i < ranks->count; i++) {
        const tsr_str below =
            tsr_arena_format(checkpoint->arena, err, "rank_%llu", (unsigned long long)ranks->items[i].number);
        if (!below.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_part_mount(checkpoint, &(tsr_mount_place){.below = below, .file = ranks->items[i].file}, err));
    }
    return TSR_OK;
}

tsr_status tsr_folder_mount_joined(tsr_checkpoint *checkpoint, tsr_str name, const tsr_numbered_files *ranks, tsr_error *err)
{
    uint32_t *numbers = tsr_arena_array(checkpoint->arena, ranks->count, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    TSR_TRY(tsr_part_begin(checkpoint, name, false, err));
    for (uint32_t i = 0; i < ranks->count; i++) numbers[i] = ranks->items[i].file;
    const tsr_form form = {&tsr_reader_torch_ranks, numbers, ranks->count};
    const bool one = ranks->count == 1;
    const tsr_mount_place place = {.file = one ? numbers[0] : TSR_NO_FILE, .form = one ? NULL : &form};
    return tsr_part_mount(checkpoint, &place, err);
}
