/* Whether the values of arguments are such that Python's own types accept them: a signature states the
 * types only. */
#ifndef TSR_FORMATS_PICKLE_TORCH_FITS_H
#define TSR_FORMATS_PICKLE_TORCH_FITS_H

#include "formats/pickle/torch_names.h"

/* Whether int() takes the text. */
bool tsr_torch_is_int_text(tsr_str text);

/* Whether bytearray.append() takes each item. */
bool tsr_torch_are_bytes(const tsr_pickle *pickle, tsr_ref list);

/* False when the class or function `name` raises with the values in the TUPLE `args`, of which the types fit. */
bool tsr_torch_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args);

/* Which type of Python a node of a torch.save pickle has once it is loaded, as a letter:
 *
 *   N None  B bool  I int  J int beyond 64 bits  F float  C complex  S str  Y bytes, bytearray  L list  T tuple  D dict
 *   E set, frozenset  H slice  R range  U deque  G class  f function, or any other value that a GLOBAL names
 *   q date  Q datetime  h time  w timedelta  z timezone  p path  M member of an enum
 *   P storage  X tensor  t torch.dtype, qscheme  d torch.device  l torch.layout
 *   V numpy.dtype  a numpy.ndarray  j numpy integer  e numpy scalar that only float() takes  o date or record of numpy
 *   k numpy scalar of a dtype that is not known  b bit generator of numpy  s its SeedSequence
 *   v object(), Decimal, Fraction: a value without attributes  O another object of a known class  ? not known */

#define TSR_TYPE_UNKNOWN '?'

/* The type of a node of any kind; TSR_TYPE_UNKNOWN for objects of classes that are not on the list. */
char tsr_torch_type(const tsr_pickle *pickle, tsr_ref ref);

/* Whether a listed name is a function rather than a class. Functions have no instances. */
bool tsr_torch_is_function(uint32_t id);

/* Whether the value is of one of the types, or of one that is not known. */
bool tsr_torch_is_one_of(const tsr_pickle *pickle, tsr_ref ref, const char *types);

/* Whether a value can stand for one number, as far as its type goes: of arrays and tensors, those of one element. */
bool tsr_torch_is_single(const tsr_pickle *pickle, tsr_ref ref);

/* The number of items of what Python can iterate over; false where it is not known. Linear for a STR. */
bool tsr_torch_length(const tsr_pickle *pickle, tsr_ref ref, size_t *length);

/* Whether bool() gives False, as far as that is known. */
bool tsr_torch_is_false(const tsr_pickle *pickle, tsr_ref ref);

/* Whether Python can iterate over a value of the type; true for one that is not known. */
bool tsr_type_is_iterable(char type);

/* The number that a BOOL, INT, BIGINT or FLOAT stands for; false for other nodes. */
bool tsr_torch_number(const tsr_pickle *pickle, tsr_ref ref, double *out);

/* With which arguments the known functions and classes of torch.save pickles can be called: what else they are given makes
 * PyTorch's loader raise. */

/* False when `callee`, a GLOBAL, raises with the items of the TUPLE `args`; true when it takes them, or is not known here. */
bool tsr_torch_accepts(const tsr_pickle *pickle, tsr_ref callee, tsr_ref args);
/* False when what `object` is made as raises for the state that BUILD gives to it. */
bool tsr_torch_accepts_state(const tsr_pickle *pickle, tsr_ref object);
/* Whether the text of a STR names a device that PyTorch, or a plugin that is known here, places storages on. */
bool tsr_torch_is_device(const tsr_pickle *pickle, tsr_ref ref);

/* Whether objects accept the state that BUILD gives them: those of Python and PyTorch, see torch_numpy.h for numpy's. */

/* Whether PyTorch can set the attributes that _rebuild_from_type_v2 is given as a state. */
bool tsr_torch_are_attributes(const tsr_pickle *pickle, tsr_ref state);

#endif
