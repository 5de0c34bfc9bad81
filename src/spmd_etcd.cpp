// SPDX-License-Identifier: Apache-2.0
// Compiled once, in a library of its own: skein::etcd needs libcurl, skein::runtime does not.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/spmd/detail/curl_transport.hpp>
#include <skein/spmd/detail/etcd_client.hpp>
#include <skein/spmd/detail/etcd_keys.hpp>
#include <skein/spmd/detail/etcd_messages.hpp>
#include <skein/spmd/etcd_register.hpp>

#include <skein/spmd/detail/curl_transport.ipp>
#include <skein/spmd/detail/etcd_client.ipp>
#include <skein/spmd/detail/etcd_keys.ipp>
#include <skein/spmd/detail/etcd_messages.ipp>
#include <skein/spmd/detail/etcd_register.ipp>
