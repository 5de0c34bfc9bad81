// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer wire, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/wire/csv.hpp>

#include <skein/wire/detail/csv.ipp>
