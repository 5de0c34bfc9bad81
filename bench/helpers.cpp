// SPDX-License-Identifier: Apache-2.0
// What a helper on another host adds to a rank: images per second and time waited, at 10 and 1 Gb/s.
//
// Two hosts are two network namespaces joined by a cable whose rate tbf limits; the rank, its
// consumer and the cluster's head run on core 0 of one, the node of the helper on core 1 of the
// other. That needs root, ip, tc and taskset; without them it runs over loopback, says so, and only
// the figures that need no cable are compared with bars. The workload is that of
// bench/blurred_images.hpp. Measured in turns: the rank alone on its one thread, the same program on
// the helper's core (its own rate), rank and helper, and a rank that makes nothing itself.
//
//     helpers                        one JSON line per figure; SKEIN_BENCH_ROUNDS (default 3)
//     helpers --rank written 1 1 0   one measurement: kernel, threads, helpers, images/s consumed
//                                    (0: as many as there are)

#include "bench.hpp"
#include "blurred_images.hpp"
#include "cluster_processes.hpp"
#include "other_programs.hpp"

#include <skein/core/scope.hpp>
#include <skein/data/detail/row_engine.hpp>
#include <skein/data/loader.hpp>
#include <skein/net/offload.hpp>
#include <skein/program/run.hpp>
#include <skein/program/session.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fcntl.h>
#include <unistd.h>

namespace {

using clock_type = std::chrono::steady_clock;
namespace detail = skein::data::detail;

// ---- the rank -----------------------------------------------------------------------------------

constexpr std::size_t budget = std::size_t{256} << 20;
constexpr std::uint64_t warm_up = 10; ///< batches, until memory is warm and helpers have come
constexpr std::uint64_t endless = 1'000'000;

/// A rank that makes no rows itself: a row engine without threads. A loader always has one.
class remote_only {
public:
    explicit remote_only(std::shared_ptr<const detail::row_program> program)
        : program_(std::move(program)), session_(one_worker()) {
        deal_.size = program_->size();
        deal_.global_batch = bench::images_per_batch;
        session_.run([this]() -> skein::task<void> { return start(); });
        slots_->on_return([this] { post([this] { engine_->room_changed(); }); });
    }
    remote_only(const remote_only&) = delete;
    remote_only& operator=(const remote_only&) = delete;
    ~remote_only() {
        slots_->on_return({});
        session_.run([this]() -> skein::task<void> { return stop(); });
    }
    void take() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !ready_.empty(); });
        ready_.pop_front();
        post([this] { engine_->taken(1); });
    }
    [[nodiscard]] std::vector<detail::executor_stats> makers() {
        std::vector<detail::executor_stats> found;
        session_.run([this, &found]() -> skein::task<void> { return look(found); });
        return found;
    }

