/* Which (module, class) pairs are enums whose members are data. */
#include "formats/pickle/enum_names.h"

static const struct {
    const char *module, *classes; /* classes are separated by spaces */
} modules[] = {
/* in byte order */
#include "formats/pickle/enum_table.h"
};

/* Whether `word` is one of the words of `words`. */
static bool has_word(const char *words, tsr_str word)
{
    while (*words) {
        const size_t size = strcspn(words, " ");
        if (tsr_str_equal((tsr_str){words, size}, word)) return true;
        words += size + (words[size] == ' ');
    }
    return false;
}

bool tsr_enum_is_listed(tsr_str module, tsr_str name)
{
    size_t low = 0, high = sizeof modules / sizeof modules[0];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = tsr_str_compare(module, tsr_str_from(modules[middle].module));
        if (order == 0) return has_word(modules[middle].classes, name);
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return false;
}

/* What stands before the last dot, and after it. */
static bool split(tsr_str dotted, tsr_str *before, tsr_str *after)
{
    size_t dot = dotted.size;
    while (dot > 0 && dotted.data[dot - 1] != '.') dot--;
    if (dot < 2) return false;
    *before = (tsr_str){dotted.data, dot - 1};
    *after = (tsr_str){dotted.data + dot, dotted.size - dot};
    return true;
}

bool tsr_enum_is_class(tsr_str dotted)
{
    tsr_str module, name;
    return split(dotted, &module, &name) && tsr_enum_is_listed(module, name);
}

bool tsr_enum_is_member(const tsr_pickle *pickle, tsr_ref ref)
{
    const tsr_str name = tsr_pickle_text(pickle, ref);
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_STR) return false;
    if (name.size == 0 || (name.data[0] >= '0' && name.data[0] <= '9')) return false;
    if (name.data[0] == '_' && name.data[name.size - 1] == '_') return false;
    for (size_t i = 0; i < name.size; i++) {
        const char c = name.data[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (c < '0' || c > '9')) return false;
    }
    return true;
}

bool tsr_enum_is_plain(tsr_pickle_kind kind)
{
    switch (kind) {
    case TSR_PICKLE_NONE:
    case TSR_PICKLE_BOOL:
    case TSR_PICKLE_INT:
    case TSR_PICKLE_FLOAT:
    case TSR_PICKLE_STR: return true;
    default: return false;
    }
}

const tsr_value *tsr_enum_value(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_OBJECT || !value->called || value->count != 1) return NULL;
    const tsr_value *arguments = value->items[0];
    if (arguments->kind != TSR_VALUE_TUPLE || arguments->count != 1 || !tsr_enum_is_class(value->text)) return NULL;
    switch (arguments->items[0]->kind) {
    case TSR_VALUE_NONE:
    case TSR_VALUE_BOOL:
    case TSR_VALUE_INT:
    case TSR_VALUE_FLOAT:
    case TSR_VALUE_STR: return arguments->items[0];
    default: return NULL;
    }
}

tsr_str tsr_enum_named(const tsr_value *value)
{
    tsr_str class_name, member;
    if (value->kind != TSR_VALUE_GLOBAL || !split(value->text, &class_name, &member)) return (tsr_str){NULL, 0};
    return tsr_enum_is_class(class_name) ? class_name : (tsr_str){NULL, 0};
}
