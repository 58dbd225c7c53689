/* Finds chunks of DCP items, and the CRCs that the items state, in threads before they are needed. Each chunk takes a few
 * small reads that depend on each other, which take longer than the data itself on a file server. A store that fetches ahead is
 * told of them first.
 *
 * Chunks that cannot be found here are left to tsr_checkpoint_locate and tsr_checkpoint_crc, which report the reason. A
 * tsr_ahead is used by one thread, but gathers of all threads may look chunks up between two calls of tsr_ahead_seek. */
#ifndef TSR_STREAM_AHEAD_H
#define TSR_STREAM_AHEAD_H

#include "tessera/box.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint_bytes.h"

typedef struct tsr_ahead tsr_ahead;

/* *out is NULL if the chunks have views, so that nothing must be found. Errors: TSR_E_NOMEM. */
tsr_status tsr_ahead_new(tsr_checkpoint *checkpoint, tsr_ahead **out, tsr_error *err);
void tsr_ahead_free(tsr_ahead *ahead); /* accepts NULL, as do all functions below, unless stated otherwise */

/* Requests the chunks of a catalog's entry that intersect `box` (NULL: all chunks), unless too many are kept already. */
tsr_status tsr_ahead_want(tsr_ahead *ahead, const tsr_entry *entry, const tsr_box *box, tsr_error *err);
/* Finds all requested chunks that were not looked for yet. */
void tsr_ahead_seek(tsr_ahead *ahead);
/* Returns the number of requested chunks that were not looked for yet. */
size_t tsr_ahead_waiting(const tsr_ahead *ahead);
/* Forgets everything if too many are kept. No gather that uses `ahead` may be open. */
tsr_status tsr_ahead_make_room(tsr_ahead *ahead, tsr_error *err);
/* Returns what was found, or NULL. Its strides are valid until it is forgotten. */
const tsr_found *tsr_ahead_find(const tsr_ahead *ahead, const tsr_chunk *chunk);

#endif
