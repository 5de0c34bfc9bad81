// SPDX-License-Identifier: Apache-2.0
// Compiled once, in a library of its own: skein::http needs the headers of Boost.Beast, skein::runtime does not.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/net/http_router.hpp>
#include <skein/net/http_server.hpp>
#include <skein/net/http_turns.hpp>
#include <skein/wire/detail/http_chunks.hpp>
#include <skein/wire/detail/http_text.hpp>
#include <skein/wire/http.hpp>

#include <skein/net/detail/http_router.ipp>
#include <skein/net/detail/http_rules.ipp>
#include <skein/net/detail/http_server.ipp>
#include <skein/net/detail/http_turns.ipp>
#include <skein/wire/detail/http.ipp>
#include <skein/wire/detail/http_chunks.ipp>
#include <skein/wire/detail/http_text.ipp>
