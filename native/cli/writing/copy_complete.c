/* See copy_complete.h. */
#include "cli/writing/copy_complete.h"

#include <stdio.h>
#include <string.h>

#include "tessera/checkpoint.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

enum { NAMED = 4 };

static tsr_status refuse(const tsr_checkpoint *checkpoint, tsr_str step, tsr_error *err)
{
    size_t count, used = 0;
    char names[512] = "";
    const tsr_str *missing = tsr_checkpoint_missing(checkpoint, &count);
    if (!count) return TSR_OK;
    for (size_t i = 0; i < count && i < NAMED; i++) {
        const int size = snprintf(names + used, sizeof names - used, "%s'%.*s%s%.*s'", i ? ", " : "", TSR_STR_ARG(step), step.size ? "/" : "",
                                  TSR_STR_ARG(missing[i]));
        if (size < 0 || (size_t)size >= sizeof names - used) break;
        used += (size_t)size;
    }
    return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "%zu file%s that the checkpoint names %s missing: %s%s; nothing was copied", count,
                     count == 1 ? "" : "s", count == 1 ? "is" : "are", names, count > NAMED ? ", …" : "");
}

/* Sets *opened if there is a checkpoint. */
static tsr_status check(const tsr_host *host, tsr_store *store, tsr_str step, bool *opened, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_FINDINGS, .step = step, .stay = !step.size};
    tsr_checkpoint *checkpoint;
    tsr_error why = {0};
    const tsr_status status = tsr_checkpoint_open(store, host, &options, &checkpoint, &why);
    *opened = status == TSR_OK;
    if (*opened) {
        const tsr_status complete = refuse(checkpoint, step, err);
        tsr_checkpoint_close(checkpoint);
        return complete;
    }
    if (status != TSR_E_NOMEM && status != TSR_E_CANCELLED) return TSR_OK;
    return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
}

static bool is_marker(tsr_str name)
{
    return tsr_str_ends(name, TSR_STR("/.metadata")) || tsr_str_ends(name, TSR_STR(".index.json"));
}

/* The directories directly below the root that have a marker; the store's names may change while they are examined. */
static tsr_status list_steps(const tsr_store *store, tsr_arena *arena, tsr_vec *steps, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        tsr_str name = store->files[f].name;
        const char *slash = memchr(name.data, '/', name.size);
        if (!slash || !is_marker(name) || memchr(slash + 1, '/', name.size - (size_t)(slash + 1 - name.data))) continue;
        name.size = (size_t)(slash - name.data);
        const tsr_str *last = steps->count ? (const tsr_str *)steps->items + steps->count - 1 : NULL;
        if (last && tsr_str_equal(*last, name)) continue;
        const tsr_str copy = tsr_arena_str(arena, name, err);
        tsr_str *step = copy.data ? tsr_vec_push(steps, err) : NULL;
        if (!step) return TSR_E_NOMEM;
        *step = copy;
    }
    return TSR_OK;
}

tsr_status cli_copy_check_complete(const tsr_host *host, tsr_store *store, tsr_error *err)
{
    bool opened;
    if (store->primary != TSR_NO_FILE) return TSR_OK;
    tsr_vec steps = tsr_vec_of(host->allocator, sizeof(tsr_str));
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? list_steps(store, arena, &steps, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = check(host, store, (tsr_str){NULL, 0}, &opened, err);
    for (size_t i = 0; status == TSR_OK && !opened && i < steps.count; i++) {
        bool is_step;
        status = check(host, store, ((const tsr_str *)steps.items)[i], &is_step, err);
    }
    tsr_vec_free(&steps);
    tsr_arena_free(arena);
    return status;
}
