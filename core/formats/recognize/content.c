/* Recognizes a file's kind by its first bytes, and what other programs write, which would be refused without its name, or would
 * open as something that it is not. The texts end a message: "FILE is …", "the directory is …". To add a form of another program,
 * add a row to one of the tables. Sources: the signatures in each format's specification. */
#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/recognize/recognize.h"
#include "formats/safetensors/safetensors_reader.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/try.h"

/* ---- texts that several rows have ---- */

#define ORBAX "an Orbax checkpoint, which is not supported: orbax.checkpoint loads it in Python"
#define OCDBT \
    "a database of TensorStore, as Orbax writes, which is not supported: orbax.checkpoint or tensorstore reads it in Python"
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
#define PADDLE_RANKS \
    "a distributed checkpoint of Paddle, which is not supported: paddle.distributed.load_state_dict reads it"
#define ONNX_DATA "the external data of an ONNX model, which is not supported: onnx.load reads it with the model"
#define PICKLE \
    "a bare pickle, not written by torch.save: the program that wrote it loads it, such as Paddle, joblib or NumPy"
#define HDF5_SIGNATURE "\x89HDF\r\n\x1a\n"
#define HDF5           "an HDF5 file, as Keras writes weights, which is not supported; load it with keras.models.load_model or h5py"
#define PADDLE         "a file of tensors in Paddle's binary format, which is not supported: paddle.load reads it"
#define ZLIB           "a zlib stream, as joblib writes, which is not supported: joblib.load reads it"
#define EXECUTORCH     "a file of ExecuTorch: a program, not a checkpoint; the runtime of ExecuTorch loads it"
#define TORCHSCRIPT    "a TorchScript archive: a program, not a checkpoint; torch.jit.load loads it"
#define EXPORTED       "an archive of torch.export (pt2): a program, not a checkpoint; torch.export.load loads it"
#define KERAS          "a Keras archive, which is not supported: keras.models.load_model loads it"
#define ONNX           "an ONNX model, which is not supported: onnx.load reads it"
#define MSGPACK        "a msgpack file, as Flax writes, which is not supported: flax.serialization.msgpack_restore reads it"
#define CORE_ML        "a Core ML model, which is not supported: coremltools loads it"

/* ---- files ---- */

enum { HEAD = 512 }; /* bytes of a file that are looked at */

typedef struct signature {
    uint16_t at;
    uint8_t size;
    const char *bytes;
    const char *name;
} signature;

