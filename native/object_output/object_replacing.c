/* The note about what a publication of a plan's parts is replacing. It exists from before the first change until everything
 * is done. If the publication is interrupted, the objects are neither the old checkpoint nor the new one. Only this note
 * says which names the new one has, and what is left to remove.
 *
 *   u32 generation, u8 is unlike, u32 number of markers, u32 number of names of the old checkpoint, then for each name:
 *   name, version, u64 size */
#include "object_output/note_text.h"
#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "tessera/sys/try.h"

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
    if (tsr_object_find_note(output, TSR_STR(TSR_NOTE_REPLACING))) return TSR_OK;
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
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%s: the note of what is being replaced is damaged",
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
    TSR_FAIL_IF(status != TSR_OK, err, status, "%s", unused.message);
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
    TSR_TRY(tsr_service_open(host->allocator, &location, host->io_depth ? host->io_depth : TSR_IO_DEPTH, &r.service, err));
    const tsr_status status = read_record(&r, host->allocator, out, err);
    tsr_map_free(r.at);
    tsr_object_list_close(&r.found);
    tsr_service_close(r.service);
    return status;
}
