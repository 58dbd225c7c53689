/* The owner of a state dict, and what the operations of this module share. */
#ifndef TSR_LIVE_TENSOR_STATE_DICT_H
#define TSR_LIVE_TENSOR_STATE_DICT_H

#include "tessera/comm.h"
#include "tessera/host.h"
#include "tessera/memory.h"
#include "tessera/statedict.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"
#include "tessera/tensor.h"
#include "tessera/value.h"

/* ---- path ---- */

/* The current position of a walk over a nested value. It is kept on the stack, and made into a text for messages. */

typedef struct tsr_step tsr_step;
struct tsr_step {
    const tsr_step *up;   /* NULL: the root, which is not a step itself */
    const tsr_value *key; /* the key, in a dict; otherwise NULL */
    size_t index;         /* the position, in a list or tuple */
    uint32_t depth;
};

/* Keys joined with dots, positions in brackets: "groups[0].lr"; "" for the root. data is NULL on TSR_E_NOMEM. */
tsr_str tsr_step_text(const tsr_step *step, tsr_arena *arena, tsr_error *err);
/* TSR_E_LIMIT for more than limits.depth, or 256, steps; TSR_E_UNSUPPORTED for a key that is neither a string nor an int. */
tsr_status tsr_step_check(const tsr_step *step, const tsr_host *host, tsr_arena *arena, tsr_error *err);
/* Appends ", in 'path'" to an error. */
tsr_status tsr_step_context(const tsr_step *step, tsr_arena *arena, tsr_status status, tsr_error *err);

#define TSR_NO_PAIR SIZE_MAX
/* The first returns the number of the pair with a key, or TSR_NO_PAIR; the second its value, or NULL. Both search from pair
 * `hint` on, so that dicts in the same order need only one comparison per key. */
size_t tsr_dict_pair(const tsr_value *dict, const tsr_value *key, size_t hint);
const tsr_value *tsr_dict_find(const tsr_value *dict, const tsr_value *key, size_t hint);
/* A dict of keys and values, alternating, which are copied into `arena`. */
const tsr_value *tsr_dict_of_pairs(const tsr_vec *pairs, tsr_arena *arena, tsr_error *err);
bool tsr_is_list(const tsr_value *value); /* also true for a tuple */
/* The Python name of the value's type. */
const char *tsr_python_type(const tsr_value *value);

/* ---- leaves ---- */

/* Lists the leaves of a nested value in the order of their paths. That order is the same on all ranks, regardless of the
 * order of dicts. Also lets the ranks agree on their leaves. */

typedef struct tsr_leaf_at {
    tsr_str path;  /* for messages */
    tsr_str order; /* unique for each path; leaves are sorted by it */
    const tsr_value *value;
    const tsr_tensor *tensor; /* NULL if the leaf is not a tensor */
} tsr_leaf_at;

typedef struct tsr_leaves {
    tsr_leaf_at *items;
    size_t count;
} tsr_leaves;

/* Whether a list, with the lists in it down to `depth`, contains neither tensors nor dicts. */
bool tsr_list_is_plain(const tsr_value *list, uint32_t depth);

/* Lists all leaves, or only tensors. Everything lives in `arena`. */
tsr_status tsr_leaves_of(const tsr_value *state, const tsr_host *host, bool tensors_only, tsr_arena *arena, tsr_leaves *out,
                         tsr_error *err);

/* Checks that distributed tensors are distributed over as many ranks as the communicator has, and that this rank is the same
 * in both. */
tsr_status tsr_leaves_check(const tsr_leaves *leaves, const tsr_comm *comm, tsr_error *err);

/* What ranks must have in common: a list of named items for them to compare. */
typedef struct tsr_agreement {
    tsr_vec bytes;
    tsr_arena *arena;
} tsr_agreement;
tsr_status tsr_agreement_add(tsr_agreement *agreement, tsr_str order, tsr_str path, tsr_str words, tsr_error *err);
/* Adds tensors with dtype, shape and distribution, other leaves only with their paths. `kind` distinguishes lists: "" or
 * "local ". */
