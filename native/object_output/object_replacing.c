/* The note about what a publication of a plan's parts is replacing. It exists from before the first change until everything
 * is done. If the publication is interrupted, the objects are neither the old checkpoint nor the new one. Only this note
 * says which names the new one has, and what is left to remove.
 *
 *   u32 generation, u8 is unlike, u32 number of markers, u32 number of names of the old checkpoint, then for each name:
 *   name, version, u64 size */
#include <ctype.h>
#include <stdio.h>

#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* ---- object notes ---- */

/* Notes: objects next to the files of a checkpoint. With them, processes that share nothing but the bucket find what the
 * others have uploaded. A note consists of the SHA-256 of its text, in hexadecimal digits, and the text. */

#define MOST_NOTE ((uint64_t)64 << 20)

static tsr_str key_of_note(const object_output *output, tsr_str name, tsr_arena *arena, tsr_error *err)
{
    return tsr_arena_format(arena, err, "%.*s%s%.*s%.*s", TSR_STR_ARG(output->root), output->root.size ? "/" : "",
                            TSR_STR_ARG(output->options.notes), TSR_STR_ARG(name));
}

/* Whether a key is that of a note (options.notes). If so, *name is the rest of the key. */
static bool is_note(const object_output *output, tsr_str key, tsr_str *name)
{
    const size_t head = output->root.size + (output->root.size != 0);
    const tsr_str notes = output->options.notes;
    if (!notes.size || key.size <= head + notes.size || memcmp(key.data + head, notes.data, notes.size) != 0) return false;
    *name = tsr_str_after(key, head + notes.size);
    return true;
}

tsr_status tsr_object_output_put_note(tsr_output *base, tsr_str name, tsr_str text, tsr_error *err)
{
    object_output *output = (object_output *)base;
    char *note = tsr_arena_array(output->arena, TSR_SUM_DIGITS + text.size, 1, err);
    tsr_upload_bytes bytes = {.data = note, .size = TSR_SUM_DIGITS + text.size};
    const tsr_upload upload = {.key = key_of_note(output, name, output->arena, err), .size = bytes.size};
    if (!note || !upload.key.data) return TSR_E_NOMEM;
    tsr_upload_sum(text.data, text.size, bytes.sum);
    memcpy(note, bytes.sum, TSR_SUM_DIGITS);
    memcpy(note + TSR_SUM_DIGITS, text.data, text.size);
    tsr_upload_sum(note, bytes.size, bytes.sum);
    return output->service->uploading->put(output->service, &upload, &bytes, err);
}

static tsr_status check_sum(tsr_service *service, const tsr_object *object, tsr_str note, tsr_str *text, tsr_error *err)
{
    char sum[TSR_SUM_DIGITS + 1];
    *text = note.size > TSR_SUM_DIGITS ? tsr_str_after(note, TSR_SUM_DIGITS) : TSR_STR("");
    tsr_upload_sum(text->data, text->size, sum);
    TSR_FAIL_IF(!text->size || memcmp(sum, note.data, TSR_SUM_DIGITS) != 0, tsr_naming(err), TSR_E_FORMAT,
                "%s: the note of a share is damaged; run the share again", tsr_shown_key_of(service, object->key).text);
    return TSR_OK;
}

