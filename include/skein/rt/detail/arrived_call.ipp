// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/arrived_call.hpp.

#include <skein/core/type_name.hpp>
#include <skein/rt/detail/peer.hpp>

#include <string>
#include <typeinfo>

#include <fmt/format.h>

namespace skein::rt::detail {

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_head(const std::string& who,
                                                                     const function_record* fn) {
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", who));
    throw error(errc::malformed,
                fmt::format("{} sends a call of {} that is none of its kind", who, fn->name));
}

SKEIN_INLINE const function_record& read_head(wire::reader& in, call_head& head, const peer& from,
                                              time_point came) {
    const bool good = head.decode(in, from.incarnation, came);
    const auto* fn = good ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr) [[unlikely]]
        refuse_head(from.who, fn);
    const auto wanted = fn->is_constructor     ? call_kind::create
                        : fn->actor != nullptr ? call_kind::method
                                               : call_kind::task;
    if (head.kind != wanted) [[unlikely]]
        refuse_head(from.who, fn);
    return *fn;
}

[[gnu::cold, gnu::noinline]] SKEIN_INLINE error wrong_actor(const std::string& who,
                                                            const function_record& fn,
                                                            actor_id actor,
                                                            const std::type_info& type) {
    return error(errc::malformed, fmt::format("{} calls {} of actor {}, which is a {}", who,
                                              fn.name, actor, readable_name(type.name())));
}

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_direct(const peer& from, slot_id id,
                                                                       const call_head& head,
                                                                       const function_record& fn) {
    if (head.kind != call_kind::method)
        throw error(errc::malformed,
                    fmt::format("{} calls {}, which is no method", from.who, fn.name));
    if (head.who.id.value().incarnation != from.incarnation)
        throw error(errc::malformed, fmt::format("{} sends a call in another's name", from.who));
    throw error(errc::malformed, fmt::format("a second call {} from {}", id, from.who));
}

/// A call of another worker is about to run. Throws if it is none that a worker may send.
SKEIN_INLINE void check_direct(peer& from, slot_id id, const call_head& head,
                               const function_record& fn) {
    if (head.kind != call_kind::method || head.who.id.value().incarnation != from.incarnation ||
        from.inbound.running.find(id) != nullptr) [[unlikely]]
        refuse_direct(from, id, head, fn);
}

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_past(const peer& from,
                                                                     actor_id actor) {
    throw error(
        errc::malformed,
        fmt::format("{} calls actor {} past the driver, which keeps its calls", from.who, actor));
}

/// The driver of a call that does not run, for it has taken it back, hears that its place has come:
/// if the call has credit there.
SKEIN_INLINE void tell_passed(peer& from, slot_id id, const call_head& head) {
    const bool has_credit =
        head.kind == call_kind::method || (head.kind == call_kind::task && head.cpus == 0);
    if (has_credit && from.is_open()) from.send(message_passed, 0, id.value(), {});
}

SKEIN_INLINE bool framed_form::open(peer& from, slot_id id, bool is_first) {
    fn_ = &read_head(in_, head_, from, came_);
    if (objects_ != nullptr)
        if (const auto* const all = objects_->at(all_arguments)) in_ = wire::reader(all->bytes());
    if (!is_first) return true;
    if (!from.page.begin()) { // its driver has taken it back
        tell_passed(from, id, head_);
        return false;
    }
    if (from.role == peer_role::accepted) check_direct(from, id, head_, *fn_);
    return true;
}

SKEIN_INLINE void framed_form::check(const peer& from, const actor_box& box) const {
    if (from.role == peer_role::accepted && box.lasts) [[unlikely]]
        refuse_past(from, head_.target);
}

} // namespace skein::rt::detail