tsr_status tsr_agreement_add_leaves(tsr_agreement *agreement, const char *kind, const tsr_leaves *leaves, tsr_error *err);
/* Compares the lists of all ranks. Items must have been added in ascending `order`. Every rank passes its own status so far,
 * and all get the same result: the failure of the lowest rank, or TSR_E_USAGE with the first item that differs and its value
 * on both ranks. Frees the list. */
tsr_status tsr_agreement_check(tsr_agreement *agreement, tsr_comm *comm, tsr_status mine, const tsr_allocator *allocator,
                               tsr_error *err);

/* ---- share ---- */

/* Memory that several processes of one machine share: every rank creates one segment and maps those of the others. */

/* A rank's segment, as the others map it. */
typedef struct tsr_segment {
    char name[48]; /* random */
    uint64_t size;
} tsr_segment;

typedef struct tsr_shared {
    const tsr_allocator *allocator;
    uint32_t own, ranks; /* this rank, and how many share */
    size_t count;        /* buffers of each rank */
    tsr_segment *segments;
    uint8_t **mapped; /* by rank; NULL: not mapped yet */
} tsr_shared;

/* Every rank creates a segment with `count` buffers of the given `sizes`. `count` must be the same on all ranks. Each buffer
 * begins at a multiple of 64 bytes. The names are removed before this returns, and the memory lives as long as a process has
 * mapped it. Collective: all ranks get the same status. Errors: TSR_E_IO that names the rank (also if it is on another
 * machine), TSR_E_NOMEM. */
tsr_status tsr_shared_new(tsr_comm *comm, const uint64_t *sizes, size_t count, const tsr_allocator *allocator,
                          tsr_shared **out, tsr_error *err);
void tsr_shared_free(tsr_shared *shared); /* accepts NULL */

/* Buffer `index` of `rank`, with its size in *bytes; NULL if it has no such buffer. */
void *tsr_shared_buffer(const tsr_shared *shared, uint32_t rank, size_t index, uint64_t *bytes);

/* ---- state dict ---- */

/* Memory that a dict owns. */
typedef struct tsr_buffer {
    tsr_device *device; /* NULL: host memory */
    tsr_device *pinned; /* the device that has page-locked this host memory; NULL: none */
    void *data;
    uint64_t bytes;
} tsr_buffer;

struct tsr_state_dict {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec pairs;         /* keys and values, alternating, of a root made with put */
    struct tsr_map *index; /* string key → index of its value in `pairs` */
    tsr_value made;
    const tsr_value *root;
    tsr_vec buffers; /* of tsr_buffer */
    uint64_t owned;
    /* Only if created with `share`: the segments, and the leaves whose indices are those of buffers. */
    tsr_shared *shared;
    tsr_leaves shared_leaves;
    tsr_vec pinned; /* of tsr_buffer: parts of the segment that a device has page-locked */
};

/* Copies `tensor` into the dict's arena, with its arrays but not its memory. */
tsr_status tsr_state_dict_copy_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err);
/* Allocates memory, which the dict owns, for all parts of a tensor in its arena. */
tsr_status tsr_state_dict_give_memory(tsr_state_dict *dict, tsr_tensor *tensor, tsr_device *pin, tsr_error *err);
/* The memory of a tensor: one buffer, or one per part. Includes buffers without bytes. */
uint32_t tsr_tensor_buffer_count(const tsr_tensor *tensor);
tsr_status tsr_tensor_buffer(const tsr_tensor *tensor, uint32_t index, tsr_arena *arena, void **data, uint64_t *bytes,
                             tsr_error *err);
/* Makes a leaf for a tensor that lives as long as the dict. */
const tsr_value *tsr_state_dict_leaf(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_error *err);
/* A copy of a tensor, in memory of the state dict on `device` (NULL: the host). It is complete on return. */
tsr_status tsr_state_dict_duplicate(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_device *device,
                                    const tsr_value **out, tsr_error *err);

