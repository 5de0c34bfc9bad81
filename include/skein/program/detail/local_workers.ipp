// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of program/local_workers.hpp: the driver's side, see local_worker_main.ipp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/socket_pair.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/detail/first_comer.hpp>
#include <skein/program/detail/local_groups.hpp>
#include <skein/program/detail/local_life.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::program {

namespace detail {

/// Failures of a start that would only come again.
[[nodiscard]] constexpr bool is_hopeless(errc code) noexcept {
    return code == errc::mismatch || code == errc::not_found || code == errc::permission_denied ||
           code == errc::too_large; // a limit of the driver's
}

} // namespace detail

class local_workers::pool {
public:
    pool(skein::loop& on, net::network& via, proc::children& where, rt::runtime& driver,
         local_workers_options how)
        : loop_(on), network_(via), children_(where), driver_(driver), how_(std::move(how)),
          secret_(net::token::generate(on.random())) {
        const int cores = children_.resources().cores;
        if (how_.count <= 0) how_.count = cores;
        cpus_ = static_cast<std::uint16_t>(std::max(1, cores / how_.count));
        if (how_.gpu_names.empty())
            how_.gpu_names = proc::gpus_to_offer(
                how_.offers.gpu ? std::optional(how_.offers.gpu) : std::nullopt, "the program");
        how_.offers.gpu = sched::amount(static_cast<int>(how_.gpu_names.size()));
        if (how_.offers.memory == 0) how_.offers.memory = children_.resources().memory_bytes;
        sched::resources total = how_.offers;
        total.cpu = sched::amount(std::max(cores, how_.count * cpus_));
        label_ = "node=" + driver_.name().host;
        const auto added = host_.add_place(sched::place_id(1), "this host", total, {label_});
        if (!added) throw added.error();
    }

    [[nodiscard]] int count() const noexcept { return how_.count; }
    [[nodiscard]] int places() const noexcept { return alive_; }

    task<void> serve() {
        scope all;
        alive_ = how_.count;
        driver_.expect_workers(static_cast<std::size_t>(alive_));
        for (int i = 1; i <= how_.count; ++i) all.spawn(keep_place(i));
        all.spawn(serve_demands());
        auto joined = all.join();
        co_await joined;
    }
    void stop() noexcept {
        if (!stopping_) stopped_at_ = loop_.now();
        stopping_ = true;
        changed_.set();
    }
    void want(const rt::worker_demand& what) {
        auto& own = demands_[what.demand];
        own.what = what;
        own.idle_since = loop_.now();
        changed_.set();
    }
    void want_group(const rt::worker_group& what) {
        groups_.want(what);
        changed_.set();
    }
    void drop_group(std::uint64_t number) {
        groups_.drop(number);
        changed_.set();
    }
    void end_now(const net::channel& worker) {
        for (auto* one : serving_)
            if (one->wire.get() == &worker) {
                one->is_unwanted = true;
                one->process->kill();
            }
    }
    bool want_beside(const net::channel& worker) {
        const auto found = std::find_if(serving_.begin(), serving_.end(), [&](const life* one) {
            return one->wire.get() == &worker;
        });
        if (found == serving_.end() || stopping_) return false;
        beside_.push_back((*found)->wire);
        changed_.set();
        return true;
    }
    void blocked(const net::channel& worker, bool on) {
        for (auto* one : own_) {
            if (one->wire.get() != &worker || !one->in_bundle) continue;
            if (on)
                (void)host_.wait_begin(one->in_bundle);
            else
                (void)host_.wait_end(one->in_bundle); // it goes on at once, whoever has its cores
            changed_.set();
        }
    }
    [[nodiscard]] const std::vector<pid_t>& pids() const noexcept { return pids_; }

private:
    using life = detail::local_life;
    using own_workers = detail::own_workers;

