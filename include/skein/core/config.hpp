// SPDX-License-Identifier: Apache-2.0
#pragma once
// First in every include chain: version, compiler floor, and the macros that change a layout.
//
// What changes a layout must be the same in every file of a program. Files that disagree do not
// link, or the program stops at its start, and both say how either was compiled
// (detail/configuration.hpp).

#define SKEIN_VERSION_MAJOR 0
#define SKEIN_VERSION_MINOR 1
#define SKEIN_VERSION_PATCH 0
#define SKEIN_VERSION_STRING "0.1.0"

// Clang tells of a temporary that does not live as long as what borrows from it.
#if defined(__clang__)
#define SKEIN_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define SKEIN_LIFETIMEBOUND
#endif

#if !defined(__cpp_impl_coroutine)
#error "skein needs C++20 coroutines: compile with -std=c++20 (g++ >= 12 or clang >= 16)"
#endif

#if defined(__clang__)
#if __clang_major__ < 16
#error "skein needs clang >= 16 (clang-19 is what its tests run on)"
#endif
#elif defined(__GNUC__)
#if __GNUC__ < 12
#error "skein needs g++ >= 12"
#endif
#endif

// The two forms of skein. Header-only, the default: every body is inline, nothing is linked.
// Compiled: SKEIN_COMPILED is defined (the CMake targets skein::runtime and skein::train do),
// headers declare what is no template, and the bodies, *.ipp, are compiled once, by src/.
#if defined(SKEIN_COMPILED)
#define SKEIN_HEADER_ONLY 0
#define SKEIN_INLINE
#else
#define SKEIN_HEADER_ONLY 1
#define SKEIN_INLINE inline
#endif

#if defined(SKEIN_SINGLE_INCLUDE) && !defined(SKEIN_AMALGAMATED)
#error "skein: do not mix single_include/ with the split headers in one program"
#endif

// Coroutine frames come from free lists per thread (core/frame_pool.hpp), but not under
// AddressSanitizer (clang's ThreadSanitizer, too), so that a use after free is found. One program,
// one value: see detail/configuration.hpp.
#if !defined(SKEIN_FRAME_POOL)
#if defined(__SANITIZE_ADDRESS__)
#define SKEIN_FRAME_POOL 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SKEIN_FRAME_POOL 0
#endif
#endif
#endif
#if !defined(SKEIN_FRAME_POOL)
#define SKEIN_FRAME_POOL 1
#endif

#include <skein/core/detail/configuration.hpp>
