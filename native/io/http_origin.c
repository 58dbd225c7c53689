/* See http_origin.h. Source: RFC 3986, 3.2. */
#include "io/http_origin.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct place {
    size_t scheme;    /* number of its characters; 0: neither http nor https */
    const char *user; /* the text after "//" */
    size_t user_size; /* including the '@' */
    const char *host;
    size_t host_size;
    unsigned long port;
} place;

static place place_of(const char *url)
{
    place p = {0};
    const bool secure = strncasecmp(url, "https://", 8) == 0;
    if (!secure && strncasecmp(url, "http://", 7) != 0) return p;
    p.scheme = secure ? 5 : 4;
    p.user = p.host = url + p.scheme + 3;
    const char *end = p.host + strcspn(p.host, "/?#");
    for (const char *at = p.host; at < end; at++)
        if (*at == '@') p.host = at + 1;
    p.user_size = (size_t)(p.host - p.user);
    const char *close = *p.host == '[' ? memchr(p.host, ']', (size_t)(end - p.host)) : NULL;
    const char *colon = memchr(close ? close : p.host, ':', (size_t)(end - (close ? close : p.host)));
    p.host_size = (size_t)((colon ? colon : end) - p.host);
    p.port = colon && colon + 1 < end ? strtoul(colon + 1, NULL, 10) : secure ? 443 : 80;
    return p;
}

bool tsr_http_same_origin(const char *a, const char *b)
{
    const place x = place_of(a), y = place_of(b);
    return x.scheme && x.scheme == y.scheme && x.port == y.port && x.host_size == y.host_size &&
           strncasecmp(x.host, y.host, x.host_size) == 0;
}

char *tsr_http_with_user(const char *url, const char *from)
{
    const place to = place_of(url), had = place_of(from);
    if (!to.scheme || to.user_size || !had.user_size) return strdup(url);
    const size_t head = (size_t)(to.user - url), size = strlen(url);
    char *text = malloc(size + had.user_size + 1);
    if (!text) return NULL;
    memcpy(text, url, head);
    memcpy(text + head, had.user, had.user_size);
    memcpy(text + head + had.user_size, url + head, size - head + 1);
    return text;
}
