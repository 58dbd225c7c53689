/* The checks that tsr_validate consists of, alone and shared by ranks, and digests of objects (tessera/check.h).
 *
 * Example:
 *
 *     status = tsr_check_deep_shared(checkpoint, comm, ring, NULL, &err);
 *     if (status == TSR_OK) printf("%zu findings\n", tsr_findings_count(tsr_checkpoint_findings(checkpoint))); */
#ifndef TESSERA_SYS_CHECK_SHARED_H
#define TESSERA_SYS_CHECK_SHARED_H

#include "tessera/check.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

/* Reads the entries for which a contract (tessera/validate.h) has digests, and adds layout/digest and layout/not-hashed
 * findings to the checkpoint. Errors: those of reading; TSR_E_UNSUPPORTED when the host does not provide the algorithm. */
tsr_status tsr_check_digests(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_ring *ring,
                             const tsr_progress *progress, tsr_error *err);

/* Reads every byte of a checkpoint that matters, once and in file order, and adds these findings: `zip/crc` (a member's bytes
 * do not match its CRC-32), `zip/crc-absent` (note), `values/nan` (note: how many NaN and infinite values a tensor holds),
 * `values/bool` (bytes of bools that are neither 0 nor 1), `layout/replica-differs` (copies of one box are not equal; these are
 * read a second time), `limits/expansion` (warning: a tensor repeats stored elements so often that not every value was read), and
 * those about the structure of archives and pickles. A file that cannot be read to its end is a finding too (`file/unreadable`). Returns an error only
 * when the check cannot continue: out of memory, cancelled, or input that cannot be walked. */
tsr_status tsr_check_deep(tsr_checkpoint *checkpoint, tsr_ring *ring, const tsr_progress *progress, tsr_error *err);

/* Computes the digest of an object's value: that of its compact JSON or, if JSON cannot hold it, of another form, which includes the
 * elements of tensors inside it. *there is false for an object that contains sets or one rank's part of a tensor, that is nested more
 * than 48 deep, or that exceeds limits.expansion. */
tsr_status tsr_object_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, bool *there, tsr_digest *out, tsr_error *err);
/* Digests of many tensors, which are read ahead of the one that is asked for. Each is read by one thread; the last ones, for which
 * the other threads would wait, by all threads. `entries` is borrowed. It may contain objects, which are skipped. */
typedef struct tsr_digest_list {
    const tsr_entry *const *entries;
    size_t count;
    tsr_digest_algorithm algorithm;
} tsr_digest_list;
typedef struct tsr_digests tsr_digests;
tsr_status tsr_digests_open(tsr_checkpoint *checkpoint, const tsr_digest_list *list, tsr_ring *ring, tsr_digests **out,
                            tsr_error *err);
/* Gets the digest of tensor number `index` of the list, as tsr_tensor_digest computes it. Ask for them in ascending order. The error is
 * that of the first tensor, from this one on, that cannot be read. */
tsr_status tsr_digests_get(tsr_digests *digests, size_t index, tsr_digest *out, tsr_error *err);
void tsr_digests_close(tsr_digests *digests); /* accepts NULL */

/* Does what tsr_check_digests does, with the work shared by ranks that have opened the same checkpoint and contract. Each reads some of
 * the entries, and all get the findings that a single process would get, in the same order. Collective; if one rank fails, all do. */
tsr_status tsr_check_digests_shared(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_comm *comm, tsr_ring *ring,
                                    const tsr_progress *progress, tsr_error *err);

/* Does what tsr_check_deep does, with the work shared by ranks that have opened the same checkpoint. Each reads its part of the bytes,
 * and all get the findings that a single process would get, in the same order. Collective; if one rank fails, all do. */
tsr_status tsr_check_deep_shared(tsr_checkpoint *checkpoint, tsr_comm *comm, tsr_ring *ring, const tsr_progress *progress,
                                 tsr_error *err);

/* One of `count` parts of a deep check. All parts read about the same number of bytes. */
typedef struct tsr_check_part {
    uint32_t number, count;
} tsr_check_part;
/* Does one part of a deep check, for programs that can only send each other messages. Appends what it found to `out`, a vector of
 * bytes; the checkpoint's own findings do not change. Errors: those of tsr_check_deep. */
tsr_status tsr_check_deep_part(tsr_checkpoint *checkpoint, tsr_check_part part, tsr_ring *ring, tsr_vec *out,
                               tsr_error *err);
/* Ends a deep check from what its `count` parts found, concatenated in their order in `parts`, and adds the findings that
 * tsr_check_deep adds. The parts must have been made by the same build of this library, for the same checkpoint. Tensors that must be
 * gathered, and copies that must be compared, are read here. Errors: also TSR_E_USAGE if `parts` is not complete. */
tsr_status tsr_check_deep_join(tsr_checkpoint *checkpoint, tsr_str parts, size_t count, tsr_ring *ring, tsr_error *err);

/* Writes a digest to `out` in hex, NUL-terminated; 65 bytes suffice. Returns `out`. */
const char *tsr_digest_text(const tsr_digest *digest, char *out);

TSR_API_END

#endif
