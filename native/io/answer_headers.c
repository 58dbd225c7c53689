/* See answer_headers.h. */
#include "io/answer_headers.h"

#include <stdlib.h>
#include <strings.h>

bool tsr_header_is(const char *line, size_t size, const char *name, tsr_str *value)
{
    const size_t n = strlen(name);
    if (size <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return false;
    const char *at = line + n + 1, *end = line + size;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) end--;
    *value = (tsr_str){at, (size_t)(end - at)};
    return true;
}

static uint64_t number_of(const char *text, size_t size)
{
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9' || number > (UINT64_MAX - 9) / 10) return UINT64_MAX;
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    return size ? number : UINT64_MAX;
}

/* Parses "bytes 0-9/100". Either side of the slash may be an asterisk. */
static void take_range(tsr_str value, tsr_http_answer *answer)
{
    static const char unit[] = "bytes ";
    const size_t n = sizeof unit - 1;
    const char *slash = memchr(value.data, '/', value.size);
    const char *dash = slash ? memchr(value.data, '-', (size_t)(slash - value.data)) : NULL;
    answer->is_range = false;
    if (!slash || value.size < n || strncasecmp(value.data, unit, n) != 0) return;
    answer->total = number_of(slash + 1, value.size - (size_t)(slash + 1 - value.data));
    if (!dash || (answer->total == UINT64_MAX && strncmp(slash, "/*", 2) != 0)) return;
    answer->first = number_of(value.data + n, (size_t)(dash - value.data) - n);
    answer->last = number_of(dash + 1, (size_t)(slash - dash) - 1);
    answer->is_range = answer->first != UINT64_MAX && answer->last != UINT64_MAX && answer->first <= answer->last;
}

/* Parses "bytes=0-9", the first bytes of an upload. */
static uint64_t take_stored(tsr_str value)
{
    static const char begin[] = "bytes=0-";
    const size_t n = sizeof begin - 1;
    const bool is_known = value.size > n && strncasecmp(value.data, begin, n) == 0;
    const uint64_t last = is_known ? number_of(value.data + n, value.size - n) : UINT64_MAX;
    return last == UINT64_MAX ? 0 : last + 1;
}

static void keep(char *to, size_t room, tsr_str value)
{
    const size_t size = value.size < room ? value.size : room - 1;
    memcpy(to, value.data, size);
    to[size] = '\0';
}

static int month_of(const char *name)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    for (int i = 0; i < 12; i++)
        if (strncasecmp(name, months + 3 * i, 3) == 0) return i;
    return -1;
}

/* The only form that RFC 9110 allows servers to send. */
time_t tsr_http_date(tsr_str value)
{
    char text[64], month[4] = "";
    struct tm tm = {0};
    if (value.size >= sizeof text) return 0;
    memcpy(text, value.data, value.size);
    text[value.size] = '\0';
    char *at = strchr(text, ',');
    if (!at) return 0;
    tm.tm_mday = (int)strtol(at + 1, &at, 10);
    while (*at == ' ') at++;
    for (size_t i = 0; i < 3 && *at; i++) month[i] = *at++;
    tm.tm_mon = month_of(month);
    tm.tm_year = (int)strtol(at, &at, 10) - 1900;
    tm.tm_hour = (int)strtol(at, &at, 10);
    if (*at == ':') tm.tm_min = (int)strtol(at + 1, &at, 10);
    if (*at == ':') tm.tm_sec = (int)strtol(at + 1, &at, 10);
    return tm.tm_mon < 0 || tm.tm_year < 70 ? 0 : timegm(&tm);
}

/* Keeps a checksum unless its size is another one. That of an object which S3 composed of the checksums of parts ends in "-3". */
static void take_checksum(tsr_http_answer *answer, tsr_checksum_kind kind, tsr_str value)
{
    if (value.size == tsr_checksum_text_size(kind)) keep(answer->checksums.of_object[kind], TSR_CHECKSUM_TEXT, value);
}

