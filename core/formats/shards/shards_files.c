/* Finds the files of the ranks. The ranks of a map are numbered stage by stage: rank = pp × (tensor-parallel ranks) + tp. */
#include <stdlib.h>
#include <string.h>

#include "base/cursor.h"
#include "formats/safetensors/safetensors.h"
#include "formats/shards/shards_join.h"
#include "tessera/sys/shard_names.h"
#include "tessera/sys/try.h"

/* ---- pattern ---- */

/* See shards_join.h. Captures are greedy: they match as many digits as possible. */

enum { MAX_DIGITS = 9 };

static const char *const captures[TSR_CAPTURES] = {"{tp}", "{pp}", "{part}"};

/* The capture at the beginning of a pattern, or TSR_CAPTURES if there is none. */
static tsr_shards_capture capture_at(tsr_str pattern, size_t *size)
{
    tsr_shards_capture c = TSR_CAPTURE_TP;
    while (c < TSR_CAPTURES && !tsr_str_starts(pattern, tsr_str_from(captures[c]))) c++;
    *size = c < TSR_CAPTURES ? strlen(captures[c]) : 1;
    return c;
}

static size_t digits_at(tsr_str text, uint32_t *number)
{
    size_t size = 0;
    for (*number = 0; size < text.size && tsr_is_digit(text.data[size]); size++) {
        if (size == MAX_DIGITS) return 0;
        *number = *number * 10 + (uint32_t)(text.data[size] - '0');
    }
    return size;
}

/* Whether the whole name matches. */
static bool shards_match(tsr_str pattern, tsr_str name, tsr_shards_numbers *out)
{
    bool known[TSR_CAPTURES] = {false};
    *out = (tsr_shards_numbers){{0}};
    while (pattern.size) {
        size_t size, taken = 1;
        const tsr_shards_capture c = capture_at(pattern, &size);
        if (c < TSR_CAPTURES) {
            uint32_t number;
            taken = digits_at(name, &number);
            if (!taken || (known[c] && out->of[c] != number)) return false;
            known[c] = true;
            out->of[c] = number;
        } else if (!name.size || name.data[0] != pattern.data[0]) {
            return false;
        }
        pattern = tsr_str_after(pattern, size);
        name = tsr_str_after(name, taken);
    }
    return name.size == 0;
}

tsr_str tsr_shards_name(tsr_str pattern, const tsr_shards_numbers *numbers, const unsigned *widths, tsr_arena *arena,
                        tsr_error *err)
{
    tsr_str name = TSR_STR("");
    while (pattern.size && name.data) {
        size_t size;
        const tsr_shards_capture c = capture_at(pattern, &size);
        name = c < TSR_CAPTURES ? tsr_arena_format(arena, err, "%.*s%0*u", TSR_STR_ARG(name), (int)widths[c], numbers->of[c])
                                : tsr_arena_format(arena, err, "%.*s%c", TSR_STR_ARG(name), pattern.data[0]);
        pattern = tsr_str_after(pattern, size);
    }
    return name;
}

const char *tsr_shards_ranks_wrong(tsr_str ranks)
{
    bool counted = false, after_capture = false;
    if (ranks.size && ranks.data[0] == '/') return "must be relative to the checkpoint's directory";
    while (ranks.size) {
        size_t size;
        const tsr_shards_capture c = capture_at(ranks, &size);
        const bool captures_number = c < TSR_CAPTURES;
        if (!captures_number && (ranks.data[0] == '{' || ranks.data[0] == '}'))
            return "may contain only {tp}, {pp} and {part} in braces";
        if (captures_number && after_capture) return "needs text between two numbers";
        counted = counted || c == TSR_CAPTURE_TP || c == TSR_CAPTURE_PP;
        after_capture = captures_number;
        ranks = tsr_str_after(ranks, size);
    }
    return counted ? NULL : "needs {tp} or {pp}, the number of a rank";
}

/* ---- files ---- */