static const signature foreign_kinds[] = {
    {0, 8, HDF5_SIGNATURE, HDF5},
    {0, 4, "GGUF", "a GGUF file, which is not supported: llama.cpp runs it, and its gguf-py reads it"},
    {0, 4, "lmgg", "a GGML file, which is not supported: llama.cpp converts it to GGUF"},
    {0, 4, "tjgg", "a GGML file, which is not supported: llama.cpp converts it to GGUF"},
    {0, 5, "|TZR|",
     "a file of tensorizer, which is not supported: TensorDeserializer of the Python package tensorizer reads it"},
    {0, 6, "\x93NUMPY", "a NumPy array file, which is not supported: numpy.load reads it"},
    {0, 2, "\x1f\x8b", "a gzip file; unpack it first"},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"},
    {0, 4, "\x28\xb5\x2f\xfd", "a Zstandard file; unpack it first"},
    {0, 4, "\x04\x22\x4d\x18", "an LZ4 file; unpack it first"},
    {0, 3, "BZh", "a bzip2 file; unpack it first"},
    {5, 8, "\xff\xff\xff\xff\xff\xff\xff\xff", "an LZMA file; unpack it first"},
    {0, 6,
     "\xfd"
     "7zXZ\0",
     "an xz file; unpack it first"},
    {0, 4, "Rar!", "a RAR archive; unpack it first"},
    {257, 5, "ustar",
     "a tar archive: either packed by hand (unpack it first), or a file of torch.save before version 0.1.10 (.tar), which "
     "is not supported"},
    {0, sizeof TSR_LFS_POINTER - 1, TSR_LFS_POINTER, TSR_LFS_IS},
    {0, 9, "<!DOCTYPE", "an HTML page, perhaps a failed download"},
    {0, 9, "<!doctype", "an HTML page, perhaps a failed download"},
    {0, 5, "<html", "an HTML page, perhaps a failed download"},
    {0, 4, "PAR1", "a Parquet file"},
#ifndef TSR_SMALL /* the browser's module, which has no room for more */
    {0, 4, "\x0c\xdb\x20\xde", OCDBT},
#endif
    {0, 4, "ftrt", "a TensorRT engine: a program, not a checkpoint; tensorrt.Runtime loads it"},
    {4, 4, "ET12", EXECUTORCH},
    {4, 4, "FT01", EXECUTORCH},
    {4, 4, "TFL3", "a TensorFlow Lite model: a program, not a checkpoint; LiteRT loads it"},
    {4, 4, "PTMF", TORCHSCRIPT},
    {5, 4, "\x1a\2\x08\1", TENSORFLOW},
    {0, 3, "(dp", PICKLE},
    {0, 3, "}q\0", PICKLE},
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

/* ---- the names of files ---- */

typedef enum name_kind { IS, ENDS, HOLDS } name_kind;

static bool fits(tsr_str name, name_kind kind, const char *row)
{
    const tsr_str text = tsr_str_from(row);
    if (kind == IS) return tsr_str_equal(name, text);
    return kind == ENDS ? tsr_str_ends(name, text) : tsr_name_holds(name, text);
}

typedef struct name_row {
    const char *name;
    name_kind kind;
    const char *what;
} name_row;

/* They count only if nothing can be opened. */
static const name_row names[] = {
    {"_CHECKPOINT_METADATA", IS, ORBAX},
#ifdef TSR_SMALL
    {"manifest.ocdbt", IS, ORBAX},
#else
    {"_METADATA", IS, ORBAX},
    {"manifest.ocdbt", IS, OCDBT},
#endif
    {".zarray", IS, ZARR},
    {".zgroup", IS, ZARR},
    {"zarr.json", IS, ZARR},
    {".snapshot_metadata", IS, SNAPSHOT},
    {"saved_model.pb", IS, TENSORFLOW},
    {".data-00000-of-", HOLDS, TENSORFLOW},
    {".onnx.data", ENDS, ONNX_DATA},
    {".onnx_data", ENDS, ONNX_DATA},
};

static const char *foreign_by_name(tsr_str path)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (fits(names[i].kind == HOLDS ? path : tsr_last_path_part(path), names[i].kind, names[i].name))
            return names[i].what;
    return NULL;
}

const char *tsr_foreign_directory(const tsr_store *store)
{
    const char *what = NULL;
    for (uint32_t f = 0; f < store->file_count && !what; f++)
        if (!tsr_is_deeper(store->files[f].name)) what = foreign_by_name(store->files[f].name);
    return what;
}

/* ---- zip archives, by the name of the first member ---- */

/* torch.jit.save writes extra files, tensors and constants first, in this order. */
static const struct {
    name_kind kind;
    const char *name, *what;
} members[] = {
    {ENDS, "/data/0", TORCHSCRIPT},
    {ENDS, "/constants.pkl", TORCHSCRIPT},
    {HOLDS, "/extra/", TORCHSCRIPT},
    {HOLDS, "/data/weights/", EXPORTED},
    {HOLDS, "/data/aotinductor/",
     "a package of AOTInductor: a program, not a checkpoint; torch._inductor.aoti_load_package loads it"},
    {HOLDS, "/.data/", "an archive of torch.package, which is not supported: torch.package.PackageImporter loads it"},
    {IS, "metadata.json", KERAS},
    {IS, "config.json", KERAS},
    {IS, "model.weights.h5", KERAS},
    {ENDS, ".npy",
     "a NumPy archive (.npz), which is not supported: numpy.load reads it, or mlx.core.load where MLX wrote it"},
};

static const char *foreign_archive(tsr_str head)
{
    const tsr_str member = tsr_first_member(head);
    if (head.size < 4 || memcmp(head.data, "PK", 2) != 0) return NULL;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (fits(member, members[i].kind, members[i].name)) return members[i].what;
    const char *what = TSR_IS_SMALL ? NULL : foreign_by_name(member);
    return what ? what : "a zip archive that torch.save did not write";
}

/* ---- formats without a signature ---- */

/* ONNX, Core ML and TensorFlow write messages that begin with a version. What comes next is a text or the graph in ONNX, and a message
 * with a field of its own in the others. */
