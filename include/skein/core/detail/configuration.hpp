// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of one program that were compiled in different ways do not link, or the program stops at
// its start.
//
// Two versions, a frame pool that is on in one file and off in another, header-only files beside
// compiled ones, single_include/ beside the split headers: all of it would link without a word, and
// corrupt memory. So every object file says how it was compiled, twice:
//   - to the linker: one strong symbol in a section group that is named after the configuration.
//     Files alike share the group; files that differ define the symbol twice, and the error names
//     both sections (ELF only).
//   - at the start of the program, for what the linker does not see: shared libraries, link-time
//     optimisation.

#include <cstdio>
#include <cstdlib>

#define SKEIN_DETAIL_TEXT_OF(x) #x
#define SKEIN_DETAIL_TEXT(x) SKEIN_DETAIL_TEXT_OF(x)
#define SKEIN_DETAIL_NAME_OF(major, minor, patch, pool, form, headers)                             \
    skein_##major##_##minor##_##patch##_##pool##_##form##_##headers
#define SKEIN_DETAIL_NAME(major, minor, patch, pool, form, headers)                                \
    SKEIN_DETAIL_NAME_OF(major, minor, patch, pool, form, headers)

#if SKEIN_FRAME_POOL
#define SKEIN_DETAIL_POOL frame_pool_on
#else
#define SKEIN_DETAIL_POOL frame_pool_off
#endif
#if defined(SKEIN_COMPILED)
#define SKEIN_DETAIL_FORM compiled
#else
#define SKEIN_DETAIL_FORM header_only
#endif
#if defined(SKEIN_AMALGAMATED)
#define SKEIN_DETAIL_HEADERS single_include
#else
#define SKEIN_DETAIL_HEADERS split_headers
#endif

// How this file was compiled, as an identifier: skein_0_1_0_frame_pool_on_compiled_split_headers.
#define SKEIN_CONFIGURATION                                                                        \
    SKEIN_DETAIL_NAME(SKEIN_VERSION_MAJOR, SKEIN_VERSION_MINOR, SKEIN_VERSION_PATCH,               \
                      SKEIN_DETAIL_POOL, SKEIN_DETAIL_FORM, SKEIN_DETAIL_HEADERS)

namespace skein::detail::configuration {

/// The configuration that was the first to register. Its name and type are the same in every
/// version.
inline const char* of_the_program = nullptr;

/// Stops the program when another configuration has registered before.
inline bool agree(const char* mine) {
    if (of_the_program == nullptr) of_the_program = mine;
    if (__builtin_strcmp(of_the_program, mine) == 0) return true;
    std::fprintf(stderr,
                 "skein: files of this program were compiled in different ways, which corrupts "
                 "memory:\n  %s\n  %s\n"
                 "compile all of them with one version, one SKEIN_FRAME_POOL, one form and one "
                 "kind of headers\n",
                 of_the_program, mine);
    std::abort();
}

// Both have the configuration in their names, so a program runs this once for each that is in it.
// Not inlined: with link-time optimisation the one copy of the function makes the one copy of the
// symbol.
namespace SKEIN_CONFIGURATION {
#define SKEIN_DETAIL_SYMBOL                                                                        \
    "skein_files_compiled_in_different_ways__the_names_of_these_sections_say_how"
[[gnu::noinline]] inline bool registers() {
#if defined(__ELF__)
    asm volatile(
        ".ifndef " SKEIN_DETAIL_SYMBOL "\n"
        ".pushsection .rodata." SKEIN_DETAIL_TEXT(
            SKEIN_CONFIGURATION) ",\"aG\",%progbits," SKEIN_DETAIL_TEXT(SKEIN_CONFIGURATION) ",comd"
                                                                                             "at\n"
                                                                                             ".glob"
                                                                                             "l"
                                                                                             " " SKEIN_DETAIL_SYMBOL
                                                                                             "\n."
                                                                                             "hidde"
                                                                                             "n"
                                                                                             " " SKEIN_DETAIL_SYMBOL
                                                                                             "\n" SKEIN_DETAIL_SYMBOL
                                                                                             ": "
                                                                                             ".byte"
                                                                                             " 0\n"
                                                                                             ".pops"
                                                                                             "ectio"
                                                                                             "n\n."
                                                                                             "endif"
                                                                                             "\n");
#endif
    return agree(SKEIN_DETAIL_TEXT(SKEIN_CONFIGURATION));
}
#undef SKEIN_DETAIL_SYMBOL
inline const bool registered = registers();
} // namespace SKEIN_CONFIGURATION

} // namespace skein::detail::configuration

#undef SKEIN_CONFIGURATION
#undef SKEIN_DETAIL_TEXT_OF
#undef SKEIN_DETAIL_TEXT
#undef SKEIN_DETAIL_NAME_OF
#undef SKEIN_DETAIL_NAME
#undef SKEIN_DETAIL_POOL
#undef SKEIN_DETAIL_FORM
#undef SKEIN_DETAIL_HEADERS
