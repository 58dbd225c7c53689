/* See foreign.h. */
#include "formats/recognize/foreign.h"

#include "base/cursor.h"
#include "codec/json.h"
#include "formats/recognize/directory_names.h"
#include "formats/safetensors/safetensors.h"
#include "tessera/sys/try.h"

#define ORBAX      "an Orbax checkpoint, which is not supported: orbax.checkpoint loads it in Python"
#define ZARR       "a Zarr store, which is not supported: the Python package zarr reads it"
#define SNAPSHOT   "a torchsnapshot checkpoint, which is not supported: torchsnapshot.Snapshot loads it in Python"
#define TENSORFLOW "a TensorFlow checkpoint, which is not supported: tf.train.load_checkpoint reads it"
#define MEGATRON_ZARR \
    "a Megatron checkpoint in the zarr format, which is not supported: a version of Megatron-Core that still has this format loads it, with the packages zarr and tensorstore, and can save it as torch_dist"
#define MEGATRON_OTHER \
    "a Megatron checkpoint whose sharded_backend is not torch_dist, which is not supported: the version of Megatron-Core that wrote it loads it"
#define DELTA_ENCODED \
    "a delta update, which holds the encoded differences from an earlier version of the model and not its weights; SGLang, " \
    "slime, miles or ModelExpress apply it to that version"
#define DELTA_SKYRL \
    "a delta update of SkyRL, which holds the encoded differences from an earlier version of the model and not its weights; " \
    "SkyRL applies it to that version"
#define DELTA_TRL \
    "a delta update of TRL, which holds only the elements that changed since an earlier version of the model; TRL applies it " \
    "to that version"
#define DFLOAT11 \
    "a model that DFloat11 compressed, which is not supported: DFloat11Model.from_pretrained of the package dfloat11 loads it"
#define ZIPNN \
    "compressed by ZipNN, which is not supported: the package zipnn decompresses it, or loads it after zipnn_safetensors()"
#define NVRX_LOCAL \
    "a directory of local checkpoints of nvidia-resiliency-ext, which is not supported: its LocalCheckpointManager loads " \
    "them in the job that wrote them"
#define ONNX_DATA "the external data of an ONNX model, which is not supported: onnx.load reads it with the model"

/* ---- by the names of files ---- */

typedef enum name_kind { IS, ENDS, HOLDS } name_kind;

typedef struct name_row {
    const char *name;
    name_kind kind;
    bool decides; /* in the root, whatever else is in the directory; other rows only count if nothing can be opened */
    const char *what;
} name_row;

static const name_row names[] = {
    {"_CHECKPOINT_METADATA", IS, true, ORBAX},
    {"manifest.ocdbt", IS, true, ORBAX},
    {".zarray", IS, false, ZARR},
    {".zgroup", IS, false, ZARR},
    {"zarr.json", IS, false, ZARR},
    {".snapshot_metadata", IS, true, SNAPSHOT},
    {"saved_model.pb", IS, false, TENSORFLOW},
    {".data-00000-of-", HOLDS, false, TENSORFLOW},
    {".onnx.data", ENDS, false, ONNX_DATA},
    {".onnx_data", ENDS, false, ONNX_DATA},
};

static bool names_it(const name_row *row, tsr_str path)
{
    const tsr_str name = tsr_last_path_part(path), text = tsr_str_from(row->name);
    if (row->kind == IS) return tsr_str_equal(name, text);
    return row->kind == ENDS ? tsr_str_ends(name, text) : tsr_name_holds(path, text);
}

const char *tsr_foreign_directory(const tsr_store *store)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (uint32_t f = 0; f < store->file_count; f++)
            if (!tsr_is_deeper(store->files[f].name) && names_it(&names[i], store->files[f].name)) return names[i].what;
    return NULL;
}

/* Megatron writes one directory per tensor, with the array's description in it, and everything else to common.pt. Its
 * metadata.json comes last. */
static bool is_megatron_zarr(const tsr_store *store)
{
    if (tsr_store_find(store, TSR_STR("common.pt")) == TSR_NO_FILE ||
        tsr_store_find(store, TSR_STR(".metadata")) != TSR_NO_FILE)
        return false;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (!tsr_is_deeper(store->files[f].name) && tsr_str_ends(store->files[f].name, TSR_STR("/.zarray"))) return true;
    return false;
}

/* "iter_0000010_3_local.pt", as LocalCheckpointManager names what rank 3 wrote. */
static bool is_local_checkpoint(const tsr_store *store)
{
    const tsr_str before = TSR_STR("iter_"), after = TSR_STR("_local.pt");
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        bool is = tsr_str_starts(name, before) && tsr_str_ends(name, after) && name.size > before.size + after.size;
        for (size_t i = before.size; is && i < name.size - after.size; i++)
            is = (name.data[i] >= '0' && name.data[i] <= '9') || name.data[i] == '_';
        if (is) return true;
    }
    return false;
}

/* ---- by documents in the root ---- */

/* A member that is there and says something: not null, false, "" or "none". */
static bool states(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item)) return false;
    return !cJSON_IsString(item) || (item->valuestring[0] && strcmp(item->valuestring, "none") != 0);
}

