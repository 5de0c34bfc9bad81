// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a worker about its calls of actors that it makes without its driver. Part of
// detail/runtime_state.hpp.

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/net/address.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/token.hpp>
#include <skein/rt/detail/direct_message.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace skein::rt::detail {

/// A frame of this process to itself.
struct loopback_frame {
    std::uint16_t kind = 0, flags = 0;
    std::uint64_t id = 0;
    byte_buffer body;
    std::vector<counted_ptr<actor_queue>> kept; ///< of the handles in a result
    std::unique_ptr<given_call> given;          ///< instead of a body
};

/// Another worker, on which there are actors that are called from here.
struct direct_target {
    std::string who;
    std::vector<std::string> addresses;
    std::shared_ptr<peer> link;
    std::vector<actor_id> waiting; ///< actors there whose calls wait for the link
    bool is_served = false;        ///< a task dials it, or looks after the link
    bool is_unreachable = false;   ///< its actors are called through the driver
    bool is_said_to_live = false;  ///< by the driver, of a link that broke
    std::uint64_t generation = 0;  ///< of the last attempt
    std::optional<worker_end> end; ///< its process has ended
    event told;                    ///< the driver has said whether it has
    cancel_source stop;            ///< of the attempt to reach it
};

struct direct_state {
    explicit direct_state(runtime& of) : self(of) {}

    runtime& self;
    net::network* via = nullptr; ///< nullptr: all calls go through the driver
    net::token secret;
    std::vector<std::unique_ptr<net::link_endpoint>> doors;
    std::string near_address, far_address;
    scope tasks;

    std::map<std::uint64_t, direct_target> targets; ///< by incarnation
    /// Where actors are, also those to which there is no handle here at the moment: one that comes
    /// again needs no question. Forgotten as a whole when there are too many.
    std::unordered_map<actor_id, std::uint64_t> known;
    static constexpr std::size_t most_known = 65'536;
    std::vector<std::shared_ptr<peer>> callers;
    /// The newest link of each worker that has ever called. Older ones are refused.
    std::map<std::uint64_t, std::uint64_t> newest;

    std::shared_ptr<peer> here; ///< this process
    std::vector<loopback_frame> frames;
    /// Empty ones, so that a call and its reply allocate nothing; at most most_spare of each.
    std::vector<loopback_frame> spare_frames;
    std::vector<byte_buffer> spare_bodies;
    static constexpr std::size_t most_spare = 256, most_spare_bytes = 4096;
    std::vector<counted_ptr<actor_queue>> kept_next; ///< go along with the next one
    bool is_delivering = false;

    /// Coroutine tasks that wait for direct calls, and of which the driver does not know it yet.
    intrusive_list<call_context, call_context> waiting;
    struct wait_timer : timer_node {
        explicit wait_timer(direct_state& b)
            : timer_node([](timer_node& t) { static_cast<wait_timer&>(t).of.tell_waits(); }),
              of(b) {}
        direct_state& of;
    } look{*this};
    static constexpr std::chrono::milliseconds short_wait{1}; ///< of which the driver need not know

    void go_there(actor_queue& queue, std::uint64_t incarnation);
    [[nodiscard]] bool has_link(actor_id actor) const;
    void forget(std::uint64_t incarnation);
    void tell_waits();
    /// That of the process of a runtime.
    [[nodiscard]] static direct_state& of(runtime& one);
    /// A coroutine task that runs here waits for what its driver does not see, or goes on: its
    /// cores are others' meanwhile.
    void begin_to_wait(call_context& one);
    void end_to_wait(call_context& one) noexcept;
    void deliver();
    void push(loopback_frame f);
    [[nodiscard]] byte_buffer body_of(byte_span bytes);
    void take_back(std::vector<loopback_frame> delivered);

    // Of a call whose arguments travel as they are; in detail/runtime_given.ipp.
    void give(counted_ptr<call_base> call, given_maker make);
    void finish(peer& by, slot_id id, finisher how);
};

/// The options of a link between two workers, for both sides.
[[nodiscard]] net::connection_options direct_options(const runtime& self, const net::token& secret,
                                                     bool in_memory, const direct_hello& hello);

} // namespace skein::rt::detail
