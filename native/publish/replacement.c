/* See replacement.h. */
#include "publish/replacement.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/destination.h"
#include "publish/directory_output.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

/* ---- overlap ---- */

tsr_inputs tsr_inputs_new(void)
{
    return (tsr_inputs){tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_input)),
                        tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_input))};
}

void tsr_inputs_free(tsr_inputs *inputs)
{
    tsr_vec_free(&inputs->files);
    tsr_vec_free(&inputs->directories);
}

static tsr_status add(tsr_vec *list, uint64_t device, uint64_t inode, const char *name, tsr_error *err)
{
    tsr_input *input = tsr_vec_push(list, err);
    if (!input) return TSR_E_NOMEM;
    *input = (tsr_input){device, inode, name};
    return TSR_OK;
}

static tsr_status add_files(tsr_inputs *inputs, tsr_store *store, const bool *owned, tsr_error *err)
{
    tsr_status status = TSR_OK;
    tsr_file_id id;
    for (uint32_t f = 0; f < store->file_count && status == TSR_OK; f++) {
        if (!tsr_directory_store_identify(store, f, &id) || !(!owned || id.was_read || owned[f])) continue;
        status = add(&inputs->files, id.device, id.inode, store->files[f].name.data, err);
    }
    if (status == TSR_OK && tsr_directory_store_identify(store, TSR_NO_FILE, &id))
        status = add(&inputs->directories, id.device, id.inode, "", err);
    return status;
}

tsr_status tsr_inputs_add(tsr_inputs *inputs, tsr_store *store, tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = inputs->files.allocator;
    if (!checkpoint) return add_files(inputs, store, NULL, err);
    bool *owned = tsr_alloc(allocator, store->file_count, sizeof *owned, err);
    if (!owned) return TSR_E_NOMEM;
    tsr_status status = tsr_checkpoint_own_files(checkpoint, owned, err);
    if (status == TSR_OK) status = add_files(inputs, store, owned, err);
    tsr_free(allocator, owned, store->file_count, sizeof *owned);
    return status;
}

tsr_status tsr_inputs_add_path(tsr_inputs *inputs, const char *path, tsr_error *err)
{
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return TSR_OK;
    return add(&inputs->files, (uint64_t)info.st_dev, (uint64_t)info.st_ino, path, err);
}

static const tsr_input *find(const tsr_vec *list, int directory, const char *path)
{
    struct stat info;
    const tsr_input *inputs = list->items;
    if (fstatat(directory, path, &info, 0) != 0) return NULL;
    for (size_t i = 0; i < list->count; i++)
        if (inputs[i].inode == (uint64_t)info.st_ino && inputs[i].device == (uint64_t)info.st_dev) return &inputs[i];
    return NULL;
}

const tsr_input *tsr_inputs_find(const tsr_inputs *inputs, int directory, const char *path)
{
    return find(&inputs->files, directory, path);
}

/* The same for directories. */
static const tsr_input *inputs_find_directory(const tsr_inputs *inputs, int directory, const char *path)
{
    return find(&inputs->directories, directory, path);
}

/* ---- generation ---- */

/* The generation of a file, which is part of its name. A checkpoint that replaces another one in the same directory has data
 * files and a sidecar of the next generation, so the old ones stay complete until it is published. */

/* The generation in a file's name: N in "__R_N.distcp", "model-gN-…", "…-gN.safetensors" and "objects-gN.json"; otherwise 0. */
static uint32_t generation_of(const char *name)
{
    const char *digits = strrchr(name, '_'), *mark = strstr(name, "-g");
    if (tsr_str_ends(tsr_str_from(name), TSR_STR(".distcp")) && digits) return (uint32_t)strtoul(digits + 1, NULL, 10);
    return mark ? (uint32_t)strtoul(mark + 2, NULL, 10) : 0;
}

static bool has_generation(const char *name)
{
    const tsr_str text = tsr_str_from(name);
    if (tsr_str_ends(text, TSR_STR(".json"))) return strncmp(name, "objects", strlen("objects")) == 0;
    return tsr_str_ends(text, TSR_STR(".distcp")) || tsr_str_ends(text, TSR_STR(".safetensors"));
}

uint32_t tsr_generation_after(const char *name)
{
    return has_generation(name) ? generation_of(name) + 1 : 0;
}

