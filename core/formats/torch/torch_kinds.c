/* Recognizes torch.save files by their first bytes, and what several of them in one directory are. */
#include "formats/torch/torch_file.h"

#include "base/cursor.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"

tsr_str tsr_first_member(tsr_str head)
{
    enum { NAME_AT = 30 };
    if (head.size <= NAME_AT || memcmp(head.data, "PK\3\4", 4) != 0) return (tsr_str){NULL, 0};
    size_t size = (size_t)tsr_load_le((const uint8_t *)head.data + 26, 2);
    if (size > head.size - NAME_AT) size = head.size - NAME_AT;
    return (tsr_str){head.data + NAME_AT, size};
}

/* All members of PyTorch's archives are in one directory, and one of these comes first. */
static bool is_zip(tsr_str head)
{
    static const char *const first[] = {"/data.pkl", "/version", "/.format_version", "/byteorder"};
    tsr_str name = tsr_first_member(head);
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        if (tsr_str_ends(name, tsr_str_from(first[i]))) return true;
    return false;
}

/* Looks for a LONG1 of ten bytes with torch.save's magic number 0x1950a86a20f9469cfc6c, in a pickle of protocol 2 or later.
 * From protocol 4 on, the number is inside a frame. */
static bool is_legacy(tsr_str head)
{
    static const char magic[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    enum { MAGIC = sizeof magic - 1, FRAME = 9 };
    const size_t at = head.size > 2 && head.data[2] == '\x95' ? 2 + FRAME : 2;
    return head.size >= at + MAGIC && head.data[0] == '\x80' && memcmp(head.data + at, magic, MAGIC) == 0;
}

static const tsr_reader *torch_reader_of(tsr_str head, uint64_t size)
{
    (void)size;
    return is_zip(head) ? &tsr_reader_torch_zip : is_legacy(head) ? &tsr_reader_torch_legacy : NULL;
}

/* Whether there are two or more files whose names differ only in a number, and the numbers are 0 … n-1 or 1 … n: one file per
 * rank. If the names mention steps or epochs, the files are separate checkpoints, unless the names mention ranks as well. Sets
 * the files' numbers. */
static bool are_ranks(const tsr_store *store, tsr_numbered_files *files)
{
    tsr_numbered_file *items = files->items;
    const tsr_str first = store->files[items[0].file].name;
    size_t prefix = first.size, suffix = first.size;
    for (uint32_t i = 1; i < files->count; i++) {
        const tsr_str name = store->files[items[i].file].name;
        size_t at = 0, back = 0;
        while (at < prefix && at < name.size && name.data[at] == first.data[at]) at++;
        while (back < suffix && back < name.size && name.data[name.size - 1 - back] == first.data[first.size - 1 - back])
            back++;
        prefix = at;
        suffix = back;
    }
    while (prefix > 0 && tsr_is_digit(first.data[prefix - 1])) prefix--;
    while (suffix > 0 && tsr_is_digit(first.data[first.size - suffix])) suffix--;
    const tsr_str head = {first.data, prefix}, tail = {first.data + first.size - suffix, suffix};
    if (tsr_str_starts(tail, TSR_STR("-of-"))) return false;
    const bool ranks = tsr_name_holds(head, TSR_STR("rank"));
    if (!ranks && (tsr_name_holds(head, TSR_STR("step")) || tsr_name_holds(head, TSR_STR("epoch")) ||
                   tsr_name_holds(head, TSR_STR("iter"))))
        return false;
    for (uint32_t i = 0; i < files->count; i++) {
        const tsr_str name = store->files[items[i].file].name;
        items[i].number = name.size < prefix + suffix ? TSR_NO_NUMBER : tsr_number_between(name, prefix, name.size - suffix);
        if (items[i].number == TSR_NO_NUMBER) return false;
    }
    tsr_sort_numbered(files);
    for (uint32_t i = 1; i < files->count; i++)
        if (items[i].number == items[i - 1].number || (!ranks && items[i].number != items[i - 1].number + 1)) return false;
    return ranks || items[0].number <= 1;
}

/* Whether all files are shards of one model ("…-00001-of-00003.bin"), so that their index is missing. */
static bool are_shards(const tsr_store *store, const tsr_numbered_files *files)
{
    const tsr_counted_name first = tsr_counted_name_of(store->files[files->items[0].file].name);
    for (uint32_t i = 0; i < files->count; i++) {
        const tsr_counted_name name = tsr_counted_name_of(store->files[files->items[i].file].name);
        const bool counted = name.count > 1 && name.first == 1;
        if (!counted || !tsr_str_equal(name.before, first.before) || !tsr_str_equal(name.after, first.after)) return false;
    }
    return true;
}

/* Only in a directory that is `alone` can files be a single one, or shards without their index. */
static tsr_status torch_choose(tsr_checkpoint *checkpoint, tsr_numbered_files *files, bool alone, const tsr_reader **reader,
                               tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    if (files->count > 1 && are_ranks(store, files)) *reader = &tsr_reader_torch_ranks;
    else if (alone && are_shards(store, files)) *reader = &tsr_reader_torch_without_index;
    else if (alone && files->count == 1) *reader = files->items[0].reader;
    return *reader ? tsr_choose_files(checkpoint, files->items, files->count, err) : TSR_OK;
}

const tsr_file_kind tsr_file_kind_torch = {.reader_of = torch_reader_of,
                                           .index = &tsr_reader_torch_index,
                                           .reported = ".bin",
                                           .choose = torch_choose,
                                           .several = "several torch.save files that are not one file per rank"};
