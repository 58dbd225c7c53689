/* Short names for what the checks of numpy's objects ask in nearly every line. */
#ifndef TSR_FORMATS_PICKLE_PICKLE_SHORT_H
#define TSR_FORMATS_PICKLE_PICKLE_SHORT_H

#include "formats/pickle/torch_type.h"

TSR_INLINE tsr_ref item(const tsr_pickle *pickle, tsr_ref tuple, size_t at)
{
    return tsr_pickle_item(pickle, tuple, at);
}

TSR_INLINE bool is_kind(const tsr_pickle *pickle, tsr_ref ref, tsr_pickle_kind kind)
{
    return tsr_pickle_kind_of(pickle, ref) == kind;
}

TSR_INLINE bool is_type(const tsr_pickle *pickle, tsr_ref ref, const char *types)
{
    return tsr_torch_is_one_of(pickle, ref, types);
}

#endif
