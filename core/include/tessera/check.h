/* Checks of a checkpoint's values: digests, statistics, and a check of every byte.
 *
 * Example:
 *
 *     tsr_digest digest;
 *     char text[65];
 *     status = tsr_tensor_digest(checkpoint, entry, TSR_DIGEST_SHA256, ring, &digest, &err);
 *     if (status == TSR_OK) printf("%s\n", tsr_digest_text(&digest, text)); */
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

/* Writes a digest to `out` in hex, NUL-terminated; 65 bytes suffice. Returns `out`. */
const char *tsr_digest_text(const tsr_digest *digest, char *out);

/* Reads the entries for which a contract (tessera/validate.h) has digests, and adds layout/digest and layout/not-hashed
 * findings to the checkpoint. Errors: those of reading; TSR_E_UNSUPPORTED when the host does not provide the algorithm. */
tsr_status tsr_check_digests(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_ring *ring,
                             const tsr_progress *progress, tsr_error *err);

/* Statistics of a tensor. The real and imaginary parts of complex numbers count separately, so `count` is twice the number of
 * elements. min, max, mean and std are over the finite values (0 when there are none); std uses the divisor n − 1, as torch.std
 * does (0 for fewer than two values). NaNs and infinities are only counted. int64 and uint64 beyond 2^53 are rounded
 * (tsr_tensor_extremes has exact ones). */
typedef struct tsr_stats {
    uint64_t count;
    uint64_t nan, inf, zero; /* zero: both signs */
    double min, max, mean, std;
} tsr_stats;

/* Computes the statistics of a tensor. Returns TSR_E_UNSUPPORTED when its dtype is not numeric. */
tsr_status tsr_tensor_stats(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *out,
                            tsr_error *err);

/* Reads every byte of a checkpoint that matters, once and in file order, and adds these findings: `zip/crc` (a member's bytes
 * do not match its CRC-32), `zip/crc-absent` (note), `values/nan` (note: how many NaN and infinite values a tensor holds),
 * `values/bool` (bytes of bools that are neither 0 nor 1), `layout/replica-differs` (copies of one box are not equal; these are
 * read a second time), `limits/expansion` (warning: a tensor repeats stored elements so often that not every value was read), and
 * those about the structure of archives and pickles. A file that cannot be read to its end is a finding too (`file/unreadable`). Returns an error only
 * when the check cannot continue: out of memory, cancelled, or input that cannot be walked. */
tsr_status tsr_check_deep(tsr_checkpoint *checkpoint, tsr_ring *ring, const tsr_progress *progress, tsr_error *err);

TSR_API_END

#endif
