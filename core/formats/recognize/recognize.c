/* Chooses a reader by the list of files and their first bytes.
 *
 *   .metadata, __R.metadata        → dcp              one index file                → safetensors-index, torch-index
 *   what transformers would load   → its format
 *   files with DCP_SHARDING_INFO   → dcp-safetensors  safetensors files only        → safetensors
 *   one torch.save file            → torch-zip/legacy torch.save files 0 … n-1      → torch-ranks
 *
 * Everything else is rejected with a message that says what was found. */
#include "formats/recognize/recognize.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "codec/json.h"
#include "formats/common/incomplete.h"
#include "formats/common/shown_names.h"
#include "formats/recognize/below.h"
#include "formats/recognize/directory_names.h"
#include "formats/recognize/foreign.h"
#include "formats/safetensors/safetensors.h"
#include "formats/shards/shards_files.h"
#include "tessera/sys/try.h"

static bool in_root(tsr_str path)
{
    return !memchr(path.data, '/', path.size);
}

/* ---- files, ordered by the numbers in their names ---- */

typedef struct numbered {
    uint64_t number;
    uint32_t file;
} numbered;

static int compare_numbered(const void *left, const void *right)
{
    const numbered *a = left, *b = right;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return (a->file > b->file) - (a->file < b->file);
}

/* The decimal number that [from, to) of a name consists of; UINT64_MAX if it is not a number or too large. */
static uint64_t number_between(tsr_str name, size_t from, size_t to)
{
    uint64_t number = 0;
    if (to <= from || to - from > 18) return UINT64_MAX;
    for (size_t i = from; i < to; i++) {
        if (name.data[i] < '0' || name.data[i] > '9') return UINT64_MAX;
        number = number * 10 + (uint64_t)(name.data[i] - '0');
    }
    return number;
}

typedef struct recognizer {
    tsr_checkpoint *checkpoint;
    tsr_store *store;
    tsr_vec safetensors; /* this vec and the next three: `numbered`, files in the root, sorted into them by content */
    tsr_vec torch;
    tsr_vec indexes;
    tsr_vec metadata;       /* __R.metadata */
    tsr_content torch_kind; /* of the last torch file */
    uint32_t foreign_file;
    const char *foreign;
    tsr_error *err;
} recognizer;

static tsr_str name_at(const recognizer *r, uint32_t file)
{
    return r->store->files[file].name;
}

static tsr_status choose(recognizer *r, const numbered *files, size_t count)
{
    uint32_t *kept = tsr_arena_array(r->checkpoint->arena, count, sizeof *kept, r->err);
    if (!kept) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) kept[i] = files[i].file;
    r->checkpoint->files = kept;
    r->checkpoint->file_count = (uint32_t)count;
    return TSR_OK;
}

static tsr_status choose_one(recognizer *r, uint32_t file)
{
    return choose(r, &(numbered){0, file}, 1);
}

static tsr_status add(recognizer *r, tsr_vec *list, uint64_t number, uint32_t file)
{
    numbered *item = tsr_vec_push(list, r->err);
    if (!item) return TSR_E_NOMEM;
    *item = (numbered){number, file};
    return TSR_OK;
}

/* ---- index files ---- */

static tsr_status refuse_foreign_tensors(recognizer *r, uint32_t file)
{
    const char *foreign;
    TSR_TRY(tsr_foreign_safetensors(r->store, file, r->checkpoint->host, &foreign, r->err));
    TSR_FAIL_IF(foreign, r->err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(name_at(r, file)), foreign);
    return TSR_OK;
}

/* The content of the first file of a weight map that exists; judged by its name if none does, in which case *any is false. */
static tsr_status shard_content(recognizer *r, const cJSON *weights, tsr_content *content, bool *any)
{
    const char *foreign;
    *content = TSR_CONTENT_SAFETENSORS;
    *any = true;
    for (const cJSON *member = weights->child; member; member = member->next) {
        if (!cJSON_IsString(member)) continue; /* the reader will report it */
        uint32_t file = tsr_store_find(r->store, tsr_json_text_of(member));
        if (file != TSR_NO_FILE) {
            TSR_TRY(tsr_content_of(r->store, file, content, &foreign, r->err));
            return *content == TSR_CONTENT_SAFETENSORS ? refuse_foreign_tensors(r, file) : TSR_OK;
        }
        bool by_name = tsr_str_ends(tsr_json_text_of(member), TSR_STR(".safetensors"));
        if (member == weights->child && !by_name) *content = TSR_CONTENT_TORCH_ZIP;
    }
    *any = false;
    return TSR_OK;
}

