/* See tessera/str.h. */
#include "tessera/str.h"
#include "tessera/sys/text.h"

/* Unreserved, sub-delims, '@' and '/', but not ':', which would make the first segment a scheme. */
static bool is_plain(unsigned char c)
{
    if (tsr_is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
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

size_t tsr_uri_decode(tsr_str text, bool plus_is_space, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        const int high = text.data[i] == '%' && i + 2 < text.size ? tsr_hex_digit(text.data[i + 1]) : -1;
        const int low = high >= 0 ? tsr_hex_digit(text.data[i + 2]) : -1;
        out[n++] = low >= 0 ? (char)(high * 16 + low) : plus_is_space && text.data[i] == '+' ? ' ' : text.data[i];
        if (low >= 0) i += 2;
    }
    return n;
}

/* ---- secrets ---- */

static bool is_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* The length of the "scheme://" at the beginning of a text; 0 if it is not a URL. */
static size_t scheme_size(tsr_str text)
{
    size_t n = 0;
    while (n < text.size && (is_letter(text.data[n]) || (n && strchr("0123456789+-.", text.data[n]) && text.data[n]))) n++;
    return n && text.size - n >= 3 && memcmp(text.data + n, "://", 3) == 0 ? n + 3 : 0;
}

static size_t until(tsr_str text, size_t at, const char *ends)
{
    while (at < text.size && !(text.data[at] && strchr(ends, text.data[at]))) at++;
    return at;
}

/* Whether a colon is followed by anything except a port. */
static bool has_password(tsr_str text, size_t from, size_t to)
{
    while (from < to && text.data[from] != ':') from++;
    for (size_t i = from + 1; i < to; i++)
        if (!tsr_is_digit(text.data[i])) return true;
    return false;
}

/* Where the host begins, after "user:password@". A password with an unescaped slash or question mark makes the URL invalid,
 * but it is still a secret: in that case, everything up to the last '@' is omitted. */
static size_t host_at(tsr_str text, size_t from)
{
    const size_t end = until(text, from, "/?#");
    const bool bracketed = from < text.size && text.data[from] == '[';
    for (size_t i = end; i > from; i--)
        if (text.data[i - 1] == '@') return i;
    if (bracketed || !has_password(text, from, end)) return from;
    for (size_t i = text.size; i > end; i--)
        if (text.data[i - 1] == '@') return i;
    return from;
}

static bool is_listed(tsr_str key, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t n = 0;
        while (n < key.size && names[i][n] && names[i][n] == (is_letter(key.data[n]) ? key.data[n] | 0x20 : key.data[n]))
            n++;
        if (n == key.size && !names[i][n]) return true;
    }
    return false;
}

/* Query parameters that only select a version or a method, and grant no access. */
static bool is_harmless(tsr_str key)
{
    /* clang-format off */
    static const char *const keys[] = {"versionid", "generation", "revision", "download", "alt", "prefix", "partnumber", "snapshot",
                                       "api-version", "expires", "x-amz-algorithm", "x-amz-date", "x-amz-expires", "x-amz-signedheaders",
                                       "x-goog-algorithm", "x-goog-date", "x-goog-expires", "x-goog-signedheaders", "sv", "se", "st",
                                       "sp", "sr", "spr"};
    /* clang-format on */
    return is_listed(key, keys, sizeof keys / sizeof *keys);
}

/* Parameters that signed URLs grant access with. */
static bool is_secret(tsr_str key)
{
    static const char *const keys[] = {"sig",
                                       "signature",
                                       "x-amz-signature",
                                       "x-amz-security-token",
                                       "x-amz-credential",
                                       "awsaccesskeyid",
                                       "x-goog-signature",
                                       "x-goog-credential",
                                       "googleaccessid",
                                       "token",
                                       "access_token"};
    return is_listed(key, keys, sizeof keys / sizeof *keys);
}

typedef struct writer {
    char *out;
    size_t used, capacity;
} writer;

static void put(writer *w, const char *data, size_t size)
{
    if (size > w->capacity - w->used) size = w->capacity - w->used;
    if (size) memcpy(w->out + w->used, data, size);
    w->used += size;
}

/* Puts the parameters of [at, end), with their separators. In the key of an object, only what grants access is hidden. */
static void put_query(writer *w, tsr_str text, size_t at, size_t end, bool in_key)
{
    while (at < end) {
        const size_t next = until((tsr_str){text.data, end}, at, "&;");
        const size_t equals = until((tsr_str){text.data, next}, at, "=");
        const bool has_value = equals < next;
        const tsr_str key = {text.data + at, equals - at};
        if (in_key ? !is_secret(key) : is_harmless(key)) {
            put(w, text.data + at, next - at);
        } else {
            if (has_value) put(w, text.data + at, equals + 1 - at);
            if (next > (has_value ? equals + 1 : at)) put(w, "***", 3);
        }
        if (next < end) put(w, text.data + next, 1);
        at = next + 1;
    }
}

/* Keys in object stores are not URLs: '?' and '#' are ordinary characters in them. But a signature may have been pasted with one
 * by mistake. */
static bool is_object(tsr_str text)
{
    return tsr_str_starts(text, TSR_STR("s3://")) || tsr_str_starts(text, TSR_STR("gs://")) ||
           tsr_str_starts(text, TSR_STR("az://")) || tsr_str_starts(text, TSR_STR("hf://"));
}

size_t tsr_uri_redact(tsr_str text, char *out, size_t capacity)
{
    writer w = {.out = out, .capacity = capacity};
    const size_t scheme = scheme_size(text);
    if (!scheme) {
        put(&w, text.data, text.size);
        return w.used;
    }
    const size_t host = host_at(text, scheme);
    const bool has_fragment = !is_object(text);
    const size_t path_end = until(text, host, has_fragment ? "?#" : "?");
    put(&w, text.data, scheme);
    put(&w, text.data + host, path_end - host);
    if (path_end < text.size && text.data[path_end] == '?') {
        put(&w, "?", 1);
        put_query(&w, text, path_end + 1, has_fragment ? until(text, path_end, "#") : text.size, !has_fragment);
    }
    return w.used;
}
