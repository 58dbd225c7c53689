/* See folder_output.h. */
#include "publish/folder_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/destination.h"
#include "publish/saves.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#define JOB TSR_STR(TSR_JOURNAL_MAGIC "a save of files by ranks\n")

struct tsr_rank_files {
    tsr_rank_files_request request;
    tsr_sys unsynced; /* the calls, if nothing is waited for */
    tsr_arena *arena;
    tsr_journals journals;
    tsr_journal *journal;
    tsr_output *output;
    bool is_within; /* everything is made in the directory, not next to it */
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
};

static int do_not_sync(const tsr_sys *sys, int fd)
{
    (void)sys, (void)fd;
    return 0;
}

static void name_of_folder(const char *name, const char *tag, char folder[NAME_MAX + 64])
{
    char stem[TSR_STEM_SIZE + 1];
    snprintf(folder, NAME_MAX + 64, ".%s.tessera-%s", tsr_stem_of(name, stem), tag);
}

/* Whether new files are written to the directory itself: it is a mount point, or the directory that holds it is not writable. One that
 * does not exist yet will be made. */
static bool is_within(const tsr_sys *sys, const tsr_destination *place, const char *path)
{
    struct stat info;
    if (!sys) sys = &tsr_sys_posix;
    if (sys->stat_at(sys, AT_FDCWD, path, &info) != 0) return false;
    if (faccessat(AT_FDCWD, place->parent, R_OK | W_OK | X_OK, AT_EACCESS) != 0) return errno == EACCES || errno == EROFS;
    return !tsr_is_one_mount(sys, AT_FDCWD, place->parent, AT_FDCWD, path);
}

static tsr_status place_of(const tsr_sys *sys, const char *path, tsr_destination *out, bool *within, tsr_error *err)
{
    tsr_destination inner;
    TSR_TRY(tsr_destination_of(path, out, err));
    TSR_TRY(tsr_destination_within(path, &inner, err));
    *within = is_within(sys, out, inner.parent);
    if (*within) *out = inner;
    return TSR_OK;
}

tsr_status tsr_rank_files_folder(const char *path, char folder[PATH_MAX], tsr_error *err)
{
    tsr_destination place;
    bool within;
    char tag[TSR_JOURNAL_TAG_SIZE + 1], name[NAME_MAX + 64];
    TSR_TRY(place_of(NULL, path, &place, &within, err));
    tsr_journal_tag(JOB, tag);
    name_of_folder(place.name, tag, name);
    const int size = snprintf(folder, PATH_MAX, "%s/%s", place.parent, name);
    TSR_FAIL_IF(size >= PATH_MAX, err, TSR_E_USAGE, "the name '%s' is too long", path);
    return TSR_OK;
}

static tsr_status open_journals(const tsr_rank_files_request *request, tsr_journals *out, bool *within, tsr_error *err)
{
    tsr_destination place;
    *out = (tsr_journals){.folder = -1, .held = -1};
    TSR_TRY(place_of(request->sys, request->path, &place, within, err));
    return tsr_journals_open_at(request->sys, &tsr_allocator_libc, &place, out, err);
}

