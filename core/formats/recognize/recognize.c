/* Chooses a reader: a directory's by the rows of format_table.c, a file's by its first bytes.
 *
 *   what the options ask for        a reader of files of ranks
 *   a file                          its kind, or the index that it is
 *   a directory of another program  refused
 *   a row of the table              its reader
 *   one file                        as above
 *   what a library would load       its kind
 *   an index                        its reader
 *   files of one kind               what the kind chooses
 *
 * Everything else is rejected with a message that says what was found. */
#include "formats/recognize/recognize.h"

#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/common/metadata.h"
#include "formats/safetensors/safetensors_reader.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

typedef struct recognizer {
    tsr_checkpoint *checkpoint;
    tsr_store *store;
    tsr_vec files[TSR_FILE_KINDS]; /* of tsr_numbered_file, in the root, by content */
    tsr_vec indexes;               /* the same, by name */
    tsr_vec others;                /* the same, of no kind */
    uint32_t foreign_file;
    const char *foreign;
    tsr_error *err;
} recognizer;

static bool in_root(tsr_str path)
{
    return !memchr(path.data, '/', path.size);
}

static tsr_str name_at(const recognizer *r, uint32_t file)
{
    return r->store->files[file].name;
}

/* Whether a file is not what its directory contains, whatever its content, because it may not be whole. Programs that write or copy a file
 * give it a hidden name until it is: safetensors writes ".tmpcJVY2P", rsync ".model.safetensors.kE3aB1". */
static bool is_unfinished(tsr_str name)
{
    return tsr_str_starts(name, TSR_STR("."));
}

/* The same for tensors. No loader takes them from a document. */
static bool is_never_read(tsr_str name)
{
    return is_unfinished(name) || tsr_str_ends(name, TSR_STR(".json"));
}

static tsr_status choose_one(const recognizer *r, uint32_t file)
{
    return tsr_choose_files(r->checkpoint, &(tsr_numbered_file){.file = file}, 1, r->err);
}

/* ---- files that frameworks write ---- */

/* Whether a name is the marker of a row. */
static bool is_marker(tsr_str name)
{
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->marker && tsr_str_equal(name, tsr_str_from(tsr_directories[i]->marker))) return true;
    return false;
}

/* The row whose data file this is, or NULL. */
static const tsr_directory *data_of(tsr_str path)
{
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->data && tsr_str_ends(path, tsr_str_from(tsr_directories[i]->data)))
            return tsr_directories[i];
    return NULL;
}

/* Whether the directory, or one directly below it, has files that a framework of the table writes, several of which make up one
 * checkpoint. Deeper paths are ignored, because only some stores list them. */
static bool has_files_of(const tsr_store *store, const tsr_directory *row)
{
    bool has = false;
    for (uint32_t f = 0; f < store->file_count && row->writes; f++) {
        const tsr_str path = store->files[f].name, name = tsr_last_path_part(path);
        if (tsr_is_deeper(path)) continue;
        if (row->has_others && (data_of(path) || is_marker(name))) return false;
        has = has || row->writes(name);
    }
    return has;
}

static bool has_training_files(const tsr_store *store)
{
    for (size_t i = 0; tsr_directories[i]; i++)
        if (has_files_of(store, tsr_directories[i])) return true;
    return false;
}

/* Whether a directory below has a marker. */
static bool has_marked_below(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str path = store->files[f].name;
        if (!in_root(path) && !tsr_is_deeper(path) && is_marker(tsr_last_path_part(path))) return true;
    }
    return false;
}

/* ---- index files ---- */

static tsr_status refuse_foreign(const recognizer *r, const tsr_file_kind *kind, uint32_t file)
{
    const char *foreign = NULL;
    if (kind && kind->foreign) TSR_TRY(kind->foreign(r->store, file, r->checkpoint->host, &foreign, r->err));
    TSR_FAIL_IF(foreign, r->err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(name_at(r, file)), foreign);
    return TSR_OK;
}

