/* The target of a reshard: a mesh, and placements by tensor name. Targets are made from tessera.target/1 documents, from
 * --mesh and --placements, and by the strategies below. Names are matched by a function that the caller provides.
 *
 * Example:
 *
 *     tsr_target target;
 *     status = tsr_target_parse(TSR_STR("dp=2,tp=4"), TSR_STR("replicate,shard(0)"), arena, &target, &err);
 *     if (status == TSR_OK) status = tsr_plan_new(catalog, &target, NULL, host, &plan, &err); */
#ifndef TESSERA_TARGET_H
#define TESSERA_TARGET_H

#include "tessera/catalog.h"
#include "tessera/mesh.h"

TSR_API_BEGIN

/* Pipeline stages: the ranks at coordinate i of a mesh dim hold the layers in ranges[i]. The rule applies only to names
 * that have a layer number between `head` and `tail` ("layers." and "."); for other names the next rules are tried. */
typedef struct tsr_target_stage {
    tsr_str head, tail;
    uint32_t mesh_dim;
    const tsr_span *ranges; /* of layers, one per coordinate */
} tsr_target_stage;

typedef struct tsr_target_rule {
    tsr_str match;                   /* a GLOB over the whole FQN */
    const tsr_placement *placements; /* one per mesh dim */
    const uint64_t *ranks;           /* only these ranks hold the tensor (experts), ascending; NULL: not limited */
    uint64_t rank_count;
    const tsr_target_stage *stage; /* or NULL */
} tsr_target_rule;

/* Which ranks of a mesh hold a tensor: the listed ones, those at a coordinate of a mesh dim, or all. */
typedef struct tsr_holders {
    const tsr_mesh *mesh;
    const uint64_t *ranks; /* NULL: not listed */
    uint64_t rank_count;
    bool at_coordinate;
    uint32_t mesh_dim;
    uint64_t coordinate;
} tsr_holders;

typedef struct tsr_target {
    tsr_mesh mesh;
    const tsr_target_rule *rules; /* the first match is used */
    uint32_t rule_count;
    const tsr_placement *default_placements; /* one per mesh dim */
    tsr_strided strided;
    bool (*match)(tsr_str glob, tsr_str name); /* required if there are rules; usually tsr_glob_match */
} tsr_target;

/* Parses and checks a target given as --mesh and --placements. Its mesh, rules and placements live in `arena`.
 * Errors: TSR_E_USAGE, with the byte position in the text, and if there is not one placement per mesh dim. */
tsr_status tsr_target_parse(tsr_str mesh, tsr_str placements, tsr_arena *arena, tsr_target *out, tsr_error *err);

TSR_API_END

#endif