private:
    static skein::run_options one_worker() {
        skein::run_options how;
        how.workers = 1;
        return how;
    }
    void post(skein::unique_function<void()> call) { (void)session_.door()->post(std::move(call)); }
    skein::task<void> start() {
        detail::engine_options how;
        how.threads = 0;
        engine_.emplace(
            program_, how, slots_, &pool_,
            [this](detail::finished_batch made) {
                const std::lock_guard lock(mutex_);
                ready_.push_back(std::move(made));
                changed_.notify_all();
            },
            [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
        work_.emplace();
        work_->spawn(engine_->serve());
        engine_->restart(1, detail::batch_request::of(deal_, 0, 0, 0));
        co_return;
    }
    skein::task<void> stop() {
        work_->cancel();
        auto joined = work_->join();
        try {
            co_await joined;
        } catch (const skein::error&) { // cancelled
        }
        work_.reset();
        engine_.reset();
    }
    skein::task<void> look(std::vector<detail::executor_stats>& into) {
        into = engine_->stats();
        co_return;
    }

    std::shared_ptr<const detail::row_program> program_;
    detail::dealing deal_;
    std::shared_ptr<skein::data::slot_pool> slots_ =
        std::make_shared<skein::data::slot_pool>(budget);
    skein::net::offload_pool pool_{1}; ///< takes rows in
    skein::session session_;
    std::optional<detail::row_engine> engine_; // of the loop, as work_
    std::optional<skein::scope> work_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<detail::finished_batch> ready_;
};

/// A consumer for some seconds: images per second, part of the time that it waited.
struct consumed {
    double rate = 0, waited = 0;
};

/// Takes batches as a training loop does whose step takes 64 / wanted seconds; 0: at once.
template <class Take>
consumed consume(Take take, double wanted) {
    const auto step = std::chrono::duration<double>(
        wanted > 0 ? static_cast<double>(bench::images_per_batch) / wanted : 0);
    const auto begin = clock_type::now();
    std::chrono::duration<double> waited{0};
    std::uint64_t batches = 0;
    const auto enough = std::chrono::seconds(4);
    while (batches < 10 || clock_type::now() - begin < enough) {
        const auto asked = clock_type::now();
        take();
        waited += clock_type::now() - asked;
        batches += 1;
        if (wanted > 0) std::this_thread::sleep_for(step);
    }
    const std::chrono::duration<double> lasted = clock_type::now() - begin;
    return {static_cast<double>(batches * bench::images_per_batch) / lasted.count(),
            waited / lasted};
}

/// What a rank prints: "rate R waited W there T make M receive C": T is the part of the rows that a
/// helper made, M and C are its and our ms for each of them.
void report(const consumed& had, const std::vector<detail::executor_stats>& before,
            const std::vector<detail::executor_stats>& after) {
    double rows = 0, there = 0, make = 0, receive = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
        const auto old = i < before.size() ? before[i] : detail::executor_stats{};
        const auto more = static_cast<double>(after[i].rows - old.rows);
        rows += more;
        if (i == 0) continue; // the rank
        there += more;
        make += after[i].seconds - old.seconds;
        receive += after[i].receive_seconds - old.receive_seconds;
    }
    fmt::print("rate {} waited {} there {} make {} receive {}\n", had.rate, had.waited,
               rows > 0 ? there / rows : 0, there > 0 ? make * 1000 / there : 0,
               there > 0 ? receive * 1000 / there : 0);
    std::fflush(stdout);
}

template <class Take, class Makers>
void measure(Take take, Makers makers, int helpers, double wanted) {
    for (std::uint64_t i = 0; i < warm_up; ++i) take();
    const auto is_there = [&] {
        const auto now = makers();
        return std::count_if(now.begin() + 1, now.end(),
                             [](const auto& each) { return each.rows > 0; }) >= helpers;
    };
    while (!is_there()) take();
    for (std::uint64_t i = 0; i < 3; ++i) take();
    const auto before = makers();
    const auto had = consume(take, wanted);
    report(had, before, makers());
}

int rank(bool as_written, int threads, int helpers, double wanted) {
    const skein::data::helpers where{.most = helpers, .cpus = 1, .on = "role=cpu"};
    bench::with_pipeline(endless, where, as_written, [&](auto plan) {
        using plan_type = decltype(plan);
        if (threads == 0) {
            remote_only from(std::make_shared<detail::typed_program<plan_type>>(std::move(plan)));
            measure([&] { from.take(); }, [&] { return from.makers(); }, helpers, wanted);
            return;
        }
        skein::data::loader from(std::move(plan), {.threads = threads, .budget = budget});
        measure([&] { (void)from.next(); }, [&] { return from.stats().makers; }, helpers, wanted);
    });
    return 0;
}

// ---- the hosts ----------------------------------------------------------------------------------

bool shell(const std::string& command) {
    return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
}

