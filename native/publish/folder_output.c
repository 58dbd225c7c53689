/* Opens and closes an output to a directory or a single file. Everything in it has a temporary name until it is published. */
#include "publish/folder_output.h"
#include "publish/destination.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- what the caller asks an open output ---- */

bool tsr_folder_output_continues(const tsr_output *output)
{
    return !((const folder_output *)output)->begins;
}

bool tsr_folder_output_replaces(const tsr_output *output)
{
    return ((const folder_output *)output)->mode == OUTPUT_INTO_FOLDER;
}

uint64_t tsr_folder_output_take_sum(tsr_output *base, uint32_t file)
{
    folder_output *output = (folder_output *)base;
    pthread_mutex_lock(&output->lock);
    output_file *f = tsr_output_file(output, file);
    const uint64_t sum = f->sum;
    f->sum = 0;
    pthread_mutex_unlock(&output->lock);
    return sum;
}

void tsr_folder_output_has_all(tsr_output *output)
{
    tsr_begun *begun = &((folder_output *)output)->options.begun;
    if (*begun == TSR_BEGUN_WHOLE) *begun = TSR_BEGUN_JOINED;
}

void tsr_folder_output_drop(tsr_output *output)
{
    ((folder_output *)output)->options.unfinished = TSR_UNFINISHED_REMOVED;
}

uint32_t tsr_folder_output_count(const tsr_output *output)
{
    return (uint32_t)((const folder_output *)output)->files.count;
}

/* ---- the destination ---- */

/* Whether the directory `inner` is `outer` or lies below it. Both must exist. */
static bool is_within(const char *inner, const char *outer)
{
    char *a = realpath(inner, NULL), *b = realpath(outer, NULL);
    size_t size = b ? strlen(b) : 0;
    bool within = a && b && strncmp(a, b, size) == 0 && (a[size] == '\0' || a[size] == '/' || size == 1);
    free(a);
    free(b);
    return within;
}

static tsr_status refuse_sources(const folder_output *output, const char *path, const char *parent,
                                 const struct stat *existing, tsr_error *err)
{
    for (size_t i = 0; i < output->options.source_count; i++) {
        struct stat info;
        const char *source = output->options.sources[i];
        if (output->sys->stat_at(output->sys, AT_FDCWD, source, &info) != 0) continue;
        const bool same = existing && tsr_is_one_file(existing, &info);
        if (!same && !(S_ISDIR(info.st_mode) && is_within(parent, source))) continue;
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the destination '%s' is %sthe source '%s'", path,
                         same ? "" : "inside ", source);
    }
    return TSR_OK;
}

/* Refuses a destination that is a symbolic link without a target. Such a link occupies the name; only a single file written
 * with --overwrite may replace it. */
static tsr_status refuse_dead_link(const folder_output *output, const char *path, tsr_error *err)
{
    struct stat info;
    const bool replaces = output->mode == OUTPUT_FILE && output->options.existing != TSR_EXISTING_REFUSED;
    if (replaces || output->sys->link_stat_at(output->sys, output->parent, output->name, &info) != 0) return TSR_OK;
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "the destination '%s' exists: it is a symbolic link with a missing target; remove the link", path);
}

static tsr_status choose_mode(folder_output *output, const char *path, const char *parent, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    const bool folder = output->options.is_folder;
    struct stat info, found;
    const int *const known = output->options.parent;
    output->parent = sys->open_at(sys, known ? *known : AT_FDCWD, known ? "." : parent, O_RDONLY | O_DIRECTORY, 0);
    if (output->parent < 0) return tsr_sys_raise(err, "open the directory", parent);
    if (known && tsr_output_refuse_moved(output, err) != TSR_OK) return err->status;
    bool exists = sys->stat_at(sys, output->parent, output->name, &info) == 0;
    if (sys->link_stat_at(sys, output->parent, output->name, &found) == 0) output->found = tsr_identity_of(&found);
    tsr_status status = refuse_sources(output, path, parent, exists ? &info : NULL, err);
    if (status != TSR_OK) return status;
    output->mode = !folder                                            ? OUTPUT_FILE
                   : !exists                                          ? OUTPUT_NEW_FOLDER
                   : output->options.existing >= TSR_EXISTING_SWAPPED ? OUTPUT_SWAP_FOLDER
                                                                      : OUTPUT_INTO_FOLDER;
    output->exists = exists;
    if (!exists) return refuse_dead_link(output, path, err);
    if (output->options.existing == TSR_EXISTING_ABSENT)
        return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                         "the destination '%s' exists now, but was not there a moment ago: another process is writing it",
                         path);
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                         "the destination '%s' exists and is neither a file nor a directory", path);
    }
    if (S_ISDIR(info.st_mode) && !folder) {
        return tsr_raise(
            err, TSR_E_EXISTS, TSR_NO_POSITION,
            "the destination '%s' exists and is a directory, but a file would be written; give the file's name, "
            "or write '%s%s' to replace the checkpoint in the directory",
            path, path, path[strlen(path) - 1] == '/' ? "" : "/");
    }
    if (!S_ISDIR(info.st_mode) && folder) {
        return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                         "the destination '%s' exists and is a file, but a directory would be written; choose another name",
                         path);
    }
    if (output->options.existing == TSR_EXISTING_REFUSED) {
        return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION, "the destination '%s' exists; --overwrite replaces %s", path,
                         folder ? "the checkpoint in it, and keeps its other files" : "it");
    }
    return TSR_OK;
}

