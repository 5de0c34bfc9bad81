// SPDX-License-Identifier: Apache-2.0
#pragma once
// Being the coordinator, or following it, and changing from one to the other.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/race.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/network.hpp>
#include <skein/spmd/detail/elastic_parts.hpp>
#include <skein/spmd/detail/keeper_links.hpp>
#include <skein/spmd/memory_register.hpp>

#include <csignal>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

namespace detail {

/// Hears of this host's workers, and tells whoever is the coordinator now.
class listener_switch final : public keeper_listener {
public:
    keeper_listener* to = nullptr;
    void worker_started(std::uint64_t worker, std::int64_t pid) override {
        if (to != nullptr) to->worker_started(worker, pid);
    }
    void worker_place(std::uint64_t worker, const proc::place_news& news) override {
        if (to != nullptr) to->worker_place(worker, news);
    }
    void worker_said(std::uint64_t worker, std::uint16_t kind, byte_span body) override {
        if (to != nullptr) to->worker_said(worker, kind, body);
    }
    void worker_ended(std::uint64_t worker, const worker_end& how) override {
        if (to != nullptr) to->worker_ended(worker, how);
    }
};

} // namespace detail

class elastic_host::impl {
public:
    impl(net::network& via, proc::children& on, view_register* truth, elastic_host_options options)
        : options_(std::move(options)), network_(via), register_(truth),
          keeper_(via, on, options_.keeper), follower_(keeper_, options_) {}

    task<supervisor_outcome> run() {
        scope beside;
        beside.spawn(keep());
        beside.spawn(insist());
        std::exception_ptr failure;
        supervisor_outcome how;
        try {
            auto living = register_ != nullptr ? live_by_register() : live_by_endpoint();
            how = co_await living;
        } catch (...) {
            failure = std::current_exception();
        }
        heard_by_.to = nullptr;
        beside.cancel(); // the workers that still run are killed
        auto joined = shield(as_result(beside.join()));
        (void)co_await joined;
        if (failure) how = end_of_training(failure);
        if (how.stop_signal == 0) how.stop_signal = signal_;
        co_return how;
    }

    void stop(int signal) {
        if (signal_ == 0) signal_ = signal;
        leave("its host is told to stop");
    }
    void kill_all() {
        keeper_.kill_all();
        kill_now_.set();
        if (coordinator_) coordinator_->kill_all();
    }
    std::string scale(int workers) {
        if (door_ == nullptr)
            throw error(errc::not_found, "the training has not begun yet, or is over");
        return detail::text_of(detail::scale(*door_, {options_.job, workers}));
    }
    void leave(const std::string& why) {
        if (!leaves_) leaves_ = why;
        if (signal_ == 0) signal_ = SIGTERM;
        leave_now_.set();
        if (coordinator_) leave_as_coordinator();
        follower_.leave(why);
    }

private:
    /// A register that says no: before the first view that is the user's mistake, and thrown;
    /// behind it a training is lost.
    [[nodiscard]] supervisor_outcome end_of_training(const std::exception_ptr& failure) const {
        const bool has_trained = known_.generation > 0 || keeper_.newest().generation > 0;
        if (register_ == nullptr || !has_trained) std::rethrow_exception(failure);
        supervisor_outcome how;
        try {
            std::rethrow_exception(failure);
        } catch (const error& why) {
            if (why.code() == errc::cancelled || why.code() == errc::usage) throw;
            how.failure = error(errc::peer_lost, "the views of the job have no place any more")
                              .with_cause(why.what());
        }
        return how;
    }
    task<void> keep() {
        auto keeping = as_result(keeper_.run(heard_by_));
        const auto kept = co_await keeping;
        if (!kept && kept.error().code() != errc::cancelled) kill_all();
    }
    /// A host that leaves is gone in the end, also where the others are too few to go on.
    task<void> insist() {
        auto waiting = leave_now_.wait();
        co_await waiting;
        auto grace = sleep_for(options_.coordinator.times.stop_grace);
        co_await grace;
        kill_all();
    }
    void say(const std::string& text) const {
        if (options_.say) options_.say(text);
    }

    // ---- the coordinator ------------------------------------------------------------------------

    /// Another host may go on, if there is one and a register that does not end with this process.
    void leave_as_coordinator() {
        if (register_ != nullptr && door_ && !door_->there.empty())
            coordinator_->drain(keeper_, *leaves_);
        else
            coordinator_->stop(signal_);
    }

    [[nodiscard]] coordinator_options coordinator_of(const net::address& at) {
        auto o = options_.coordinator;
        o.id = keeper_.id();
        o.address = net::to_string(at);
        if (!o.groups.host.empty()) return o; // workers of other hosts, and the door of this one
        o.groups = at.kind == net::scheme::tcp ? net::address::any(0)
                                               : net::address::make(at.kind, at.host, 0);
        if (at.kind == net::scheme::tcp) {
            if (at.is_loopback())
                o.groups = net::address::tcp(at.host, 0);
            else
                o.advertise = at.host;
        }
        return o;
    }

