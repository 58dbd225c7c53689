/* Hostile checkpoints of any size: what they are made of, and what must become of them. */
#ifndef TESTS_ROBUST_HOSTILE_H
#define TESTS_ROBUST_HOSTILE_H

#include "tessera/str.h"

/* CAPPED: what it stands for is longer than the input by nature (names that repeat the whole way to them), and grows until
 * it would expand beyond what is allowed (64 bytes a byte, and limits.expansion); then the bounds are absolute. */
typedef enum hostile_verdict { ACCEPTED, REFUSED, CAPPED } hostile_verdict;

/* head, unit × n, middle, turn × n, tail; %% is the turn as six digits */
typedef struct hostile_shape {
    const char *name;
    tsr_str head, unit, middle, turn, tail;
    hostile_verdict verdict;
} hostile_shape;

typedef struct hostile_text {
    char *data; /* the caller's: free */
    size_t size, capacity;
} hostile_text;

typedef struct hostile_group {
    const char *name;
    const char *file; /* what the content is called in its store */
    const hostile_shape *shapes;
    size_t count;
    hostile_text (*wrap)(hostile_text content, size_t n);
    size_t n; /* turns that make a few hundred kilobytes */
} hostile_group;

enum { HOSTILE_PICKLES, HOSTILE_ARCHIVES, HOSTILE_METADATA, HOSTILE_HEADERS, HOSTILE_INDEXES, HOSTILE_GROUPS };
extern const hostile_group hostile_groups[HOSTILE_GROUPS];

hostile_text hostile_build(const hostile_group *group, const hostile_shape *shape, size_t n);

#endif
