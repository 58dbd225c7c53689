/* A safetensors file (or an image of one inside a larger file), opened: its tensors and its metadata pairs.
 *
 *   u64 header length | header: {"name":{"dtype":…,"shape":[…],"data_offsets":[begin,end]},…} | data section
 *
 * Everything the reference reader refuses is refused, and two things more that could be read in two ways: duplicate
 * tensor names, and values of another JSON type than the format's (an array for a tensor's object). What the reference
 * accepts although it is odd becomes a finding. A file that ends too early or too late is an error finding: what is there
 * stays readable.
 *
 * Source: the safetensors format description and the behaviour of safetensors 0.8 (tests/golden/safetensors_verdicts). */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_H

#include "formats/common/name_index.h"
#include "tessera/dtype.h"
#include "tessera/findings.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/vec.h"

#define TSR_SAFETENSORS_MAX_HEADER 100000000u
/* The metadata key of a file that is one part of a checkpoint; its value is the part's name. */
#define TSR_SAFETENSORS_PART "tessera.part"

typedef struct tsr_safetensors_tensor {
    tsr_str name;
    const uint64_t *shape; /* elements, `ndim` of them; as the header has them (F4 counts single elements) */
    uint64_t begin, end;   /* bytes, in the data section */
    uint64_t position;     /* of the name in the file, in bytes */
    uint32_t ndim;
    tsr_dtype dtype;
} tsr_safetensors_tensor;

typedef struct tsr_safetensors_pair {
    tsr_str key;
    tsr_str value;
} tsr_safetensors_pair;

typedef struct tsr_safetensors {
    uint32_t file;
    uint64_t data_offset;                  /* of the data section in the file, in bytes */
    uint64_t data_size;                    /* bytes that are there; tensors may end beyond it when the file is cut short */
    const tsr_safetensors_tensor *tensors; /* in header order */
    uint64_t count;
    const tsr_safetensors_pair *metadata; /* NULL: none; a key that came twice is listed twice, the last one counts */
    size_t metadata_count;
    tsr_name_index *names;
    tsr_vec list; /* the memory of `tensors` */
} tsr_safetensors;

/* Opens the image at [offset, offset + size) of a file. Names, shapes and metadata live in `arena`, the rest until
 * tsr_safetensors_close. Errors name the file and the byte. Memory: about 60 bytes a tensor, the names and distinct
 * shapes, and while it runs the header. */
tsr_status tsr_safetensors_open(tsr_range in, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                                tsr_safetensors *out, tsr_error *err);
/* Keeps the first `count` tensors and gives back the memory of the others and of the index of names: for a reader that
 * moves a million of them elsewhere, the last ones first. */
void tsr_safetensors_cut(tsr_safetensors *opened, uint64_t count);
void tsr_safetensors_close(tsr_safetensors *opened); /* takes a zeroed one */
/* By exact name, or NULL. O(1). */
const tsr_safetensors_tensor *tsr_safetensors_find(const tsr_safetensors *opened, tsr_str name);
/* The value of a metadata key; {NULL, 0} when absent. */
tsr_str tsr_safetensors_metadata(const tsr_safetensors *opened, tsr_str key);
/* Whether a file that begins with `first_bytes` and has `size` bytes may be a safetensors file. */
bool tsr_safetensors_looks_like(tsr_str first_bytes, uint64_t size);

#endif