static tsr_status recognize_file(recognizer *r, uint32_t file, const tsr_reader **reader);

/* The file with the whole model to which an index would belong: "model.safetensors" for "model.safetensors.index.json". */
static uint32_t whole_file_of(const recognizer *r, uint32_t index)
{
    const tsr_str name = name_at(r, index), ending = TSR_STR(TSR_INDEX_ENDING);
    return tsr_str_ends(name, ending) ? tsr_store_find(r->store, (tsr_str){name.data, name.size - ending.size})
                                      : TSR_NO_FILE;
}

static tsr_status recognize_index(recognizer *r, uint32_t file, const tsr_reader **reader)
{
    tsr_bytes text;
    cJSON *root;
    tsr_content content = TSR_CONTENT_SAFETENSORS;
    bool any = true;
    const tsr_host *host = r->checkpoint->host;
    TSR_TRY(tsr_range_load(tsr_whole_file(r->store, file), host, &text, r->err));
    tsr_status status = tsr_json_parse(text.data, host, &root, r->err);
    tsr_bytes_free(&text);
    if (status != TSR_OK) {
        tsr_error_context(r->err, "%.*s", TSR_STR_ARG(name_at(r, file)));
        return status;
    }
    const cJSON *weights = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    const char *foreign = tsr_foreign_index(root);
    if (foreign)
        status = tsr_fail(r->err, TSR_E_UNSUPPORTED, "%.*s is the index of %s", TSR_STR_ARG(name_at(r, file)), foreign);
    else if (!weights)
        status = tsr_fail(r->err, TSR_E_UNSUPPORTED, "%.*s is a JSON document without a weight_map, not a checkpoint",
                          TSR_STR_ARG(name_at(r, file)));
    else status = shard_content(r, weights, &content, &any);
    cJSON_Delete(root);
    if (status != TSR_OK) return status;
    const uint32_t whole = any || r->store->primary != TSR_NO_FILE ? TSR_NO_FILE : whole_file_of(r, file);
    if (whole != TSR_NO_FILE)
        return recognize_file(r, whole, reader); /* transformers writes no index then, but leaves an old one */
    bool torch = content == TSR_CONTENT_TORCH_ZIP || content == TSR_CONTENT_TORCH_LEGACY;
    *reader = torch ? &tsr_reader_torch_index : &tsr_reader_safetensors_index;
    return choose_one(r, file);
}

/* ---- one file ---- */

static tsr_status refuse_unknown(recognizer *r, uint32_t file)
{
    uint8_t b[4] = {0};
    tsr_str name = name_at(r, file);
    uint64_t size = r->store->files[file].size;
    TSR_FAIL_IF(size == 0, r->err, TSR_E_UNSUPPORTED, "%.*s is empty", TSR_STR_ARG(name));
    TSR_TRY(tsr_store_read(r->store, file, 0, b, size < 4 ? (size_t)size : 4, r->err));
    return tsr_raise(r->err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                     "%.*s is not in a recognized checkpoint format; it begins with the bytes %02x %02x %02x %02x",
                     TSR_STR_ARG(name), b[0], b[1], b[2], b[3]);
}

static tsr_status recognize_file(recognizer *r, uint32_t file, const tsr_reader **reader)
{
    tsr_content content;
    const char *foreign;
    tsr_str name = name_at(r, file);
    TSR_TRY(tsr_content_of(r->store, file, &content, &foreign, r->err));
    TSR_FAIL_IF(tsr_str_ends(name, TSR_STR(".distcp")), r->err, TSR_E_UNSUPPORTED,
                "%.*s is a data file of a DCP checkpoint; name the directory that contains it and its .metadata",
                TSR_STR_ARG(name));
    TSR_TRY(choose_one(r, file));
    switch (content) {
    case TSR_CONTENT_SAFETENSORS: *reader = &tsr_reader_safetensors; return refuse_foreign_tensors(r, file);
    case TSR_CONTENT_TORCH_ZIP: *reader = &tsr_reader_torch_zip; return TSR_OK;
    case TSR_CONTENT_TORCH_LEGACY: *reader = &tsr_reader_torch_legacy; return TSR_OK;
    case TSR_CONTENT_JSON: return recognize_index(r, file, reader);
    case TSR_CONTENT_FOREIGN: return tsr_fail(r->err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(name), foreign);
    case TSR_CONTENT_UNKNOWN: break;
    }
    /* The content is not recognizable, but the reader for this ending can report what is wrong with it. */
    if (!tsr_str_ends(name, TSR_STR(".safetensors"))) return refuse_unknown(r, file);
    *reader = &tsr_reader_safetensors;
    return TSR_OK;
}

