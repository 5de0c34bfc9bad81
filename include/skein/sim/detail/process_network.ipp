// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams and listeners of simulated processes.

#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/sim/detail/process_network.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace skein::sim::detail {

SKEIN_INLINE process_end::process_end(std::shared_ptr<process> of) : of_(std::move(of)) {
    of_->open_.push_back(this);
}
SKEIN_INLINE process_end::~process_end() { std::erase(of_->open_, this); }
SKEIN_INLINE bool process_end::paused() const noexcept { return of_->paused_; }
SKEIN_INLINE task<void> process_end::stand_still() { return of_->stand_still(); }
SKEIN_INLINE std::unique_ptr<net::stream> process_end::adopt(std::unique_ptr<net::stream> inner) {
    return of_->network_->take(std::move(inner));
}

/// While the process stands still, nothing is read or written.
class process_stream final : public net::stream, public process_end {
public:
    process_stream(std::shared_ptr<process> of, std::unique_ptr<net::stream> inner)
        : process_end(std::move(of)), inner_(std::move(inner)) {}

    task<std::size_t> read_some(mut_byte_span into) override {
        auto reading = as_result(inner_->read_some(into));
        auto got = co_await reading;
        auto still = stand_still();
        co_await still;
        if (!got) throw got.error();
        co_return *got;
    }
    task<void> write_all(std::span<const byte_span> batch) override {
        auto still = stand_still();
        co_await still;
        auto writing = inner_->write_all(batch);
        co_await writing;
    }
    std::optional<std::size_t> try_read(mut_byte_span into) override {
        return paused() ? std::nullopt : inner_->try_read(into);
    }
    std::size_t try_write(std::span<const byte_span> batch) override {
        return paused() ? 0 : inner_->try_write(batch);
    }
    void close_send() noexcept override { inner_->close_send(); }
    void close() noexcept override { inner_->close(); }
    void close_end() noexcept override { inner_->close(); }
    [[nodiscard]] std::string peer_name() const override { return inner_->peer_name(); }
    [[nodiscard]] std::string peer_host() const override { return inner_->peer_host(); }
    [[nodiscard]] duration unconfirmed() const noexcept override { return inner_->unconfirmed(); }

private:
    std::unique_ptr<net::stream> inner_;
};

class process_listener final : public net::listener, public process_end {
public:
    process_listener(std::shared_ptr<process> of, std::unique_ptr<net::listener> inner)
        : process_end(std::move(of)), inner_(std::move(inner)) {}

    task<std::unique_ptr<net::stream>> accept() override {
        auto accepting = as_result(inner_->accept());
        auto got = co_await accepting;
        auto still = stand_still();
        co_await still;
        if (!got) throw got.error();
        co_return adopt(std::move(*got));
    }
    [[nodiscard]] net::address local() const override { return inner_->local(); }
    void close() noexcept override { inner_->close(); }
    void close_end() noexcept override { inner_->close(); }

private:
    std::unique_ptr<net::listener> inner_;
};

SKEIN_INLINE void process_network::check_alive() const {
    if (of_.killed_ || of_.ended_) throw error(errc::closed, "the simulated process has ended");
}

SKEIN_INLINE std::unique_ptr<net::stream> process_network::take(
    std::unique_ptr<net::stream> inner) {
    check_alive();
    return std::make_unique<process_stream>(of_.shared_from_this(), std::move(inner));
}

SKEIN_INLINE task<std::unique_ptr<net::stream>> process_network::connect(net::address to) {
    const auto self = of_.shared_from_this(); // this object with it
    auto connecting = as_result(host_.connect(std::move(to)));
    auto got = co_await connecting;
    auto still = self->stand_still();
    co_await still;
    if (!got) throw got.error();
    co_return take(std::move(*got));
}

SKEIN_INLINE std::unique_ptr<net::listener> process_network::listen(net::address at) {
    check_alive();
    return std::make_unique<process_listener>(of_.shared_from_this(), host_.listen(std::move(at)));
}

} // namespace skein::sim::detail
