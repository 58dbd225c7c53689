/* Checkpoints that Python writes, to directories (publish/saves.h) and to object stores. There every rank sends its own file, and hands
 * over what is needed to complete its upload. One process takes all of that over and publishes. Closing removes what was not
 * published. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/checksums.h"
#include "publish/saves.h"
#include "session.h"
#include "tessera/convert.h"
#include "tessera/output.h"
#include "tessera/path.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/dcp_item.h"
#include "tessera/sys/end_sum.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/try.h"

/* The role of this process. Mirrored in _saving.py. */
enum { SENDS, PUBLISHES, REPLACES };

typedef struct saving {
    tsr_native_host native;
    tsr_arena *arena;
    tsr_output *output;
} saving;

/* Shards to be joined into files. Mirrored in _saving.py. */
typedef struct joining {
    const char *shards; /* their directory or its URL, which has nothing else */
    const char *files;  /* names in the order in which they are written; each ends with a NUL, like those of the tensors */
    size_t files_size;
    const uint64_t *bytes; /* of the tensors in each file */
    const char *tensors;   /* all that the shards have */
    size_t tensors_size;
    const uint32_t *file_of; /* the number of each one's file */
    const int *stop;         /* TSR_E_CANCELLED when this is set */
    uint32_t threads;        /* 0: one per processor */
    uint8_t unsummed;        /* the files state no checksum */
} joining;

/* A tsr_dcp_pickled. Mirrored in _archive.py. */
typedef struct item {
    const char *pickle;
    size_t pickle_size;
    const uint64_t *byte_lengths;
    const uint32_t *crcs;
    uint32_t storage_count;
    uint8_t unsummed;
} item;

EXPORT saving *tsr_python_saving_open(const char *url, uint32_t kind, const char *marker, tsr_error *err);
EXPORT void tsr_python_saving_close(saving *s);
EXPORT tsr_status tsr_python_saving_names(saving *s, tsr_write_fn *write, void *ctx, tsr_error *err);
EXPORT tsr_status tsr_python_saving_create(saving *s, const char *name, uint64_t expected, tsr_error *err);
EXPORT tsr_status tsr_python_saving_write(saving *s, uint64_t offset, const void *data, size_t size, tsr_error *err);
EXPORT tsr_status tsr_python_saving_hand_over(saving *s, uint64_t size, tsr_write_fn *write, void *ctx, tsr_error *err);
EXPORT void tsr_python_saving_keep(saving *s);
EXPORT tsr_status tsr_python_saving_take_over(saving *s, const char *name, uint64_t size, const char *note, size_t note_size,
                                              tsr_error *err);
EXPORT tsr_status tsr_python_saving_join(saving *s, const joining *from, tsr_error *err);
EXPORT tsr_status tsr_python_saving_complete(saving *s, tsr_error *err);
EXPORT tsr_status tsr_python_saving_publish(saving *s, const char *marker, const void *data, size_t size, tsr_error *err);
EXPORT tsr_status tsr_python_saving_put_note(saving *s, const char *name, const char *text, tsr_error *err);
EXPORT tsr_status tsr_python_saving_read_note(saving *s, const char *name, tsr_write_fn *write, void *ctx, tsr_error *err);
EXPORT tsr_status tsr_python_saving_remove(saving *s, const char *name, tsr_error *err);
EXPORT tsr_status tsr_python_saving_give_up(saving *s, tsr_error *err);
EXPORT uint32_t tsr_python_crc32(uint32_t crc, const void *data, size_t size);
EXPORT tsr_status tsr_python_item_piece(const item *of, uint32_t at, tsr_write_fn *write, void *ctx, tsr_error *err);
EXPORT tsr_status tsr_python_end_sum(const void *data, size_t size, char sum[TSR_END_SUM_SIZE], tsr_error *err);

/* ---- an open output ---- */

void tsr_python_saving_close(saving *s)
{
    if (!s) return;
    if (s->output) s->output->close(s->output);
    tsr_arena_free(s->arena);
    tsr_native_host_close(&s->native);
    free(s);
}

saving *tsr_python_saving_open(const char *url, uint32_t kind, const char *marker, tsr_error *err)
{
    tsr_object_output_options options = {
        .is_directory = true, .overwrite = kind == REPLACES, .only_sends = kind == SENDS, .owns_taken = true};
    saving *s = calloc(1, sizeof *s);
    if (!s) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return NULL;
    }
    tsr_native_host_open(&s->native, 0);
    s->arena = tsr_arena_new(s->native.host.allocator, 0, err);
    if (s->arena) options.only_marker = tsr_arena_str(s->arena, tsr_str_from(marker), err);
    if (options.only_marker.data && tsr_object_output_open(&s->native.host, url, &options, &s->output, err) == TSR_OK)
        return s;
    tsr_python_saving_close(s);
    return NULL;
}

