// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer rt, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/rt/detail/actor_owner.hpp>
#include <skein/rt/detail/arrived_call.hpp>
#include <skein/rt/detail/backlog.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/demand_lines.hpp>
#include <skein/rt/detail/dispatch.hpp>
#include <skein/rt/detail/executor.hpp>
#include <skein/rt/detail/group_desk.hpp>
#include <skein/rt/detail/group_handles.hpp>
#include <skein/rt/detail/groups.hpp>
#include <skein/rt/detail/lease_book.hpp>
#include <skein/rt/detail/lent_cores.hpp>
#include <skein/rt/detail/local_actors.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/object_message.hpp>
#include <skein/rt/detail/object_traffic.hpp>
#include <skein/rt/detail/ref_codec.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/rt/detail/runtime_streams.hpp>
#include <skein/rt/detail/stream_call.hpp>
#include <skein/rt/detail/stream_producer.hpp>
#include <skein/rt/failures.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/remote_error.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/runtime_context.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/rt/worker_source.hpp>

#include <skein/rt/detail/actor_owner.ipp>
#include <skein/rt/detail/arrived_call.ipp>
#include <skein/rt/detail/backlog.ipp>
#include <skein/rt/detail/call.ipp>
#include <skein/rt/detail/demand_lines.ipp>
#include <skein/rt/detail/dispatch.ipp>
#include <skein/rt/detail/executor.ipp>
#include <skein/rt/detail/failures.ipp>
#include <skein/rt/detail/group_desk.ipp>
#include <skein/rt/detail/group_handles.ipp>
#include <skein/rt/detail/groups.ipp>
#include <skein/rt/detail/lease_book.ipp>
#include <skein/rt/detail/lent_cores.ipp>
#include <skein/rt/detail/local_actors.ipp>
#include <skein/rt/detail/message.ipp>
#include <skein/rt/detail/object_message.ipp>
#include <skein/rt/detail/object_traffic.ipp>
#include <skein/rt/detail/ref_codec.ipp>
#include <skein/rt/detail/registry.ipp>
#include <skein/rt/detail/remote_error.ipp>
#include <skein/rt/detail/replies.ipp>
#include <skein/rt/detail/runtime.ipp>
#include <skein/rt/detail/runtime_actors.ipp>
#include <skein/rt/detail/runtime_callers.ipp>
#include <skein/rt/detail/runtime_context.ipp>
#include <skein/rt/detail/runtime_credits.ipp>
#include <skein/rt/detail/runtime_direct.ipp>
#include <skein/rt/detail/runtime_dispatch.ipp>
#include <skein/rt/detail/runtime_ends.ipp>
#include <skein/rt/detail/runtime_frames.ipp>
#include <skein/rt/detail/runtime_given.ipp>
#include <skein/rt/detail/runtime_handles.ipp>
#include <skein/rt/detail/runtime_meetings.ipp>
#include <skein/rt/detail/runtime_objects.ipp>
#include <skein/rt/detail/runtime_peers.ipp>
#include <skein/rt/detail/runtime_send.ipp>
#include <skein/rt/detail/runtime_spaces.ipp>
#include <skein/rt/detail/runtime_streams.ipp>
#include <skein/rt/detail/stream_call.ipp>
#include <skein/rt/detail/stream_producer.ipp>
#include <skein/rt/detail/worker_link.ipp>
#include <skein/rt/detail/worker_source.ipp>
