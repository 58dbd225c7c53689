/* The functions that Python calls through ctypes. They are flat functions over the library, so only the few structs below
 * must be known outside C. Documents and files are returned through a callback. Every function may be called from several
 * threads at the same time for different sessions; tsr_python_read also for the same one. */
#include "cli/program/cli.h"
#include "cli/program/map_options.h"
#include "io/sys.h"
#include "session.h"
#include "tessera/box.h"
#include "tessera/document_read.h"
#include "tessera/native_host.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/json.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/loadable.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/path.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"
#include "tessera/tessera.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* Which checkpoint to open, and how. Mirrored in _library.py. Texts may be NULL. */
typedef struct opening {
    const char *const *paths; /* the path of the checkpoint, followed by those of its other directories */
    size_t path_count;
    const char *part, *step;
    const char *shards;         /* name of a built-in map, or path of a document */
    tsr_str shards_text;        /* or the text of a tessera.shards/1 document */
    uint32_t threads, io_depth; /* 0: the default */
    uint32_t purpose;           /* a tsr_purpose */
    uint32_t metadata_rank;     /* as in tsr_open_options, if has_metadata_rank */
    uint8_t has_metadata_rank;
    uint8_t is_compared; /* part and step are those of the checkpoint that this one is compared with */
    uint8_t salvage, inverse, dequantize, canonical;
    const char *map;  /* name of a map, for messages */
    tsr_str map_text; /* its text; the data may be NULL where the map is a built-in one */
    const char *lora; /* path of an adapter */
} opening;

EXPORT session *tsr_python_open(const opening *what, const int *stop, tsr_error *err);
EXPORT int tsr_python_uses_shards(const session *s);
EXPORT tsr_status tsr_python_unchanged(session *s, tsr_error *err);
EXPORT void tsr_python_allow_expansion(session *s);
EXPORT const char *tsr_python_status_name(tsr_status status);

void tsr_python_close(session *s)
{
    if (!s) return;
    tsr_layers_close(&s->layers);
    tsr_path_close(s->adapter);
    tsr_path_close(s->source);
    tsr_arena_free(s->arena);
    tsr_native_host_close(&s->native);
    free(s);
}

/* Python handles a signal only after C returns. Reads therefore fail once the flag is set. */
static ssize_t read_unless_stopped(const tsr_sys *sys, int fd, void *buffer, size_t size, uint64_t offset)
{
    if (*((const session *)(const void *)sys)->stop) {
        errno = ECANCELED;
        return -1;
    }
    return tsr_sys_posix.read_at(sys, fd, buffer, size, offset);
}

/* Holes are not read, so no holes are reported once the flag is set: the read after that fails. */
static uint64_t next_unless_stopped(const tsr_sys *sys, int fd, uint64_t offset)
{
    return *((const session *)(const void *)sys)->stop ? offset : tsr_sys_posix.next_data(sys, fd, offset);
}

/* Parsing and sorting do not read, but they allocate memory all the time. Allocations therefore fail once the flag is
 * set. */
static void *resize_unless_stopped(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    if (new_size && *((const session *)ctx)->stop) return NULL;
    return tsr_allocator_libc.resize(tsr_allocator_libc.ctx, pointer, old_size, new_size);
}

session *python_session_new(uint32_t threads, const int *stop, tsr_error *err)
{
    session *s = calloc(1, sizeof *s);
    if (!s) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return NULL;
    }
    s->sys = tsr_sys_posix;
    s->sys.read_at = read_unless_stopped;
    s->sys.next_data = next_unless_stopped;
    s->stop = stop;
    s->allocator = (tsr_allocator){resize_unless_stopped, s};
    tsr_native_host_open(&s->native, threads);
    s->native.host.allocator = &s->allocator;
    return s;
}

