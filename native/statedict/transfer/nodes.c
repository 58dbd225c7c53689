/* See nodes.h. */
#include "statedict/transfer/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tessera/memory.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

typedef struct owned {
    tsr_nodes nodes; /* first */
    tsr_arena *arena;
} owned;

uint64_t tsr_machine(void)
{
    char text[512] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t size = f ? fread(text, 1, 64, f) : 0;
    if (f) fclose(f);
    gethostname(text + size, sizeof text - size - 1);
    return tsr_hash_bytes(text, sizeof text, 1);
}

/* Number `rank` of a list. */
static uint64_t listed(const char *list, uint32_t rank)
{
    for (; rank && *list; list++) rank -= *list == ',';
    return strtoull(list, NULL, 10);
}

/* Numbers the nodes in the order of their first ranks, and lists their ranks. */
static void number(owned *o, const uint64_t *machines, uint32_t ranks, uint32_t *of, uint32_t *order, uint32_t *start)
{
    uint32_t count = 0, used = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t same = 0;
        while (same < r && machines[same] != machines[r]) same++;
        of[r] = same < r ? of[same] : count++;
    }
    for (uint32_t node = 0; node < count; node++) {
        start[node] = used;
        for (uint32_t r = 0; r < ranks; r++)
            if (of[r] == node) order[used++] = r;
    }
    start[count] = used;
    o->nodes = (tsr_nodes){count, of, order, start};
}

static tsr_status find(tsr_comm *comm, owned *o, tsr_status status, tsr_error *err)
{
    const uint32_t ranks = comm->size;
    const char *list = getenv("TESSERA_NODES");
    const uint64_t mine = list ? listed(list, comm->rank) : tsr_machine();
    uint64_t *machines = o ? tsr_arena_array(o->arena, ranks, sizeof *machines, err) : NULL;
    size_t *sizes = machines ? tsr_arena_array(o->arena, ranks, sizeof *sizes, err) : NULL;
    uint32_t *numbers = sizes ? tsr_arena_array(o->arena, 3 * (size_t)ranks + 1, sizeof *numbers, err) : NULL;
    if (status == TSR_OK && !numbers) status = TSR_E_NOMEM;
    TSR_TRY(tsr_comm_agree(comm, status, err));
    for (uint32_t r = 0; r < ranks; r++) sizes[r] = sizeof mine;
    TSR_TRY(comm->all_gather(comm, &mine, sizes, machines, err));
    number(o, machines, ranks, numbers, numbers + ranks, numbers + 2 * (size_t)ranks);
    return TSR_OK;
}

tsr_status tsr_nodes_find(tsr_comm *comm, const tsr_allocator *allocator, tsr_nodes **out, tsr_error *err)
{
    *out = NULL;
    if (comm->size < 3) return TSR_OK; /* two ranks on one node and one on another, at least */
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    owned *o = arena ? TSR_ARENA_NEW(arena, owned, err) : NULL;
    if (o) o->arena = arena;
    const tsr_status status = find(comm, o, o ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK && o->nodes.count > 1 && o->nodes.count < comm->size) *out = &o->nodes;
    else tsr_arena_free(arena);
    return status;
}

void tsr_nodes_free(tsr_nodes *nodes)
{
    if (nodes) tsr_arena_free(((owned *)nodes)->arena);
}
