#include "formats/common/file_names.h"

#include <string.h>

bool tsr_number_at_end(tsr_str text, uint64_t *number)
{
    size_t from = text.size;
    while (from > 0 && tsr_is_digit(text.data[from - 1])) from--;
    *number = 0;
    if (from == text.size) return false;
    for (size_t i = from; i < text.size; i++) {
        const uint64_t digit = (uint64_t)(text.data[i] - '0');
        if (*number > (UINT64_MAX - digit) / 10) return false;
        *number = *number * 10 + digit;
    }
    return true;
}

/* The bytes of a name up to the end of N in the last "step=N", for the label "step="; 0 if there is none. */
static size_t end_of(tsr_str name, tsr_str label)
{
    size_t found = 0;
    for (size_t at = 0; at + label.size < name.size; at++) {
        size_t end = at + label.size;
        if (memcmp(name.data + at, label.data, label.size) != 0 || !tsr_is_digit(name.data[end])) continue;
        while (end < name.size && tsr_is_digit(name.data[end])) end++;
        found = end;
    }
    return found;
}

/* Lightning names a file by its epoch and a metric if it is told so: "epoch=2-val_loss=0.31.ckpt". */
static size_t end_of_label(tsr_str name)
{
    const size_t end = end_of(name, TSR_STR("step="));
    return end ? end : end_of(name, TSR_STR("epoch="));
}

static tsr_str without_ending(tsr_str name, const char *ending)
{
    const tsr_str end = tsr_str_from(ending);
    return tsr_str_ends(name, end) ? (tsr_str){name.data, name.size - end.size} : name;
}

/* Whether a text ends with one of the words, in upper or lower case. */
static bool ends_with_word(tsr_str text, const char *const *words)
{
    for (; *words; words++) {
        const size_t size = strlen(*words);
        size_t same = 0;
        while (same < size && text.size >= size) {
            const char c = text.data[text.size - size + same];
            if ((c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c) != (*words)[same]) break;
            same++;
        }
        if (same == size) return true;
    }
    return false;
}

static tsr_str before_number(tsr_str name)
{
    while (name.size && tsr_is_digit(name.data[name.size - 1])) name.size--;
    while (name.size && memchr("-_=. ", name.data[name.size - 1], 5)) name.size--;
    return name;
}

/* Whether a file of Lightning is numbered only because its name was taken, as "last-v1.ckpt" is. The step is in neither name. */
static bool is_version(tsr_str name)
{
    tsr_str stem = without_ending(name, ".ckpt");
    if (stem.size == name.size) return false;
    while (stem.size && tsr_is_digit(stem.data[stem.size - 1])) stem.size--;
    return tsr_str_ends(stem, TSR_STR("-v"));
}

/* The name up to the end of its step's number. */
static tsr_str up_to_step(tsr_str name)
{
    const size_t label = end_of_label(name);
    return label ? (tsr_str){name.data, label} : without_ending(name, ".ckpt");
}

tsr_str tsr_step_label(tsr_str name)
{
    return before_number(up_to_step(name));
}

/* The endings of files that may be checkpoints of their own. */
static const char *const endings[] = {".pt", ".pth", ".pth.tar", ".bin", ".safetensors"};

tsr_str tsr_step_beyond(tsr_str name)
{
    uint64_t unused;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) name = without_ending(name, endings[i]);
    const tsr_str text = up_to_step(name);
    size_t from = text.size;
    while (from > 0 && tsr_is_digit(text.data[from - 1])) from--;
    if (from == text.size || tsr_number_at_end(text, &unused)) return (tsr_str){text.data, 0};
    while (text.data[from] == '0') from++;
    return tsr_str_after(text, from);
}

tsr_step_naming tsr_step_of_name(tsr_str name, uint64_t *step)
{
    static const char *const steps[] = {"step", "steps", "iter", "iteration", "checkpoint", "ckpt", "epoch", NULL};
    static const char *const ranks[] = {"rank", "fsdp",  "optimizer", "model", "mp",     "tp",   "pp",    "dp",
                                        "ep",   "shard", "stage",     "node",  "worker", "host", "state", NULL};
    const bool has_label = end_of_label(name) != 0;
    const tsr_str text = up_to_step(name), before = before_number(text);
    const bool fits = tsr_number_at_end(text, step);
    if (!text.size || !tsr_is_digit(text.data[text.size - 1]) || (!has_label && is_version(name))) return TSR_STEP_NONE;
    if (!fits) *step = UINT64_MAX;
    if (has_label || !before.size || ends_with_word(before, steps)) return TSR_STEP_STATED;
    if (!fits) return TSR_STEP_NONE;
    return ends_with_word(before, ranks) ? TSR_STEP_OF_RANK : TSR_STEP_NUMBER;
}

/* What the number in the name of a file with one of the endings is. */
static tsr_step_naming naming_of_file(tsr_str name, uint64_t *step)
{
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const tsr_str stem = without_ending(name, endings[i]);
        if (stem.size < name.size) return tsr_step_of_name(stem, step);
    }
    return TSR_STEP_NONE;
}

bool tsr_step_of_file(tsr_str name, uint64_t *step)
{
    if (tsr_str_ends(name, TSR_STR(".ckpt"))) return tsr_step_of_name(name, step) != TSR_STEP_NONE;
    return naming_of_file(name, step) == TSR_STEP_STATED;
}

bool tsr_is_numbered_file(tsr_str name)
{
    uint64_t unused;
    return naming_of_file(name, &unused) != TSR_STEP_NONE;
}

uint64_t tsr_step_version(tsr_str name)
{
    const size_t label = end_of_label(name);
    const tsr_str stem = without_ending(name, ".ckpt"), before = TSR_STR("-v");
    uint64_t version;
    if (!label || stem.size <= label + before.size) return 0;
    if (tsr_str_ends(stem, TSR_STR("-last"))) return UINT64_MAX; /* NeMo's copy of the last one, from which it resumes */
    const tsr_str rest = {stem.data + label, stem.size - label};
    if (!tsr_str_starts(rest, before) || !tsr_number_at_end(rest, &version)) return 0;
    for (size_t i = before.size; i < rest.size; i++)
        if (!tsr_is_digit(rest.data[i])) return 0;
    return version;
}
