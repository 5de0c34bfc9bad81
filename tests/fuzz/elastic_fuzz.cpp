// SPDX-License-Identifier: Apache-2.0
// A coordinator of an elastic job whose workers say anything, and end whenever they like: it never
// crashes, and it ends soon after it is asked to stop. Also what a rank reads, from any bytes.
//
// The first byte chooses: a body for a rank (then its kind), or a list of events: which worker, what
// happens, length, body.
#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/memory_register.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

namespace {

using namespace skein;
using namespace std::chrono_literals;

/// Starts at once, kills at once, and reads all that its workers are told.
class scripted_keeper final : public spmd::elastic_keeper {
public:
    void listen(spmd::keeper_listener& to) { to_ = &to; }
    [[nodiscard]] std::uint64_t id() const noexcept override { return 1; }
    [[nodiscard]] const std::string& host() const noexcept override { return host_; }
    [[nodiscard]] int places() const noexcept override { return 4; }
    void start(std::uint64_t worker) override {
        running_[worker] = true;
        newest_ = worker;
    }
    void kill(std::uint64_t worker) override {
        if (!running_[worker]) return;
        running_[worker] = false;
        killed_.push_back(worker);
    }
    void tell(std::uint64_t worker, std::uint16_t kind, byte_buffer body) override {
        if (!running_.contains(worker)) std::abort();
        if (kind == spmd::detail::member_begin::number) {
            const auto told = wire::decode<spmd::detail::member_begin>(body);
            if (!told || told->now.members.at(static_cast<std::size_t>(told->rank)).id != worker)
                std::abort();
            if (told->now.generation <= generation_[worker]) std::abort();
            generation_[worker] = told->now.generation;
        }
    }
    void turn_out(const error&) override {} // of others' hosts alone
    /// The kernel's news.
    void reap() {
        for (const auto worker : std::exchange(killed_, {})) end(worker, 0, SIGKILL);
    }
    void end(std::uint64_t worker, int code, int signal) {
        spmd::worker_end how;
        how.code = signal != 0 ? -1 : code;
        how.signal = signal;
        how.how = "ended";
        running_[worker] = false;
        to_->worker_ended(worker, how);
    }
    void event(byte_span what) {
        const auto worker =
            1 + std::to_integer<std::uint64_t>(what[0]) % std::max<std::uint64_t>(newest_, 1);
        const auto kind = std::to_integer<unsigned>(what[1]);
        if (!running_[worker]) return;
        if (kind >= 0xf0) return end(worker, static_cast<int>(kind & 3), kind & 4 ? SIGKILL : 0);
        const auto body = what.subspan(3);
        if (kind >= 0xe0) { // well made
            spmd::detail::member_ask asking;
            asking.last = kind & 3;
            asking.generation = generation_[worker];
            const auto good = wire::encode(asking);
            return to_->worker_said(worker, spmd::detail::member_ask::number, good);
        }
        to_->worker_said(worker, static_cast<std::uint16_t>(0x0200 + kind % 6), body);
    }

private:
    std::string host_ = "a";
    spmd::keeper_listener* to_ = nullptr;
    std::uint64_t newest_ = 0;
    std::map<std::uint64_t, bool> running_;
    std::map<std::uint64_t, std::uint64_t> generation_;
    std::vector<std::uint64_t> killed_;
};

task<void> act(scripted_keeper* keeper, spmd::elastic_coordinator* job, byte_span script,
               bool* over) {
    while (script.size() >= 3) {
        auto pause = sleep_for(20ms);
        co_await pause;
        keeper->reap();
        const auto length =
            std::min<std::size_t>(std::to_integer<std::size_t>(script[2]), script.size() - 3);
        keeper->event(script.subspan(0, 3 + length));
        script = script.subspan(3 + length);
    }
    job->stop(SIGTERM);
    while (!*over) {
        auto pause = sleep_for(20ms);
        co_await pause;
        keeper->reap();
    }
}

task<void> live(sim::network* network, random_source* random, byte_span script) {
    spmd::memory_register truth;
    spmd::coordinator_options how;
    how.job = "fuzz";
    how.most = 3;
    how.groups = net::address::sim("a", 0);
    how.random = random;
    how.times.stop_grace = 5s;
    scripted_keeper keeper;
    spmd::elastic_coordinator job(network->host("a"), truth, how);
    job.add(keeper);
    keeper.listen(job);
    bool over = false;
    scope beside;
    beside.spawn(act(&keeper, &job, script, &over));
    auto running = as_result(with_timeout(job.run(), 1h));
    const auto how_it_ended = co_await running;
    over = true;
    if (!how_it_ended) std::abort();
    beside.cancel();
    auto joined = as_result(beside.join());
    (void)co_await joined;
}

void read_as_rank(unsigned kind, byte_span body) {
    switch (kind % 6) {
    case 0: (void)wire::decode<spmd::detail::member_begin>(body).has_value(); break;
    case 1: (void)wire::decode<spmd::detail::member_wish>(body).has_value(); break;
    case 2: (void)wire::decode<spmd::detail::member_end>(body).has_value(); break;
    case 3: (void)wire::decode<spmd::detail::member_hello>(body).has_value(); break;
    case 4: (void)wire::decode<spmd::detail::member_fail>(body).has_value(); break;
    default: (void)wire::decode<spmd::detail::member_ask>(body).has_value(); break;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    logging::set_level(logging::level::off);
    const byte_span bytes(reinterpret_cast<const std::byte*>(data), size);
    if ((data[0] & 1) == 0) {
        read_as_rank(data[1], bytes.subspan(2));
        return 0;
    }
    sim::loop loop(1);
    sim::network network(loop, {});
    loop.run(live(&network, &loop.random(), bytes.subspan(1)));
    return 0;
}
