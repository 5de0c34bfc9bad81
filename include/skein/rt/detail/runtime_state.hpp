// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of rt/runtime.hpp: what only the bodies of runtime and of its calls see.

#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/event.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/id_map.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/channel.hpp>
#include <skein/proc/claims.hpp>
#include <skein/rt/detail/actor_owner.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/call_rarities.hpp>
#include <skein/rt/detail/credit_state.hpp>
#include <skein/rt/detail/dispatch.hpp>
#include <skein/rt/detail/executor.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/group_desk.hpp>
#include <skein/rt/detail/group_handles.hpp>
#include <skein/rt/detail/local_actors.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace skein::rt {

namespace detail {

struct direct_state; // in detail/direct_state.hpp
struct space_state;  // in detail/space_state.hpp

/// A call of a worker that the driver passes on: its outcome goes back as a reply.
class forwarded_call : public call_base {
public:
    forwarded_call(replies& out, lent_cores& cores, std::shared_ptr<peer> origin, slot_id origin_id,
                   const trace_context& who)
        : id(who.id), out_(out), cores_(cores), origin_(std::move(origin)), origin_id_(origin_id),
          asker_(who.parent) {}

    const call_id id;   ///< as its worker numbers it
    bool lends = false; ///< the value is that of a reply that lends

    [[nodiscard]] const peer& origin() const noexcept { return *origin_; }
    [[nodiscard]] slot_id origin_id() const noexcept { return origin_id_; }
    [[nodiscard]] const std::shared_ptr<peer>& who_asks() const noexcept { return origin_; }
    [[nodiscard]] call_id asker() const noexcept { return asker_; }
    /// The value has refs of objects in it, which this process holds; it is passed on as it came.
    void pass_refs(std::uint16_t flags, byte_span reply, std::vector<objects::object_ptr> all) {
        if (origin_->up) out_.pass_on(origin_, origin_id_, flags, to_buffer(reply), std::move(all));
        finished();
    }
    /// What its worker says of it goes on to who made it.
    void pass_on(std::uint16_t what) const {
        if (!is_done() && origin_->is_open()) origin_->send(what, 0, origin_id_.value(), {});
    }

    /// An item goes on, too: from then on it does not run again.
    void take_item(const net::frame_view& f) override {
        is_spent = true;
        if (is_done() || !origin_->is_open()) return;
        if (f.body.size() < limit::inline_bytes)
            return origin_->send(message_item, 0, origin_id_.value(), f.body);
        net::frame out;
        out.kind = message_item;
        out.id = origin_id_.value();
        out.body = f.take_body();
        origin_->send(std::move(out));
    }

protected:
    result<void> take_value(byte_span bytes) override {
        if (!origin_->up) return {};
        out_.pass_reply(*origin_, origin_id_, bytes, lends);
        return {};
    }
    result<void> take_object(const objects::object_ptr& value) override {
        if (!origin_->up) return {};
        out_.pass_on(origin_, origin_id_, reply_object, wire::encode(value->name()), {value});
        return {};
    }
    void take_failure(const failure& why) override {
        if (origin_->up) out_.reply_failure(*origin_, origin_id_, why);
    }
    void on_finished() override {
        origin_->room.calls_made -= origin_->forwarded.erase(origin_id_);
        cores_.end_wait(origin_->room, asker_);
    }

private:
    replies& out_;
    lent_cores& cores_;
    std::shared_ptr<peer> origin_;
    slot_id origin_id_;
    call_id asker_;
};

} // namespace detail

struct runtime::state {
    struct slot {
        counted_ptr<detail::call_base> call;
        std::uint32_t generation = 1;
    };
    detail::process_name name;
    state(runtime& self, runtime_options who);
    ~state();

