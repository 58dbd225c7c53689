/* See tessera/str.h. */
#include "tessera/str.h"

/* Unreserved, sub-delims, '@' and '/', but not ':', which would make the first segment a scheme. */
static bool is_plain(unsigned char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return c && strchr("-._~/!$&'()*+,;=@", c);
}

size_t tsr_uri_path(tsr_str path, char *out, size_t capacity)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; i < path.size; i++) {
        const unsigned char c = (unsigned char)path.data[i];
        const bool plain = is_plain(c);
        if (capacity - n < (plain ? 1 : 3)) break;
        out[n++] = plain ? (char)c : '%';
        if (plain) continue;
        out[n++] = hex[c >> 4];
        out[n++] = hex[c & 15];
    }
    return n;
}
