/* Enum classes of training frameworks. Their members are data: Python pickles one as `Class(value)` (up to 3.10, and from
 * 3.12) or as `getattr(Class, name)` (3.11), which looks like a call, but only picks one of a few constants.
 *
 * The list is exact: a class that is not on it, and any other use of one that is, stays a call that nobody vouched for.
 * Source: the frameworks themselves (tests/golden/make_enum_names.py). */
#ifndef TSR_FORMATS_PICKLE_ENUM_NAMES_H
#define TSR_FORMATS_PICKLE_ENUM_NAMES_H

#include "codec/pickle.h"
#include "tessera/value.h"

bool tsr_enum_is_listed(tsr_str module, tsr_str name);

/* The class of a listed enum in the text "module.Class"; false for any other text. */
bool tsr_enum_is_class(tsr_str dotted);

/* Whether a pickled value can be the name of a member: an identifier, but none of the attributes that every class has
 * (`__globals__`) or every enum (`_member_map_`). */
bool tsr_enum_is_member(const tsr_pickle *pickle, tsr_ref name);

/* Whether a pickled value can be that of a member: None, a bool, a number or a string. */
bool tsr_enum_is_plain(tsr_pickle_kind kind);

/* For a value that was read as `Class(value)` with a listed class, that plain value; for any other NULL. */
const tsr_value *tsr_enum_value(const tsr_value *value);

/* For a value that was read as `getattr(Class, name)` with a listed class, the text "module.Class"; for any other, empty. */
tsr_str tsr_enum_named(const tsr_value *value);

#endif
