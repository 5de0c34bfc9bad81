// SPDX-License-Identifier: Apache-2.0
#pragma once
// First in every include chain: version, compiler floor, and the macros that change a layout.
//
// A macro that changes a class layout must have the same value in every translation unit of a
// program. They are checked here by value, so that a mix is an error at compile time.

#define SKEIN_VERSION_MAJOR 0
#define SKEIN_VERSION_MINOR 1
#define SKEIN_VERSION_PATCH 0
#define SKEIN_VERSION_STRING "0.1.0"

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

// The two forms of skein. Header-only, the default: every body is inline, nothing is linked. Compiled:
// SKEIN_COMPILED is defined (the CMake targets skein::runtime and skein::train do), headers declare what
// is no template, and the bodies, *.ipp, are compiled once, by src/.
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

#include <skein/core/detail/form.hpp>