typedef struct writing {
    tsr_write_fn *write;
    void *ctx;
} writing;

static tsr_status write_name(void *ctx, tsr_str name, tsr_error *err)
{
    const writing *to = ctx;
    const tsr_status status = to->write(to->ctx, name.data, name.size, err);
    return status == TSR_OK ? to->write(to->ctx, "", 1, err) : status;
}

/* Writes the names of all objects that existed, each followed by a NUL. */
tsr_status tsr_python_saving_names(saving *s, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    writing to = {write, ctx};
    return tsr_object_output_before(s->output, write_name, &to, err);
}

/* ---- a rank's file ---- */

tsr_status tsr_python_saving_create(saving *s, const char *name, uint64_t expected, tsr_error *err)
{
    uint32_t file;
    return tsr_object_output_create_stream(s->output, tsr_str_from(name), expected, &file, err);
}

tsr_status tsr_python_saving_write(saving *s, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    return s->output->write_at(s->output, 0, offset, data, size, err);
}

/* Sends the remaining bytes, and writes what the publishing process needs. */
tsr_status tsr_python_saving_hand_over(saving *s, uint64_t size, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    const bool kept[] = {true};
    tsr_vec note = tsr_vec_of(s->native.host.allocator, 1);
    tsr_status status = tsr_object_output_end_stream(s->output, 0, size, err);
    if (status == TSR_OK) status = tsr_object_output_hand_over(s->output, kept, 1, TSR_STR(""), &note, err);
    if (status == TSR_OK) status = write(ctx, note.items, note.count, err);
    tsr_vec_free(&note);
    return status;
}

/* Makes closing leave the upload alone, because it has been completed. */
void tsr_python_saving_keep(saving *s)
{
    tsr_object_output_keep_uploads(s->output);
}

/* ---- publishing ---- */

tsr_status tsr_python_saving_take_over(saving *s, const char *name, uint64_t size, const char *note, size_t note_size,
                                       tsr_error *err)
{
    tsr_str records;
    uint32_t file;
    TSR_TRY(s->output->create(s->output, tsr_str_from(name), size, &file, err));
    return tsr_object_output_take_over(s->output, (tsr_str){note, note_size}, &records, err);
}

/* Splits names each of which ends with a NUL. The caller frees the result. */
static tsr_str *split(const char *names, size_t size, size_t *count, tsr_error *err)
{
    tsr_str *list = malloc((size + 1) * sizeof *list); /* a name has at least its NUL */
    *count = 0;
    if (!list) tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    for (size_t at = 0; list && at < size; at += list[(*count)++].size + 1) list[*count] = tsr_str_from(names + at);
    return list;
}

static bool goes_on(void *ctx, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    return !*(const volatile int *)ctx;
}

/* Joins the shards that ranks have saved into files of whole tensors, as PyTorch's HuggingFaceStorageWriter consolidates them. */
typedef struct join_state {
    const joining *from;
    tsr_checkpoint *shards;
    tsr_map *file_of; /* the number of each tensor's file, by name */
    uint32_t file;    /* the one that is written */
} join_state;

static bool is_in_file(void *ctx, tsr_str name)
{
    const join_state *j = ctx;
    return tsr_map_get(j->file_of, name, UINT32_MAX) == j->file;
}

static tsr_status write_file(join_state *j, const char *name, tsr_output *output, tsr_arena *arena, tsr_error *err)
{
    tsr_conversion written;
    const tsr_progress progress = {goes_on, (void *)(uintptr_t)j->from->stop};
    tsr_convert_options options = TSR_OPTIONS(tsr_convert_options);
    options.to = TSR_TO_SAFETENSORS;
    options.want = is_in_file;
    options.want_ctx = j;
    options.file_name = tsr_str_from(name);
    options.no_checksums = j->from->unsummed;
    options.progress = &progress;
    TSR_TRY(tsr_convert(j->shards, output, &options, arena, &written, err));
    TSR_FAIL_IF(written.byte_total != j->from->bytes[j->file], err, TSR_E_FORMAT,
                "the shards of '%s' have %" PRIu64 " bytes of tensors instead of %" PRIu64, name, written.byte_total,
                j->from->bytes[j->file]);
    return TSR_OK;
}

