/* See copy_complete.h. */
#include "cli/writing/copy_complete.h"

#include <stdio.h>
#include <string.h>

#include "tessera/checkpoint.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/map.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

enum { NAMED = 4 };

static tsr_status refuse(const tsr_checkpoint *checkpoint, tsr_str below, tsr_error *err)
{
    size_t count, used = 0;
    char names[512] = "";
    const tsr_str *missing = tsr_checkpoint_missing(checkpoint, &count);
    if (!count) return TSR_OK;
    for (size_t i = 0; i < count && i < NAMED; i++) {
        const int size = snprintf(names + used, sizeof names - used, "%s'%.*s%s%.*s'", i ? ", " : "", TSR_STR_ARG(below),
                                  below.size ? "/" : "", TSR_STR_ARG(missing[i]));
        if (size < 0 || (size_t)size >= sizeof names - used) break;
        used += (size_t)size;
    }
    return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION,
                     "%zu file%s that the checkpoint names %s missing: %s%s; nothing was copied", count,
                     count == 1 ? "" : "s", count == 1 ? "is" : "are", names, count > NAMED ? ", …" : "");
}

/* An interrupted save that is copied would pass for a checkpoint that is safe elsewhere. */
static tsr_status refuse_interrupted(const tsr_checkpoint *checkpoint, tsr_str below, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_status status = tsr_checkpoint_require(checkpoint, TSR_FOR_ALL_NAMES, &why);
    if (status == TSR_OK) return TSR_OK;
    return tsr_raise(err, status, TSR_NO_POSITION, "%.*s%s%s; nothing was copied", TSR_STR_ARG(below),
                     below.size ? ": " : "", why.message);
}

static bool is_marker(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR("/.metadata")) ||
           tsr_str_ends(name, TSR_STR(".index.json"));
}

static bool has_marker(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        if (is_marker(name) && !memchr(name.data, '/', name.size)) return true;
    }
    return false;
}

/* `below` is the path of the store below the source, empty for the source itself. A directory with a marker that cannot be opened is
 * named: whether its files are complete is not known. */
static tsr_status check(cli *program, tsr_store *store, tsr_str below, bool is_marked, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_FINDINGS, .stay = true};
    tsr_checkpoint *checkpoint;
    tsr_error why = {0};
    tsr_status status = tsr_checkpoint_open(store, cli_host(program), &options, &checkpoint, &why);
    if (status == TSR_OK) {
        status = refuse(checkpoint, below, err);
        if (status == TSR_OK) status = refuse_interrupted(checkpoint, below, err);
        tsr_checkpoint_close(checkpoint);
        return status;
    }
    if (status == TSR_E_NOMEM || status == TSR_E_CANCELLED)
        return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
    if (is_marked)
        cli_warn(program,
                 "'%.*s' cannot be opened as a checkpoint, so its files are copied without a check that none is missing: %s",
                 TSR_STR_ARG(below.size ? below : TSR_STR(".")), why.message);
    return TSR_OK;
}

static tsr_status check_below(cli *program, const char *source, tsr_str below, tsr_arena *arena, tsr_error *err)
{
    tsr_str root = tsr_str_from(cli_given_address(program, source));
    tsr_store *store;
    while (root.size > 1 && root.data[root.size - 1] == '/') root.size--;
    const tsr_str path = tsr_arena_format(arena, err, "%.*s/%.*s", TSR_STR_ARG(root), TSR_STR_ARG(below));
    tsr_status status = path.data ? tsr_path_store_open(cli_host(program), path.data, &store, err) : TSR_E_NOMEM;
    if (status != TSR_OK) return status;
    status = check(program, store, below, true, err);
    store->close(store);
    return status;
}

static tsr_status add_directory(tsr_str name, tsr_map *known, tsr_arena *arena, tsr_vec *steps, tsr_error *err)
{
    bool is_new;
    const tsr_str copy = tsr_arena_str(arena, name, err);
    if (!copy.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(known, copy, 0, NULL, &is_new, err));
    tsr_str *step = is_new ? tsr_vec_push(steps, err) : NULL;
    if (step) *step = copy;
    return step || !is_new ? TSR_OK : TSR_E_NOMEM;
}

/* The directories below the root, at any depth, that have a marker. The store's names may change while they are examined. */
static tsr_status list_steps(const tsr_store *store, tsr_map *known, tsr_arena *arena, tsr_vec *steps, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        tsr_str name = store->files[f].name;
        if (!is_marker(name)) continue;
        while (name.size && name.data[name.size - 1] != '/') name.size--;
        if (!name.size) continue;
        name.size--;
        TSR_TRY(add_directory(name, known, arena, steps, err));
    }
    return TSR_OK;
}

tsr_status cli_copy_check_complete(cli *program, const char *source, tsr_store *store, tsr_error *err)
{
    if (store->primary != TSR_NO_FILE) return TSR_OK;
    const tsr_allocator *allocator = cli_host(program)->allocator;
    tsr_vec steps = tsr_vec_of(allocator, sizeof(tsr_str));
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    tsr_map *known = tsr_map_new(allocator, 0, err);
    tsr_status status = arena && known ? list_steps(store, known, arena, &steps, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = check(program, store, (tsr_str){NULL, 0}, has_marker(store), err);
    for (size_t i = 0; status == TSR_OK && i < steps.count; i++)
        status = check_below(program, source, ((const tsr_str *)steps.items)[i], arena, err);
    tsr_vec_free(&steps);
    tsr_map_free(known);
    tsr_arena_free(arena);
    return status;
}