tsr_status tsr_directory_next_generation(const tsr_sys *sys, const char *path, uint32_t *out, tsr_error *err)
{
    if (!sys) sys = &tsr_sys_posix;
    *out = 0;
    int fd = sys->open_at(sys, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return TSR_OK;
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (!directory) {
        if (fd >= 0) sys->close(sys, fd);
        return tsr_sys_raise(tsr_naming(err), "list", path);
    }
    for (struct dirent *item; (item = readdir(directory));) {
        const uint32_t next = tsr_generation_after(item->d_name);
        if (next > *out) *out = next;
    }
    closedir(directory);
    return TSR_OK;
}

/* ---- stem ---- */

const char *tsr_stem_of(const char *name, char stem[TSR_STEM_SIZE + 1])
{
    enum { HASH_SIZE = 17 }; /* "~" and 16 digits */
    const size_t size = strlen(name);
    size_t kept = size <= TSR_STEM_SIZE ? size : TSR_STEM_SIZE - HASH_SIZE;
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3;
    /* Do not cut a UTF-8 character: some file systems reject that. */
    while (kept < size && ((uint8_t)name[kept] & 0xc0) == 0x80) kept--;
    memcpy(stem, name, kept);
    stem[kept] = '\0';
    if (kept < size) snprintf(stem + kept, TSR_STEM_SIZE + 1 - kept, "~%016" PRIx64, hash);
    return stem;
}

/* ---- replacement ---- */

typedef struct decision {
    const tsr_replacement_request *request;
    tsr_arena *arena;
    tsr_replacement *out;
    tsr_store *store;
    tsr_checkpoint *old; /* NULL: it cannot be read, or there is none */
    tsr_error why;       /* the error, if `old` is NULL */
    bool *owned;
    tsr_file_role *roles;
} decision;

static bool is_remote(const decision *d)
{
    return tsr_is_object_url(d->request->path);
}

static bool in_root(tsr_str name)
{
    return !memchr(name.data, '/', name.size);
}

/* ---- what is there ---- */

/* A model that fits in one shard is written without an index. If nothing else in the directory is a checkpoint or a part of
 * one, that file is the checkpoint that an index replaces. */
static void own_only_shard(decision *d)
{
    uint32_t only = tsr_store_find(d->store, TSR_STR(TSR_MODEL_FILE));
    if (!d->old || !d->request->marker || strcmp(d->request->marker, TSR_INDEX_MARKER) != 0) return;
    for (uint32_t f = 0; f < d->store->file_count; f++)
        if (d->roles[f] != TSR_ROLE_NONE && f != only) only = TSR_NO_FILE;
    if (only != TSR_NO_FILE) d->owned[only] = true;
}

static tsr_status open_old(decision *d, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_NAMES, .stay = true};
    tsr_status status = tsr_checkpoint_open(d->store, d->request->host, &options, &d->old, &d->why);
    if (status == TSR_E_NOMEM || status == TSR_E_IO) return tsr_raise_again(err, status, &d->why);
    d->owned = tsr_arena_array(d->arena, d->store->file_count, sizeof *d->owned, err);
    d->roles = tsr_arena_array(d->arena, d->store->file_count, sizeof *d->roles, err);
    if (!d->owned || !d->roles) return TSR_E_NOMEM;
    if (d->old) TSR_TRY(tsr_checkpoint_own_files(d->old, d->owned, err));
    for (uint32_t f = 0; f < d->store->file_count; f++) TSR_TRY(tsr_store_file_role(d->store, f, &d->roles[f], err));
    own_only_shard(d);
    return TSR_OK;
}

static bool was_written(const decision *d, tsr_str name)
{
    for (size_t i = 0; i < d->request->written_count; i++)
        if (tsr_str_equal(d->request->written[i], name)) return true;
    return false;
}

/* If the list of the old checkpoint is unreadable, its files are unknown: nothing may be removed, and nothing may be
 * added. */
static tsr_status refuse_unreadable(const decision *d, tsr_error *err)
{
    if (d->old) return TSR_OK;
    for (uint32_t f = 0; f < d->store->file_count; f++) {
        const tsr_str name = d->store->files[f].name;
        if (d->roles[f] != TSR_ROLE_MARKER || was_written(d, name)) continue;
        return tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED,
                        "'%s' cannot be replaced: its '%.*s' cannot be read, so it is unclear which files belong to it "
                        "(%s); remove the directory, or write to another one",
                        d->request->path, TSR_STR_ARG(name), d->why.message);
    }
    return TSR_OK;
}