/// Two namespaces and a cable, or this host alone.
class two_hosts {
public:
    two_hosts() {
        has_cores_ = std::thread::hardware_concurrency() >= 2 && shell("command -v taskset");
        has_own_ = ::geteuid() == 0 && shell("command -v ip && command -v tc") && make();
        if (!has_own_)
            fmt::print(stderr, "bench helpers: no network namespaces here (they need root, ip and "
                               "tc): over loopback, at its rate\n");
        if (!has_cores_)
            fmt::print(stderr, "bench helpers: no two cores to pin to, or no taskset\n");
    }
    two_hosts(const two_hosts&) = delete;
    two_hosts& operator=(const two_hosts&) = delete;
    ~two_hosts() { remove(); }

    [[nodiscard]] bool has_own() const noexcept { return has_own_; }
    [[nodiscard]] bool is_whole() const noexcept { return has_own_ && has_cores_; }
    [[nodiscard]] std::string head() const { return has_own_ ? "10.78.0.1:0" : "127.0.0.1:0"; }
    /// Limits the cable, both ways. False: this host cannot.
    [[nodiscard]] bool limit(int gigabits) {
        if (!has_own_) return false;
        bool ok = true;
        for (const auto& name : names_)
            ok &= shell(fmt::format("tc -n {} qdisc replace dev eth0 root tbf rate {}gbit burst {} "
                                    "latency 50ms",
                                    name, gigabits, gigabits > 1 ? "4mb" : "1mb"));
        return ok;
    }
    /// A copy of this program on host and core 0 or 1.
    [[nodiscard]] skein::proc::process_options copy(std::size_t host, const std::string& role,
                                                    const skein::net::token& secret,
                                                    std::vector<std::string> arguments) const {
        auto how = bench::copy_of_this(role, secret, {});
        const auto program = std::filesystem::read_symlink("/proc/self/exe").string();
        how.executable.clear();
        how.argv.clear();
        how.argv = {"/usr/bin/env"}; // looks the program up, and becomes it
        if (has_own_) how.argv.insert(how.argv.end(), {"ip", "netns", "exec", names_[host]});
        if (has_cores_) how.argv.insert(how.argv.end(), {"taskset", "-c", std::to_string(host)});
        how.argv.push_back(program);
        how.argv.insert(how.argv.end(), arguments.begin(), arguments.end());
        return how;
    }

private:
    bool make() {
        const auto& [a, b] = names_;
        bool ok =
            shell("ip netns add " + a) && shell("ip netns add " + b) &&
            shell(fmt::format("ip -n {} link add eth0 type veth peer name eth0 netns {}", a, b));
        int last = 0;
        for (const auto& name : names_)
            ok = ok && shell(fmt::format("ip -n {0} addr add 10.78.0.{1}/24 dev eth0 && ip -n {0} "
                                         "link set lo up && ip -n {0} link set eth0 up",
                                         name, ++last));
        if (!ok) remove();
        return ok;
    }
    void remove() {
        for (const auto& name : names_) (void)shell("ip netns del " + name);
    }

    std::array<std::string, 2> names_{fmt::format("skb{}a", ::getpid()),
                                      fmt::format("skb{}b", ::getpid())};
    bool has_own_ = false, has_cores_ = false;
};

/// A head at host 0 and a node of one core at host 1.
class cluster_of_two {
public:
    explicit cluster_of_two(const two_hosts& hosts) : hosts_(hosts) {
        auto [ours, theirs] = skein::make_pipe();
        auto how = hosts_.copy(0, "head", secret_, {hosts_.head()});
        how.stdout_fd = theirs.get();
        head_ = skein::proc::child_process::spawn(how);
        theirs.reset();
        constexpr std::string_view before = "skein join ";
        const auto said = bench::read_until(ours.get(), "--address");
        const auto at = said.find(before);
        if (at == said.npos)
            throw skein::error(skein::errc::io, "the head of the benchmark has not started")
                .with_cause(said);
        address_ = said.substr(at + before.size(), said.find('\n', at) - at - before.size());
        said_ = std::move(ours);
        auto node = hosts_.copy(1, "node", secret_, {address_});
        const skein::unique_fd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
        node.stdout_fd = nowhere.get();
        node_ = skein::proc::child_process::spawn(node);
    }
    cluster_of_two(const cluster_of_two&) = delete;
    cluster_of_two& operator=(const cluster_of_two&) = delete;
    ~cluster_of_two() {
        for (auto* child : {&node_, &head_}) {
            child->kill(SIGTERM);
            child->wait_blocking();
        }
    }