/* Refuses an index if pointers of Git LFS are in place of its files. They are smaller than any other shard, so that no other is read. */
static tsr_status refuse_pointers(const recognizer *r, const cJSON *weights)
{
    enum { LARGEST_POINTER = 1024 };
    uint32_t last = TSR_NO_FILE;
    for (const cJSON *member = weights->child; member; member = member->next) {
        const uint32_t file =
            cJSON_IsString(member) ? tsr_store_find(r->store, tsr_weight_file_name(tsr_json_text_of(member))) : TSR_NO_FILE;
        tsr_content content = {.foreign = NULL};
        if (file == TSR_NO_FILE || file == last) continue;
        if (r->store->files[file].size < LARGEST_POINTER) TSR_TRY(tsr_content_of(r->store, file, &content, r->err));
        TSR_FAIL_IF(content.foreign, r->err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(name_at(r, file)),
                    content.foreign);
        last = file;
    }
    return TSR_OK;
}

/* The kind of the first file of a weight map that exists, or the first of the table if it is in none; judged by the name of
 * the first file if none exists, in which case *any is false. */
static tsr_status kind_of(const recognizer *r, const cJSON *weights, const tsr_file_kind **kind, bool *any)
{
    *kind = tsr_file_kinds[0];
    *any = true;
    for (const cJSON *member = weights->child; member; member = member->next) {
        if (!cJSON_IsString(member)) continue; /* the reader will report it */
        const tsr_str name = tsr_weight_file_name(tsr_json_text_of(member));
        const uint32_t file = tsr_store_find(r->store, name);
        if (file != TSR_NO_FILE) {
            tsr_content content;
            TSR_TRY(tsr_content_of(r->store, file, &content, r->err));
            if (content.kind) *kind = content.kind;
            return refuse_foreign(r, content.kind, file);
        }
        if (member != weights->child) continue;
        for (size_t c = 0; c < TSR_FILE_KINDS; c++) { /* the last one has no ending: it is that of all other names */
            *kind = tsr_file_kinds[c];
            if ((*kind)->ending && tsr_str_ends(name, tsr_str_from((*kind)->ending))) break;
        }
    }
    *any = false;
    return TSR_OK;
}

static tsr_status recognize_file(recognizer *r, uint32_t file, const tsr_reader **reader);

/* Whether a name is that of an index, of a variant too: "model.safetensors.index.json", "model.safetensors.index.fp16.json". */
static bool is_index_name(tsr_str name)
{
    return !is_unfinished(name) && tsr_str_ends(name, TSR_STR(".json")) && tsr_name_holds(name, TSR_STR(".index."));
}

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
    const tsr_file_kind *kind = NULL;
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
    const char *foreign = tsr_safetensors_foreign_index(root);
    if (foreign)
        status = tsr_fail(r->err, TSR_E_UNSUPPORTED, "%.*s is the index of %s", TSR_STR_ARG(name_at(r, file)), foreign);
    else if (!weights)
        status = tsr_fail(r->err, TSR_E_UNSUPPORTED, "%.*s is a JSON document without a weight_map, not a checkpoint",
                          TSR_STR_ARG(name_at(r, file)));
    else status = kind_of(r, weights, &kind, &any);
    if (!TSR_IS_SMALL && status == TSR_OK) status = refuse_pointers(r, weights);
    cJSON_Delete(root);
    if (status != TSR_OK) return status;
    const uint32_t whole = any || r->store->primary != TSR_NO_FILE ? TSR_NO_FILE : whole_file_of(r, file);
    if (whole != TSR_NO_FILE)
        return recognize_file(r, whole, reader); /* transformers writes no index then, but leaves an old one */
    *reader = kind->index;
    return choose_one(r, file);
}

/* ---- one file ---- */