static tsr_status load_shards(session *s, const opening *what, tsr_error *err)
{
    const tsr_host *host = &s->native.host;
    if (!what->shards && !what->shards_text.data) return TSR_OK;
    if (what->shards_text.data) {
        const tsr_status status = tsr_shards_read(what->shards_text, host, s->arena, &s->shards, err);
        if (status != TSR_OK) tsr_error_context(err, "the map of shards");
        return status;
    }
    return tsr_path_load_shards(what->shards, host, s->arena, &s->shards, err);
}

static tsr_status open_paths(session *s, const opening *what, tsr_error *err)
{
    const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = &s->native.host, .sys = &s->sys};
    const tsr_open_options options = {.purpose = (tsr_purpose)what->purpose,
                                      .part = what->part ? tsr_str_from(what->part) : (tsr_str){NULL, 0},
                                      .step = what->step ? tsr_str_from(what->step) : (tsr_str){NULL, 0},
                                      .salvage = what->salvage,
                                      .shards = what->shards || what->shards_text.data ? &s->shards : NULL,
                                      .metadata_rank = what->has_metadata_rank ? &what->metadata_rank : NULL};
    if (what->is_compared) return tsr_path_open_compared(&opener, what->paths[0], &options, &s->source, err);
    return tsr_paths_open_by(&opener, what->paths, what->path_count, &options, &s->source, err);
}

/* Opens what lies over the source. */
static tsr_status open_layers(session *s, const opening *what, tsr_error *err)
{
    tsr_layering wanted = {.options = &s->options, .map = what->map_text, .map_called = what->map};
    s->options.inverse = what->inverse;
    s->options.dequantize = what->dequantize;
    s->options.canonical = what->canonical;
    if (what->map && !wanted.map.data) {
        wanted.map = tsr_mapping_builtin(tsr_str_from(what->map));
        if (!wanted.map.size) return tsr_mapping_unknown(tsr_str_from(what->map), err);
    }
    if (wanted.map.data) wanted.map = tsr_arena_str(s->arena, wanted.map, err);
    if (what->map && !wanted.map.data) return TSR_E_NOMEM;
    if (what->lora) {
        const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = &s->native.host, .sys = &s->sys};
        const tsr_status status =
            tsr_paths_open_by(&opener, &what->lora, 1, &(tsr_open_options){.selects = NULL}, &s->adapter, err);
        if (status != TSR_OK) tsr_error_context(err, "lora");
        TSR_TRY(status);
        wanted.adapter = s->adapter;
        wanted.adapter_name = tsr_arena_str(s->arena, tsr_str_from(what->lora), err);
        if (!wanted.adapter_name.data) return TSR_E_NOMEM;
    }
    return tsr_layers_open(&s->layers, &wanted, s->arena, err);
}

/* `stop` belongs to the caller until close. While it is not 0, reads fail with TSR_E_CANCELLED, and all other work soon with
 * TSR_E_NOMEM; the caller knows the reason. `what` need only live during the call. */
