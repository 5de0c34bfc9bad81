// SPDX-License-Identifier: Apache-2.0
#pragma once
// call_base::rarities: what few calls have.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/error.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/time.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/object_message.hpp>
#include <skein/rt/failures.hpp>
#include <skein/sched/demands.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::rt::detail {

struct call_base::rarities {
    std::string name;
    std::unique_ptr<deferred_arguments> arguments;
    std::unique_ptr<actor_terms> terms;             ///< of a constructor, if it has options
    std::size_t pending = 0;                        ///< refs among the arguments not done yet
    std::vector<counted_ptr<call_base>> dependents; ///< calls that take this one's ref
    std::vector<std::shared_ptr<void>> kept;        ///< handles that must live until the end
    std::vector<object_use> objects;                ///< among the arguments; `kept` holds them
    objects::object_ptr object;                     ///< its value is this one
    objects::reading_ptr bytes;                     ///< of the object, while they are handed out
    std::optional<error> unreadable;                ///< why they are not
    bool is_reading = false;
    std::shared_ptr<const void> shared; ///< its value, which views have, too
    struct timer : timer_node {
        timer(call_base& of, void (*then)(call_base&)) noexcept
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<timer&>(t);
                  self.passed(self.call);
              }),
              call(of), passed(then) {}
        call_base& call;
        void (*passed)(call_base&);
    };
    std::optional<timer> deadline;
    std::optional<timer> force; ///< it was cancelled by force
    std::optional<error> bad_options;
    std::optional<known_failures> retry_on;
    std::uint16_t failed_attempts = 0; ///< that ended with one of them
    actor_id beside;                   ///< it is to run where that actor is
    sched::place place;                ///< worker: where its driver is to have it run
    duration limit = no_deadline;
    time_point until{};        ///< when the deadline is
    bool is_inherited = false; ///< the limit, from the call that made this one
    bool cancel_requested = false;
};

} // namespace skein::rt::detail