tsr_status tsr_note_read(tsr_service *service, const tsr_object *object, tsr_arena *arena, tsr_str *text, tsr_error *err)
{
    TSR_FAIL_IF(!object->size || object->size > MOST_NOTE, tsr_naming(err), TSR_E_FORMAT,
                "%s: the note of a part has %llu bytes", tsr_shown_key_of(service, object->key).text,
                (unsigned long long)object->size);
    char *buffer = tsr_arena_array(arena, (size_t)object->size, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    const tsr_request request = {.key = object->key, .is_ranged = true, .buffer = buffer, .capacity = (size_t)object->size};
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(service, &request, &x, 1, err);
    if (status == TSR_OK && x.transfer.answer.status >= 300) status = tsr_exchange_error(service, &x, err);
    if (status == TSR_OK && x.transfer.answer.size != object->size)
        status = tsr_fail(tsr_naming(err), TSR_E_CHANGED, "%s changed while it was read",
                          tsr_shown_key_of(service, object->key).text);
    tsr_exchange_end(&x);
    return status == TSR_OK ? check_sum(service, object, (tsr_str){buffer, (size_t)object->size}, text, err) : status;
}

tsr_status tsr_object_output_notes(tsr_output *base, tsr_object_note_fn *each, void *ctx, tsr_error *err)
{
    object_output *output = (object_output *)base;
    const tsr_object *objects = output->before.items.items;
    for (size_t i = 0; i < output->before.items.count; i++) {
        tsr_str name, text;
        if (!is_note(output, objects[i].key, &name) || tsr_str_equal(name, TSR_STR(TSR_NOTE_REPLACING))) continue;
        TSR_TRY(tsr_note_read(output->service, &objects[i], output->arena, &text, err));
        TSR_TRY(each(ctx, name, text, err));
    }
    return TSR_OK;
}

static tsr_status remove_note(object_output *output, tsr_str name, tsr_error *err)
{
    const tsr_str key = key_of_note(output, name, output->arena, err);
    const tsr_status status = key.data ? output->service->uploading->remove(output->service, key, err) : TSR_E_NOMEM;
    if (status == TSR_OK) return TSR_OK;
    tsr_error_context(err, "the new checkpoint is complete, but the note of a part could not be removed");
    return TSR_E_IO;
}

/* Whether this is the name of a note about the whole job rather than about a part. */
static bool note_is_of_job(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR(TSR_NOTE_PUBLISHED)) || tsr_str_equal(name, TSR_STR(TSR_NOTE_REPLACING));
}

static tsr_status remove_parts(object_output *output, tsr_error *err)
{
    const tsr_object *objects = output->before.items.items;
    for (size_t i = 0; i < output->before.items.count; i++) {
        tsr_str name;
        if (is_note(output, objects[i].key, &name) && !note_is_of_job(name)) TSR_TRY(remove_note(output, name, err));
    }
    return TSR_OK;
}

static bool has_any_note(const object_output *output, const tsr_object_list *found)
{
    const tsr_object *objects = found->items.items;
    tsr_str name;
    for (size_t i = 0; i < found->items.count; i++)
        if (is_note(output, objects[i].key, &name)) return true;
    return false;
}

/* The note of this name that existed when the output was opened; NULL if there was none. */
static const tsr_object *object_find_note(const object_output *output, tsr_str name)
{
    const tsr_object *objects = output->before.items.items;
    tsr_str own;
    for (size_t i = 0; i < output->before.items.count; i++)
        if (is_note(output, objects[i].key, &own) && tsr_str_equal(own, name)) return &objects[i];
    return NULL;
}

/* The note that says that the checkpoint is published is removed last, so that it is still there if the process is killed in
 * between. */
tsr_status tsr_object_output_remove_notes(tsr_output *base, tsr_error *err)
{
    object_output *output = (object_output *)base;
    const bool has_notes = has_any_note(output, &output->before);
    if (!has_notes && !output->has_record) return TSR_OK;
    if (has_notes) TSR_TRY(tsr_object_output_put_note(base, TSR_STR(TSR_NOTE_PUBLISHED), TSR_STR("published\n"), err));
    TSR_TRY(remove_parts(output, err));
    if (output->has_record || object_find_note(output, TSR_STR(TSR_NOTE_REPLACING)))
        TSR_TRY(remove_note(output, TSR_STR(TSR_NOTE_REPLACING), err));
    return has_notes ? remove_note(output, TSR_STR(TSR_NOTE_PUBLISHED), err) : TSR_OK;
}

/* ---- object foreign ---- */

/* Notes at the destination that unfinished parts of another plan left. They may represent days of somebody's work, so they
 * are removed only with options.discard_parts. */

/* Whether the text after the tag has the form "2-of-8". */
static bool is_of_part(tsr_str name)
{
    char shown[48], dashes[] = "-of-";
    if (name.size >= sizeof shown) return false;
    snprintf(shown, sizeof shown, "%.*s", TSR_STR_ARG(name));
    const size_t first = strspn(shown, "0123456789");
    if (!first || strncmp(shown + first, dashes, sizeof dashes - 1) != 0) return false;
    const char *second = shown + first + sizeof dashes - 1;
    return *second && !second[strspn(second, "0123456789")];
}

/* Sets *name to what follows ".tessera-TAG-" in a key directly below the root. Returns false if the key is not that of a
 * note. */