session *tsr_python_open(const opening *what, const int *stop, tsr_error *err)
{
    session *s = python_session_new(what->threads, stop, err);
    if (!s) return NULL;
    if (what->io_depth) s->native.host.io_depth = what->io_depth;
    s->arena = tsr_arena_new(s->native.host.allocator, (size_t)s->native.host.limits.memory_bytes, err);
    tsr_status status = s->arena ? load_shards(s, what, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_paths(s, what, err);
    s->layers.top = s->source;
    if (status == TSR_OK) status = open_layers(s, what, err);
    s->checkpoint = s->layers.top;
    if (status == TSR_OK) return s;
    tsr_python_close(s);
    return NULL;
}

int tsr_python_uses_shards(const session *s)
{
    return tsr_checkpoint_joined_ranks(s->source) != 0;
}

void tsr_python_allow_expansion(session *s)
{
    s->native.host.limits.repetition = UINT64_MAX;
}

tsr_status tsr_python_unchanged(session *s, tsr_error *err)
{
    return tsr_directory_store_unchanged(tsr_checkpoint_store(s->source), err);
}

const char *tsr_python_status_name(tsr_status status)
{
    return tsr_status_name(status);
}

/* ---- files ---- */

EXPORT tsr_status tsr_python_own_files(session *s, tsr_write_fn *write, void *ctx, tsr_error *err);

/* Writes the names of the files that belong to the checkpoint according to its own lists, each followed by a NUL. */
tsr_status tsr_python_own_files(session *s, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    const tsr_store *store = tsr_checkpoint_store(s->source);
    bool *owned = calloc(store->file_count ? store->file_count : 1, sizeof *owned);
    if (!owned) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    tsr_status status = tsr_checkpoint_own_files(s->source, owned, err);
    for (uint32_t f = 0; f < store->file_count && status == TSR_OK; f++) {
        if (!owned[f]) continue;
        status = write(ctx, store->files[f].name.data, store->files[f].name.size, err);
        if (status == TSR_OK) status = write(ctx, "", 1, err);
    }
    free(owned);
    return status;
}

EXPORT tsr_status tsr_python_file(session *s, const char *name, tsr_write_fn *write, void *ctx, tsr_error *err);

/* Writes the bytes of a file of the checkpoint. */
tsr_status tsr_python_file(session *s, const char *name, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    tsr_bytes bytes;
    tsr_store *store = tsr_checkpoint_store(s->source);
    const uint32_t file = tsr_store_find(store, tsr_str_from(name));
    TSR_FAIL_IF(file == TSR_NO_FILE, err, TSR_E_NOT_FOUND, "there is no file '%s'", name);
    TSR_TRY(tsr_range_load(tsr_whole_file(store, file), &s->native.host, &bytes, err));
    const tsr_status status = write(ctx, bytes.data.data, bytes.data.size, err);
    tsr_bytes_free(&bytes);
    return status;
}

EXPORT tsr_status tsr_python_warnings(session *s, tsr_write_fn *write, void *ctx, tsr_error *err);

/* Writes what everyone who uses the values should know, each text followed by a NUL. */
tsr_status tsr_python_warnings(session *s, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    tsr_vec warnings = tsr_vec_of(&s->allocator, sizeof(tsr_str));
    tsr_arena *arena = tsr_arena_new(&s->allocator, 0, err);
    tsr_status status = arena ? tsr_opening_warnings(s->source, arena, &warnings, err) : TSR_E_NOMEM;
    for (size_t i = 0; i < warnings.count && status == TSR_OK; i++) {
        const tsr_str *text = (const tsr_str *)warnings.items + i;
        status = write(ctx, text->data, text->size, err);
        if (status == TSR_OK) status = write(ctx, "", 1, err);
    }
    tsr_vec_free(&warnings);
    tsr_arena_free(arena);
    return status;
}

/* ---- the catalog ---- */

/* An entry of the catalog. Mirrored in _library.py. The elements of a float4 tensor are counted in pairs, as in torch. */
typedef struct entry_info {
    tsr_str fqn;
    tsr_str type;
    const char *kind;
    const char *dtype;
    uint64_t shape[TSR_MAX_NDIM];
    uint64_t bytes;
    uint64_t chunks;
    uint32_t ndim;
    uint32_t path_length;
    uint8_t requires_grad;
    uint8_t has_copies; /* several ranks have saved the same elements, and those of the lowest rank are read */
} entry_info;

EXPORT int tsr_python_take_store_warning(char *out, size_t size);
EXPORT int tsr_python_matches(const char *glob, size_t glob_size, const char *name, size_t name_size);
EXPORT const char *tsr_python_format(const session *s);
EXPORT uint64_t tsr_python_count(const session *s);
EXPORT void tsr_python_entry(const session *s, uint64_t index, entry_info *out);
EXPORT void tsr_python_chunk(const session *s, uint64_t index, uint64_t chunk, uint64_t *offsets, uint64_t *sizes);
EXPORT tsr_status tsr_python_is_tiled(const session *s, uint64_t index, uint8_t *out, tsr_error *err);
EXPORT void tsr_python_path_item(const session *s, uint64_t index, uint32_t at, path_item *out);

static const tsr_entry *entry_at(const session *s, uint64_t index)
{
    return &tsr_checkpoint_catalog(s->checkpoint)->entries[index];
}

/* See tsr_object_store_take_warning. */
int tsr_python_take_store_warning(char *out, size_t size)
{
    return tsr_object_store_take_warning(out, size);
}

/* Whether a GLOB of the command line matches a name. */
int tsr_python_matches(const char *glob, size_t glob_size, const char *name, size_t name_size)
{
    return tsr_glob_match((tsr_str){glob, glob_size}, (tsr_str){name, name_size});
}

const char *tsr_python_format(const session *s)
{
    return tsr_format_name(tsr_checkpoint_catalog(s->checkpoint)->format);
}

uint64_t tsr_python_count(const session *s)
{
    return tsr_checkpoint_catalog(s->checkpoint)->entry_count;
}

void tsr_python_entry(const session *s, uint64_t index, entry_info *out)
{
    const tsr_entry *entry = entry_at(s, index);
    tsr_dtype dtype = entry->dtype;
    *out = (entry_info){.fqn = entry->fqn,
                        .type = entry->type,
                        .kind = tsr_entry_kind_name(entry->kind),
                        .chunks = entry->chunk_count,
                        .ndim = entry->ndim,
                        .path_length = entry->path ? entry->path_length : 0,
                        .requires_grad = entry->requires_grad,
                        .has_copies = entry->replica_count != 0};
    for (uint32_t d = 0; d < entry->ndim && d < TSR_MAX_NDIM; d++) out->shape[d] = entry->shape[d];
    if (entry->ndim) tsr_dtype_pack(&dtype, &out->shape[entry->ndim - 1]);
    out->dtype = tsr_dtype_describe(dtype)->name;
    if (entry->kind == TSR_ENTRY_TENSOR) tsr_tensor_bytes(entry, &out->bytes, NULL);
}

void tsr_python_chunk(const session *s, uint64_t index, uint64_t chunk, uint64_t *offsets, uint64_t *sizes)
{
    const tsr_entry *entry = entry_at(s, index);
    for (uint32_t d = 0; d < entry->ndim; d++) {
        offsets[d] = entry->chunks[chunk].offsets[d];
        sizes[d] = entry->chunks[chunk].sizes[d];
    }
}

/* Whether every element of a tensor is in exactly one chunk. */
tsr_status tsr_python_is_tiled(const session *s, uint64_t index, uint8_t *out, tsr_error *err)
{
    const tsr_entry *entry = entry_at(s, index);
    tsr_tiling tiling;
    TSR_TRY(tsr_tiling_check(&s->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count,
                             &tiling, err));
    *out = tiling.exact;
    return TSR_OK;
}

void tsr_python_path_item(const session *s, uint64_t index, uint32_t at, path_item *out)
{
    const tsr_path_item *item = &entry_at(s, index)->path[at];
    *out = (path_item){item->key, item->integer, item->kind};
}

/* ---- bytes ---- */

/* Reads a box of a tensor, contiguously, into memory of exactly `bytes` bytes. `offsets` and `sizes` have the `ndim` of the
 * entry. */
typedef struct read_item {
    uint64_t index;
    const uint64_t *offsets;
    const uint64_t *sizes;
    void *buffer;
    uint64_t bytes;
} read_item;

typedef struct piece { /* rows of an item, so that several threads can share large items */
    const read_item *item;
    uint64_t row, rows;
} piece;

typedef struct reading {
    session *s;
    tsr_read_check *check; /* or NULL */
    const piece *pieces;
    tsr_error *errors; /* for each thread, its first error, */
    size_t *failed;    /* and the piece in which it occurred */
    size_t count;
} reading;

EXPORT tsr_status tsr_python_read(session *s, const read_item *items, size_t count, tsr_read_check *check, tsr_error *err);
/* What is read with it is compared with the CRCs that are stated; see tessera/sys/read.h. NULL: an error. */
EXPORT tsr_read_check *tsr_python_check_open(session *s, tsr_error *err);
/* Compares what was read in several calls. Closes it in any case. */
EXPORT tsr_status tsr_python_check_end(session *s, tsr_read_check *check, uint8_t compares, tsr_error *err);

enum { PIECE_LEAST = 1 << 20, PIECE_MOST = 8 << 20 };

/* Elements of float6 are not byte-aligned, so such tensors can only be read as a whole. */
static bool is_only_whole(const tsr_entry *entry)
{
    return tsr_dtype_size(entry->dtype) == 0 && entry->dtype != TSR_FLOAT4_E2M1FN;
}

static tsr_status put_tile(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    (void)err;
    memcpy((uint8_t *)ctx + byte_at, data, size);
    return TSR_OK;
}

static tsr_status read_whole(session *s, const read_item *item, tsr_error *err)
{
    const tsr_entry *entry = entry_at(s, item->index);
    tsr_host alone = s->native.host; /* a host without the pool, which is busy with the pieces */
    tsr_ring *ring = NULL;
    uint64_t bytes;
    alone.parallel_for = NULL;
    alone.threads = 1;
    tsr_status status = tsr_tensor_bytes(entry, &bytes, err);
    if (status == TSR_OK && bytes != item->bytes) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%.*s' has %" PRIu64 " bytes, but the buffer has %" PRIu64,
                         TSR_STR_ARG(entry->fqn), bytes, item->bytes);
    }
    if (status == TSR_OK) status = tsr_ring_new(&alone, 0, &ring, err);
    if (status == TSR_OK) status = tsr_stream_tensor(s->checkpoint, entry, ring, put_tile, item->buffer, err);
    tsr_ring_free(ring);
    return status;
}

