// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer objects, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/objects/arena.hpp>
#include <skein/objects/far_objects.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/objects/object.hpp>
#include <skein/objects/spill.hpp>
#include <skein/objects/store.hpp>
#include <skein/objects/store_book.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/objects/store_peers.hpp>
#include <skein/objects/transfer.hpp>

#include <skein/objects/detail/arena.ipp>
#include <skein/objects/detail/client_values.ipp>
#include <skein/objects/detail/far_objects.ipp>
#include <skein/objects/detail/far_peers.ipp>
#include <skein/objects/detail/local_store.ipp>
#include <skein/objects/detail/object.ipp>
#include <skein/objects/detail/spill.ipp>
#include <skein/objects/detail/store.ipp>
#include <skein/objects/detail/store_book.ipp>
#include <skein/objects/detail/store_client.ipp>
#include <skein/objects/detail/store_peers.ipp>
#include <skein/objects/detail/transfer.ipp>
