/* Reads meshes and placements from text: the text up to the first newline is the mesh, and the rest the placements. What is
 * accepted must be printed as text that reads back as the same value, and every rank's shard of a small tensor must be
 * inside that tensor. */
#include <stdlib.h>

#include "tessera/mesh.h"
#include "tessera/sys/layout.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) abort(); \
    } while (0)

static void check_shards(const tsr_mesh *mesh, const tsr_placement *placements, tsr_arena *arena)
{
    static const uint64_t shape[] = {7, 3, 5};
    const tsr_box tensor = {3, NULL, shape};
    uint64_t ranks = tsr_mesh_ranks(mesh);
    for (uint64_t r = 0; r < ranks && r < 20; r++) {
        tsr_shard shard;
        if (tsr_mesh_shard(&(tsr_sharding){mesh, placements, r % 2 ? TSR_STRIDED_FSDP : TSR_STRIDED_DTENSOR},
                           (tsr_shape){3, shape}, r, arena, &shard, NULL))
            return;
        for (uint64_t b = 0; b < shard.box_count; b++) {
            const tsr_shard_box *box = &shard.boxes[b];
            CHECK(tsr_box_contains(tensor, (tsr_box){3, box->offsets, box->sizes}));
            CHECK(tsr_box_contains((tsr_box){3, NULL, shard.local_shape}, (tsr_box){3, box->local_offsets, box->sizes}));
        }
    }
}

static void check_texts(tsr_str mesh_text, tsr_str placements_text, tsr_arena *arena)
{
    tsr_mesh mesh, mesh_again;
    tsr_placement *placements, *again;
    uint32_t count, count_again;
    bool has_mesh = tsr_mesh_parse(mesh_text, arena, &mesh, NULL) == TSR_OK;
    if (has_mesh) {
        tsr_str text = tsr_mesh_text(&mesh, arena, NULL);
        CHECK(tsr_mesh_parse(text, arena, &mesh_again, NULL) == TSR_OK);
        CHECK(tsr_str_equal(text, tsr_mesh_text(&mesh_again, arena, NULL)));
    }
    if (tsr_placements_parse(placements_text, arena, &placements, &count, NULL) != TSR_OK) return;
    CHECK(tsr_placements_parse(tsr_placements_text(placements, count, arena, NULL), arena, &again, &count_again, NULL) ==
          TSR_OK);
    CHECK(count == count_again && memcmp(placements, again, count * sizeof *again) == 0);
    if (has_mesh && count == mesh.dim_count) check_shards(&mesh, placements, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_str text = {(const char *)data, size}, rest = {text.data, 0};
    const char *newline = size ? memchr(text.data, '\n', size) : NULL;
    if (newline) {
        rest = (tsr_str){newline + 1, size - (size_t)(newline + 1 - text.data)};
        text.size = (size_t)(newline - text.data);
    }
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 64 << 20, NULL);
    if (arena) check_texts(text, rest, arena);
    tsr_arena_free(arena);
    return 0;
}