/* ---- directories ---- */

static tsr_status sort_file(recognizer *r, uint32_t file)
{
    tsr_str name = name_at(r, file);
    tsr_content content;
    const char *foreign;
    tsr_str prefix = TSR_STR("__"), suffix = TSR_STR(".metadata");
    if (tsr_str_starts(name, prefix) && tsr_str_ends(name, suffix)) {
        uint64_t rank = number_between(name, prefix.size, name.size - suffix.size);
        if (rank != UINT64_MAX && r->store->files[file].size) return add(r, &r->metadata, rank, file);
    }
    if (tsr_str_ends(name, TSR_STR(".distcp"))) return TSR_OK;
    /* Decided by name alone: if an index cannot be read, the files next to it must not be taken for a checkpoint without an
     * index. */
    if (tsr_str_ends(name, TSR_STR(TSR_INDEX_ENDING))) return add(r, &r->indexes, 0, file);
    TSR_TRY(tsr_content_of(r->store, file, &content, &foreign, r->err));
    if (content == TSR_CONTENT_SAFETENSORS ||
        (content == TSR_CONTENT_UNKNOWN && tsr_str_ends(name, TSR_STR(".safetensors"))))
        return add(r, &r->safetensors, 0, file);
    if (content == TSR_CONTENT_FOREIGN && !r->foreign) {
        r->foreign = foreign;
        r->foreign_file = file;
    }
    if (content != TSR_CONTENT_TORCH_ZIP && content != TSR_CONTENT_TORCH_LEGACY) return TSR_OK;
    r->torch_kind = content;
    return add(r, &r->torch, 0, file);
}

static tsr_status refuse_several(recognizer *r, const tsr_below *list, const char *what, const char *hint)
{
    return tsr_fail(r->err, TSR_E_UNSUPPORTED, "the directory contains %s (%u%s): %s%s; %s", what, list->count,
                    list->cut ? " or more" : "", list->text, tsr_below_rest(list), hint);
}

/* For a `list` that contains only directories. */
static tsr_status refuse_below(recognizer *r, const tsr_below *list)
{
    return refuse_several(r, list, list->count == 1 ? "a checkpoint in a directory below" : "several checkpoints",
                          "use --step, or name its path");
}

static const char *form_of(tsr_content content)
{
    const tsr_reader *reader = content == TSR_CONTENT_SAFETENSORS ? &tsr_reader_safetensors
                               : content == TSR_CONTENT_TORCH_ZIP ? &tsr_reader_torch_zip
                                                                  : &tsr_reader_torch_legacy;
    return tsr_format_name(reader->format);
}

static tsr_status list_files(recognizer *r, tsr_below *list, const tsr_vec *files)
{
    const numbered *items = files->items;
    for (size_t i = 0; i < files->count; i++) {
        tsr_content content = TSR_CONTENT_UNKNOWN;
        const char *foreign;
        const tsr_str name = name_at(r, items[i].file);
        const bool is_index = tsr_str_ends(name, TSR_STR(TSR_INDEX_ENDING));
        if (!is_index) TSR_TRY(tsr_content_of(r->store, items[i].file, &content, &foreign, r->err));
        tsr_below_add(list, name, is_index ? "index" : form_of(content));
    }
    return TSR_OK;
}

