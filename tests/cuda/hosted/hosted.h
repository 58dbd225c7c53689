/* Functions of the hosted runtime for tests, in addition to CUDA's own functions. */
#ifndef TESTS_CUDA_HOSTED_H
#define TESTS_CUDA_HOSTED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order in which the blocks of a grid run, and the threads of a block between barriers. */
enum hosted_order { HOSTED_FORWARD, HOSTED_REVERSE, HOSTED_SHUFFLED };
void hosted_set_order(enum hosted_order order, uint64_t seed);

/* Makes the n-th call from now, counted from 0, fail with this cudaError_t and do nothing; UINT64_MAX: no call. Calls that
 * only free something (cudaFree…, …Destroy) and calls that ask about errors are not counted. */
void hosted_fail_call(uint64_t n, int error);
/* How many calls there were since hosted_fail_call, and whether one of them failed because of it. */
uint64_t hosted_calls(void);
int hosted_has_failed(void);

/* What has not been freed: device memory, pinned memory, streams and events. */
typedef struct hosted_live {
    uint64_t blocks, pinned, streams, events, most_pinned_bytes;
} hosted_live;
hosted_live hosted_what_lives(void);
void hosted_forget_most(void); /* starts most_pinned_bytes again */

/* Returns how often the host waited for unfinished work, by streams and events, since the program began. */
uint64_t hosted_waits(void);

#ifdef __cplusplus
}
#endif

#endif
