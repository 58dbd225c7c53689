/* Formats floating-point numbers with the C library. WebAssembly has its own implementation (wasm/platform/reals.c), because
 * the C library's takes 9 KB there. */
#include <stdio.h>

#include "tessera/sys/text.h"

const char *tsr_real_text(double value, int digits, char out[TSR_REAL_TEXT])
{
    snprintf(out, TSR_REAL_TEXT, "%.*g", digits, value);
    return out;
}
