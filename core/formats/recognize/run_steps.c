/* See recognize.h. A store's files are sorted by name, so those below one directory are contiguous. */
#include "formats/recognize/recognize.h"

#include <stdlib.h>

#include "formats/common/file_names.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

typedef struct listing {
    const tsr_store *store;
    tsr_is_owned_fn *is_owned;
    const void *ctx;
    tsr_arena *arena;
    tsr_vec *steps;
    tsr_vec numbers;                    /* of tsr_run_step: names with a number that may count something else */
    tsr_map *step_paths, *number_paths; /* path → index in these, if there are links or gaps; otherwise NULL */
    tsr_error *err;
} listing;

/* The files of a directory. */
typedef struct listed_directory {
    tsr_str path;
    uint32_t from, to;
} listed_directory;

static tsr_str below(tsr_str path, tsr_str directory)
{
    const size_t skipped = directory.size ? directory.size + 1 : 0;
    return tsr_str_after(path, skipped);
}

static bool is_in(tsr_str path, tsr_str directory)
{
    return path.size > directory.size && path.data[directory.size] == '/' && tsr_str_starts(path, directory);
}

/* Whether a part of a path is a hidden name, such as ".Trash-1000", or the directory of files that fsck has found. Checkpoints there
 * were removed, or are copies that something keeps for itself. */
bool tsr_is_hidden(tsr_str path)
{
    for (tsr_str rest = path; rest.size; rest = tsr_path_directory(rest)) {
        const tsr_str name = tsr_last_path_part(rest);
        if (tsr_str_starts(name, TSR_STR(".")) || tsr_str_equal(name, TSR_STR("lost+found"))) return true;
    }
    return false;
}

/* The directory that contains file `from`, directly below another one, or an empty path if the file is in that one itself. */
static listed_directory next_directory(const listing *l, listed_directory in, uint32_t from)
{
    const tsr_str path = l->store->files[from].name, rest = below(path, in.path);
    const char *slash = memchr(rest.data, '/', rest.size);
    listed_directory next = {{path.data, slash ? (size_t)(slash - path.data) : 0}, from, from + 1};
    while (slash && next.to < in.to && is_in(l->store->files[next.to].name, next.path)) next.to++;
    return next;
}

static bool holds_checkpoint(const listing *l, listed_directory in)
{
    for (uint32_t f = in.from; f < in.to; f++)
        if (tsr_is_checkpoint_name(l->store->files[f].name)) return true;
    return false;
}

/* Whether a directory consists of directories, or files of Lightning, whose names state other steps, as epochs with the steps of each:
 * then these are the steps. A Trainer's "checkpoint-100/global_step100" is one. */
static bool consists_of_steps(const listing *l, listed_directory in, uint64_t own)
{
    for (uint32_t f = in.from; f < in.to;) {
        const listed_directory next = next_directory(l, in, f);
        const tsr_str name = tsr_last_path_part(next.path.size ? next.path : l->store->files[f].name);
        const bool is_lightning = tsr_str_ends(name, TSR_STR(".ckpt")) && tsr_str_contains(name, TSR_STR("step"));
        uint64_t step;
        if (!next.path.size && !is_lightning) return false;
        if (tsr_step_of_name(name, &step) != TSR_STEP_STATED) return false;
        if (step == own && tsr_name_holds(tsr_last_path_part(in.path), TSR_STR("checkpoint"))) return false;
        f = next.to;
    }
    return in.to > in.from;
}

static tsr_status add(const listing *l, tsr_vec *steps, tsr_run_step step)
{
    step.beyond = step.step == UINT64_MAX ? tsr_step_beyond(tsr_last_path_part(step.path)) : TSR_STR("");
    if (l->is_owned && l->is_owned(l->ctx, step.path)) return TSR_OK;
    tsr_run_step *added = tsr_vec_push(steps, l->err);
    if (!added) return TSR_E_NOMEM;
    *added = step;
    return TSR_OK;
}

static tsr_status list_directory(listing *l, listed_directory in, unsigned level);

static tsr_status list_below(listing *l, listed_directory in, unsigned level)
{
    uint64_t number;
    const tsr_step_naming kind = tsr_step_of_name(tsr_last_path_part(in.path), &number);
    const tsr_run_step step = {.path = in.path,
                               .step = number,
                               .version = tsr_step_version(tsr_last_path_part(in.path)),
                               .file = TSR_NO_FILE,
                               .holds_checkpoint = holds_checkpoint(l, in)};
    if (kind == TSR_STEP_STATED && (level == TSR_BELOW_LEVELS || !consists_of_steps(l, in, number)))
        return add(l, l->steps, step);
    const size_t before = l->steps->count + l->numbers.count;
    TSR_TRY(list_directory(l, in, level + 1));
    const bool has_others = l->steps->count + l->numbers.count > before;
    return kind == TSR_STEP_NUMBER && !has_others && step.holds_checkpoint ? add(l, &l->numbers, step) : TSR_OK;
}