static tsr_status write_files(join_state *j, tsr_output *output, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_status status = TSR_OK;
    const char *name = j->from->files;
    for (j->file = 0; name < j->from->files + j->from->files_size && status == TSR_OK; j->file++) {
        tsr_arena *arena = tsr_arena_new(allocator, 0, err);
        status = arena ? write_file(j, name, output, arena, err) : TSR_E_NOMEM;
        tsr_arena_free(arena);
        name += strlen(name) + 1;
    }
    return status;
}

static tsr_status list_tensors(join_state *j, const tsr_allocator *allocator, tsr_error *err)
{
    const uint32_t *file = j->from->file_of;
    const char *name = j->from->tensors;
    j->file_of = tsr_map_new(allocator, 0, err);
    if (!j->file_of) return TSR_E_NOMEM;
    for (; name < j->from->tensors + j->from->tensors_size; name += strlen(name) + 1)
        TSR_TRY(tsr_map_put(j->file_of, tsr_str_from(name), *file++, NULL, NULL, err));
    return TSR_OK;
}

static tsr_status join(const joining *from, tsr_output *output, tsr_error *err)
{
    tsr_native_host native;
    join_state j = {.from = from};
    tsr_native_host_open(&native, from->threads);
    tsr_status status = list_tensors(&j, native.host.allocator, err);
    if (status == TSR_OK) status = tsr_path_open(from->shards, &native.host, NULL, &j.shards, err);
    if (status == TSR_OK) status = write_files(&j, output, native.host.allocator, err);
    tsr_path_close(j.shards);
    tsr_map_free(j.file_of);
    tsr_native_host_close(&native);
    return status;
}

tsr_status tsr_python_saving_join(saving *s, const joining *from, tsr_error *err)
{
    return join(from, s->output, err);
}

/* Makes what was taken over visible. There is no marker among it. */
tsr_status tsr_python_saving_complete(saving *s, tsr_error *err)
{
    return s->output->publish(s->output, TSR_NO_FILE, err);
}

tsr_status tsr_python_saving_publish(saving *s, const char *marker, const void *data, size_t size, tsr_error *err)
{
    uint32_t file;
    TSR_TRY(s->output->create(s->output, tsr_str_from(marker), size, &file, err));
    TSR_TRY(s->output->write_at(s->output, file, 0, data, size, err));
    return s->output->publish(s->output, file, err);
}

/* ---- other objects next to them ---- */

tsr_status tsr_python_saving_put_note(saving *s, const char *name, const char *text, tsr_error *err)
{
    return tsr_object_output_put_note(s->output, tsr_str_from(name), tsr_str_from(text), err);
}

tsr_status tsr_python_saving_read_note(saving *s, const char *name, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    tsr_str text;
    TSR_TRY(tsr_object_output_read_note(s->output, tsr_str_from(name), s->arena, &text, err));
    return write(ctx, text.data, text.size, err);
}

tsr_status tsr_python_saving_remove(saving *s, const char *name, tsr_error *err)
{
    return tsr_object_output_remove(s->output, tsr_str_from(name), err);
}

/* Takes a random token off the front of a name. */
static bool take_token(tsr_str *name)
{
    enum { DIGITS = 16 };
    if (name->size < DIGITS) return false;
    for (size_t i = 0; i < DIGITS; i++)
        if (!isxdigit((unsigned char)name->data[i]) || isupper((unsigned char)name->data[i])) return false;
    *name = tsr_str_after(*name, DIGITS);
    return true;
}

static bool take_number(tsr_str *name)
{
    size_t digits = 0;
    while (digits < name->size && isdigit((unsigned char)name->data[digits])) digits++;
    *name = tsr_str_after(*name, digits);
    return digits > 0;
}

/* Whether a name has the form "__12_TOKEN.distcp", "model-TOKEN-00001-of-00002.safetensors" or ".tessera-save-shards/TOKEN-…", where TOKEN is
 * 16 hexadecimal digits. Only tessera.torch.StorageWriter makes such names. */
static bool is_of_a_save(tsr_str name)
{
    if (tsr_str_skip(&name, TSR_STR("__")))
        return take_number(&name) && tsr_str_skip(&name, TSR_STR("_")) && take_token(&name) &&
               tsr_str_equal(name, TSR_STR(".distcp"));
    if (tsr_str_skip(&name, TSR_STR(".tessera-save-shards/"))) return take_token(&name);
    return tsr_str_skip(&name, TSR_STR("model-")) && take_token(&name) && tsr_str_skip(&name, TSR_STR("-")) &&
           take_number(&name) && tsr_str_skip(&name, TSR_STR("-of-")) && take_number(&name) &&
           tsr_str_equal(name, TSR_STR(".safetensors"));
}