static uint32_t threads_of(const session *s)
{
    return tsr_threads(tsr_checkpoint_host(s->checkpoint));
}

tsr_read_check *tsr_python_check_open(session *s, tsr_error *err)
{
    tsr_read_check *check = NULL;
    return tsr_read_check_new(s->checkpoint, threads_of(s), &check, err) == TSR_OK ? check : NULL;
}

tsr_status tsr_python_check_end(session *s, tsr_read_check *check, uint8_t compares, tsr_error *err)
{
    const tsr_status status = compares ? tsr_read_check_end(check, err) : TSR_OK;
    (void)s;
    tsr_read_check_free(check);
    return status;
}

static tsr_status read_piece(session *s, tsr_read_check *check, uint32_t thread, const piece *p, tsr_error *err)
{
    const tsr_entry *entry = entry_at(s, p->item->index);
    if (is_only_whole(entry)) return read_whole(s, p->item, err);
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM] = {0};
    memcpy(offsets, p->item->offsets, entry->ndim * sizeof *offsets);
    memcpy(sizes, p->item->sizes, entry->ndim * sizeof *sizes);
    const uint64_t row_bytes = entry->ndim && sizes[0] ? p->item->bytes / sizes[0] : p->item->bytes;
    if (entry->ndim) {
        offsets[0] += p->row;
        sizes[0] = p->rows;
    }
    const tsr_box box = {entry->ndim, offsets, sizes};
    uint8_t *to = (uint8_t *)p->item->buffer + p->row * row_bytes;
    const size_t bytes = (size_t)(entry->ndim ? p->rows * row_bytes : row_bytes);
    return check ? tsr_read_box_checked(check, thread, entry, box, to, bytes, err)
                 : tsr_read_box(s->checkpoint, entry, box, to, bytes, err);
}