/* Adds names that the store does not list because they cannot be read: subdirectories, dangling links, pipes. */
static tsr_status add_unread(decision *d, DIR *directory, tsr_vec *kept, tsr_error *err)
{
    struct stat info;
    for (struct dirent *item; (item = readdir(directory));) {
        const tsr_str name = tsr_str_from(item->d_name);
        const bool is_own = tsr_str_equal(name, TSR_STR(".")) || tsr_str_equal(name, TSR_STR("..")) ||
                            (item->d_name[0] == '.' && strstr(item->d_name, ".tessera-"));
        if (is_own || (fstatat(dirfd(directory), item->d_name, &info, 0) == 0 && S_ISREG(info.st_mode))) continue;
        const tsr_str copy = tsr_arena_str(d->arena, name, err);
        tsr_kept *own = copy.data ? tsr_vec_push(kept, err) : NULL;
        if (!own) return TSR_E_NOMEM;
        *own = (tsr_kept){.name = copy};
    }
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tsr_kept *)a)->name.data, ((const tsr_kept *)b)->name.data);
}

/* Combines the kept files of the store with the names that are not in it. */
static tsr_status keep_unread(decision *d, const tsr_kept *files, tsr_error *err)
{
    tsr_replacement *out = d->out;
    tsr_vec unread = tsr_vec_of(d->request->host->allocator, sizeof(tsr_kept));
    DIR *directory = opendir(d->request->path);
    tsr_status status = directory ? add_unread(d, directory, &unread, err)
                                  : tsr_fail(tsr_naming(err), TSR_E_IO, "cannot list '%s'", d->request->path);
    if (directory) closedir(directory);
    out->kept = status == TSR_OK ? tsr_arena_array(d->arena, out->kept_count + unread.count, sizeof *files, err) : NULL;
    if (status == TSR_OK && !out->kept) status = TSR_E_NOMEM;
    if (status == TSR_OK && out->kept_count) memcpy(out->kept, files, out->kept_count * sizeof *files);
    if (status == TSR_OK && unread.count) {
        qsort(unread.items, unread.count, sizeof *files, by_name);
        memcpy(out->kept + out->kept_count, unread.items, unread.count * sizeof *files);
        out->kept_count += unread.count;
    }
    tsr_vec_free(&unread);
    return status;
}

static tsr_status sort_file(decision *d, uint32_t f, tsr_error *err)
{
    const tsr_str name = d->store->files[f].name;
    if (!in_root(name) || (was_written(d, name) && !d->owned[f])) return TSR_OK;
    const tsr_str copy = tsr_arena_str(d->arena, name, err);
    if (!copy.data) return TSR_E_NOMEM;
    d->owned[f] |= d->request->file_name.size && tsr_str_equal(name, d->request->file_name);
    if (d->owned[f]) d->out->obsolete[d->out->obsolete_count++] = copy;
    else d->out->kept[d->out->kept_count++] = (tsr_kept){copy, d->roles[f], true};
    d->out->has_stray |= !d->owned[f] && d->roles[f] == TSR_ROLE_TENSORS;
    return TSR_OK;
}

static tsr_status sort_files(decision *d, tsr_error *err)
{
    const uint32_t count = d->store->file_count;
    d->out->obsolete = tsr_arena_array(d->arena, count, sizeof *d->out->obsolete, err);
    d->out->kept = tsr_arena_array(d->arena, count, sizeof *d->out->kept, err);
    if (!d->out->obsolete || !d->out->kept) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count; f++)
        if (d->roles[f] == TSR_ROLE_MARKER) TSR_TRY(sort_file(d, f, err));
    d->out->marker_count = d->out->obsolete_count;
    for (uint32_t f = 0; f < count; f++)
        if (d->roles[f] != TSR_ROLE_MARKER) TSR_TRY(sort_file(d, f, err));
    return is_remote(d) ? TSR_OK : keep_unread(d, d->out->kept, err);
}

/* ---- whether it can be replaced ---- */

/* The files of a model, in the order in which transformers looks for them: it loads the first one that exists. */
static const char *const model_files[] = {TSR_MODEL_FILE, TSR_INDEX_MARKER, TSR_TORCH_FILE, TSR_TORCH_FILE ".index.json"};
enum { MODEL_FILES = sizeof model_files / sizeof *model_files };

/* The position of a name in that order, or MODEL_FILES. */
static size_t rank_of_model_file(tsr_str name)
{
    size_t i = 0;
    while (i < MODEL_FILES && !tsr_str_equal(name, tsr_str_from(model_files[i]))) i++;
    return i;
}

/* The file by which transformers recognizes the new checkpoint; empty if it does not read the format. */
static tsr_str new_model_file(const tsr_replacement_request *request)
{
    return request->file_name.size ? request->file_name : request->marker ? tsr_str_from(request->marker) : TSR_STR("");
}

