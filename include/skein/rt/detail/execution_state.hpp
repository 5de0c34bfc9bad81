// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a call that has come gets to run: one path for frames and for calls of this process that
// carry their arguments as they are. Part of detail/runtime_state.hpp; bodies in
// detail/runtime_execution.ipp.

#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/incoming_call.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/wire/reader.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace skein::rt {

/// A call or drop that waits: behind calls that have run for long, or for its turn at its actor.
struct runtime::arrival {
    std::shared_ptr<peer> from;
    slot_id slot;
    byte_buffer body;
    bool is_drop = false;
    time_point came{};
    std::unique_ptr<detail::given_call> given; ///< instead of a body
};

/// What becomes of a call between its arrival and its first step. It may come in two forms,
/// `framed` and `given`; all that they differ in stands there.
struct runtime::execution {
    /// Its head and arguments are bytes that somebody else keeps.
    class framed {
    public:
        framed(byte_span body, time_point came) noexcept : body_(body), came_(came), in_(body) {}
        /// Reads the head. False: it does not run, for its driver has taken it back.
        [[nodiscard]] bool open(peer& from, slot_id id, bool is_first);
        /// What only who sends frames could get wrong about the actor.
        void check(const peer& from, const detail::actor_box& box) const;
        void keep(arrival& in) const {
            in.body = to_buffer(body_);
            in.came = came_;
        }
        void run(detail::incoming_call& call) const { fn_->invoke(call); }

        [[nodiscard]] const function_record& fn() const noexcept { return *fn_; }
        [[nodiscard]] bool is_method() const noexcept {
            return head_.kind == detail::call_kind::method;
        }
        [[nodiscard]] bool has_terms() const noexcept { return head_.retries != 0; }
        /// Of a task; an actor on a worker of all holds none.
        [[nodiscard]] int cpus() const noexcept {
            return head_.kind == detail::call_kind::task ? head_.cpus : 0;
        }
        [[nodiscard]] actor_id target() const noexcept { return head_.target; }
        [[nodiscard]] const detail::trace_context& who() const noexcept { return head_.who; }
        [[nodiscard]] wire::reader& arguments() noexcept { return in_; }

    private:
        byte_span body_;
        time_point came_;
        wire::reader in_;
        detail::call_head head_;
        const function_record* fn_ = nullptr;
    };

    /// A method of an actor of this process, with its arguments as they are.
    class given {
    public:
        explicit given(std::unique_ptr<detail::given_call> call) noexcept
            : call_(std::move(call)), none_(byte_span()) {}
        [[nodiscard]] static bool open(peer&, slot_id, bool) noexcept { return true; }
        static void check(const peer&, const detail::actor_box&) noexcept {}
        void keep(arrival& in) noexcept { in.given = std::move(call_); }
        void run(detail::incoming_call& call) const { call_->run(call); }

        [[nodiscard]] const function_record& fn() const noexcept { return *call_->fn; }
        [[nodiscard]] static bool is_method() noexcept { return true; }
        [[nodiscard]] static bool has_terms() noexcept { return false; }
        [[nodiscard]] static int cpus() noexcept { return 0; }
        [[nodiscard]] actor_id target() const noexcept { return call_->target; }
        [[nodiscard]] const detail::trace_context& who() const noexcept { return call_->who; }
        [[nodiscard]] wire::reader& arguments() noexcept { return none_; }

    private:
        std::unique_ptr<detail::given_call> call_;
        wire::reader none_;
    };

    /// A call has come: it runs here and now, or behind those that wait already.
    static void arrived(runtime& self, const std::shared_ptr<peer>& from, const net::frame_view& f);
    static void arrived(runtime& self, const std::shared_ptr<peer>& from,
                        std::unique_ptr<detail::given_call> arguments);
    static void dropped(runtime& self, const std::shared_ptr<peer>& from, byte_span body);
    static void run_waiting(runtime& self, arrival& one);
    /// Those whose calls run here.
    template <class F>
    static void for_each_caller(const state& of, F what);

private:
    template <class Form>
    static void take(runtime& self, const std::shared_ptr<peer>& from, slot_id id, Form& call);
    /// box: its actor, if it has waited for its turn.
    template <class Form>
    static void run(runtime& self, const std::shared_ptr<peer>& from, slot_id id, Form& call,
                    counted_ptr<detail::actor_box> box);
    static void enqueue(state& of, arrival one);
    template <class F>
    static void with_form(arrival& one, F what);
    template <class Form>
    static void hold_back(runtime& self, const std::shared_ptr<peer>& from, slot_id id, Form& call,
                          counted_ptr<detail::actor_box> box);
    [[nodiscard]] static task<void> run_later(runtime* self, arrival one,
                                              counted_ptr<detail::actor_box> box);
    [[nodiscard]] static task<void> run_in_turn(runtime* self, arrival one,
                                                const function_record* fn,
                                                counted_ptr<detail::actor_box> box);
};

} // namespace skein::rt
