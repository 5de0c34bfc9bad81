// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ray beside a benchmark: a Python driver that measures the same shapes in turns with ours.
//
//     const auto ray = bench::ray_side::start(python, "/objects_ray.py");   // null: it has no ray
//     if (ray) theirs = ray->rate("put_64_mib", 2);

#include "other_programs.hpp"

#include <skein/core/unique_fd.hpp>
#include <skein/proc/process.hpp>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

namespace bench {

/// Reads a line; empty: the other side has ended.
inline std::string read_line(int fd) {
    std::string line;
    for (char c = 0;;) {
        ::pollfd readable{fd, POLLIN, 0};
        (void)::poll(&readable, 1, -1);
        if (::read(fd, &c, 1) <= 0 || c == '\n') return line;
        line += c;
    }
}

/// A script of this folder ("/name.py"), in a Python that has ray.
inline skein::proc::process_options ray_program(const char* python, const char* script,
                                                std::vector<std::string> arguments) {
    skein::proc::process_options how;
    how.argv = {python, std::string(SKEIN_BENCH_SOURCE_DIR) + script};
    how.argv.insert(how.argv.end(), arguments.begin(), arguments.end());
    how.env = {{"RAY_USAGE_STATS_ENABLED", "0"}, {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"}};
    how.unset_env = {"RAY_ADDRESS"};
    how.die_with_parent = false; // it ends when its socket does, and takes its daemons along
    return how;
}

/// A Ray driver that measures on request.
class ray_side {
public:
    /// nullptr: no Python, or one without ray.
    static std::unique_ptr<ray_side> start(const char* python, const char* script) {
        if (python == nullptr) return nullptr;
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
        skein::unique_fd ours(ends[0]), theirs(ends[1]);
        auto how = ray_program(python, script, {"--serve", "5"});
        how.fds = {{theirs.get(), 5}};
        std::unique_ptr<ray_side> side(new ray_side);
        side->process_ = skein::proc::child_process::spawn(how);
        side->way_ = std::move(ours);
        theirs.reset();
        side->version_ = read_line(side->way_.get());
        return side->version_.empty() ? nullptr : std::move(side);
    }
    ray_side(const ray_side&) = delete;
    ray_side& operator=(const ray_side&) = delete;
    ~ray_side() {
        way_.reset();
        process_.wait_blocking();
    }
    [[nodiscard]] const std::string& version() const noexcept { return version_; }
    /// Calls per second, measured for so long.
    double rate(std::string_view shape, double seconds) {
        const auto line = fmt::format("{} {}\n", shape, seconds);
        if (::write(way_.get(), line.data(), line.size()) < 0) std::abort();
        return std::strtod(read_line(way_.get()).c_str(), nullptr);
    }

private:
    ray_side() = default;
    skein::proc::child_process process_;
    skein::unique_fd way_;
    std::string version_;
};

} // namespace bench