static tsr_status recognize_file(recognizer *r, uint32_t file, const tsr_reader **reader)
{
    tsr_content content;
    const tsr_str name = name_at(r, file);
    const tsr_directory *whole = data_of(name);
    TSR_TRY(tsr_content_of(r->store, file, &content, r->err));
    TSR_FAIL_IF(whole, r->err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(name), whole->data_is);
    TSR_TRY(choose_one(r, file));
    const tsr_file_kind *named = tsr_kind_named(name);
    *reader = content.reader;
    if (content.kind && named && named != content.kind && r->checkpoint->findings)
        TSR_TRY(tsr_checkpoint_is_incomplete(
            r->checkpoint, name,
            tsr_arena_format(r->checkpoint->arena, r->err, "'%.*s' is not in the format of its name", TSR_STR_ARG(name)),
            r->err));
    if (content.kind) return refuse_foreign(r, content.kind, file);
    if (content.document && !named) return recognize_index(r, file, reader);
    if (content.unknown) TSR_TRY(tsr_content_search(r->store, file, &content.foreign, r->err));
    TSR_FAIL_IF(content.foreign, r->err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(name), content.foreign);
    if (named) {
        *reader = named->named;
        return TSR_OK;
    }
    uint8_t b[4] = {0};
    const uint64_t size = r->store->files[file].size;
    TSR_FAIL_IF(size == 0, r->err, TSR_E_UNSUPPORTED, "%.*s is empty", TSR_STR_ARG(name));
    TSR_TRY(tsr_store_read(r->store, file, 0, b, size < 4 ? (size_t)size : 4, r->err));
    return tsr_raise(r->err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                     "%.*s is not in a recognized checkpoint format; it begins with the bytes %02x %02x %02x %02x",
                     TSR_STR_ARG(name), b[0], b[1], b[2], b[3]);
}

/* ---- directories that cannot be opened ---- */

static tsr_status refuse_several(const recognizer *r, const tsr_below *list, const char *what, const char *hint)
{
    return tsr_fail(r->err, TSR_E_UNSUPPORTED, "the directory contains %s (%u%s): %s%s; %s", what, list->count,
                    list->cut ? " or more" : "", list->text, tsr_below_rest(list), hint);
}

/* For a `list` that contains only directories. */
static tsr_status refuse_below(const recognizer *r, const tsr_below *list)
{
    return refuse_several(r, list, list->count == 1 ? "a checkpoint in a directory below" : "several checkpoints",
                          "use --step, or name its path");
}

/* Adds "path (format)" to the list, or only counts it if the list is full. */
static void add_below(tsr_below *below, tsr_str path, const char *form)
{
    const size_t form_size = strcspn(form, ","), needed = path.size + form_size + 5;
    const bool full = below->shown < below->count || below->used + needed + 1 > sizeof below->text;
    if (below->count++ == 0) below->first = path;
    if (below->paths && tsr_vec_append(below->paths, &path, 1, NULL) != TSR_OK) below->cut = true;
    if (full) return;
    tsr_str parts[] = {tsr_str_from(below->used ? ", " : ""), path, TSR_STR(" ("), {form, form_size}, TSR_STR(")")};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].size) memcpy(below->text + below->used, parts[i].data, parts[i].size);
        below->used += parts[i].size;
    }
    below->text[below->used] = '\0';
    below->shown++;
}

static void list_files(const recognizer *r, tsr_below *list, const tsr_vec *files)
{
    const tsr_numbered_file *items = files->items;
    for (size_t i = 0; i < files->count; i++)
        add_below(list, name_at(r, items[i].file), items[i].reader ? tsr_format_name(items[i].reader->format) : "index");
}

/* May be loaded on demand (wasm/later.txt). */
tsr_status tsr_refuse_directory(recognizer *r);
tsr_status tsr_refuse_directory(recognizer *r)
{
    tsr_below list = {.used = 0};
    const char *foreign = tsr_foreign_directory(r->store), *below;
    TSR_FAIL_IF(foreign, r->err, TSR_E_UNSUPPORTED, "the directory is %s", foreign);
    const tsr_numbered_file *others = r->others.items;
    for (size_t i = 0; i < r->others.count && !r->foreign; i++) {
        r->foreign_file = others[i].file;
        TSR_TRY(tsr_content_search(r->store, r->foreign_file, &r->foreign, r->err));
    }
    tsr_str named = r->foreign ? tsr_arena_str(r->checkpoint->arena, name_at(r, r->foreign_file), r->err) : (tsr_str){"", 0};
    if (!named.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_list_below(r->checkpoint, &list, r->err));
    if (list.count) return refuse_below(r, &list);
    below = list.cut ? "; there are more, which were not looked at" : tsr_below_deeper(&list);
    TSR_FAIL_IF(r->foreign, r->err, TSR_E_UNSUPPORTED, "%.*s is %s%s", TSR_STR_ARG(named), r->foreign, below);
    for (size_t i = 0; tsr_directories[i]; i++)
        TSR_FAIL_IF(tsr_directories[i]->lacking && has_files_of(r->store, tsr_directories[i]), r->err, TSR_E_UNSUPPORTED,
                    "the directory contains %s%s", tsr_directories[i]->lacking, below);
    for (size_t i = 0; i < r->others.count; i++) {
        tsr_content content;
        const tsr_str name = name_at(r, others[i].file);
        if (is_never_read(name)) TSR_TRY(tsr_content_of(r->store, others[i].file, &content, r->err));
        TSR_FAIL_IF(
            is_never_read(name) && content.kind, r->err, TSR_E_UNSUPPORTED,
            "the directory's only checkpoint file is '%.*s', whose name no loader takes for one; name the file to read it%s",
            TSR_STR_ARG(name), below);
    }
    TSR_FAIL_IF(r->store->file_count == 0, r->err, TSR_E_UNSUPPORTED, "the directory %s%s",
                list.deeper ? "contains no files" : "is empty", below);
    return tsr_fail(r->err, TSR_E_UNSUPPORTED, "none of the directory's %u files is in a recognized checkpoint format%s",
                    (unsigned)r->store->file_count, below);
}

