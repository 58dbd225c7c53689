/* vsnprintf with the conversions that the module uses, in place of the C library's, which is 2 KB larger: %s, %c, %d, %i, %u, %x, %lld, %llu,
 * %llx and %zu. A number may have a precision, or a width with the flag 0. The precision of %s is unsigned, so that TSR_STR_ARG passes
 * any size as it is (TSR_PRINTS_SIZES). Floating-point numbers are printed by reals.c. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct output {
    char *out;
    size_t capacity;
    size_t used; /* what the text needs, which may be more than the capacity */
} output;

/* What is between '%' and the letter. */
typedef struct conversion {
    size_t size; /* the width or the precision */
    bool has_size;
    bool is_exact; /* a precision, with which 0 needs no digit */
    uint8_t longs; /* how many l */
} conversion;

static void put(output *to, const char *data, size_t size)
{
    const size_t room = to->used < to->capacity ? to->capacity - to->used : 0, taken = size < room ? size : room;
    if (taken) memcpy(to->out + to->used, data, taken);
    to->used += size;
}

static void put_number(output *to, const conversion *c, uint64_t value, unsigned base)
{
    char digits[20]; /* as many as 2^64 has */
    size_t at = sizeof digits, least = c->size ? c->size : !c->is_exact;
    for (; value; value /= base) digits[--at] = "0123456789abcdef"[value % base];
    for (; least > sizeof digits - at; least--) put(to, "0", 1);
    put(to, digits + at, sizeof digits - at);
}

static void put_signed(output *to, const conversion *c, int64_t value)
{
    if (value < 0) put(to, "-", 1);
    put_number(to, c, value < 0 ? -(uint64_t)value : (uint64_t)value, 10);
}

static void put_text(output *to, const conversion *c, const char *text)
{
    const size_t size = c->has_size ? c->size : strlen(text);
    const char *end = c->has_size && size ? memchr(text, 0, size) : NULL;
    put(to, text, end ? (size_t)(end - text) : size);
}

/* Reads what is between '%' and the letter, and returns where the letter is. */
static const char *read_conversion(const char *at, conversion *c, va_list *arguments)
{
    *c = (conversion){0};
    for (;; at++) {
        if (*at >= '0' && *at <= '9') c->size = c->size * 10 + (size_t)(*at - '0');
        else if (*at == '*') c->size = va_arg(*arguments, unsigned);
        else if (*at == '.') c->is_exact = true;
        else if (*at == 'l') c->longs++;
        else return at;
        c->has_size |= *at != 'l';
    }
}

/* What the linker calls in place of vsnprintf (CMakeLists.txt). */
int __wrap_vsnprintf(char *restrict out, size_t capacity, const char *restrict format, va_list given);
int __wrap_vsnprintf(char *restrict out, size_t capacity, const char *restrict format, va_list given)
{
    output to = {out, capacity, 0};
    conversion c;
    va_list arguments;
    va_copy(arguments, given);
    while (*format) {
        const size_t plain = strcspn(format, "%");
        put(&to, format, plain);
        format += plain;
        if (!*format) break;
        format = read_conversion(format + 1, &c, &arguments);
        switch (*format++) {
        case 's': put_text(&to, &c, va_arg(arguments, const char *)); break;
        case 'c': put(&to, (char[]){(char)va_arg(arguments, int)}, 1); break;
        case 'd':
        case 'i': put_signed(&to, &c, c.longs ? va_arg(arguments, long long) : va_arg(arguments, int)); break;
        case 'u':
            put_number(&to, &c, c.longs ? va_arg(arguments, unsigned long long) : va_arg(arguments, unsigned), 10);
            break;
        case 'x':
            put_number(&to, &c, c.longs ? va_arg(arguments, unsigned long long) : va_arg(arguments, unsigned), 16);
            break;
        case 'z': put_number(&to, &c, va_arg(arguments, size_t), 10), format++; break;
        default: put(&to, "%", 1); /* "%%": tests/structure refuses every other */
        }
    }
    va_end(arguments);
    if (capacity) out[to.used < capacity ? to.used : capacity - 1] = '\0';
    return (int)to.used;
}
