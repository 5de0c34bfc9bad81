// SPDX-License-Identifier: Apache-2.0
#pragma once
// The network as one simulated process sees it: what it opens is closed with it.

#include <skein/core/task.hpp>
#include <skein/net/network.hpp>

#include <memory>

namespace skein::sim {

class process;

namespace detail {

/// A stream or listener of a process, in its list while it lives.
class process_end {
public:
    explicit process_end(std::shared_ptr<process> of);
    process_end(const process_end&) = delete;
    process_end& operator=(const process_end&) = delete;
    /// As the kernel closes it.
    virtual void close_end() noexcept = 0;

protected:
    ~process_end();
    [[nodiscard]] bool paused() const noexcept;
    [[nodiscard]] task<void> stand_still();
    /// Makes a stream one of the same process.
    [[nodiscard]] std::unique_ptr<net::stream> adopt(std::unique_ptr<net::stream> inner);

private:
    const std::shared_ptr<process> of_;
};

/// Its host's network for a process. Belongs to the process; what it makes keeps the process alive.
class process_network final : public net::network {
public:
    process_network(net::network& host, process& of) noexcept : host_(host), of_(of) {}

    task<std::unique_ptr<net::stream>> connect(net::address to) override;
    std::unique_ptr<net::listener> listen(net::address at) override;
    /// Makes a stream one of this process.
    [[nodiscard]] std::unique_ptr<net::stream> take(std::unique_ptr<net::stream> inner);

private:
    void check_alive() const;

    net::network& host_;
    process& of_;
};

} // namespace detail
} // namespace skein::sim
