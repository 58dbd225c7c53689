/* What the options of convert, reshard, plan and merge say about the conversion itself.
 *
 * Example:
 *
 *     const tsr_command_options options = {.dtype = "bfloat16"};
 *     tsr_convert_options convert;
 *     tsr_conversion made;
 *     status = tsr_conversion_options(&options, TSR_TO_DCP, arena, &convert, &err);
 *     if (status == TSR_OK) status = tsr_convert(checkpoint, output, &convert, arena, &made, &err); */
#ifndef TESSERA_SYS_CONVERSION_OPTIONS_H
#define TESSERA_SYS_CONVERSION_OPTIONS_H

#include "tessera/convert.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/plan_job.h"

TSR_API_BEGIN

/* The words of --to and --objects, indexed by tsr_container and tsr_objects; that of TSR_OBJECTS_DEFAULT is empty. */
extern const char *const tsr_container_words[6];
extern const char *const tsr_objects_words[5];

/* Sets everything that the options decide alone: names, dtypes, objects, memory, checks. The caller adds what depends on the source or
 * the destination. *out borrows `options` and `arena`. Errors: TSR_E_USAGE for a value that is not allowed; TSR_E_NOMEM. */
tsr_status tsr_conversion_options(const tsr_command_options *options, tsr_container to, tsr_arena *arena,
                                  tsr_convert_options *out, tsr_error *err);
/* For TSR_TO_RANKS: `shards` says how tensors are cut. Without --world-size, there are as many ranks as it joined in `source`.
 * TSR_E_USAGE without a map or a number of ranks, and for --world-size with another format. */
tsr_status tsr_conversion_ranks(const tsr_command_options *options, const tsr_shards *shards, const tsr_checkpoint *source,
                                tsr_convert_options *out, tsr_error *err);
/* Makes the request that a plan contains from the options of `plan`, whose documents are given as texts. With `reshards`, the target
 * is kept elsewhere, and --to is that of the source's format if it was not given. Refuses casts that would be refused when the plan is
 * carried out. Borrows `options`. */
tsr_status tsr_plan_request(tsr_checkpoint *checkpoint, const tsr_command_options *options, bool reshards, tsr_arena *arena,
                            tsr_command_request *out, tsr_error *err);

TSR_API_END

#endif
