// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of host_member.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/race.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/network.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/detail/host_member.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <csignal>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd::detail {

/// What the first host tells the others: where the group of ranks is, its secret, and the job.
using told_group = std::tuple<std::string, std::string, std::string>;

SKEIN_INLINE host_member::host_member(net::network& via, host_member_options options,
                                      host_ranks& ranks)
    : options_(std::move(options)), ranks_(ranks), client_(via, link_options(), wishes_) {}

SKEIN_INLINE elastic_client_options host_member::link_options() {
    auto link = options_.link;
    link.on_news = [this] { news_.set(); };
    return link;
}

SKEIN_INLINE task<int> host_member::run() {
    std::exception_ptr failure;
    int code = exit_code::failed;
    try {
        auto living = with_cancel(killing_.token(), live());
        code = co_await living;
    } catch (...) {
        failure = std::current_exception();
    }
    is_over_ = true;
    auto closing = shield(client_.close());
    co_await closing;
    if (failure) std::rethrow_exception(failure);
    co_return code;
}

SKEIN_INLINE task<int> host_member::live() {
    auto connecting = client_.connect();
    co_await connecting;
    for (;;) {
        auto asking = ask();
        auto in = co_await asking;
        if (!in) co_return exit_code::done; // the host has left
        broken_.reset();
        end_.reset();
        is_reported_ = false;
        code_ = 0;
        const auto hearing = in->losses.add([this](int, const error& why) {
            if (!broken_) broken_ = why;
            news_.set();
        });
        auto forming = form(in);
        auto share = co_await forming;
        if (!share && (share.error().code() == errc::mismatch ||
                       share.error().code() == errc::invalid_argument)) {
            auto failing = client_.fail(share.error());
            co_await failing;
            co_return exit_code::usage;
        }
        last_ = world_end::broken;
        if (!share) continue; // a host was lost meanwhile
        auto attempting = attempt(std::move(*share));
        auto end = co_await attempting;
        auto judging = judge(in, std::move(end));
        if (const auto code = co_await judging) co_return *code;
    }
}

SKEIN_INLINE task<host_member::place> host_member::ask() {
    if (next_) {
        auto asked = std::move(*next_);
        next_.reset();
        co_return std::move(asked).value();
    }
    auto asking = client_.next(last_, {});
    co_return co_await asking;
}

/// What a supervisor or the loss of another host wants of this one.
SKEIN_INLINE host_member::order host_member::ordered() const {
    if (wishes_.stop_signal != 0) return order::stop;
    if (broken_) return order::broken;
    return wishes_.change ? order::pause : order::none;
}

// ---- a world begins -----------------------------------------------------------------------------

SKEIN_INLINE task<result<host_share>> host_member::form(place in) {
    auto exchanging = as_result(exchange_offers(std::move(in)));
    auto share = co_await exchanging;
    if (!share && share.error().code() == errc::cancelled && killing_.requested())
        throw share.error();
    co_return share;
}

SKEIN_INLINE task<host_share> host_member::exchange_offers(place in) {
    auto mine = ranks_.offer();
    mine.job = job_;
    auto saying = in->client->exchange("hosts", wire::encode(mine));
    const auto said = co_await saying;
    std::vector<host_offer> offers;
    for (const auto& one : said) {
        auto offer = wire::decode<host_offer>(one);
        if (!offer) throw offer.error();
        offers.push_back(std::move(*offer));
    }
    const auto& now = in->begin.now;
    auto share = share_of(offers, in->begin.rank);
    share.attempt = static_cast<int>(now.generation) - 1;
    share.restarts = static_cast<int>(now.failures);
    told_group meeting;
    if (share.place == 0) {
        share.secret = net::token::generate();
        if (share.job.empty())
            share.job = fmt::format("{}-{:016x}", in->begin.job, system_random().next());
        auto at = ranks_.serve(share);
        at.host = share.master_host;
        meeting = told_group(net::to_string(at), share.secret.to_hex(), share.job);
    }
    auto telling = in->client->exchange("group", wire::encode(meeting));
    const auto told = co_await telling;
    const auto group = wire::decode<told_group>(told.front());
    if (!group) throw group.error();
    share.group = net::address::parse(std::get<0>(*group)).value();
    share.secret = net::token::from_hex(std::get<1>(*group)).value();
    share.job = job_ = std::get<2>(*group);
    say_world(*in, offers, share.world_size);
    co_return share;
}

SKEIN_INLINE void host_member::say_world(const elastic_place& in,
                                         const std::vector<host_offer>& offers, int ranks) {
    const auto& now = in.begin.now;
    const int hosts = static_cast<int>(offers.size()), failures = static_cast<int>(now.failures);
    const auto many = fmt::format("{} host{}, {} rank{}: {}", hosts, hosts == 1 ? "" : "s", ranks,
                                  ranks == 1 ? "" : "s", text_of(offers));
    std::string line;
    if (hosts_ == 0)
        line = "world of " + many;
    else
        line = fmt::format("{}; all ranks start again{}", now.why,
                           hosts == hosts_ ? "" : " on " + many);
    if (hosts_ != 0 && failures > restarts_)
        line += fmt::format(" (restart {} of {})", failures, options_.max_failures);
    hosts_ = hosts;
    if (options_.say) options_.say(line);
}

