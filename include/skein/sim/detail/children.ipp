// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lives of simulated processes, and what breaks them.

#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/detail/process_network.hpp>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace skein::sim {

// --- faults -----------------------------------------------------------------------------------

SKEIN_INLINE child_faults child_faults::draw(random_source& random) {
    using std::chrono::milliseconds;
    child_faults f;
    const bool calm = random.below(5) == 0;
    // Always the same number of draws, as in sim::faults::draw.
    const auto rate = [&](double most) {
        const bool on = random.below(2) == 0;
        const double value = random.unit() * most;
        return on && !calm ? value : 0.0;
    };
    const auto every = [&] {
        const double part = rate(1.0);
        return part > 0 ? duration(milliseconds(50 + static_cast<int>(part * 2000))) : duration(0);
    };
    f.slow_start = rate(0.3);
    f.no_descriptors = rate(0.2);
    f.not_found = rate(0.01);
    f.not_permitted = rate(0.01);
    f.hang = rate(0.1);
    f.kill_every = every();
    f.pause_every = every();
    return f;
}

namespace detail {

/// What children, their processes and the events under way share.
struct children_state : std::enable_shared_from_this<children_state> {
    children_state(sim::network& in, std::string name, proc::host_resources what)
        : net(in), host(std::move(name)), offers(what) {}

    void fail_perhaps(const proc::child_options& how);
    std::shared_ptr<process> make(proc::child_options how);
    static task<void> live(std::shared_ptr<children_state> in, std::shared_ptr<process> self,
                           duration load);
    static task<int> run_program(children_state* in, process* self, duration load);
    void end(const std::shared_ptr<process>& self, const result<int>& code);
    void kill(process& which);
    void pause(process& which, duration length);
    void schedule_kill();
    void schedule_pause();
    [[nodiscard]] process* any_process();

    sim::network& net;
    std::string host;
    proc::host_resources offers;
    child_faults faults;
    std::map<std::string, program> programs;
    std::set<std::string> missing_folders;
    std::map<std::int64_t, std::shared_ptr<process>> running;
    std::int64_t last_pid = 1000;
    wait_queue never; ///< where starts hang
};

/// The parent's side.
class simulated_child final : public proc::child {
public:
    simulated_child(std::shared_ptr<process> of, std::unique_ptr<net::stream> stream)
        : process_(std::move(of)), stream_(std::move(stream)) {}
    ~simulated_child() override { process_->kill(); }

