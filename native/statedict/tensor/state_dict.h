/* The owner of a state dict, and what the operations of this module have in common. */
#ifndef TSR_STATEDICT_STATE_DICT_H
#define TSR_STATEDICT_STATE_DICT_H

#include "statedict/tensor/leaves.h"
#include "statedict/tensor/share.h"
#include "tessera/statedict.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/try.h"

/* Memory that a dict owns. */
typedef struct tsr_buffer {
    tsr_device *device; /* NULL: host */
    tsr_device *pinned; /* host memory that this device has page-locked */
    void *data;
    uint64_t bytes;
} tsr_buffer;

struct tsr_state_dict {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec pairs;         /* of the root that put makes: keys and values alternate */
    struct tsr_map *index; /* string key → place of its value in `pairs` */
    tsr_value made;
    const tsr_value *root;
    tsr_vec buffers; /* of tsr_buffer */
    uint64_t owned;
    /* Created with `share`: the segments, and which tensor is which buffer. */
    tsr_shared *shared;
    tsr_leaves shared_leaves;
    tsr_vec pinned; /* of tsr_buffer: parts of the segment that a device has page-locked */
};

/* A copy of `tensor` in the dict's arena: arrays too, memory not. */
tsr_status tsr_state_dict_copy_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err);
/* Memory of the dict's own for all parts of a tensor that lives in its arena. */
tsr_status tsr_state_dict_give_memory(tsr_state_dict *dict, tsr_tensor *tensor, tsr_device *pin, tsr_error *err);
/* The memory of a tensor: one buffer, or one a part. Buffers without bytes are given too. */
uint32_t tsr_tensor_buffer_count(const tsr_tensor *tensor);
tsr_status tsr_tensor_buffer(const tsr_tensor *tensor, uint32_t index, tsr_arena *arena, void **data, uint64_t *bytes,
                             tsr_error *err);
/* A leaf for a tensor that lives as long as the dict. */
const tsr_value *tsr_state_dict_leaf(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_error *err);

/* Whether dtype and shape (and distribution) are the same. */
bool tsr_tensor_is_like(const tsr_tensor *a, const tsr_tensor *b, bool with_distribution);
/* TSR_E_USAGE with both in words unless they are alike. */
typedef struct tsr_likeness {
    const char *a_name, *b_name; /* where each is */
    bool with_distribution;
} tsr_likeness;
tsr_status tsr_tensor_same_place(const tsr_tensor *a, const tsr_tensor *b, const tsr_likeness *how, tsr_arena *arena,
                                 tsr_error *err);
/* In words, for messages, and equal for equal tensors: dtype, shape and distribution, not what a rank holds. */
tsr_str tsr_tensor_words(const tsr_tensor *tensor, tsr_arena *arena, tsr_error *err);

/* Copies all local memory, between any devices; those of the same distribution only. May be under way until both devices
 * are synchronized. */
tsr_status tsr_tensor_copy(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *arena, tsr_error *err);
tsr_status tsr_device_wait(tsr_device *device, tsr_error *err); /* takes NULL */
/* `bytes` from host memory to a device's (NULL: the host's), or back; done when it returns. */
tsr_status tsr_device_upload(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
tsr_status tsr_device_download(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);

#endif
