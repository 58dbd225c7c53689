/* Unpacks numbers of 1 to 8 bits from words.
 *
 *   codes   one number per byte                       of any bits
 *   pairs   two numbers per byte, the first one low   of 4 bits: half the bytes, and what a processor's shuffles look up
 *
 * Matrices that are stored column by column are turned while they are unpacked. Lines of words are far apart in memory then, so what a few
 * rows need is brought together first. */
#include "mapping/mapping_codes.h"

enum { LINES = 16 /* of words, which are brought together */ };

/* ---- rows that are stored row by row ---- */

void tsr_codes_down(const tsr_codes *codes, const tsr_area *a, const uint8_t *words, uint8_t *out)
{
    const uint64_t first = a->row * codes->bits / 32 * 32;
    const size_t width = a->columns * sizeof(uint32_t);
    for (size_t i = 0; i < a->rows; i++, out += a->columns) {
        const uint64_t bit = (a->row + i) * codes->bits - first;
        const unsigned shift = bit % 32, mask = (1u << codes->bits) - 1, left = 32 - shift;
        const uint8_t *line = words + bit / 32 * width;
        const bool straddles = codes->bits > left;
        for (size_t k = 0; k < a->columns; k++) {
            uint32_t low;
            memcpy(&low, line + k * sizeof low, sizeof low);
            out[k] = (uint8_t)(low >> shift & mask);
        }
        for (size_t k = 0; straddles && k < a->columns; k++) {
            uint32_t high;
            memcpy(&high, line + width + k * sizeof high, sizeof high);
            out[k] |= (uint8_t)(high << left & mask);
        }
    }
}

/* Where number `at` of a line is in its words, in numbers. */
static uint64_t place_of(const tsr_codes *codes, uint64_t at)
{
    if (!codes->order) return at;
    const uint64_t start = at / codes->period * codes->period;
    return start + codes->order[at - start];
}

/* The 8 numbers of 4 bits in a word, each in a byte, the lowest first. */
static uint64_t spread(const uint8_t *word)
{
    uint64_t x = (uint64_t)word[0] | (uint64_t)word[1] << 8 | (uint64_t)word[2] << 16 | (uint64_t)word[3] << 24;
    x = (x | x << 16) & UINT64_C(0x0000FFFF0000FFFF);
    x = (x | x << 8) & UINT64_C(0x00FF00FF00FF00FF);
    return (x | x << 4) & UINT64_C(0x0F0F0F0F0F0F0F0F);
}

static void put_bytes(uint64_t x, uint8_t *out)
{
    for (unsigned i = 0; i < 8; i++) out[i] = (uint8_t)(x >> 8 * i);
}

/* Unpacks 8 numbers of 4 bits at a time, from the first whole word on; returns how many. */
static size_t unpack_words(const tsr_codes *codes, const tsr_area *a, const tsr_stored_words *stored, uint8_t *out)
{
    size_t done = 0;
    const uint64_t bit = a->column * 4 - stored->first;
    const uint8_t *words = stored->words + bit / 8;
    if (codes->bits != 4 || a->column % 8 || bit % 8 || (codes->order && codes->period != 2)) return 0;
    for (; done + 8 <= a->columns; done += 8, words += 4) {
        const uint64_t x = spread(words), even = UINT64_C(0x00FF00FF00FF00FF);
        put_bytes(codes->order ? (x & even) << 8 | (x >> 8 & even) : x, out + done);
    }
    return done;
}

void tsr_codes_across(const tsr_codes *codes, const tsr_area *a, const tsr_stored_words *stored, uint8_t *out)
{
    const unsigned mask = (1u << codes->bits) - 1;
    tsr_stored_words line = *stored;
    for (size_t i = 0; i < a->rows; i++, line.words += line.width, out += a->columns) {
        size_t k = unpack_words(codes, a, &line, out);
        if (codes->bits == 8) {
            memcpy(out, line.words + (a->column - line.first / 8), a->columns);
            k = a->columns;
        }
        for (; k < a->columns; k++) {
            const uint64_t bit = place_of(codes, a->column + k) * codes->bits - line.first;
            const unsigned low = line.words[bit / 8], high = bit % 8 + codes->bits > 8 ? line.words[bit / 8 + 1] : 0;
            out[k] = (uint8_t)((high << 8 | low) >> bit % 8 & mask);
        }
    }
}