    const std::string& name() const noexcept override { return process_->how_.name; }
    std::int64_t pid() const noexcept override { return process_->pid_; }
    bool running() const noexcept override { return !seen_; }
    task<proc::child_end> ended() override {
        auto waited = process_->gone_.wait();
        co_await waited;
        seen_ = true;
        co_return proc::child_end{process_->status_, process_->last_words_};
    }
    void signal(int number) noexcept override { process_->signal(number); }
    void kill() noexcept override { process_->kill(); }
    proc::process_usage usage() override {
        return process_->ended_ ? proc::process_usage{} : process_->usage_;
    }
    proc::process_look look() override {
        proc::process_look seen;
        seen.is_stopped = process_->paused_ && !process_->computes_ && !process_->ended_;
        return seen;
    }
    std::unique_ptr<net::stream> take_stream() override { return std::move(stream_); }
    task<std::size_t> read_output(bool is_error, std::span<std::byte> into) override {
        const auto of = process_;
        auto& from = of->written_[is_error ? 1 : 0];
        while (of->how_.reads_output && from.empty() && !of->ended_) {
            auto changed = of->written_changed_.wait();
            co_await changed;
        }
        // Pieces end anywhere.
        auto n = std::min(from.size(), into.size());
        if (n > 1) n -= (n * 31 + static_cast<std::size_t>(of->pid_)) % (n / 2 + 1);
        std::copy_n(reinterpret_cast<const std::byte*>(from.data()), n, into.begin());
        from.erase(0, n);
        of->written_changed_.wake_all();
        co_return n;
    }

private:
    std::shared_ptr<process> process_;
    std::unique_ptr<net::stream> stream_;
    bool seen_ = false;
};

// --- from the start to the end ----------------------------------------------------------------

/// What the starting of a real one would throw.
SKEIN_INLINE void children_state::fail_perhaps(const proc::child_options& how) {
    struct possible {
        double rate;
        errc code;
        const char* why;
    };
    const auto fail = [&](errc code, std::string_view why) {
        throw error(code, fmt::format("cannot start {}: {}", how.executable, why));
    };
    for (const auto& [rate, code, why] :
         {possible{faults.no_descriptors, errc::exhausted, "too many open files"},
          possible{faults.not_found, errc::not_found, "no such file or directory"},
          possible{faults.not_permitted, errc::permission_denied, "permission denied"}}) {
        if (!net.loop().draw(rate)) continue;
        net.counts().add(fault::start_failed);
        fail(code, why);
    }
    if (how.message.size() > proc::most_boot_bytes)
        fail(errc::too_large, "its boot message is too large");
    if (missing_folders.contains(how.cwd))
        fail(errc::not_found,
             fmt::format("change to its folder {}: no such file or directory", how.cwd));
    if (!programs.contains(how.role))
        fail(errc::not_found, fmt::format("no simulated program has the role {}", how.role));
}

SKEIN_INLINE std::shared_ptr<process> children_state::make(proc::child_options how) {
    const auto pid = ++last_pid;
    std::shared_ptr<process> self(new process(*this, std::move(how), pid));
    running.emplace(pid, self);
    return self;
}

SKEIN_INLINE task<int> children_state::run_program(children_state* in, process* self,
                                                   duration load) {
    auto loading = sleep_for(load);
    co_await loading;
    auto still = self->stand_still();
    co_await still;
    auto life = in->programs.at(self->how_.role)(self);
    co_return co_await life;
}

SKEIN_INLINE task<void> children_state::live(std::shared_ptr<children_state> in,
                                             std::shared_ptr<process> self, duration load) {
    auto body = run_program(in.get(), self.get(), load);
    auto asked = as_result(with_cancel(self->stop_.token(), std::move(body)));
    const auto code = co_await asked;
    in->end(self, code);
}

SKEIN_INLINE void children_state::end(const std::shared_ptr<process>& self,
                                      const result<int>& code) {
    int raw = 0;
    if (self->killed_) {
        raw = SIGKILL;
    } else if (code) {
        raw = (*code & 0xff) << 8;
    } else if (code.error().code() == errc::cancelled && self->asked_ != 0) {
        raw = self->asked_;
    } else {
        raw = exit_code::failed << 8;
        if (self->last_words_.empty()) self->last_words_ = code.error().what();
    }
    self->status_ = proc::exit_status(raw);
    self->ended_ = true;
    self->written_changed_.wake_all();
    self->paused_ = false;
    self->close_all();
    self->stream_.reset();
    running.erase(self->pid_);
    auto& loop = net.loop();
    loop.trace(static_cast<std::uint64_t>(self->pid_) << 16 | static_cast<std::uint64_t>(raw));
    // The end of the process and the ends of its streams are seen in any order.
    loop.after(loop.draw_delay(duration(0), std::chrono::milliseconds(1)),
               [self] { self->gone_.set(); });
}

// --- what goes wrong --------------------------------------------------------------------------

SKEIN_INLINE process* children_state::any_process() {
    if (running.empty()) return nullptr;
    auto at = running.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(net.loop().random().below(running.size())));
    return at->second.get();
}

SKEIN_INLINE void children_state::kill(process& which) {
    if (which.killed_) return;
    net.counts().add(fault::kill);
    which.kill();
}

SKEIN_INLINE void children_state::pause(process& which, duration length) {
    if (which.paused_ || which.killed_) return;
    net.counts().add(fault::pause);
    which.pause();
    net.loop().after(length, [self = which.shared_from_this()] { self->resume(); });
}

SKEIN_INLINE void children_state::schedule_kill() {
    if (faults.kill_every == duration(0)) return;
    const auto pause = net.loop().draw_delay(faults.kill_every / 2, faults.kill_every * 2);
    net.loop().after(pause, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self || self->faults.kill_every == duration(0)) return;
        if (auto* victim = self->any_process()) self->kill(*victim);
        self->schedule_kill();
    });
}

SKEIN_INLINE void children_state::schedule_pause() {
    if (faults.pause_every == duration(0)) return;
    const auto pause = net.loop().draw_delay(faults.pause_every / 2, faults.pause_every * 2);
    net.loop().after(pause, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self || self->faults.pause_every == duration(0)) return;
        if (auto* victim = self->any_process())
            self->pause(*victim,
                        self->net.loop().draw_delay(duration(0), self->faults.pause_lasts));
        self->schedule_pause();
    });
}

} // namespace detail

// --- a process --------------------------------------------------------------------------------

SKEIN_INLINE process::process(detail::children_state& in, proc::child_options how, std::int64_t pid)
    : how_(std::move(how)), pid_(pid), host_(in.host),
      network_(std::make_unique<detail::process_network>(in.net.host(in.host), *this)) {}
SKEIN_INLINE process::~process() = default;

SKEIN_INLINE net::network& process::network() noexcept { return *network_; }
SKEIN_INLINE std::unique_ptr<net::stream> process::take_stream() { return std::move(stream_); }

SKEIN_INLINE task<void> process::stand_still() {
    const auto self = shared_from_this();
    while (self->paused_) {
        auto going_on = self->resumed_.wait_uncancellable();
        co_await going_on;
    }
}