    [[nodiscard]] coordinator_options with_what_is_known(coordinator_options how) {
        learn(keeper_.newest());
        if (register_ == nullptr) return how;
        how.known = known_;
        // Others find in that time that their coordinator is gone, and come.
        how.first_after = options_.alive.dead_after + options_.coordinator.times.take_over;
        return how;
    }
    /// This host has been the coordinator. Throws what is no reason for another one.
    void step_back(const std::exception_ptr& failure) {
        if (register_says_no_) throw *register_says_no_;
        if (!resign_.requested()) {
            if (register_ == nullptr || !was_overtaken(failure)) std::rethrow_exception(failure);
            leader_ = {}; // it is asked who the coordinator is
        }
        resign_ = cancel_source();
    }

    /// Nothing: another one is the coordinator by now.
    task<std::optional<supervisor_outcome>> coordinate(net::endpoint* listening,
                                                       view_register* truth, net::address at) {
        elastic_coordinator job(network_, *truth, with_what_is_known(coordinator_of(at)));
        auto claiming = job.claim();
        const auto who = co_await claiming;
        if (who.id != keeper_.id()) {
            leader_ = who;
            co_return std::nullopt;
        }
        detail::keeper_door door{&job, &options_};
        if (register_ != nullptr) door.on_newer = [this](const view& now) { begin_again_at(now); };
        coordinator_ = &job;
        door_ = &door;
        heard_by_.to = &job;
        const auto kept = job.add(keeper_, keeper_.running());
        for (const auto& one : keeper_.running())
            if (std::find(kept.begin(), kept.end(), one.id) == kept.end()) keeper_.kill(one.id);
        keeper_.hold(false);
        if (leaves_) leave_as_coordinator();
        scope serving;
        serving.spawn(serve(listening, &door));
        serving.spawn(see_hosts_leave(&job, &door));
        if (register_ != nullptr) serving.spawn(step_down_when_replaced());
        std::exception_ptr failure;
        supervisor_outcome how;
        try {
            auto running = with_cancel(resign_.token(), job.run());
            how = co_await running;
        } catch (...) {
            failure = std::current_exception();
        }
        if (!failure) {
            auto telling = tell_over(&door, &how);
            co_await telling;
        }
        heard_by_.to = nullptr;
        coordinator_ = nullptr;
        serving.cancel();
        auto joined = shield(as_result(serving.join()));
        (void)co_await joined;
        door_ = nullptr;
        if (!failure) co_return how;
        learn(job.newest());
        step_back(failure);
        if (!is_empty_and_leaves_) {
            keeper_.hold(true); // another one is the coordinator
            co_return std::nullopt;
        }
        auto resigning = as_result(register_->resign());
        (void)co_await resigning;
        supervisor_outcome left;
        left.stop_signal = signal_;
        co_return left;
    }
    static task<void> serve(net::endpoint* listening, detail::keeper_door* door) {
        auto serving = listening->serve([door](std::shared_ptr<net::connection> link) {
            return detail::serve_keeper(door, std::move(link));
        });
        co_await serving;
    }
    /// A view that is known outlives what the register holds: a disk that was lost, keys that were
    /// deleted.
    void learn(const view& now) {
        if (now.generation > known_.generation) known_ = now;
    }
    /// Another host knows more than this coordinator and its register: it begins anew, from there.
    void begin_again_at(const view& now) {
        say(fmt::format("another host knows view {}, the register held view {}: the job goes on "
                        "from there",
                        now.generation, coordinator_->newest().generation));
        learn(now);
        leader_ = {};
        resign_.request();
    }
    /// Another coordinator has made a view.
    [[nodiscard]] static bool was_overtaken(const std::exception_ptr& failure) {
        try {
            std::rethrow_exception(failure);
        } catch (const error& why) {
            return why.code() == errc::aborted;
        } catch (...) {
            return false;
        }
    }
    /// What ends the links of all others, each with how the job has ended.
    static task<void> tell_over(detail::keeper_door* door, const supervisor_outcome* how) {
        const error why = how->failure ? *how->failure : error(errc::closed, detail::done_in_order);
        std::vector<net::requests::handle> ways;
        for (auto* one : door->there) {
            one->say_over(!how->failure, how->stop_signal, why);
            ways.push_back(one->way);
        }
        for (const auto& way : ways) {
            auto closed = shield(way->close());
            co_await closed;
        }
    }
    /// Hosts that have asked to leave are told when their last worker has.
    task<void> see_hosts_leave(elastic_coordinator* job, detail::keeper_door* door) {
        for (;;) {
            auto pause = sleep_for(time_constants::lan().last_word);
            co_await pause;
            for (auto* one : door->there)
                if (job->has_drained(*one))
                    one->say_over(true, SIGTERM, error(errc::closed, "the host has left"));
            if (job->has_drained(keeper_)) {
                is_empty_and_leaves_ = true;
                resign_.request();
                co_return;
            }
        }
    }
    /// A register that says no for good is the end of the job: no view could follow.
    task<void> step_down_when_replaced() {
        auto replacing = as_result(until_replaced());
        const auto by = co_await replacing;
        if (!by && by.error().code() == errc::cancelled) throw by.error();
        if (by)
            leader_ = *by;
        else
            register_says_no_ = by.error();
        resign_.request();
    }
    task<coordinator_place> until_replaced() {
        auto reading = register_->claim(coordinator_place{keeper_.id(), leader_address_});
        auto known = co_await reading;
        while (known.id == keeper_.id()) {
            auto watching = register_->watch_coordinator(known);
            known = co_await watching;
        }
        co_return known;
    }

