/* tessera/sys/publication.h: what a signal's thread does while other threads write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "scratch.h"
#include "tessera/sys/publication.h"

/* The allocator of a thread that creates a file. When `armed`, its next allocation, which needs the output's lock, waits until the
 * signal's thread has had time to begin. */
typedef struct slow_creation {
    sem_t begun;
    bool armed;
    tsr_remains (*remove)(void *state);
    void *state;
    tsr_publication publication;
} slow_creation;

static void *slow_resize(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    slow_creation *s = ctx;
    (void)old_size;
    if (new_size && s->armed) {
        s->armed = false;
        sem_post(&s->begun);
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    }
    if (new_size) return realloc(pointer, new_size);
    free(pointer);
    return NULL;
}

static void keep_cleanup(void *ctx, tsr_remains (*remove)(void *state), void *state)
{
    slow_creation *s = ctx;
    s->remove = remove;
    s->state = state;
}

static void *create_late(void *ctx)
{
    slow_creation *s = ctx;
    uint32_t file;
    tsr_error err = {0};
    s->armed = true;
    s->publication.output->create(s->publication.output, TSR_STR("late.bin"), 0, &file, &err);
    return NULL;
}

/* Ends the process: 0 if the cleanup came to its end and nothing is left. */
static void clean_up_during_creation(void)
{
    static slow_creation s;
    const tsr_allocator allocator = {slow_resize, &s};
    const tsr_host host = {.allocator = &allocator};
    pthread_t creator;
    tsr_error err = {0};
    alarm(60); /* instead of waiting for each other */
    s.publication = (tsr_publication){.environment = {.guard = keep_cleanup, .ctx = &s},
                                      .host = &host,
                                      .arena = tsr_arena_new(&tsr_allocator_libc, 0, &err),
                                      .destination = scratch_path("out"),
                                      .line = TSR_STR("a test\n"),
                                      .is_directory = true,
                                      .names = (const tsr_str[]){TSR_STR("late.bin")},
                                      .name_count = 1};
    if (tsr_publication_open(&s.publication, &err) != TSR_OK || sem_init(&s.begun, 0, 0) != 0) _exit(1);
    if (pthread_create(&creator, NULL, create_late, &s) != 0) _exit(2);
    sem_wait(&s.begun);
    if (s.remove(s.state) != TSR_REMAINS_NOTHING) _exit(3);
    _exit(scratch_list("")[0] ? 4 : 0);
}

static void test_native_publication__a_cleanup_does_not_wait_for_a_thread_that_creates_a_file(void **state)
{
    int how = -1;
    (void)state;
    const pid_t child = fork();
    if (child == 0) clean_up_during_creation();
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_string_equal(scratch_list(""), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_publication__a_cleanup_does_not_wait_for_a_thread_that_creates_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
