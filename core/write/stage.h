/* What a container's writer provides for a work: the boxes that go into its files, and the bytes around them. */
#ifndef TSR_WRITE_STAGE_H
#define TSR_WRITE_STAGE_H

#include "write/blit_order.h"

/* An output, addressed by the numbers that files have in a tsr_conversion. */
typedef struct tsr_sink {
    tsr_output *output;
    const uint32_t *numbers; /* the output's number of each file; NULL if the numbers are the same */
} tsr_sink;

static inline tsr_status tsr_sink_write(const tsr_sink *sink, uint32_t file, uint64_t at, const void *data, size_t size,
                                        tsr_error *err)
{
    return sink->output->write_at(sink->output, sink->numbers ? sink->numbers[file] : file, at, data, size, err);
}

/* Files that are laid out together. `blits` (whose `file` is an index into the conversion's files) are written in any order
 * and in pieces; the two functions write everything else. */
typedef struct tsr_stage {
    tsr_blit *blits;
    size_t count;
    /* NULL, or writes what only needs blits[i].crc, which is set. Called once for every blit, in any order. */
    tsr_status (*behind)(const struct tsr_stage *stage, size_t i, const tsr_sink *sink, tsr_error *err);
    /* Writes the rest, which may need all CRCs. */
    tsr_status (*rest)(const struct tsr_stage *stage, const tsr_sink *sink, tsr_error *err);
    void *ctx;
    tsr_blit_order order; /* order of the blits; set by the work, not by the writer */
} tsr_stage;

/* The blit at a position of the order. */
static inline tsr_blit *tsr_stage_blit(const tsr_stage *stage, size_t place)
{
    return &stage->blits[stage->order.numbers[place]];
}

typedef struct tsr_writer {
    uint32_t stage_count;
    bool crc; /* CRCs of blits are needed */
    /* Lays out a stage in `arena`. The result is the same each time. */
    tsr_status (*stage)(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err);
    /* NULL, or writes the file that describes the others, after all stages are complete. Sets the marker to its number. */
    tsr_status (*finish)(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err);
    uint32_t marker; /* if there is no `finish`: the file that becomes visible last, in the conversion's files; or
                      * TSR_NO_FILE */
    void *ctx;
} tsr_writer;

#endif