    /// One place for a worker: starts it, serves it, starts another when it dies.
    task<void> keep_place(int number) {
        proc::restart_rules rules;
        rules.most = 2;
        rules.factor = 1;
        rules.first_pause = how_.times.reconnect_first;
        rules.is_lasting = detail::is_hopeless;
        proc::restart_policy again(rules);
        while (!stopping_) {
            life one;
            one.name = fmt::format("worker-{}", number);
            one.cpus = cpus_;
            one.info.labels = {label_};
            auto lived = live(&one, &again);
            const auto failed = co_await lived;
            if (!failed) continue;
            if (stopping_ || failed->code() == errc::cancelled) break;
            auto told = why_not_started(&one, *failed);
            const auto why = co_await told;
            const auto reason = failed->text() + why.cause(); // of many workers: said once
            const auto pause = again.failed(*failed);
            if (!pause) {
                if (--alive_ == 0) driver_.give_up(why); // then the calls say it
                driver_.expect_workers(static_cast<std::size_t>(alive_));
                lend();
                if (alive_ != 0 && last_error_ != reason) logging::error("rt", why.what());
                last_error_ = reason;
                break;
            }
            if (last_warning_ != reason) logging::warn("rt", why.what());
            last_warning_ = reason;
            co_await sleep_for(*pause);
        }
    }

    /// Gives why it did not start; nothing if it did.
    task<std::optional<error>> live(life* one, proc::restart_policy* again) {
        std::optional<error> failed;
        scope watching, reading;
        try {
            auto started =
                with_timeout(children_.start(what_to_start(*one)), how_.times.start_timeout);
            one->process = co_await started;
            watching.spawn(watch_end(one));
            if (how_.print)
                reading.spawn(pass_lines_on(one->process.get(), one->name, &how_.print));
            auto met = meet(one);
            one->wire = co_await met;
            pids_.push_back(static_cast<pid_t>(one->process->pid()));
            serving_.push_back(one);
            watching.spawn(
                detail::watch_process(one->process.get(), one->wire, &driver_, how_.times));
            if (one->info.aside_of != nullptr)
                watching.spawn(detail::leave_when_idle(one->wire, &driver_, how_.times));
            again->worked();
            last_warning_ = last_error_ = {};
            auto served = driver_.serve_worker(
                one->wire, [this, one](const rt::peer&) { return exit_reason(one); }, one->page,
                one->info);
            co_await served;
        } catch (const error& e) {
            failed = e;
        }
        watching.cancel();
        auto watched = as_result(shield(watching.join())); // it refers to what is here
        (void)co_await watched;
        if (!one->process) co_return failed;
        std::erase(serving_, one);
        std::erase(pids_, static_cast<pid_t>(one->process->pid()));
        if (one->process->running()) {
            // It may still be loading and hear nobody.
            if (failed && (failed->code() == errc::cancelled || failed->code() == errc::timeout))
                one->process->signal(SIGTERM);
            auto gone = wait_exit(one->process.get());
            auto sure = shield(std::move(gone));
            (void)co_await sure;
        }
        auto read = end_reading(&reading);
        co_await read;
        co_return failed;
    }

    /// What it said last is printed, but nobody waits long for a terminal.
    task<void> end_reading(scope* reading) {
        auto last = shield(with_timeout(reading->join(), how_.times.suspect_after));
        auto read = as_result(std::move(last));
        (void)co_await read;
        reading->cancel();
        auto ended = as_result(shield(reading->join()));
        (void)co_await ended;
    }

    proc::child_options what_to_start(life& one) {
        rt::worker_order boot;
        boot.token = to_buffer(secret_.bytes());
        boot.cpus = one.cpus;
        boot.direct = how_.direct_calls;
        boot.is_read = static_cast<bool>(how_.print);
        boot.is_shared = !one.info.demand && one.cpus > 1;
        if (how_.over_tcp) {
            one.door = std::make_unique<net::acceptor>(network_,
                                                       net::address::tcp(net::own_loopback(), 0));
            boot.address = net::to_string(one.door->local());
        }
        proc::child_options how;
        how.role = rt::worker_role;
        how.name = one.name;
        how.socket = !how_.over_tcp;
        how.reads_output = boot.is_read;
        how.memory = proc::shared_memory::create(proc::claims::bytes);
        one.page = proc::claims(how.memory);
        if (how_.store) boot.store = one.join_store(*how_.store, how);
        how.message = wire::encode(boot);
        how.executable = how_.executable;
        how.argv = {how_.program, "--skein-worker=" + one.name};
        how.env = std::move(one.env);
        how.env.emplace_back(proc::gpus_variable, proc::gpus_by_name(one.gpus, how_.gpu_names));
        how.cwd = std::move(one.folder);
        how.threads = !one.info.demand ? 1 : one.cpus; // see use_threads()
        return how;
    }

    // ---- workers for one demand ----

