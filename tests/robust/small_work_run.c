/* Compiles core/work/work_run.c so that it records its progress after every second unit. */
#define TSR_BATCH_UNITS 2u
#include "work/work_run.c"
