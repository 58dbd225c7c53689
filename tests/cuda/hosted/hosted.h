/* What tests ask of the hosted runtime, beside CUDA's own functions. */
#ifndef TESTS_CUDA_HOSTED_H
#define TESTS_CUDA_HOSTED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order in which a grid's blocks, and a block's threads between barriers, run. */
enum hosted_order { HOSTED_FORWARD, HOSTED_REVERSE, HOSTED_SHUFFLED };
void hosted_set_order(enum hosted_order order, uint64_t seed);

/* The n-th call from now, counted from 0, fails with this cudaError_t and does nothing; UINT64_MAX: none. Calls that only
 * give something back (cudaFree…, …Destroy) and those that answer questions about errors do not count. */
void hosted_fail_call(uint64_t n, int error);
/* How many calls there were since hosted_fail_call; whether one failed by it. */
uint64_t hosted_calls(void);
int hosted_has_failed(void);

/* What is not given back: device memory, pinned memory, streams and events. */
typedef struct hosted_live {
    uint64_t blocks, pinned, streams, events, most_pinned_bytes;
} hosted_live;
hosted_live hosted_what_lives(void);
void hosted_forget_most(void); /* most_pinned_bytes begins again */

/* How often the host waited for work that was not done, by streams and events, since the program began. */
uint64_t hosted_waits(void);

#ifdef __cplusplus
}
#endif

#endif
