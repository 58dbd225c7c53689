/* See mount.h: fills the parts, then passes each question about an entry on to the checkpoint that it came from. */
#include "formats/parts/mount.h"

#include <math.h>

#include "codec/json.h"
#include "formats/common/expansion.h"
#include "formats/common/metadata.h"
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "io/store_view.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* ---- document ---- */

/* Reads a file without tensors as a value: a JSON document, or a file that contains just one pickle. */

/* ---- JSON ---- */

/* cJSON turns every number into a double and does not know NaN, which Python writes (a Trainer's log contains one as soon as a
 * loss is not finite). Therefore each number is also read from the text, where the numbers have the same order as in cJSON's
 * tree. */
typedef struct reading {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_str text; /* the file's contents */
    size_t at;    /* after the last number that was read */
    tsr_error *err;
} reading;

/* A number, NaN, or an infinity in the text. */
typedef struct token {
    size_t begin, size; /* a size of 0 means that there is none left */
} token;

static bool is_of_number(char c)
{
    return tsr_is_digit(c) || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

static size_t word_at(tsr_str text, size_t at)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < 3; i++)
        if (tsr_str_starts(tsr_str_after(text, at), tsr_str_from(words[i]))) return strlen(words[i]);
    return 0;
}

static size_t skip_string(tsr_str text, size_t at)
{
    for (at++; at < text.size && text.data[at] != '"'; at++)
        if (text.data[at] == '\\') at++;
    return at + 1;
}

/* The next number after `at` that is not inside a string. */
static token next_number(tsr_str text, size_t at)
{
    while (at < text.size) {
        const char c = text.data[at];
        const size_t word = c == 'N' || c == 'I' || c == '-' ? word_at(text, at) : 0;
        if (word) return (token){at, word};
        if (c == '-' || tsr_is_digit(c)) {
            size_t end = at;
            while (end < text.size && is_of_number(text.data[end])) end++;
            return (token){at, end - at};
        }
        at = c == '"' ? skip_string(text, at) : at + 1;
    }
    return (token){text.size, 0};
}

/* Replaces NaN and the infinities by 0 in a copy of the text, because cJSON rejects them. */
static void hide_words(char *copy, tsr_str text)
{
    for (token t = next_number(text, 0); t.size; t = next_number(text, t.begin + t.size)) {
        if (!word_at(text, t.begin)) continue;
        memset(copy + t.begin, ' ', t.size);
        copy[t.begin] = '0';
    }
}

static const tsr_value *number_of(reading *r, const cJSON *item)
{
    const token t = next_number(r->text, r->at);
    const tsr_str text = {r->text.data + t.begin, t.size};
    r->at = t.begin + t.size;
    if (text.size == 0) return tsr_value_float(r->arena, item->valuedouble, r->err);
    if (tsr_str_equal(text, TSR_STR("NaN"))) return tsr_value_float(r->arena, NAN, r->err);
    if (tsr_str_equal(text, TSR_STR("Infinity"))) return tsr_value_float(r->arena, INFINITY, r->err);
    if (tsr_str_equal(text, TSR_STR("-Infinity"))) return tsr_value_float(r->arena, -INFINITY, r->err);
    const bool real =
        memchr(text.data, '.', text.size) || memchr(text.data, 'e', text.size) || memchr(text.data, 'E', text.size);
    /* 2^53: beyond it, a double may differ from the integer. */
    const bool exact = fabs(item->valuedouble) < 9007199254740992.0;
    if (!real && exact) return tsr_value_int(r->arena, (int64_t)item->valuedouble, r->err);
    return tsr_value_float(r->arena, item->valuedouble, r->err);
}

static const tsr_value *text_value(reading *r, const char *text)
{
    const tsr_str copy = tsr_arena_str(r->arena, tsr_str_from(text), r->err);
    return copy.data ? tsr_value_str(r->arena, copy, r->err) : NULL;
}

