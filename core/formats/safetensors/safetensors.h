/* An opened safetensors file (or an image of one inside a larger file): its tensors and its metadata pairs.
 *
 *   u64 header length | header: {"name":{"dtype":…,"shape":[…],"data_offsets":[begin,end]},…} | data section
 *
 * Rejects everything that the reference reader rejects, and two more things that are ambiguous: duplicate tensor names, and
 * values whose JSON type is not the format's (such as an array instead of a tensor's object). Oddities that the reference
 * accepts become findings. A file that is too short or too long is an error finding, and the data that it has can still be
 * read.
 *
 * Source: the safetensors format description and the behavior of safetensors 0.8 (tests/golden/safetensors_verdicts). */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_H

#include "formats/common/file_names.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/store.h"

#define TSR_SAFETENSORS_MAX_HEADER 100000000u
/* The metadata key of a file that is one part of a checkpoint; its value is the part's name. */
#define TSR_SAFETENSORS_PART "tessera.part"
/* The metadata key of DCP for the places of a file's shards. It does not hold for any other file. */
#define TSR_SAFETENSORS_SHARDING "DCP_SHARDING_INFO"

/* The metadata key of a file's checksum: eight lower-case hexadecimal digits, the CRC-32 of the whole file with these digits as
 * TSR_SAFETENSORS_NO_SUM. It only counts as the last key of metadata that is the last member of the header, which no other
 * program writes: a program that copies the metadata of a file puts it first. */
#define TSR_SAFETENSORS_SUM    "tessera.crc32"
#define TSR_SAFETENSORS_NO_SUM "00000000"

/* What a header states about the bytes of its file. */
typedef enum tsr_safetensors_sum_kind {
    TSR_SUM_NONE,
    TSR_SUM_STATED,
    TSR_SUM_NOT_DIGITS, /* the value is not eight lower-case hexadecimal digits */
    TSR_SUM_MISSPELT    /* the key differs from TSR_SAFETENSORS_SUM in one byte: damaged if the digits fit the right one */
} tsr_safetensors_sum_kind;

typedef struct tsr_safetensors_sum {
    tsr_safetensors_sum_kind kind;
    uint64_t position; /* of the digits in the file */
} tsr_safetensors_sum;

typedef struct tsr_safetensors_tensor {
    tsr_str name;
    const uint64_t *shape; /* in elements, `ndim` of them, as in the header (which counts single F4 elements) */
    uint64_t begin, end;   /* bytes, in the data section */
    uint64_t position;     /* of the name in the file, in bytes */
    uint32_t ndim;
    tsr_dtype dtype;
} tsr_safetensors_tensor;

/* A pair of the metadata whose key is another name of a tensor, as safetensors.torch.save_model writes for tied weights:
 *
 *   {"__metadata__":{"decoder.weight":"embed.weight"},"embed.weight":{…}}
 *
 * The value is the name of a tensor of the file, and the key is not. "format" and the keys of Tessera and DCP are never
 * names. */
typedef struct tsr_safetensors_second {
    size_t pair;     /* index into the metadata */
    uint64_t tensor; /* index into the tensors */
    bool is_text;    /* set by readers: another file has a tensor of this name, so the pair is not a name after all */
} tsr_safetensors_second;

typedef struct tsr_safetensors {
    uint32_t file;
    uint64_t data_offset;                  /* of the data section in the file, in bytes */
    uint64_t data_size;                    /* bytes in the file; tensors may end beyond them if the file was cut short */
    const tsr_safetensors_tensor *tensors; /* in header order */
    uint64_t count;
    const tsr_text_pair *metadata; /* NULL if there is none; a duplicate key is listed once, with its last value */
    size_t metadata_count;
    tsr_safetensors_second *seconds; /* in the order of their pairs */
    size_t second_count;
    tsr_safetensors_sum sum;
    tsr_name_index *names;
    tsr_vec list; /* owns the memory of `tensors` */
} tsr_safetensors;

/* Opens the image at [offset, offset + size) of a file. Names, shapes and metadata are allocated in `arena`; everything else
 * is freed by tsr_safetensors_close. Errors name the file and the byte. Needs about 60 bytes per tensor, the names, the
 * distinct shapes, and temporarily the header. */
tsr_status tsr_safetensors_open(tsr_range in, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                                tsr_safetensors *out, tsr_error *err);
/* Keeps the first `count` tensors, and frees the memory of the others and of the index of names. For a reader that moves a
 * million tensors elsewhere, the last ones first. */
