// SPDX-License-Identifier: Apache-2.0
#pragma once
// The door to Asio: the only header that includes it, with every shim for its versions.
//
// Standalone Asio >= 1.22. Includes the pieces that skein uses, not <asio.hpp>; further ones,
// <asio/write.hpp> and the like, go after this header.

#include <skein/core/config.hpp>

#include <asio/version.hpp> // includes nothing, so the shims below still come first

// Asio before 1.26 does not see coroutines under clang (its test asks for the old TS macro).
#if defined(__clang__) && ASIO_VERSION < 102600
#if !defined(ASIO_HAS_CO_AWAIT)
#define ASIO_HAS_CO_AWAIT 1
#endif
#if !defined(ASIO_HAS_STD_COROUTINE)
#define ASIO_HAS_STD_COROUTINE 1
#endif
#endif

#if ASIO_VERSION < 102200
#error "skein needs Asio >= 1.22"
#endif

#include <asio/associated_cancellation_slot.hpp>
#include <asio/async_result.hpp>
#include <asio/buffer.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/error.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