/* The names that frameworks give to the files of the ranks. */
static const char *const megatron[] = {"mp_rank_{tp}_{pp}/model_optim_rng.pt", "mp_rank_{tp}/model_optim_rng.pt"};
static const char *const others[] = {"consolidated.{tp}.pth", "model-rank-{tp}-part-{part}.safetensors"};
enum { SOME = 2 };

typedef struct ranked {
    uint32_t file;
    tsr_shards_numbers numbers;
} ranked;

typedef struct choice {
    tsr_checkpoint *checkpoint;
    tsr_str pattern;
    tsr_vec files;                                     /* of ranked */
    uint32_t count[TSR_CAPTURES], first[TSR_CAPTURES]; /* per capture: how many numbers there are, and the lowest */
    tsr_error *err;
} choice;

static tsr_str name_of(const choice *c, const ranked *file)
{
    return c->checkpoint->store->files[file->file].name;
}

static int by_rank(const void *left, const void *right)
{
    static const tsr_shards_capture order[] = {TSR_CAPTURE_PP, TSR_CAPTURE_TP, TSR_CAPTURE_PART};
    const ranked *a = left, *b = right;
    for (size_t i = 0; i < TSR_CAPTURES; i++) {
        const uint32_t x = a->numbers.of[order[i]], y = b->numbers.of[order[i]];
        if (x != y) return x < y ? -1 : 1;
    }
    return (a->file > b->file) - (a->file < b->file);
}

static tsr_status find_files(choice *c, tsr_str pattern)
{
    const tsr_store *store = c->checkpoint->store;
    c->pattern = pattern;
    for (uint32_t f = 0; f < store->file_count; f++) {
        tsr_shards_numbers numbers;
        if (!shards_match(pattern, store->files[f].name, &numbers)) continue;
        ranked *found = tsr_vec_push(&c->files, c->err);
        if (!found) return TSR_E_NOMEM;
        *found = (ranked){f, numbers};
    }
    if (c->files.count) qsort(c->files.items, c->files.count, sizeof(ranked), by_rank);
    return TSR_OK;
}

/* Numbers begin at 0, or at 1 if none is 0. */
static void measure(choice *c)
{
    const ranked *files = c->files.items;
    for (int k = 0; k < TSR_CAPTURES; k++) {
        uint32_t least = UINT32_MAX, most = 0;
        for (size_t i = 0; i < c->files.count; i++) {
            const uint32_t number = files[i].numbers.of[k];
            least = number < least ? number : least;
            most = number > most ? number : most;
        }
        c->first[k] = least == 1 ? 1 : 0;
        c->count[k] = most + 1 - c->first[k];
    }
}

static uint32_t rank_of(const choice *c, const ranked *file)
{
    return (file->numbers.of[TSR_CAPTURE_PP] - c->first[TSR_CAPTURE_PP]) * c->count[TSR_CAPTURE_TP] +
           (file->numbers.of[TSR_CAPTURE_TP] - c->first[TSR_CAPTURE_TP]);
}

static tsr_status raise_missing(const choice *c, uint32_t rank)
{
    const uint32_t tp = rank % c->count[TSR_CAPTURE_TP], pp = rank / c->count[TSR_CAPTURE_TP];
    return tsr_fail(c->err, TSR_E_NOT_FOUND,
                    "there is no file of tensor-parallel rank %u%s%.*u; '%.*s' needs one for every rank",
                    tp + c->first[TSR_CAPTURE_TP], c->count[TSR_CAPTURE_PP] > 1 ? " of pipeline stage " : "",
                    c->count[TSR_CAPTURE_PP] > 1 ? 1 : 0, c->count[TSR_CAPTURE_PP] > 1 ? pp + c->first[TSR_CAPTURE_PP] : 0,
                    TSR_STR_ARG(c->pattern));
}

