/* See changed_files.h. */
#include "cli/commands/changed_files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/program/session.h"
#include "cli/program/term.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/store_read.h"

enum { MOST_LEVELS = 4 }; /* directories that are tried; no form has more levels */

/* Whether files of this format are a checkpoint only together. Ranks whose plain tensors differ may also be different models
 * that are in one directory. */
static bool needs_directory(tsr_format format)
{
    return format != TSR_FORMAT_SAFETENSORS && format != TSR_FORMAT_TORCH_ZIP && format != TSR_FORMAT_TORCH_LEGACY &&
           format != TSR_FORMAT_SHARDS;
}

/* Whether the opened directory is a checkpoint that the file `name` in it, or below it, belongs to. */
static tsr_status contains(cli_session *session, const char *name, bool *out, tsr_error *err)
{
    const char *marker;
    *out = false;
    if (!needs_directory(session->catalog->format) || tsr_checkpoint_step(session->checkpoint, &marker).data) return TSR_OK;
    if (!strchr(name, '/')) {
        *out = true;
        return TSR_OK;
    }
    bool *used = calloc(session->store->file_count + 1, sizeof *used);
    if (!used) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    const uint32_t file = tsr_store_find(session->store, tsr_str_from(name));
    tsr_checkpoint_used_files(session->checkpoint, used);
    *out = file != TSR_NO_FILE && used[file];
    free(used);
    return TSR_OK;
}

static bool opens(cli *program, const char *path, cli_session *session)
{
    tsr_error ignored = {0};
    const tsr_open_options any = {.purpose = TSR_FOR_FINDINGS};
    return cli_open_apart(program, path, &any, session, &ignored) == TSR_OK;
}

/* The checkpoint of several files that the file belongs to: the outermost directory; NULL if there is none. */
static tsr_status find_directory(cli *program, const char *file, tsr_arena *arena, const char **out, tsr_error *err)
{
    size_t end = strlen(file);
    *out = NULL;
    for (int level = 0; level < MOST_LEVELS && end; level++, end -= end > 0) {
        bool is_in = false;
        cli_session session;
        while (end && file[end - 1] != '/') end--; /* file[0, end) is a directory with its slash */
        const tsr_str directory = end ? tsr_arena_str(arena, (tsr_str){file, end > 1 ? end - 1 : end}, err) : TSR_STR(".");
        if (!directory.data) return TSR_E_NOMEM;
        tsr_status status = TSR_OK;
        if (opens(program, directory.data, &session)) status = contains(&session, file + end, &is_in, err);
        cli_close(&session);
        if (status != TSR_OK) return status;
        if (is_in) *out = directory.data;
    }
    return TSR_OK;
}

/* What the file means to a directory that does not open as a checkpoint, or to none. */
static tsr_file_role role_of(cli *program, const char *directory, const char *name)
{
    tsr_error ignored = {0};
    tsr_store *store = NULL;
    tsr_file_role role = TSR_ROLE_NONE;
    if (tsr_path_store_open(cli_host(program), directory, &store, &ignored) != TSR_OK) return TSR_ROLE_NONE;
    const uint32_t file = tsr_store_find(store, tsr_str_from(name));
    if (file == TSR_NO_FILE || tsr_store_file_role(store, file, &role, &ignored) != TSR_OK) role = TSR_ROLE_NONE;
    store->close(store);
    return role;
}

/* *out is NULL if the file belongs to no checkpoint. */
static tsr_status find_checkpoint(cli *program, const char *file, tsr_arena *arena, const char **out, tsr_error *err)
{
    cli_session session;
    tsr_status status = find_directory(program, file, arena, out, err);
    if (status != TSR_OK || *out) return status;
    const bool is_alone = opens(program, file, &session);
    cli_close(&session);
    if (is_alone || access(file, F_OK) != 0) {
        *out = file;
        return TSR_OK;
    }
    /* What cannot be opened is reported by validate: the file, or the directory that is nothing without this file. */
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    const tsr_str directory =
        slash ? tsr_arena_str(arena, (tsr_str){file, slash > file ? (size_t)(slash - file) : 1}, err) : TSR_STR(".");
    if (!directory.data) return TSR_E_NOMEM;
    const tsr_file_role role = role_of(program, directory.data, name);
    if (role == TSR_ROLE_MARKER || (role == TSR_ROLE_TENSORS && tsr_str_ends(tsr_str_from(name), TSR_STR(".distcp"))))
        *out = directory.data;
    else if (role == TSR_ROLE_TENSORS) *out = file;
    return TSR_OK;
}

static bool has(tsr_texts list, const char *path)
{
    for (size_t i = 0; i < list.count; i++) {
        if (strcmp(list.items[i], path) == 0) return true;
    }
    return false;
}

tsr_status cli_list_changed(cli *program, tsr_texts files, tsr_arena *arena, tsr_texts *out, tsr_error *err)
{
    *out = (tsr_texts){tsr_arena_array(arena, files.count + 1, sizeof *out->items, err), 0};
    if (!out->items) return TSR_E_NOMEM;
    for (size_t i = 0; i < files.count; i++) {
        const char *path;
        const tsr_status status = find_checkpoint(program, files.items[i], arena, &path, err);
        if (status != TSR_OK) return status;
        if (!path) cli_note(program, "'%s' does not belong to a checkpoint", files.items[i]);
        else if (!has(*out, path)) out->items[out->count++] = path;
    }
    return TSR_OK;
}