tsr_status tsr_replacement_check_readers(const tsr_replacement_request *request, const tsr_replacement *replacement,
                                         tsr_error *err)
{
    const tsr_str new_file = new_model_file(request);
    const size_t rank = rank_of_model_file(new_file);
    for (size_t i = 0; i < replacement->kept_count && rank < MODEL_FILES; i++) {
        const tsr_kept *kept = &replacement->kept[i];
        if (!kept->is_file || rank_of_model_file(kept->name) >= rank) continue;
        return tsr_fail(
            tsr_naming(err), TSR_E_UNSUPPORTED,
            "'%s' cannot be replaced: '%.*s' in it does not belong to the checkpoint there and would be kept, and "
            "transformers would load it instead of the new '%.*s'; move it away, or write to another directory",
            request->path, TSR_STR_ARG(kept->name), TSR_STR_ARG(new_file));
    }
    return TSR_OK;
}

/* Refuses kept files that would be taken for part of the new checkpoint: any other marker next to an index, and any file
 * with tensors next to a format without a marker. A `.metadata` takes precedence over all of them. */
static tsr_status refuse_spoilers(const decision *d, tsr_error *err)
{
    const char *marker = d->request->marker;
    if (marker && strcmp(marker, TSR_DCP_MARKER) == 0) return TSR_OK;
    for (size_t i = 0; i < d->out->kept_count; i++) {
        const tsr_kept *k = &d->out->kept[i];
        if (k->role == TSR_ROLE_NONE || (k->role == TSR_ROLE_TENSORS && marker)) continue;
        return tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED,
                        "'%s' cannot be replaced: '%.*s' in it is not listed by the checkpoint there and would be mistaken "
                        "for part of the new one; move it away, or write to another directory",
                        d->request->path, TSR_STR_ARG(k->name));
    }
    return TSR_OK;
}

/* Refuses an index none of whose files exist if there are other files with tensors. These may be another checkpoint, without
 * a list, and the index may be unrelated. */
static tsr_status refuse_hollow_index(const decision *d, tsr_error *err)
{
    tsr_str marker = {0};
    if (!d->old || !d->out->has_stray || tsr_checkpoint_catalog(d->old)->format == TSR_FORMAT_DCP) return TSR_OK;
    for (uint32_t f = 0; f < d->store->file_count; f++) {
        if (!d->owned[f]) continue;
        if (d->roles[f] != TSR_ROLE_MARKER) return TSR_OK;
        marker = d->store->files[f].name;
    }
    if (!marker.size) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED,
                    "'%s' cannot be replaced: '%.*s' lists no existing file, but there are other files with tensors, so it "
                    "is unclear which of them form the old checkpoint; move the index away, or write to another directory",
                    d->request->path, TSR_STR_ARG(marker));
}

/* A single rename can switch from old to new if both have the same marker, or if no file there means anything to a
 * reader. */
static bool needs_swap(const decision *d)
{
    const char *marker = d->request->marker;
    if (!marker && !d->request->file_name.size) return true;
    bool plain = d->out->obsolete_count == 0;
    for (size_t i = 0; i < d->out->kept_count; i++) plain &= d->out->kept[i].role == TSR_ROLE_NONE;
    if (plain) return false;
    if (!marker) return true;
    const tsr_format same = strcmp(marker, TSR_DCP_MARKER) == 0 ? TSR_FORMAT_DCP : TSR_FORMAT_SAFETENSORS_INDEX;
    if (!d->old || tsr_checkpoint_catalog(d->old)->format != same) return true;
    for (size_t i = 0; i < d->out->obsolete_count; i++)
        if (tsr_str_equal(d->out->obsolete[i], tsr_str_from(marker))) return false;
    return true;
}

/* ---- whether it is being read ---- */

static tsr_status refuse_file_overlap(const tsr_replacement_request *request, tsr_error *err)
{
    const tsr_input *input = request->inputs ? tsr_inputs_find(request->inputs, AT_FDCWD, request->path) : NULL;
    if (!input) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_USAGE,
                    "the destination '%s' is '%s' of the source, which cannot be replaced while it is being read",
                    request->path, input->name);
}

static tsr_status refuse_overlap(const decision *d, tsr_error *err)
{
    const tsr_inputs *inputs = d->request->inputs;
    if (!inputs) return TSR_OK;
    const tsr_input *input = inputs_find_directory(inputs, AT_FDCWD, d->request->path);
    TSR_FAIL_IF(input, tsr_naming(err), TSR_E_USAGE,
                "the source is in the destination '%s', which cannot be replaced while it is being read", d->request->path);
    const int directory = open(d->request->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < d->out->obsolete_count && directory >= 0 && !input; i++) {
        input = tsr_inputs_find(inputs, directory, d->out->obsolete[i].data);
        if (input)
            tsr_fail(tsr_naming(err), TSR_E_USAGE,
                     "'%.*s' in the destination '%s' is '%s' of the source: it cannot be replaced while it is being read",
                     TSR_STR_ARG(d->out->obsolete[i]), d->request->path, input->name);
    }
    if (directory >= 0) close(directory);
    return input ? TSR_E_USAGE : TSR_OK;
}