static tsr_status refuse_directory(recognizer *r)
{
    TSR_TRY(tsr_host_load(r->checkpoint->host, r->err));
    return tsr_refuse_directory(r);
}

/* ---- directories of libraries that could load one of several files ---- */

/* Whether a name is that of a shard of `model`, or of a variant or its index, which are only loaded by their names:
 * "model.fp16.safetensors". */
static bool is_form_of(tsr_str name, const char *model)
{
    const tsr_str stem = {model, strcspn(model, ".")}, ending = {model + stem.size, strcspn(model + stem.size + 1, ".") + 1};
    if (!tsr_str_starts(name, stem) || name.size == stem.size) return false;
    if (!tsr_str_ends(name, ending) && !is_index_name(name)) return false;
    return name.data[stem.size] == '.' || (name.data[stem.size] == '-' && tsr_counted_name_of(name).count);
}

/* Whether a file is another form of the model, or a shard of it, so that it does not belong to a model in one file. */
static bool is_another_form(tsr_str name, const tsr_library *by)
{
    for (size_t m = 0; m < TSR_MODEL_NAMES && by->models[m]; m++)
        if (is_form_of(name, by->models[m])) return true;
    return by->ignored && tsr_str_starts(name, tsr_str_from(by->ignored));
}

/* Whether all files of a list are `file`, or other forms of its model. */
static bool are_explained(const recognizer *r, const tsr_vec *files, uint32_t file, const tsr_library *by)
{
    const tsr_numbered_file *items = files->items;
    for (size_t i = 0; i < files->count; i++)
        if (items[i].file != file && !is_another_form(name_at(r, items[i].file), by)) return false;
    return true;
}

/* The file that a library loads from a directory in which it could load several; TSR_NO_FILE for all other directories. */
static uint32_t choice_of(const recognizer *r, const tsr_library *by)
{
    uint32_t first = TSR_NO_FILE, found = 0;
    for (size_t m = TSR_MODEL_NAMES; m-- > 0;) {
        const uint32_t file = by->models[m] ? tsr_store_find(r->store, tsr_str_from(by->models[m])) : TSR_NO_FILE;
        if (file == TSR_NO_FILE) continue;
        first = file;
        found++;
    }
    bool explained = are_explained(r, &r->indexes, first, by);
    for (size_t c = 0; c < TSR_FILE_KINDS; c++) explained = explained && are_explained(r, &r->files[c], first, by);
    return found > 1 || explained ? first : TSR_NO_FILE;
}

/* Adds the files of a list that are not read, and that the reader does not report itself. */
static void list_unread(const recognizer *r, const tsr_reader *reader, const tsr_vec *files, tsr_shown_names *names,
                        tsr_place *place)
{
    const tsr_numbered_file *items = files->items;
    for (size_t i = 0; i < files->count; i++) {
        const tsr_str name = name_at(r, items[i].file);
        bool is_listed = items[i].file != r->checkpoint->files[0];
        for (const tsr_file_kind *const *of = tsr_file_kinds; *of; of++)
            is_listed = is_listed && !((*of)->index == reader && tsr_str_ends(name, tsr_str_from((*of)->reported)));
        if (!is_listed) continue;
        if (!names->count) place->file = name;
        tsr_shown_names_add(names, name);
    }
}

