// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer net, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/net/acceptor.hpp>
#include <skein/net/address.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/detail/link_window.hpp>
#include <skein/net/detail/out_queue.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/far_disk.hpp>
#include <skein/net/folder_server.hpp>
#include <skein/net/frame.hpp>
#include <skein/net/handshake.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/offload.hpp>
#include <skein/net/options.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/request_budget.hpp>
#include <skein/net/requests.hpp>
#include <skein/net/socket_pair.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/token.hpp>

#include <skein/net/detail/acceptor.ipp>
#include <skein/net/detail/address.ipp>
#include <skein/net/detail/connection.ipp>
#include <skein/net/detail/connection_life.ipp>
#include <skein/net/detail/dial.ipp>
#include <skein/net/detail/endpoint.ipp>
#include <skein/net/detail/far_disk.ipp>
#include <skein/net/detail/folder_server.ipp>
#include <skein/net/detail/frame.ipp>
#include <skein/net/detail/handshake.ipp>
#include <skein/net/detail/link.ipp>
#include <skein/net/detail/link_endpoint.ipp>
#include <skein/net/detail/link_resume.ipp>
#include <skein/net/detail/link_window.ipp>
#include <skein/net/detail/loop_thread.ipp>
#include <skein/net/detail/offload.ipp>
#include <skein/net/detail/options.ipp>
#include <skein/net/detail/out_queue.ipp>
#include <skein/net/detail/readable_fd.ipp>
#include <skein/net/detail/real_loop.ipp>
#include <skein/net/detail/real_network.ipp>
#include <skein/net/detail/request_budget.ipp>
#include <skein/net/detail/request_lanes.ipp>
#include <skein/net/detail/request_service.ipp>
#include <skein/net/detail/requests.ipp>
#include <skein/net/detail/socket_pair.ipp>
#include <skein/net/detail/stop_watch.ipp>
#include <skein/net/detail/system_error.ipp>
#include <skein/net/detail/token.ipp>
