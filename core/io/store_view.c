/* See store_view.h. A store's files are sorted by name, so those below one directory follow each other. */
#include "io/store_view.h"

#include "tessera/sys/try.h"

static tsr_status read_shown(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const tsr_store_view *view = (tsr_store_view *)base;
    return view->shown->read_at(view->shown, view->first + file, offset, buffer, size, err);
}

static tsr_status map_shown(tsr_store *base, uint32_t file, tsr_str *out, tsr_error *err)
{
    const tsr_store_view *view = (tsr_store_view *)base;
    return view->shown->map(view->shown, view->first + file, out, err);
}

static void unmap_shown(tsr_store *base, uint32_t file, tsr_str mapped)
{
    const tsr_store_view *view = (tsr_store_view *)base;
    view->shown->unmap(view->shown, view->first + file, mapped);
}

static tsr_store *origin_of_shown(const tsr_store *base, uint32_t *file)
{
    const tsr_store_view *view = (const tsr_store_view *)base;
    *file += view->first;
    return view->shown;
}

static void close_nothing(tsr_store *base)
{
    (void)base;
}

static tsr_store_view *new_view(tsr_store *shown, tsr_arena *arena, tsr_error *err)
{
    tsr_store_view *view = TSR_ARENA_NEW(arena, tsr_store_view, err);
    if (!view) return NULL;
    view->shown = shown;
    view->base = (tsr_store){.file_count = shown->file_count,
                             .files = shown->files,
                             .primary = TSR_NO_FILE,
                             .read_at = read_shown,
                             .map = shown->map ? map_shown : NULL,
                             .unmap = shown->unmap ? unmap_shown : NULL,
                             .close = close_nothing,
                             .origin = origin_of_shown,
                             .unsummed = shown->unsummed};
    return view;
}

/* With `below`, the first file from `from` on that is not below `name` + "/"; otherwise the first that is. */
static uint32_t skip(const tsr_store *store, uint32_t from, tsr_str name, bool below)
{
    for (; from < store->file_count; from++) {
        const tsr_str file = store->files[from].name;
        const bool is = file.size > name.size && file.data[name.size] == '/' && tsr_str_starts(file, name);
        if (is != below) break;
    }
    return from;
}

tsr_status tsr_store_view_below(tsr_store *shown, tsr_str name, tsr_arena *arena, tsr_store_view **out, bool *holds_files,
                                tsr_error *err)
{
    *out = new_view(shown, arena, err);
    if (!*out) return TSR_E_NOMEM;
    *holds_files = shown->file_count > 0;
    if (name.size == 0) return TSR_OK;
    const uint32_t from = skip(shown, 0, name, false), to = skip(shown, from, name, true);
    tsr_store_file *files = tsr_arena_array(arena, to, sizeof *files, err);
    if (!files) return TSR_E_NOMEM;
    for (uint32_t f = from; f < to; f++) {
        const tsr_str full = shown->files[f].name;
        files[f] = (tsr_store_file){{full.data + name.size + 1, full.size - name.size - 1}, shown->files[f].size};
    }
    for (uint32_t f = 0; f < from; f++) files[f].name = TSR_STR("");
    (*out)->base.files = files;
    (*out)->base.file_count = to;
    *holds_files = to > from;
    return TSR_OK;
}

void tsr_store_view_renumber(tsr_store_view *view)
{
    tsr_store *base = &view->base;
    for (; base->file_count && !base->files->name.size; base->files++, base->file_count--) view->first++;
}

tsr_status tsr_store_view_of_file(tsr_store *shown, uint32_t file, tsr_arena *arena, tsr_store_view **out, tsr_error *err)
{
    *out = new_view(shown, arena, err);
    if (!*out) return TSR_E_NOMEM;
    (*out)->base.primary = file;
    return TSR_OK;
}

tsr_status tsr_store_open_below(tsr_store *store, tsr_str name, tsr_arena *arena, tsr_store **out, bool *owned,
                                bool *holds_files, tsr_error *err)
{
    tsr_store_view *view;
    *owned = store->below != NULL;
    *holds_files = true;
    if (*owned) return store->below(store, name, out, err);
    TSR_TRY(tsr_store_view_below(store, name, arena, &view, holds_files, err));
    tsr_store_view_renumber(view);
    *out = &view->base;
    return TSR_OK;
}
