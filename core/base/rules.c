/* The table of all rules, sorted by id: what `validate --list-rules` and `explain` print. */
#include "tessera/findings.h"

#include <string.h>

static const tsr_rule rules[] = {
    {"zip/crc", TSR_ERROR, "a member's bytes do not match its CRC-32",
     "The bytes changed after they were written, or the writer stored a wrong checksum. Restore the file from a copy."},
    {"zip/crc-absent", TSR_NOTE, "an archive was written without checksums",
     "torch.serialization.set_crc32_options(False) writes 0 for every CRC; damage to such files cannot be seen."},
};

const tsr_rule *tsr_rules(size_t *count)
{
    *count = sizeof rules / sizeof rules[0];
    return rules;
}

const tsr_rule *tsr_rule_find(const char *id)
{
    size_t low = 0, high = sizeof rules / sizeof rules[0];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(rules[middle].id, id);
        if (order == 0) return &rules[middle];
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}