SKEIN_INLINE task<void> process::print(bool is_error, std::string text) {
    constexpr std::size_t pipe_bytes = std::size_t{64} << 10;
    const auto self = shared_from_this();
    auto& to = written_[is_error ? 1 : 0];
    if (!how_.reads_output) co_return;
    while (to.size() >= pipe_bytes && !killed_) {
        auto changed = written_changed_.wait();
        co_await changed;
    }
    if (killed_ || ended_) co_return;
    to += text;
    written_changed_.wake_all();
}

SKEIN_INLINE void process::signal(int number) noexcept {
    if (ended_ || killed_) return;
    switch (number) {
    case SIGKILL: kill(); return;
    case SIGSTOP: pause(); return;
    case SIGCONT: resume(); return;
    case SIGTERM:
    case SIGINT: break;
    default: return; // of no meaning here
    }
    if (paused_)
        pending_ = number;
    else
        ask_to_leave(number);
}

SKEIN_INLINE void process::ask_to_leave(int number) noexcept {
    asked_ = number;
    stop_.request();
}

SKEIN_INLINE void process::resume() noexcept {
    if (!paused_) return;
    paused_ = computes_ = false;
    resumed_.wake_all();
    if (const int number = std::exchange(pending_, 0)) ask_to_leave(number);
}

SKEIN_INLINE void process::kill() noexcept {
    if (ended_ || killed_) return;
    killed_ = true;
    pending_ = 0;
    resume();
    close_all();
    stop_.request();
}

SKEIN_INLINE void process::close_all() noexcept {
    for (auto* end : open_) end->close_end(); // it makes and destroys none
}

// --- children ---------------------------------------------------------------------------------

SKEIN_INLINE children::children(sim::network& in, std::string host, proc::host_resources offers)
    : state_(std::make_shared<detail::children_state>(in, std::move(host), offers)) {}
SKEIN_INLINE children::~children() { stop_faults(); }

SKEIN_INLINE void children::add(std::string role, program entry) {
    state_->programs.insert_or_assign(std::move(role), std::move(entry));
}

SKEIN_INLINE task<std::unique_ptr<proc::child>> children::start(proc::child_options how) {
    const auto state = state_;
    auto& loop = state->net.loop();
    const auto& faults = state->faults;
    auto starting = sleep_for(loop.draw_delay(faults.least_start, faults.most_start));
    co_await starting;
    state->fail_perhaps(how);
    if (loop.draw(faults.hang)) {
        state->net.counts().add(fault::start_hung);
        auto hanging = state->never.wait();
        co_await hanging;
    }
    duration load(0);
    if (loop.draw(faults.slow_start)) {
        state->net.counts().add(fault::slow_start);
        load = loop.draw_delay(duration(0), faults.slow_load);
    }
    const bool has_socket = how.socket;
    const auto self = state->make(std::move(how));
    std::unique_ptr<net::stream> ours;
    if (has_socket) {
        auto pair = state->net.connected_pair(state->host, state->host);
        ours = std::move(pair.first);
        self->stream_ = self->network_->take(std::move(pair.second));
    }
    skein::loop::current().adopt(
        detail::children_state::live(state, self, load)); // its host's clock
    co_return std::make_unique<detail::simulated_child>(self, std::move(ours));
}

SKEIN_INLINE proc::host_resources children::resources() { return state_->offers; }
SKEIN_INLINE child_faults& children::faults() noexcept { return state_->faults; }

SKEIN_INLINE void children::begin_faults() {
    state_->schedule_kill();
    state_->schedule_pause();
}

SKEIN_INLINE void children::remove_folder(std::string path) {
    state_->missing_folders.insert(std::move(path));
}

SKEIN_INLINE void children::stop_faults() {
    state_->faults = child_faults{};
    for (auto& [pid, self] : state_->running) self->resume();
}

SKEIN_INLINE std::vector<running_process> children::running() const {
    std::vector<running_process> all;
    for (const auto& [pid, self] : state_->running) all.push_back({pid, self->how_.name});
    return all;
}

SKEIN_INLINE void children::kill(std::int64_t pid) {
    const auto at = state_->running.find(pid);
    if (at != state_->running.end()) state_->kill(*at->second);
}

SKEIN_INLINE void children::pause(std::int64_t pid, duration length) {
    const auto at = state_->running.find(pid);
    if (at != state_->running.end()) state_->pause(*at->second, length);
}

SKEIN_INLINE void children::compute(std::int64_t pid, duration length) {
    const auto at = state_->running.find(pid);
    if (at == state_->running.end()) return;
    at->second->computes_ = true;
    state_->pause(*at->second, length);
}

} // namespace skein::sim