    // ---- without a register of its own ----------------------------------------------------------

    task<supervisor_outcome> live_by_endpoint() {
        std::unique_ptr<net::endpoint> listening;
        try {
            const auto& at = options_.endpoint;
            // A kernel says whose address it is, the simulated network does not.
            if (at.kind == net::scheme::sim && at.host != options_.host)
                throw error(errc::not_found, "another host's address");
            listening = std::make_unique<net::endpoint>(network_, at, detail::host_link(options_));
        } catch (const error& why) {
            // Not ours, or another supervisor of this host is there already.
            if (why.code() != errc::not_found && why.code() != errc::already_exists) throw;
        }
        if (!listening) {
            auto following = follow_endpoint();
            co_return co_await following;
        }
        auto at = options_.endpoint;
        at.port = listening->local().port;
        if (options_.on_listening) options_.on_listening(at);
        memory_register truth;
        auto coordinating = coordinate(listening.get(), &truth, at);
        auto how = co_await coordinating;
        co_return std::move(*how);
    }

    task<supervisor_outcome> follow_endpoint() {
        bool was_there = false;
        auto until = deadline_after(loop::current().now(), options_.meet_limit);
        std::optional<error> last;
        heard_by_.to = &follower_;
        while (!last || loop::current().now() < until) {
            auto following = as_result(follow_or_kill(options_.endpoint));
            auto how = co_await following;
            if (how && how->is_over) co_return outcome_of(*how);
            if (how) {
                last = how->why ? *how->why : error(errc::closed, "it has closed the link");
                was_there = true;
                until = deadline_after(loop::current().now(), options_.back_limit);
                keeper_.hold(true);
                say(fmt::format("the coordinator at {} is lost: {}",
                                net::to_string(options_.endpoint), last->what()));
            } else {
                last = how.error();
                if (!net::reconnect_policy::is_no_refusal(last->code())) throw *last;
            }
            if (leaves_) co_return left();
            auto pause = sleep_for(time_constants::lan().join_most);
            co_await pause;
        }
        throw nobody_there(was_there, *last);
    }
    [[nodiscard]] error nobody_there(bool was_there, const error& last) const {
        const auto at = net::to_string(options_.endpoint);
        if (was_there)
            return error(errc::peer_lost, fmt::format("the coordinator at {} is gone", at))
                .with_cause(last.what())
                .with_hint("start the job again: it goes on from its last checkpoint, if it has "
                           "one; with --rdzv-backend etcd another host takes over");
        return error(errc::timeout, fmt::format("nobody is at {} for {:.3g} s", at,
                                                to_seconds(options_.meet_limit)))
            .with_cause(last.what())
            .with_hint("start skein run on that host, too");
    }
    /// A second signal, and a leave while nobody is there, end it.
    task<detail::followed> follow_or_kill(net::address at) {
        auto following = follower_.follow(&network_, std::move(at));
        auto killed = until_killed();
        auto first = race(std::move(following), std::move(killed));
        auto how = co_await first;
        co_return std::move(how.value);
    }
    task<detail::followed> until_killed() {
        auto waiting = kill_now_.wait();
        co_await waiting;
        detail::followed how;
        how.is_over = true;
        how.why = error(errc::cancelled, "the workers of this host were killed");
        co_return how;
    }
    [[nodiscard]] supervisor_outcome outcome_of(const detail::followed& how) const {
        supervisor_outcome out;
        out.failure = how.why;
        out.stop_signal = signal_ != 0 ? signal_ : how.stop_signal;
        return out;
    }
    [[nodiscard]] supervisor_outcome left() const {
        supervisor_outcome out;
        out.stop_signal = signal_;
        return out;
    }

    // ---- with one -------------------------------------------------------------------------------