/* Lists the steps in a directory, of which those on the lowest level are only files. */
static tsr_status list_directory(listing *l, listed_directory in, unsigned level)
{
    for (uint32_t f = in.from; f < in.to;) {
        const listed_directory next = next_directory(l, in, f);
        const tsr_str path = l->store->files[f].name, name = tsr_last_path_part(path);
        uint64_t number;
        if (next.path.size && level <= TSR_BELOW_LEVELS && !tsr_is_hidden(next.path)) TSR_TRY(list_below(l, next, level));
        else if (!next.path.size && !tsr_is_hidden(name) && tsr_step_of_file(name, &number))
            TSR_TRY(add(
                l, l->steps,
                (tsr_run_step){
                    .path = path, .step = number, .version = tsr_step_version(name), .file = f, .holds_checkpoint = true}));
        f = next.to;
    }
    return TSR_OK;
}

/* ---- directories without files ---- */

/* The shortest beginning of a path that is named like a step; empty if there is none. */
static tsr_str step_in(tsr_str path, uint64_t *number)
{
    for (size_t end = 0; end < path.size; end++) {
        for (end += end && path.data[end] == '/'; end < path.size && path.data[end] != '/'; end++) {
        }
        const tsr_str head = {path.data, end};
        if (tsr_step_of_name(tsr_last_path_part(head), number) == TSR_STEP_STATED) return head;
    }
    return (tsr_str){NULL, 0};
}

/* The step that a path is, or is below; NULL if there is none. */
static tsr_run_step *step_around(const tsr_vec *steps, const tsr_map *paths, tsr_str path)
{
    for (tsr_str part = path; part.size; part = tsr_path_directory(part)) {
        const uint32_t i = tsr_map_get(paths, part, UINT32_MAX);
        if (i != UINT32_MAX) return (tsr_run_step *)steps->items + i;
    }
    return NULL;
}

static tsr_status note_paths(const listing *l, const tsr_vec *steps, tsr_map **paths)
{
    const tsr_run_step *items = steps->items;
    tsr_map_free(*paths);
    *paths = tsr_map_new(l->steps->allocator, steps->count, l->err);
    if (!*paths) return TSR_E_NOMEM;
    for (size_t i = 0; i < steps->count; i++) TSR_TRY(tsr_map_put(*paths, items[i].path, (uint32_t)i, NULL, NULL, l->err));
    return TSR_OK;
}

static tsr_status note_all_paths(listing *l)
{
    TSR_TRY(note_paths(l, l->steps, &l->step_paths));
    return note_paths(l, &l->numbers, &l->number_paths);
}

/* Whether a path leads to one of the steps through a symbolic link. */
static tsr_status is_other_name(const listing *l, tsr_str path, bool *is)
{
    tsr_str other;
    TSR_TRY(tsr_store_follow(l->store, path, l->arena, &other, l->err));
    *is = other.size && (tsr_map_get(l->step_paths, other, UINT32_MAX) != UINT32_MAX ||
                         tsr_map_get(l->number_paths, other, UINT32_MAX) != UINT32_MAX);
    return TSR_OK;
}

static tsr_status drop_links_of(const listing *l, tsr_vec *steps)
{
    tsr_run_step *items = steps->items;
    size_t kept = 0;
    for (size_t i = 0; i < steps->count; i++) {
        bool is;
        TSR_TRY(is_other_name(l, items[i].path, &is));
        if (!is) items[kept++] = items[i];
    }
    steps->count = kept;
    return TSR_OK;
}

/* Leaves out links to steps that are listed by their own names. */
static tsr_status drop_links(listing *l)
{
    TSR_TRY(note_all_paths(l));
    TSR_TRY(drop_links_of(l, l->steps));
    return drop_links_of(l, &l->numbers);
}

static tsr_status list_gaps(listing *l, const tsr_store_gap **unlisted)
{
    if (l->store->gap_count) TSR_TRY(note_all_paths(l));
    for (uint32_t g = 0; g < l->store->gap_count; g++) {
        const tsr_store_gap *gap = &l->store->gaps[g];
        const bool is_unreadable = gap->why && !gap->is_link;
        tsr_run_step *around = step_around(l->steps, l->step_paths, gap->name);
        uint64_t number;
        if (tsr_is_hidden(gap->name)) continue;
        if (!around && !l->steps->count) around = step_around(&l->numbers, l->number_paths, gap->name);
        if (around && is_unreadable) around->unreadable = gap;
        if (around) continue;
        const tsr_str step = step_in(gap->name, &number);
        if (is_unreadable && !step.size && !*unlisted) *unlisted = gap;
        if (!step.size) continue;
        bool is;
        TSR_TRY(is_other_name(l, step, &is));
        if (is) continue;
        const size_t count = l->steps->count;
        TSR_TRY(add(
            l, l->steps,
            (tsr_run_step){
                .path = step, .step = number, .file = TSR_NO_FILE, .empty = gap, .unreadable = is_unreadable ? gap : NULL}));
        if (l->steps->count > count) TSR_TRY(tsr_map_put(l->step_paths, step, (uint32_t)count, NULL, NULL, l->err));
    }
    return TSR_OK;
}

/* ---- the list ---- */

/* Whether numbers that may count anything belong to one series. "llama-2" and "qwen-3", or the commits below the snapshots of a Hugging
 * Face cache, are different models, of which none is the newest. */