    /// Starts workers as the host has room, and ends those that have had nothing to do for long.
    task<void> serve_demands() {
        scope lives;
        std::exception_ptr failure;
        try {
            while (!stopping_) {
                changed_.reset();
                for (const auto& [number, why] : groups_.ask()) driver_.group_refused(number, why);
                ask_for_workers();
                start_granted(lives);
                for (auto& of : std::exchange(beside_, {})) lives.spawn(live_beside(std::move(of)));
                const auto pause = retire_idle(lives);
                close_groups();
                auto woken = wait_change(pause);
                co_await woken;
            }
            auto joined = lives.join();
            co_await joined;
        } catch (...) {
            failure = std::current_exception();
            lives.cancel();
        }
        auto ended = as_result(shield(lives.join()));
        (void)co_await ended;
        if (failure) std::rethrow_exception(failure);
    }

    task<void> wait_change(duration at_most) {
        if (at_most == duration::max()) {
            auto changed = changed_.wait();
            co_await changed;
            co_return;
        }
        auto soon = changed_.wait_for(at_most);
        co_await soon;
    }

    /// One request per demand at a time: who has one more asks for the next.
    void ask_for_workers() {
        for (auto& [demand, own] : demands_) {
            if (own.asked || own.what.wanted <= own.alive) continue;
            sched::request r;
            r.demand = own.what.need;
            if (own.what.group != 0) {
                const auto where = groups_.where(own.what);
                if (!where) continue; // what waits for it fails
                r.where = *where;
            } else {
                r.where = sched::where_labelled(own.what.label);
            }
            r.tag = demand.value();
            r.for_life = true;
            r.fail_if_infeasible = true;
            if (const auto good = proc::check_gpus_together(r.demand.gpu, how_.gpu_names); !good) {
                driver_.refuse_demand(demand, good.error());
                continue;
            }
            const auto asked = host_.submit(r);
            if (asked) {
                own.asked = *asked;
            } else {
                driver_.refuse_demand(
                    demand, proc::with_gpu_reason(asked.error(), r.demand.gpu, how_.gpu_names));
            }
        }
    }

    void start_granted(scope& lives) {
        std::vector<sched::grant> granted;
        std::vector<sched::notice> notices;
        host_.take_grants(granted);
        host_.take_notices(notices);
        for (const auto& n : notices) {
            if (n.what == sched::notice::kind::group_placed) {
                lives.spawn(hold_group(n.tag));
                continue;
            }
            const auto found = demands_.find(detail::demand_of(n.tag));
            if (found == demands_.end() || n.what != sched::notice::kind::refused) continue;
            found->second.asked = {};
            driver_.refuse_demand(found->first, n.why);
        }
        for (const auto& g : granted) {
            if (g.resumed) continue; // see blocked()
            auto& own = demands_.at(detail::demand_of(g.tag));
            own.asked = {};
            ++own.alive;
            changed_.set(); // there may be room for one more
            lives.spawn(live_for(detail::demand_of(g.tag), g));
        }
    }

    /// Its cores are the other workers' no more; it can be used when what runs there has ended.
    task<void> hold_group(std::uint64_t number) {
        auto* const placed = groups_.find(number);
        if (placed == nullptr || placed->placed) co_return;
        placed->placed = true;
        lent_ += placed->cores;
        lend();
        auto lent = driver_.lent_is_free();
        co_await lent;
        const auto* const still = groups_.find(number);
        if (still != nullptr && !still->closing) driver_.group_placed(number, true);
    }
    /// A place that was given up lends nothing: what a waiting task leaves goes to the others.
    void lend() {
        driver_.lend(std::min<std::uint32_t>(lent_, static_cast<std::uint32_t>(alive_) * cpus_));
    }
    void close_groups() {
        for (const auto& g : groups_.close(demands_)) {
            if (g.placed) lent_ -= g.cores;
            lend();
            changed_.set();
            driver_.group_gone(g.what.number);
        }
    }