/* Whether dtype and shape are the same and, with `with_distribution`, also the distribution. */
bool tsr_tensor_is_like(const tsr_tensor *a, const tsr_tensor *b, bool with_distribution);
/* TSR_E_USAGE that describes both tensors unless they are alike. */
typedef struct tsr_likeness {
    const char *a_name, *b_name; /* for messages: where each tensor comes from */
    bool with_distribution;
} tsr_likeness;
tsr_status tsr_tensor_same_place(const tsr_tensor *a, const tsr_tensor *b, const tsr_likeness *how, tsr_arena *arena,
                                 tsr_error *err);
/* Describes dtype, shape and distribution for messages, but not what a rank holds. Equal tensors have equal descriptions. */
tsr_str tsr_tensor_words(const tsr_tensor *tensor, tsr_arena *arena, tsr_error *err);

/* Copies all local memory between two tensors with the same distribution, on any devices. The copies may be in progress
 * until both devices are synchronized. */
tsr_status tsr_tensor_copy(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *arena, tsr_error *err);
tsr_status tsr_device_wait(tsr_device *device, tsr_error *err); /* accepts NULL */
/* Copies `bytes` bytes from host memory to a device (NULL: host memory), or back. The copy is done on return. */
tsr_status tsr_device_upload(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
tsr_status tsr_device_download(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);

/* ---- value pack ---- */

/* Values as bytes (value_pack.h), with the tensors of state dicts. */

/* Appends a value to `out` (of char). Of tensors that are at most `tensors_at` containers deep, only dtype and shape are
 * packed. 0-d tensors and those further down belong to a value, so their bytes are packed, too, and copied from the device
 * if necessary. With `tensors_at` 0, any tensor is TSR_E_UNSUPPORTED. TSR_E_LIMIT beyond the limits of `host`. */
tsr_status tsr_value_pack(const tsr_value *value, uint32_t tensors_at, const tsr_host *host, tsr_vec *out, tsr_error *err);
/* Unpacks a value into `arena`. Tensors are whole. They are meta unless their bytes were packed; these are in the arena, too.
 * TSR_E_FORMAT if the bytes are not a packed value. */
tsr_status tsr_value_unpack(tsr_str bytes, const tsr_host *host, tsr_arena *arena, const tsr_value **out, tsr_error *err);

/* Makes `*out` from `value` with other tensors. `each` gives the tensor in place of one, or leaves NULL what stays. TSR_E_LIMIT
 * for more than `depth` containers in each other. */
typedef struct tsr_replacing {
    tsr_status (*each)(void *ctx, const tsr_tensor *tensor, const tsr_tensor **out, tsr_error *err);
    void *ctx;
    tsr_arena *arena; /* of what is made */
    uint64_t depth;
} tsr_replacing;
tsr_status tsr_tensors_replace(tsr_replacing how, const tsr_value *value, const tsr_value **out, tsr_error *err);

/* ---- convert tensors ---- */

/* Copies between tensors of different dtypes and shapes, as PyTorch's copy_ does. */

/* Whether elements of `from` can be converted to `to`: between float types, and from integers to float types. */
bool tsr_convert_possible(tsr_dtype from, tsr_dtype to);

/* Copies and converts elements between tensors with the same shape and distribution, on any devices. The copy is done on
 * return. */
tsr_status tsr_tensor_convert(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *passing, tsr_error *err);

/* ---- warn ---- */

/* Passes warnings from a call to the calling program. */

void tsr_warn(const tsr_warnings *warnings, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

/* Counts names of the same kind, for a single warning about all of them. */
typedef struct tsr_name_tally {
    size_t count;
    tsr_str first; /* borrowed */
} tsr_name_tally;

void tsr_name_tally_add(tsr_name_tally *tally, tsr_str name);
/* Warns "WHAT: 'a' and 2 others". Does nothing if the tally is empty. */
void tsr_name_tally_warn(const tsr_name_tally *tally, const tsr_warnings *warnings, const char *what);

#endif
