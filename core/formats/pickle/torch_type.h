/* Which type of Python a node of a torch.save pickle has once it is loaded, as a letter:
 *
 *   N None  B bool  I int  J int beyond 64 bits  F float  C complex  S str  Y bytes, bytearray  L list  T tuple  D dict
 *   E set, frozenset  H slice  R range  U deque  G class  f function, or any other value that a GLOBAL names
 *   q date  Q datetime  h time  w timedelta  z timezone  p path  M member of an enum
 *   P storage  X tensor  t torch.dtype, qscheme  d torch.device  l torch.layout
 *   V numpy.dtype  a numpy.ndarray  j numpy integer  e numpy scalar that only float() takes  o date or record of numpy
 *   k numpy scalar of a dtype that is not known  b bit generator of numpy  s its SeedSequence
 *   v object(), Decimal, Fraction: a value without attributes  O another object of a known class  ? not known */
#ifndef TSR_FORMATS_PICKLE_TORCH_TYPE_H
#define TSR_FORMATS_PICKLE_TORCH_TYPE_H

#include "formats/pickle/torch_names.h"

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

#endif
