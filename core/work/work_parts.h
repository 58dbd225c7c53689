/* The state of a work, shared by the code that makes it (work.c), runs it (work_run.c), and writes its records
 * (work_records.c). */
#ifndef TSR_WORK_WORK_PARTS_H
#define TSR_WORK_WORK_PARTS_H

#include "convert/convert_to.h"
#include "tessera/sys/storage.h"
#include "tessera/sys/work.h"
#include "work/units.h"

struct tsr_work {
    tsr_conversion_job job; /* its `out` is `conversion`, its options are `options` */
    tsr_convert_options options;
    tsr_conversion conversion;
    tsr_writer writer;
    const tsr_host *host;
    uint64_t unit_bytes;
    tsr_vec units; /* of tsr_unit, all stages in order */
    uint64_t weight;
    bool crc; /* CRCs of blits are needed, either by the writer or to compare them with the source's */
    uint32_t *crcs;
    tsr_ahead *ahead; /* what is already known about the source's chunks, or NULL */
    tsr_output *output;
    uint32_t *numbers; /* file numbers in the output, by index in the conversion's files */
};

static inline tsr_unit *tsr_work_unit(const tsr_work *work, size_t i)
{
    return (tsr_unit *)work->units.items + i;
}

/* Appends the record of a unit. */
tsr_status tsr_work_put_record(const tsr_work *work, size_t unit, tsr_vec *out, tsr_error *err);

#endif
