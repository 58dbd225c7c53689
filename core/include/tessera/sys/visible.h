/* Text from files as it may be shown to people: what cannot be seen, or could change a terminal, is escaped.
 *
 * Example:
 *
 *     char escape[TSR_ESCAPE_SIZE];
 *     while (text.size) {
 *         tsr_str shown;
 *         const size_t step = tsr_str_step(text, escape, &shown);
 *         printf("%.*s", TSR_STR_ARG(shown));
 *         text = (tsr_str){text.data + step, text.size - step};
 *     } */
#ifndef TESSERA_SYS_VISIBLE_H
#define TESSERA_SYS_VISIBLE_H

#include "tessera/str.h"

TSR_API_BEGIN

/* Bytes of the character at the head of `text` where people can see it; 0 where it has to be escaped: a control, something
 * invisible, bytes that are not UTF-8, or nothing. */
size_t tsr_str_visible(tsr_str text);

enum { TSR_ESCAPE_SIZE = 12 };
/* Steps over the next character of a text that is not empty, for showing it to people. `*shown` is the character itself where
 * it is visible, otherwise an escape in `escape`: \x1b for an ASCII control and for a byte that is not UTF-8, \u200b or
 * \U000e0041 for other characters. Returns the bytes stepped over. */
size_t tsr_str_step(tsr_str text, char escape[TSR_ESCAPE_SIZE], tsr_str *shown);

TSR_API_END

#endif