/* Checks that every rank has a file, and that no two files are the same part of one rank. */
static tsr_status check_grid(const choice *c)
{
    const ranked *files = c->files.items;
    uint32_t expected = 0;
    for (size_t i = 0; i < c->files.count; i++) {
        const bool same = i && rank_of(c, &files[i]) == rank_of(c, &files[i - 1]);
        TSR_FAIL_IF(same && by_rank(&files[i], &files[i - 1]) &&
                        files[i].numbers.of[TSR_CAPTURE_PART] == files[i - 1].numbers.of[TSR_CAPTURE_PART],
                    c->err, TSR_E_UNSUPPORTED, "'%.*s' and '%.*s' are files of the same rank according to '%.*s'",
                    TSR_STR_ARG(name_of(c, &files[i - 1])), TSR_STR_ARG(name_of(c, &files[i])), TSR_STR_ARG(c->pattern));
        if (same) continue;
        if (rank_of(c, &files[i]) != expected) return raise_missing(c, expected);
        expected++;
    }
    const uint64_t all = (uint64_t)c->count[TSR_CAPTURE_TP] * c->count[TSR_CAPTURE_PP];
    return expected < all ? raise_missing(c, expected) : TSR_OK;
}

static tsr_status take(choice *c)
{
    tsr_checkpoint *checkpoint = c->checkpoint;
    const ranked *files = c->files.items;
    measure(c);
    TSR_TRY(check_grid(c));
    uint32_t *numbers = tsr_arena_array(checkpoint->arena, c->files.count, sizeof *numbers, c->err);
    uint32_t *ranks = tsr_arena_array(checkpoint->arena, c->files.count, sizeof *ranks, c->err);
    if (!numbers || !ranks) return TSR_E_NOMEM;
    for (size_t i = 0; i < c->files.count; i++) {
        numbers[i] = files[i].file;
        ranks[i] = rank_of(c, &files[i]);
    }
    checkpoint->files = numbers;
    checkpoint->file_ranks = ranks;
    checkpoint->file_count = (uint32_t)c->files.count;
    checkpoint->stages = c->count[TSR_CAPTURE_PP];
    return TSR_OK;
}

/* Chooses the reader by the content of the first file. */
static tsr_status reader_of(const choice *c, const tsr_reader **reader)
{
    uint8_t head[16] = {0};
    const tsr_checkpoint *checkpoint = c->checkpoint;
    const uint64_t size = checkpoint->store->files[checkpoint->files[0]].size;
    const size_t read = size < sizeof head ? (size_t)size : sizeof head;
    TSR_TRY(tsr_store_read(checkpoint->store, checkpoint->files[0], 0, head, read, c->err));
    const bool is_safetensors = tsr_safetensors_looks_like((tsr_str){(const char *)head, read}, size);
    *reader = is_safetensors ? &tsr_reader_safetensors_ranks : &tsr_reader_torch_ranks;
    for (uint32_t i = 1; !is_safetensors && i < checkpoint->file_count; i++)
        TSR_FAIL_IF(checkpoint->file_ranks[i] == checkpoint->file_ranks[i - 1], c->err, TSR_E_UNSUPPORTED,
                    "'%.*s' and '%.*s' are two torch.save files of one rank; only safetensors files can be split this way",
                    TSR_STR_ARG(checkpoint->store->files[checkpoint->files[i - 1]].name),
                    TSR_STR_ARG(checkpoint->store->files[checkpoint->files[i]].name));
    return TSR_OK;
}

static tsr_status try_patterns(choice *c, const char *const *patterns)
{
    for (size_t i = 0; i < SOME && !c->files.count; i++) TSR_TRY(find_files(c, tsr_str_from(patterns[i])));
    return TSR_OK;
}

/* Makes the store list as many levels of directories as the pattern has. */
static tsr_status list_levels(choice *c, tsr_str pattern)
{
    bool cut = false, deeper = false;
    unsigned levels = 0;
    tsr_store *store = c->checkpoint->store;
    for (size_t i = 0; i < pattern.size; i++) levels += pattern.data[i] == '/';
    if (levels < 2 || !store->deepen) return TSR_OK; /* one level is always listed */
    TSR_TRY(store->deepen(store, levels, &cut, &deeper, c->err));
    TSR_FAIL_IF(cut, c->err, TSR_E_LIMIT, "too many files to look for '%.*s' among them", TSR_STR_ARG(pattern));
    return TSR_OK;
}