/* Discards uploads that interrupted saves have left. */
tsr_status tsr_python_saving_give_up(saving *s, tsr_error *err)
{
    return tsr_object_output_give_up(s->output, is_of_a_save, err);
}

/* ---- for files that Python writes into directories ---- */

uint32_t tsr_python_crc32(uint32_t crc, const void *data, size_t size)
{
    return tsr_native_crc32(crc, data, size);
}

/* See tsr_dcp_item_piece. */
tsr_status tsr_python_item_piece(const item *of, uint32_t at, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default(), .crc32 = tsr_native_crc32};
    const tsr_dcp_pickled pickled = {.pickle = {of->pickle, of->pickle_size},
                                     .byte_lengths = of->byte_lengths,
                                     .crcs = of->crcs,
                                     .storage_count = of->storage_count,
                                     .unsummed = of->unsummed != 0};
    tsr_vec piece = tsr_vec_of(host.allocator, 1);
    tsr_status status = tsr_dcp_item_piece(&pickled, at, &host, &piece, err);
    if (status == TSR_OK) status = write(ctx, piece.items, piece.count, err);
    tsr_vec_free(&piece);
    return status;
}

/* The checksum of a document, which follows it. */
tsr_status tsr_python_end_sum(const void *data, size_t size, char sum[TSR_END_SUM_SIZE], tsr_error *err)
{
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = tsr_vec_append(&text, data, size, err);
    if (status == TSR_OK) status = tsr_end_sum_append(&text, NULL, err);
    if (status == TSR_OK) memcpy(sum, (char *)text.items + size, TSR_END_SUM_SIZE);
    tsr_vec_free(&text);
    return status;
}

/* ---- directories ---- */

EXPORT tsr_save *tsr_python_save_open(const char *path, int64_t rank, int durable, tsr_write_fn *warn, tsr_error *err);
EXPORT tsr_status tsr_python_save_begin(tsr_save *save, const char *marker, const char *names, size_t size, tsr_error *err);
EXPORT tsr_status tsr_python_save_unchanged(const tsr_save *save, tsr_error *err);
EXPORT tsr_status tsr_python_save_record(const tsr_save *save, const char *token, const char *names, size_t size,
                                         tsr_error *err);
EXPORT tsr_status tsr_python_save_end(const tsr_save *save, const char *token, const char *names, size_t size,
                                      tsr_error *err);
EXPORT void tsr_python_save_close(tsr_save *save);
EXPORT void tsr_python_after_fork(void);
EXPORT tsr_status tsr_python_save_journal(const char *directory, const char *token, const char *names, size_t size,
                                          int durable, tsr_error *err);

static void warn(void *ctx, const char *text)
{
    tsr_error ignored = {0};
    (*(tsr_write_fn **)ctx)(NULL, text, strlen(text), &ignored);
}

/* `warn` is called before this returns, with one warning at a time. */
tsr_save *tsr_python_save_open(const char *path, int64_t rank, int durable, tsr_write_fn *write, tsr_error *err)
{
    const tsr_save_request options = {.path = path, .rank = rank, .is_durable = durable, .warn = warn, .ctx = &write};
    tsr_save *save = NULL;
    return tsr_save_open(&options, &save, err) == TSR_OK ? save : NULL;
}

tsr_status tsr_python_save_begin(tsr_save *save, const char *marker, const char *names, size_t size, tsr_error *err)
{
    size_t count;
    tsr_str *list = split(names, size, &count, err);
    const tsr_status status = list ? tsr_save_begin(save, marker, list, count, err) : TSR_E_NOMEM;
    free(list);
    return status;
}

tsr_status tsr_python_save_unchanged(const tsr_save *save, tsr_error *err)
{
    return tsr_save_unchanged(save, err);
}

tsr_status tsr_python_save_record(const tsr_save *save, const char *token, const char *names, size_t size, tsr_error *err)
{
    size_t count;
    tsr_str *list = split(names, size, &count, err);
    const tsr_status status = list ? tsr_save_record(save, token, list, count, err) : TSR_E_NOMEM;
    free(list);
    return status;
}

