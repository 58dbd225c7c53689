#include "tessera/version.h"

#include "tessera/sys/options.h"
#include "tessera/sys/try.h"

const char *tsr_version(void)
{
    return TSR_VERSION;
}

/* Far more than any options struct has: an uninitialized size is rejected before reading beyond the struct. */
enum { MOST_BYTES = 4096 };

tsr_status tsr_options_copy(void *own, size_t own_size, const void *given, const char *type, tsr_error *err)
{
    size_t size = 0;
    memset(own, 0, own_size);
    if (given) memcpy(&size, given, sizeof size);
    TSR_FAIL_IF(size != 0 && (size < sizeof size || size > MOST_BYTES), err, TSR_E_USAGE,
                "the size field of %s is %zu bytes; initialize the struct with TSR_OPTIONS(%s)", type, size, type);
    if (size == 0) size = own_size;
    for (size_t i = own_size; given && i < size; i++)
        TSR_FAIL_IF(((const unsigned char *)given)[i] != 0, err, TSR_E_UNSUPPORTED,
                    "the program sets a field of %s at byte %zu, but this version of Tessera knows only its first %zu bytes",
                    type, i, own_size);
    if (given) memcpy(own, given, size < own_size ? size : own_size);
    memcpy(own, &own_size, sizeof own_size);
    return TSR_OK;
}
