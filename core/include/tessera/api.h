/* What lies between TSR_API_BEGIN and TSR_API_END has C linkage in C++ and is exported from the shared library; all else is
 * hidden. Every public header has both, after its includes and before its end. */
#ifndef TESSERA_API_H
#define TESSERA_API_H

#ifdef __cplusplus
#define TSR_API_LINKAGE_BEGIN extern "C" {
#define TSR_API_LINKAGE_END   }
#else
#define TSR_API_LINKAGE_BEGIN
#define TSR_API_LINKAGE_END
#endif

#if defined(__GNUC__)
#define TSR_API_BEGIN TSR_API_LINKAGE_BEGIN _Pragma("GCC visibility push(default)")
#define TSR_API_END   _Pragma("GCC visibility pop") TSR_API_LINKAGE_END
#else
#define TSR_API_BEGIN TSR_API_LINKAGE_BEGIN
#define TSR_API_END   TSR_API_LINKAGE_END
#endif

#endif
