/* A conversion or reshard cut into units, which any process may carry out in any order: job arrays, MPI ranks, or a run that
 * is continued after it was killed.
 *
 *   what goes into the files    [ a ][ b ······················ ][c][d][ e ··········· ]
 *   units of at most 16 MiB      0    1         2         3       4     5        6
 *   shares (here of 3)            share 0            share 1            share 2
 *
 * The size of every file and the position of every byte are known before the first byte is moved, and units depend only on
 * the source and the options. The output is therefore the same for any number of shares, processes and threads. Later steps
 * need only the record of a unit, a few bytes: its number and its CRCs. The order of calls, here with ranks that
 * communicate:
 *
 *   all ranks   tsr_work_new, tsr_work_open(output)        each its own output over the same unpublished files
 *               tsr_work_run(share = rank, shares = size)
 *               tsr_work_records → tsr_comm_gather_blobs → at rank 0 tsr_work_take of every blob
 *   rank 0      tsr_work_finish; output->publish(output, conversion->marker)
 *
 * Ranks other than 0 must have written (and where caches are not shared, synced: output->sync) before rank 0 finishes;
 * gathering the records ensures this order. tsr_convert makes these calls with one share. Thread rule: one thread per
 * tsr_work, which uses the host's threads.
 *
 * Example:
 *
 *     const tsr_convert_options options = {.to = TSR_TO_DCP};
 *     tsr_work *work;
 *     status = tsr_work_new(checkpoint, &options, 0, arena, &work, &err);
 *     if (status == TSR_OK) status = tsr_work_open(work, output, &err);
 *     for (uint64_t share = 0; status == TSR_OK && share < 8; share++) status = tsr_work_run(work, share, 8, NULL, &err);
 *     if (status == TSR_OK) status = tsr_work_finish(work, &err);
 *     if (status == TSR_OK) status = output->publish(output, tsr_work_conversion(work)->marker, &err); */
#ifndef TESSERA_SYS_WORK_H
#define TESSERA_SYS_WORK_H

#include "tessera/convert.h"
#include "tessera/sys/containers.h"

TSR_API_BEGIN

typedef struct tsr_work tsr_work;

/* Decides and refuses everything, as tsr_convert would, and lays out the output. Writes
 * nothing, and reads no tensor except replicas whose CRCs do not show that they are equal. `generation` is the output's (all
 * processes must use the same). Borrows checkpoint, plan and options until free; results live in `arena`. */
tsr_status tsr_work_new(tsr_checkpoint *checkpoint, const tsr_convert_options *options, uint32_t generation,
                        tsr_arena *arena, tsr_work **out, tsr_error *err);
void tsr_work_free(tsr_work *work); /* accepts NULL */

/* The conversion that will be written. Lives as long as the arena; its marker is set by tsr_work_finish. */
const tsr_conversion *tsr_work_conversion(const tsr_work *work);
uint64_t tsr_work_units(const tsr_work *work);

/* Creates every file of tensors in `output`, with its final size. Where several processes share the files each calls this on
 * an output of its own, whose `create` opens what another one has created (native/io: options.tag). Borrows the output. */
tsr_status tsr_work_open(tsr_work *work, tsr_output *output, tsr_error *err);

/* Keeps the records of finished units. Called after every 64 units (1 GiB) and at the end of the run, when the bytes of
 * these units are durable (output->sync). */
typedef struct tsr_work_journal {
    tsr_status (*append)(void *ctx, tsr_str records, tsr_error *err);
    void *ctx;
    bool finishes; /* tsr_work_finish follows immediately: the last records are not worth a sync */
} tsr_work_journal;

/* The units of share `share` (from 0) of `shares` that are not done yet. Shares are contiguous runs of all units, even in
 * bytes; there may be more shares than units. `journal` may be NULL: then nothing is synced. After a failure the units
 * finished so far stay done. */
tsr_status tsr_work_run(tsr_work *work, uint64_t share, uint64_t shares, const tsr_work_journal *journal, tsr_error *err);
/* The same for outputs whose files cannot be written by two processes: each file belongs to one share. Needs options.unit_bytes of
 * UINT64_MAX. */
tsr_status tsr_work_run_files(tsr_work *work, uint64_t share, uint64_t shares, tsr_error *err);
/* How many units of a share are not done. */
uint64_t tsr_work_left(const tsr_work *work, uint64_t share, uint64_t shares);

/* Appends the records of all units that are done to `out`, a vec of bytes: what tsr_work_take takes, on any machine. */
tsr_status tsr_work_records(const tsr_work *work, tsr_vec *out, tsr_error *err);
/* Marks the units of records as done, whoever did them. A record may come twice. *taken (may be NULL) is how many bytes of
 * whole, undamaged records there were at the beginning of `records`; what follows them is a record cut off in the middle.
 * TSR_E_FORMAT for records of another work. */
tsr_status tsr_work_take(tsr_work *work, tsr_str records, size_t *taken, tsr_error *err);

/* When all units are done: headers, directories, index, `.metadata`. TSR_E_USAGE when some are not. Does not publish. */
tsr_status tsr_work_finish(tsr_work *work, tsr_error *err);

/* For a share of tsr_work_run_files that knows nothing of the other shares: writes what surrounds the tensors in its files. What surrounds
 * those of other files is written too, with wrong checksums: the output has to pass over these files. */
tsr_status tsr_work_surround(tsr_work *work, tsr_error *err);

TSR_API_END

#endif