    /// What a rank measured on a host's core.
    struct measured {
        double rate = 0, waited = 0, there = 0, make_ms = 0, receive_ms = 0;
    };
    [[nodiscard]] measured rank(std::size_t host, bool as_written, int threads, int helpers,
                                double wanted) const {
        auto how =
            hosts_.copy(host, "rank", secret_,
                        {"--rank", as_written ? "written" : "folded", std::to_string(threads),
                         std::to_string(helpers), fmt::format("{}", wanted)});
        if (helpers > 0) {
            std::erase(how.unset_env, "SKEIN_ADDRESS");
            how.env.emplace_back("SKEIN_ADDRESS", address_);
        }
        std::istringstream said(bench::output_of(std::move(how)).value_or(""));
        measured found;
        for (std::string key, value; said >> key >> value;) {
            const double number = std::strtod(value.c_str(), nullptr);
            if (key == "rate") found.rate = number;
            if (key == "waited") found.waited = number;
            if (key == "there") found.there = number;
            if (key == "make") found.make_ms = number;
            if (key == "receive") found.receive_ms = number;
        }
        if (found.rate <= 0)
            throw skein::error(skein::errc::io, "a rank of the benchmark ended without a figure");
        return found;
    }

private:
    const two_hosts& hosts_;
    skein::net::token secret_ = skein::net::token::generate();
    std::string address_;
    skein::proc::child_process head_, node_;
    skein::unique_fd said_;
};

// ---- figures ------------------------------------------------------------------------------------

using measured = cluster_of_two::measured;

/// One kernel over one cable, each round's measurements in turns.
struct rounds {
    std::vector<measured> alone, own, both, remote, alone_at_rate, both_at_rate;
    double demand = 0;
};
double median(const std::vector<measured>& of, double measured::* what) {
    std::vector<double> values;
    for (const auto& each : of) values.push_back(each.*what);
    return bench::summary(std::move(values)).median;
}
/// The median over the rounds of f(round).
template <class F>
double over_rounds(std::size_t count, F f) {
    std::vector<double> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(f(i));
    return bench::summary(std::move(values)).median;
}

rounds measure_all(const cluster_of_two& cluster, bool as_written, int count) {
    rounds all;
    for (int i = 0; i < count; ++i) {
        all.alone.push_back(cluster.rank(0, as_written, 1, 0, 0));
        all.both.push_back(cluster.rank(0, as_written, 1, 1, 0));
        all.own.push_back(cluster.rank(1, as_written, 1, 0, 0));
        all.remote.push_back(cluster.rank(0, as_written, 0, 1, 0));
        // 0.8 of what both cores make: the rank alone does not suffice.
        all.demand = 0.8 * (all.alone.back().rate + all.own.back().rate);
        all.alone_at_rate.push_back(cluster.rank(0, as_written, 1, 0, all.demand));
        all.both_at_rate.push_back(cluster.rank(0, as_written, 1, 1, all.demand));
    }
    return all;
}