/* Each thread reads every n-th piece, where n is the number of threads. */
static void read_pieces(void *arg, size_t index)
{
    reading *r = arg;
    const size_t threads = threads_of(r->s);
    for (size_t i = index; i < r->count; i += threads) {
        if (read_piece(r->s, r->check, (uint32_t)index, &r->pieces[i], &r->errors[index]) == TSR_OK) continue;
        r->failed[index] = i;
        return;
    }
}

/* Bytes of a piece: small enough that every thread has some. */
static uint64_t piece_bytes(const session *s, const read_item *items, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) total += items[i].bytes;
    const uint64_t share = total / threads_of(s);
    return share < PIECE_LEAST ? PIECE_LEAST : share > PIECE_MOST ? PIECE_MOST : share;
}

/* Every piece of a compressed item would decompress all that is before it. */
static bool is_cut(const session *s, const tsr_entry *entry)
{
    return !is_only_whole(entry) && !tsr_checkpoint_catalog(s->checkpoint)->compressed;
}

static bool cut(const session *s, const read_item *items, size_t count, tsr_vec *pieces, tsr_error *err)
{
    const uint64_t bytes = piece_bytes(s, items, count);
    for (size_t i = 0; i < count; i++) {
        const tsr_entry *entry = entry_at(s, items[i].index);
        const uint64_t rows = entry->ndim && !is_only_whole(entry) ? items[i].sizes[0] : 1;
        if (items[i].bytes == 0 || rows == 0) continue;
        const uint64_t each = is_cut(s, entry) ? bytes / (items[i].bytes / rows + 1) + 1 : rows;
        for (uint64_t row = 0; row < rows; row += each) {
            piece *p = tsr_vec_push(pieces, err);
            if (!p) return false;
            *p = (piece){&items[i], row, rows - row < each ? rows - row : each};
        }
    }
    return true;
}