static bool name_of(const object_output *output, tsr_str key, tsr_str *name)
{
    static const char mark[] = ".tessera-";
    const size_t head = output->root.size + (output->root.size != 0), begin = head + sizeof mark - 1;
    size_t end = begin;
    if (!output->options.is_directory || key.size <= begin || memcmp(key.data + head, mark, sizeof mark - 1) != 0)
        return false;
    while (end < key.size && isalnum((unsigned char)key.data[end])) end++;
    if (end == begin || end == key.size || key.data[end] != '-') return false;
    *name = tsr_str_after(key, end + 1);
    return is_of_part(*name) || note_is_of_job(*name);
}

bool tsr_is_foreign_note(const object_output *output, tsr_str key, bool *is_part)
{
    tsr_str name, own;
    if (!name_of(output, key, &name) || is_note(output, key, &own)) return false;
    *is_part = is_of_part(name);
    return true;
}

static size_t count_foreign(const object_output *output, const tsr_object_list *found, tsr_str *first)
{
    const tsr_object *objects = found->items.items;
    const size_t head = output->root.size + (output->root.size != 0);
    size_t count = 0;
    bool is_part;
    for (size_t i = 0; i < found->items.count; i++) {
        if (!tsr_is_foreign_note(output, objects[i].key, &is_part)) continue;
        if (!count++) *first = (tsr_str){objects[i].key.data + head, objects[i].key.size - head};
    }
    return count;
}

size_t tsr_object_output_other_parts(const tsr_output *base, tsr_str *first)
{
    const object_output *output = (const object_output *)base;
    return output->options.discard_parts ? 0 : count_foreign(output, &output->before, first);
}

/* TSR_E_EXISTS if there are such notes in `found`, unless they are allowed. */
static tsr_status refuse_foreign(const object_output *output, const tsr_object_list *found, tsr_error *err)
{
    tsr_str first = {NULL, 0};
    if (output->options.discard_parts || output->options.overwrite) return TSR_OK;
    const size_t count = count_foreign(output, found, &first);
    char more[48] = "";
    if (count > 1) snprintf(more, sizeof more, " and %zu more", count - 1);
    TSR_FAIL_IF(
        count, tsr_naming(err), TSR_E_EXISTS,
        "the destination '%s' has unfinished shares of another plan ('%.*s'%s); end that plan with `exec --finish`, or remove "
        "what it left with --discard-parts of exec, convert or reshard",
        tsr_shown_key_of(output->service, output->root).text, TSR_STR_ARG(first), more);
    return TSR_OK;
}

/* ---- the destination ---- */

static bool is_directory_mark(const tsr_object *object)
{
    return object->size == 0 && object->key.size && object->key.data[object->key.size - 1] == '/';
}

static bool counts(const object_output *output, const tsr_object *object)
{
    const tsr_str only = output->options.only_marker;
    const size_t head = output->root.size + (output->root.size != 0);
    tsr_str note;
    bool is_part;
    if (only.size && !tsr_str_equal(object->key, output->root)) return tsr_str_equal(tsr_str_after(object->key, head), only);
    return !is_directory_mark(object) && !tsr_resume_knows(output, object->key) && !is_note(output, object->key, &note) &&
           !tsr_is_foreign_note(output, object->key, &is_part);
}

/* The first object in `found` that counts as part of the destination. */
static const tsr_object *first_object(const object_output *output, const tsr_object_list *found)
{
    const tsr_object *objects = found->items.items;
    for (size_t i = 0; i < found->items.count; i++)
        if (counts(output, &objects[i])) return &objects[i];
    return NULL;
}

tsr_status tsr_destination_list(object_output *output, tsr_object_list *found, tsr_error *err)
{
    tsr_service *service = output->service;
    tsr_error unused = {0};
    const tsr_str prefix =
        tsr_arena_format(found->arena, err, "%.*s%s", TSR_STR_ARG(output->root), output->root.size ? "/" : "");
    if (!prefix.data) return TSR_E_NOMEM;
    const tsr_status status = output->root.size ? service->stat(service, output->root, found, &unused) : TSR_E_NOT_FOUND;
    if (status != TSR_OK && status != TSR_E_NOT_FOUND) return tsr_raise_again(err, status, &unused);
    TSR_TRY(tsr_service_list(service, prefix, true, found, err));
    output->has_notes = has_any_note(output, found);
    const tsr_object *first = first_object(output, found);
    if (!first) return output->options.only_marker.size ? TSR_OK : refuse_foreign(output, found, err);
    if (output->options.overwrite) return TSR_OK;
    if (tsr_str_equal(first->key, output->root))
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "the destination '%s' exists; --overwrite replaces it",
                        tsr_shown_key_of(service, output->root).text);
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "the destination '%s' exists: there is '%.*s' below it; --overwrite replaces it",
                    tsr_shown_key_of(service, output->root).text, TSR_STR_ARG((tsr_str_after(first->key, prefix.size))));
}