static const char *foreign_message(tsr_str head)
{
    size_t at = 3;
    if (head.size < 10 || head.data[0] != 8 || head.data[1] >= 32) return NULL;
    while (at < 8 && (head.data[at] & 0x80)) at++;
    if (head.data[2] == 0x12 && head.data[at + 1] == '\n') return head.data[1] == 1 ? TENSORFLOW : CORE_ML;
    return head.data[2] == 0x12 || head.data[2] == ':' ? ONNX : NULL;
}

/* msgpack: a map whose first key is a text. zlib: a checksum of two bytes. Neither is certain in a file that could be a damaged one of
 * safetensors, which begins with a length. */
static const char *foreign_stream(tsr_str head)
{
    const uint8_t *b = (const uint8_t *)head.data;
    if (head.size < 8 || !(b[4] | b[5] | b[6] | b[7])) return NULL;
    if (b[0] == 'x' && (('x' << 8) + b[1]) % 31 == 0) return ZLIB;
    const size_t key = b[0] == 0xde ? 3 : b[0] == 0xdf ? 5 : 1;
    const bool is_map = key > 1 || (b[0] > 0x80 && b[0] < 0x90);
    return is_map && (b[key] >> 5 == 5 || b[key] == 0xd9) ? MSGPACK : NULL;
}

/* Paddle: versions and a level of nesting, all 0; then the size of a message that states the dtype and the dims. */
static bool is_paddle(tsr_str head)
{
    enum { MESSAGE = 20 };
    static const char zeros[16];
    return head.size > MESSAGE + 2 && !memcmp(head.data, zeros, 16) && head.data[16] >= 2 &&
           !memcmp(head.data + 17, zeros, 3) && head.data[MESSAGE] == 8 &&
           (head.data[16] == 2 || head.data[MESSAGE + 2] == 0x10);
}

static const char *foreign_name(tsr_str head, tsr_str name)
{
    const char *what;
    const bool packed =
        head.size > 262 && (memcmp(head.data + 257, "ustar", 5) == 0 || memcmp(head.data, "\x1f\x8b", 2) == 0);
    if (packed && tsr_str_ends(name, TSR_STR(".nemo")))
        return "a NeMo archive, which is not supported: NeMo's restore_from loads it, and the weights can be opened after "
               "`tar -xf`";
    for (size_t i = 0; i < sizeof foreign_kinds / sizeof foreign_kinds[0]; i++) {
        const signature *s = &foreign_kinds[i];
        if (head.size >= (size_t)s->at + s->size && memcmp(head.data + s->at, s->bytes, s->size) == 0) return s->name;
    }
    if (head.size > 2 && head.data[0] == '\x80' && head.data[1] >= 2 && head.data[1] <= 5) return PICKLE;
    if (head.size > 4 && memcmp(head.data, "ZN", 2) == 0 && (unsigned char)head.data[2] < ' ')
        return "compressed by ZipNN, which is not supported: the package zipnn decompresses it";
    if ((what = foreign_archive(head)) || (what = foreign_message(head)) || (what = foreign_stream(head))) return what;
    return is_paddle(head) ? PADDLE : foreign_by_name(name);
}

tsr_status tsr_content_of(tsr_store *store, uint32_t file, tsr_content *content, tsr_error *err)
{
    char bytes[HEAD];
    const uint64_t size = store->files[file].size;
    const tsr_str head = {bytes, size < HEAD ? (size_t)size : HEAD};
    *content = (tsr_content){.kind = NULL};
    TSR_TRY(tsr_store_read(store, file, 0, bytes, head.size, err));
    for (const tsr_file_kind *const *of = tsr_file_kinds; *of && !content->reader; of++) {
        content->kind = *of;
        content->reader = (*of)->reader_of(head, size);
    }
    if (content->reader) return TSR_OK;
    content->kind = NULL;
    content->document = is_json(head);
    if (!TSR_IS_SMALL && content->document && (content->foreign = foreign_by_name(store->files[file].name))) {
        content->document = false;
        return TSR_OK;
    }
    if (!content->document) content->foreign = foreign_name(head, store->files[file].name);
    content->unknown = !content->document && !content->foreign;
    return TSR_OK;
}

