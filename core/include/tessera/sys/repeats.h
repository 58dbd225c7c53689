/* Tensors that are far larger than their stored bytes. A file of a kilobyte can hold a tensor of 2^40 elements: with a
 * stride of 0, with strides that overlap, or as many chunks that name the same bytes. Listing such a tensor costs nothing;
 * reading it takes as long as if all of it were stored.
 *
 * A job over values adds the tensors that it will read and then asks whether it may start. A tensor counts if its elements
 * repeat stored ones more than TSR_REPEATS_MOST times; all tensors that count may have limits.repetition bytes together.
 * Tensors that repeat less, but overlap so much that all of them together repeat stored bytes more often than that, count
 * only from 64 times the limit on. The decompressed size of compressed bytes counts as stored, and so do holes of sparse
 * files. A tensor that is computed, such as one that a map casts, is stored as what it is computed from.
 *
 * Example:
 *
 *     tsr_repeats repeats;
 *     tsr_repeats_open(&repeats, checkpoint);
 *     status = tsr_repeats_add(&repeats, entry, NULL, NULL, NULL, &err);
 *     if (status == TSR_OK) status = tsr_repeats_check(&repeats, &err);
 *     tsr_repeats_close(&repeats); */
#ifndef TESSERA_SYS_REPEATS_H
#define TESSERA_SYS_REPEATS_H

#include "tessera/checkpoint.h"
#include "tessera/sys/map.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

#define TSR_REPEATS_MOST  1024u
#define TSR_REPEATS_NAMED 4u

/* The tensors that have been added; plain memory, opened by tsr_repeats_open. */
typedef struct tsr_repeats {
    tsr_checkpoint *checkpoint;
    tsr_vec spans;      /* of stored bytes: what the tensors are made of */
    tsr_map *seen;      /* containers of objects that were looked into */
    tsr_str holder;     /* the object whose tensors are being added, or empty */
    uint64_t to_locate; /* bytes of compressed items that may still be read to learn their strides */
    uint64_t total;     /* bytes of all tensors */
    uint64_t repeated;  /* bytes of those that count */
    uint64_t count;     /* of those */
    struct {
        tsr_str fqn;
        const struct tsr_entry *entry;
        uint64_t bytes, stored;
    } named[TSR_REPEATS_NAMED]; /* the first of those */
} tsr_repeats;

/* Borrows the checkpoint. */
void tsr_repeats_open(tsr_repeats *repeats, tsr_checkpoint *checkpoint);
void tsr_repeats_close(tsr_repeats *repeats);

/* Adds a tensor, or the box [offsets, offsets + sizes) of it in elements (both NULL: all of it); of an object, the tensors
 * inside. `counts` (may be NULL) says whether the tensor is one of those that count. Reads nothing, except of compressed
 * items that seem too small for their elements. Errors: TSR_E_NOMEM, and those of tsr_checkpoint_locate. */
tsr_status tsr_repeats_add(tsr_repeats *repeats, const tsr_entry *entry, const uint64_t *offsets, const uint64_t *sizes,
                           bool *counts, tsr_error *err);
/* Adds the tensors of a value tree, each once. */
tsr_status tsr_repeats_add_value(tsr_repeats *repeats, const tsr_value *value, tsr_error *err);
/* Whether the added tensors exceed host->limits.repetition. */
bool tsr_repeats_too_many(tsr_repeats *repeats);
/* TSR_E_LIMIT, with names and sizes, if they do. */
tsr_status tsr_repeats_check(tsr_repeats *repeats, tsr_error *err);

/* All of that for the selected tensors of a checkpoint. */
tsr_status tsr_repeats_check_catalog(tsr_checkpoint *checkpoint, const tsr_selection *selection, tsr_error *err);

/* All of that for one tensor, or the box [offsets, offsets + sizes) of it in elements (both NULL: all of it). */
tsr_status tsr_repeats_check_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, const uint64_t *offsets,
                                 const uint64_t *sizes, tsr_error *err);

TSR_API_END

#endif
