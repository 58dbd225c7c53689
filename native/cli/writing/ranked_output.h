/* One process's view of an output into an object store that several ranks write: it notes which files this rank has written, so that
 * they become its own, and hands what rank 0 writes into files of others (headers, directories of archives) to those who upload them, in
 * rounds of CLI_MOST_KEPT bytes. */
#ifndef TSR_CLI_WRITING_RANKED_OUTPUT_H
#define TSR_CLI_WRITING_RANKED_OUTPUT_H

#include "tessera/comm.h"
#include "tessera/output.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/vec.h"

/* What rank 0 keeps of them before it hands them out, bytes; a single write may be larger. */
enum { CLI_MOST_KEPT = 4 << 20 };

typedef struct cli_ranked_output {
    tsr_output base; /* first */
    tsr_output *inner;
    tsr_comm *ranks;
    const tsr_allocator *allocator;
    tsr_vec written; /* of char: 1 where this rank wrote the file */
    uint32_t count;  /* of the files that all ranks have created */
    bool keeps;      /* what is written is kept */
    tsr_vec kept;    /* of bytes: file u32, offset u64, size u64, the bytes; in the machine's order */
} cli_ranked_output;

/* Borrows `inner`, which the caller closes. */
void cli_ranked_output_open(tsr_output *inner, tsr_comm *ranks, const tsr_allocator *allocator, cli_ranked_output *out);
void cli_ranked_output_free(cli_ranked_output *output);
/* When all ranks have done their units: which files are whose. Files that nobody wrote are rank 0's. From here on what rank 0 writes
 * into the files that all ranks have goes to their owners, who must be in cli_ranked_output_hand_out. */
tsr_status cli_ranked_output_divide(cli_ranked_output *output, tsr_error *err);
/* Ends the rounds: rank 0, which has written what surrounds the tensors, sends the rest of it; the others receive all rounds, and write
 * what is in their own files. `status` is this rank's until then. Every rank returns the same status. */
tsr_status cli_ranked_output_hand_out(cli_ranked_output *output, tsr_status status, tsr_error *err);
/* Publishes on all ranks, step by step; `marker` counts on rank 0. Every rank returns the same status. */
tsr_status cli_ranked_output_publish(cli_ranked_output *output, uint32_t marker, tsr_error *err);
/* What all ranks together have continued. */
tsr_status cli_ranked_output_resumed(cli_ranked_output *output, tsr_object_resumed *out, tsr_error *err);

#endif
