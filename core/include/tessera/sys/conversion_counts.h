/* How many entries a conversion wrote, cast, copied or left out (tessera/convert.h), as numbers and in words.
 *
 * Example:
 *
 *     const tsr_conversion conversion = {0};
 *     tsr_conversion_counts counts;
 *     tsr_conversion_count(&conversion, &counts);
 *     printf("%llu tensors\n", (unsigned long long)counts.tensors); */
#ifndef TESSERA_SYS_CONVERSION_COUNTS_H
#define TESSERA_SYS_CONVERSION_COUNTS_H

#include "tessera/checkpoint.h"
#include "tessera/convert.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

/* The numbers of entries, by what the conversion did with them. */
typedef struct tsr_conversion_counts {
    uint64_t tensors, objects; /* written */
    uint64_t left_out, cast, copied, replicated;
    uint64_t kept;             /* scalars of optimizer state, which were not cast */
    uint64_t not_weights_only; /* objects that torch.load(weights_only=True) will refuse */
} tsr_conversion_counts;
void tsr_conversion_count(const tsr_conversion *conversion, tsr_conversion_counts *out);

/* Appends what a conversion to this container warns of to `warnings`, a vec of tsr_str in `arena`: errors that reading the
 * source found, metadata that is dropped, a sidecar that is not written, tied tensors that are copies now, objects that
 * PyTorch's weights_only loader will refuse. TSR_E_NOMEM. */
tsr_status tsr_conversion_warnings(tsr_checkpoint *checkpoint, const tsr_conversion *conversion, tsr_container to,
                                   tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

/* Appends what everyone who uses the values of a checkpoint should know: files that are not read, a file that is only one of
 * several, copies of several ranks of which one is used. `warnings` and `arena` as above. The checkpoint is one that reads
 * files, not a mapped one. TSR_E_NOMEM. */
tsr_status tsr_opening_warnings(tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

/* For a conversion to torch.save: appends a warning about the dicts of the state dict that were a collections.defaultdict. As
 * containers of entries they are written as dict, so that torch.load can load the rest by its default. `selection` is what was
 * selected. TSR_E_NOMEM. */
tsr_status tsr_conversion_changed_dicts(const tsr_catalog *catalog, const tsr_conversion *conversion,
                                        const tsr_selection *selection, tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

/* For a conversion to a DCP, whose keys are texts: appends a warning about the dicts that have other keys, such as ints. The ids
 * of optimizers are not among them, because tsr_convert makes ints of them again. TSR_E_NOMEM. */
tsr_status tsr_conversion_text_keys(tsr_checkpoint *checkpoint, const tsr_conversion *conversion, tsr_arena *arena,
                                    tsr_vec *warnings, tsr_error *err);

TSR_API_END

#endif