/* Recognizes a directory by the file that states what the model is: an index, or the one that a library would load. Leaves
 * *reader alone if there is none. */
static tsr_status recognize_model(recognizer *r, const tsr_reader **reader)
{
    const tsr_library *by = tsr_libraries;
    uint32_t file = TSR_NO_FILE;
    if (r->indexes.count || !has_training_files(r->store))
        while (by->name && (file = choice_of(r, by)) == TSR_NO_FILE) by++;
    const bool chosen = file != TSR_NO_FILE;
    if (!chosen && r->indexes.count == 1) file = ((const tsr_numbered_file *)r->indexes.items)[0].file;
    if (file == TSR_NO_FILE) return TSR_OK;
    const bool is_index = is_index_name(name_at(r, file));
    TSR_TRY((is_index ? recognize_index : recognize_file)(r, file, reader));
    tsr_shown_names names = {.used = 0};
    tsr_place place = TSR_NOWHERE;
    list_unread(r, *reader, &r->indexes, &names, &place);
    for (size_t c = TSR_FILE_KINDS; c-- > 0;) list_unread(r, *reader, &r->files[c], &names, &place);
    if (!names.count || !r->checkpoint->findings) return TSR_OK; /* only the format is wanted */
    return tsr_finding_add(r->checkpoint->findings, "index/other-model", place, r->err,
                           "'%.*s' is read%s%s%s; not read: %s%s", TSR_STR_ARG(name_at(r, r->checkpoint->files[0])),
                           chosen ? ", as " : "", chosen ? by->name : "", chosen ? " would" : "", names.text,
                           tsr_shown_names_rest(&names));
}

/* ---- directories ---- */

static tsr_status sort_file(recognizer *r, uint32_t file)
{
    const tsr_str name = name_at(r, file);
    tsr_numbered_file sorted = {.file = file};
    tsr_vec *list = &r->indexes;
    /* Decided by name alone: if an index cannot be read, the files next to it must not be taken for a checkpoint without an
     * index. */
    if (!is_index_name(name)) {
        tsr_content content;
        if (data_of(name)) return TSR_OK;
        TSR_TRY(tsr_content_of(r->store, file, &content, r->err));
        if (content.foreign && !r->foreign) {
            r->foreign = content.foreign;
            r->foreign_file = file;
        }
        const tsr_file_kind *kind = content.unknown ? tsr_kind_named(name) : content.kind;
        if (kind) sorted.reader = content.unknown ? kind->named : content.reader;
        list = &r->others;
        for (size_t c = 0; c < TSR_FILE_KINDS; c++)
            if (tsr_file_kinds[c] == kind && !is_never_read(name)) list = &r->files[c];
    }
    tsr_numbered_file *item = tsr_vec_push(list, r->err);
    if (!item) return TSR_E_NOMEM;
    *item = sorted;
    return TSR_OK;
}

/* Whether two names are the same except for the numbers in them. */
static bool differ_in_numbers(tsr_str a, tsr_str b)
{
    size_t i = 0, j = 0;
    while (i < a.size && j < b.size) {
        if (tsr_is_digit(a.data[i]) && tsr_is_digit(b.data[j])) {
            while (i < a.size && tsr_is_digit(a.data[i])) i++;
            while (j < b.size && tsr_is_digit(b.data[j])) j++;
        } else if (a.data[i++] != b.data[j++]) {
            return false;
        }
    }
    return i == a.size && j == b.size;
}

/* Reports files that are named like those that are read, such as "rank1.pt" next to "rank0.pt": they are damaged, and the others
 * would be taken for all ranks. */
static tsr_status report_unread_ranks(const recognizer *r, tsr_str read)
{
    const tsr_numbered_file *items = r->others.items;
    for (size_t i = 0; i < r->others.count && r->checkpoint->findings; i++) {
        const tsr_str name = name_at(r, items[i].file);
        if (!differ_in_numbers(name, read)) continue;
        const tsr_str message = tsr_arena_format(r->checkpoint->arena, r->err, "'%.*s' is not in the format of '%.*s'",
                                                 TSR_STR_ARG(name), TSR_STR_ARG(read));
        TSR_TRY(tsr_checkpoint_is_incomplete(r->checkpoint, name, message, r->err));
    }
    return TSR_OK;
}