    /// Gives when to look again.
    duration retire_idle(scope& lives) {
        const bool is_short =
            groups_.any_waits() || std::any_of(demands_.begin(), demands_.end(),
                                               [](const auto& k) { return bool(k.second.asked); });
        auto next = duration::max();
        for (auto& [demand, own] : demands_) {
            if (own.asked && own.what.wanted <= own.alive)
                (void)host_.cancel(std::exchange(own.asked, {}));
            if (own.alive <= own.what.wanted || own.leaving) continue;
            const auto* const group = groups_.find(own.what.group);
            const bool at_once = is_short || (group != nullptr && group->closing);
            const auto due = at_once ? own.idle_since : own.idle_since + how_.times.idle_worker;
            if (loop_.now() < due) {
                next = std::min<duration>(next, due - loop_.now());
                continue;
            }
            const auto idle = std::find_if(own_.begin(), own_.end(), [&, n = demand](life* one) {
                return one->info.demand == n && one->wire && driver_.is_idle(one->wire);
            });
            if (idle == own_.end()) { // they load, or do what nobody waits for any more
                next = std::min<duration>(next, how_.times.idle_worker);
                continue;
            }
            own.leaving = true;
            lives.spawn(retire(demand, (*idle)->wire));
        }
        return next;
    }
    task<void> retire(sched::demand_id demand, std::shared_ptr<net::connection> wire) {
        auto asked = as_result(driver_.retire(std::move(wire)));
        const auto left = co_await asked;
        if (!left || !left->empty())
            co_await sleep_for(how_.times.idle_worker); // it is ending, or has actors
        if (const auto own = demands_.find(demand); own != demands_.end())
            own->second.leaving = false; // else its group has gone
        changed_.set();
    }

    /// A worker that holds what it was granted, until nothing waits for it any more.
    task<void> live_for(sched::demand_id demand, sched::grant g) {
        auto& own = demands_.at(demand);
        auto cores = whole_cores(own.what.need.cpu);
        life one;
        one.name = fmt::format("worker-{}", how_.count + ++last_own_);
        one.cpus = static_cast<std::uint16_t>(std::max<std::uint32_t>(cores, 1));
        if (own.what.group != 0) {
            cores = 0; // those of the group are lent already
            one.in_bundle = g.id;
        }
        one.info = {demand, {label_}};
        one.env = own.what.env.variables;
        one.folder = own.what.env.folder;
        one.gpus = g.gpus;
        own_.push_back(&one);
        lent_ += cores;
        std::optional<error> failed;
        try {
            lend();
            auto lent = driver_.lent_is_free();
            co_await lent;
            proc::restart_policy once{proc::restart_rules{}};
            auto lived = live(&one, &once);
            failed = co_await lived;
            if (failed && failed->code() != errc::cancelled && !stopping_) {
                auto told = why_not_started(&one, *failed);
                failed = co_await told;
            }
        } catch (const error& e) {
            failed = e;
        }
        std::erase(own_, &one);
        lent_ -= cores;
        lend();
        (void)host_.release(g.id);
        --own.alive;
        if (!failed) {
            own.failures = 0;
        } else if (!stopping_ && failed->code() != errc::cancelled) {
            constexpr int most_failures = 3;
            if (++own.failures >= most_failures || detail::is_hopeless(failed->code())) {
                own.failures = 0;
                driver_.refuse_demand(demand, *failed);
            } else {
                logging::warn("rt", failed->what());
                co_await sleep_for(how_.times.reconnect_first);
            }
        }
        changed_.set();
    }
    /// The second process of a worker, for plain tasks while others wait in the first.
    task<void> live_beside(std::shared_ptr<net::connection> of) {
        life one;
        one.name = fmt::format("worker-{}", how_.count + ++last_own_);
        one.cpus = cpus_;
        one.info.labels = {label_};
        one.info.aside_of = of.get();
        proc::restart_policy once{proc::restart_rules{}};
        auto lived = live(&one, &once);
        const auto failed = co_await lived;
        if (!failed) co_return;
        if (!stopping_ && failed->code() != errc::cancelled) {
            auto told = why_not_started(&one, *failed);
            const auto why = co_await told;
            logging::warn("rt", why.what());
        }
        driver_.refuse_aside(*of);
    }
    /// Shakes hands with a process that has been started.
    task<std::shared_ptr<net::connection>> meet(life* one) {
        rt::worker_link ours{secret_};
        ours.in_memory = !one->door;
        ours.shares_memory = true;
        ours.start = how_.times.start_timeout;
        auto link = worker_connection(driver_, ours);
        link.bounds.close_deadline = how_.times.shutdown_grace; // part of it, see patience()
        auto shaken = one->door
                          ? with_timeout(detail::first_comer(one->door.get(), std::move(link)),
                                         how_.times.start_timeout)
                          : net::connection::accept(one->process->take_stream(), std::move(link));
        co_return co_await shaken;
    }
    /// Ends the link with the process: its own child may hold the socket. What was said is read.
    task<void> watch_end(life* one) {
        auto ended = one->process->ended(); // the end of a socket pair with it
        (void)co_await ended;
        one->store.has_ended();
        if (!one->door) co_return;
        one->door->close();                             // it never came
        co_await sleep_for(how_.times.reconnect_first); // TCP: its bytes are on the way
        if (one->wire) one->wire->abort(error(errc::reset, "the process has ended"));
    }

