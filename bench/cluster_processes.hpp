// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cluster of processes of this host: a head and two agents, copies of the benchmark, on a port
// that the system chooses. They end with the thread that has started them, so with the benchmark,
// however that ends.

#include "echo_peer.hpp"

#include <skein/cluster/access.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/program.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace bench {

/// What a copy of the benchmark is: "head", "agent", or a driver.
inline constexpr const char* role_variable = "SKEIN_BENCH_ROLE";
/// Of an agent, and inherited by its workers: the node's name.
inline constexpr const char* node_variable = "SKEIN_BENCH_NODE";

/// What to start: a copy of this program in a role, with the token, and without what the user has
/// set for others.
inline skein::proc::process_options copy_of_this(const std::string& role,
                                                 const skein::net::token& secret,
                                                 std::vector<std::string> arguments) {
    skein::proc::process_options how;
    how.executable = "/proc/self/exe";
    how.argv = {"bench-" + role};
    how.argv.insert(how.argv.end(), arguments.begin(), arguments.end());
    how.env = {
        {role_variable, role}, {"SKEIN_TOKEN", secret.to_hex()}, {"SKEIN_LOG_LEVEL", "error"}};
    how.unset_env = {"SKEIN_ADDRESS", "SKEIN_TOKEN_FILE", "SKEIN_WORKERS"};
    return how;
}

/// Reads a child's output until `end` is in it, or it ends.
inline std::string read_until(int fd, std::string_view end) {
    std::string all;
    char piece[512];
    while (all.find(end) == all.npos) {
        ::pollfd readable{fd, POLLIN, 0};
        (void)::poll(&readable, 1, -1);
        const auto n = ::read(fd, piece, sizeof piece);
        if (n <= 0) break;
        all.append(piece, static_cast<std::size_t>(n));
    }
    return all;
}

/// Head, node "a" with two cpus, node "b" with one.
class cluster_processes {
public:
    cluster_processes() {
        thread_.run([this] { return start(this); });
    }
    cluster_processes(const cluster_processes&) = delete;
    cluster_processes& operator=(const cluster_processes&) = delete;
    /// The agents end first: they would tell that their head has gone.
    ~cluster_processes() {
        while (is_restarting()) std::this_thread::yield();
        for (auto* child : {&a_, &b_, &head_}) {
            child->kill(SIGTERM);
            child->wait_blocking();
        }
    }

    [[nodiscard]] const std::string& address() const noexcept { return address_; }
    [[nodiscard]] const skein::net::token& secret() const noexcept { return secret_; }
    [[nodiscard]] skein::net::address head() const {
        return skein::cluster::parse_head_address(address_);
    }
    [[nodiscard]] skein::cluster::tool_options tool() const {
        skein::cluster::tool_options how;
        how.head = head();
        how.secret = secret_;
        return how;
    }
    /// Returns at once: the head is killed, and `pause` later started again at the same address.
    void restart_head(std::chrono::milliseconds pause, std::vector<int> cores) {
        restarting_ = true;
        thread_.loop().post_from_any_thread([this, pause, cores = std::move(cores)] {
            pin(0, cores);
            head_.kill(SIGKILL);
            head_.wait_blocking();
            std::this_thread::sleep_for(pause);
            start_head(address_);
            restarting_ = false;
        });
    }
    [[nodiscard]] bool is_restarting() const noexcept { return restarting_; }
    [[nodiscard]] std::vector<pid_t> pids() const { return {head_.pid(), a_.pid(), b_.pid()}; }

    /// Suspends until the head knows both nodes and, if there is one, the driver.
    static skein::task<void> wait_complete(skein::net::network* via, const cluster_processes* self,
                                           std::size_t jobs) {
        for (;;) {
            if (!self->is_restarting()) {
                auto asking = as_result(skein::cluster::ask_for_status(*via, self->tool()));
                const auto now = co_await asking;
                if (now && now->nodes.size() == 2 && now->jobs.size() == jobs) co_return;
            }
            co_await skein::sleep_for(std::chrono::milliseconds(10));
        }
    }

private:
    static skein::task<void> start(cluster_processes* self) {
        self->start_head("127.0.0.1:0");
        self->a_ = self->start_agent("a", "cpu=2");
        self->b_ = self->start_agent("b", "cpu=1");
        skein::net::real_network network(self->thread_.loop());
        auto waiting = wait_complete(&network, self, 0);
        co_await waiting;
    }
    void start_head(const std::string& listen) {
        auto [ours, theirs] = skein::make_pipe();
        auto how = copy_of_this("head", secret_, {listen});
        how.stdout_fd = theirs.get();
        head_ = skein::proc::child_process::spawn(how);
        theirs.reset();
        constexpr std::string_view before = "skein join ";
        const auto said = read_until(ours.get(), "--address");
        const auto at = said.find(before);
        if (at == said.npos)
            throw skein::error(skein::errc::io, "the head of the benchmark has not started")
                .with_cause(said);
        const auto begin = at + before.size();
        address_ = said.substr(begin, said.find('\n', begin) - begin);
        said_ = std::move(ours); // it may say more
    }
    [[nodiscard]] skein::proc::child_process start_agent(const char* name, const char* resources) {
        auto how = copy_of_this("agent", secret_, {address_, name, resources});
        how.env.emplace_back(node_variable, name);
        const skein::unique_fd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
        how.stdout_fd = nowhere.get();
        return skein::proc::child_process::spawn(how);
    }

    skein::net::token secret_ = skein::net::token::generate();
    std::string address_;
    std::atomic<bool> restarting_ = false;
    skein::net::loop_thread thread_{"space_server"};
    skein::proc::child_process head_, a_, b_; // started by the thread, and ended before it
    skein::unique_fd said_;
};

/// The life of a head or an agent of cluster_processes.
inline int play_role(std::string_view role, int argc, char** argv) {
    if (role == "head" && argc == 2) {
        skein::program::head_program how;
        how.listen = argv[1];
        return skein::program::run_head(how);
    }
    if (role != "agent" || argc != 4) return 2;
    skein::program::agent_program how;
    how.head = argv[1];
    how.name = argv[2];
    how.resources = argv[3];
    return skein::program::run_agent(how);
}

} // namespace bench