// ---- its ranks ----------------------------------------------------------------------------------

SKEIN_INLINE task<host_end> host_member::attempt(host_share share) {
    const int failed = share.restarts - std::exchange(restarts_, share.restarts);
    if (failed > 0) {
        const auto until =
            deadline_after(loop::current().now(), options_.times.pause(share.restarts));
        while (ordered() == order::none && loop::current().now() < until) {
            news_.reset();
            auto pausing = news_.wait_until(until);
            (void)co_await pausing;
        }
    }
    if (ordered() != order::none) co_return host_end();
    scope work;
    work_ = &work;
    work.spawn(run_ranks(std::move(share)));
    std::exception_ptr failure;
    try {
        auto watching = watch_ranks();
        co_await watching;
    } catch (...) {
        failure = std::current_exception();
    }
    if (failure) { // killed
        ranks_.kill();
        work.cancel();
        auto ended = shield(as_result(work.join()));
        (void)co_await ended;
        work_ = nullptr;
        std::rethrow_exception(failure);
    }
    if (end_->failure && !is_reported_ && ordered() == order::none) heard_failure(*end_);
    work_ = nullptr;
    auto joined = as_result(work.join()); // the next world may have been asked for
    const auto how = co_await joined;
    if (!how) throw how.error();
    co_return std::move(*end_);
}

/// Until they have ended, as they are ordered to meanwhile.
SKEIN_INLINE task<void> host_member::watch_ranks() {
    bool was_stopped = false, was_broken = false;
    while (!end_) {
        const auto what = ordered();
        if ((what == order::stop || what == order::pause) && !std::exchange(was_stopped, true))
            ranks_.stop(what == order::stop ? wishes_.stop_signal.load() : SIGTERM);
        if (what == order::broken && !is_reported_ && !std::exchange(was_broken, true))
            ranks_.break_off(*broken_);
        news_.reset();
        auto waiting = news_.wait();
        co_await waiting;
    }
}

SKEIN_INLINE task<void> host_member::run_ranks(host_share share) {
    if (killing_.requested()) co_return; // before anything was started
    auto running = shield(as_result(
        ranks_.run(std::move(share), [this](const host_end& how) { heard_failure(how); })));
    auto how = co_await running;
    if (how) {
        end_ = std::move(*how);
    } else {
        end_.emplace();
        end_->failure = how.error();
        end_->is_lasting = true;
    }
    news_.set();
}

SKEIN_INLINE void host_member::heard_failure(const host_end& how) {
    if (work_ == nullptr || ordered() == order::stop || std::exchange(is_reported_, true)) return;
    work_->spawn(report(how));
}

/// The others are told at once: this host's ranks may need a while to end.
SKEIN_INLINE task<void> host_member::report(host_end how) {
    if (how.is_echo) {
        const auto until =
            deadline_after(loop::current().now(), 2 * time_constants::lan().last_word);
        while (ordered() == order::none && loop::current().now() < until) {
            news_.reset();
            auto waiting = news_.wait_until(until);
            (void)co_await waiting;
        }
        news_.set(); // for who waits beside
        if (ordered() != order::none) co_return;
    }
    code_ = how.code;
    auto& why = *how.failure;
    if (!how.is_lasting) how.is_lasting = failures_.is_again(why);
    if (how.is_lasting) {
        is_over_ = true;
        auto failing = client_.fail(why);
        co_await failing;
        co_return;
    }
    auto asking = as_result(client_.next(world_end::broken, why.what()));
    next_ = co_await asking;
}

// ---- a world ends -------------------------------------------------------------------------------

/// The exit code, where it was the last one.
SKEIN_INLINE task<std::optional<int>> host_member::judge(place in, host_end end) {
    if (is_over_) co_return exit_code::failed;
    if (next_) co_return std::nullopt;
    const auto what = ordered();
    if (what == order::stop) {
        if (end.failure && end.failure->code() != errc::cancelled) {
            code_ = end.code;
            auto failing = client_.fail(*end.failure);
            co_await failing;
        } else {
            auto leaving = client_.leave();
            co_await leaving;
        }
        co_return 128 + wishes_.stop_signal;
    }
    last_ = what == order::pause ? world_end::paused : world_end::broken;
    if (what != order::none || end.failure) co_return std::nullopt;
    auto leaving = leave_together(std::move(in), end.is_elastic);
    co_return co_await leaving;
}

