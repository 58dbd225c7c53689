/* Value trees below what their constructors show: whether two are equal, whether JSON can hold one, attributes, and values
 * that the caller fills in.
 *
 * Example:
 *
 *     tsr_json json;
 *     tsr_json_start(&json, write_to_stdout, stdout, 0, &err);
 *     if (tsr_value_is_json(state, 60, 1000)) tsr_json_value(&json, state);
 *     status = tsr_json_finish(&json); */
#ifndef TESSERA_SYS_VALUE_WALK_H
#define TESSERA_SYS_VALUE_WALK_H

#include "tessera/sys/json.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* How two trees compare; TSR_TOO_LARGE: they are too large to compare. */
typedef enum tsr_match { TSR_SAME = 0, TSR_DIFFERENT = 1, TSR_TOO_LARGE = 2 } tsr_match;
/* Deep equality. NaN equals NaN; 1 and 1.0, 0.0 and -0.0 differ; the order of dicts (with unique keys) and sets does not
 * count, nor does dict against OrderedDict. Tensors inside are compared by dtype and shape only: their bytes are the
 * caller's. Large containers of a file are compared once each, however often they are met. TSR_TOO_LARGE beyond
 * `depth` containers (at most 256) or `nodes` visits. */
tsr_match tsr_value_match(const tsr_value *a, const tsr_value *b, uint32_t depth, uint64_t nodes);
/* The same, and `tensor` is called for the two tensors of every place (shared ones each time); false from it ends the walk
 * with TSR_DIFFERENT. */
typedef bool (*tsr_value_tensors)(void *ctx, const struct tsr_entry *a, const struct tsr_entry *b);
tsr_match tsr_value_match_tensors(const tsr_value *a, const tsr_value *b, uint32_t depth, uint64_t nodes,
                                  tsr_value_tensors tensor, void *ctx);

/* Whether JSON can hold the value exactly (finite numbers, integers of at most 64 bytes, strings of valid Unicode, lists,
 * string-keyed dicts). False for TSR_VALUE_ENDLESS, and beyond `depth` containers (63 are the emitter's limit, those
 * already open included) or `nodes` visits. */
bool tsr_value_is_json(const tsr_value *value, uint32_t depth, uint64_t nodes);
/* A value that tsr_value_is_json accepts, as JSON. */
void tsr_json_value(tsr_json *json, const tsr_value *value);

/* The attributes of a DICT; NULL for those without and for other kinds. */
static inline const tsr_value *tsr_value_attributes(const tsr_value *value)
{
    return value->kind == TSR_VALUE_DICT ? value->as.attributes : NULL;
}

/* A new value of `kind`; the caller fills in the rest. NULL: no memory. */
tsr_value *tsr_value_new(tsr_arena *arena, tsr_value_kind kind, tsr_error *err);

/* A value with `count` items of `kind`; as the other constructors (tessera/value.h). `items` are borrowed. */
tsr_value *tsr_value_items(tsr_arena *arena, tsr_value_kind kind, const tsr_value *const *items, size_t count,
                           tsr_error *err);
/* A tensor's leaf; as the other constructors (tessera/value.h). */
tsr_value *tsr_value_tensor(tsr_arena *arena, const struct tsr_entry *entry, tsr_error *err); /* `entry` is borrowed */

/* A value as one line of Python-like text, at most `capacity` - 1 bytes plus NUL; what does not fit ends in "…". Depth and
 * work are bounded by the capacity. Returns `out`. */
const char *tsr_value_text(const tsr_value *value, char *out, size_t capacity);
TSR_API_END

#endif