    task<supervisor_outcome> live_by_register() {
        for (;;) {
            auto at = net::address::any(0);
            if (options_.endpoint.kind == net::scheme::sim)
                at = net::address::sim(options_.host, 0);
            else if (net::address::tcp(options_.host, 0).is_loopback())
                at = net::address::tcp(options_.host, 0);
            net::endpoint listening(network_, at, detail::host_link(options_));
            at = listening.local();
            at.host = options_.host;
            leader_address_ = net::to_string(at);
            if (options_.on_listening) options_.on_listening(at);
            auto coordinating = coordinate(&listening, register_, at);
            auto how = co_await coordinating;
            if (how) co_return std::move(*how);
            auto following = follow_leader();
            auto followed = co_await following;
            if (followed) co_return std::move(*followed);
        }
    }
    /// Nothing: there is no coordinator, or another one.
    task<std::optional<supervisor_outcome>> follow_leader() {
        heard_by_.to = &follower_;
        auto alone_since = loop::current().now();
        for (;;) {
            if (leader_.id == 0 || leader_.id == keeper_.id()) co_return std::nullopt;
            const auto at = net::address::parse(leader_.address);
            if (!at) throw at.error();
            auto following = as_result(follow_or_kill(*at));
            auto how = co_await following;
            if (how && how->is_over) co_return outcome_of(*how);
            if (!how && !net::reconnect_policy::is_no_refusal(how.error().code()))
                throw how.error();
            keeper_.hold(true);
            if (leaves_) co_return left();
            if (how) alone_since = loop::current().now();
            end_those_that_wait(alone_since);
            auto ending = end_those_left_behind();
            co_await ending;
            // It may be gone, or only not reachable from here.
            auto pausing =
                as_result(with_timeout(next_leader(), time_span(time_constants::lan().join_most)));
            const auto looked = co_await pausing;
            if (!looked && looked.error().code() != errc::timeout) throw looked.error();
        }
    }
    /// Neither the coordinator nor a word of the register for as long as a state is kept for: what
    /// these workers hold is nobody's use any more.
    void end_those_that_wait(time_point since) {
        const auto limit = options_.coordinator.times.pause_limit;
        if (keeper_.running().empty() || loop::current().now() < deadline_after(since, limit))
            return;
        say(fmt::format("the coordinator at {} was not reached for {:.3g} s: the workers of this "
                        "host are ended",
                        leader_.address, to_seconds(limit)));
        keeper_.kill_all();
    }
    /// Others go on without workers of this host: those would be killed as soon as the coordinator
    /// is reached, and hold until then what somebody may need.
    task<void> end_those_left_behind() {
        if (keeper_.running().empty()) co_return;
        auto reading =
            as_result(with_timeout(register_->read(), time_span(time_constants::lan().join_most)));
        const auto now = co_await reading;
        if (!now || now->generation <= keeper_.newest().generation) co_return;
        for (const auto& one : keeper_.running()) {
            const bool stays =
                std::any_of(now->members.begin(), now->members.end(), [&](const view_member& m) {
                    return m.id == one.id && m.keeper == one.keeper && m.pid == one.pid;
                });
            if (stays) continue;
            say(fmt::format("worker {} (pid {}) is ended: view {} has gone on without it", one.id,
                            one.pid, now->generation));
            keeper_.kill(one.id);
        }
    }
    task<void> next_leader() {
        auto watching = register_->watch_coordinator(leader_);
        leader_ = co_await watching;
    }

    const elastic_host_options options_;
    net::network& network_;
    view_register* register_; ///< null: in the memory of the one at the endpoint
    local_keeper keeper_;
    detail::follower follower_;
    detail::listener_switch heard_by_;
    elastic_coordinator* coordinator_ = nullptr; ///< while this host is
    detail::keeper_door* door_ = nullptr;
    coordinator_place leader_;
    view known_; ///< the newest that was heard of
    std::string leader_address_;
    cancel_source resign_;
    std::optional<error> register_says_no_;
    bool is_empty_and_leaves_ = false;
    std::optional<std::string> leaves_;
    int signal_ = 0;
    event leave_now_, kill_now_;
};

SKEIN_INLINE elastic_host::elastic_host(net::network& via, proc::children& on, view_register* truth,
                                        elastic_host_options options)
    : impl_(std::make_unique<impl>(via, on, truth, std::move(options))) {}
SKEIN_INLINE elastic_host::~elastic_host() = default;
SKEIN_INLINE task<supervisor_outcome> elastic_host::run() { return impl_->run(); }
SKEIN_INLINE void elastic_host::stop(int signal) { impl_->stop(signal); }
SKEIN_INLINE void elastic_host::kill_all() { impl_->kill_all(); }
SKEIN_INLINE std::string elastic_host::scale(int workers) { return impl_->scale(workers); }
SKEIN_INLINE void elastic_host::leave(const std::string& why) { impl_->leave(why); }

} // namespace skein::spmd