tsr_status tsr_python_read(session *s, const read_item *items, size_t count, tsr_read_check *check, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(s->checkpoint);
    const size_t threads = threads_of(s);
    tsr_vec pieces = tsr_vec_of(host->allocator, sizeof(piece));
    reading r = {
        .s = s, .check = check, .errors = calloc(threads, sizeof *r.errors), .failed = calloc(threads, sizeof *r.failed)};
    tsr_status status = TSR_OK;
    if (!r.errors || !r.failed) status = tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    if (status == TSR_OK && !cut(s, items, count, &pieces, err)) status = TSR_E_NOMEM;
    if (status == TSR_OK) {
        r.pieces = pieces.items;
        r.count = pieces.count;
        tsr_parallel(host, threads < r.count ? threads : r.count, read_pieces, &r);
        const tsr_error *first = NULL;
        size_t at = SIZE_MAX;
        for (size_t t = 0; t < threads; t++) {
            if (r.errors[t].status == TSR_OK || r.failed[t] >= at) continue;
            at = r.failed[t];
            first = &r.errors[t];
        }
        if (first) {
            *err = *first;
            status = first->status;
        }
    }
    tsr_vec_free(&pieces);
    free(r.errors);
    free(r.failed);
    return status;
}

/* ---- slices and casts ---- */

EXPORT tsr_status tsr_python_slice(const char *text, size_t size, uint32_t ndim, const uint64_t *shape, tsr_slice *out,
                                   tsr_error *err);
EXPORT tsr_status tsr_python_check_cast(session *s, const uint64_t *indices, size_t count, const char *dtype,
                                        tsr_error *err);

/* Reads what is inside the brackets of FQN[SLICE]; `text` may be NULL. tsr_slice is mirrored in _library.py. */
tsr_status tsr_python_slice(const char *text, size_t size, uint32_t ndim, const uint64_t *shape, tsr_slice *out,
                            tsr_error *err)
{
    return tsr_slice_parse((tsr_str){text, size}, ndim, shape, out, err);
}

typedef struct cast {
    const session *session;
    bool *chosen; /* by the indices of the entries */
} cast;

static bool is_chosen(const void *ctx, tsr_str fqn)
{
    const cast *of = ctx;
    const tsr_entry *entry = tsr_checkpoint_entry(of->session->checkpoint, fqn);
    return entry && of->chosen[entry - tsr_checkpoint_catalog(of->session->checkpoint)->entries];
}

