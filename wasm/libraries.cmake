# Other libraries, for the module and for the program.
configure_file(/usr/include/xxhash.h ${PROJECT_BINARY_DIR}/xxhash-include/xxhash.h COPYONLY) # only the header of libxxhash-dev

# zstd's decoder from Debian's source, which wasm/build fetches; built for size.
file(GLOB zstd_sources ${TSR_ZSTD_SOURCE}/common/*.c ${TSR_ZSTD_SOURCE}/decompress/*.c)
list(FILTER zstd_sources EXCLUDE REGEX "(pool|threading|debug)\\.c$")
add_library(tessera_zstd STATIC ${zstd_sources})
target_include_directories(tessera_zstd SYSTEM PUBLIC ${TSR_ZSTD_SOURCE})
target_compile_definitions(tessera_zstd PRIVATE ZSTD_LEGACY_SUPPORT=0 ZSTD_DISABLE_ASM=1 ZSTD_STRIP_ERROR_STRINGS=1 ZSTD_NO_TRACE=1
  HUF_FORCE_DECOMPRESS_X1=1 ZSTD_FORCE_DECOMPRESS_SEQUENCES_SHORT=1 ZSTD_NO_INLINE=1 XXH_NAMESPACE=ZSTD_ DYNAMIC_BMI2=0)
