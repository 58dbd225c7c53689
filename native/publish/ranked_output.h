/* One process's view of an output to an object store that several ranks write. It records which files this rank has written,
 * which then belong to it. What rank 0 writes into files of other ranks (headers, directories of archives) is sent to the
 * ranks that upload them, in rounds of TSR_MOST_KEPT bytes. */
#ifndef TSR_NATIVE_RANKED_OUTPUT_H
#define TSR_NATIVE_RANKED_OUTPUT_H

#include "tessera/comm.h"
#include "tessera/output.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/vec.h"

/* How many bytes rank 0 keeps before it sends them. A single write may be larger. */
enum { TSR_MOST_KEPT = 4 << 20 };

typedef struct tsr_ranked_output {
    tsr_output base; /* must be first */
    tsr_output *inner;
    tsr_comm *ranks;
    const tsr_allocator *allocator;
    tsr_vec written; /* of char: 1 if this rank wrote the file */
    uint32_t count;  /* number of files that all ranks have created */
    bool keeps;      /* bytes that are written are kept */
    tsr_vec kept;    /* of char: file u32, offset u64, size u64, the bytes; in native byte order */
} tsr_ranked_output;

/* Borrows `inner`, which the caller closes. */
void tsr_ranked_output_open(tsr_output *inner, tsr_comm *ranks, const tsr_allocator *allocator, tsr_ranked_output *out);
void tsr_ranked_output_free(tsr_ranked_output *output);
/* To be called when all ranks have done their units: decides which rank each file belongs to. Files that nobody wrote belong
 * to rank 0. From now on, what rank 0 writes into these files is sent to their owners, which must be in
 * tsr_ranked_output_hand_out. */
tsr_status tsr_ranked_output_divide(tsr_ranked_output *output, tsr_error *err);
/* Ends the rounds. Rank 0, which has written what surrounds the tensors, sends the rest of it; the others receive all rounds
 * and write what belongs to their own files. `status` is that of this rank so far. Every rank returns the same status. */
tsr_status tsr_ranked_output_hand_out(tsr_ranked_output *output, tsr_status status, tsr_error *err);
/* Publishes on all ranks, step by step. Only rank 0's `marker` matters. Every rank returns the same status. */
tsr_status tsr_ranked_output_publish(tsr_ranked_output *output, uint32_t marker, tsr_error *err);
/* Adds up what all ranks have continued. */
tsr_status tsr_ranked_output_resumed(tsr_ranked_output *output, tsr_object_resumed *out, tsr_error *err);

#endif