static bool is_series(const tsr_vec *numbers)
{
    const tsr_run_step *items = numbers->items;
    for (size_t i = 1; i < numbers->count; i++)
        if (!tsr_str_equal(tsr_step_label(tsr_last_path_part(items[i].path)),
                           tsr_step_label(tsr_last_path_part(items[0].path))))
            return false;
    return true;
}

/* Leaves out directories without checkpoints that are not next to steps with checkpoints, such as logs per step. */
static tsr_status keep_likely(tsr_vec *steps, tsr_error *err)
{
    tsr_run_step *items = steps->items;
    size_t kept = 0, held = 0;
    for (size_t i = 0; i < steps->count; i++) held += items[i].holds_checkpoint;
    if (!held) return TSR_OK;
    tsr_map *runs = tsr_map_new(steps->allocator, 0, err); /* that hold checkpoints */
    if (!runs) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    /* Those with checkpoints first, so that they are found where those without are judged. */
    for (size_t i = 0, first = 0; i < steps->count; i++) {
        if (!items[i].holds_checkpoint) continue;
        const tsr_run_step step = items[i];
        items[i] = items[first];
        items[first++] = step;
        if (status == TSR_OK) status = tsr_map_put(runs, tsr_path_directory(step.path), 1, NULL, NULL, err);
    }
    for (size_t i = 0; i < steps->count && status == TSR_OK; i++)
        if (items[i].holds_checkpoint || items[i].unreadable || tsr_map_get(runs, tsr_path_directory(items[i].path), 0))
            items[kept++] = items[i];
    steps->count = kept;
    tsr_map_free(runs);
    return status;
}

static int newest_first(const void *left, const void *right)
{
    const tsr_run_step *a = left, *b = right;
    if (a->step != b->step) return a->step > b->step ? -1 : 1;
    if (a->beyond.size != b->beyond.size) return a->beyond.size > b->beyond.size ? -1 : 1;
    const int order = tsr_str_compare(b->beyond, a->beyond);
    if (order) return order;
    if (a->is_last != b->is_last) return a->is_last ? 1 : -1;
    if (a->version != b->version) return a->version > b->version ? -1 : 1;
    return tsr_str_compare(a->path, b->path);
}

void tsr_sort_run_steps(tsr_vec *steps)
{
    if (steps->count) qsort(steps->items, steps->count, sizeof(tsr_run_step), newest_first);
}

tsr_status tsr_list_run_steps(const tsr_store *store, tsr_is_owned_fn *is_owned, const void *ctx, tsr_arena *arena,
                              tsr_vec *steps, const tsr_store_gap **unlisted, tsr_error *err)
{
    listing l = {.store = store,
                 .is_owned = is_owned,
                 .ctx = ctx,
                 .arena = arena,
                 .steps = steps,
                 .numbers = tsr_vec_of(steps->allocator, sizeof(tsr_run_step)),
                 .err = err};
    *unlisted = NULL;
    tsr_status status = list_directory(&l, (listed_directory){{"", 0}, 0, store->file_count}, 1);
    if (status == TSR_OK && store->link_count) status = drop_links(&l);
    if (status == TSR_OK) status = list_gaps(&l, unlisted);
    if (status == TSR_OK && !steps->count && is_series(&l.numbers))
        status = tsr_vec_append(steps, l.numbers.items, l.numbers.count, err);
    tsr_vec_free(&l.numbers);
    tsr_map_free(l.step_paths);
    tsr_map_free(l.number_paths);
    if (status == TSR_OK) status = keep_likely(steps, err);
    if (status == TSR_OK) tsr_sort_run_steps(steps);
    return status;
}

/* ---- Lightning's last.ckpt ---- */

static bool is_last(tsr_str name)
{
    if (!tsr_str_skip(&name, TSR_STR("last"))) return false;
    if (tsr_str_skip(&name, TSR_STR("-v")))
        while (name.size && tsr_is_digit(name.data[0])) name = tsr_str_after(name, 1);
    return tsr_str_equal(name, TSR_STR(".ckpt"));
}

tsr_status tsr_list_last_steps(const tsr_store *store, tsr_is_owned_fn *is_owned, const void *ctx, tsr_arena *arena,
                               tsr_vec *steps, tsr_error *err)
{
    listing l = {.store = store, .is_owned = is_owned, .ctx = ctx, .arena = arena, .steps = steps, .err = err};
    tsr_str before = TSR_STR("");
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        tsr_str path = name, other;
        while (path.size && !is_last(tsr_last_path_part(path))) path = tsr_path_directory(path);
        if (!path.size || tsr_str_equal(path, before) || tsr_is_hidden(path)) continue;
        before = path;
        TSR_TRY(tsr_store_follow(store, path, arena, &other, err));
        if (other.size) continue; /* it is listed under another name */
        TSR_TRY(add(
            &l, steps,
            (tsr_run_step){
                .path = path, .file = path.size == name.size ? f : TSR_NO_FILE, .holds_checkpoint = true, .is_last = true}));
    }
    return TSR_OK;
}
