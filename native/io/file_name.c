/* See file_name.h. */
#include "io/file_name.h"

#include <string.h>

static bool is_component(tsr_str name, size_t longest)
{
    return name.size > 0 && name.size <= longest && !memchr(name.data, '\0', name.size) &&
           !tsr_str_equal(name, TSR_STR(".")) && !tsr_str_equal(name, TSR_STR(".."));
}

bool tsr_is_name_below(tsr_str name, size_t longest)
{
    const char *slash;
    while (name.size && (slash = memchr(name.data, '/', name.size))) {
        const size_t size = (size_t)(slash - name.data);
        if (!is_component((tsr_str){name.data, size}, longest)) return false;
        name = (tsr_str){slash + 1, name.size - size - 1};
    }
    return is_component(name, longest);
}
