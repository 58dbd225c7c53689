/* Reading every byte: digests, comparisons and tallies of values. */
#ifndef TESSERA_SYS_CHECK_H
#define TESSERA_SYS_CHECK_H

#include "tessera/check.h"
#include "tessera/compare.h"
#include "tessera/sys/containers.h"

TSR_API_BEGIN

/* Statistics with exact extremes (tessera/check.h has the others).
 *
 * Example:
 *
 *     tsr_extremes extremes;
 *     tsr_stats stats;
 *     status = tsr_tensor_extremes(checkpoint, entry, ring, &stats, &extremes, &err);
 *     if (status == TSR_OK && extremes.kind == TSR_EXTREMES_SIGNED) printf("%lld\n", (long long)extremes.min); */

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

typedef enum tsr_extremes_kind {
    TSR_EXTREMES_REAL, /* those of tsr_stats are exact */
    TSR_EXTREMES_SIGNED,
    TSR_EXTREMES_UNSIGNED
} tsr_extremes_kind;

/* The extremes of a tensor of int64 or uint64, which tsr_stats rounds beyond 2^53. */
typedef struct tsr_extremes {
    tsr_extremes_kind kind; /* REAL for all other dtypes, for a tensor without elements, and in the WebAssembly module */
    uint64_t min, max;      /* two's complement if signed */
} tsr_extremes;

/* As tsr_tensor_stats, with the exact extremes. */
tsr_status tsr_tensor_extremes(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *stats,
                               tsr_extremes *extremes, tsr_error *err);

/* The checks that tsr_validate consists of, alone and shared by ranks, and digests of objects (tessera/check.h).
 *
 * Example:
 *
 *     status = tsr_check_deep_shared(checkpoint, comm, ring, NULL, &err);
 *     if (status == TSR_OK) printf("%zu findings\n", tsr_findings_count(tsr_checkpoint_findings(checkpoint))); */

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

/* The values of two tensors, and of one pair of a diff (tessera/compare.h).
 *
 * Example:
 *
 *     const tsr_tolerance bitwise = {.exact = true};
 *     tsr_difference difference;
 *     tsr_diff_pair pair = {.a = entry, .b = entry};
 *     if (tsr_pair_is_comparable(&pair))
 *         status = tsr_compare_pair(checkpoint, other, &pair, &(tsr_value_comparison){.tolerance = &bitwise, .ring = ring},
 *                                   &difference, &err); */

/* Whether there are values to compare: the two entries are dense tensors of one dtype and shape, or equal objects, which may
 * hold tensors (quantized and sparse ones, tuples of tensors, …). */
bool tsr_pair_is_comparable(const tsr_diff_pair *pair);
/* Whether the values of all comparable pairs may be read: TSR_E_LIMIT where tensors repeat stored elements too often
 * (tessera/sys/read.h). tsr_diff_values asks first; whoever compares pair by pair has to. Errors also as tsr_repeats_add. */
tsr_status tsr_diff_check_repeats(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_diff *diff, tsr_error *err);
/* Compares the values of a comparable pair; of objects, those of all tensors in them (`first` then counts within the first
 * one that differs). Sets TSR_DIFF_VALUE where they differ. Errors as tsr_compare_tensors; TSR_E_LIMIT beyond the limits
 * depth and expansion. */
tsr_status tsr_compare_pair(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff_pair *pair, const tsr_value_comparison *how,
                            tsr_difference *out, tsr_error *err);

/* A tensor and the checkpoint that it is in. */
typedef struct tsr_stored_tensor {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
} tsr_stored_tensor;

/* Compares two entries of one dtype and shape (TSR_E_USAGE otherwise); each is read once, in tiles. The two checkpoints
 * may be the same. Errors as tsr_read_box, with the side ("a", "b") in the context. */
tsr_status tsr_compare_tensors(tsr_stored_tensor a, tsr_stored_tensor b, const tsr_tolerance *tolerance, tsr_ring *ring,
                               tsr_difference *out, tsr_error *err);

/* Statistics and a histogram of one tensor, in steps: a job for a program that must stay responsive between reads.
 *
 *   new ─▶ step, step, … until done ─▶ stats, histogram (also in between: of what was read so far) ─▶ free
 *
 * A step reads the next boxes of the tensor in row-major order. Memory is one buffer of a step's size. One thread at a
 * time.
 *
 * Example:
 *
 *     tsr_tally *tally;
 *     tsr_stats stats;
 *     bool done = false;
 *     status = tsr_tally_new(checkpoint, entry, &tally, &err);
 *     while (status == TSR_OK && !done) status = tsr_tally_step(tally, (size_t)1 << 20, &done, &err);
 *     if (done) tsr_tally_stats(tally, &stats); */

typedef struct tsr_tally tsr_tally;

/* Borrows the checkpoint. Errors: TSR_E_UNSUPPORTED where values are not numbers, and those of tsr_read_box. */
tsr_status tsr_tally_new(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_tally **out, tsr_error *err);
void tsr_tally_free(tsr_tally *tally); /* accepts NULL */

/* Reads about `byte_budget` bytes more, at least one element. After an error the job stays where it was. */
tsr_status tsr_tally_step(tsr_tally *tally, size_t byte_budget, bool *done, tsr_error *err);
/* Bytes of the tensor read so far, and in all. */
void tsr_tally_progress(const tsr_tally *tally, uint64_t *byte_done, uint64_t *byte_total);

/* Of what was read so far; as tsr_tensor_stats has them. */
void tsr_tally_stats(const tsr_tally *tally, tsr_stats *out);
/* How many finite values are in each of `count` (at least 1) equal parts of [min, max]; a value may be
 * counted in the neighboring part when it is within 1/1000 of the range from the border. */
void tsr_tally_histogram(const tsr_tally *tally, uint64_t *counts, size_t count);

TSR_API_END

#endif
