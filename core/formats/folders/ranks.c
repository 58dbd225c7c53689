/* Finds the ranks whose files are missing, by the files of the others. */
#include "formats/common/shown_names.h"
#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

enum { MOST_RANKS = 1 << 20 };

/* One more than the highest rank that any file of the directory belongs to. */
static uint64_t count_ranks(const tsr_store *store)
{
    uint64_t count = 0;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const uint64_t ranks[] = {tsr_folder_number_in(name, "random_states_", ".pkl"),
                                  tsr_folder_number_in(name, "rng_state_", ".pth"), tsr_folder_rank_of(name)};
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
            if (ranks[i] < MOST_RANKS && ranks[i] >= count) count = ranks[i] + 1;
    }
    return count;
}

static tsr_status report(tsr_checkpoint *checkpoint, const tsr_shown_names *names, tsr_str first, uint64_t ranks,
                         tsr_error *err)
{
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "the files of %llu of %llu ranks are missing: %s%s; copy them from where the checkpoint was written",
        (unsigned long long)names->count, (unsigned long long)ranks, names->text, tsr_shown_names_rest(names));
    return message.data ? tsr_checkpoint_is_incomplete(checkpoint, first, message, err) : TSR_E_NOMEM;
}

tsr_status tsr_folder_check_ranks(tsr_checkpoint *checkpoint, const char *before, const char *after,
                                  const tsr_numbered_files *files, tsr_error *err)
{
    const tsr_mounts *mounts = checkpoint->state;
    const uint64_t ranks = count_ranks(checkpoint->store);
    tsr_shown_names names = {.used = 0};
    tsr_str name = {"", 0}, first = name;
    uint32_t at = 0;
    if (mounts->skipped) return TSR_OK;
    for (uint64_t rank = 0; rank < ranks; rank++) {
        while (at < files->count && files->items[at].number < rank) at++;
        if (at < files->count && files->items[at].number == rank) continue;
        if (names.count < TSR_NAMES_SHOWN)
            name = tsr_arena_format(checkpoint->arena, err, "%s%llu%s", before, (unsigned long long)rank, after);
        if (!name.data) return TSR_E_NOMEM;
        if (names.count == 0) first = name;
        if (names.count < TSR_NAMES_SHOWN) tsr_shown_names_add(&names, name);
        else names.count++;
    }
    return names.count ? report(checkpoint, &names, first, ranks, err) : TSR_OK;
}