static tsr_status refuse_folder(recognizer *r)
{
    tsr_below list = {.used = 0};
    const char *foreign = tsr_foreign_directory(r->store), *below;
    TSR_FAIL_IF(foreign, r->err, TSR_E_UNSUPPORTED, "the directory is %s", foreign);
    tsr_str named = r->foreign ? tsr_arena_str(r->checkpoint->arena, name_at(r, r->foreign_file), r->err) : (tsr_str){"", 0};
    if (!named.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_list_below(r->checkpoint, tsr_recognize, &list, r->err));
    if (list.count) return refuse_below(r, &list);
    below = list.cut ? "; there are more, which were not looked at" : tsr_below_deeper(&list);
    TSR_FAIL_IF(r->foreign, r->err, TSR_E_UNSUPPORTED, "%.*s is %s%s", TSR_STR_ARG(named), r->foreign, below);
    TSR_FAIL_IF(tsr_has_deepspeed_files(r->store), r->err, TSR_E_UNSUPPORTED,
                "the directory contains files of a DeepSpeed checkpoint, but no *mp_rank_MM_model_states.pt and no "
                "*_mp_rank_MM_optim_states.pt%s",
                below);
    TSR_FAIL_IF(r->store->file_count == 0, r->err, TSR_E_UNSUPPORTED, "the directory %s%s",
                list.deeper ? "contains no files" : "is empty", below);
    return tsr_fail(r->err, TSR_E_UNSUPPORTED, "none of the directory's %u files is in a recognized checkpoint format%s",
                    (unsigned)r->store->file_count, below);
}

/* Whether there are two or more torch.save files whose names differ only in a number, and the numbers are 0 … n-1 or 1 … n:
 * one file per rank. If the names mention steps or epochs, the files are separate checkpoints, unless the names mention
 * ranks as well. Sets the files' numbers. */
static bool are_ranks(const recognizer *r, tsr_vec *torch)
{
    numbered *items = torch->items;
    tsr_str first = name_at(r, items[0].file);
    size_t prefix = first.size, suffix = first.size;
    for (size_t i = 1; i < torch->count; i++) {
        tsr_str name = name_at(r, items[i].file);
        size_t at = 0, back = 0;
        while (at < prefix && at < name.size && name.data[at] == first.data[at]) at++;
        while (back < suffix && back < name.size && name.data[name.size - 1 - back] == first.data[first.size - 1 - back])
            back++;
        prefix = at;
        suffix = back;
    }
    while (prefix > 0 && first.data[prefix - 1] >= '0' && first.data[prefix - 1] <= '9') prefix--;
    while (suffix > 0 && first.data[first.size - suffix] >= '0' && first.data[first.size - suffix] <= '9') suffix--;
    tsr_str head = {first.data, prefix}, tail = {first.data + first.size - suffix, suffix};
    if (tsr_str_starts(tail, TSR_STR("-of-"))) return false;
    bool ranks = tsr_name_holds(head, TSR_STR("rank"));
    if (!ranks && (tsr_name_holds(head, TSR_STR("step")) || tsr_name_holds(head, TSR_STR("epoch")) ||
                   tsr_name_holds(head, TSR_STR("iter"))))
        return false;
    for (size_t i = 0; i < torch->count; i++) {
        tsr_str name = name_at(r, items[i].file);
        items[i].number = name.size < prefix + suffix ? UINT64_MAX : number_between(name, prefix, name.size - suffix);
        if (items[i].number == UINT64_MAX) return false;
    }
    qsort(items, torch->count, sizeof *items, compare_numbered);
    for (size_t i = 1; i < torch->count; i++)
        if (items[i].number == items[i - 1].number || (!ranks && items[i].number != items[i - 1].number + 1)) return false;
    return ranks || items[0].number <= 1;
}

/* Whether the header contains DCP's key for sharding information; its reader checks whether it is in the right place. */
static tsr_status is_sharded(recognizer *r, uint32_t file, bool *sharded)
{
    tsr_store *store = r->store;
    tsr_bytes header;
    uint8_t length[8] = {0};
    *sharded = false;
    if (store->files[file].size < sizeof length) return TSR_OK;
    TSR_TRY(tsr_store_read(store, file, 0, length, sizeof length, r->err));
    uint64_t size = tsr_load_le(length, sizeof length);
    if (size > TSR_SAFETENSORS_MAX_HEADER || size > store->files[file].size - sizeof length) return TSR_OK;
    TSR_TRY(tsr_range_load((tsr_range){store, file, sizeof length, size}, r->checkpoint->host, &header, r->err));
    *sharded = tsr_name_holds(header.data, TSR_STR("DCP_SHARDING_INFO"));
    tsr_bytes_free(&header);
    return TSR_OK;
}

/* Whether all files are named like parts of ranks, and there are several ranks. Sets the files' numbers and sorts by
 * them. */
static bool are_rank_parts(const recognizer *r)
{
    numbered *files = r->safetensors.items;
    bool several = false;
    for (size_t i = 0; i < r->safetensors.count; i++) {
        uint64_t rank, part;
        if (!tsr_rank_part_of(name_at(r, files[i].file), &rank, &part)) return false;
        files[i].number = rank << 32 | part;
        several = several || rank != files[0].number >> 32;
    }
    if (several) qsort(files, r->safetensors.count, sizeof *files, compare_numbered);
    return several;
}