bool print(const rounds& all, const std::string& name, bool as_written, bool wide, bool whole) {
    const auto count = all.alone.size();
    const bool may_pay = as_written && wide;
    const double own = median(all.own, &measured::rate);
    bool ok = true;
    const auto show = [&](const char* what, double value, const char* unit) {
        return bench::figure(fmt::format("helpers.{}.{}", name, what), value, unit);
    };
    ok &= show("alone", median(all.alone, &measured::rate), "images/s").print();
    ok &= show("with_helper", median(all.both, &measured::rate), "images/s")
              .against("alone", median(all.alone, &measured::rate))
              .print();
    ok &= show("all_remote", median(all.remote, &measured::rate), "images/s").print();
    auto adds =
        show("helper_adds",
             own * over_rounds(count,
                               [&](std::size_t i) {
                                   return (all.both[i].rate - all.alone[i].rate) / all.own[i].rate;
                               }),
             "images/s")
            .against("the helper's core by itself", own);
    if (may_pay && whole) (void)std::move(adds).at_least(0.8);
    ok &= adds.print();
    const double better =
        std::max(median(all.alone, &measured::rate), median(all.remote, &measured::rate));
    auto close =
        show("of_the_better",
             better * over_rounds(count,
                                  [&](std::size_t i) {
                                      return all.both[i].rate /
                                             std::max(all.alone[i].rate, all.remote[i].rate);
                                  }),
             "images/s")
            .against("all here or all there", better);
    if (!may_pay && whole) (void)std::move(close).at_least(0.9);
    ok &= close.print();
    auto waits =
        show("waited_at_a_fixed_rate", 100 * median(all.both_at_rate, &measured::waited), "%")
            .with("alone",
                  fmt::format("{:.1f} %", 100 * median(all.alone_at_rate, &measured::waited)))
            .with("rate", fmt::format("{:.0f} images/s", all.demand));
    if (may_pay && whole) (void)std::move(waits).at_most(2);
    ok &= waits.print();
    ok &= show("made_there", 100 * median(all.both, &measured::there), "%").print();
    ok &= show("to_make_one", median(all.both, &measured::make_ms), "ms").print();
    return show("to_receive_one", median(all.both, &measured::receive_ms), "ms").print() && ok;
}

int run_all() {
    const char* wanted = std::getenv("SKEIN_BENCH_ROUNDS");
    const int count = std::max(1, wanted != nullptr ? std::atoi(wanted) : 3);
    two_hosts hosts;
    const cluster_of_two cluster(hosts);
    bool ok = true;
    std::vector<double> best; // as written, with a helper, over the widest cable
    for (const int gigabits : {10, 1}) {
        const bool limited = hosts.limit(gigabits);
        for (const bool as_written : {true, false}) {
            const auto all = measure_all(cluster, as_written, count);
            const auto name = fmt::format("{}_{}", as_written ? "as_written" : "folded",
                                          limited ? fmt::format("{}gbit", gigabits) : "loopback");
            ok &= print(all, name, as_written, gigabits == 10, hosts.is_whole() && limited);
            if (best.empty()) best.push_back(median(all.both, &measured::rate));
        }
        if (!limited) break;
    }
    if (const auto ray = bench::python_run("data_ray.py"))
        ok &= bench::figure("helpers.as_written_against_ray", best[0], "images/s")
                  .against("Ray Data, 2 cpus of one host", ray->rate)
                  .at_least(20)
                  .with("version", ray->version)
                  .print();
    else
        fmt::print(stderr, "bench helpers: Ray Data skipped: SKEIN_PYTHON names no Python in which "
                           "data_ray.py runs\n");
    return ok ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    skein::serve_if_worker();
    const std::string_view role =
        std::getenv(bench::role_variable) != nullptr ? std::getenv(bench::role_variable) : "";
    if (role == "head") return bench::play_role(role, argc, argv);
    if (role == "node") {
        skein::program::agent_program how;
        how.head = argv[1];
        how.name = "helper";
        how.resources = "cpu=1";
        how.labels = {"role=cpu"};
        return skein::program::run_agent(how);
    }
    if (argc == 6 && std::string_view(argv[1]) == "--rank")
        return rank(std::string_view(argv[2]) == "written", std::atoi(argv[3]), std::atoi(argv[4]),
                    std::strtod(argv[5], nullptr));
    try {
        return run_all();
    } catch (const std::exception& e) { // the namespaces are gone by now
        fmt::print(stderr, "bench helpers: {}\n", e.what());
        return 1;
    }
}
