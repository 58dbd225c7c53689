/* The form of torch.save before PyTorch 1.6, which it still writes on request:
 *
 *   pickle: magic number | pickle: 1001 | pickle: {little_endian, type sizes} | pickle: the object | pickle: [storage keys]
 *   for each key, in this order:  elements (8 bytes) | little-endian data
 *
 * Source: torch/serialization.py (_legacy_save, _legacy_load), torch/csrc/serialization.cpp of PyTorch 2.13. */
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

/* The length of the pickles is only known after parsing them, so 64 KiB are tried first, then eight times as much, and so
 * on. Growing by a factor keeps the total at most 8/7 of the last read; the limit keeps a damaged file from being read as a
 * whole. */
enum { FIRST_READ = 64 * 1024, LONGEST_READ = 256 * 1024 * 1024, PROTOCOL = 1001 };
enum { MAGIC, VERSION, SYSTEM, OBJECT, KEYS, PICKLES };

static const char magic[] = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

typedef struct parts {
    tsr_str bytes; /* the beginning of the file */
    tsr_pickle *pickles[PICKLES];
    size_t at[PICKLES + 1]; /* where each begins, and the last ends */
} parts;

static void free_parts(parts *p)
{
    for (size_t i = 0; i < PICKLES; i++) tsr_pickle_free(p->pickles[i]);
    *p = (parts){0};
}

static tsr_status parse_parts(tsr_str bytes, const tsr_host *host, parts *out, tsr_error *err)
{
    *out = (parts){.bytes = bytes};
    for (size_t i = 0; i < PICKLES; i++) {
        size_t consumed, at = out->at[i];
        tsr_str rest = {bytes.data + at, bytes.size - at};
        tsr_status status = tsr_pickle_parse(rest, host, &tsr_torch_names, &out->pickles[i], &consumed, err);
        if (status != TSR_OK) {
            if (err->byte_position != TSR_NO_POSITION) err->byte_position += at;
            free_parts(out);
            return status;
        }
        out->at[i + 1] = at + consumed;
    }
    return TSR_OK;
}

static tsr_status read_parts(tsr_checkpoint *checkpoint, uint32_t file, parts *out, tsr_error *err)
{
    uint64_t size = checkpoint->store->files[file].size;
    for (size_t wanted = FIRST_READ;; wanted *= 8) {
        if (wanted > LONGEST_READ) wanted = LONGEST_READ;
        size_t length = size < wanted ? (size_t)size : wanted;
        char *bytes = tsr_arena_array(checkpoint->arena, length, 1, err);
        if (!bytes) return TSR_E_NOMEM;
        TSR_TRY(tsr_store_read(checkpoint->store, file, 0, bytes, length, err));
        tsr_error attempt = {0};
        tsr_status status = parse_parts((tsr_str){bytes, length}, checkpoint->host, out, &attempt);
        if (status == TSR_OK) return TSR_OK;
        if (status == TSR_E_FORMAT && length < size && wanted < LONGEST_READ) continue;
        return tsr_raise_again(err, status, &attempt);
    }
}

static tsr_status check_head(const parts *p, tsr_error *err)
{
    const tsr_pickle *number = p->pickles[MAGIC], *version = p->pickles[VERSION];
    tsr_str text = tsr_pickle_text(number, tsr_pickle_root(number));
    TSR_FAIL_AT(!tsr_str_equal(text, (tsr_str){magic, sizeof magic - 1}), err, TSR_E_FORMAT, 0,
                "torch: the file does not begin with torch.save's magic number");
    int64_t protocol = tsr_pickle_int(version, tsr_pickle_root(version));
    TSR_FAIL_AT(protocol != PROTOCOL, err, TSR_E_UNSUPPORTED, p->at[VERSION],
                "torch: unknown version %lld of the legacy format; only %d is supported", (long long)protocol, PROTOCOL);
    return TSR_OK;
}

/* The storage under a key of the list that follows the object. */
static tsr_torch_storage *listed(tsr_torch_build *build, const tsr_pickle *keys, size_t index)
{
    tsr_str key = tsr_pickle_text(keys, tsr_pickle_item(keys, tsr_pickle_root(keys), index));
    uint32_t at = tsr_map_get(build->storage_index, key, UINT32_MAX);
    return at == UINT32_MAX ? NULL : (tsr_torch_storage *)build->storages.items + at;
}