/* ---- writing ---- */

static const tsr_object *object_before(const object_output *output, tsr_str name, tsr_arena *arena, tsr_error *err)
{
    static const tsr_object absent;
    const tsr_str key = tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(output->root), output->root.size ? "/" : "",
                                         TSR_STR_ARG(name));
    if (!key.data) return NULL;
    const uint32_t at = tsr_map_get(output->before_at, key, UINT32_MAX);
    return at == UINT32_MAX ? &absent : &((const tsr_object *)output->before.items.items)[at];
}

static tsr_status put_record(const object_output *output, tsr_vec *text, tsr_error *err)
{
    const tsr_object_output_options *options = &output->options;
    TSR_TRY(tsr_note_put_number(text, options->generation, 4, err));
    TSR_TRY(tsr_note_put_number(text, options->is_unlike, 1, err));
    TSR_TRY(tsr_note_put_number(text, options->marker_count, 4, err));
    TSR_TRY(tsr_note_put_number(text, options->obsolete_count, 4, err));
    for (size_t i = 0; i < options->obsolete_count; i++) {
        const tsr_object *object = object_before(output, options->obsolete[i], output->arena, err);
        if (!object) return TSR_E_NOMEM;
        TSR_TRY(tsr_note_put_text(text, options->obsolete[i], err));
        TSR_TRY(tsr_note_put_text(text, object->version, err));
        TSR_TRY(tsr_note_put_number(text, object->size, 8, err));
    }
    return TSR_OK;
}