/* `rank` is from 0; the coordinator's journal follows those of all ranks. */
static tsr_status begin_journal(const tsr_journals *journals, const char *tag, tsr_journal_share share,
                                tsr_journal_files files, tsr_journal **out, tsr_error *err)
{
    tsr_str text;
    tsr_arena *arena = tsr_arena_new(journals->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_journal_text(arena, JOB, 0, files, &text, err);
    if (status == TSR_OK) status = tsr_journal_begin(journals, tag, share, text, out, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_rank_files_journal(const tsr_rank_files_request *request, uint64_t rank, tsr_journal_files files,
                                  tsr_error *err)
{
    tsr_journals journals;
    tsr_journal *journal = NULL;
    bool within;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_journal_tag(JOB, tag);
    tsr_status status = open_journals(request, &journals, &within, err);
    if (status == TSR_OK)
        status =
            begin_journal(&journals, tag, (tsr_journal_share){rank + 1, request->ranks + 1, true}, files, &journal, err);
    tsr_journal_close(journal);
    tsr_journals_close(&journals);
    return status;
}

static tsr_status open_files(tsr_rank_files *f, tsr_error *err)
{
    uint64_t cleared;
    tsr_journal_tag(JOB, f->tag);
    TSR_TRY(open_journals(&f->request, &f->journals, &f->is_within, err));
    TSR_TRY(tsr_journals_hold(&f->journals, f->request.path, &cleared, err));
    TSR_FAIL_IF(f->journals.held < 0, err, TSR_E_NOT_FOUND, "the directory is gone");
    return tsr_journals_clear(&f->journals, f->request.path, f->request.warn, f->request.ctx, err);
}

tsr_status tsr_rank_files_open(const tsr_rank_files_request *request, tsr_rank_files **out, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    tsr_rank_files *f = arena ? TSR_ARENA_NEW(arena, tsr_rank_files, err) : NULL;
    if (!f) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *f = (tsr_rank_files){.request = *request, .arena = arena};
    f->request.path = tsr_arena_str(arena, tsr_str_from(request->path), err).data;
    if (!request->is_durable) {
        f->unsynced = request->sys ? *request->sys : tsr_sys_posix;
        f->unsynced.sync = do_not_sync;
        f->request.sys = &f->unsynced;
    }
    const tsr_status status = f->request.path ? open_files(f, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = f;
    else tsr_rank_files_close(f);
    return status;
}

/* Nothing of this name may be there when the journals of killed saves are gone: somebody else has made it. */
static tsr_status refuse_foreign(const tsr_rank_files *f, tsr_error *err)
{
    struct stat info;
    char name[NAME_MAX + 64];
    name_of_folder(f->journals.name, f->tag, name);
    if (f->journals.sys->link_stat_at(f->journals.sys, f->journals.folder, name, &info) != 0) return TSR_OK;
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "'%s' prevents '%s' from being written, and no save created it; move it away", name, f->request.path);
}

tsr_status tsr_rank_files_begin(tsr_rank_files *f, tsr_journal_files own, const tsr_str *replaced, size_t count,
                                tsr_error *err)
{
    tsr_str *old = tsr_arena_array(f->arena, count, sizeof *old, err);
    if (!old) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        old[i] = tsr_arena_str(f->arena, replaced[i], err);
        if (!old[i].data) return TSR_E_NOMEM;
    }
    TSR_TRY(refuse_foreign(f, err));
    const tsr_journal_share share = {f->request.ranks + 1, f->request.ranks + 1, true};
    TSR_TRY(begin_journal(&f->journals, f->tag, share, own, &f->journal, err));
    const tsr_folder_output_options options = {.is_folder = true,
                                               .existing = TSR_EXISTING_EITHER,
                                               .is_within = f->is_within,
                                               .tag = f->tag,
                                               .begun = TSR_BEGUN_JOINED,
                                               .unfinished = TSR_UNFINISHED_KEPT, /* until it is closed */
                                               .obsolete = old,
                                               .obsolete_count = count,
                                               .parent = tsr_journals_parent(&f->journals)};
    return tsr_folder_output_open(f->request.sys, &tsr_allocator_libc, f->request.path, &options, &f->output, err);
}

tsr_output *tsr_rank_files_output(tsr_rank_files *f)
{
    return f->output;
}

/* Takes up a file that a rank has written to `folder`. */
static tsr_status take_up(tsr_rank_files *f, const char *folder, tsr_str name, uint32_t *file, tsr_error *err)
{
    struct stat info;
    const tsr_str path = tsr_arena_format(f->arena, err, "%s/%.*s", folder, TSR_STR_ARG(name));
    if (!path.data) return TSR_E_NOMEM;
    if (f->journals.sys->link_stat_at(f->journals.sys, AT_FDCWD, path.data, &info) != 0)
        return tsr_sys_raise(err, "look at", path.data);
    return f->output->create(f->output, name, (uint64_t)info.st_size, file, err);
}

tsr_status tsr_rank_files_publish(tsr_rank_files *f, const tsr_str *names, size_t count, uint32_t marker, tsr_error *err)
{
    tsr_error ignored = {0}; /* what is published counts */
    tsr_vec record = tsr_vec_of(&tsr_allocator_libc, 1);
    uint32_t file, marker_file = TSR_NO_FILE;
    char folder[PATH_MAX];
    TSR_TRY(tsr_rank_files_folder(f->request.path, folder, err));
    for (size_t i = 0; i < count; i++) {
        TSR_TRY(take_up(f, folder, names[i], &file, err));
        if (i == marker) marker_file = file;
    }
    TSR_TRY(tsr_folder_output_choose(f->output, err));
    TSR_TRY(f->output->sync(f->output, err));
    tsr_status status = tsr_folder_output_record(f->output, marker_file, NULL, &record, err);
    if (status == TSR_OK)
        status = tsr_journals_publishing(&f->journals, f->tag, (tsr_str){record.items, record.count}, true, err);
    tsr_vec_free(&record);
    if (status == TSR_OK) status = f->output->publish(f->output, marker_file, err);
    if (status == TSR_OK) tsr_journals_remove(&f->journals, f->tag, NULL, &ignored);
    return status;
}

void tsr_rank_files_leave(tsr_rank_files *f)
{
    if (!f) return;
    if (f->output) f->output->close(f->output);
    tsr_journal_close(f->journal);
    tsr_journals_close(&f->journals);
    tsr_arena_free(f->arena);
}

void tsr_rank_files_close(tsr_rank_files *f)
{
    tsr_error ignored = {0};
    if (!f) return;
    if (f->output) {
        tsr_folder_output_drop(f->output);
        f->output->close(f->output);
        f->output = NULL;
    }
    if (f->journal) tsr_journals_discard(&f->journals, f->tag, &ignored); /* also ends or undoes a publication that failed */
    tsr_rank_files_leave(f);
}
