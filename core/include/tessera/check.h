/* Checks of a checkpoint as a whole, and digests of its values.
 *
 * Example:
 *
 *     tsr_validate_options options = TSR_OPTIONS(tsr_validate_options);
 *     options.deep = true;
 *     status = tsr_validate(checkpoint, &options, &err);
 *     if (status == TSR_OK && tsr_findings_total(tsr_checkpoint_findings(checkpoint), TSR_ERROR) == 0) printf("sound\n"); */
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include "tessera/comm.h"
#include "tessera/read.h"
#include "tessera/validate.h"

TSR_API_BEGIN

typedef struct tsr_digest {
    uint8_t bytes[32];
    size_t size; /* 32 for sha256, 16 for xxh3 */
} tsr_digest;

/* Computes the digest of a tensor's contiguous row-major little-endian bytes. It does not depend on sharding or container.
 * Returns TSR_E_UNSUPPORTED when the host does not provide the algorithm. */
tsr_status tsr_tensor_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, tsr_digest *out, tsr_error *err);

typedef struct tsr_validate_options {
    size_t size;
    const tsr_contract *layout, *against; /* what the checkpoint should hold; may be NULL */
    bool deep;                            /* read every byte that matters, once and in file order */
    bool hashes;                          /* compare the digests of `layout`, as `deep` also does */
    tsr_comm
        *comm; /* ranks that have opened the same checkpoint with the same options share the reading, and all get the same
                     * findings; the call is then collective. NULL: none */
    tsr_ring *ring;               /* NULL: one of the default size, for this call */
    const tsr_progress *progress; /* may be NULL */
} tsr_validate_options;

/* Checks a checkpoint and adds what is found to tsr_checkpoint_findings: by its catalog (tsr_validate_catalog), against the contracts
 * (tsr_validate_contract), and of its bytes: `zip/crc`, `values/nan`, `layout/replica-differs`, `layout/digest` and the other rules that
 * `tessera explain` lists. A file that cannot be read to its end is a finding (`file/unreadable`). `options` may be NULL. Open the
 * checkpoint with TSR_FOR_FINDINGS, so that one with errors can be checked, and call this once: a second call adds the findings again.
 * Errors: only what keeps a check from going on, such as TSR_E_NOMEM, TSR_E_CANCELLED, or TSR_E_UNSUPPORTED when the host does not
 * provide the algorithm of the digests. */
tsr_status tsr_validate(tsr_checkpoint *checkpoint, const tsr_validate_options *options, tsr_error *err);

TSR_API_END

#endif