/* ---- the directory of the files ---- */

/* Creates the directory that will be renamed to the destination. */
static tsr_status make_folder(folder_output *output, const char **folder, bool *made, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    char stem[TSR_STEM_SIZE + 1];
    tsr_stem_of(output->name, stem);
    for (unsigned tries = 0;; tries++) {
        *folder = tsr_arena_format(output->arena, err, ".%s.tessera-%s", stem, output->tag).data;
        if (!*folder) return TSR_E_NOMEM;
        *made = sys->make_folder(sys, output->parent, *folder, output->exists ? TSR_PRIVATE_FOLDER : 0777) == 0;
        if (*made || (errno == EEXIST && output->options.begun != TSR_BEGUN_REFUSED)) break;
        if (errno == EEXIST && output->options.tag) return tsr_output_refuse_foreign(output, *folder, err);
        if (errno != EEXIST || tries == TSR_MAX_TRIES) return tsr_sys_raise(err, "create", *folder);
        tsr_output_next_tag(output);
    }
    output->temporary = *folder;
    return TSR_OK;
}

static bool is_folder_of_job(const folder_output *output, const struct stat *info)
{
    struct stat old;
    if (info->st_uid == geteuid()) return true;
    return output->options.begun == TSR_BEGUN_PUBLISHING && output->exists &&
           output->sys->link_stat_at(output->sys, output->parent, output->name, &old) == 0 && old.st_uid == info->st_uid;
}

/* Opens the directory in which files are written. Refuses a symbolic link, and a directory that another user created. */
static tsr_status open_work(folder_output *output, const char *folder, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = output->sys;
    const int work = tsr_sys_open(sys, output->parent, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (work < 0 && output->temporary && (errno == ENOTDIR || errno == ELOOP)) {
        output->temporary = NULL;
        return tsr_output_refuse_foreign(output, folder, err);
    }
    if (work < 0) return tsr_sys_raise(err, "open", folder);
    output->work = work;
    if (!output->temporary || (sys->stat(sys, work, &info) == 0 && is_folder_of_job(output, &info))) return TSR_OK;
    output->temporary = NULL;
    return tsr_output_refuse_foreign(output, folder, err);
}

/* Remembers the files of the old checkpoint, which permissions they give, and who owns them. */
static tsr_status look_at_old(folder_output *output, tsr_error *err)
{
    struct stat info;
    output->widest = 0;
    output->obsolete = tsr_arena_array(output->arena, output->options.obsolete_count, sizeof *output->obsolete, err);
    if (!output->obsolete) return TSR_E_NOMEM;
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        output->obsolete[i] = tsr_output_identity(output, output->options.obsolete[i].data);
        if (!tsr_output_stat_old(output, output->options.obsolete[i].data, &info) || !S_ISREG(info.st_mode)) continue;
        output->widest |= info.st_mode & 0777;
        if (output->model) continue;
        struct stat *model = tsr_arena_array(output->arena, 1, sizeof *model, err);
        if (!model) return TSR_E_NOMEM;
        *model = info;
        output->model = model;
    }
    if (!output->model) output->widest = 0777;
    return TSR_OK;
}

/* ---- opening and closing ---- */

