/* Finds the whole safetensors file inside a damaged one. See tessera/sys/salvaged_file.h. */
#include <inttypes.h>

#include "formats/safetensors/safetensors.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/salvaged_file.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum { LENGTH_SIZE = 8 };

/* Shows one file of another store up to `size`, with other bytes for its header. */
typedef struct salvaged_store {
    tsr_store base; /* must be first */
    tsr_store_file shown;
    tsr_store *inner;
    uint32_t file;
    tsr_str header; /* from byte 8 on */
} salvaged_store;

static tsr_status read_salvaged(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const salvaged_store *s = (const salvaged_store *)store;
    const uint64_t header_end = LENGTH_SIZE + s->header.size;
    (void)file;
    TSR_TRY(tsr_store_read(s->inner, s->file, offset, buffer, size, err));
    const uint64_t from = offset > LENGTH_SIZE ? offset : LENGTH_SIZE;
    const uint64_t to = offset + size < header_end ? offset + size : header_end;
    if (from < to) memcpy((char *)buffer + (from - offset), s->header.data + (from - LENGTH_SIZE), (size_t)(to - from));
    return TSR_OK;
}

static tsr_store *origin_of_salvaged(const tsr_store *store, uint32_t *file)
{
    const salvaged_store *s = (const salvaged_store *)store;
    *file = s->file;
    return s->inner;
}

static void close_salvaged(tsr_store *store)
{
    (void)store; /* it is in the arena */
}

/* Reads the header, and makes spaces of the NULs after its last character: it may be padded with spaces only. */
static tsr_status read_header(tsr_store *store, uint32_t file, tsr_arena *arena, tsr_str *header, uint64_t *nuls,
                              tsr_error *err)
{
    const uint64_t size = store->files[file].size;
    uint8_t length[LENGTH_SIZE];
    TSR_FAIL_IF(size < LENGTH_SIZE, err, TSR_E_FORMAT, "the file is too short for a safetensors header");
    TSR_TRY(tsr_store_read(store, file, 0, length, sizeof length, err));
    const uint64_t count = tsr_load_le(length, LENGTH_SIZE);
    TSR_FAIL_IF(count > size - LENGTH_SIZE, err, TSR_E_UNSUPPORTED,
                "nothing can be repaired without guessing: the header of %" PRIu64 " bytes is not whole", count);
    if (count > TSR_SAFETENSORS_MAX_HEADER) return TSR_OK; /* what opens the file refuses it */
    char *text = tsr_arena_array(arena, (size_t)count, 1, err);
    if (!text) return TSR_E_NOMEM;
    TSR_TRY(tsr_store_read(store, file, LENGTH_SIZE, text, (size_t)count, err));
    for (size_t at = (size_t)count; at && (text[at - 1] == 0 || text[at - 1] == ' '); at--) {
        *nuls += text[at - 1] == 0;
        text[at - 1] = ' ';
    }
    *header = (tsr_str){text, (size_t)count};
    return TSR_OK;
}

/* The end of the last tensor in the file. */
static uint64_t data_end(const tsr_catalog *catalog, uint64_t start)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        for (uint64_t c = 0; c < entry->chunk_count; c++)
            if (entry->chunks[c].byte_offset + entry->chunks[c].byte_length > start)
                start = entry->chunks[c].byte_offset + entry->chunks[c].byte_length;
    }
    return start;
}

/* Refuses what lacks something, which only a guess could replace. */
static tsr_status check_findings(tsr_findings *findings, tsr_error *err)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        if (f->level != TSR_ERROR || strcmp(f->rule->id, "safetensors/trailing-bytes") == 0) continue;
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "nothing can be repaired without guessing: %.*s; "
                        "tessera convert --salvage writes the tensors that are whole",
                        TSR_STR_ARG(f->message));
    }
    return TSR_OK;
}

tsr_status tsr_salvage_safetensors(tsr_store *store, uint32_t file, const tsr_host *host, tsr_arena *arena,
                                   tsr_salvaged_file *out, tsr_error *err)
{
    salvaged_store *s = TSR_ARENA_NEW(arena, salvaged_store, err);
    tsr_checkpoint *checkpoint = NULL;
    *out = (tsr_salvaged_file){.size = 0};
    if (!s) return TSR_E_NOMEM;
    *s = (salvaged_store){.base = {.file_count = 1,
                                   .files = &s->shown,
                                   .primary = 0,
                                   .read_at = read_salvaged,
                                   .origin = origin_of_salvaged,
                                   .close = close_salvaged},
                          .shown = store->files[file],
                          .inner = store,
                          .file = file};
    TSR_TRY(read_header(store, file, arena, &s->header, &out->header_nuls, err));
    tsr_status status = tsr_checkpoint_open(&s->base, host, NULL, &checkpoint, err);
    if (status == TSR_OK) status = check_findings(tsr_checkpoint_findings(checkpoint), err);
    if (status == TSR_OK) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
        out->size = data_end(catalog, LENGTH_SIZE + s->header.size);
        out->entries = catalog->entry_count;
        out->trailing = s->shown.size - out->size;
        out->store = &s->base;
        s->shown.size = out->size;
    }
    tsr_checkpoint_close(checkpoint);
    if (status == TSR_OK && !out->trailing && !out->header_nuls)
        return tsr_fail(err, TSR_E_USAGE,
                        "there is nothing to repair: the header is valid, and the file ends where its last tensor does");
    return status;
}