/* The recursion is bounded: cJSON parses at most 1,000 levels. */
static const tsr_value *value_of(reading *r, const cJSON *item)
{
    if (cJSON_IsNumber(item)) return number_of(r, item);
    if (cJSON_IsString(item)) return text_value(r, item->valuestring);
    if (cJSON_IsBool(item)) return tsr_value_bool(r->arena, cJSON_IsTrue(item), r->err);
    if (!cJSON_IsArray(item) && !cJSON_IsObject(item)) return tsr_value_none(r->arena, r->err);
    const bool dict = cJSON_IsObject(item);
    const size_t count = (size_t)cJSON_GetArraySize(item) * (dict ? 2 : 1);
    const tsr_value **items = tsr_arena_array(r->arena, count, sizeof *items, r->err);
    size_t at = 0;
    if (!items) return NULL;
    for (const cJSON *member = item->child; member; member = member->next) {
        if (dict && !(items[at++] = text_value(r, member->string))) return NULL;
        if (!(items[at++] = value_of(r, member))) return NULL;
    }
    return tsr_value_items(r->arena, dict ? TSR_VALUE_DICT : TSR_VALUE_LIST, items, count, r->err);
}

/* Reads the value of r->text into *out; `copy` is the text without words that JSON does not have. */
static tsr_status read_text(reading *r, tsr_str copy, const tsr_value **out)
{
    cJSON *root;
    TSR_TRY(tsr_json_parse(copy, r->host, &root, r->err));
    *out = value_of(r, root);
    cJSON_Delete(root);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status check_dict(reading *r, tsr_str copy, const tsr_value **out)
{
    size_t at = 0;
    (void)out;
    TSR_TRY(tsr_json_check(copy, r->host, r->err));
    while (memchr(" \t\r\n", copy.data[at], 4)) at++;
    TSR_FAIL_IF(copy.data[at] != '{', r->err, TSR_E_FORMAT, "json: the document is not an object");
    return TSR_OK;
}

static tsr_status read_json(tsr_checkpoint *checkpoint, uint32_t file,
                            tsr_status (*read)(reading *r, tsr_str copy, const tsr_value **out), const tsr_value **out,
                            tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    const tsr_store_file *from = &checkpoint->store->files[file];
    tsr_bytes bytes;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &bytes, err));
    reading r = {.host = checkpoint->host, .arena = checkpoint->arena, .text = bytes.data, .err = err};
    char *copy = tsr_alloc(allocator, bytes.data.size, 1, err);
    if (copy && bytes.data.size) memcpy(copy, bytes.data.data, bytes.data.size);
    if (copy) hide_words(copy, bytes.data);
    const tsr_status status = copy ? read(&r, (tsr_str){copy, bytes.data.size}, out) : TSR_E_NOMEM;
    if (status != TSR_OK) tsr_error_context(err, "%.*s", TSR_STR_ARG(from->name));
    tsr_free(allocator, copy, bytes.data.size, 1);
    tsr_bytes_free(&bytes);
    return status;
}

/* The value of a JSON document, as Python's json.loads returns it: NaN and Infinity are numbers, and 1.0 is
 * not an integer. Lives in the checkpoint's arena. Errors name the file. */
static tsr_status json_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err)
{
    return read_json(checkpoint, file, read_text, out, err);
}

tsr_status tsr_part_check_dict(tsr_checkpoint *checkpoint, uint32_t file, tsr_error *err)
{
    return read_json(checkpoint, file, check_dict, NULL, err);
}

/* ---- pickle ---- */

static tsr_status build_value(tsr_torch_build *build, size_t consumed, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(tsr_torch_build_open(build, err));
    TSR_TRY(tsr_torch_values(build, tsr_pickle_root(build->pickle), out, err));
    TSR_FAIL_AT(build->storages.count, err, TSR_E_FORMAT, 0, "a bare pickle with tensors, whose bytes are not in the file");
    return tsr_torch_verdict_on_end(build, consumed, build->pickle_bytes.size, err);
}

