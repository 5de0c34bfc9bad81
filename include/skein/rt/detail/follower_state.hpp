// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls with `.on`, and those among them that are to run where an actor is: who waits for it, and
// who goes where it goes. Bodies in runtime_followers.ipp.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/error.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/options.hpp>
#include <skein/rt/runtime.hpp>

#include <vector>

namespace skein::rt {

/// Its functions are part of runtime.
struct runtime::followers {
    using calls = std::vector<counted_ptr<detail::call_base>>;

    static void set_demand(runtime& self, detail::call_base& call, call_options how);
    [[nodiscard]] static bool take_location(runtime& self, detail::call_base& call, location& on);
    static void follow(runtime& self, detail::call_base& call, actor_id of);
    [[nodiscard]] static bool may_go(runtime& self, const counted_ptr<detail::call_base>& call);
    static void actor_is_placed(runtime& self, actor_id id);
    static void take_out(runtime& self, actor_id id, calls& into);
    static void fail(const calls& all, const error& why);
};

} // namespace skein::rt
