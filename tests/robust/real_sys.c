/* Compiles the real table under another name, for crash_sys.c. */
#define tsr_sys_posix tsr_sys_real
#include "io/sys.c"
