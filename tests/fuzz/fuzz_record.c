/* Reads any bytes as what a killed run left next to its output: the record of a publication, and a step of a journal. What is accepted must
 * be written as text that reads back as the same, and what is named must be below the destination. */
#define _GNU_SOURCE /* the headers of native/publish name files as the system does */
#include <stdlib.h>
#include <string.h>

#include "publish/file_sums.h"
#include "publish/record.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 5 };

static void check_names(const tsr_record *record)
{
    for (size_t i = 0; i < record->count; i++) {
        const tsr_str name = record->files[i].name;
        if (!name.size || name.data[0] == '/' || memchr(name.data, 0, name.size)) abort();
        if (tsr_str_equal(name, TSR_STR("..")) || tsr_str_starts(name, TSR_STR("../"))) abort();
    }
}

static void read_record(tsr_str text, tsr_arena *arena)
{
    tsr_record record, again;
    tsr_vec first = tsr_vec_of(&tsr_allocator_libc, 1), second = tsr_vec_of(&tsr_allocator_libc, 1);
    if (tsr_record_parse(text, arena, &record)) {
        check_names(&record);
        if (tsr_record_put(&record, &first, NULL) != TSR_OK) abort();
        if (!tsr_record_parse((tsr_str){first.items, first.count}, arena, &again)) abort();
        if (again.count != record.count || tsr_record_put(&again, &second, NULL) != TSR_OK) abort();
        if (first.count != second.count || memcmp(first.items, second.items, first.count) != 0) abort();
    }
    tsr_vec_free(&first);
    tsr_vec_free(&second);
}

/* Adds up what a step says, whose checksum is made to fit: otherwise almost no input would pass that check. If a checksum inside fits too,
 * the bytes are several steps. */
static void read_step(tsr_str text)
{
    uint64_t sums[FILES] = {0};
    tsr_journal_step step;
    const uint32_t crc = tsr_crc32(NULL, 0, text.data, text.size);
    char *sealed = malloc(text.size + 4);
    if (!sealed) return;
    if (text.size) memcpy(sealed, text.data, text.size);
    for (unsigned i = 0; i < 4; i++) sealed[text.size + i] = (char)(crc >> (8 * i));
    tsr_str rest = {sealed, text.size + 4};
    for (size_t left = rest.size; tsr_journal_step_next(&rest, &step); left = rest.size) {
        const uint64_t taken = 12 + step.records.size + (uint64_t)step.count * 12 + 4;
        if (taken + rest.size != left) abort();
        tsr_journal_step_sum(&step, sums, FILES);
    }
    free(sealed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_str text = {(const char *)data, size};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, NULL);
    if (!arena) return 0;
    read_record(text, arena);
    read_step(text);
    tsr_arena_free(arena);
    return 0;
}
