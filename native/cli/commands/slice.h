/* FQN[SLICE]: "w[0:2,:,3]". */
#ifndef TSR_CLI_COMMANDS_SLICE_H
#define TSR_CLI_COMMANDS_SLICE_H

#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/status.h"

typedef struct cli_slice {
    uint64_t offsets[TSR_MAX_RANK];
    uint64_t sizes[TSR_MAX_RANK];
    uint64_t shape[TSR_MAX_RANK]; /* of the result: dims taken by a number are gone */
    uint32_t rank;                /* of the result */
} cli_slice;

/* The part of `text` before a trailing "[…]", which goes to *inside ({NULL, 0} when there is none). */
tsr_str cli_slice_split(tsr_str text, tsr_str *inside);
/* `inside` as Python's basic indexing without steps: numbers, a:b with either side open, negative from the end, "..." once.
 * Errors: TSR_E_USAGE that says which part and what is allowed. An absent slice is the whole tensor. */
tsr_status cli_slice_parse(tsr_str inside, uint32_t rank, const uint64_t *shape, cli_slice *out, tsr_error *err);

#endif
