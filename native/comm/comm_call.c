/* Detects calls of ranks that contradict each other, and makes the errors. */
#include "comm/comm_call.h"

#include <inttypes.h>
#include <stdio.h>

/* The order matters: the same sizes in a different order are a different call. */
static uint64_t mix(uint64_t digest, uint64_t value)
{
    digest = (digest ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}

tsr_comm_call tsr_call_all_gather(const size_t *sizes, uint32_t ranks)
{
    tsr_comm_call call = {.kind = TSR_CALL_ALL_GATHER};
    for (uint32_t r = 0; r < ranks; r++) {
        call.bytes += sizes[r];
        call.digest = mix(call.digest, sizes[r]);
    }
    return call;
}

bool tsr_call_equal(const tsr_comm_call *a, const tsr_comm_call *b)
{
    return a->kind == b->kind && a->root == b->root && a->bytes == b->bytes && a->digest == b->digest;
}

typedef struct words {
    char text[96];
} words;

static words describe(const tsr_comm_call *call)
{
    words w = {"in an unknown call"};
    switch ((tsr_call_kind)call->kind) {
    case TSR_CALL_ALL_GATHER: snprintf(w.text, sizeof w.text, "gathers %" PRIu64 " bytes on all ranks", call->bytes); break;
    case TSR_CALL_BROADCAST:
        snprintf(w.text, sizeof w.text, "broadcasts %" PRIu64 " bytes from rank %" PRIu32, call->bytes, call->root);
        break;
    case TSR_CALL_EXCHANGE: snprintf(w.text, sizeof w.text, "exchanges messages"); break;
    case TSR_CALL_LARGEST: snprintf(w.text, sizeof w.text, "asks for the largest value"); break;
    case TSR_CALL_SPLIT: snprintf(w.text, sizeof w.text, "splits into groups"); break;
    case TSR_CALL_POISON: snprintf(w.text, sizeof w.text, "has failed"); break;
    case TSR_CALL_CLOSE: snprintf(w.text, sizeof w.text, "has left"); break;
    }
    return w;
}

tsr_status tsr_call_raise(const tsr_comm_call *zero, uint32_t rank, const tsr_comm_call *other, tsr_error *err)
{
    words first = describe(zero), second = describe(other);
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "comm: rank 0 %s, but rank %" PRIu32 " %s%s", first.text, rank,
                     second.text, strcmp(first.text, second.text) == 0 ? " with different sizes" : "");
}

tsr_status tsr_call_raise_left(uint32_t rank, tsr_error *err)
{
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "comm: rank %" PRIu32 " has left", rank);
}

tsr_status tsr_call_check_root(uint32_t root, uint32_t ranks, tsr_error *err)
{
    if (root < ranks) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "comm: rank %" PRIu32 " cannot broadcast: there are only ranks 0 to %" PRIu32, root, ranks - 1);
}

tsr_status tsr_call_check_peers(const tsr_message *messages, size_t count, uint32_t ranks, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (messages[i].peer >= ranks) {
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                             "comm: message %zu is for rank %" PRIu32 ", but there are only ranks 0 to %" PRIu32, i,
                             messages[i].peer, ranks - 1);
        }
    }
    return TSR_OK;
}

tsr_traffic tsr_traffic_with(const tsr_message *messages, size_t count, uint32_t peer)
{
    tsr_traffic t = {0};
    for (size_t i = 0; i < count; i++) {
        if (messages[i].peer != peer) continue;
        t.count++;
        t.bytes += messages[i].size;
        t.digest = mix(t.digest, messages[i].size);
    }
    return t;
}

tsr_status tsr_traffic_check(uint32_t from, const tsr_traffic *sent, uint32_t rank, const tsr_traffic *expected,
                             tsr_error *err)
{
    if (sent->count == expected->count && sent->bytes == expected->bytes && sent->digest == expected->digest) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "comm: rank %" PRIu32 " sends %" PRIu64 " messages of %" PRIu64 " bytes to rank %" PRIu32
                     ", which expects %" PRIu64 " of %" PRIu64 " bytes%s",
                     from, sent->count, sent->bytes, rank, expected->count, expected->bytes,
                     sent->count == expected->count && sent->bytes == expected->bytes ? " with different sizes" : "");
}
