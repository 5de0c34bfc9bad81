// SPDX-License-Identifier: Apache-2.0
#pragma once
// incoming_call: what the invoker of a registered function gets to see of the call that it is to
// run.

#include <skein/rt/detail/actor_box.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/registry.hpp>

#include <memory>

namespace skein::wire {
class reader;
}

namespace skein::rt {

namespace detail {

class executor;
struct arrived_objects;

/// A call that arrived, while it is being looked at.
struct incoming_call {
    executor& by;
    const std::shared_ptr<peer>& from;
    slot_id slot;
    const function_record& fn;
    actor_id target;
    wire::reader& arguments;
    counted_ptr<actor_box> box; ///< of a method's actor
    bool has_terms = false;     ///< a constructor's arguments stand behind an actor_terms
    const arrived_objects* objects = nullptr; ///< that it names

    /// The arguments cannot be read: tells the submitter.
    void refuse(const error& why) const;
    /// The call has thrown the exception that is being handled: tells the submitter.
    void reply_thrown() const;
};

} // namespace detail

} // namespace skein::rt
