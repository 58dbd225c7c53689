/* Hostile checkpoints of any size, and what must happen when they are opened. */
#ifndef TESTS_ROBUST_HOSTILE_H
#define TESTS_ROBUST_HOSTILE_H

#include "tessera/str.h"

/* CAPPED: the content expands to more than the size of the input, because names repeat the whole path to them. It is
 * accepted until it would expand beyond what is allowed (64 bytes per byte of input, and limits.expansion); for larger
 * inputs the bounds are absolute. */
typedef enum hostile_verdict { ACCEPTED, REFUSED, CAPPED } hostile_verdict;

/* The text is head, unit × n, middle, turn × n, tail. %% becomes the number of the repetition, as six digits. */
typedef struct hostile_shape {
    const char *name;
    tsr_str head, unit, middle, turn, tail;
    hostile_verdict verdict;
} hostile_shape;

typedef struct hostile_text {
    char *data; /* owned by the caller, who frees it */
    size_t size, capacity;
} hostile_text;

typedef struct hostile_group {
    const char *name;
    const char *file; /* name of the file with the content in the store */
    const hostile_shape *shapes;
    size_t count;
    hostile_text (*wrap)(hostile_text content, size_t n);
    size_t n; /* number of repetitions that gives a few hundred kilobytes */
} hostile_group;

enum { HOSTILE_PICKLES, HOSTILE_ARCHIVES, HOSTILE_METADATA, HOSTILE_HEADERS, HOSTILE_INDEXES, HOSTILE_GROUPS };
extern const hostile_group hostile_groups[HOSTILE_GROUPS];

hostile_text hostile_build(const hostile_group *group, const hostile_shape *shape, size_t n);

#endif
