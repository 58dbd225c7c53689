/* The names of steps, as a map states them. */
#include "mapping/mapping_rules.h"

const char *tsr_step_name(tsr_step_kind kind)
{
    static const char *const names[TSR_STEP_KINDS] = {"concat",  "split",        "interleave", "stack", "unstack", "transpose",
                                                      "reshape", "permute_rope", "trim",       "pad",   "cast",  "dequantize"};
    return names[kind];
}