static tsr_status recognize_directory(recognizer *r, const tsr_reader **reader)
{
    tsr_below list = {.used = 0};
    size_t kinds = 0, last = 0;
    for (uint32_t f = 0; f < r->store->file_count; f++)
        if (in_root(name_at(r, f))) TSR_TRY(sort_file(r, f));
    TSR_TRY(recognize_model(r, reader));
    if (*reader) return TSR_OK;
    for (size_t c = 0; c < TSR_FILE_KINDS; c++) {
        if (!r->files[c].count) continue;
        kinds++;
        last = c;
    }
    if ((kinds == 0 && !r->indexes.count) || has_training_files(r->store)) return refuse_directory(r);
    if (kinds == 1 && !r->indexes.count) {
        tsr_numbered_files files = {r->files[last].items, (uint32_t)r->files[last].count};
        const bool alone =
            !has_marked_below(r->store); /* a Trainer's scheduler.pt is next to those of model and optimizer */
        TSR_TRY(tsr_file_kinds[last]->choose(r->checkpoint, &files, alone, reader, r->err));
        if (*reader) return report_unread_ranks(r, name_at(r, files.items[0].file));
        list_files(r, &list, &r->files[last]);
        if (!alone) TSR_TRY(tsr_list_below(r->checkpoint, &list, r->err));
        return refuse_several(r, &list, alone ? tsr_file_kinds[last]->several : "several checkpoints", "name one of them");
    }
    list_files(r, &list, &r->indexes);
    for (size_t c = 0; c < TSR_FILE_KINDS && !r->indexes.count; c++) list_files(r, &list, &r->files[c]);
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
        if (found != TSR_NO_FILE || !in_root(path) || is_unfinished(path)) return TSR_NO_FILE;
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
    if (status == TSR_E_UNSUPPORTED) TSR_TRY(tsr_list_below(r->checkpoint, &list, err));
    if (list.count) return refuse_below(r, &list);
    return tsr_raise(err, status, why.byte_position, "%s%s", why.message, tsr_below_deeper(&list));
}

tsr_status tsr_recognize_directory(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err)
{
    /* If there is a marker, the last save into the directory was in its format, whatever other files it has. */
    const bool is_marked = tsr_is_marked(checkpoint->store);
    *reader = NULL;
    for (size_t i = 0; tsr_directories[i] && !*reader; i++) {
        const tsr_directory *row = tsr_directories[i];
        bool is = !(is_marked && row->has_no_marker);
        for (const char *const *group = row->requires; is && group && *group; group++) {
            is = tsr_has_any(checkpoint->store, group);
            while (*group) group++;
        }
        if (is && row->recognizes) TSR_TRY(row->recognizes(checkpoint, &is, err));
        if (is) *reader = row->reader;
    }
    return TSR_OK;
}

/* Whether a path ends in one. */
static bool ends_in_marker(tsr_str path)
{
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->marker && tsr_str_ends(path, tsr_str_from(tsr_directories[i]->marker))) return true;
    return false;
}

tsr_status tsr_recognize(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    const char *foreign;
    recognizer r = {.checkpoint = checkpoint, .store = store, .err = err};
    *reader = NULL;
    for (size_t i = 0; tsr_directories[i] && !*reader; i++)
        if (tsr_directories[i]->asked) TSR_TRY(tsr_directories[i]->asked(checkpoint, reader, err));
    if (*reader) return TSR_OK;
    if (store->file_count == 0) return refuse_directory(&r);
    if (store->primary != TSR_NO_FILE && !is_marker(store->files[store->primary].name))
        return recognize_file(&r, store->primary, reader);
    TSR_TRY(tsr_foreign_form(checkpoint, &foreign, err));
    TSR_FAIL_IF(foreign, err, TSR_E_UNSUPPORTED, "the directory is %s", foreign);
    TSR_TRY(tsr_recognize_directory(checkpoint, reader, err));
    if (*reader) return TSR_OK;
    const uint32_t only = store->file_count > 1 && tsr_foreign_directory(store) ? TSR_NO_FILE : only_file(store);
    if (only != TSR_NO_FILE && !ends_in_marker(store->files[only].name)) return recognize_only_file(&r, only, reader);
    r.indexes = r.others = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_numbered_file));
    for (size_t c = 0; c < TSR_FILE_KINDS; c++) r.files[c] = r.indexes;
    const tsr_status status = recognize_directory(&r, reader);
    for (size_t c = 0; c < TSR_FILE_KINDS; c++) tsr_vec_free(&r.files[c]);
    tsr_vec_free(&r.indexes);
    tsr_vec_free(&r.others);
    return status;
}