static tsr_status read_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_str bytes, const tsr_value **out, tsr_error *err)
{
    tsr_pickle *pickle;
    size_t consumed;
    const tsr_store_file *named = &checkpoint->store->files[file];
    TSR_TRY(tsr_pickle_parse(bytes, checkpoint->host, &tsr_torch_names, &pickle, &consumed, err));
    tsr_torch_build build = {.pickle = pickle,
                             .pickle_bytes = bytes,
                             .host = checkpoint->host,
                             .arena = checkpoint->arena,
                             .findings = checkpoint->findings,
                             .file_name = named->name,
                             .file = file};
    const tsr_status status = build_value(&build, consumed, out, err);
    tsr_torch_build_close(&build);
    tsr_pickle_free(pickle);
    return status;
}

/* The same for a file that is a pickle. Calls that loading it would make are findings. */
static tsr_status pickle_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err)
{
    const tsr_store_file *from = &checkpoint->store->files[file];
    tsr_bytes bytes;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &bytes, err));
    const tsr_str kept = tsr_arena_str(checkpoint->arena, bytes.data, err); /* the texts of the value point into it */
    tsr_status status = kept.data ? read_value(checkpoint, file, kept, out, err) : TSR_E_NOMEM;
    tsr_bytes_free(&bytes);
    if (status == TSR_OK) tsr_expansion_add(&checkpoint->expansion, from->size);
    else tsr_error_context(err, "%.*s", TSR_STR_ARG(from->name));
    return status;
}

/* ---- mount ---- */

static tsr_mounts *mounts_of(const tsr_checkpoint *checkpoint)
{
    return checkpoint->state;
}

static tsr_part *current_part(const tsr_mounts *mounts)
{
    return (tsr_part *)mounts->parts.items + mounts->parts.count - 1;
}

tsr_status tsr_part_begin(tsr_checkpoint *checkpoint, tsr_str name, bool own_names, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    const tsr_str asked = checkpoint->options.part;
    tsr_part *part = tsr_vec_push(&mounts->parts, err);
    if (!part) return TSR_E_NOMEM;
    *part = (tsr_part){.name = name, .first_entry = mounts->entries.count, .own_names = own_names};
    mounts->skipped = asked.data && !tsr_str_equal(asked, name);
    return TSR_OK;
}

/* ---- entries under the name of their part ---- */

/* The text and the path items put in front of the names that are added. */
typedef struct prefix {
    tsr_checkpoint *checkpoint;
    tsr_str text; /* "rng_state.rank_0", or empty */
    tsr_path_item items[2];
    uint32_t count;
    tsr_error *err;
} prefix;

static tsr_status open_prefix(prefix *p, const tsr_part *part, tsr_str below)
{
    if (part->own_names) return TSR_OK;
    if (part->name.size) p->items[p->count++] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = part->name};
    if (below.size) p->items[p->count++] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = below};
    p->text = tsr_arena_format(p->checkpoint->arena, p->err, "%.*s%s%.*s", TSR_STR_ARG(part->name),
                               part->name.size && below.size ? "." : "", TSR_STR_ARG(below));
    return p->text.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_name(const prefix *p, tsr_str *fqn)
{
    if (!p->text.size) return TSR_OK;
    if (fqn->size == 0) *fqn = p->text;
    else *fqn = tsr_arena_format(p->checkpoint->arena, p->err, "%.*s.%.*s", TSR_STR_ARG(p->text), TSR_STR_ARG(*fqn));
    return fqn->data ? TSR_OK : TSR_E_NOMEM;
}

/* Puts the prefix in front of the path of `fqn`. If there is no path, `fqn` is a flat key. */
static tsr_status add_path(const prefix *p, tsr_str fqn, const tsr_path_item **path, uint32_t *length)
{
    const bool flat = !*path && fqn.size > 0;
    const uint32_t own = flat ? 1 : *length;
    if (!p->count) return TSR_OK;
    tsr_path_item *items = tsr_arena_array(p->checkpoint->arena, (size_t)p->count + own, sizeof *items, p->err);
    if (!items) return TSR_E_NOMEM;
    memcpy(items, p->items, p->count * sizeof *items);
    if (flat) items[p->count] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = fqn};
    else if (own) memcpy(items + p->count, *path, own * sizeof *items);
    *path = items;
    *length = p->count + own;
    return TSR_OK;
}

