/* Recognizes a file's kind by its first bytes, and what other programs write, which would be refused without its name, or would
 * open as something that it is not. The texts end a message: "FILE is …", "the directory is …". To add a form of another program,
 * add a row to one of the tables. Sources: the signatures in each format's specification. */
#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/recognize/recognize.h"
#include "formats/safetensors/safetensors_reader.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/try.h"

/* ---- files ---- */

typedef struct signature {
    uint16_t at;
    uint8_t size;
    const char *bytes;
    const char *name;
} signature;

static const signature foreign_kinds[] = {
    {0, 8, "\x89HDF\r\n\x1a\n",
     "an HDF5 file, as Keras writes weights, which is not supported; load it with keras.models.load_model or h5py"},
    {0, 4, "GGUF", "a GGUF file, which is not supported: llama.cpp runs it, and its gguf-py reads it"},
    {0, 4, "lmgg", "a GGML file, which is not supported: llama.cpp converts it to GGUF"},
    {0, 4, "tjgg", "a GGML file, which is not supported: llama.cpp converts it to GGUF"},
    {0, 5, "|TZR|",
     "a file of tensorizer, which is not supported: TensorDeserializer of the Python package tensorizer reads it"},
    {0, 6, "\x93NUMPY", "a NumPy array file, which is not supported: numpy.load reads it"},
    {0, 2, "\x1f\x8b", "a gzip file; unpack it first"},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"},
    {0, 4, "\x28\xb5\x2f\xfd", "a Zstandard file; unpack it first"},
    {0, 6,
     "\xfd"
     "7zXZ\0",
     "an xz file; unpack it first"},
    {0, 4, "Rar!", "a RAR archive; unpack it first"},
    {257, 5, "ustar",
     "a tar archive: either packed by hand (unpack it first), or a file of torch.save before version 0.1.10 (.tar), which "
     "is not supported"},
    {0, 42, "version https://git-lfs.github.com/spec/v1",
     "a Git LFS pointer, not the file itself (git lfs pull fetches it)"},
    {0, 9, "<!DOCTYPE", "an HTML page, perhaps a failed download"},
    {0, 9, "<!doctype", "an HTML page, perhaps a failed download"},
    {0, 5, "<html", "an HTML page, perhaps a failed download"},
    {0, 4, "PAR1", "a Parquet file"},
    {0, 4,
     "\x7f"
     "ELF",
     "a program (ELF)"},
};

static bool is_json(tsr_str head)
{
    size_t at = 0;
    while (at < head.size &&
           (head.data[at] == ' ' || head.data[at] == '\n' || head.data[at] == '\r' || head.data[at] == '\t'))
        at++;
    return at + 1 < head.size && head.data[at] == '{' && memchr(" \t\r\n\"}", head.data[at + 1], 6);
}

static const char *foreign_zip_name(tsr_str head, tsr_str member, bool is_onnx)
{
    static const char *const keras[] = {"metadata.json", "config.json", "model.weights.h5"};
    for (size_t i = 0; i < sizeof keras / sizeof keras[0]; i++)
        if (tsr_str_equal(member, tsr_str_from(keras[i])))
            return "a Keras archive, which is not supported: keras.models.load_model loads it";
    if (tsr_str_ends(member, TSR_STR(".npy")))
        return "a NumPy archive (.npz), which is not supported: numpy.load reads it, or mlx.core.load where MLX wrote it";
    if (head.size >= 4 && memcmp(head.data, "PK", 2) == 0) return "a zip archive that torch.save did not write";
    if (head.size > 8 && head.data[0] == 8 && head.data[1] < 32 && (head.data[2] == 0x12 || is_onnx))
        return "an ONNX model, which is not supported: onnx.load reads it";
    return NULL;
}

static const char *foreign_name(tsr_str head, tsr_str name)
{
    const bool packed =
        head.size > 262 && (memcmp(head.data + 257, "ustar", 5) == 0 || memcmp(head.data, "\x1f\x8b", 2) == 0);
    if (packed && tsr_str_ends(name, TSR_STR(".nemo")))
        return "a NeMo archive, which is not supported: NeMo's restore_from loads it, and the weights can be opened after "
               "`tar -xf`";
    for (size_t i = 0; i < sizeof foreign_kinds / sizeof foreign_kinds[0]; i++) {
        const signature *s = &foreign_kinds[i];
        if (head.size >= (size_t)s->at + s->size && memcmp(head.data + s->at, s->bytes, s->size) == 0) return s->name;
    }
    if (head.size > 2 && head.data[0] == '\x80' && head.data[1] >= 2 && head.data[1] <= 5)
        return "a bare pickle, not written by torch.save";
    tsr_str member = tsr_first_member(head); /* torch.jit.save writes tensors and constants first */
    if (tsr_str_ends(member, TSR_STR("/data/0")) || tsr_str_ends(member, TSR_STR("/constants.pkl")))
        return "a TorchScript archive: a program, not a checkpoint; torch.jit.load loads it";
    if (tsr_str_ends(member, TSR_STR("/data/weights/weight_0")) ||
        tsr_str_ends(member, TSR_STR("/data/weights/model_weights_config.json")))
        return "an archive of torch.export (pt2): a program, not a checkpoint; torch.export.load loads it";
    if (head.size > 4 && memcmp(head.data, "ZN", 2) == 0 && (unsigned char)head.data[2] < ' ')
        return "compressed by ZipNN, which is not supported: the package zipnn decompresses it";
    return foreign_zip_name(head, member, tsr_str_ends(name, TSR_STR(".onnx")));
}

