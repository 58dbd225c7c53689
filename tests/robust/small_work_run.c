/* core/work/work_run.c that notes what it did after every other unit. */
#define TSR_BATCH_UNITS 2u
#include "work/work_run.c"
