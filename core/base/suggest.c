/* "did you mean": finds the nearest word by edit distance (insert, delete, replace, swap neighbors). */
#include "tessera/str.h"
#include "tessera/sys/text.h"

enum { MAX_WORD = 32 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned distance(const char *a, const char *b)
{
    size_t rows = strlen(a), columns = strlen(b);
    unsigned d[MAX_WORD + 1][MAX_WORD + 1];
    if (rows > MAX_WORD || columns > MAX_WORD) return MAX_WORD;
    for (size_t i = 0; i <= rows; i++) d[i][0] = (unsigned)i;
    for (size_t j = 0; j <= columns; j++) d[0][j] = (unsigned)j;
    for (size_t i = 1; i <= rows; i++) {
        for (size_t j = 1; j <= columns; j++) {
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[rows][columns];
}

const char *tsr_suggest(const char *wrong, const void *words, size_t step)
{
    const char *best = NULL, *word;
    unsigned nearest = (unsigned)strlen(wrong) / 3 + 2; /* words further away are not typing mistakes */
    for (const char *at = words; (word = *(const char *const *)(const void *)at); at += step) {
        size_t size = strlen(wrong);
        bool begins = size >= 3 && strncmp(word, wrong, size) == 0;
        unsigned d = begins ? 1 : distance(wrong, word);
        if (d < nearest && d < strlen(word)) {
            nearest = d;
            best = word;
        }
    }
    return best;
}
