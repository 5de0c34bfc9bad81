// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much a process sends to actors and workers ahead of what they have begun. Part of
// detail/runtime_state.hpp; how it works stands in detail/runtime_credits.ipp.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/message.hpp>

#include <cstddef>
#include <cstdint>

namespace skein::rt {

namespace detail {
/// A call leaves: what is left of its deadline now goes into its head. In runtime_send.ipp.
void stamp_deadline(const call_base& call, mut_byte_span body);
} // namespace detail

/// How much this process sends ahead of what has begun; in runtime_credits.ipp.
struct runtime::credits {
    /// Few enough that the actor does not run dry meanwhile, many enough that the way to the line
    /// costs little.
    static constexpr std::uint32_t most_batch = 32;

    [[nodiscard]] static bool has(const state& of, const detail::credit_line& line) noexcept;
    static void line_up(runtime& self, counted_ptr<detail::call_base> call);
    [[nodiscard]] static mut_byte_span take_arguments(detail::actor_queue& queue,
                                                      detail::call_base& call) noexcept;
    static void send(runtime& self, detail::actor_queue& queue,
                     counted_ptr<detail::call_base> call);
    [[nodiscard]] static bool is_spent(const state& of, const detail::actor_queue& queue) noexcept;
    static void look_ahead(const detail::actor_queue& queue) noexcept;
    [[nodiscard]] static bool stands_aside(const state& of, const detail::actor_queue& queue,
                                           const detail::call_base& call) noexcept;
    static void take(state& of, peer& to, detail::call_base& call, std::size_t bytes) noexcept;
    [[nodiscard]] static counted_ptr<detail::actor_queue> give(state& of, peer& from,
                                                               detail::call_base& call) noexcept;
    static void on_started(runtime& self, peer& from, slot_id id);
    static void on_held(runtime& self, peer& from, slot_id id);
    static void on_passed(runtime& self, peer& from, slot_id id);
    static void keep(detail::call_base& call);
    static void leave(state& of, detail::actor_queue& queue);
    static void sort(detail::actor_queue& queue);
    static void send_held(runtime& self, detail::actor_queue& queue);
    static void forget(detail::actor_queue& queue, detail::call_base& call);
    static void fail_all(runtime& self, const error& why);
    static void tell_credit(const state& of, detail::actor_queue& queue) noexcept;
    [[nodiscard]] static bool has_credit(const state& of,
                                         const detail::actor_queue& queue) noexcept;
    static void waits_here(runtime& self, detail::call_base& call);

private:
    [[nodiscard]] static detail::actor_queue* queue_of(state& of, actor_id id,
                                                       detail::actor_queue* known,
                                                       std::uint32_t line) noexcept;
};

} // namespace skein::rt
