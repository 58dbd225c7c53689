/* What every public header needs of the compiler.
 *
 * Declarations between TSR_API_BEGIN and TSR_API_END have C linkage in C++ and are exported from the shared library;
 * everything else is hidden. Each public header has both, after its includes and before its end.
 *
 * Example:
 *
 *     tsr_str name = TSR_LITERAL(tsr_str){"weight", 6}; */
#ifndef TESSERA_API_H
#define TESSERA_API_H

#ifdef __cplusplus
#define TSR_API_LINKAGE_BEGIN extern "C" {
#define TSR_API_LINKAGE_END   }
#else
#define TSR_API_LINKAGE_BEGIN
#define TSR_API_LINKAGE_END
#endif

/* A struct written as an expression: a compound literal in C, which ISO C++ does not have, and a braced value in C++.
 *
 *   tsr_str name = TSR_LITERAL(tsr_str){"weight", 6}; */
#ifdef __cplusplus
#define TSR_LITERAL(type) type
#else
#define TSR_LITERAL(type) (type)
#endif

/* An option struct with every option at its default, 0. Its first member is its size, by which the library knows the fields
 * that the program was compiled with:
 *
 *   tsr_open_options options = TSR_OPTIONS(tsr_open_options);
 *   options.purpose = TSR_FOR_FINDINGS;
 *
 * A version that adds an option adds it at the end of its struct, with 0 for what was done before, so that programs which
 * were compiled without it keep working as before. A library that does not know an option which the program sets refuses it
 * with TSR_E_UNSUPPORTED. A size of 0 stands for the fields that the first version with this SOVERSION has
 * (tessera/version.h): {0} and designated initializers without a size keep working. */
#ifdef __cplusplus
#define TSR_OPTIONS(type)        \
    ([] {                        \
        type options_{};         \
        options_.size = sizeof(type); \
        return options_;         \
    }())
#else
#define TSR_OPTIONS(type) ((type){.size = sizeof(type)})
#endif

#if defined(__GNUC__)
#define TSR_API_BEGIN TSR_API_LINKAGE_BEGIN _Pragma("GCC visibility push(default)")
#define TSR_API_END   _Pragma("GCC visibility pop") TSR_API_LINKAGE_END
#else
#define TSR_API_BEGIN TSR_API_LINKAGE_BEGIN
#define TSR_API_END   TSR_API_LINKAGE_END
#endif

#endif
