/* Values as bytes, for other ranks of the same program. How tensors are packed is up to the caller.
 *
 *   bytes   [kind u8][variant u8][what the kind needs]…   numbers little-endian; containers as their count and items */
#ifndef TSR_LIVE_TENSOR_VALUE_PACK_H
#define TSR_LIVE_TENSOR_VALUE_PACK_H

#include "tessera/host.h"
#include "tessera/sys/containers.h"
#include "tessera/value.h"

/* ---- packing ---- */

/* Appends what the other rank needs of a tensor that is inside `depth` containers. */
typedef tsr_status tsr_pack_tensor_fn(void *ctx, const tsr_value *value, size_t depth, tsr_vec *out, tsr_error *err);
/* Appends a value to `out` (of char). Errors: TSR_E_LIMIT for more containers in each other, or more values, than the limits of
 * `host` allow; TSR_E_NOMEM; those of `tensor`. */
tsr_status tsr_pack_tree(const tsr_value *tree, const tsr_host *host, tsr_pack_tensor_fn *tensor, void *ctx, tsr_vec *out,
                         tsr_error *err);
tsr_status tsr_pack_number(tsr_vec *out, uint64_t number, unsigned size, tsr_error *err);
tsr_status tsr_pack_text(tsr_vec *out, tsr_str text, tsr_error *err);

/* ---- unpacking ---- */

/* What is left of packed bytes. */
typedef struct tsr_packed_bytes {
    tsr_str rest;
    bool failed; /* something was taken beyond the end */
    tsr_arena *arena;
} tsr_packed_bytes;

/* Sets value->as of a TENSOR from what tsr_pack_tensor_fn appended. */
typedef tsr_status tsr_unpack_tensor_fn(void *ctx, tsr_packed_bytes *from, tsr_value *value, tsr_error *err);
/* Unpacks a value into `arena`. TSR_E_FORMAT if the bytes are not a packed value. */
tsr_status tsr_unpack_tree(tsr_str bytes, const tsr_host *host, tsr_unpack_tensor_fn *tensor, void *ctx, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);
/* Returns the next bytes, or NULL if there are fewer. */
const uint8_t *tsr_packed_take(tsr_packed_bytes *from, uint64_t size);
/* 0 beyond the end, so it is enough to check `failed` once after several numbers. */
uint64_t tsr_packed_number(tsr_packed_bytes *from, unsigned size);
/* Copies a text into the arena. */
tsr_status tsr_packed_text(tsr_packed_bytes *from, tsr_str *out, tsr_error *err);

#endif