static tsr_status add_entry(const prefix *p, tsr_mounts *mounts, const tsr_entry *entry, uint32_t *storages)
{
    tsr_entry *added = tsr_vec_push(&mounts->entries, p->err);
    if (!added) return TSR_E_NOMEM;
    *added = *entry;
    if (entry->storage_id) added->storage_id += mounts->storages;
    if (added->storage_id > *storages) *storages = added->storage_id;
    TSR_TRY(add_path(p, entry->fqn, &added->path, &added->path_length));
    return add_name(p, &added->fqn);
}

/* What is added to the current part. */
typedef struct mount_entries {
    const tsr_entry *entries;
    uint64_t entry_count;
    const tsr_mapping *mappings;
    uint64_t mapping_count;
} mount_entries;

static tsr_status add_entries(tsr_checkpoint *checkpoint, tsr_str below, const mount_entries *added, tsr_error *err)
{
    tsr_mounts *mounts = checkpoint->state;
    tsr_part *part = (tsr_part *)mounts->parts.items + mounts->parts.count - 1;
    const uint64_t before = mounts->entries.count;
    uint32_t storages = mounts->storages;
    prefix p = {.checkpoint = checkpoint, .err = err};
    TSR_TRY(open_prefix(&p, part, below));
    for (uint64_t i = 0; i < added->entry_count; i++) TSR_TRY(add_entry(&p, mounts, &added->entries[i], &storages));
    for (uint64_t i = 0; i < added->mapping_count; i++) {
        tsr_mapping *mapping = tsr_vec_push(&mounts->mappings, err);
        if (!mapping) return TSR_E_NOMEM;
        *mapping = added->mappings[i];
        mapping->entries_before += before;
        TSR_TRY(add_path(&p, mapping->fqn, &mapping->path, &mapping->path_length));
        TSR_TRY(add_name(&p, &mapping->fqn));
    }
    mounts->storages = storages;
    part->entry_count += added->entry_count;
    return TSR_OK;
}

/* ---- findings ---- */

static tsr_status take_finding(tsr_checkpoint *checkpoint, const tsr_mount *mount, const tsr_finding *finding,
                               tsr_error *err)
{
    char name[4096];
    tsr_place place = {finding->file, finding->byte_offset, finding->fqn};
    const size_t size = mount->directory.size + 1 + finding->file.size;
    if (mount->directory.size && finding->file.size && size <= sizeof name) {
        memcpy(name, mount->directory.data, mount->directory.size);
        name[mount->directory.size] = '/';
        memcpy(name + mount->directory.size + 1, finding->file.data, finding->file.size);
        place.file = (tsr_str){name, size};
    } else if (mount->directory.size) {
        place.file = mount->directory;
    }
    return tsr_finding_add_at(checkpoint->findings, (tsr_rated_rule){finding->rule->id, finding->level}, place, err, "%.*s",
                              TSR_STR_ARG(finding->message));
}

/* Copies the findings that a mounted checkpoint has added since the last call. */
static tsr_status take_findings(tsr_checkpoint *checkpoint, const tsr_mount *mount, tsr_error *err)
{
    tsr_findings *found = mount->mounted->findings;
    size_t rules;
    const tsr_rule *table = tsr_rules(&rules);
    for (size_t i = 0; i < tsr_findings_count(found); i++)
        TSR_TRY(take_finding(checkpoint, mount, tsr_findings_at(found, i), err));
    for (size_t i = 0; i < rules; i++)
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            tsr_findings_count_more(checkpoint->findings, &table[i], (tsr_level)level,
                                    tsr_findings_unlisted(found, &table[i], (tsr_level)level));
    mount->mounted->findings = tsr_findings_new(checkpoint->host->allocator, 0, err);
    if (!mount->mounted->findings) {
        mount->mounted->findings = found;
        return TSR_E_NOMEM;
    }
    tsr_findings_free(found);
    return TSR_OK;
}

/* ---- one mounted checkpoint ---- */