tsr_status tsr_content_of(tsr_store *store, uint32_t file, tsr_content *content, tsr_error *err)
{
    enum { HEAD = 512 };
    char bytes[HEAD];
    const uint64_t size = store->files[file].size;
    const tsr_str head = {bytes, size < HEAD ? (size_t)size : HEAD};
    *content = (tsr_content){.kind = NULL};
    TSR_TRY(tsr_store_read(store, file, 0, bytes, head.size, err));
    for (const tsr_file_kind *of = tsr_file_kinds; of->reader_of && !content->reader; of++) {
        content->kind = of;
        content->reader = of->reader_of(head, size);
    }
    if (content->reader) return TSR_OK;
    content->kind = NULL;
    content->document = is_json(head);
    if (!content->document) content->foreign = foreign_name(head, store->files[file].name);
    content->unknown = !content->document && !content->foreign;
    return TSR_OK;
}

const tsr_file_kind *tsr_kind_named(tsr_str name)
{
    const tsr_file_kind *of = tsr_file_kinds;
    while (of->reader_of && !(of->ending && tsr_str_ends(name, tsr_str_from(of->ending)))) of++;
    return of->reader_of ? of : NULL;
}

#define ORBAX      "an Orbax checkpoint, which is not supported: orbax.checkpoint loads it in Python"
#define ZARR       "a Zarr store, which is not supported: the Python package zarr reads it"
#define SNAPSHOT   "a torchsnapshot checkpoint, which is not supported: torchsnapshot.Snapshot loads it in Python"
#define TENSORFLOW "a TensorFlow checkpoint, which is not supported: tf.train.load_checkpoint reads it"
#define MEGATRON_ZARR \
    "a Megatron checkpoint in the zarr format, which is not supported: a version of Megatron-Core that still has this format loads it, with the packages zarr and tensorstore, and can save it as torch_dist"
#define MEGATRON_OTHER \
    "a Megatron checkpoint whose sharded_backend is not torch_dist, which is not supported: the version of Megatron-Core that wrote it loads it"
#define DELTA_SKYRL \
    "a delta update of SkyRL, which holds the encoded differences from an earlier version of the model and not its weights; " \
    "SkyRL applies it to that version"
#define NVRX_LOCAL \
    "a directory of local checkpoints of nvidia-resiliency-ext, which is not supported: its LocalCheckpointManager loads " \
    "them in the job that wrote them"
#define ONNX_DATA "the external data of an ONNX model, which is not supported: onnx.load reads it with the model"

/* ---- directories, by the names of files ---- */

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
    if (!tsr_has_file(store, "common.pt") || tsr_is_marked(store)) return false;
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

/* ---- directories, by documents in the root ---- */

static const char *by_backend(const cJSON *root)
{
    const cJSON *backend = cJSON_GetObjectItemCaseSensitive(root, "sharded_backend");
    if (!cJSON_IsString(backend) || strcmp(backend->valuestring, "torch_dist") == 0) return NULL;
    return strcmp(backend->valuestring, "zarr") == 0 ? MEGATRON_ZARR : MEGATRON_OTHER;
}

static const char *by_manifest(const cJSON *root)
{
    const bool is = tsr_json_states(root, "base_version") &&
                    cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "tensors")) &&
                    cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "payload_files"));
    return is ? DELTA_SKYRL : NULL;
}

static const char *by_config(const cJSON *root)
{
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "dfloat11_config")) ? TSR_DFLOAT11 : NULL;
}

static const char *by_tree(const cJSON *root)
{
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "tree_metadata")) ? ORBAX : NULL;
}

typedef struct document_row {
    const char *file;
    const char *word; /* which the document must contain, so that others are not parsed */
    const char *(*what)(const cJSON *root);
    bool not_if_marked; /* does not count next to the marker of a directory (tsr_directory) */
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
    if (row->not_if_marked && tsr_is_marked(store)) return TSR_OK;
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
        if (names[i].decides && tsr_has_file(store, names[i].name)) *what = names[i].what;
    for (size_t i = 0; i < sizeof documents / sizeof documents[0] && !*what; i++)
        TSR_TRY(by_document(checkpoint, &documents[i], what, err));
    return TSR_OK;
}