/* If there already is such a note, this run follows it. */
tsr_status tsr_replacing_begin(object_output *output, tsr_error *err)
{
    const tsr_object_output_options *options = &output->options;
    if (!options->notes.size || !options->overwrite || (!options->obsolete_count && !options->generation)) return TSR_OK;
    output->has_record = true;
    if (object_find_note(output, TSR_STR(TSR_NOTE_REPLACING))) return TSR_OK;
    tsr_vec text = tsr_vec_of(output->allocator, 1);
    tsr_status status = put_record(output, &text, err);
    if (status == TSR_OK)
        status =
            tsr_object_output_put_note(&output->base, TSR_STR(TSR_NOTE_REPLACING), (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status;
}

/* ---- reading ---- */

typedef struct reading {
    tsr_service *service;
    tsr_str head; /* the part of keys that precedes names */
    tsr_str notes;
    tsr_object_list found;
    tsr_map *at;  /* indices in `found` by key */
    bool *is_old; /* for each object in `found`: it belongs to the old checkpoint */
    tsr_arena *arena;
} reading;

static tsr_status refuse(const reading *r, tsr_error *err)
{
    return tsr_fail(tsr_naming(err), TSR_E_FORMAT, "%s: the note of what is being replaced is damaged",
                    tsr_shown_key_of(r->service, r->head).text);
}

static tsr_status list(reading *r, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_object_list_close(&r->found);
    TSR_TRY(tsr_object_list_open(allocator, &r->found, err));
    TSR_TRY(tsr_service_list(r->service, r->head, true, &r->found, err));
    const tsr_object *objects = r->found.items.items;
    r->at = tsr_map_new(allocator, r->found.items.count, err);
    r->is_old = tsr_arena_array(r->arena, r->found.items.count + 1, sizeof *r->is_old, err);
    if (!r->at || !r->is_old) return TSR_E_NOMEM;
    for (size_t i = 0; i < r->found.items.count; i++)
        TSR_TRY(tsr_map_put(r->at, objects[i].key, (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

/* Whether an object of the old checkpoint still exists. An object of the same name that was written since is a different
 * one. */
static tsr_status look_for(const reading *r, const tsr_object *old, bool *is_there, tsr_error *err)
{
    const tsr_str key = tsr_arena_format(r->arena, err, "%.*s%.*s", TSR_STR_ARG(r->head), TSR_STR_ARG(old->key));
    if (!key.data) return TSR_E_NOMEM;
    const uint32_t at = tsr_map_get(r->at, key, UINT32_MAX);
    const tsr_object *now = at == UINT32_MAX ? NULL : &((const tsr_object *)r->found.items.items)[at];
    *is_there = now && now->size == old->size && tsr_str_equal(now->version, old->version);
    if (*is_there) r->is_old[at] = true;
    return TSR_OK;
}

static tsr_status take_record(reading *r, tsr_str text, tsr_object_replacing *out, tsr_error *err)
{
    uint64_t generation, is_unlike, markers, count;
    if (!tsr_note_take_number(&text, 4, &generation) || !tsr_note_take_number(&text, 1, &is_unlike) ||
        !tsr_note_take_number(&text, 4, &markers) || !tsr_note_take_number(&text, 4, &count) || count > text.size)
        return refuse(r, err);
    out->generation = (uint32_t)generation;
    out->is_unlike = is_unlike;
    tsr_str *obsolete = tsr_arena_array(r->arena, (size_t)count + 1, sizeof *obsolete, err);
    if (!obsolete) return TSR_E_NOMEM;
    out->obsolete = obsolete;
    for (uint64_t i = 0; i < count; i++) {
        tsr_object old;
        bool is_there;
        if (!tsr_note_take_text(&text, &old.key) || !tsr_note_take_text(&text, &old.version) ||
            !tsr_note_take_number(&text, 8, &old.size))
            return refuse(r, err);
        TSR_TRY(look_for(r, &old, &is_there, err));
        if (!is_there) continue;
        obsolete[out->obsolete_count++] = old.key;
        out->marker_count += i < markers;
    }
    return text.size ? refuse(r, err) : TSR_OK;
}

/* Lists everything else directly below the URL. */
static tsr_status list_others(const reading *r, tsr_object_replacing *out, tsr_error *err)
{
    const tsr_object *objects = r->found.items.items;
    tsr_str *others = tsr_arena_array(r->arena, r->found.items.count + 1, sizeof *others, err);
    if (!others) return TSR_E_NOMEM;
    out->others = others;
    for (size_t i = 0; i < r->found.items.count; i++) {
        const tsr_str name = {objects[i].key.data + r->head.size, objects[i].key.size - r->head.size};
        if (!name.size || memchr(name.data, '/', name.size) || tsr_str_starts(name, r->notes) || r->is_old[i]) continue;
        others[out->other_count] = tsr_arena_str(r->arena, name, err);
        if (!others[out->other_count++].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status read_record(reading *r, const tsr_allocator *allocator, tsr_object_replacing *out, tsr_error *err)
{
    tsr_error unused = {0};
    tsr_str text;
    const tsr_str key =
        tsr_arena_format(r->arena, err, "%.*s%.*s" TSR_NOTE_REPLACING, TSR_STR_ARG(r->head), TSR_STR_ARG(r->notes));
    if (!key.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_object_list_open(allocator, &r->found, err));
    const tsr_status status = r->service->stat(r->service, key, &r->found, &unused);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status != TSR_OK) return tsr_raise_again(err, status, &unused);
    TSR_TRY(tsr_note_read(r->service, r->found.items.items, r->arena, &text, err));
    TSR_TRY(list(r, allocator, err));
    TSR_TRY(take_record(r, text, out, err));
    TSR_TRY(list_others(r, out, err));
    out->is_found = true;
    return TSR_OK;
}

tsr_status tsr_object_replacing_read(const tsr_host *host, const char *url, tsr_str notes, tsr_arena *arena,
                                     tsr_object_replacing *out, tsr_error *err)
{
    tsr_location location;
    reading r = {.notes = notes, .arena = arena};
    *out = (tsr_object_replacing){0};
    TSR_TRY(tsr_location_parse(url, &location, err));
    r.head = tsr_arena_format(arena, err, "%.*s%s", TSR_STR_ARG(location.key), location.key.size ? "/" : "");
    if (!r.head.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_service_open(host->allocator, &location, tsr_io_depth(host), &r.service, err));
    const tsr_status status = read_record(&r, host->allocator, out, err);
    tsr_map_free(r.at);
    tsr_object_list_close(&r.found);
    tsr_service_close(r.service);
    return status;
}