static tsr_status open_mounted(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_checkpoint **out,
                               tsr_error *err)
{
    const tsr_open_options options = {
        .skip_objects = checkpoint->options.skip_objects, .purpose = TSR_FOR_FINDINGS, .stay = true};
    tsr_store_view *view = NULL;
    bool holds_files;
    if (place->directory.size)
        TSR_TRY(tsr_store_view_below(checkpoint->store, place->directory, checkpoint->arena, &view, &holds_files, err));
    else if (place->file != TSR_NO_FILE)
        TSR_TRY(tsr_store_view_of_file(checkpoint->store, place->file, checkpoint->arena, &view, err));
    return checkpoint->opens(view ? &view->base : checkpoint->store, checkpoint->host, &options, place->form, out, err);
}

static tsr_str name_of(const tsr_checkpoint *checkpoint, const tsr_mount_place *place)
{
    if (place->directory.size) return place->directory;
    return checkpoint->store->files[place->file != TSR_NO_FILE ? place->file : place->form->files[0]].name;
}

/* Adds a finding for a file that cannot be read; the others are listed without it. */
static tsr_status report_unreadable(tsr_checkpoint *checkpoint, tsr_str name, const tsr_error *why, tsr_error *err)
{
    if (!tsr_may_be_finding(why->status) || why->status == TSR_E_IO) return tsr_raise_again(err, why->status, why);
    const tsr_str message =
        tsr_arena_format(checkpoint->arena, err, "'%.*s' cannot be read: %s", TSR_STR_ARG(name), why->message);
    return tsr_checkpoint_is_incomplete(checkpoint, name, message, err);
}

static tsr_status take_files(tsr_mounts *mounts, const tsr_checkpoint *mounted, uint64_t *taken, tsr_error *err)
{
    const tsr_allocator *allocator = mounted->host->allocator;
    const uint32_t count = mounted->store->file_count;
    bool *used = tsr_alloc(allocator, count, sizeof *used, err);
    tsr_status status = used ? TSR_OK : TSR_E_NOMEM;
    if (used) tsr_checkpoint_used_files(mounted, used);
    for (uint32_t f = 0; f < count && status == TSR_OK; f++) {
        if (!used[f]) continue;
        uint32_t *file = tsr_vec_push(&mounts->files, err);
        if (file) *file = f, ++*taken;
        else status = TSR_E_NOMEM;
    }
    tsr_free(allocator, used, count, sizeof *used);
    return status;
}

/* Records the files that the mounted checkpoint lacks as missing from the whole checkpoint. */
static tsr_status take_missing(tsr_checkpoint *checkpoint, const tsr_mount *mount, tsr_error *err)
{
    const tsr_checkpoint *mounted = mount->mounted;
    const tsr_str *missing = mounted->missing.items;
    for (size_t i = 0; i < mounted->missing.count; i++) {
        const tsr_str name = mount->directory.size ? tsr_arena_format(checkpoint->arena, err, "%.*s/%.*s",
                                                                      TSR_STR_ARG(mount->directory), TSR_STR_ARG(missing[i]))
                                                   : missing[i];
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_lacks(checkpoint, name, err));
    }
    if (!mounted->incomplete.size) return TSR_OK;
    checkpoint->names_unknown = checkpoint->names_unknown || mounted->names_unknown;
    if (checkpoint->incomplete.size) return TSR_OK;
    checkpoint->incomplete = tsr_arena_format(checkpoint->arena, err, "%.*s%s%.*s", TSR_STR_ARG(mount->directory),
                                              mount->directory.size ? ": " : "", TSR_STR_ARG(mounted->incomplete));
    return checkpoint->incomplete.data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether two lists have the same pairs in the same order. */
static bool text_pairs_equal(tsr_text_pairs a, tsr_text_pairs b)
{
    bool equal = a.count == b.count;
    for (size_t i = 0; equal && i < a.count; i++)
        equal = tsr_str_equal(a.pairs[i].key, b.pairs[i].key) && tsr_str_equal(a.pairs[i].value, b.pairs[i].value);
    return equal;
}

/* Takes over the pairs of a safetensors checkpoint. A part with several of them has pairs of its own only if theirs are the
 * same. */
