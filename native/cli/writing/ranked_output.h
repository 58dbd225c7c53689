/* One process's view of an output into an object store that several ranks write: it notes which files this rank has written, so that
 * they become its own, and keeps what rank 0 writes into files of others (headers, directories of archives) for those who upload them. */
#ifndef TSR_CLI_WRITING_RANKED_OUTPUT_H
#define TSR_CLI_WRITING_RANKED_OUTPUT_H

#include "tessera/comm.h"
#include "tessera/output.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/vec.h"

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
/* When all ranks have done their units: which files are whose. Files that nobody wrote are rank 0's. From here on rank 0 keeps what is
 * written into the files that all ranks have. */
tsr_status cli_ranked_output_divide(cli_ranked_output *output, tsr_error *err);
/* Sends what rank 0 has kept to all, who write what is in their own files. */
tsr_status cli_ranked_output_hand_out(cli_ranked_output *output, tsr_error *err);
/* Publishes on all ranks, step by step; `marker` counts on rank 0. Every rank returns the same status. */
tsr_status cli_ranked_output_publish(cli_ranked_output *output, uint32_t marker, tsr_error *err);
/* What all ranks together have continued. */
tsr_status cli_ranked_output_resumed(cli_ranked_output *output, tsr_object_resumed *out, tsr_error *err);

#endif
