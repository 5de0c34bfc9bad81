// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/job.hpp.

#include <skein/cluster/access.hpp>
#include <skein/cluster/agent.hpp>
#include <skein/cluster/detail/serve_role.hpp>
#include <skein/cluster/head.hpp>
#include <skein/core/available_cores.hpp>
#include <skein/core/available_memory.hpp>
#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/detail/job_node.hpp>
#include <skein/spmd/meeting.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::program {

SKEIN_INLINE std::optional<spmd::launch_environment> job_of_launcher(
    const spmd::variable_reader& read) {
    const auto has = [&](const char* name) { return read(name).has_value(); };
    // A program that is no rank of a training must not mind what is half set of one.
    const bool is_rank = has("SKEIN_RANK") || (has("RANK") && !has("JOB_COMPLETION_INDEX") &&
                                               (has("WORLD_SIZE") || has("MASTER_ADDR")));
    const bool may_be_one = (has("SLURM_PROCID") && has("SLURM_STEP_ID")) ||
                            has("OMPI_COMM_WORLD_RANK") || has("PMI_RANK") ||
                            has("JOB_COMPLETION_INDEX");
    if (has(rt::in_job_variable) || is_rank || !may_be_one) return std::nullopt;
    auto where = spmd::discover(read);
    const auto forms_job = {"slurm", "openmpi", "pmi", "kubernetes"};
    if (where.world_size < 2 ||
        std::find(forms_job.begin(), forms_job.end(), where.source) == forms_job.end())
        return std::nullopt;
    return where;
}

SKEIN_INLINE bool has_own_cores(int may_use, int allotted, int of_host, int local_size) noexcept {
    return may_use < of_host && may_use * local_size <= std::min(allotted, of_host);
}

SKEIN_INLINE job_share share_of_host(const spmd::launch_environment& where,
                                     const sched::resources& all,
                                     const std::vector<std::string>& gpu_names, bool is_bound,
                                     bool has_own_gpus) {
    job_share out{all, {}};
    const int size = std::max(where.local_size, 1), mine = where.local_rank;
    if (!is_bound)
        out.offers.cpu =
            std::max(1, static_cast<int>(all.cpu.in_steps() / sched::amount::steps) / size);
    out.offers.memory = all.memory / static_cast<std::uint64_t>(size);
    for (std::size_t i = 0; i < gpu_names.size(); ++i)
        if (has_own_gpus || static_cast<int>(i % static_cast<std::size_t>(size)) == mine)
            out.gpu_names.push_back(gpu_names[i]);
    out.offers.gpu = static_cast<int>(out.gpu_names.size());
    return out;
}

namespace detail {

/// The launcher has bound this process to cores of its own.
[[nodiscard]] inline bool is_bound(const spmd::launch_environment& where) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    if (::sched_getaffinity(0, sizeof mine, &mine) != 0) return false;
    const auto of_host = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    int allotted = of_host;
    if (const int of_container = skein::detail::cgroup_cpuset({}); of_container > 0)
        allotted = std::min(allotted, of_container);
    if (const auto of_job = spmd::process_environment()("SLURM_CPUS_ON_NODE")) {
        int n = 0;
        const auto [end, bad] = std::from_chars(of_job->data(), of_job->data() + of_job->size(), n);
        if (bad == std::errc() && n > 0) allotted = std::min(allotted, n);
    }
    return has_own_cores(CPU_COUNT(&mine), allotted, of_host, std::max(where.local_size, 1));
}

/// Head and nodes of a job wait for each other so long.
inline constexpr time_span alone_in_job = std::chrono::seconds(10);

SKEIN_INLINE cluster::agent_options node_of_job(const spmd::launch_environment& where,
                                                const net::token& secret) {
    sched::resources all;
    all.cpu = available_cores();
    all.memory = available_memory();
    auto share = share_of_host(where, all, proc::visible_gpus(), is_bound(where),
                               spmd::process_environment()("SLURM_GPUS_PER_TASK").has_value());
    cluster::agent_options o;
    o.head = meeting_point(where);
    o.secret = secret;
    o.host = proc::host_name();
    o.name = where.local_size > 1 ? fmt::format("{}.{}", o.host, where.local_rank) : o.host;
    o.pid = ::getpid();
    o.offers = std::move(share.offers);
    o.gpu_names = std::move(share.gpu_names);
    o.labels = {fmt::format("rank={}", where.rank)};
    o.store_bytes = objects::store_bytes_for({});
    o.orphan_grace = alone_in_job;
    o.leaves_alone = true;
    o.news = logging::level::debug;
    return o;
}

SKEIN_INLINE void enter_job() {
    ::setenv(rt::in_job_variable, "1", 1);
    spmd::take_variable(spmd::token_variable);
}

} // namespace detail

/// Each half belongs to the loop of its thread.
struct led_job::parts {
    struct head_half {
        explicit head_half(net::real_loop& on) : network(on) {}
        net::real_network network;
        std::optional<cluster::head> serves;
        scope life;
    };
    struct node_half {
        explicit node_half(net::real_loop& on) : network(on), children(on) {}
        net::real_network network;
        proc::local_children children;
        std::optional<cluster::agent> serves;
        scope life;
    };