static tsr_status take_metadata(tsr_mounts *mounts, const tsr_catalog *catalog, tsr_error *err)
{
    const bool has = catalog->format == TSR_FORMAT_SAFETENSORS || catalog->format == TSR_FORMAT_SAFETENSORS_INDEX ||
                     catalog->format == TSR_FORMAT_DCP_SAFETENSORS || catalog->metadata_count;
    tsr_part *part = current_part(mounts);
    if (!has) return TSR_OK;
    tsr_text_pairs *pairs = tsr_vec_push(&mounts->metadata, err);
    if (!pairs) return TSR_E_NOMEM;
    *pairs = (tsr_text_pairs){catalog->metadata, catalog->metadata_count};
    if (part->first_entry == mounts->entries.count) {
        part->metadata = pairs->pairs;
        part->metadata_count = pairs->count;
    } else if (!text_pairs_equal(*pairs, (tsr_text_pairs){part->metadata, part->metadata_count})) {
        part->metadata_count = 0;
    }
    return TSR_OK;
}

/* What every state that torch.save wrote for a part has in the name of an entry. */
typedef struct state_kind {
    const char *part; /* the beginning of its name */
    const char *has, *what;
} state_kind;

/* Reports a file in the place of a state that the framework would not load from it, such as another one of the checkpoint under its name. */
static tsr_status check_state(tsr_checkpoint *checkpoint, const tsr_mount_place *place, const tsr_catalog *catalog,
                              const state_kind *kind, tsr_error *err)
{
    if (!tsr_str_starts(current_part(mounts_of(checkpoint))->name, tsr_str_from(kind->part))) return TSR_OK;
    for (uint64_t e = 0; e < catalog->entry_count; e++)
        if (tsr_str_contains(catalog->entries[e].fqn, tsr_str_from(kind->has))) return TSR_OK;
    const tsr_str name = name_of(checkpoint, place);
    return tsr_checkpoint_is_incomplete(checkpoint, name,
                                        tsr_arena_format(checkpoint->arena, err,
                                                         "'%.*s' is not the state of %s: it has no %s", TSR_STR_ARG(name),
                                                         kind->what, kind->has),
                                        err);
}

/* An optimizer has groups of parameters, also within the state of one that wraps others. The random states of the Trainer and of accelerate
 * have those of Python.
 *
 * Source: _load_rng_state in transformers/trainer.py; save_accelerator_state in accelerate/checkpointing.py. */
static tsr_status check_states(tsr_checkpoint *checkpoint, const tsr_mount_place *place, const tsr_catalog *catalog,
                               tsr_error *err)
{
    const bool is_torch = catalog->format == TSR_FORMAT_TORCH_ZIP || catalog->format == TSR_FORMAT_TORCH_LEGACY;
    if (!is_torch || place->file == TSR_NO_FILE) return TSR_OK;
    const state_kind optimizer = {"optimizer", "param_groups", "an optimizer"};
    const bool is_accelerates = tsr_str_ends(name_of(checkpoint, place), TSR_STR(".pkl"));
    const state_kind random = {"rng_state", is_accelerates ? "random_state" : "python", "random number generators"};
    TSR_TRY(check_state(checkpoint, place, catalog, &optimizer, err));
    return TSR_IS_SMALL ? TSR_OK : check_state(checkpoint, place, catalog, &random, err);
}

static tsr_status take_mounted(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_mount *mount, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    tsr_part *part = current_part(mounts);
    const tsr_catalog *catalog = &mount->mounted->catalog;
    const mount_entries added = {catalog->entries, catalog->entry_count, catalog->mappings, catalog->mapping_count};
    if (part->format == TSR_FORMAT_NONE) part->format = catalog->format;
    checkpoint->catalog.compressed = checkpoint->catalog.compressed || catalog->compressed;
    TSR_TRY(take_files(mounts, mount->mounted, &part->files, err));
    TSR_TRY(take_missing(checkpoint, mount, err));
    TSR_TRY(take_metadata(mounts, catalog, err));
    TSR_TRY(take_findings(checkpoint, mount, err));
    TSR_TRY(check_states(checkpoint, place, catalog, err));
    return add_entries(checkpoint, place->below, &added, err);
}

