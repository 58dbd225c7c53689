/* Compares two catalogs by name. This does not read tensor bytes: tsr_diff_values (tessera/compare.h) compares
 * values and sets TSR_DIFF_VALUE.
 *
 * Example:
 *
 *     tsr_diff diff;
 *     const tsr_catalog *a = tsr_checkpoint_catalog(checkpoint), *b = tsr_checkpoint_catalog(other);
 *     status = tsr_diff_catalogs((tsr_catalog_pair){a, b}, NULL, host, arena, &diff, &err);
 *     if (status == TSR_OK) printf("%llu entries were added\n", (unsigned long long)diff.added_count); */
#ifndef TESSERA_DIFF_H
#define TESSERA_DIFF_H

#include "tessera/catalog.h"
#include "tessera/host.h"

TSR_API_BEGIN

/* Bits of tsr_diff_pair.what. */
enum {
    TSR_DIFF_DTYPE = 1,
    TSR_DIFF_SHAPE = 2,
    TSR_DIFF_VALUE = 4,   /* set by tsr_diff_values */
    TSR_DIFF_LAYOUT = 8,  /* other chunk boxes; only when asked for */
    TSR_DIFF_OBJECT = 16, /* object values, or kinds (tensor and object), differ or cannot be compared */
    TSR_DIFF_KEY = 32 /* keys of another type on the way to the entry, such as 0 and "0"; both must be in torch.save files */
};

/* An entry that both sides have. */
typedef struct tsr_diff_pair {
    const tsr_entry *a;
    const tsr_entry *b;
    uint32_t what; /* 0: no difference so far */
} tsr_diff_pair;

typedef struct tsr_diff_rename {
    const tsr_entry *a;
    const tsr_entry *b;
    tsr_str why; /* one line */
} tsr_diff_rename;

/* A pair of the catalogs' metadata that differs: NULL on the side that does not have its key. */
typedef struct tsr_diff_text {
    const tsr_text_pair *a;
    const tsr_text_pair *b;
} tsr_diff_text;

typedef struct tsr_diff {
    tsr_diff_pair *pairs; /* in A's order */
    uint64_t pair_count;
    const tsr_entry **added; /* in B only, B's order */
    uint64_t added_count;
    const tsr_entry **removed; /* in A only, A's order */
    uint64_t removed_count;
    tsr_diff_rename *renamed; /* suggestions; their entries are among added and removed too */
    uint64_t renamed_count;
    tsr_diff_text *metadata; /* A's order, then those in B only; `format: pt` is the same as no format */
    uint64_t metadata_count;
} tsr_diff;

typedef struct tsr_diff_options {
    size_t size;       /* TSR_OPTIONS sets it */
    bool layout;       /* compare chunk boxes */
    bool skip_objects; /* do not compare object values */
    /* NULL, or the name under which an entry is matched (--canonical). `*out` lives in `arena` or is `name` itself. If two
     * names of one side become the same, the call fails with TSR_E_USAGE and names both. */
    tsr_status (*canonical)(void *ctx, tsr_str name, tsr_arena *arena, tsr_str *out, tsr_error *err);
    /* NULL, or the value of an object with canonical names in it (--canonical). */
    tsr_status (*canonical_value)(void *ctx, const tsr_entry *entry, tsr_arena *arena, const tsr_value **out,
                                  tsr_error *err);
    void *canonical_ctx;
} tsr_diff_options;

typedef struct tsr_catalog_pair {
    const tsr_catalog *a, *b;
} tsr_catalog_pair;
/* Compares the catalogs `of`, in time linear in the entries and chunks. A float4 tensor counted in single elements
 * (safetensors) and one counted in pairs (torch) compare as the same dtype and shape. Objects are compared with
 * tsr_value_match, within the host's limits. Everything in `out` lives in `arena` and borrows the catalogs. `options` may be
 * NULL. Thread-safe for different arenas. */
tsr_status tsr_diff_catalogs(tsr_catalog_pair of, const tsr_diff_options *options, const tsr_host *host, tsr_arena *arena,
                             tsr_diff *out, tsr_error *err);

/* Returns true if no entry differs; metadata may. If values are compared too, call it after that. */
bool tsr_diff_is_same(const tsr_diff *diff);

TSR_API_END

#endif
