/* Recognizes safetensors files, what several of them in one directory are, and those whose tensors are not those of a model. */
#include "formats/safetensors/safetensors_reader.h"

#include "base/cursor.h"
#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/safetensors/safetensors.h"
#include "tessera/sys/try.h"

#define DELTA_ENCODED \
    "a delta update, which holds the encoded differences from an earlier version of the model and not its weights; SGLang, " \
    "slime, miles or ModelExpress apply it to that version"
#define DELTA_TRL \
    "a delta update of TRL, which holds only the elements that changed since an earlier version of the model; TRL applies it " \
    "to that version"
#define ZIPNN \
    "compressed by ZipNN, which is not supported: the package zipnn decompresses it, or loads it after zipnn_safetensors()"

static const tsr_reader *safetensors_reader_of(tsr_str head, uint64_t size)
{
    return tsr_safetensors_looks_like(head, size) ? &tsr_reader_safetensors : NULL;
}

const char *tsr_safetensors_foreign_index(const cJSON *index)
{
    static const char *const keys[] = {"delta_encoding", "base_version", "delta_format", "is_delta"};
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(index, "metadata");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (tsr_json_states(metadata, keys[i])) return DELTA_ENCODED;
    return NULL;
}

/* ---- headers ---- */

/* The member "__metadata__" of a header, whose end may be missing; empty if it is not there as a whole. */
static tsr_str metadata_of(tsr_str header)
{
    static const char key[] = "\"__metadata__\"";
    const tsr_str none = {NULL, 0};
    size_t at = 0, from;
    bool quoted = false;
    while (at + sizeof key - 1 <= header.size && memcmp(header.data + at, key, sizeof key - 1) != 0) at++;
    for (at += sizeof key - 1; at < header.size && header.data[at] != '{'; at++) {
    }
    for (from = at; at < header.size; at++) {
        const char c = header.data[at];
        if (quoted && c == '\\') at++;
        else if (c == '"') quoted = !quoted;
        else if (c == '}' && !quoted) return (tsr_str){header.data + from, at + 1 - from};
    }
    return none;
}

static bool has_text(const cJSON *object, const char *key, const char *text)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

static size_t skip_spaces(tsr_str text, size_t at)
{
    while (at < text.size && (text.data[at] == ' ' || text.data[at] == ':')) at++;
    return at;
}

/* Whether the header has a tensor with this name. */
static bool has_tensor(tsr_str header, tsr_str name)
{
    for (size_t at = 0; at + name.size + 2 < header.size; at++) {
        const char *found = memchr(header.data + at, '"', header.size - name.size - 2 - at);
        if (!found) return false;
        at = (size_t)(found - header.data);
        if (memcmp(found + 1, name.data, name.size) != 0 || found[1 + name.size] != '"') continue;
        const size_t value = skip_spaces(header, at + name.size + 2);
        if (value < header.size && header.data[value] == '{') return true;
    }
    return false;
}

/* Whether all tensors are uint8. */
static bool is_bytes(tsr_str header)
{
    const tsr_str key = TSR_STR("\"dtype\""), bytes = TSR_STR("\"U8\"");
    bool any = false;
    for (size_t at = 0; at + key.size < header.size; at++) {
        if (memcmp(header.data + at, key.data, key.size) != 0) continue;
        const size_t value = skip_spaces(header, at + key.size);
        any = tsr_str_starts(tsr_str_after(header, value), bytes);
        if (!any) return false;
    }
    return any;
}

/* In a shard of an encoded delta, all keys are names of its tensors, and the values are checksums of the results. Only the
 * first are compared. */
static bool is_delta_shard(const cJSON *metadata, tsr_str header)
{
    enum { ENOUGH = 4 };
    int count = 0;
    if (!is_bytes(header)) return false;
    for (const cJSON *pair = metadata->child; pair && count < ENOUGH; pair = pair->next, count++)
        if (!has_tensor(header, tsr_json_key_of(pair))) return false;
    return count > 0;
}

static const char *by_metadata(const cJSON *metadata, tsr_str header)
{
    if (tsr_json_states(metadata, "znn_compressed_vectors")) return ZIPNN;
    if (tsr_json_states(metadata, "delta_encoding")) return DELTA_ENCODED;
    if (has_text(metadata, "format", "sparse_weight_patch") && has_text(metadata, "sparse", "True")) return DELTA_TRL;
    return is_delta_shard(metadata, header) ? DELTA_ENCODED : NULL;
}