tsr_status tsr_part_mount(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    tsr_error why = {0};
    tsr_mount mount = {.first_entry = mounts->entries.count, .directory = place->directory};
    if (mounts->skipped) return TSR_OK;
    if (open_mounted(checkpoint, place, &mount.mounted, &why) != TSR_OK)
        return report_unreadable(checkpoint, name_of(checkpoint, place), &why, err);
    mount.entry_count = mount.mounted->catalog.entry_count;
    tsr_mount *kept = tsr_vec_push(&mounts->list, err);
    if (!kept) {
        tsr_checkpoint_close(mount.mounted);
        return TSR_E_NOMEM;
    }
    *kept = mount;
    return take_mounted(checkpoint, place, &mount, err);
}

tsr_status tsr_part_mount_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_format format, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    const tsr_value *root;
    tsr_torch_flat flat;
    tsr_error why = {0};
    if (mounts->skipped) return TSR_OK;
    tsr_status status = (format == TSR_FORMAT_JSON ? json_file_value : pickle_file_value)(checkpoint, file, &root, &why);
    if (status == TSR_OK)
        status = tsr_torch_flatten(root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, &why);
    if (status != TSR_OK) return report_unreadable(checkpoint, checkpoint->store->files[file].name, &why, err);
    const mount_entries added = {flat.entries, flat.entry_count, flat.mappings, flat.mapping_count};
    uint32_t *used = tsr_vec_push(&mounts->files, err);
    if (!used) return TSR_E_NOMEM;
    *used = file;
    tsr_part *part = current_part(mounts);
    if (part->format == TSR_FORMAT_NONE) part->format = format;
    part->files++;
    return add_entries(checkpoint, (tsr_str){NULL, 0}, &added, err);
}

/* ---- bytes of entries ---- */

/* The mount that an entry came from. NULL for an entry that is not in the catalog, or that came from a document (JSON). */
static const tsr_mount *mount_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_mount *list = mounts->list.items;
    const uint64_t at = ((uintptr_t)entry - (uintptr_t)mounts->first) / sizeof *entry;
    size_t low = 0, high = mounts->list.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (at >= list[middle].first_entry + list[middle].entry_count) low = middle + 1;
        else high = middle;
    }
    return low < mounts->list.count && at >= list[low].first_entry ? &list[low] : NULL;
}

static const tsr_entry *mounted_entry(const tsr_checkpoint *checkpoint, const tsr_mount *mount, const tsr_entry *entry)
{
    const tsr_mounts *mounts = checkpoint->state;
    return &mount->mounted->catalog.entries[(uint64_t)(entry - mounts->first) - mount->first_entry];
}

tsr_status tsr_mounts_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err)
{
    const tsr_mount *mount = mount_of(checkpoint, entry);
    *out = (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    return mount ? tsr_checkpoint_locate(mount->mounted, mounted_entry(checkpoint, mount, entry), chunk, scratch, out, err)
                 : TSR_OK;
}

tsr_status tsr_mounts_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_stated_crc *out, tsr_error *err)
{
    const tsr_mount *mount = mount_of(checkpoint, entry);
    if (!mount) return TSR_OK;
    return tsr_checkpoint_crc(mount->mounted, mounted_entry(checkpoint, mount, entry), chunk, scratch, out, err);
}

tsr_status tsr_mounts_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                           tsr_found *out, tsr_error *err)
{
    const tsr_mount *mount = mount_of(checkpoint, entry);
    *out = (tsr_found){.view = {.file = chunk->file, .byte_offset = chunk->byte_offset}};
    return mount ? tsr_checkpoint_find(mount->mounted, mounted_entry(checkpoint, mount, entry), chunk, scratch, out, err)
                 : TSR_OK;
}

/* ---- extents ---- */

typedef struct visit {
    const tsr_checkpoint *checkpoint;
    const tsr_mount *mount;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
} visit;

