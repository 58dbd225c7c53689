/* A grid on one thread of the host. Blocks run one after the other; a block's threads run on fibers:
 *
 *   fiber 0   thread 0 ── thread 1 ── … a thread meets a barrier ╌╌╌╌╌╌╌╌╌╌ the rest of it
 *   fiber 1                              the threads that are left … ╌╌╌╌╌╌╌╌ the rest
 *
 * A thread that ends hands its fiber to the next, so that kernels without barriers need one. */
#include "hosted/hosted_grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#include "cuda_runtime_api.h"
#include "hosted/hosted.h"
#include "hosted/hosted_kernel.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES ((size_t)256 << 10)

hosted_index threadIdx, blockIdx, blockDim, gridDim;

extern "C" {
extern unsigned char __start_hosted_shared[] __attribute__((weak)), __stop_hosted_shared[] __attribute__((weak));
}

namespace
{
struct fiber {
    ucontext_t context;
    void *stack;
    void *fake_stack;
    unsigned thread;
    bool waits, ended;
};

auto &fibers = *new std::vector<fiber *>; /* reused by all grids */
ucontext_t scheduler;
void *scheduler_fake_stack;
const void *scheduler_stack;
size_t scheduler_size;
fiber *running;
const std::function<void()> *body;
std::vector<unsigned> thread_order;
unsigned next_thread, ended_threads;

hosted_order order = HOSTED_SHUFFLED;
uint64_t order_state = 1;

uint64_t next_random()
{
    order_state ^= order_state << 13;
    order_state ^= order_state >> 7;
    return order_state ^= order_state << 17;
}

void put_in_order(std::vector<unsigned> &numbers, unsigned count)
{
    numbers.resize(count);
    for (unsigned i = 0; i < count; i++) numbers[i] = order == HOSTED_REVERSE ? count - 1 - i : i;
    for (unsigned i = count; order == HOSTED_SHUFFLED && i > 1; i--) std::swap(numbers[i - 1], numbers[next_random() % i]);
}

/* AddressSanitizer wants to know of every change of stacks. */
void leave(void **kept, const void *to, size_t size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(kept, to, size);
#else
    (void)kept, (void)to, (void)size;
#endif
}

void arrive(void *kept, const void **from, size_t *size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(kept, from, size);
#else
    (void)kept, (void)from, (void)size;
#endif
}

void switch_to_scheduler(bool for_good)
{
    fiber *self = running;
    leave(for_good ? nullptr : &self->fake_stack, scheduler_stack, scheduler_size);
    swapcontext(&self->context, &scheduler);
    arrive(self->fake_stack, &scheduler_stack, &scheduler_size);
    running = self;
    threadIdx.x = self->thread;
}

void fiber_main()
{
    arrive(nullptr, &scheduler_stack, &scheduler_size);
    while (next_thread < thread_order.size()) {
        running->thread = threadIdx.x = thread_order[next_thread++];
        (*body)();
        ended_threads++;
    }
    running->ended = true;
    switch_to_scheduler(true);
}

void resume(fiber *f)
{
    running = f;
    f->waits = false;
    leave(&scheduler_fake_stack, f->stack, STACK_BYTES);
    swapcontext(&scheduler, &f->context);
    arrive(scheduler_fake_stack, nullptr, nullptr);
}

fiber *begin_fiber(size_t number)
{
    if (number == fibers.size()) {
        fibers.push_back(new fiber{});
        fibers.back()->stack =
            mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fibers.back()->stack == MAP_FAILED) abort();
    }
    fiber *f = fibers[number];
    f->ended = f->waits = false;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
    return f;
}

__attribute__((no_sanitize("address"))) void spoil_shared()
{
    for (volatile unsigned char *p = __start_hosted_shared; p < __stop_hosted_shared; p++) *p = 0xb7;
}

void run_block(unsigned threads)
{
    std::vector<fiber *> waiting;
    spoil_shared();
    put_in_order(thread_order, threads);
    next_thread = ended_threads = 0;
    for (size_t used = 0; next_thread < threads;) {
        fiber *f = begin_fiber(used++);
        resume(f);
        if (f->waits) waiting.push_back(f);
    }
    while (!waiting.empty()) {
        std::vector<unsigned> turns;
        std::vector<fiber *> still;
        if (ended_threads) {
            fprintf(stderr, "hosted: %u threads of block %u ended while %zu wait at a barrier\n", ended_threads, blockIdx.x,
                    waiting.size());
            abort();
        }
        put_in_order(turns, (unsigned)waiting.size());
        for (unsigned turn : turns) {
            resume(waiting[turn]);
            if (waiting[turn]->waits) still.push_back(waiting[turn]);
        }
        waiting.swap(still);
    }
}
} // namespace

extern "C" void __syncthreads(void)
{
    running->waits = true;
    switch_to_scheduler(false);
}

extern "C" void hosted_set_order(enum hosted_order wanted, uint64_t seed)
{
    order = wanted;
    order_state = seed * 2 + 1;
}

void hosted_run_grid(unsigned blocks, unsigned threads, const std::function<void()> &thread)
{
    std::vector<unsigned> block_order;
    body = &thread;
    put_in_order(block_order, blocks);
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    for (unsigned block : block_order) {
        blockIdx = {block, 0, 0};
        threadIdx = {0, 0, 0};
        run_block(threads);
    }
}