/// Waits until the ranks of all hosts have ended with 0: a failure elsewhere starts all again.
SKEIN_INLINE task<std::optional<int>> host_member::leave_together(place in, bool is_elastic) {
    auto waiting = as_result(race(all_done(in, is_elastic), until_ordered()));
    auto all = co_await waiting;
    if (!all && killing_.requested()) throw all.error();
    if (!all) co_return std::nullopt; // a host was lost, or one of its ranks
    if (!all->value) {
        if (ordered() == order::broken) co_return std::nullopt;
        if (ordered() == order::pause) {
            last_ = world_end::paused;
            co_return std::nullopt;
        }
    } else {
        for (std::size_t h = 0; h < all->value->size(); ++h) {
            const auto theirs = wire::decode<bool>((*all->value)[h]);
            if (!theirs) throw theirs.error();
            if (*theirs == is_elastic) continue;
            const auto& members = in->begin.now.members;
            auto failing = client_.fail(
                error(errc::mismatch,
                      fmt::format(
                          "the program of host {} trains with Elastic<...>, that of host "
                          "{} does not",
                          members[is_elastic ? static_cast<std::size_t>(in->begin.rank) : h].host,
                          members[is_elastic ? h : static_cast<std::size_t>(in->begin.rank)].host))
                    .with_hint("start the same program on all hosts"));
            co_await failing;
            co_return exit_code::usage;
        }
        is_elastic_ = is_elastic;
    }
    const int signal = wishes_.stop_signal;
    auto leaving = client_.leave();
    co_await leaving;
    co_return signal == 0 ? exit_code::done : 128 + signal;
}

SKEIN_INLINE task<std::optional<std::vector<byte_buffer>>> host_member::all_done(place in,
                                                                                 bool is_elastic) {
    auto exchanging = in->client->exchange("done", wire::encode(is_elastic));
    co_return co_await exchanging;
}

/// A moment later: that all are done may be on its way to all.
SKEIN_INLINE task<std::optional<std::vector<byte_buffer>>> host_member::until_ordered() {
    while (ordered() == order::none) {
        news_.reset();
        auto waiting = news_.wait();
        co_await waiting;
    }
    auto moment = sleep_for(time_constants::lan().last_word);
    co_await moment;
    co_return std::nullopt;
}

// ---- as a child of its keeper -------------------------------------------------------------------

struct host_members::life {
    life(net::network& via, host_member_options options, host_ranks& ranks)
        : member(via, std::move(options), ranks) {}
    host_member member;
    int code = 0;
    bool was_killed = false;
    std::string last_words;
    event ended;
};

class host_members::in_process final : public proc::child {
public:
    explicit in_process(std::shared_ptr<life> of) : life_(std::move(of)) {}
    ~in_process() override { kill(); }

    const std::string& name() const noexcept override { return name_; }
    std::int64_t pid() const noexcept override { return ::getpid(); }
    bool running() const noexcept override { return !life_->ended.is_set(); }
    task<proc::child_end> ended() override {
        auto waiting = life_->ended.wait();
        co_await waiting;
        proc::child_end how;
        constexpr int code_shift = 8; // as waitpid() has it
        how.status = proc::exit_status(life_->was_killed ? SIGKILL : life_->code << code_shift);
        how.last_words = life_->last_words;
        co_return how;
    }
    void signal(int) noexcept override {}
    void kill() noexcept override {
        if (!running()) return;
        life_->was_killed = true;
        life_->member.kill();
    }
    proc::process_usage usage() override { return {}; }
    std::unique_ptr<net::stream> take_stream() override { return nullptr; }
    task<std::size_t> read_output(bool, std::span<std::byte>) override { co_return 0; }

private:
    std::shared_ptr<life> life_;
    std::string name_ = "host";
};

SKEIN_INLINE host_members::host_members(net::network& via, host_ranks& ranks,
                                        host_member_options options)
    : network_(via), ranks_(ranks), options_(std::move(options)) {}
SKEIN_INLINE host_members::~host_members() = default;

SKEIN_INLINE task<std::unique_ptr<proc::child>> host_members::start(proc::child_options how) {
    const auto told = wire::decode<std::map<std::string, std::string>>(how.message);
    if (!told) throw told.error();
    auto options = options_;
    options.link.id = std::stoull(told->at(elastic_id_variable));
    options.link.pid = ::getpid();
    options.link.door = net::address::parse(told->at(elastic_variable)).value();
    options.link.secret = net::token::from_hex(told->at(token_variable)).value();
    last_ = std::make_shared<life>(network_, std::move(options), ranks_);
    lives_.spawn(live(last_));
    co_return std::make_unique<in_process>(last_);
}

SKEIN_INLINE task<void> host_members::live(std::shared_ptr<life> of) {
    auto running = as_result(of->member.run());
    const auto code = co_await running;
    of->code = code ? *code : exit_code::failed;
    if (!code) of->last_words = code.error().what();
    of->ended.set();
}

SKEIN_INLINE task<void> host_members::end() {
    if (last_) last_->member.kill();
    auto joined = shield(as_result(lives_.join()));
    (void)co_await joined;
}

SKEIN_INLINE bool host_members::are_elastic() const noexcept {
    return last_ && last_->member.is_elastic();
}
SKEIN_INLINE int host_members::code() const noexcept { return last_ ? last_->member.code() : 0; }

} // namespace skein::spmd::detail