static tsr_status pass_on(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    const visit *v = ctx;
    tsr_extent own = *extent;
    if (extent->entry) {
        const uint64_t at = (uint64_t)(extent->entry - v->mount->mounted->catalog.entries);
        own.entry = ((const tsr_mounts *)v->checkpoint->state)->first + v->mount->first_entry + at;
    }
    return v->each(v->ctx, &own, err);
}

tsr_status tsr_mounts_extents(tsr_checkpoint *checkpoint,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_mount *list = mounts->list.items;
    for (size_t i = 0; i < mounts->list.count; i++) {
        visit v = {checkpoint, &list[i], each, ctx};
        const tsr_status status = tsr_checkpoint_extents(list[i].mounted, pass_on, &v, err);
        TSR_TRY(take_findings(checkpoint, &list[i], status == TSR_OK ? err : NULL));
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

void tsr_mounts_close(tsr_checkpoint *checkpoint)
{
    tsr_mounts *mounts = checkpoint->state;
    tsr_mount *list = mounts->list.items;
    for (size_t i = 0; i < mounts->list.count; i++) tsr_checkpoint_close(list[i].mounted);
    tsr_vec_free(&mounts->list);
}

/* ---- the whole checkpoint ---- */

static const void *keep(tsr_checkpoint *checkpoint, const tsr_vec *items, size_t size, tsr_error *err)
{
    void *kept = tsr_arena_array(checkpoint->arena, items->count, size, err);
    if (kept && items->count) memcpy(kept, items->items, items->count * size);
    return kept;
}

static tsr_status keep_all(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    tsr_catalog *catalog = &checkpoint->catalog;
    catalog->entries = mounts->first = keep(checkpoint, &mounts->entries, sizeof(tsr_entry), err);
    catalog->mappings = keep(checkpoint, &mounts->mappings, sizeof(tsr_mapping), err);
    catalog->parts = keep(checkpoint, &mounts->parts, sizeof(tsr_part), err);
    checkpoint->files = keep(checkpoint, &mounts->files, sizeof(uint32_t), err);
    if (!catalog->entries || !catalog->mappings || !catalog->parts || !checkpoint->files) return TSR_E_NOMEM;
    catalog->entry_count = mounts->entries.count;
    catalog->mapping_count = mounts->mappings.count;
    catalog->part_count = (uint32_t)mounts->parts.count;
    checkpoint->file_count = (uint32_t)mounts->files.count;
    return tsr_metadata_join(checkpoint, mounts->metadata.items, (uint32_t)mounts->metadata.count, "parts", err);
}

static void free_lists(tsr_mounts *mounts)
{
    tsr_vec_free(&mounts->entries);
    tsr_vec_free(&mounts->mappings);
    tsr_vec_free(&mounts->parts);
    tsr_vec_free(&mounts->files);
    tsr_vec_free(&mounts->metadata);
}

tsr_status tsr_mounts_fill(tsr_checkpoint *checkpoint,
                           tsr_status (*mount)(tsr_checkpoint *checkpoint, const void *ctx, tsr_error *err), const void *ctx,
                           tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_mounts *mounts = TSR_ARENA_NEW(checkpoint->arena, tsr_mounts, err);
    if (!mounts) return TSR_E_NOMEM;
    *mounts = (tsr_mounts){.list = tsr_vec_of(allocator, sizeof(tsr_mount)),
                           .entries = tsr_vec_of(allocator, sizeof(tsr_entry)),
                           .mappings = tsr_vec_of(allocator, sizeof(tsr_mapping)),
                           .parts = tsr_vec_of(allocator, sizeof(tsr_part)),
                           .files = tsr_vec_of(allocator, sizeof(uint32_t)),
                           .metadata = tsr_vec_of(allocator, sizeof(tsr_text_pairs))};
    checkpoint->state = mounts;
    tsr_status status = mount(checkpoint, ctx, err);
    if (status == TSR_OK) status = keep_all(checkpoint, err);
    free_lists(mounts);
    if (status != TSR_OK) tsr_mounts_close(checkpoint);
    return status;
}
