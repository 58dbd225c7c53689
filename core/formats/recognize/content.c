/* Recognizes a file's kind by its first bytes, using the signatures in each format's specification. */
#include "base/cursor.h"
#include "formats/recognize/recognize.h"
#include "formats/safetensors/safetensors.h"
#include "tessera/sys/try.h"

enum { HEAD = 512, ZIP_NAME_AT = 30 };

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

/* Looks for a LONG1 of ten bytes with torch.save's magic number 0x1950a86a20f9469cfc6c, in a pickle of protocol 2 or later.
 * From protocol 4 on, the number is inside a frame. */
static bool is_legacy(tsr_str head)
{
    static const char magic[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    enum { MAGIC = sizeof magic - 1, FRAME = 9 };
    const size_t at = head.size > 2 && head.data[2] == '\x95' ? 2 + FRAME : 2;
    return head.size >= at + MAGIC && head.data[0] == '\x80' && memcmp(head.data + at, magic, MAGIC) == 0;
}

/* The name of a zip archive's first member; empty if the file is not a zip archive. */
static tsr_str first_member(tsr_str head)
{
    if (head.size <= ZIP_NAME_AT || memcmp(head.data, "PK\3\4", 4) != 0) return (tsr_str){NULL, 0};
    size_t size = (size_t)tsr_load_le((const uint8_t *)head.data + 26, 2);
    if (size > head.size - ZIP_NAME_AT) size = head.size - ZIP_NAME_AT;
    return (tsr_str){head.data + ZIP_NAME_AT, size};
}

/* All members of PyTorch's archives are in one folder, and one of these comes first. */
static bool is_torch_zip(tsr_str head)
{
    static const char *const first[] = {"/data.pkl", "/version", "/.format_version", "/byteorder"};
    tsr_str name = first_member(head);
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        if (tsr_str_ends(name, tsr_str_from(first[i]))) return true;
    return false;
}

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
    tsr_str member = first_member(head); /* torch.jit.save writes tensors and constants first */
    if (tsr_str_ends(member, TSR_STR("/data/0")) || tsr_str_ends(member, TSR_STR("/constants.pkl")))
        return "a TorchScript archive: a program, not a checkpoint; torch.jit.load loads it";
    if (tsr_str_ends(member, TSR_STR("/data/weights/weight_0")) ||
        tsr_str_ends(member, TSR_STR("/data/weights/model_weights_config.json")))
        return "an archive of torch.export (pt2): a program, not a checkpoint; torch.export.load loads it";
    if (head.size > 4 && memcmp(head.data, "ZN", 2) == 0 && (unsigned char)head.data[2] < ' ')
        return "compressed by ZipNN, which is not supported: the package zipnn decompresses it";
    return foreign_zip_name(head, member, tsr_str_ends(name, TSR_STR(".onnx")));
}

tsr_status tsr_content_of(tsr_store *store, uint32_t file, tsr_content *content, const char **foreign, tsr_error *err)
{
    char bytes[HEAD];
    uint64_t size = store->files[file].size;
    tsr_str head = {bytes, size < HEAD ? (size_t)size : HEAD};
    *foreign = NULL;
    TSR_TRY(tsr_store_read(store, file, 0, bytes, head.size, err));
    *content = tsr_safetensors_looks_like(head, size) ? TSR_CONTENT_SAFETENSORS
               : is_torch_zip(head)                   ? TSR_CONTENT_TORCH_ZIP
               : is_legacy(head)                      ? TSR_CONTENT_TORCH_LEGACY
               : is_json(head)                        ? TSR_CONTENT_JSON
                                                      : TSR_CONTENT_UNKNOWN;
    if (*content != TSR_CONTENT_UNKNOWN) return TSR_OK;
    *foreign = foreign_name(head, store->files[file].name);
    if (*foreign) *content = TSR_CONTENT_FOREIGN;
    return TSR_OK;
}