    net::loop_thread head_thread{"skein-head"}, node_thread{"skein-node"};
    std::unique_ptr<head_half> of_head;
    std::unique_ptr<node_half> of_node;
    net::address at;

    parts() = default;
    parts(const parts&) = delete;
    parts& operator=(const parts&) = delete;
    ~parts() {
        if (of_head) head_thread.run([this] { return end_head(this); });
        if (of_node) node_thread.run([this] { return end_node(this); });
    }

    static task<void> start_head(parts* self, cluster::head_options how) {
        auto& on = self->head_thread.loop();
        auto half = std::make_unique<head_half>(on);
        half->serves.emplace(on, half->network, std::move(how));
        half->life.spawn(half->serves->serve());
        self->of_head = std::move(half);
        co_return;
    }
    static task<void> start_node(parts* self, cluster::agent_options how) {
        auto& on = self->node_thread.loop();
        self->of_node = std::make_unique<node_half>(on);
        auto& half = *self->of_node;
        half.serves.emplace(on, half.network, half.children, std::move(how));
        half.life.spawn(serve_node(&half));
        co_return;
    }
    static task<void> serve_node(node_half* half) {
        auto serving = as_result(half->serves->serve());
        const auto served = co_await serving;
        if (!served)
            logging::error("cluster", "the node of this process has ended",
                           {{"why", served.error().what()}});
    }
    /// Gives the hosts of those that are there, when not all are in time.
    static task<std::vector<std::string>> wait_for_all(parts* self, std::size_t wanted,
                                                       time_span patience) {
        auto& here = loop::current();
        const auto last = deadline_after(here.now(), patience);
        const auto news = deadline_after(here.now(), std::chrono::seconds(5));
        for (bool is_told = false;;) {
            const auto now = self->of_head->serves->status();
            std::vector<std::string> hosts;
            for (const auto& node : now.nodes) hosts.push_back(node.name);
            if (hosts.size() >= wanted) co_return std::vector<std::string>();
            if (here.now() >= last)
                co_return hosts.empty() ? std::vector<std::string>{"none"} : hosts;
            if (here.now() >= news && !std::exchange(is_told, true))
                logging::warn("cluster", "waits for the other processes of this job",
                              {{"there", hosts.size()}, {"of", wanted}});
            auto pause = sleep_for(std::chrono::milliseconds(20));
            co_await pause;
        }
    }
    static task<void> end_head(parts* self) {
        self->of_head->serves->stop();
        auto ended = as_result(self->of_head->life.join());
        (void)co_await ended;
        self->of_head.reset();
    }
    static task<void> end_node(parts* self) {
        self->of_node->serves->stop();
        auto ended = as_result(self->of_node->life.join());
        (void)co_await ended;
        self->of_node.reset();
    }
};

SKEIN_INLINE led_job::led_job(const spmd::launch_environment& where, const std::string& token_file,
                              time_span patience)
    : parts_((detail::enter_job(), std::make_unique<parts>())) { // before there are threads
    parts_->at = meeting_point(where);
    cluster::head_options o;
    o.listen = listening_point(where);
    o.secret = cluster::find_or_make_token(token_file);
    o.host = proc::host_name();
    o.pid = ::getpid();
    o.news = logging::level::debug; // who comes and goes is none where all come and go together
    o.lost_after = detail::alone_in_job;
    auto node = detail::node_of_job(where, o.secret);
    parts_->head_thread.run([&] { return parts::start_head(parts_.get(), std::move(o)); });
    parts_->node_thread.run([&] { return parts::start_node(parts_.get(), std::move(node)); });
    const auto wanted = static_cast<std::size_t>(where.world_size);
    const auto there = parts_->head_thread.run(
        [&] { return parts::wait_for_all(parts_.get(), wanted, patience); });
    if (!there.empty())
        throw error(errc::timeout,
                    fmt::format("of {} processes of this {} job not all have come to {} in time; "
                                "there are: {}",
                                wanted, where.source, to_string(parts_->at), joined(there, ", ")))
            .with_hint("see what the others say; all of them need the same token "
                       "(SKEIN_TOKEN_FILE, or a common home folder)");
}

SKEIN_INLINE led_job::~led_job() = default;

SKEIN_INLINE std::string led_job::address() const { return to_string(parts_->at); }

SKEIN_INLINE int run_job_node(const spmd::launch_environment& where,
                              const std::string& token_file) {
    proc::open_standard_files();
    proc::outlive_readers();
    proc::name_process("agent");
    auto how = detail::node_of_job(where, cluster::find_or_make_token(token_file));
    detail::enter_job();
    net::real_loop loop;
    net::real_network network(loop);
    proc::local_children children(loop);
    cluster::agent a(loop, network, children, std::move(how));
    // A launcher tells all of a job to stop. If the driver was quicker, that comes while this
    // process is ending: it is not to look like one that was killed. Never destroyed: the process
    // exits under it.
    static const auto* const until_exit = new stop_signals;
    (void)until_exit;
    return loop.run(cluster::detail::serve_role(&loop, &a));
}

} // namespace skein::program