void tsr_safetensors_close(tsr_safetensors *opened); /* accepts a zeroed one */
/* Finds a tensor by its exact name; NULL if there is none. O(1). */
const tsr_safetensors_tensor *tsr_safetensors_find(const tsr_safetensors *opened, tsr_str name);
/* The value of a metadata key, or {NULL, 0}. */
tsr_str tsr_safetensors_metadata(const tsr_safetensors *opened, tsr_str key);
/* Whether a metadata key can be a second name: not one that has a meaning of its own, or that no tensor may have. */
bool tsr_safetensors_may_be_second(tsr_str key);
/* Whether a metadata key belongs to Tessera ("tessera."), so that it says nothing about the checkpoint. */
bool tsr_safetensors_is_own_key(tsr_str key);
/* Whether a file that begins with `first_bytes` and has `size` bytes may be a safetensors file. */
bool tsr_safetensors_looks_like(tsr_str first_bytes, uint64_t size);

/* Writes safetensors files: computes the header and the data offsets from a list of tensors.
 *
 *   u64 length | {"w":{…},…,"__metadata__":{"format":"pt",…,"tessera.crc32":"…"}} | spaces up to a multiple of 64 | data section
 *
 * Tensors are in the same order as in the reference library's files (widest dtype first, then by name), so each begins at a
 * multiple of its element size. The output depends only on the input. Source: serialize() of safetensors 0.8 and its
 * output. */

typedef struct tsr_safetensors_item {
    tsr_str name;
    tsr_dtype dtype; /* PyTorch's float4 pairs are written as F4 with twice the last dimension */
    uint32_t ndim;
    const uint64_t *shape; /* in elements */
    uint64_t tag;          /* for the caller's own use */
    uint64_t begin, end;   /* set by the plan: bytes in the data section */
} tsr_safetensors_item;

/* One file. The caller sets its contents, and tsr_safetensors_plan_file computes the sizes. */
typedef struct tsr_safetensors_plan {
    tsr_safetensors_item *items;
    uint64_t count;
    const tsr_text_pair *pairs; /* of the metadata, in this order; without any it is "format": "pt" */
    size_t pair_count;
    bool unsummed;        /* leave out "tessera.crc32", which is otherwise added after the pairs */
    uint64_t header_size; /* bytes before the data section; a multiple of 64 */
    uint64_t data_size;   /* bytes */
} tsr_safetensors_plan;

/* Sorts the items and lays out the file. Borrows items and pairs. Errors name the tensor: TSR_E_UNSUPPORTED for a dtype or a
 * name that the format cannot represent (empty, NUL, invalid UTF-8, "__metadata__", a duplicate), TSR_E_LIMIT for a header
 * beyond 100,000,000 bytes. `allocator` is used for temporary memory. */
tsr_status tsr_safetensors_plan_file(tsr_safetensors_plan *plan, const tsr_allocator *allocator, tsr_error *err);
/* Writes exactly plan->header_size bytes. `crc32` is that of the file's bytes with TSR_SAFETENSORS_NO_SUM for the digits; the header
 * does not state it if the plan is unsummed. With a `crc32` of 0 the digits are TSR_SAFETENSORS_NO_SUM. */
tsr_status tsr_safetensors_write_header(const tsr_safetensors_plan *plan, uint32_t crc32, tsr_write_fn *write, void *ctx,
                                        tsr_error *err);

/* ---- The scanner of safetensors headers: bytes → tensors, in one pass. ---- */

typedef struct tsr_safetensors_scan {
    tsr_str header;
    uint64_t byte_base; /* position of the header in the file, for error messages */
    tsr_str file_name;
    tsr_arena *arena;
    tsr_findings *findings;
    uint64_t max_entries;
    tsr_vec tensors;  /* of tsr_safetensors_tensor; the caller sets the allocator and frees it */
    tsr_vec metadata; /* of tsr_text_pair; likewise */
    bool has_metadata;
    tsr_safetensors_sum sum; /* out */
} tsr_safetensors_scan;

/* Checks the syntax, the fields, and that each tensor's bytes match its shape and dtype; does not compare the names or the
 * offsets of different tensors. Names, shapes and pairs are copied into the arena. */
tsr_status tsr_safetensors_scan_header(tsr_safetensors_scan *scan, tsr_error *err);

#endif