/* ---- rows that are stored column by column ---- */

/* Words that hold numbers of one row: each is unpacked where its numbers belong. Returns how many columns are done. */
static size_t turn_words(const tsr_codes *codes, const tsr_area *a, const tsr_stored_words *stored, uint8_t *out)
{
    uint8_t near[LINES][TSR_TURNED_ROWS * sizeof(uint32_t)];
    const unsigned bits = codes->bits, each = 32 / bits, mask = (1u << bits) - 1;
    const size_t whole = a->columns / each, line = (size_t)((a->column * bits - stored->first) / 32);
    if (!TSR_PRODUCTS_BUILT || !codes->down || 32 % bits || a->column * bits % 32) return 0;
    for (size_t w = 0; w < whole; w++) {
        const uint8_t *words = stored->words + (line + w) * stored->width + a->row * sizeof(uint32_t);
        for (size_t j = 0; w % LINES == 0 && j < LINES && w + j < whole; j++, words += stored->width)
            memcpy(near[j], words, a->rows * sizeof(uint32_t));
        words = near[w % LINES];
        for (size_t i = 0; i < a->rows; i++, words += sizeof(uint32_t)) {
            uint8_t *to = out + i * tsr_turned_line(a->columns) + w * each;
            for (unsigned j = 0; j < each; j++) to[j] = (uint8_t)(words[j * bits / 8] >> j * bits % 8 & mask);
        }
    }
    return whole * each;
}

void tsr_codes_turned(const tsr_codes *codes, const tsr_area *a, const tsr_stored_words *stored, uint8_t *out)
{
    const unsigned bits = codes->bits, mask = (1u << bits) - 1;
    for (size_t k = turn_words(codes, a, stored, out); k < a->columns; k++) {
        for (size_t i = 0; i < a->rows; i++) {
            uint64_t bit;
            const uint8_t *at, *next;
            if (codes->down) {
                bit = (a->column + k) * bits - stored->first;
                at = stored->words + bit / 32 * stored->width + (a->row + i) * sizeof(uint32_t) + bit % 32 / 8;
                next = bit % 32 / 8 < 3 ? at + 1 : at + stored->width - 3;
            } else {
                bit = place_of(codes, a->row + i) * bits - stored->first;
                at = stored->words + k * stored->width + bit / 8;
                next = at + 1;
            }
            const unsigned high = bit % 8 + bits > 8 ? *next : 0;
            out[i * tsr_turned_line(a->columns) + k] = (uint8_t)((high << 8 | *at) >> bit % 8 & mask);
        }
    }
}

enum { NEAR = 64 /* bytes of each line that are turned at a time */ };

/* A word that holds 8 numbers of a row is 4 bytes of the row's pairs. All words are turned, so that their number is known; those beyond the
 * columns are at the end of the lines. */
static void turn_pairs_down(const uint8_t *words, size_t rows, size_t line, uint8_t *out)
{
    enum { WORD = sizeof(uint32_t) };
    for (size_t i = 0; i < rows; i++, out += line)
        for (size_t w = 0; w < TSR_TURNED_COLUMNS / 8; w++) memcpy(out + w * WORD, words + w * NEAR + i * WORD, WORD);
}

/* Words of as many rows as are turned together: of 8 rows each, so that compilers make vectors of them. */
enum { ACROSS = 4, ACROSS_ROWS = 8 * ACROSS };

/* Exchanges the upper half of each field of 2 · `bits` of one word with the lower half of the other's. */
static inline void exchange(uint32_t *low, uint32_t *high, unsigned bits, uint32_t mask)
{
    for (unsigned k = 0; k < ACROSS; k++) {
        const uint32_t moved = (low[k] >> bits ^ high[k]) & mask;
        high[k] ^= moved;
        low[k] ^= moved << bits;
    }
}

/* Turns 8 rows of 8 numbers, in each of the words: number i of x[k] becomes number k of x[i]. */
static inline void turn_numbers(uint32_t x[8][ACROSS])
{
    for (unsigned i = 0; i < 8; i += 2) exchange(x[i], x[i + 1], 4, UINT32_C(0x0F0F0F0F));
    for (unsigned i = 0; i < 8; i += 4) {
        exchange(x[i], x[i + 2], 8, UINT32_C(0x00FF00FF));
        exchange(x[i + 1], x[i + 3], 8, UINT32_C(0x00FF00FF));
    }
    for (unsigned i = 0; i < 4; i++) exchange(x[i], x[i + 4], 16, UINT32_C(0x0000FFFF));
}

