/* Notes at the destination that unfinished parts of another plan left. They may represent days of somebody's work, so they
 * are removed only with options.discard_parts. */
#include <ctype.h>
#include <stdio.h>

#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "tessera/sys/try.h"

/* Whether the text after the tag has the form "2-of-8". */
static bool is_of_part(tsr_str name)
{
    char shown[48], dashes[] = "-of-";
    if (name.size >= sizeof shown) return false;
    snprintf(shown, sizeof shown, "%.*s", TSR_STR_ARG(name));
    const size_t first = strspn(shown, "0123456789");
    if (!first || strncmp(shown + first, dashes, sizeof dashes - 1) != 0) return false;
    const char *second = shown + first + sizeof dashes - 1;
    return *second && !second[strspn(second, "0123456789")];
}

/* Sets *name to what follows ".tessera-TAG-" in a key directly below the root. Returns false if the key is not that of a
 * note. */
static bool name_of(const object_output *output, tsr_str key, tsr_str *name)
{
    static const char mark[] = ".tessera-";
    const size_t head = output->root.size + (output->root.size != 0), begin = head + sizeof mark - 1;
    size_t end = begin;
    if (!output->options.is_folder || key.size <= begin || memcmp(key.data + head, mark, sizeof mark - 1) != 0) return false;
    while (end < key.size && isalnum((unsigned char)key.data[end])) end++;
    if (end == begin || end == key.size || key.data[end] != '-') return false;
    *name = (tsr_str){key.data + end + 1, key.size - end - 1};
    return is_of_part(*name) || tsr_note_is_of_job(*name);
}

bool tsr_is_foreign_note(const object_output *output, tsr_str key, bool *is_part)
{
    tsr_str name, own;
    if (!name_of(output, key, &name) || tsr_object_is_note(output, key, &own)) return false;
    *is_part = is_of_part(name);
    return true;
}

static size_t count_foreign(const object_output *output, const tsr_object_list *found, tsr_str *first)
{
    const tsr_object *objects = found->items.items;
    const size_t head = output->root.size + (output->root.size != 0);
    size_t count = 0;
    bool is_part;
    for (size_t i = 0; i < found->items.count; i++) {
        if (!tsr_is_foreign_note(output, objects[i].key, &is_part)) continue;
        if (!count++) *first = (tsr_str){objects[i].key.data + head, objects[i].key.size - head};
    }
    return count;
}

size_t tsr_object_output_other_parts(const tsr_output *base, tsr_str *first)
{
    const object_output *output = (const object_output *)base;
    return output->options.discard_parts ? 0 : count_foreign(output, &output->before, first);
}

tsr_status tsr_foreign_refuse(const object_output *output, const tsr_object_list *found, tsr_error *err)
{
    tsr_str first = {NULL, 0};
    if (output->options.discard_parts || output->options.overwrite) return TSR_OK;
    const size_t count = count_foreign(output, found, &first);
    char more[48] = "";
    if (count > 1) snprintf(more, sizeof more, " and %zu more", count - 1);
    TSR_FAIL_IF(
        count, err, TSR_E_EXISTS,
        "the destination '%s' has unfinished parts of another plan ('%.*s'%s); end that plan with `exec --finish`, or remove "
        "what it left with --discard-parts of exec, convert or reshard",
        tsr_shown_key_of(output->service, output->root).text, TSR_STR_ARG(first), more);
    return TSR_OK;
}
