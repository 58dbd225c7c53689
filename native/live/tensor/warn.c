#include "live/tensor/warn.h"

#include <stdarg.h>
#include <stdio.h>

void tsr_warn(const tsr_warnings *warnings, const char *format, ...)
{
    char text[TSR_ERROR_MESSAGE_SIZE];
    va_list arguments;
    if (!warnings->warn) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    warnings->warn(warnings->ctx, text);
}

void tsr_name_tally_add(tsr_name_tally *tally, tsr_str name)
{
    if (tally->count++ == 0) tally->first = name;
}

void tsr_name_tally_warn(const tsr_name_tally *tally, const tsr_warnings *warnings, const char *what)
{
    const size_t more = tally->count - 1;
    if (tally->count == 0) return;
    if (more == 0) tsr_warn(warnings, "%s: '%.*s'", what, TSR_STR_ARG(tally->first));
    else tsr_warn(warnings, "%s: '%.*s' and %zu other%s", what, TSR_STR_ARG(tally->first), more, more == 1 ? "" : "s");
}