static tsr_status recognize_safetensors(recognizer *r, const tsr_reader **reader)
{
    const numbered *files = r->safetensors.items;
    bool sharded;
    if (are_rank_parts(r)) {
        *reader = &tsr_reader_safetensors_ranks;
        return choose(r, files, r->safetensors.count);
    }
    TSR_TRY(refuse_foreign_tensors(r, files[0].file));
    TSR_TRY(is_sharded(r, files[0].file, &sharded));
    *reader = sharded ? &tsr_reader_dcp_safetensors : &tsr_reader_safetensors;
    return choose(r, files, r->safetensors.count);
}

/* Whether all torch.save files are shards of one model ("…-00001-of-00003.bin"), so that their index is missing. */
static bool are_shards(const recognizer *r)
{
    const numbered *files = r->torch.items;
    const tsr_counted_name first = tsr_counted_name_of(name_at(r, files[0].file));
    for (size_t i = 0; i < r->torch.count; i++) {
        const tsr_counted_name name = tsr_counted_name_of(name_at(r, files[i].file));
        const bool counted = name.count > 1 && name.first == 1;
        if (!counted || !tsr_str_equal(name.before, first.before) || !tsr_str_equal(name.after, first.after)) return false;
    }
    return true;
}

static tsr_status recognize_torch(recognizer *r, const tsr_reader **reader)
{
    const numbered *files = r->torch.items;
    tsr_below list = {.used = 0};
    /* A Trainer's scheduler.pt is next to the directories of model and optimizer. */
    const bool has_folders = tsr_has_dcp_below(r->store);
    if (r->torch.count == 1 && !has_folders && !are_shards(r)) {
        *reader = r->torch_kind == TSR_CONTENT_TORCH_ZIP ? &tsr_reader_torch_zip : &tsr_reader_torch_legacy;
        return choose_one(r, files[0].file);
    }
    if (r->torch.count > 1 && are_ranks(r, &r->torch)) {
        *reader = &tsr_reader_torch_ranks;
        return choose(r, r->torch.items, r->torch.count);
    }
    if (!has_folders && are_shards(r)) {
        *reader = &tsr_reader_torch_without_index;
        return choose(r, files, r->torch.count);
    }
    TSR_TRY(list_files(r, &list, &r->torch));
    if (has_folders) TSR_TRY(tsr_list_below(r->checkpoint, tsr_recognize, &list, r->err));
    return refuse_several(r, &list,
                          has_folders ? "several checkpoints" : "several torch.save files that are not one file per rank",
                          "name one of them");
}

/* Chooses the metadata that one rank wrote. */
static tsr_status choose_rank(recognizer *r, uint32_t rank)
{
    const numbered *files = r->metadata.items;
    for (size_t i = 0; i < r->metadata.count; i++)
        if (files[i].number == rank) return choose_one(r, files[i].file);
    return tsr_fail(r->err, TSR_E_NOT_FOUND,
                    "every rank wrote its own metadata, and '__%u.metadata' is not among the %zu files", rank,
                    r->metadata.count);
}

/* ---- directories of libraries that could load one of several files ---- */

enum { MODEL_NAMES = 4 };

/* The names of a model in the order in which a library tries them. Sources: _get_resolved_checkpoint_files of transformers,
 * ModelMixin.from_pretrained of diffusers, load_peft_weights of PEFT. */
typedef struct library {
    const char *name, *models[MODEL_NAMES];
} library;