/* Refuses a cast of these entries that would separate quantized numbers from their scales. */
tsr_status tsr_python_check_cast(session *s, const uint64_t *indices, size_t count, const char *dtype, tsr_error *err)
{
    cast of = {s, calloc(tsr_checkpoint_catalog(s->checkpoint)->entry_count + 1, sizeof(bool))};
    const tsr_arithmetic what = {.selection = {is_chosen, &of}, .dtype = tsr_dtype_from_name(tsr_str_from(dtype))};
    if (!of.chosen) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    for (size_t i = 0; i < count; i++) of.chosen[indices[i]] = true;
    const tsr_status status = tsr_check_arithmetic(s->checkpoint, &what, err);
    free(of.chosen);
    return status;
}

/* ---- objects ---- */

EXPORT int tsr_python_is_compressed(const session *s);

int tsr_python_is_compressed(const session *s)
{
    return tsr_checkpoint_catalog(s->checkpoint)->compressed;
}

EXPORT int tsr_python_is_plain(const session *s, uint64_t index, tsr_str *foreign);
EXPORT int tsr_python_has_value(const session *s, uint64_t index);
EXPORT tsr_status tsr_python_object(session *s, uint64_t index, tsr_write_fn *write, void *ctx, tsr_error *err);

/* Whether loading the value runs only code of Python, numpy and PyTorch; otherwise `foreign` names what else, if that is known. */
int tsr_python_is_plain(const session *s, uint64_t index, tsr_str *foreign)
{
    const tsr_entry *entry = entry_at(s, index);
    return entry->kind != TSR_ENTRY_TENSOR && entry->value && tsr_value_is_data(entry->value, &s->native.host, foreign);
}

int tsr_python_has_value(const session *s, uint64_t index)
{
    return entry_at(s, index)->value != NULL;
}

/* Writes the value as a separate torch.save file. */
tsr_status tsr_python_object(session *s, uint64_t index, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    const tsr_host *host = &s->native.host;
    tsr_output *output = NULL;
    tsr_ring *ring = NULL;
    tsr_status status = tsr_output_to_memory(host->allocator, &output, err);
    if (status == TSR_OK) status = tsr_ring_new(host, 0, &ring, err);
    if (status == TSR_OK) {
        tsr_tree_file file = {.output = output, .name = TSR_STR("value"), .ring = ring};
        status = tsr_write_tree(s->checkpoint, entry_at(s, index)->value, NULL, &file, err);
    }
    if (status == TSR_OK) {
        tsr_str data = tsr_output_memory_file(output, TSR_STR("value"));
        status = write(ctx, data.data, data.size, err);
    }
    tsr_ring_free(ring);
    if (output) output->close(output);
    return status;
}

/* Commands, for Python: the functions of the command line, with their documents and messages as results. */

/* What a call of a command needs besides its request. Mirrored in _library.py. */
typedef struct call {
    tsr_write_fn *write; /* receives the document, or the report */
    void (*say)(void *ctx, cli_saying saying, const char *text, const tsr_error *err);
    void (*progress)(void *ctx, uint64_t byte_done, uint64_t byte_total); /* may be NULL */
    const int *stop;                                                      /* not 0: the call is to end soon */
    uint8_t writes; /* it makes files, and needs memory to clean up after it was stopped */
} call;

/* Returns whether the command ran. If not, the reason has been said as an error. */
EXPORT int tsr_python_call(const cli_request *request, const call *with);

int tsr_python_call(const cli_request *request, const call *with)
{
    tsr_error err = {0};
    session *s = python_session_new(0, with->stop, &err);
    if (!s) {
        with->say(NULL, CLI_SAYS_ERROR, err.message, &err);
        return 0;
    }
    const cli_caller caller = {.write = with->write,
                               .say = with->say,
                               .progress = with->progress,
                               .sys = &s->sys,
                               .allocator = with->writes ? &tsr_allocator_libc : &s->allocator,
                               .stop = with->stop};
    const int status = cli_call(request, &caller, 0);
    tsr_python_close(s);
    return status != CLI_TROUBLE;
}