/* Loads the header of a file, or `most` bytes of it. *header is empty if the file is too short for the header. */
static tsr_status load_header(tsr_store *store, uint32_t file, uint64_t most, const tsr_host *host, tsr_bytes *header,
                              tsr_error *err)
{
    uint8_t length[8] = {0};
    *header = (tsr_bytes){0};
    if (store->files[file].size < sizeof length) return TSR_OK;
    TSR_TRY(tsr_store_read(store, file, 0, length, sizeof length, err));
    const uint64_t size = tsr_load_le(length, sizeof length);
    if (size > TSR_SAFETENSORS_MAX_HEADER || size > store->files[file].size - sizeof length) return TSR_OK;
    return tsr_range_load((tsr_range){store, file, sizeof length, size < most ? size : most}, host, header, err);
}

/* Reads the beginning of a header. */
static tsr_status safetensors_foreign(tsr_store *store, uint32_t file, const tsr_host *host, const char **foreign,
                                      tsr_error *err)
{
    tsr_bytes header;
    cJSON *metadata = NULL;
    tsr_error ignored = {0};
    tsr_status status = TSR_OK;
    *foreign = NULL;
    TSR_TRY(load_header(store, file, 1 << 20, host, &header, err));
    const tsr_str text = metadata_of(header.data);
    if (text.size) status = tsr_json_parse(text, host, &metadata, &ignored);
    if (metadata) *foreign = by_metadata(metadata, header.data);
    if (tsr_name_holds(header.data, TSR_STR(".encoded_exponent\"")) &&
        tsr_name_holds(header.data, TSR_STR(".sign_mantissa\"")))
        *foreign = TSR_DFLOAT11;
    cJSON_Delete(metadata);
    tsr_bytes_free(&header);
    return status == TSR_E_NOMEM ? tsr_fail(err, status, "%s", ignored.message) : TSR_OK;
}

/* ---- directories ---- */

/* Whether all files are named like parts of ranks, and there are several ranks. Sets the files' numbers and sorts by
 * them. */
static bool are_rank_parts(const tsr_store *store, tsr_numbered_files *files)
{
    bool several = false;
    for (uint32_t i = 0; i < files->count; i++) {
        uint64_t rank, part;
        if (!tsr_rank_part_of(store->files[files->items[i].file].name, &rank, &part)) return false;
        files->items[i].number = rank << 32 | part;
        several = several || rank != files->items[0].number >> 32;
    }
    if (several) tsr_sort_numbered(files);
    return several;
}

static tsr_status safetensors_choose(tsr_checkpoint *checkpoint, tsr_numbered_files *files, bool alone,
                                     const tsr_reader **reader, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    const char *foreign;
    tsr_bytes header;
    (void)alone;
    *reader = &tsr_reader_safetensors_ranks;
    if (are_rank_parts(store, files)) return tsr_choose_files(checkpoint, files->items, files->count, err);
    const uint32_t first = files->items[0].file;
    TSR_TRY(safetensors_foreign(store, first, checkpoint->host, &foreign, err));
    TSR_FAIL_IF(foreign, err, TSR_E_UNSUPPORTED, "%.*s is %s", TSR_STR_ARG(store->files[first].name), foreign);
    /* The reader checks whether DCP's key is in the right place. */
    TSR_TRY(load_header(store, first, UINT64_MAX, checkpoint->host, &header, err));
    const bool sharded = tsr_name_holds(header.data, TSR_STR(TSR_SAFETENSORS_SHARDING));
    tsr_bytes_free(&header);
    *reader = sharded ? &tsr_reader_dcp_safetensors : &tsr_reader_safetensors;
    return tsr_choose_files(checkpoint, files->items, files->count, err);
}

const tsr_file_kind tsr_file_kind_safetensors = {.reader_of = safetensors_reader_of,
                                                 .ending = ".safetensors",
                                                 .named = &tsr_reader_safetensors,
                                                 .index = &tsr_reader_safetensors_index,
                                                 .reported = ".safetensors",
                                                 .foreign = safetensors_foreign,
                                                 .choose = safetensors_choose};
