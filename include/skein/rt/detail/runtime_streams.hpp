// SPDX-License-Identifier: Apache-2.0
#pragma once
// runtime::streams: what links bring of calls that give items. Part of detail/runtime_state.hpp;
// bodies in detail/runtime_streams.ipp.

#include <skein/rt/runtime.hpp>
// clang-format off: it is a part of that class
#include <skein/rt/detail/runtime_state.hpp>
// clang-format on

namespace skein::rt {

/// Functions of runtime.
struct runtime::streams {
    /// An item of a call of this process, or of one that is passed on.
    static void on_item(runtime& self, peer& from, const net::frame_view& f);
    /// Somebody has taken items of what runs here, or of what was passed on.
    static void on_taken(peer& from, const net::frame_view& f);
    /// The outcome of a stream, without the number of its items; nothing: some of these are still
    /// to come. may_be_early: it came another way than they do.
    [[nodiscard]] static bool open_end(peer& from, detail::call_base& call, net::frame_view& f,
                                       bool may_be_early);
    [[nodiscard]] static bool is_stream(const detail::call_base& call) noexcept {
        return call.fn != nullptr && call.fn->is_stream;
    }
};

} // namespace skein::rt
