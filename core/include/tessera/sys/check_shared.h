/* Checks that ranks share, and digests of objects (tessera/check.h).
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

/* Digest of an object's value: of its compact JSON, or of a form of our own where JSON cannot hold it. `there` is false for one
 * with tensors or sets in it, and beyond 48 containers or limits.expansion. */
tsr_status tsr_object_digest(const tsr_host *host, const tsr_entry *entry, tsr_digest_algorithm algorithm, bool *there,
                             tsr_digest *out, tsr_error *err);
/* Digests of many tensors, which are read ahead of the one that is asked for: each by one thread, or by all threads where they
 * would otherwise wait for the last ones. `entries`, which is borrowed, may hold objects too; they are passed over. */
typedef struct tsr_digest_list {
    const tsr_entry *const *entries;
    size_t count;
    tsr_digest_algorithm algorithm;
} tsr_digest_list;
typedef struct tsr_digests tsr_digests;
tsr_status tsr_digests_open(tsr_checkpoint *checkpoint, const tsr_digest_list *list, tsr_ring *ring, tsr_digests **out,
                            tsr_error *err);
/* The digest of tensor number `index` of the list, as tsr_tensor_digest. To be asked for in rising order. Errors are those of
 * the first tensor, from this one on, that cannot be read. */
tsr_status tsr_digests_get(tsr_digests *digests, size_t index, tsr_digest *out, tsr_error *err);
void tsr_digests_close(tsr_digests *digests); /* takes NULL */

/* The same as tsr_check_digests, shared by ranks that have opened the same checkpoint and contract: each reads some of the entries, and all end
 * with the findings, in their order, that one alone would have. Collective; a failure of one is a failure of all. */
tsr_status tsr_check_digests_shared(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_comm *comm, tsr_ring *ring,
                                    const tsr_progress *progress, tsr_error *err);

/* The same, shared by ranks that have opened the same checkpoint: each reads its part of the bytes, and all end with the
 * findings, in their order, that one alone would have. Collective; a failure of one is a failure of all. */
tsr_status tsr_check_deep_shared(tsr_checkpoint *checkpoint, tsr_comm *comm, tsr_ring *ring, const tsr_progress *progress,
                                 tsr_error *err);

/* The same in parts, for programs that share nothing but messages: part `number` of `count`, about the same bytes each. What one found
 * is appended to `out`, of bytes, and the checkpoint's own findings do not change. */
typedef struct tsr_check_part {
    uint32_t number, count;
} tsr_check_part;
tsr_status tsr_check_deep_part(tsr_checkpoint *checkpoint, tsr_check_part part, tsr_ring *ring, tsr_vec *out,
                               tsr_error *err);
/* Ends the check with what all `count` parts found, one behind the other in their order: the findings are those that tsr_check_deep
 * adds. The parts must have been made by the same build of this library, for the same checkpoint. Tensors that must be gathered, and
 * copies that must be compared, are read here. TSR_E_USAGE: `parts` is too short. */
tsr_status tsr_check_deep_join(tsr_checkpoint *checkpoint, tsr_str parts, size_t count, tsr_ring *ring, tsr_error *err);

TSR_API_END

#endif