/* ---- checkpoints below ----
 *
 * Directories are recognized as if they had been opened, in a store that shows only what is below them. A store's files are sorted
 * by name, so those below one directory are contiguous. */

enum { MOST_PROBED = 256 };

const char *tsr_below_rest(const tsr_below *below)
{
    return below->shown < below->count ? ", …" : "";
}

const char *tsr_below_deeper(const tsr_below *below)
{
    return below->deeper ? "; nothing was found within three levels, and there are directories further down: open the one "
                           "that contains the checkpoint"
                         : "";
}

/* A directory of another store as a store of its own. tsr_store_view_below keeps the files' numbers, so it copies the whole
 * list of files for each directory. That is too slow for a store with many directories, so here the first file gets the
 * number 0. */
typedef struct part_store {
    tsr_store base; /* first */
    tsr_store *inner;
    uint32_t first; /* the inner store's file that is file 0 of this store */
    bool worth;     /* worth examining: one of its file names is typical of checkpoints */
    bool deeper;    /* it has subdirectories */
} part_store;

static tsr_status read_part(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const part_store *part = (const part_store *)base;
    return part->inner->read_at(part->inner, part->first + file, offset, buffer, size, err);
}

bool tsr_is_checkpoint_name(tsr_str path)
{
    static const char *const endings[] = {
        ".metadata", ".distcp", ".safetensors", ".index.json",     ".pt",
        ".pth",      ".ckpt",   ".bin",         "fsdp_config.json"}; /* written by verl next to its files */
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (tsr_str_ends(path, tsr_str_from(endings[i]))) return true;
    return false;
}

typedef struct search {
    tsr_checkpoint *checkpoint;
    tsr_below *below;
    unsigned probed;
    tsr_error *err;
} search;

/* The format of a directory's files, if they do not form one checkpoint. */
static tsr_status form_of_files(part_store *part, const char **form, tsr_error *err)
{
    *form = NULL;
    for (uint32_t f = 0; f < part->base.file_count; f++) {
        tsr_content content;
        const tsr_str name = part->base.files[f].name;
        if (memchr(name.data, '/', name.size) || !tsr_is_checkpoint_name(name)) continue;
        TSR_TRY(tsr_content_of(&part->base, f, &content, err));
        const bool is_index = tsr_str_ends(name, TSR_STR(".index.json"));
        const char *of_file = is_index ? "index" : content.reader ? tsr_format_name(content.reader->format) : NULL;
        if (of_file && *form && !is_index) *form = "several files";
        else if (of_file) *form = of_file;
        if (is_index) return TSR_OK;
    }
    return TSR_OK;
}

/* Sets *form to NULL if the directory does not contain a checkpoint. Sets *whole if it is a checkpoint, so that what is
 * below belongs to it. */
static tsr_status probe(search *s, part_store *part, const char **form, bool *whole)
{
    tsr_error why = {0};
    const tsr_reader *reader;
    tsr_checkpoint guess = {
        .store = &part->base, .host = s->checkpoint->host, .arena = s->checkpoint->arena, .is_probe = true};
    TSR_TRY(tsr_foreign_form(&guess, form, s->err));
    *whole = *form;
    if (*form) return TSR_OK;
    const tsr_status status = tsr_recognize(&guess, &reader, &why);
    *whole = status == TSR_OK && !reader->is_aside;
    if (status == TSR_OK) {
        *form = reader->is_interrupted ? "interrupted save" : tsr_format_name(reader->format);
        return TSR_OK;
    }
    if (status == TSR_E_NOMEM || status == TSR_E_IO) return tsr_fail(s->err, status, "%s", why.message);
    return form_of_files(part, form, s->err);
}

