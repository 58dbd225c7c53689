/* The owner of a state dict, and what the operations of this module share. */
#ifndef TSR_STATEDICT_STATE_DICT_H
#define TSR_STATEDICT_STATE_DICT_H

#include "live/tensor/leaves.h"
#include "live/tensor/share.h"
#include "tessera/statedict.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/try.h"

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

#endif
