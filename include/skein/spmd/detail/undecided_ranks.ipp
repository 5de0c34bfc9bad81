// SPDX-License-Identifier: Apache-2.0
#pragma once
// Processes that two supervisors have in turn: each holds a child that stands for one.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/race.hpp>
#include <skein/core/random.hpp>
#include <skein/net/address.hpp>
#include <skein/net/stream.hpp>
#include <skein/spmd/detail/supervisor.ipp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/encode.hpp>

#include <array>
#include <map>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd {

/// A process, and what it asks.
struct undecided_ranks::rank {
    std::shared_ptr<proc::child> process;
    std::unique_ptr<net::stream> link;
    byte_buffer answer; ///< once somebody knows it: as a fixed rank from the start on
    event adopted;
    bool is_adopted = false;
};

/// What a supervisor holds of a process. It ends well for who waits for it when it is handed over.
class undecided_ranks::shared_rank final : public proc::child {
public:
    /// `handed`: null for the last one that holds it.
    shared_rank(std::shared_ptr<proc::child> process, event* handed)
        : process_(std::move(process)), handed_(handed) {}

    const std::string& name() const noexcept override { return process_->name(); }
    std::int64_t pid() const noexcept override { return process_->pid(); }
    bool running() const noexcept override { return !is_handed() && process_->running(); }
    task<proc::child_end> ended() override {
        if (handed_ != nullptr && !is_handed()) {
            auto either = race(has_ended(process_.get()), is_set(handed_));
            (void)co_await either;
        }
        proc::child_end well;
        if (is_handed()) co_return well;
        auto ended = process_->ended();
        co_return co_await ended;
    }
    void signal(int number) noexcept override {
        if (!is_handed()) process_->signal(number);
    }
    void signal_group(int number) noexcept override {
        if (!is_handed()) process_->signal_group(number);
    }
    void kill() noexcept override {
        if (!is_handed()) process_->kill();
    }
    proc::process_usage usage() override { return process_->usage(); }
    proc::process_look look() override { return process_->look(); }
    std::unique_ptr<net::stream> take_stream() override { return nullptr; }
    task<std::size_t> read_output(bool is_error, std::span<std::byte> into) override {
        return process_->read_output(is_error, into);
    }

private:
    [[nodiscard]] bool is_handed() const noexcept {
        return handed_ != nullptr && handed_->is_set() && process_->running();
    }
    static task<void> has_ended(proc::child* which) {
        auto ended = which->ended();
        (void)co_await ended;
    }
    static task<void> is_set(event* which) {
        auto waiting = which->wait();
        co_await waiting;
    }

    std::shared_ptr<proc::child> process_;
    event* handed_;
};

SKEIN_INLINE undecided_ranks::undecided_ranks(proc::children& on, undecided_options options)
    : on_(on), options_(std::move(options)) {}
SKEIN_INLINE undecided_ranks::~undecided_ranks() = default;

SKEIN_INLINE task<std::vector<proc::child_place>> undecided_ranks::reserve(int many) {
    ranks_.clear();
    met_.reset();
    ++attempt_;
    world_size_ = reserved_ = many;
    if (!options_.share) master_port_ = options_.free_port ? options_.free_port() : 0;
    return proc::children::reserve(many);
}

SKEIN_INLINE task<void> undecided_ranks::until_met() {
    auto waiting = met_.wait();
    co_await waiting;
}

/// Of a job of this host alone: all that there is.
SKEIN_INLINE host_share undecided_ranks::share() const {
    if (options_.share) return *options_.share;
    host_share all;
    all.ranks = all.world_size = world_size_;
    all.master_host = net::own_loopback();
    all.master_port = master_port_;
    return all;
}

