/* Where chunks of DCP items lie, and the CRCs that the items state, found by threads before they are asked for: each takes a
 * few small reads that wait for each other, which on a file server take longer than the bytes.
 *
 * What cannot be found here is left to tsr_checkpoint_locate and tsr_checkpoint_crc, which say why. Used by one thread,
 * except that gathers of all threads may look into it between two calls of tsr_ahead_seek. */
#ifndef TSR_STREAM_AHEAD_H
#define TSR_STREAM_AHEAD_H

#include "tessera/box.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint_bytes.h"

typedef struct tsr_ahead tsr_ahead;

/* *out is NULL where nothing is gained: chunks have their views, or the store fetches ahead by itself. */
tsr_status tsr_ahead_new(tsr_checkpoint *checkpoint, tsr_ahead **out, tsr_error *err);
void tsr_ahead_free(tsr_ahead *ahead); /* takes NULL, as all below do */

/* Notes the chunks of an entry of the catalog that meet `box` (NULL: all), up to a bound on all that is kept. */
tsr_status tsr_ahead_want(tsr_ahead *ahead, const tsr_entry *entry, const tsr_box *box, tsr_error *err);
/* Notes one chunk, which has no view, whatever the bound. `ahead` is not NULL. */
tsr_status tsr_ahead_want_chunk(tsr_ahead *ahead, const tsr_entry *entry, const tsr_chunk *chunk, tsr_error *err);
/* Looks for what is noted and not yet found. */
void tsr_ahead_seek(tsr_ahead *ahead);
/* Chunks that are noted and not yet looked for. */
size_t tsr_ahead_waiting(const tsr_ahead *ahead);
/* Forgets everything once the bound is reached. No gather that was opened with it may be open. */
tsr_status tsr_ahead_make_room(tsr_ahead *ahead, tsr_error *err);
/* NULL: not found. Its strides live as long as it is kept. */
const tsr_found *tsr_ahead_find(const tsr_ahead *ahead, const tsr_chunk *chunk);

#endif