static tsr_status locate_storage(tsr_checkpoint *checkpoint, tsr_torch_build *build, tsr_torch_storage *storage,
                                 uint64_t *at, tsr_vec *runs, tsr_error *err)
{
    uint8_t head[8];
    uint64_t size = checkpoint->store->files[build->file].size, left = size - *at;
    if (checkpoint->options.salvage && (left < sizeof head || storage->byte_length > left - sizeof head)) {
        storage->lost = true;
        *at = size; /* and so are all that follow */
        return TSR_OK;
    }
    TSR_FAIL_AT(left < sizeof head, err, TSR_E_FORMAT, *at, "torch: the file ends before storage '%.*s'",
                TSR_STR_ARG(storage->key));
    TSR_TRY(tsr_store_read(checkpoint->store, build->file, *at, head, sizeof head, err));
    uint64_t elements = tsr_load_le(head, sizeof head), bytes;
    TSR_FAIL_AT(!tsr_dtype_bytes(storage->dtype, elements, &bytes) || bytes != storage->byte_length, err, TSR_E_FORMAT, *at,
                "torch: storage '%.*s' has %llu bytes in the pickle but %llu elements of %s in the file",
                TSR_STR_ARG(storage->key), (unsigned long long)storage->byte_length, (unsigned long long)elements,
                tsr_dtype_describe(storage->dtype)->name);
    TSR_FAIL_AT(bytes > left - sizeof head, err, TSR_E_FORMAT, *at,
                "torch: storage '%.*s' has %llu bytes, but the file ends after %llu of them", TSR_STR_ARG(storage->key),
                (unsigned long long)bytes, (unsigned long long)(left - sizeof head));
    TSR_FAIL_AT(storage->byte_offset, err, TSR_E_FORMAT, *at, "torch: storage '%.*s' occurs twice",
                TSR_STR_ARG(storage->key));
    storage->byte_offset = *at + sizeof head;
    *at = storage->byte_offset + bytes;
    tsr_torch_run *run = tsr_vec_push(runs, err);
    if (!run) return TSR_E_NOMEM;
    *run = (tsr_torch_run){.file = build->file,
                           .byte_offset = storage->byte_offset,
                           .byte_length = bytes,
                           .unloadable = storage->unloadable,
                           .pickled_at = storage->pickled_at};
    return TSR_OK;
}

static tsr_status legacy_locate_storages(tsr_checkpoint *checkpoint, tsr_torch_build *build, const parts *p, tsr_vec *runs,
                                         uint64_t *end, tsr_error *err)
{
    const tsr_pickle *keys = p->pickles[KEYS];
    uint64_t at = p->at[PICKLES];
    size_t count = tsr_pickle_count(keys, tsr_pickle_root(keys));
    for (size_t i = 0; i < count; i++) {
        tsr_torch_storage *storage = listed(build, keys, i);
        TSR_FAIL_AT(!storage, err, TSR_E_FORMAT, p->at[KEYS], "torch: storage %zu of the list after the object is not used",
                    i);
        TSR_TRY(locate_storage(checkpoint, build, storage, &at, runs, err));
    }
    *end = at;
    const tsr_torch_storage *storages = build->storages.items;
    for (size_t i = 0; i < build->storages.count; i++)
        TSR_FAIL_AT(!storages[i].byte_offset && !storages[i].meta && !storages[i].lost, err, TSR_E_FORMAT, p->at[KEYS],
                    "torch: storage '%.*s' is not in the file", TSR_STR_ARG(storages[i].key));
    return TSR_OK;
}

/* torch.load unpickles the parts around the object too, and stops behind the last storage. */
static tsr_status judge_all(const tsr_torch_build *build, const parts *p, uint64_t end, uint64_t size, tsr_error *err)
{
    tsr_torch_build part = *build;
    for (size_t i = 0; i < PICKLES; i++) {
        part.pickle = p->pickles[i];
        part.pickle_offset = p->at[i];
        if (i != OBJECT) TSR_TRY(tsr_torch_verdict(&part, false, err));
    }
    part.pickle_offset = 0;
    return tsr_torch_verdict_on_end(&part, end, size, err);
}

static tsr_status legacy_build_values(tsr_checkpoint *checkpoint, tsr_torch_build *build, const parts *p,
                                      tsr_torch_file *out, tsr_vec *runs, tsr_error *err)
{
    TSR_TRY(check_head(p, err));
    TSR_TRY(tsr_torch_values(build, tsr_pickle_root(build->pickle), &out->root, err));
    uint64_t end = 0;
    TSR_TRY(legacy_locate_storages(checkpoint, build, p, runs, &end, err));
    TSR_TRY(judge_all(build, p, end, checkpoint->store->files[build->file].size, err));
    out->storage_count = (uint32_t)build->storages.count;
    out->rank = build->rank;
    out->pickle_bytes = p->at[OBJECT + 1] - p->at[OBJECT];
    return tsr_torch_place(build, false, err);
}

tsr_status tsr_torch_legacy_open(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                                 tsr_vec *runs, tsr_error *err)
{
    parts p;
    TSR_TRY(read_parts(checkpoint, file, &p, err));
    tsr_torch_build build = {.pickle = p.pickles[OBJECT],
                             .pickle_bytes = p.bytes,
                             .host = checkpoint->host,
                             .arena = checkpoint->arena,
                             .findings = checkpoint->findings,
                             .file_name = checkpoint->store->files[file].name,
                             .file = file,
                             .pickle_offset = p.at[OBJECT],
                             .legacy = true,
                             .rank = rank};
    tsr_status status = tsr_torch_build_open(&build, err);
    if (status == TSR_OK) status = legacy_build_values(checkpoint, &build, &p, out, runs, err);
    tsr_torch_build_close(&build);
    free_parts(&p);
    return status;
}