    /// What the parts of this process tell its runtime.
    struct listener final : detail::reply_events,
                            detail::actor_events,
                            detail::group_events,
                            detail::owner_events,
                            detail::driver_questions {
        explicit listener(runtime& of) noexcept : self(of) {}
        /// Null: there is no handle of this process to that actor.
        [[nodiscard]] counted_ptr<detail::actor_queue> queue_of(actor_id id) const {
            const auto& all = self.state_->actor_queues;
            const auto found = all.find(id);
            return counted_ptr(found != all.end() ? found->second : nullptr);
        }
        void tell_holds() override { self.tell_holds(); }
        [[nodiscard]] detail::kept_actors keep_lent(const detail::lent_actors& all) override;
        void send_along(detail::kept_actors all) override;
        [[nodiscard]] std::string title_of(actor_id id) const override {
            return self.actor_title(id);
        }
        void actor_has_left(actor_id id) override {
            self.state_->replies.told_driver();
            if (auto* const to = self.state_->upstream)
                detail::send_actor(*to, detail::message_left, id);
        }

        // Of dispatch, which calls these for each task:
        void send(detail::worker_room& to, counted_ptr<detail::call_base> call) {
            self.send(*to.link, std::move(call));
        }
        void refuse(detail::call_base& call, error why) { self.refuse(call, std::move(why)); }
        [[nodiscard]] bool has_credit(const detail::worker_room& worker) const noexcept {
            return credits::has(*self.state_, worker.credit);
        }
        /// A group that has ended.
        [[nodiscard]] std::optional<error> end_of(sched::demand_id demand) const {
            const auto group = self.state_->groups.of(demand);
            return group ? group->why : std::nullopt;
        }

        [[nodiscard]] peer* worker_at(peer_id number) override { return self.link_at(number); }
        void workers_are_needed() override { self.state_->begin_work(); }
        void end_actors(const detail::group_state& group) override {
            self.state_->actors.end_group(group);
        }
        void refuse_demand(sched::demand_id demand, const error& why) override {
            self.refuse_demand(demand, why);
        }
        void cores_are_free() override { self.pump_leases(); }
        void ask_driver(counted_ptr<detail::call_base> call, std::string name, std::uint16_t kind,
                        detail::encoder body) override;

        [[nodiscard]] bool has_handles(actor_id id) const override {
            return self.state_->actor_queues.contains(id);
        }
        void handles_follow(actor_id id, peer* worker) override {
            const auto queue = queue_of(id);
            if (!queue) return;
            queue->moving = worker == nullptr;
            if (queue->moving) return credits::leave(*self.state_, *queue);
            queue->on = worker;
            self.drain(*queue);
        }
        [[nodiscard]] counted_ptr<detail::actor_queue> handles_lose(actor_id id,
                                                                    const failure& why) override {
            auto queue = queue_of(id);
            if (!queue) return queue;
            credits::leave(*self.state_, *queue);
            queue->moving = false;
            queue->lost = why;
            return queue;
        }
        void fail_queue(detail::actor_queue& queue) override { self.fail_queue(queue); }
        [[nodiscard]] std::optional<error> why_lost(actor_id id) const override {
            const auto queue = queue_of(id);
            return queue && queue->lost ? std::optional(queue->lost->what) : std::nullopt;
        }
        void place(counted_ptr<detail::call_base> call) override { self.place(std::move(call)); }
        void take_back_calls(actor_id id,
                             std::vector<counted_ptr<detail::call_base>>& into) override {
            for (std::size_t i = 0; i < self.state_->slots.size(); ++i) {
                const auto call = self.state_->slots[i].call;
                if (call && call->target == id && call->kind == detail::call_kind::method &&
                    !call->is_done() && self.take_back(*call))
                    into.push_back(call);
            }
        }
        [[nodiscard]] counted_ptr<detail::call_base> new_constructor(
            actor_id id, const detail::actor_plan& plan) override;
        void pump() override { self.pump(); }
        void tell_where(peer_id asker, actor_id id, peer* worker, std::string_view how) override {
            self.tell_where(asker, id, worker, how);
        }
        runtime& self;
    } heard;

    runtime_stats stats;
    std::vector<std::shared_ptr<peer>> links; ///< of a driver
    peer* upstream = nullptr;                 ///< of a worker
    std::uint64_t incarnation = 0, last_link = 0, last_call = 0;
    std::uint32_t last_line = 1, credit_calls = 0; ///< see credits
    std::uint32_t credit_batch = 1; ///< that comes back before more is sent in a turn
    std::size_t credit_bytes = 0;
    counted_ptr<detail::runtime_anchor> anchor;
    counted_ptr<detail::call_context> root; ///< of tasks that are no call

    std::vector<slot> slots;
    std::vector<std::uint32_t> free;
    detail::dispatch dispatch;
    std::vector<counted_ptr<detail::call_base>> ready; ///< their arguments are there
    bool settling = false;

    std::unordered_map<actor_id, detail::actor_queue*> actor_queues;
    detail::borrows<actor_id> borrowed; ///< of a worker: handles to actors
    detail::actor_owner actors;
    detail::group_desk groups;
    detail::group_handles group_handles;
    detail::replies replies; ///< of what runs here, and of calls that are passed on
    detail::local_actors local_actors;
    detail::executor executor;