/* Parses "crc32c=n03x6A==,md5=Ojk9c3dhfxgoKVVHYwFbHQ==", which may be divided between several headers. */
static void take_google_checksums(tsr_http_answer *answer, tsr_str value)
{
    while (value.size) {
        const char *comma = memchr(value.data, ',', value.size);
        tsr_str one = {value.data, comma ? (size_t)(comma - value.data) : value.size};
        value.size -= one.size + (comma != NULL);
        value.data += one.size + (comma != NULL);
        while (one.size && *one.data == ' ') one = (tsr_str){one.data + 1, one.size - 1};
        if (tsr_str_starts(one, TSR_STR("crc32c=")))
            take_checksum(answer, TSR_CHECKSUM_CRC32C, (tsr_str){one.data + 7, one.size - 7});
        if (tsr_str_starts(one, TSR_STR("md5=")))
            take_checksum(answer, TSR_CHECKSUM_MD5, (tsr_str){one.data + 4, one.size - 4});
    }
}

static void take_checksum_header(tsr_http_answer *answer, const char *line, size_t size)
{
    static const struct {
        const char *header;
        tsr_checksum_kind kind;
    } headers[] = {{"x-amz-checksum-crc32", TSR_CHECKSUM_CRC32},
                   {"x-amz-checksum-crc32c", TSR_CHECKSUM_CRC32C},
                   {"x-amz-checksum-crc64nvme", TSR_CHECKSUM_CRC64},
                   {"x-ms-blob-content-md5", TSR_CHECKSUM_MD5}};
    tsr_str value;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        if (!tsr_header_is(line, size, headers[i].header, &value)) continue;
        take_checksum(answer, headers[i].kind, value);
        return;
    }
    if (tsr_header_is(line, size, "x-amz-checksum-type", &value)) {
        answer->checksums.says_full = tsr_str_equal(value, TSR_STR("FULL_OBJECT"));
        answer->checksums.says_composite = tsr_str_equal(value, TSR_STR("COMPOSITE"));
    }
    if (tsr_header_is(line, size, "x-goog-hash", &value)) take_google_checksums(answer, value);
    else if (tsr_header_is(line, size, "Content-MD5", &value)) keep(answer->checksums.md5_of_body, TSR_CHECKSUM_TEXT, value);
}

void tsr_answer_header(tsr_http_answer *answer, const char *line, size_t size)
{
    tsr_str value;
    if (size > 5 && memcmp(line, "HTTP/", 5) == 0) { /* a new answer; the one before was only informational */
        const char *space = memchr(line, ' ', size);
        *answer = (tsr_http_answer){.total = UINT64_MAX, .status = space ? strtol(space + 1, NULL, 10) : 0};
    } else if (tsr_header_is(line, size, "Content-Range", &value)) {
        take_range(value, answer);
    } else if (tsr_header_is(line, size, "Range", &value)) {
        answer->stored = take_stored(value);
    } else if (tsr_header_is(line, size, "Content-Length", &value)) {
        if (answer->total == UINT64_MAX && answer->status != 206) answer->total = number_of(value.data, value.size);
    } else if (tsr_header_is(line, size, "ETag", &value) ||
               (!answer->version[0] && tsr_header_is(line, size, "Last-Modified", &value))) {
        keep(answer->version, sizeof answer->version, value);
    } else if (tsr_header_is(line, size, "x-amz-bucket-region", &value)) {
        keep(answer->region, sizeof answer->region, value);
    } else if (tsr_header_is(line, size, "x-goog-generation", &value)) {
        keep(answer->generation, sizeof answer->generation, value);
    } else if (tsr_header_is(line, size, "Date", &value)) {
        answer->date = (int64_t)tsr_http_date(value);
    } else {
        take_checksum_header(answer, line, size);
    }
}

double tsr_retry_after(tsr_str value, time_t now)
{
    const uint64_t seconds = number_of(value.data, value.size);
    if (seconds != UINT64_MAX) return (double)seconds;
    const time_t date = tsr_http_date(value);
    return date > now ? (double)(date - now) : 0;
}