static const library libraries[] = {
    {"transformers",
     {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"}},
    {"diffusers",
     {"diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin",
      "diffusion_pytorch_model.bin.index.json"}},
    {"PEFT", {"adapter_model.safetensors", "adapter_model.bin"}}};

/* Whether a name is that of a shard of `model`, or of a variant, which is only loaded by its name: "model.fp16.safetensors". */
static bool is_form_of(tsr_str name, const char *model)
{
    const tsr_str stem = {model, strcspn(model, ".")}, ending = {model + stem.size, strcspn(model + stem.size + 1, ".") + 1};
    if (!tsr_str_starts(name, stem) || name.size == stem.size || !tsr_str_ends(name, ending)) return false;
    return name.data[stem.size] == '.' || (name.data[stem.size] == '-' && tsr_counted_name_of(name).count);
}

/* Whether a file is another form of the model, or a shard of it, so that it does not belong to a model in one file. */
static bool is_another_form(tsr_str name, const library *by)
{
    for (size_t m = 0; m < MODEL_NAMES && by->models[m]; m++)
        if (is_form_of(name, by->models[m])) return true;
    return by == libraries && tsr_str_starts(name, TSR_STR("consolidated"));
}

/* The file that a library loads from a directory in which it could load several; TSR_NO_FILE for all other directories. */
static uint32_t choice_of(const recognizer *r, const library *by)
{
    const tsr_vec *lists[] = {&r->indexes, &r->safetensors, &r->torch};
    uint32_t first = TSR_NO_FILE, found = 0;
    bool explained = true;
    for (size_t m = MODEL_NAMES; m-- > 0;) {
        const uint32_t file = by->models[m] ? tsr_store_find(r->store, tsr_str_from(by->models[m])) : TSR_NO_FILE;
        if (file == TSR_NO_FILE) continue;
        first = file;
        found++;
    }
    for (size_t l = 0; l < 3; l++) {
        const numbered *items = lists[l]->items;
        for (size_t i = 0; i < lists[l]->count; i++)
            explained = explained && (items[i].file == first || is_another_form(name_at(r, items[i].file), by));
    }
    return found > 1 || explained ? first : TSR_NO_FILE;
}

static uint32_t library_choice(const recognizer *r, const char **by)
{
    *by = NULL;
    if (!r->indexes.count && tsr_has_training_files(r->store)) return TSR_NO_FILE;
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        const uint32_t file = choice_of(r, &libraries[i]);
        if (file == TSR_NO_FILE) continue;
        *by = libraries[i].name;
        return file;
    }
    return TSR_NO_FILE;
}

/* Whether the reader of an index reports this file itself, if the index does not name it. */
static bool is_reported(const tsr_reader *reader, tsr_str name)
{
    return (reader == &tsr_reader_safetensors_index && tsr_str_ends(name, TSR_STR(".safetensors"))) ||
           (reader == &tsr_reader_torch_index && tsr_str_ends(name, TSR_STR(".bin")));
}

/* `by` is the library that reads the chosen file, too, or NULL. */
static tsr_status report_unread(const recognizer *r, const tsr_reader *reader, const char *by, tsr_error *err)
{
    const tsr_vec *lists[] = {&r->indexes, &r->torch, &r->safetensors};
    const uint32_t chosen = r->checkpoint->files[0];
    tsr_shown_names names = {.used = 0};
    tsr_place place = TSR_NOWHERE;
    for (size_t l = 0; l < 3; l++) {
        const numbered *items = lists[l]->items;
        for (size_t i = 0; i < lists[l]->count; i++) {
            const tsr_str name = name_at(r, items[i].file);
            if (items[i].file == chosen || is_reported(reader, name)) continue;
            if (!names.count) place.file = name;
            tsr_shown_names_add(&names, name);
        }
    }
    if (!names.count || !r->checkpoint->findings) return TSR_OK; /* only the format is wanted */
    return tsr_finding_add(r->checkpoint->findings, "index/other-model", place, err, "'%.*s' is read%s%s%s; not read: %s%s",
                           TSR_STR_ARG(name_at(r, chosen)), by ? ", as " : "", by ? by : "", by ? " would" : "", names.text,
                           tsr_shown_names_rest(&names));
}

/* Recognizes a directory by the file that states what the model is: an index, or the one that a library would load. Leaves
 * *reader alone if there is none. */
static tsr_status recognize_model(recognizer *r, const tsr_reader **reader)
{
    const char *by;
    uint32_t file = library_choice(r, &by);
    if (file == TSR_NO_FILE && r->indexes.count == 1) file = ((const numbered *)r->indexes.items)[0].file;
    if (file == TSR_NO_FILE) return TSR_OK;
    const bool is_index = tsr_str_ends(name_at(r, file), TSR_STR(TSR_INDEX_ENDING));
    TSR_TRY((is_index ? recognize_index : recognize_file)(r, file, reader));
    return report_unread(r, *reader, by, r->err);
}

static tsr_status recognize_folder(recognizer *r, const tsr_reader **reader)
{
    tsr_below list = {.used = 0};
    for (uint32_t f = 0; f < r->store->file_count; f++)
        if (in_root(name_at(r, f))) TSR_TRY(sort_file(r, f));
    if (r->metadata.count) {
        qsort(r->metadata.items, r->metadata.count, sizeof(numbered), compare_numbered);
        *reader = &tsr_reader_dcp;
        if (r->checkpoint->options.metadata_rank) return choose_rank(r, *r->checkpoint->options.metadata_rank);
        return choose(r, r->metadata.items, r->metadata.count);
    }
    TSR_TRY(recognize_model(r, reader));
    if (*reader) return TSR_OK;
    const tsr_vec *lists[] = {&r->indexes, &r->safetensors, &r->torch};
    size_t kinds = (r->indexes.count > 0) + (r->safetensors.count > 0) + (r->torch.count > 0);
    if (kinds == 0 || tsr_has_training_files(r->store)) return refuse_folder(r);
    if (kinds == 1 && r->safetensors.count) return recognize_safetensors(r, reader);
    if (kinds == 1 && r->torch.count) return recognize_torch(r, reader);
    for (size_t k = r->indexes.count ? 0 : 1; k < (r->indexes.count ? 1u : 3u); k++) TSR_TRY(list_files(r, &list, lists[k]));
    return refuse_several(r, &list, "several checkpoints", "name one of them");
}

/* The only file in the directory and directly below it, or TSR_NO_FILE. Deeper files are ignored, because only some stores
 * list them. */
static uint32_t only_file(const tsr_store *store)
{
    uint32_t found = TSR_NO_FILE;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str path = store->files[f].name;
        if (tsr_is_deeper(path)) continue;
        if (found != TSR_NO_FILE || !in_root(path)) return TSR_NO_FILE;
        found = f;
    }
    return found;
}