tsr_status tsr_python_save_end(const tsr_save *save, const char *token, const char *names, size_t size, tsr_error *err)
{
    size_t count;
    tsr_str *list = split(names, size, &count, err);
    const tsr_status status = list ? tsr_save_end(save, token, list, count, err) : TSR_E_NOMEM;
    free(list);
    return status;
}

void tsr_python_save_close(tsr_save *save)
{
    tsr_save_close(save);
}

/* For a child of a fork: it gives up the locks of its parent's saves and commands. */
void tsr_python_after_fork(void)
{
    tsr_sys_forget_locks();
}

tsr_status tsr_python_save_journal(const char *directory, const char *token, const char *names, size_t size, int durable,
                                   tsr_error *err)
{
    size_t count;
    tsr_str *list = split(names, size, &count, err);
    const tsr_status status = list ? tsr_save_journal(NULL, directory, token, list, count, durable, err) : TSR_E_NOMEM;
    free(list);
    return status;
}

/* ---- files of ranks, which get their names together ---- */

EXPORT tsr_rank_files *tsr_python_files_open(const char *path, uint64_t ranks, int durable, tsr_write_fn *warn,
                                             tsr_error *err);
EXPORT tsr_status tsr_python_files_begin(tsr_rank_files *files, const char *own, size_t own_size, const char *replaced,
                                         size_t replaced_size, tsr_error *err);
EXPORT tsr_status tsr_python_files_join(tsr_rank_files *files, const joining *from, tsr_error *err);
EXPORT tsr_status tsr_python_files_publish(tsr_rank_files *files, const char *names, size_t size, uint32_t marker,
                                           tsr_error *err);
EXPORT void tsr_python_files_close(tsr_rank_files *files);
EXPORT void tsr_python_files_leave(tsr_rank_files *files);
EXPORT tsr_status tsr_python_files_directory(const char *path, char directory[PATH_MAX], tsr_error *err);
EXPORT tsr_status tsr_python_files_journal(const char *path, uint64_t ranks, uint64_t rank, const char *names, size_t size,
                                           tsr_error *err);

/* `warn` is called before this returns, with one warning at a time. */
tsr_rank_files *tsr_python_files_open(const char *path, uint64_t ranks, int durable, tsr_write_fn *write, tsr_error *err)
{
    const tsr_rank_files_request request = {
        .path = path, .ranks = ranks, .is_durable = durable, .warn = warn, .ctx = &write};
    tsr_rank_files *files = NULL;
    return tsr_rank_files_open(&request, &files, err) == TSR_OK ? files : NULL;
}

tsr_status tsr_python_files_begin(tsr_rank_files *files, const char *own, size_t own_size, const char *replaced,
                                  size_t replaced_size, tsr_error *err)
{
    size_t own_count, count;
    tsr_str *own_list = split(own, own_size, &own_count, err), *list = split(replaced, replaced_size, &count, err);
    const tsr_status status = own_list && list
                                  ? tsr_rank_files_begin(files, (tsr_journal_files){own_list, own_count}, list, count, err)
                                  : TSR_E_NOMEM;
    free(own_list);
    free(list);
    return status;
}

tsr_status tsr_python_files_join(tsr_rank_files *files, const joining *from, tsr_error *err)
{
    return join(from, tsr_rank_files_output(files), err);
}

tsr_status tsr_python_files_publish(tsr_rank_files *files, const char *names, size_t size, uint32_t marker, tsr_error *err)
{
    size_t count;
    tsr_str *list = split(names, size, &count, err);
    const tsr_status status = list ? tsr_rank_files_publish(files, list, count, marker, err) : TSR_E_NOMEM;
    free(list);
    return status;
}

void tsr_python_files_close(tsr_rank_files *files)
{
    tsr_rank_files_close(files);
}

void tsr_python_files_leave(tsr_rank_files *files)
{
    tsr_rank_files_leave(files);
}

tsr_status tsr_python_files_directory(const char *path, char directory[PATH_MAX], tsr_error *err)
{
    return tsr_rank_files_directory(path, directory, err);
}

tsr_status tsr_python_files_journal(const char *path, uint64_t ranks, uint64_t rank, const char *names, size_t size,
                                    tsr_error *err)
{
    size_t count;
    const tsr_rank_files_request request = {.path = path, .ranks = ranks, .is_durable = true};
    tsr_str *list = split(names, size, &count, err);
    const tsr_status status =
        list ? tsr_rank_files_journal(&request, rank, (tsr_journal_files){list, count}, err) : TSR_E_NOMEM;
    free(list);
    return status;
}