static void output_close(tsr_output *base)
{
    folder_output *output = (folder_output *)base;
    for (uint32_t i = 0; i < output->files.count; i++) {
        if (tsr_output_file(output, i)->fd >= 0) output->sys->close(output->sys, tsr_output_file(output, i)->fd);
    }
    if (!output->published && output->options.unfinished == TSR_UNFINISHED_REMOVED) tsr_output_discard(output);
    if (output->work >= 0 && output->work != output->parent) output->sys->close(output->sys, output->work);
    if (output->parent >= 0) output->sys->close(output->sys, output->parent);
    pthread_mutex_destroy(&output->lock);
    tsr_vec_free(&output->files);
    tsr_vec_free(&output->folders);
    tsr_arena_free(output->arena);
    tsr_free(output->allocator, output, 1, sizeof *output);
}

static tsr_status make_work(folder_output *output, tsr_error *err)
{
    const char *folder = output->name;
    bool made = false;
    tsr_status status = TSR_OK;
    output->work = output->parent;
    output->number = (unsigned)getpid();
    if (output->options.tag) snprintf(output->tag, sizeof output->tag, "%s", output->options.tag);
    else tsr_output_next_tag(output);
    if (output->mode == OUTPUT_FILE) return TSR_OK;
    if (output->exists) status = look_at_old(output, err);
    if (status == TSR_OK && output->mode != OUTPUT_INTO_FOLDER) status = make_folder(output, &folder, &made, err);
    if (status == TSR_OK) status = open_work(output, folder, err);
    if (status != TSR_OK || output->options.existing == TSR_EXISTING_EITHER) return status;
    return output->mode == OUTPUT_SWAP_FOLDER ? tsr_output_check_swap(output, made, err) : TSR_OK;
}

static tsr_status make_key(folder_output *output, tsr_error *err)
{
    tsr_sum_key *key = tsr_arena_array(output->arena, 1, sizeof *key, err);
    if (!key) return TSR_E_NOMEM;
    *key = tsr_sum_key_of(output->options.tag);
    output->sums = key;
    output->cannot_copy = true;
    return TSR_OK;
}

/* Decides how the destination is written; nothing is created there yet. */
static tsr_status new_output(const tsr_sys *sys, const tsr_allocator *allocator, const char *path,
                             const tsr_folder_output_options *options, folder_output **out, tsr_error *err)
{
    folder_output *output = tsr_alloc(allocator, 1, sizeof *output, err);
    tsr_destination place;
    if (!output) return TSR_E_NOMEM;
    *output = (folder_output){
        .base = {tsr_output_create, tsr_output_write_at, tsr_output_copy_range, tsr_output_publish, output_close,
                 tsr_output_sync_all, options->generation},
        .sys = sys ? sys : &tsr_sys_posix,
        .allocator = allocator,
        .options = *options,
        .parent = -1,
        .work = -1,
        .files = tsr_vec_of(allocator, sizeof(output_file)),
        .folders = tsr_vec_of(allocator, sizeof(const char *)),
    };
    pthread_mutex_init(&output->lock, NULL);
    output->arena = tsr_arena_new(allocator, 0, err);
    tsr_status status = !output->arena       ? TSR_E_NOMEM
                        : options->is_within ? tsr_destination_within(path, &place, err)
                                             : tsr_destination_of(path, &place, err);
    if (status == TSR_OK) output->name = tsr_arena_str(output->arena, tsr_str_from(place.name), err).data;
    if (status == TSR_OK) output->parent_path = tsr_arena_str(output->arena, tsr_str_from(place.parent), err).data;
    if (status == TSR_OK && (!output->name || !output->parent_path)) status = TSR_E_NOMEM;
    if (status == TSR_OK && options->sums) status = make_key(output, err);
    if (status == TSR_OK) status = choose_mode(output, path, place.parent, err);
    if (status == TSR_OK) *out = output;
    else output_close(&output->base);
    return status;
}

tsr_status tsr_folder_output_check(const tsr_allocator *allocator, const char *path,
                                   const tsr_folder_output_options *options, tsr_error *err)
{
    folder_output *output;
    TSR_TRY(new_output(NULL, allocator, path, options, &output, err));
    output_close(&output->base);
    return TSR_OK;
}

tsr_status tsr_folder_output_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path,
                                  const tsr_folder_output_options *options, tsr_output **out, tsr_error *err)
{
    folder_output *output;
    TSR_TRY(new_output(sys, allocator, path, options, &output, err));
    const tsr_status status = make_work(output, err);
    if (status == TSR_OK) *out = &output->base;
    else output_close(&output->base);
    return status;
}
