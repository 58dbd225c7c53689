/* Finds the newest checkpoint of a run whose files have any names: one per line, in any order, each of one of a few contents. What is found,
 * passed over or listed must be in the run, the newest first; or there is an error that says why not. */
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/host_calls.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_FILES = 64, MOST_NAME = 200 };

#define HEADER "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
static const char model[] = "\x36\0\0\0\0\0\0\0" HEADER "12345678";
static const char index_text[] = "{\"metadata\":{},\"weight_map\":{\"w\":\"model-00001-of-00001.safetensors\"}}";

static tsr_str content_of(tsr_str name)
{
    if (tsr_str_ends(name, TSR_STR(".safetensors"))) return (tsr_str){model, sizeof model - 1};
    if (tsr_str_ends(name, TSR_STR(".index.json"))) return (tsr_str){index_text, sizeof index_text - 1};
    return tsr_str_ends(name, TSR_STR(".json")) ? TSR_STR("{}") : TSR_STR("\x80\x02}.");
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_memory_file *)a)->name, ((const tsr_memory_file *)b)->name);
}

/* Whether a path could be in a directory: no empty component, "." or "..". */
static bool is_path(tsr_str path)
{
    size_t from = 0;
    for (size_t at = 0; at <= path.size; at++) {
        if (at < path.size && path.data[at] != '/') continue;
        const tsr_str part = {path.data + from, at - from};
        if (!part.size || part.size > MOST_NAME || tsr_str_equal(part, TSR_STR(".")) || tsr_str_equal(part, TSR_STR("..")))
            return false;
        from = at + 1;
    }
    return !memchr(path.data, 0, path.size);
}

/* Makes the files, as a directory would have them: sorted, each once, and no file that is also a directory. */
static uint32_t list_files(tsr_str text, tsr_memory_file *files)
{
    uint32_t count = 0, kept = 0;
    while (text.size && count < MOST_FILES) {
        const tsr_str name = tsr_str_take(&text, '\n');
        if (is_path(name)) files[count++] = (tsr_memory_file){name, content_of(name)};
    }
    if (count) qsort(files, count, sizeof *files, by_name);
    for (uint32_t i = 0; i < count; i++) {
        bool is_taken = false;
        for (uint32_t k = 0; k < kept && !is_taken; k++) {
            const tsr_str other = files[k].name, name = files[i].name;
            is_taken = tsr_str_starts(name, other) && (name.size == other.size || name.data[other.size] == '/');
        }
        if (!is_taken) files[kept++] = files[i];
    }
    return kept;
}

static void need_in_run(const tsr_memory_file *files, uint32_t count, tsr_str path)
{
    uint32_t i = 0;
    while (i < count && !(tsr_str_starts(files[i].name, path) &&
                          (!path.size || files[i].name.size == path.size || files[i].name.data[path.size] == '/')))
        i++;
    if (i == count) abort();
}

static void find_latest(tsr_store *store, const tsr_host *host, tsr_arena *arena, const tsr_memory_file *files,
                        uint32_t count)
{
    tsr_latest latest;
    tsr_error err = {0};
    const tsr_status status = tsr_latest_find(store, host, NULL, arena, &latest, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    if (status != TSR_OK) return;
    if (latest.found) need_in_run(files, count, latest.path);
    for (size_t i = 0; i < latest.passed_count; i++) {
        const tsr_passed_over *passed = &latest.passed_over[i];
        need_in_run(files, count, passed->path);
        if (!passed->reason.size) abort();
        if (latest.found && latest.has_step && passed->has_step && passed->step < latest.step) abort();
    }
}

static void list_run(tsr_store *store, const tsr_host *host, tsr_arena *arena, const tsr_memory_file *files, uint32_t count)
{
    tsr_run_checkpoints run;
    tsr_error err = {0};
    const tsr_status status = tsr_run_list(store, host, NULL, arena, &run, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    for (size_t i = 0; status == TSR_OK && i < run.count; i++) {
        const tsr_run_checkpoint *one = &run.items[i];
        need_in_run(files, count, one->path);
        for (size_t f = 0; f < one->file_count; f++)
            if (!one->files[f].size) abort();
        if (i && one->has_step && run.items[i - 1].has_step && one->step > run.items[i - 1].step) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_memory_file files[MOST_FILES];
    tsr_store *store;
    const uint32_t count = list_files((tsr_str){(const char *)data, size}, files);
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, NULL);
    host.limits.memory_bytes = 256u << 20;
    if (!arena) return 0;
    if (tsr_store_from_memory(host.allocator, files, count, &store, NULL) != TSR_OK) abort();
    find_latest(store, &host, arena, files, count);
    list_run(store, &host, arena, files, count);
    store->close(store);
    tsr_arena_free(arena);
    return 0;
}
