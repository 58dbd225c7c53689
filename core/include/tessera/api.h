/* Compiler macros that every public header uses.
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

/* An option struct with every option at its default, 0. Its first member is its size, which shows the library the fields that
 * the program was compiled with:
 *
 *   tsr_open_options options = TSR_OPTIONS(tsr_open_options);
 *   options.purpose = TSR_FOR_FINDINGS;
 *
 * New options are added at the end of their struct, and 0 keeps the earlier behavior. Programs compiled without them therefore
 * keep working. A library returns TSR_E_UNSUPPORTED when the program sets an option that it does not know. A size of 0 means
 * the fields of the first version with this SOVERSION (tessera/version.h): {0} and designated initializers without a size keep
 * working. */
#ifdef __cplusplus
#define TSR_OPTIONS(type) \
    ([] { \
        type options_{}; \
        options_.size = sizeof(type); \
        return options_; \
    }())
#else
#define TSR_OPTIONS(type) ((type){.size = sizeof(type)})
#endif

/* TSR_IS_SMALL: whether this is a build for size (TSR_SMALL), the browser's module, which leaves out what it has no room for. The compiler
 * removes what is then never called. TSR_INLINE: for a function of a header that is called in many places; a build for size calls it, which
 * takes fewer bytes. */
#ifdef TSR_SMALL
#define TSR_IS_SMALL 1
#define TSR_INLINE   static inline __attribute__((noinline))
#else
#define TSR_IS_SMALL 0
#define TSR_INLINE   static inline
#endif

#if defined(__GNUC__)
#define TSR_API_BEGIN TSR_API_LINKAGE_BEGIN _Pragma("GCC visibility push(default)")
#define TSR_API_END   _Pragma("GCC visibility pop") TSR_API_LINKAGE_END
#else
#define TSR_API_BEGIN TSR_API_LINKAGE_BEGIN
#define TSR_API_END   TSR_API_LINKAGE_END
#endif

#endif