/* Recognizes the only file of a directory. If it is not a checkpoint, there may still be some further below. */
static tsr_status recognize_only_file(recognizer *r, uint32_t file, const tsr_reader **reader)
{
    tsr_error why = {0}, *err = r->err;
    tsr_below list = {.used = 0};
    r->err = &why;
    const tsr_status status = recognize_file(r, file, reader);
    r->err = err;
    if (status == TSR_OK) return TSR_OK;
    if (status == TSR_E_UNSUPPORTED) TSR_TRY(tsr_list_below(r->checkpoint, tsr_recognize, &list, err));
    if (list.count) return refuse_below(r, &list);
    return tsr_raise(err, status, why.byte_position, "%s%s", why.message, tsr_below_deeper(&list));
}

tsr_status tsr_recognize(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_store *store = checkpoint->store;
    const char *foreign;
    recognizer r = {.checkpoint = checkpoint, .store = store, .err = err};
    if (checkpoint->options.shards) TSR_TRY(tsr_shards_choose(checkpoint, reader, err));
    if (checkpoint->options.shards && *reader) return TSR_OK;
    /* Among all files, because a map of shards may have made the store list more of them. */
    uint32_t metadata = tsr_store_find(store, TSR_STR(".metadata"));
    if (store->file_count == 0) return refuse_folder(&r);
    if (store->primary != TSR_NO_FILE && store->primary != metadata) return recognize_file(&r, store->primary, reader);
    TSR_TRY(tsr_foreign_form(checkpoint, &foreign, err));
    TSR_FAIL_IF(foreign, err, TSR_E_UNSUPPORTED, "the directory is %s", foreign);
    TSR_TRY(tsr_form_of_directory(checkpoint, reader, err));
    if (*reader) return TSR_OK;
    if (tsr_lacks_dcp_metadata(store)) {
        *reader = &tsr_reader_dcp_without_metadata;
        return TSR_OK;
    }
    if (metadata != TSR_NO_FILE) {
        *reader = &tsr_reader_dcp;
        return choose_one(&r, metadata);
    }
    const uint32_t only = store->file_count > 1 && tsr_foreign_directory(store) ? TSR_NO_FILE : only_file(store);
    if (only != TSR_NO_FILE && !tsr_str_ends(store->files[only].name, TSR_STR(".metadata")))
        return recognize_only_file(&r, only, reader);
    r.safetensors = r.torch = r.indexes = r.metadata = tsr_vec_of(allocator, sizeof(numbered));
    tsr_status status = recognize_folder(&r, reader);
    tsr_vec_free(&r.safetensors);
    tsr_vec_free(&r.torch);
    tsr_vec_free(&r.indexes);
    tsr_vec_free(&r.metadata);
    return status;
}
