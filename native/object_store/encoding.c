/* See service.h. Source: AWS's documentation of Signature Version 4 ("UriEncode"). */
#include "object_store/service.h"

static bool is_plain(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c && strchr("-._~", c));
}

static size_t encode(tsr_str text, bool keeps_slashes, char *out)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (is_plain((char)c) || (keeps_slashes && c == '/')) {
            out[n++] = (char)c;
        } else {
            out[n++] = '%';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        }
    }
    return n;
}

tsr_str tsr_url_encode(tsr_arena *arena, tsr_str text, bool keeps_slashes, tsr_error *err)
{
    char *out = tsr_arena_array(arena, 3 * text.size + 1, 1, err);
    return out ? (tsr_str){out, encode(text, keeps_slashes, out)} : (tsr_str){NULL, 0};
}

tsr_str tsr_url_query(tsr_arena *arena, const tsr_parameter *parameters, size_t count, tsr_error *err)
{
    size_t room = 1, n = 0;
    for (size_t i = 0; i < count; i++) room += 3 * (strlen(parameters[i].name) + parameters[i].value.size) + 2;
    char *out = tsr_arena_array(arena, room, 1, err);
    if (!out) return (tsr_str){NULL, 0};
    for (size_t i = 0; i < count; i++) {
        out[n++] = i ? '&' : '?';
        n += encode(tsr_str_from(parameters[i].name), false, out + n);
        out[n++] = '=';
        n += encode(parameters[i].value, false, out + n);
    }
    return (tsr_str){out, n};
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

tsr_str tsr_url_decode(tsr_arena *arena, tsr_str text, tsr_error *err)
{
    char *out = tsr_arena_array(arena, text.size + 1, 1, err);
    size_t n = 0;
    for (size_t i = 0; out && i < text.size; i++) {
        const int high = text.data[i] == '%' && i + 2 < text.size ? digit(text.data[i + 1]) : -1;
        const int low = high >= 0 ? digit(text.data[i + 2]) : -1;
        out[n++] = low >= 0 ? (char)(high * 16 + low) : text.data[i] == '+' ? ' ' : text.data[i];
        if (low >= 0) i += 2;
    }
    return (tsr_str){out, n};
}