    /// "worker-1 did not start: ...", with what it said last, or how it ended.
    task<error> why_not_started(life* one, error failed) {
        error why(failed.code(), fmt::format("{} did not start: {}", one->name, failed.text()));
        std::string cause = failed.cause();
        if (one->process && !one->process->running()) {
            auto ended = one->process->ended();
            const auto end = co_await ended;
            cause = end.last_words.empty() ? end.status.describe() : end.last_words;
        }
        why.with_cause(std::move(cause));
        if (!failed.hint().empty()) why.with_hint(failed.hint());
        co_return why;
    }

    /// What is left of the grace that all of the end shares, the goodbye over the link included.
    [[nodiscard]] duration patience(duration most) const {
        if (!stopping_) return most;
        const duration left = stopped_at_ + how_.times.shutdown_grace - loop_.now();
        return std::clamp(left, duration::zero(), most);
    }

    /// How a worker ended; told, if nobody wanted that. Its calls say themselves what they do.
    task<std::string> exit_reason(life* one) {
        auto leaving = wait_exit(one->process.get());
        const auto end = co_await leaving;
        if (!stopping_ && !one->is_unwanted && !end.status.success()) detail::say_lost(*one, end);
        co_return end.status.describe();
    }

    /// Waits for the end of a process whose link has ended; asks, then insists.
    task<proc::child_end> wait_exit(proc::child* process) {
        const auto first =
            patience(stopping_ ? how_.times.exit_grace_stopping : how_.times.exit_grace);
        const auto all = patience(first + how_.times.shutdown_grace);
        auto stopped = proc::stop(*process, first, all - first);
        co_return co_await stopped;
    }

    skein::loop& loop_;
    net::network& network_;
    proc::children& children_;
    rt::runtime& driver_;
    local_workers_options how_;
    net::token secret_;
    std::uint16_t cpus_ = 1;
    std::vector<pid_t> pids_;
    std::vector<life*> serving_; ///< whose process is there and connected
    std::vector<std::shared_ptr<net::connection>>
        beside_; ///< workers that are to have a second one
    int alive_ = 0;
    bool stopping_ = false;
    time_point stopped_at_{};
    std::string last_warning_, last_error_;
    std::string label_; ///< of this host
    /// What it has for workers of one demand.
    sched::scheduler host_{sched::scheduler_options{.place_is = "host"}};
    detail::local_groups groups_{host_};
    std::map<sched::demand_id, own_workers> demands_;
    std::vector<life*> own_; ///< that run
    std::uint32_t lent_ = 0; ///< cores
    int last_own_ = 0;
    event changed_;
};

SKEIN_INLINE local_workers::local_workers(skein::loop& on, net::network& via, proc::children& where,
                                          rt::runtime& driver, local_workers_options how)
    : pool_(std::make_unique<pool>(on, via, where, driver, std::move(how))) {}
SKEIN_INLINE local_workers::~local_workers() = default;
SKEIN_INLINE int local_workers::count() const noexcept { return pool_->count(); }
SKEIN_INLINE int local_workers::places() const noexcept { return pool_->places(); }
SKEIN_INLINE task<void> local_workers::serve() { return pool_->serve(); }
SKEIN_INLINE void local_workers::stop() noexcept { pool_->stop(); }
SKEIN_INLINE void local_workers::want(const rt::worker_demand& what) { pool_->want(what); }
SKEIN_INLINE void local_workers::blocked(const net::channel& worker, bool on) {
    pool_->blocked(worker, on);
}
SKEIN_INLINE bool local_workers::want_beside(const net::channel& worker) {
    return pool_->want_beside(worker);
}
SKEIN_INLINE void local_workers::end_now(const net::channel& worker) { pool_->end_now(worker); }
SKEIN_INLINE void local_workers::want_group(const rt::worker_group& what) {
    pool_->want_group(what);
}
SKEIN_INLINE void local_workers::drop_group(std::uint64_t number) { pool_->drop_group(number); }
SKEIN_INLINE const std::vector<pid_t>& local_workers::pids() const noexcept {
    return pool_->pids();
}

} // namespace skein::program