/* ---- the decision ---- */

static tsr_status decide_directory(decision *d, tsr_error *err)
{
    TSR_TRY(open_old(d, err));
    TSR_TRY(refuse_unreadable(d, err));
    TSR_TRY(sort_files(d, err));
    if (!is_remote(d)) TSR_TRY(refuse_overlap(d, err));
    TSR_TRY(refuse_hollow_index(d, err));
    TSR_TRY(refuse_spoilers(d, err));
    d->out->swap = needs_swap(d);
    return TSR_OK;
}

/* Opens the directory at an object store's URL, if there is one that may be replaced. */
static tsr_status open_remote(decision *d, bool *is_directory, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_status status = tsr_path_store_open(d->request->host, d->request->path, &d->store, &why);
    *is_directory = false;
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status != TSR_OK) return tsr_raise_again(err, status, &why);
    d->out->exists = d->store->file_count > 0;
    *is_directory = d->out->exists && d->store->primary == TSR_NO_FILE && d->request->is_directory;
    return TSR_OK;
}

/* Refuses a replacement that would leave neither the old nor the new checkpoint if it were interrupted: an object store
 * cannot exchange directories. */
static tsr_status refuse_exchange(const decision *d, tsr_error *err)
{
    const tsr_replacement *out = d->out;
    const bool is_marked = d->request->marker && (out->marker_count || !out->obsolete_count);
    const bool is_one_file = d->request->file_name.size && (out->marker_count || out->obsolete_count <= 1);
    if (!out->swap || is_marked || is_one_file) return TSR_OK;
    return tsr_fail(
        tsr_naming(err), TSR_E_UNSUPPORTED,
        "'%s' cannot be replaced: %s has no marker file, and an object store cannot exchange directories in one step; remove it, or "
        "write to another URL",
        d->request->path, d->request->marker ? "the checkpoint there" : "the checkpoint to be written");
}

static tsr_status decide_remote(decision *d, tsr_error *err)
{
    bool is_directory = false;
    if (!d->request->overwrite) return TSR_OK;
    tsr_status status = open_remote(d, &is_directory, err);
    if (status == TSR_OK && is_directory) status = decide_directory(d, err);
    if (status == TSR_OK && is_directory) status = refuse_exchange(d, err);
    for (uint32_t f = 0; status == TSR_OK && is_directory && f < d->store->file_count; f++) {
        const uint32_t next = tsr_generation_after(d->store->files[f].name.data);
        if (next > d->out->generation) d->out->generation = next;
    }
    if (status == TSR_OK && d->out->has_stray && !d->out->generation) d->out->generation = 1;
    tsr_checkpoint_close(d->old);
    if (d->store) d->store->close(d->store);
    return status;
}

tsr_status tsr_replacement_decide(const tsr_replacement_request *request, tsr_arena *arena, tsr_replacement *out,
                                  tsr_error *err)
{
    struct stat info;
    decision d = {.request = request, .arena = arena, .out = out};
    *out = (tsr_replacement){0};
    if (is_remote(&d)) return decide_remote(&d, err);
    out->exists = stat(request->path, &info) == 0;
    if (!out->exists || !request->overwrite || S_ISDIR(info.st_mode) != request->is_directory) return TSR_OK;
    if (!request->is_directory) return refuse_file_overlap(request, err);
    TSR_TRY(tsr_directory_store_open(NULL, request->host->allocator, request->path, &d.store, err));
    const tsr_status status = decide_directory(&d, err);
    tsr_checkpoint_close(d.old);
    d.store->close(d.store);
    return status;
}

tsr_status tsr_replacement_check_name(const tsr_replacement *replacement, const char *path, tsr_str name, tsr_error *err)
{
    for (size_t i = 0; i < replacement->kept_count; i++) {
        if (!tsr_str_equal(replacement->kept[i].name, name)) continue;
        return tsr_fail(
            tsr_naming(err), TSR_E_EXISTS,
            "'%.*s' exists in '%s' and does not belong to the checkpoint there: it would be overwritten; move it "
            "away, or write to another directory",
            TSR_STR_ARG(name), path);
    }
    return TSR_OK;
}