/* Makes a store of the files [from, to), whose names begin with the same `prefix` bytes, the last of which is '/'. */
static tsr_status part_of(search *s, uint32_t from, uint32_t to, size_t prefix, part_store *part)
{
    tsr_store *inner = s->checkpoint->store;
    tsr_store_file *files = tsr_arena_array(s->checkpoint->arena, to - from, sizeof *files, s->err);
    if (!files) return TSR_E_NOMEM;
    bool worth = false, deeper = false;
    for (uint32_t f = from; f < to; f++) {
        const tsr_str name = inner->files[f].name, rest = {name.data + prefix, name.size - prefix};
        files[f - from] = (tsr_store_file){rest, inner->files[f].size};
        worth = worth || (!memchr(rest.data, '/', rest.size) && tsr_is_checkpoint_name(rest)) ||
                (!tsr_is_deeper(rest) && is_marker(tsr_last_path_part(rest))); /* a part in a directory of its own */
        deeper = deeper || memchr(rest.data, '/', rest.size);
    }
    *part = (part_store){.base = {.file_count = to - from, .files = files, .primary = TSR_NO_FILE, .read_at = read_part},
                         .inner = inner,
                         .first = from,
                         .worth = worth,
                         .deeper = deeper};
    return TSR_OK;
}

/* Whether a directory is a symbolic link to one that is examined, too. */
static tsr_status is_listed_elsewhere(const search *s, tsr_str path, bool *is)
{
    tsr_str other;
    TSR_TRY(tsr_store_follow(s->checkpoint->store, path, s->checkpoint->arena, &other, s->err));
    *is = other.size && (!s->below->wanted || s->below->wanted(s->below->wanted_ctx, other));
    return TSR_OK;
}

/* Probes every directory among the files [from, to), whose names begin with the same `prefix` bytes, and those below them,
 * down to TSR_BELOW_LEVELS. It may be loaded on demand (wasm/later.txt). */
tsr_status tsr_look_below(search *s, uint32_t from, uint32_t to, size_t prefix, unsigned level);
tsr_status tsr_look_below(search *s, uint32_t from, uint32_t to, size_t prefix, unsigned level)
{
    const tsr_store *store = s->checkpoint->store;
    for (uint32_t f = from, end; f < to; f = end) {
        const tsr_str name = store->files[f].name;
        const char *slash = memchr(name.data + prefix, '/', name.size - prefix);
        const size_t size = slash ? (size_t)(slash - name.data) + 1 : name.size;
        for (end = f + 1; slash && end < to && tsr_str_starts(store->files[end].name, (tsr_str){name.data, size}); end++) {
        }
        if (!slash) continue;
        bool is;
        TSR_TRY(is_listed_elsewhere(s, (tsr_str){name.data, size - 1}, &is));
        if (is) continue;
        part_store part;
        bool whole = false;
        const char *form = NULL;
        TSR_TRY(part_of(s, f, end, size, &part));
        const bool worth =
            part.worth && (!s->below->wanted || s->below->wanted(s->below->wanted_ctx, (tsr_str){name.data, size - 1}));
        if (worth && ++s->probed > MOST_PROBED) s->below->cut = true;
        else if (worth) TSR_TRY(probe(s, &part, &form, &whole));
        if (form) add_below(s->below, (tsr_str){name.data, size - 1}, form);
        if (!whole && level == TSR_BELOW_LEVELS) s->below->deeper |= part.deeper;
        if (!whole && level < TSR_BELOW_LEVELS) TSR_TRY(tsr_look_below(s, f, end, size, level + 1));
    }
    return TSR_OK;
}

static bool has_directories(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++)
        if (memchr(store->files[f].name.data, '/', store->files[f].name.size)) return true;
    return false;
}

tsr_status tsr_list_below(tsr_checkpoint *checkpoint, tsr_below *below, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    search s = {.checkpoint = checkpoint, .below = below, .err = err};
    if (checkpoint->is_probe) return TSR_OK;
    if (store->deepen) TSR_TRY(store->deepen(store, TSR_BELOW_LEVELS, &below->cut, &below->deeper, err));
    if (!has_directories(store)) return TSR_OK;
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    return tsr_look_below(&s, 0, store->file_count, 0, 1);
}