static tsr_status choose_by_map(choice *c, const tsr_shards *map)
{
    if (!map->ranks.size) {
        TSR_TRY(try_patterns(c, megatron));
        return try_patterns(c, others);
    }
    TSR_TRY(list_levels(c, map->ranks));
    TSR_TRY(find_files(c, map->ranks));
    TSR_FAIL_IF(!c->files.count, c->err, TSR_E_UNSUPPORTED, "no file name matches '%.*s', the pattern for the ranks of %.*s",
                TSR_STR_ARG(map->ranks), TSR_STR_ARG(map->name));
    return TSR_OK;
}

/* Rejects a single file of one rank. It only contains shards, which would look like whole tensors. */
static tsr_status refuse_lone_file(choice *c, const tsr_shards *map)
{
    tsr_shards_numbers numbers;
    const tsr_store *store = c->checkpoint->store;
    const tsr_str name = store->files[store->primary].name;
    bool is_rank = map->ranks.size && shards_match(map->ranks, name, &numbers);
    for (size_t i = 0; i < SOME; i++) is_rank = is_rank || shards_match(tsr_str_from(others[i]), name, &numbers);
    is_rank = is_rank || tsr_str_equal(name, TSR_STR("model_optim_rng.pt"));
    TSR_FAIL_IF(is_rank, c->err, TSR_E_UNSUPPORTED,
                "%.*s is the file of one rank; with --shards, name the directory that holds the files of all ranks",
                TSR_STR_ARG(name));
    return TSR_OK;
}

static tsr_status choose(choice *c, const tsr_reader **reader)
{
    const tsr_shards *map = c->checkpoint->options.shards;
    if (c->checkpoint->store->primary != TSR_NO_FILE) return map ? refuse_lone_file(c, map) : TSR_OK;
    TSR_TRY(map ? choose_by_map(c, map) : try_patterns(c, megatron));
    if (!c->files.count) return TSR_OK;
    TSR_TRY(take(c));
    return reader_of(c, reader);
}

static tsr_status choose_files(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err)
{
    choice c = {.checkpoint = checkpoint, .files = tsr_vec_of(checkpoint->host->allocator, sizeof(ranked)), .err = err};
    *reader = NULL;
    const tsr_status status = choose(&c, reader);
    tsr_vec_free(&c.files);
    return status;
}

/* ---- hooks; the reader is for Megatron's directories, without a map ---- */

static tsr_status is_form(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_reader *reader = NULL;
    if (!checkpoint->options.shards) TSR_TRY(choose_files(checkpoint, &reader, err));
    *is = reader != NULL;
    return TSR_OK;
}

/* A map without `ranks` applies to whatever is recognized without it if there are no files of ranks. */
static tsr_status asked(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err)
{
    return checkpoint->options.shards ? choose_files(checkpoint, reader, err) : TSR_OK;
}

static bool writes(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR("latest_checkpointed_iteration.txt")) ||
           tsr_str_equal(name, TSR_STR("model_optim_rng.pt"));
}

static tsr_status join(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return checkpoint->joined_ranks ? tsr_shards_join(checkpoint, err) : TSR_OK;
}

static tsr_status open_form(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_reader_torch_ranks.open(checkpoint, err);
}

static tsr_status extents_of_form(tsr_checkpoint *checkpoint,
                                  tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                  tsr_error *err)
{
    return tsr_reader_torch_ranks.extents(checkpoint, each, ctx, err);
}

static tsr_status crc_of_form(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                              tsr_stated_crc *out, tsr_error *err)
{
    return tsr_reader_torch_ranks.crc(checkpoint, entry, chunk, scratch, out, err);
}

extern const tsr_reader tsr_reader_shards;
const tsr_reader tsr_reader_shards = {
    .format = TSR_FORMAT_SHARDS, .is_rare = true, .open = open_form, .extents = extents_of_form, .crc = crc_of_form};
const tsr_directory tsr_directory_shards = {.reader = &tsr_reader_shards,
                                            .recognizes = is_form,
                                            .asked = asked,
                                            .writes = writes,
                                            .has_others = true,
                                            .refines = join};