/* HDF5 files may begin with a block of another program's, whose size is 512 bytes or a larger power of two. */
tsr_status tsr_content_search(tsr_store *store, uint32_t file, const char **foreign, tsr_error *err)
{
    enum { LARGEST = 1 << 20 };
    char bytes[sizeof HDF5_SIGNATURE - 1];
    for (uint64_t at = HEAD; !*foreign && at <= LARGEST && at + sizeof bytes <= store->files[file].size; at *= 2) {
        TSR_TRY(tsr_store_read(store, file, at, bytes, sizeof bytes, err));
        if (!memcmp(bytes, HDF5_SIGNATURE, sizeof bytes)) *foreign = HDF5;
    }
    return TSR_OK;
}

const tsr_file_kind *tsr_kind_named(tsr_str name)
{
    const tsr_file_kind *const *of = tsr_file_kinds;
    while (*of && !((*of)->ending && tsr_str_ends(name, tsr_str_from((*of)->ending)))) of++;
    return *of;
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

/* "iter_0000010_3_local.pt", as LocalCheckpointManager names what rank 3 wrote: an object of a class for such states. */
static tsr_status is_local_checkpoint(tsr_store *store, bool *is, tsr_error *err)
{
    char head[HEAD];
    *is = false;
    for (uint32_t f = 0; f < store->file_count && !*is; f++) {
        const tsr_str name = store->files[f].name;
        if (!tsr_str_starts(name, TSR_STR("iter_")) || !tsr_str_ends(name, TSR_STR("_local.pt"))) continue;
        const uint64_t size = store->files[f].size;
        const tsr_str read = {head, size < HEAD ? (size_t)size : HEAD};
        TSR_TRY(tsr_store_read(store, f, 0, head, read.size, err));
        *is = tsr_name_holds(read, TSR_STR("TensorAwareStateDict\n"));
    }
    return TSR_OK;
}

/* "0_0.distcp" is what rank 0 wrote, and "0.metadata" says what is in which file; PyTorch's are ".metadata" and "__0.metadata". Source of
 * the names: paddle/distributed/flex_checkpoint/dcp/save_state_dict.py */
static bool is_of_paddle(const tsr_store *store)
{
    static const char *const metadata[] = {"*.metadata", NULL};
    bool data = false;
    for (uint32_t f = 0; f < store->file_count && !data; f++)
        data = tsr_is_digit(store->files[f].name.data[0]) && tsr_str_ends(store->files[f].name, TSR_STR(".distcp"));
    return data && tsr_has_any(store, metadata) && !tsr_is_marked(store);
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

typedef struct document_row {
    const char *file;
    const char *key;  /* in the document's root */
    const char *text; /* what the directory is; or NULL, and then `what` decides */
    const char *(*what)(const cJSON *root);
    bool if_marked; /* counts next to the marker of a directory (tsr_directory), too */
} document_row;

static const document_row documents[] = {
    {"metadata.json", "sharded_backend", .what = by_backend},
    {"manifest.json", "payload_files", .what = by_manifest},
    {"config.json", "dfloat11_config", .text = TSR_DFLOAT11, .if_marked = true},
    {"_METADATA", "tree_metadata", .text = ORBAX},
    {"_CHECKPOINT_METADATA", "init_timestamp_nsecs", .text = ORBAX},
    {".snapshot_metadata", "manifest", .text = SNAPSHOT},
    {"Manifest.json", "rootModelIdentifier", .text = CORE_ML},
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
    if (!row->if_marked && tsr_is_marked(store)) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    tsr_status status = TSR_OK;
    if (tsr_name_holds(text.data, tsr_str_from(row->key)))
        status = tsr_json_parse(text.data, checkpoint->host, &root, &ignored);
    tsr_bytes_free(&text);
    if (status == TSR_E_NOMEM) return tsr_fail(err, status, "%s", ignored.message);
    if (root && tsr_json_states(root, row->key)) *what = row->text ? row->text : row->what(root);
    cJSON_Delete(root);
    return TSR_OK;
}

tsr_status tsr_foreign_form(tsr_checkpoint *checkpoint, const char **what, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    bool is_local;
    TSR_TRY(is_local_checkpoint(checkpoint->store, &is_local, err));
    *what = is_megatron_zarr(store) ? MEGATRON_ZARR : is_local ? NVRX_LOCAL : NULL;
    if (!TSR_IS_SMALL && !*what && is_of_paddle(store)) *what = PADDLE_RANKS;
    for (size_t i = 0; i < sizeof documents / sizeof documents[0] && !*what; i++)
        TSR_TRY(by_document(checkpoint, &documents[i], what, err));
    return TSR_OK;
}
