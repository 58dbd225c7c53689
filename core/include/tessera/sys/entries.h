/* Small questions about entries, their names, views and selections, which readers and writers ask everywhere.
 *
 * Example:
 *
 *     for (uint64_t c = 0; c < entry->chunk_count; c++)
 *         if (!entry->chunks[c].view || tsr_view_is_plain(entry->chunks[c].view)) puts("contiguous"); */
#ifndef TESSERA_SYS_ENTRIES_H
#define TESSERA_SYS_ENTRIES_H

#include "tessera/catalog.h"

TSR_API_BEGIN

/* Whether the elements are stored contiguously in row-major order. */
TSR_INLINE bool tsr_view_is_plain(const tsr_view *view)
{
    return !view->strides && !view->conj && !view->neg && !view->swap && !view->zstd;
}

/* Whether `entry` is one of the catalog's own, as opposed to one that was derived from others. */
static inline bool tsr_catalog_has(const tsr_catalog *catalog, const tsr_entry *entry)
{
    return ((uintptr_t)entry - (uintptr_t)catalog->entries) / sizeof *entry < catalog->entry_count;
}

/* Whether the job includes the entry with this name. */
TSR_INLINE bool tsr_selection_keeps(const tsr_selection *selection, tsr_str fqn)
{
    return !selection->keeps || selection->keeps(selection->ctx, fqn);
}

/* The part of a name after its last dot, such as "weight" of "layers.0.weight"; all of it if it has no dot. */
TSR_INLINE tsr_str tsr_last_component(tsr_str name)
{
    size_t at = name.size;
    while (at && name.data[at - 1] != '.') at--;
    return at ? TSR_LITERAL(tsr_str){name.data + at, name.size - at} : name;
}

/* Whether two shapes have the same number of dimensions and the same sizes. */
bool tsr_shape_equal(uint32_t a_ndim, const uint64_t *a, uint32_t b_ndim, const uint64_t *b);

/* Whether two entries list the same shape; their dtypes may differ. */
bool tsr_entry_same_shape(const tsr_entry *a, const tsr_entry *b);

/* A tensor subclass that wraps other tensors (torchao's, say) is an OBJECT of its class with a DICT of parts: its state, and
 * under this name the arguments of torch._utils._rebuild_wrapper_subclass. */
#define TSR_WRAPPER_PART "wrapper"
/* Whether an entry is such a tensor, whole or sharded, whose value was read. */
bool tsr_entry_is_subclass(const tsr_entry *entry);

/* A path item as it is in a name: its key, or its number in decimal, which is written to `digits`. */
enum { TSR_PATH_DIGITS = 24 };
tsr_str tsr_path_item_text(const tsr_path_item *item, char digits[TSR_PATH_DIGITS]);
/* The length of that text. */
size_t tsr_path_item_size(const tsr_path_item *item);

/* The first key or position on the way to `entry` that is of another type than that of `other`, although they read the same, such
 * as 0 and "0"; NULL if there is none, or where one of the paths is unknown or of another length. */
const tsr_path_item *tsr_path_other_type(const tsr_entry *entry, const tsr_entry *other);
/* A path item as Python prints it: 'a', 0, or [0] for a position in a list. Returns `out`. */
const char *tsr_path_item_repr(const tsr_path_item *item, char *out, size_t capacity);

const char *tsr_entry_kind_name(tsr_entry_kind kind); /* as documents have it: "tensor", "object", "opaque" */

TSR_API_END

#endif