    unique_function<void()> start_workers;
    std::optional<error> given_up;
    bool closing = false;
    bool is_visiting = false; ///< the source of workers serves namespaces alone so far
    std::string space; ///< that it keeps, whose actors live here, or whose space client it is
    std::uint64_t space_server = 0;   ///< of that namespace, if it is another process
    runtime* home = nullptr;          ///< of a space client: that of this process
    bool awaits_space_server = false; ///< a space client that has not met it yet: calls wait
    std::vector<actor_id> kills;      ///< for it then
    exit_reason after_space_server;   ///< of a space client
    std::optional<error> space_server_end;
    std::unique_ptr<detail::space_state> spaces; ///< namespaces that are called from here
    wire::writer scratch;
    std::unique_ptr<detail::direct_state> direct; ///< calls between workers

    [[gnu::noinline]] void add_slot() {
        free.push_back(static_cast<std::uint32_t>(slots.size()));
        slots.emplace_back();
    }
    /// Takes the call out of a slot that has one.
    [[nodiscard]] counted_ptr<detail::call_base> take_out(std::uint32_t index) {
        auto& s = slots[index];
        ++s.generation;
        free.push_back(index);
        return std::move(s.call);
    }
    /// Something needs workers: the first time they are started.
    void begin_work() {
        if (!start_workers && !is_visiting) [[likely]]
            return;
        const task_context::use none(nullptr); // they do not belong to the call that came first
        const bool serves_spaces = std::exchange(is_visiting, false);
        if (start_workers)
            std::exchange(start_workers, {})();
        else if (serves_spaces && dispatch.source() != nullptr)
            dispatch.source()->need();
    }
    /// A call as its submitter numbers it.
    [[nodiscard]] call_id id_of(const detail::call_base& call) const noexcept {
        if (call.nested) return static_cast<const detail::forwarded_call&>(call).id;
        return call_id({incarnation, call.number});
    }
    /// Takes all calls that wait for a worker out of their lines.
    std::vector<counted_ptr<detail::call_base>> take_waiting() {
        std::vector<counted_ptr<detail::call_base>> all;
        dispatch.take_all(all);
        actors.take_followers(all);
        return all;
    }
};

/// Arguments that are large: they become an object, and the call waits for that in its place. Where
/// there is no room they stay in the message. In runtime_objects.ipp.
struct runtime::large_arguments {
    [[nodiscard]] static bool are(runtime& self, const detail::call_base& call,
                                  std::size_t bytes) noexcept;
    /// A call that has just been encoded. It takes its place in the line of its actor.
    static void begin(runtime& self, const counted_ptr<detail::call_base>& call, byte_buffer body);
    /// The same of one that is in its place already.
    static void go_on(runtime& self, counted_ptr<detail::call_base> call, byte_buffer body);
    static task<void> make(runtime* self, counted_ptr<detail::call_base> call, byte_buffer body);
};

/// An answer that is an object, or has refs of objects in it. In runtime_objects.ipp.
struct runtime::object_replies {
    static void take(runtime& self, peer& from, detail::call_base& call, const net::frame_view& f);
    static void has_no_room(runtime& self, peer& from, detail::call_base& call, std::uint16_t flags,
                            byte_span body, const error& why);
    static task<void> bring(runtime* self, std::shared_ptr<peer> from,
                            counted_ptr<detail::call_base> call, std::uint16_t flags,
                            byte_buffer body, std::vector<objects::object_ptr> all,
                            std::vector<counted_ptr<detail::actor_queue>> lent);
    static void finish(runtime& self, peer& from, detail::call_base& call, const net::frame_view& f,
                       byte_span body, std::vector<objects::object_ptr> all);
    static void take_read(runtime& self, peer& from, detail::call_base& call, std::uint16_t flags,
                          byte_span body);
    static task<void> read_and_take(runtime* self, std::shared_ptr<peer> from,
                                    counted_ptr<detail::call_base> call, std::uint16_t flags,
                                    byte_buffer body, std::vector<objects::object_ptr> all);
    [[nodiscard]] static bool runs_again(runtime& self, detail::call_base& call, const error& why);
    /// Who runs a call cannot reach its objects.
    static void values_wanted(runtime& self, peer& from, slot_id id);
    static task<void> give_values(runtime* self, std::shared_ptr<peer> to, slot_id id,
                                  counted_ptr<detail::call_base> call);
    /// What came of that.
    static void values(runtime& self, peer& from, const net::frame_view& f);
};

/// What the options of a call say of its place. Functions of runtime, in runtime_dispatch.ipp.
struct runtime::followers {
    static void set_demand(runtime& self, detail::call_base& call, call_options how);
    [[nodiscard]] static bool take_location(runtime& self, detail::call_base& call, location& on);
    static void follow(runtime& self, detail::call_base& call, actor_id of);
};

} // namespace skein::rt