const char *tsr_foreign_index(const cJSON *index)
{
    static const char *const keys[] = {"delta_encoding", "base_version", "delta_format", "is_delta"};
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(index, "metadata");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (states(metadata, keys[i])) return DELTA_ENCODED;
    return NULL;
}

static const char *by_backend(const cJSON *root)
{
    const cJSON *backend = cJSON_GetObjectItemCaseSensitive(root, "sharded_backend");
    if (!cJSON_IsString(backend) || strcmp(backend->valuestring, "torch_dist") == 0) return NULL;
    return strcmp(backend->valuestring, "zarr") == 0 ? MEGATRON_ZARR : MEGATRON_OTHER;
}

static const char *by_manifest(const cJSON *root)
{
    const bool is = states(root, "base_version") && cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "tensors")) &&
                    cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "payload_files"));
    return is ? DELTA_SKYRL : NULL;
}

static const char *by_config(const cJSON *root)
{
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "dfloat11_config")) ? DFLOAT11 : NULL;
}

static const char *by_tree(const cJSON *root)
{
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "tree_metadata")) ? ORBAX : NULL;
}

typedef struct document_row {
    const char *file;
    const char *word; /* which the document must contain, so that others are not parsed */
    const char *(*what)(const cJSON *root);
    bool not_of_dcp; /* does not count next to .metadata */
} document_row;

static const document_row documents[] = {
    {"metadata.json", "\"sharded_backend\"", by_backend, true},
    {"manifest.json", "\"payload_files\"", by_manifest, true},
    {"config.json", "\"dfloat11_config\"", by_config, false},
    {"_METADATA", "\"tree_metadata\"", by_tree, true},
};

/* Documents that cannot be parsed are ignored: other programs write files of these names, too. */
static tsr_status by_document(tsr_checkpoint *checkpoint, const document_row *row, const char **what, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    enum { LARGEST = 64 << 20 };
    const uint32_t file = tsr_store_find(store, tsr_str_from(row->file));
    tsr_error ignored = {0};
    tsr_bytes text;
    cJSON *root = NULL;
    *what = NULL;
    if (file == TSR_NO_FILE || store->files[file].size == 0 || store->files[file].size > LARGEST) return TSR_OK;
    if (row->not_of_dcp && tsr_store_find(store, TSR_STR(".metadata")) != TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    tsr_status status = TSR_OK;
    if (tsr_name_holds(text.data, tsr_str_from(row->word)))
        status = tsr_json_parse(text.data, checkpoint->host, &root, &ignored);
    tsr_bytes_free(&text);
    if (status == TSR_E_NOMEM) return tsr_fail(err, status, "%s", ignored.message);
    if (root) *what = row->what(root);
    cJSON_Delete(root);
    return TSR_OK;
}

tsr_status tsr_foreign_form(tsr_checkpoint *checkpoint, const char **what, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    *what = is_megatron_zarr(store) ? MEGATRON_ZARR : is_local_checkpoint(store) ? NVRX_LOCAL : NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !*what; i++)
        if (names[i].decides && tsr_store_find(store, tsr_str_from(names[i].name)) != TSR_NO_FILE) *what = names[i].what;
    for (size_t i = 0; i < sizeof documents / sizeof documents[0] && !*what; i++)
        TSR_TRY(by_document(checkpoint, &documents[i], what, err));
    return TSR_OK;
}

/* ---- by the header of a safetensors file ---- */

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
        any = tsr_str_starts((tsr_str){header.data + value, header.size - value}, bytes);
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
    if (states(metadata, "znn_compressed_vectors")) return ZIPNN;
    if (states(metadata, "delta_encoding")) return DELTA_ENCODED;
    if (has_text(metadata, "format", "sparse_weight_patch") && has_text(metadata, "sparse", "True")) return DELTA_TRL;
    return is_delta_shard(metadata, header) ? DELTA_ENCODED : NULL;
}

tsr_status tsr_foreign_safetensors(tsr_store *store, uint32_t file, const tsr_host *host, const char **foreign,
                                   tsr_error *err)
{
    enum { MOST = 1 << 20 };
    tsr_bytes header;
    cJSON *metadata = NULL;
    tsr_error ignored = {0};
    tsr_status status = TSR_OK;
    uint8_t length[8] = {0};
    *foreign = NULL;
    if (store->files[file].size < sizeof length) return TSR_OK;
    TSR_TRY(tsr_store_read(store, file, 0, length, sizeof length, err));
    uint64_t size = tsr_load_le(length, sizeof length);
    if (size > TSR_SAFETENSORS_MAX_HEADER || size > store->files[file].size - sizeof length) return TSR_OK;
    if (size > MOST) size = MOST;
    TSR_TRY(tsr_range_load((tsr_range){store, file, sizeof length, size}, host, &header, err));
    const tsr_str text = metadata_of(header.data);
    if (text.size) status = tsr_json_parse(text, host, &metadata, &ignored);
    if (metadata) *foreign = by_metadata(metadata, header.data);
    if (tsr_name_holds(header.data, TSR_STR(".encoded_exponent\"")) &&
        tsr_name_holds(header.data, TSR_STR(".sign_mantissa\"")))
        *foreign = DFLOAT11;
    cJSON_Delete(metadata);
    tsr_bytes_free(&header);
    return status == TSR_E_NOMEM ? tsr_fail(err, status, "%s", ignored.message) : TSR_OK;
}
