// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call between its arrival and its first step, in one of two forms: bytes of a frame, or the
// arguments of a call of this process as they are. All that the forms differ in stands here.

#include <skein/core/bytes.hpp>
#include <skein/core/time.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/incoming_call.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/object_traffic.hpp>
#include <skein/wire/reader.hpp>

#include <memory>
#include <utility>

namespace skein::rt::detail {

/// A call or drop that waits: behind calls that have run for long, or for its turn at its actor.
struct arrival {
    std::shared_ptr<peer> from;
    slot_id slot;
    byte_buffer body;
    bool is_drop = false;
    time_point came{};
    std::unique_ptr<given_call> given; ///< instead of a body
    std::shared_ptr<arrived_objects>
        objects{}; ///< that it names; then the body is without their list
};

/// A call whose head and arguments are bytes that somebody else keeps.
class framed_form {
public:
    framed_form(byte_span body, time_point came,
                std::shared_ptr<arrived_objects> objects = {}) noexcept
        : body_(body), came_(came), in_(body), objects_(std::move(objects)) {}
    /// Reads the head. False: the call does not run, for its driver has taken it back.
    [[nodiscard]] bool open(peer& from, slot_id id, bool is_first);
    /// What only who sends frames could get wrong about the actor.
    void check(const peer& from, const actor_box& box) const;
    void keep(arrival& in) const {
        in.body = to_buffer(body_);
        in.came = came_;
        in.objects = objects_;
    }
    void run(incoming_call& call) const { fn_->invoke(call); }

    [[nodiscard]] const function_record& fn() const noexcept { return *fn_; }
    [[nodiscard]] bool is_method() const noexcept { return head_.kind == call_kind::method; }
    [[nodiscard]] bool has_terms() const noexcept { return head_.retries != 0; }
    /// Of a task; an actor on a worker of all holds none.
    [[nodiscard]] int cpus() const noexcept {
        return head_.kind == call_kind::task ? head_.cpus : 0;
    }
    [[nodiscard]] actor_id target() const noexcept { return head_.target; }
    [[nodiscard]] const trace_context& who() const noexcept { return head_.who; }
    [[nodiscard]] wire::reader& arguments() noexcept { return in_; }
    [[nodiscard]] const arrived_objects* objects() const noexcept { return objects_.get(); }

private:
    byte_span body_;
    time_point came_;
    wire::reader in_;
    std::shared_ptr<arrived_objects> objects_;
    call_head head_;
    const function_record* fn_ = nullptr;
};

/// A method of an actor of this process, with its arguments as they are.
class given_form {
public:
    explicit given_form(std::unique_ptr<given_call> call) noexcept
        : call_(std::move(call)), none_(byte_span()) {}
    [[nodiscard]] static bool open(peer&, slot_id, bool) noexcept { return true; }
    static void check(const peer&, const actor_box&) noexcept {}
    void keep(arrival& in) noexcept { in.given = std::move(call_); }
    void run(incoming_call& call) const { call_->run(call); }

    [[nodiscard]] const function_record& fn() const noexcept { return *call_->fn; }
    [[nodiscard]] static bool is_method() noexcept { return true; }
    [[nodiscard]] static bool has_terms() noexcept { return false; }
    [[nodiscard]] static int cpus() noexcept { return 0; }
    [[nodiscard]] actor_id target() const noexcept { return call_->target; }
    [[nodiscard]] const trace_context& who() const noexcept { return call_->who; }
    [[nodiscard]] wire::reader& arguments() noexcept { return none_; }
    [[nodiscard]] static const arrived_objects* objects() noexcept { return nullptr; }

private:
    std::unique_ptr<given_call> call_;
    wire::reader none_;
};

/// Does `work` with the form that a call came in.
template <class F>
void with_form(arrival& one, F work) {
    if (one.given) {
        given_form call(std::move(one.given));
        work(call);
    } else {
        framed_form call(one.body, one.came, one.objects);
        work(call);
    }
}

/// The function that a call names; its head must fit it. Throws malformed, which ends the link.
[[nodiscard]] const function_record& read_head(wire::reader& in, call_head& head, const peer& from,
                                               time_point came);
/// `who` calls a method of another type than the actor has.
[[nodiscard]] error wrong_actor(const std::string& who, const function_record& fn, actor_id actor,
                                const std::type_info& type);

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/arrived_call.ipp>
#endif