/* Turns 8 columns of `rows` rows, whose words are `width` bytes apart. The first `columns` of them are there. */
static inline void turn_pairs(const uint8_t *order, const uint8_t *words, size_t width, unsigned columns, size_t rows,
                              size_t line, uint8_t *out)
{
    uint32_t x[8][ACROSS] = {{0}};
    for (unsigned j = 0; j < columns; j++) memcpy(x[j], words + j * width, rows / 2);
    turn_numbers(x);
    for (unsigned k = 0; k < rows / 8; k++)
        for (unsigned j = 0; j < 8; j++, out += line) memcpy(out, &x[order[j]][k], sizeof x[0][0]);
}

/* Words that hold numbers of 8 rows. */
static void turn_pairs_across(const uint8_t *order, const uint8_t *words, size_t width, size_t rows, size_t columns,
                              size_t line, uint8_t *out)
{
    for (size_t i = 0; i < rows; i += ACROSS_ROWS, words += ACROSS_ROWS / 2, out += ACROSS_ROWS * line) {
        const size_t most = rows - i < ACROSS_ROWS ? rows - i : ACROSS_ROWS;
        size_t k = 0;
        for (; most == ACROSS_ROWS && k + 8 <= columns; k += 8)
            turn_pairs(order, words + k * width, width, 8, ACROSS_ROWS, line, out + k / 2);
        for (; k < columns; k += 8)
            turn_pairs(order, words + k * width, width, columns - k < 8 ? (unsigned)(columns - k) : 8, most, line,
                       out + k / 2);
    }
}

/* Lines of words are at few places of the caches, so some bytes of all of them are copied to where they are next to each other. A copy whose
 * size compilers know takes a fraction of the time. */
void tsr_pairs_turn(const tsr_codes *codes, const tsr_stored_words *stored, size_t rows, size_t columns, size_t line,
                    uint8_t *out)
{
    uint8_t near[TSR_TURNED_COLUMNS][NEAR];
    const size_t lines = codes->down ? (columns + 7) / 8 : columns, most = codes->down ? NEAR / 4 : 2 * NEAR;
    for (size_t i = 0, n; i < rows; i += n, out += n * line) {
        n = rows - i < most ? rows - i : most;
        const size_t first = codes->down ? 4 * i : i / 2, bytes = codes->down ? 4 * n : n / 2;
        const uint8_t *words = stored->words + first;
        for (size_t k = 0; k < lines && bytes == NEAR; k++, words += stored->width) memcpy(near[k], words, NEAR);
        for (size_t k = 0; k < lines && bytes != NEAR; k++, words += stored->width) memcpy(near[k], words, bytes);
        if (codes->down) turn_pairs_down(near[0], n, line, out);
        else turn_pairs_across(codes->order, near[0], NEAR, n, columns, line, out);
    }
}

void tsr_look_up_ordered_pairs(const uint32_t *low, const uint32_t *high, const uint16_t *even, const uint16_t *odd,
                               const uint8_t *pairs, size_t count, uint8_t *out)
{
    enum { AT_A_TIME = 64 };
    for (size_t i = 0, n; i < count; i += n) {
        uint16_t first[AT_A_TIME], second[AT_A_TIME];
        n = count - i < AT_A_TIME ? count - i : AT_A_TIME;
        for (size_t k = 0; k < n; k++) {
            first[k] = (uint16_t)(even[i + k] + (pairs[i + k] & 15));
            second[k] = (uint16_t)(odd[i + k] + (pairs[i + k] >> 4));
        }
        size_t k = 0;
        for (; k + 4 <= n; k += 4) {
            const uint32_t four[4] = {low[first[k]] | high[second[k]], low[first[k + 1]] | high[second[k + 1]],
                                      low[first[k + 2]] | high[second[k + 2]], low[first[k + 3]] | high[second[k + 3]]};
            memcpy(out + (i + k) * sizeof *four, four, sizeof four);
        }
        for (; k < n; k++) {
            const uint32_t both = low[first[k]] | high[second[k]];
            memcpy(out + (i + k) * sizeof both, &both, sizeof both);
        }
    }
}
