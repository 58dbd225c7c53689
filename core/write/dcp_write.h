/* Writes a DCP directory: item archives, one after the other, in `.distcp` files, and then `.metadata`. */
#ifndef TSR_WRITE_DCP_WRITE_H
#define TSR_WRITE_DCP_WRITE_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/dcp_item.h"
#include "tessera/sys/json.h"
#include "write/write_item.h"

/* An entry of the new checkpoint. */
typedef struct tsr_dcp_output_entry {
    const tsr_entry *entry; /* a tensor, or an object with its value */
    tsr_str name;
    const tsr_path_item *path;
    uint32_t path_length;
    tsr_dtype dtype;           /* for tensors: dtype in the destination */
    bool in_mcore_data;        /* for tensors, as in tsr_dcp_new_entry */
    const uint64_t *fragments; /* number of fragments per dim if the tensor is stored as fragments (torch_plan.h); or NULL */
} tsr_dcp_output_entry;

/* One item: a box of a tensor, or a whole object. The items of a source must be in the order of its chunks. Boxes of a
 * source with fragments have the size of a fragment in every dim but the first. */
typedef struct tsr_dcp_piece {
    size_t source;           /* index */
    const uint64_t *offsets; /* NULL for zeros, and for objects */
    const uint64_t *sizes;   /* NULL for the whole tensor */
    uint32_t file;           /* index into the names */
    const tsr_value *value;  /* what the item of a sharded tensor subclass holds; NULL: a box of the source, or its value */
} tsr_dcp_piece;

typedef struct tsr_dcp_job {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    const tsr_dcp_output_entry *sources;
    size_t source_count;
    const tsr_dcp_piece *pieces; /* sorted by file, and in the order in which they are stored */
    size_t piece_count;
    const tsr_str *files; /* "__0_0.distcp", …; files without pieces are not written */
    uint32_t file_count;
    tsr_torch_version for_torch; /* as in tsr_dcp_new_metadata */
    bool unsummed;               /* the items state no checksums */
    uint64_t *file_sizes;        /* out: file_count of them */
    uint64_t byte_total;         /* out: of tensors */
} tsr_dcp_job;

/* Lays everything out in the job's arena. Borrows everything the job points to. */
tsr_status tsr_dcp_lay_out(tsr_dcp_job *job, tsr_writer *out, tsr_error *err);

/* Writes an entry that is not a tensor as JSON, in listings and in the objects.json next to a file that cannot contain
 * objects. */

/* Writes the members "type" and "value", or "repr" if JSON cannot represent the value exactly. */
void tsr_put_object(tsr_json *json, const tsr_entry *entry, const tsr_host *host);
/* Writes the members "dtype" and "shape". */
void tsr_put_dtype_and_shape(tsr_json *json, const tsr_entry *entry);

#endif