/* Used by _optimizer.py: plans what a rank reads of a sharded optimizer state (tessera/sys/optim_load.h). The data is then
 * read with tsr_python_read. */

typedef struct plan {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    tsr_optim_reads plan;
} plan;

/* One read of the plan. Mirrored in _library.py. */
typedef struct planned {
    uint64_t index; /* index of the entry; UINT64_MAX: an empty dict */
    tsr_str fqn;
    tsr_str parameter;
    uint64_t storage_offsets[TSR_MAX_NDIM], dest_offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], dest_size[TSR_MAX_NDIM];
    uint32_t kind; /* a tsr_optim_read_kind */
    uint32_t path_length;
    uint32_t ndim; /* of the box described by the arrays above */
    uint8_t has_shard, is_unknown;
} planned;

/* Makes a plan. tsr_tp_slice and tsr_optim_mesh are mirrored, too. Returns NULL with the error in `err`. The plan must be
 * freed before the session. */
EXPORT plan *tsr_python_plan_optimizer(session *s, const char *key, const tsr_optim_mesh *mesh, const tsr_tp_slice *slices,
                                       size_t slice_count, tsr_error *err);
EXPORT void tsr_python_free_plan(plan *p);
EXPORT size_t tsr_python_plan_count(const plan *p);
EXPORT void tsr_python_planned(const plan *p, size_t at, planned *out);
EXPORT void tsr_python_planned_path_item(const plan *p, size_t at, uint32_t item, path_item *out);

void tsr_python_free_plan(plan *p)
{
    if (!p) return;
    tsr_arena_free(p->arena);
    free(p);
}

plan *tsr_python_plan_optimizer(session *s, const char *key, const tsr_optim_mesh *mesh, const tsr_tp_slice *slices,
                                size_t slice_count, tsr_error *err)
{
    tsr_checkpoint *checkpoint = s->checkpoint;
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    plan *p = calloc(1, sizeof *p);
    if (!p) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return NULL;
    }
    p->checkpoint = checkpoint;
    p->arena = tsr_arena_new(allocator, 0, err);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    const tsr_optim_mesh sliced = {mesh->data_rank, mesh->data_world, mesh->tensor_parallel, slices, slice_count};
    if (p->arena && tsr_optim_load(catalog, tsr_str_from(key), &sliced, p->arena, &p->plan, err) == TSR_OK) return p;
    tsr_python_free_plan(p);
    return NULL;
}

size_t tsr_python_plan_count(const plan *p)
{
    return p->plan.count;
}

void tsr_python_planned(const plan *p, size_t at, planned *out)
{
    const tsr_optim_read *read = &p->plan.reads[at];
    const tsr_catalog *catalog = tsr_checkpoint_catalog(p->checkpoint);
    const bool is_entry = tsr_catalog_has(catalog, read->entry);
    *out = (planned){.index = is_entry ? (uint64_t)(read->entry - catalog->entries) : UINT64_MAX,
                     .fqn = read->entry->fqn,
                     .parameter = read->parameter,
                     .kind = (uint32_t)read->kind,
                     .path_length = read->path_length,
                     .has_shard = read->has_shard,
                     .is_unknown = read->is_unknown};
    if (read->kind != TSR_READ_BOX || read->entry->ndim > TSR_MAX_NDIM) return;
    out->ndim = read->entry->ndim;
    for (uint32_t d = 0; d < out->ndim; d++) {
        out->storage_offsets[d] = read->storage_offsets[d];
        out->dest_offsets[d] = read->dest_offsets[d];
        out->sizes[d] = read->sizes[d];
        out->dest_size[d] = read->dest_size[d];
    }
}

void tsr_python_planned_path_item(const plan *p, size_t at, uint32_t item, path_item *out)
{
    const tsr_path_item *from = &p->plan.reads[at].path[item];
    *out = (path_item){from->key, from->integer, from->kind};
}