SKEIN_INLINE task<std::unique_ptr<proc::child>> undecided_ranks::start_rank(
    int number, proc::child_options how) {
    const auto place = share();
    const auto local = std::to_string(number), text = std::to_string(place.first_rank + number);
    const auto all = std::to_string(place.world_size);
    auto self = std::make_shared<rank>();
    self->answer = std::exchange(
        how.message, wire::encode(std::map<std::string, std::string>{{asks_kind_variable, "1"}}));
    how.name = "rank " + text;
    how.socket = true;
    how.reads_output = options_.reads_output;
    const std::initializer_list<std::pair<std::string, std::string>> place_of_rank{
        {"RANK", text},
        {"WORLD_SIZE", all},
        {"LOCAL_RANK", local},
        {"LOCAL_WORLD_SIZE", std::to_string(place.ranks)},
        {"GROUP_RANK", std::to_string(place.place)},
        {"GROUP_WORLD_SIZE", std::to_string(place.hosts)},
        {"ROLE_RANK", text},
        {"ROLE_WORLD_SIZE", all},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", place.master_host},
        {"MASTER_PORT", std::to_string(place.master_port)},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(options_.share ? place.restarts : attempt_)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)},
        {"TORCHELASTIC_RUN_ID", options_.job},
        // Rank 0 serves the store: who starts it has none.
        {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
    how.env.insert(how.env.begin(), place_of_rank);
    auto starting = on_.start(std::move(how));
    self->process = co_await starting;
    self->link = self->process->take_stream();
    if (options_.on_started) options_.on_started(attempt_, number, self->process);
    ranks_.push_back(self);
    if (self->link) hearing_.spawn(hear(self));
    co_return std::make_unique<shared_rank>(self->process, &handed_);
}

/// The first word of any rank is the word of all.
SKEIN_INLINE void undecided_ranks::decide(program_kind kind) {
    if (is_elastic_ || met_.is_set()) return;
    if (kind == program_kind::fixed) return met_.set();
    is_elastic_ = true;
    handed_.set();
}

SKEIN_INLINE task<void> undecided_ranks::hear(std::shared_ptr<rank> from) {
    std::array<std::byte, 1> word{};
    auto reading = as_result(from->link->read_some(word));
    const auto n = co_await reading;
    if (!n && n.error().code() == errc::cancelled) throw n.error();
    if (!n || *n == 0) co_return; // it has ended, and was any program
    const auto kind = static_cast<program_kind>(std::to_integer<std::uint8_t>(word[0]));
    if (kind != program_kind::fixed && kind != program_kind::elastic) {
        from->link.reset(); // any program may write to what it has inherited; nobody answers it
        co_return;
    }
    decide(kind);
    if (is_elastic_) {
        auto adopting = from->adopted.wait();
        co_await adopting;
    }
    const std::array<byte_span, 1> answer{from->answer};
    auto writing = as_result(from->link->write_all(answer));
    const auto written = co_await writing;
    if (!written && written.error().code() == errc::cancelled) throw written.error();
    from->link->close_send(); // it reads until the end, and somebody else may hold this socket
}

SKEIN_INLINE task<std::unique_ptr<proc::child>> undecided_ranks::start(proc::child_options how) {
    if (reserved_ > 0) {
        auto fresh = start_rank(world_size_ - reserved_--, std::move(how));
        co_return co_await fresh;
    }
    for (const auto& one : ranks_) {
        if (!is_elastic_ || one->is_adopted || !one->process->running()) continue;
        one->is_adopted = true;
        one->answer = std::move(how.message);
        one->adopted.set();
        co_return std::make_unique<shared_rank>(std::exchange(one->process, nullptr), nullptr);
    }
    auto starting = on_.start(std::move(how));
    co_return co_await starting;
}

SKEIN_INLINE task<void> undecided_ranks::end() {
    hearing_.cancel();
    auto joined = shield(as_result(hearing_.join()));
    (void)co_await joined; // nobody asks any more
    for (const auto& one : ranks_)
        if (one->process) one->process->kill(); // others may still read what it has printed
    ranks_.clear();
}

} // namespace skein::spmd
